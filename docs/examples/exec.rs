//! Commands and files in a sandbox: the model works in `agent-home/workspace` and reaches nothing else.

use bantam::{Agent, Home, OpenAi, Result};
use serde_json::json;

pub fn main() -> Result<()> {
    bantam::init(); // each call is a process of this program
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let home = Home::at("agent-home", &json!({"tools": {"exec": {"timeout": 20}}}))?;
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .tools(home.files()?)
        .tools(home.exec()?)
        .build()?;
    println!(
        "{}",
        agent.ask("Write a haiku into haiku.txt, and count its bytes.")?
    );
    Ok(())
}
