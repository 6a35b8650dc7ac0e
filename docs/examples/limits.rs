//! Limits of a turn, and a stop from another thread.

use std::thread;
use std::time::Duration;

use bantam::{Agent, Limits, OpenAi, Request, Result};

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let limits = Limits {
        max_steps: 5,
        timeout: Duration::from_secs(60),
        budget_tokens: Some(20_000),
        ..Limits::default()
    };
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .limits(limits)
        .build()?;
    let request = Request::new("Count to a million.", "numbers");
    let cancel = request.cancel.clone();
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(1));
        cancel.stop();
    });
    let response = agent.run(&request, &|_| ());
    println!("{}: {:?}", response.stop.name(), response.output);
    Ok(())
}
