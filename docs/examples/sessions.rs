//! Several conversations at once: turns of one follow each other, those of different ones run side by side.

use std::thread;

use bantam::{Agent, FileStore, OpenAi, Request, Result};

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(FileStore::at("agent-home"))
        .build()?;
    thread::scope(|scope| {
        for name in ["ada", "ben", "cleo"] {
            let agent = &agent;
            scope.spawn(move || {
                for question in ["Hello!", "What did I say?"] {
                    let response = agent.run(&Request::new(question, name), &|_| ());
                    println!("{name}: {}", response.output);
                }
            });
        }
    });
    Ok(())
}
