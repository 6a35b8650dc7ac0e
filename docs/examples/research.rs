//! A research assistant: it searches the web, reads pages and keeps notes, in at most ten steps and by rules of its own.

use bantam::{Agent, Event, Home, Limits, OpenAi, Request, Result};

const RULES: &str = "You are a research assistant. Search first, then read at least two sources. \
    Name the address of each source that you use, and say what you could not find.";

pub fn main() -> Result<()> {
    bantam::init(); // pages are read in the sandbox
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    // The settings of docs/settings.md, from a file here.
    let settings = std::fs::read("research.json").unwrap_or("{}".into());
    let home = Home::at("agent-home", &serde_json::from_slice(&settings)?)?;
    let write = home.files()?.only(&["write_file"])?;
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .tools(home.web()?)
        .tools(write)
        .context("RESEARCH", |_, _| RULES.to_owned())
        .limits(Limits {
            max_steps: 10,
            ..Limits::default()
        })
        .build()?;
    let question = "How old do chickens get?";
    let response = agent.run(&Request::new(question, "chickens"), &|event| {
        if let Event::ToolStarted { summary } = event {
            eprintln!("{summary}");
        }
    });
    println!("{}", response.output);
    println!("({} steps)", response.steps);
    response.error.map_or(Ok(()), Err)
}
