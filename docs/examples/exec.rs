//! Commands and files in a sandbox: the model works in `agent-home/workspace` and reaches nothing else.

use bantam::agent::Agent;
use bantam::error::Result;
use bantam::provider::OpenAi;
use bantam::tools::{self, Policy};
use serde_json::json;

pub fn main() -> Result<()> {
    bantam::init(); // each call is a process of this program
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let policy = Policy::with("agent-home", &json!({"tools": {"exec": {"timeout": 20}}}))?;
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .tools(tools::files(&policy)?)
        .tools(tools::exec(&policy))
        .build()?;
    println!(
        "{}",
        agent.ask("Write a haiku into haiku.txt, and count its bytes.")?
    );
    Ok(())
}
