//! A channel of your own: the terminal, in lines. `/stop`, `/new` and `/status` are commands.

use std::io::{Write, stdin, stdout};

use bantam::{Agent, Cancel, Channel, FileStore, Inbound, Inbox, OpenAi, Result};

struct Terminal;

impl Channel for Terminal {
    fn name(&self) -> &'static str {
        "terminal"
    }

    fn poll(&self, inbox: &Inbox, _: &Cancel) -> Result<()> {
        for line in stdin().lines() {
            inbox.add(Inbound::line(self.name(), "me", line?)?)?;
        }
        Ok(())
    }

    fn deliver(&self, _chat: &str, text: &str) -> Result<()> {
        Ok(writeln!(stdout(), "{text}")?)
    }
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(FileStore::at("agent-home"))
        .build()?;
    let channels: Vec<Box<dyn Channel>> = vec![Box::new(Terminal)];
    bantam::serve(agent, "agent-home", channels, &Cancel::new(None))
}
