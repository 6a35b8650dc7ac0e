//! Subagents: the model hands out tasks, which run side by side, each with a context of its own.

use bantam::{Agent, Event, OpenAi, Request, Result};

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .subagents()
        .build()?;
    let question = "Have one subagent argue for tea and one for coffee, then decide.";
    let response = agent.run(&Request::new(question, "drinks"), &|event| {
        if let Event::ToolStarted { summary } = event {
            eprintln!("{summary}");
        }
    });
    println!("{} ({} tokens)", response.output, response.usage.total());
    response.error.map_or(Ok(()), Err)
}
