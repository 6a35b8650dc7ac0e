//! A research assistant: it searches the web, reads pages and keeps notes, in at most ten steps and by rules of its own.

use bantam::agent::{Agent, Limits, Request};
use bantam::bus::Event;
use bantam::error::Result;
use bantam::provider::OpenAi;
use bantam::tools::{self, Policy};

const RULES: &str = "You are a research assistant. Search first, then read at least two sources. \
    Name the address of each source that you use, and say what you could not find.";

pub fn main() -> Result<()> {
    bantam::init(); // pages are read in the sandbox
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    // The settings of docs/settings.md, from a file here.
    let settings = std::fs::read("research.json").unwrap_or("{}".into());
    let policy = Policy::with("agent-home", &serde_json::from_slice(&settings)?)?;
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .tools(tools::web(&policy))
        .tools(tools::files(&policy)?)
        .only(["web_search", "web_fetch", "write_file"])
        .context("RESEARCH", || RULES.to_owned())
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
