//! Events of a turn for several readers, as a web page would want them: one reads along, one comes late.

use std::{thread, time::Duration};

use bantam::{Agent, Event, EventLog, OpenAi, Request, Result};

/// The answer, from the numbered events of a stream.
pub fn follow(log: &EventLog, stream: &str) -> String {
    let (mut seen, mut text) = (0, String::new());
    while log.status(stream).is_some() {
        for (number, event) in log.wait(stream, seen, Duration::from_secs(600)) {
            seen = number;
            match event {
                Event::Delta(piece) => text.push_str(&piece),
                Event::Done(_) => return format!("{text} ({seen} events)"),
                _ => {}
            }
        }
    }
    text + " (forgotten)"
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let model = OpenAi::new(&api, "", "qwen3:4b");
    let agent = Agent::builder().provider(model).build()?;
    let log = EventLog::new(Duration::from_secs(3600));
    log.add("turn-1", Event::TurnStarted); // who follows now finds it
    thread::scope(|scope| {
        scope.spawn(|| println!("along: {}", follow(&log, "turn-1")));
        let request = Request::new("Why is the sky blue?", "web");
        let response = agent.run(&request, &log.writer("turn-1"));
        log.end("turn-1", &response);
    });
    println!("late: {}", follow(&log, "turn-1"));
    Ok(())
}
