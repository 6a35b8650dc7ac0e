//! The log lines of turns.

use crate::bus::{Event, Response, TurnStop};
use crate::log::Level;

/// Returns the level and the log line of an event.
pub(crate) fn line(event: &Event) -> Option<(Level, String)> {
    Some(match event {
        Event::Notice(text) | Event::Warning(text) => (Level::Warn, text.clone()),
        Event::Trace(text) => (Level::Debug, text.clone()),
        Event::ToolStarted { summary } => (Level::Debug, summary.clone()),
        Event::ToolFinished { name, ok, ms } => (
            Level::Debug,
            format!("{name} {} in {ms} ms", if *ok { "done" } else { "failed" }),
        ),
        Event::Done(response) => turn_line(response),
        _ => return None,
    })
}

fn turn_line(response: &Response) -> (Level, String) {
    let (end, ms, usage) = (response.stop.name(), response.ms, response.usage);
    if let (TurnStop::Error, Some(error)) = (response.stop, &response.error) {
        let text = format!("a turn failed after {ms} ms: {}", error.message);
        return (Level::Warn, text);
    }
    let prompt = usage.prompt_tokens;
    let completion = usage.completion_tokens;
    let text = format!("a turn ended ({end}) after {ms} ms: {prompt} + {completion} tokens");
    (Level::Debug, text)
}
