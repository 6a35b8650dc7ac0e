//! A channel of your own: the terminal, in lines. `/stop`, `/new` and `/status` are commands.

use std::io::stdin;

use bantam::{Agent, Cancel, FileStore, Inbound, Inbox, OpenAi, Outbound, Result};

fn read(inbox: &Inbox) {
    for line in stdin().lines().map_while(std::io::Result::ok) {
        let message = Inbound::line("terminal", "me", line).expect("a plain key");
        inbox.add(message).expect("room on the disk");
    }
}

fn show(event: &Outbound) {
    if let Some(text) = event.text() {
        println!("{text}");
    }
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(FileStore::at("agent-home"))
        .build()?;
    let terminal = bantam::channel(read, show);
    bantam::serve(agent, "agent-home", vec![terminal], &Cancel::new(None))
}
