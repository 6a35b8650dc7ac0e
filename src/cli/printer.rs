//! Prints turns.
//!
//! Standard output gets only the answer, streamed on a terminal, otherwise printed whole after it is stored.

use std::io::{self, IsTerminal};
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use super::args::Args;
use super::term::ask;
use super::term::screen::Screen;
use super::term::tty;
use super::{error_json, json_line};
use crate::agent::{Confirm, Decision, PendingCall};
use crate::bus::{Event, Response};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::markdown::{Look, Terminal};
use crate::paths::shown_key;
use crate::sync;
use crate::text::{printable, to_single_line};

/// Format of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    /// One object for the whole turn.
    Json,
    /// A line for each event, followed by that object.
    Events,
}

/// Amount of output on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

#[derive(Clone, Copy)]
pub(super) struct Output {
    pub format: Format,
    pub verbosity: Verbosity,
    /// Whether to show the model's reasoning.
    pub thinking: bool,
}

impl Output {
    pub(super) fn from_args(args: &Args) -> Self {
        let format = match (args.has("json"), args.has("events")) {
            (true, _) => Format::Json,
            (_, true) => Format::Events,
            _ => Format::Text,
        };
        let verbosity = match (args.has("quiet"), args.has("verbose")) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        };
        Self {
            format,
            verbosity,
            thinking: args.has("show-thinking"),
        }
    }

    /// Prints warnings and notices, unless quiet.
    pub(super) fn warn<'a>(self, lines: impl IntoIterator<Item = &'a String>) {
        if self.verbosity != Verbosity::Quiet {
            lines.into_iter().for_each(|line| super::notice(line));
        }
    }
}

/// Shows the events of a question, from all its threads.
pub(super) struct Printer {
    output: Output,
    screen: Screen,
    /// Whether text is shown as it arrives.
    streams: bool,
    printed: Mutex<Printed>,
}

#[derive(Default)]
struct Printed {
    markdown: Option<Terminal>,
    /// Number of the last line of `--events`.
    events: u64,
    /// Complete answers so far, if they are not streamed.
    answers: String,
}

impl Printer {
    pub(super) fn new(output: Output, screen: Screen) -> Self {
        let streams = output.format == Format::Text && screen.stdout_is_terminal;
        let look = || Look {
            columns: tty::size().0,
        };
        let markdown = (streams && screen.style.ansi).then(|| Terminal::new(look()));
        Self {
            output,
            screen,
            streams,
            printed: Mutex::new(Printed {
                markdown,
                ..Printed::default()
            }),
        }
    }

    pub(super) fn progress(&self, text: &'static str) {
        if self.output.format == Format::Text && self.output.verbosity != Verbosity::Quiet {
            self.screen.progress(text);
        }
    }

    pub(super) fn event(&self, event: Event) {
        let mut printed = self.lock();
        if self.output.format == Format::Events {
            printed.events += 1;
            let mut line = event_json(&event);
            line["number"] = printed.events.into();
            // A write error is reported at the end.
            drop(self.screen.answer(&json_line(&line)));
        }
        let verbose = self.output.verbosity == Verbosity::Verbose;
        let watched =
            verbose || self.output.verbosity == Verbosity::Normal && self.screen.stderr_is_terminal;
        match event {
            Event::Delta(text) if self.streams => self.delta(&mut printed, &printable(&text)),
            Event::Thought(text) if self.output.thinking => self.screen.thought(&printable(&text)),
            Event::Progress(_) if self.streams => self.end_text(&mut printed),
            Event::Progress(text) if verbose && !text.trim().is_empty() => {
                self.screen.detail(text.trim());
            }
            Event::ToolStarted { summary } => {
                if watched {
                    self.screen.detail(&summary);
                }
                self.progress("running...");
            }
            Event::ToolOutput(line) => self.screen.last_line(&line),
            Event::ToolFinished { name, ok, ms } => {
                if verbose {
                    self.screen.detail(&format!(
                        "{name} {} in {ms} ms",
                        if ok { "done" } else { "failed" }
                    ));
                }
                self.progress("thinking...");
            }
            Event::FileDiff(lines) if watched => self.screen.change(&lines, verbose),
            Event::Notice(text) if watched => self.screen.note(&format!("bantam: {text}")),
            Event::Warning(text) if self.output.verbosity != Verbosity::Quiet => {
                self.screen
                    .note(&format!("bantam: {}", to_single_line(&text, 500)));
            }
            Event::Trace(text) if verbose => self.screen.detail(&text),
            _ => {}
        }
    }

    /// Returns a function that asks the user about a call; `None` without a terminal.
    pub(super) fn asker(self: Arc<Self>, cancel: Cancel) -> Option<Arc<Confirm>> {
        if !self.screen.stderr_is_terminal || !io::stdin().is_terminal() {
            return None;
        }
        Some(Arc::new(move |pending: &PendingCall| {
            self.screen.end_line();
            self.screen.note(&format!("bantam: {}", pending.summary));
            // Shows all arguments, so that the user knows what is allowed.
            if !is_in_summary(pending) {
                for line in pending.arguments.iter().flat_map(|text| text.lines()) {
                    self.screen.note(&format!("  {line}"));
                }
            }
            self.screen.whole_change(&pending.change);
            let tool = &pending.tool;
            let asked = format!(
                "Allow? [y]es / [n]o / [a]lways {tool} in this conversation (default: no) "
            );
            let answers = [
                ("y", Decision::Yes),
                ("yes", Decision::Yes),
                ("", Decision::No),
                ("n", Decision::No),
                ("no", Decision::No),
                ("a", Decision::Always),
                ("always", Decision::Always),
            ];
            let is_over = || cancel.reason().is_some();
            match ask::choose(&self.screen, &asked, &answers, &is_over) {
                Ok(Some(decision)) => decision,
                Ok(None) => {
                    cancel.stop();
                    Decision::Unanswered
                }
                // Without an answer, the call is refused.
                Err(_) => Decision::No,
            }
        }))
    }

    fn delta(&self, printed: &mut Printed, text: &str) {
        let shown = printed
            .markdown
            .as_mut()
            .map(|markdown| markdown.push(text));
        // The text is stored even if writing fails, and a failure is reported at the end.
        drop(self.screen.answer(shown.as_deref().unwrap_or(text)));
    }

    fn end_text(&self, printed: &mut Printed) {
        if let Some(markdown) = &mut printed.markdown {
            drop(self.screen.answer(&markdown.finish()));
        }
        self.screen.end_line();
    }

    /// Ends the output of a turn. `tasks` background tasks are still running.
    pub(super) fn turn_ends(&self, response: &Response, tasks: usize) {
        let mut printed = self.lock();
        self.end_text(&mut printed);
        // A pipe gets only complete answers.
        if !response.partial && !response.output.is_empty() {
            let gap = if printed.answers.is_empty() { "" } else { "\n" };
            let end = if response.output.ends_with('\n') {
                ""
            } else {
                "\n"
            };
            printed
                .answers
                .push_str(&format!("{gap}{}{end}", response.output));
        }
        if tasks > 0 {
            self.progress("waiting for background tasks...");
        }
    }

    /// Prints an answer that was not streamed. A write error becomes the response's error.
    pub(super) fn finish(&self, mut response: Response) -> Response {
        if self.output.format == Format::Text && !self.streams {
            let written = self.screen.answer(&self.lock().answers);
            response.error = response.error.or(written.err());
        }
        response
    }

    fn lock(&self) -> MutexGuard<'_, Printed> {
        sync::lock(&self.printed)
    }
}

/// Whether the summary shows all arguments of a call unchanged.
fn is_in_summary(pending: &PendingCall) -> bool {
    let shown = match pending.arguments.as_slice() {
        [] => "",
        [only] => only.split_once(": ").map_or("", |(_, value)| value),
        _ => return false,
    };
    pending.summary.trim_end() == format!("{} {shown}", pending.tool).trim_end()
}

/// Formats a line of `--events`.
fn event_json(event: &Event) -> Value {
    match event {
        Event::TurnStarted => json!({"event": "turn_started"}),
        Event::Delta(text) => json!({"event": "delta", "text": text}),
        Event::Thought(text) => json!({"event": "thought", "text": text}),
        Event::Progress(text) => json!({"event": "progress", "text": text}),
        Event::ToolStarted { summary } => json!({"event": "tool_started", "summary": summary}),
        Event::ToolFinished { name, ok, ms } => {
            json!({"event": "tool_finished", "name": name, "ok": ok, "ms": ms})
        }
        Event::ToolOutput(line) => json!({"event": "printed", "line": line}),
        Event::FileDiff(lines) => json!({"event": "changed", "lines": lines}),
        Event::Notice(text) => json!({"event": "notice", "text": text}),
        Event::Warning(text) => json!({"event": "warning", "text": text}),
        Event::Trace(text) => json!({"event": "trace", "text": text}),
        Event::Background(tasks) => json!({"event": "background", "tasks": tasks}),
        Event::Done(response) => response_json(response),
    }
}

/// Formats the object of `--json`.
pub(super) fn response_json(response: &Response) -> Value {
    json!({
        "ok": response.error.is_none(),
        "output": response.output,
        "session": Some(shown_key(&response.session)).filter(|session| !session.is_empty()),
        "model": Some(&response.model).filter(|model| !model.is_empty()),
        "stop": response.stop.name(),
        "steps": response.steps,
        "tool_calls": response.tool_calls.iter()
            .map(|c| json!({"name": c.name, "ok": c.ok, "ms": c.ms})).collect::<Value>(),
        "usage": response.usage.to_json(),
        "cost": response.cost,
        "ms": response.ms,
        "error": response.error.as_ref().map(error_json),
    })
}

/// Formats the object of `--json` for a failure before the turn.
pub(super) fn failure_json(e: &Error) -> Value {
    response_json(&Response::failed("", e.clone()))
}
