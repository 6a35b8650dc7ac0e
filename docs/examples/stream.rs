//! Shows an answer while it comes, and what it took.

use std::io::Write;

use bantam::{Agent, Event, OpenAi, Request, Result};

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .build()?;
    let show = |event| {
        if let Event::Delta(text) = event {
            print!("{text}");
            std::io::stdout().flush().ok();
        }
    };
    let response = agent.run(&Request::new("Tell me a story.", "stories"), &show);
    let tokens = response.usage.total();
    println!("\n{tokens} tokens in {} ms", response.ms);
    response.error.map_or(Ok(()), Err)
}
