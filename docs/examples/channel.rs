//! A channel of your own: the terminal, in lines. `/stop`, `/new` and `/status` are commands.

use std::io::{Write, stdin, stdout};

use bantam::{Agent, Cancel, FileStore, Inbound, Inbox, OpenAi, Result};

fn read(inbox: &Inbox) -> Result<()> {
    for line in stdin().lines() {
        inbox.add(Inbound::line("terminal", "me", line?)?)?;
    }
    Ok(())
}

fn deliver(_chat: &str, text: &str) -> Result<()> {
    Ok(writeln!(stdout(), "{text}")?)
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(FileStore::at("agent-home"))
        .build()?;
    let terminal = bantam::channel("terminal", read, deliver);
    bantam::serve(agent, "agent-home", vec![terminal], &Cancel::new(None))
}
