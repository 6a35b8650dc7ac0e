//! The tools of an MCP server, which runs in a sandbox of its own: it reads `bricks/` and has no network.

use bantam::{Agent, Home, OpenAi, Result};
use serde_json::json;

pub fn main() -> Result<()> {
    bantam::init();
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let home = Home::at("agent-home", &json!({}))?;
    let bricks = std::env::current_dir()?.join("bricks");
    let server = json!({"command": bricks.join("server"), "read": [bricks], "network": false});
    let (bricks, notices) = home.mcp("bricks", &server)?;
    for notice in notices {
        eprintln!("{notice}");
    }
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .tools(bricks)
        .build()?;
    println!("{}", agent.ask("How many bricks are left?")?);
    Ok(())
}
