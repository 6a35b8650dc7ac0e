//! A turn that survives a crash: run again, this goes on where it stopped, and repeats no tool call that has ended.

use bantam::{Agent, FileStore, Function, OpenAi, Request, Result};
use serde_json::Value;

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let schema = r#"{"type":"object","properties":{}}"#;
    let pay = Function::new("pay", "Pays the bill.", schema, |_: Value, _| {
        println!("paid");
        Ok("It is paid.")
    });
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .tool(pay)
        .store(FileStore::at("agent-home"))
        .build()?;
    let request = Request {
        ids: vec!["bill-2026-11".to_owned()], // the same turn while it is the newest of its conversation
        ..Request::new("Pay the bill of November.", "bills")
    };
    let response = agent.run(&request, &|_| ());
    println!("{}", response.output);
    response.error.map_or(Ok(()), Err)
}
