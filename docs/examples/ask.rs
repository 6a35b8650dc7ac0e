//! Asks a model, once.

use bantam::{Agent, OpenAi, Result};

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .build()?;
    println!("{}", agent.ask("Why is the sky blue?")?);
    Ok(())
}
