//! A channel of your own: lines of the named pipe `questions` come in, answers go to the end of the file `answers`. An answer is
//! kept until it is written, also over a crash. Try it: `mkfifo questions`, start it, and `echo "What time is it?" > questions`.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};

use bantam::{Agent, Cancel, Channel, FileStore, Inbound, Inbox, OpenAi, Result};

struct Pipe {
    questions: &'static str,
    answers: &'static str,
}

impl Channel for Pipe {
    fn name(&self) -> &'static str {
        "pipe"
    }

    fn poll(&self, inbox: &Inbox, cancel: &Cancel) -> Result<()> {
        while cancel.reason().is_none() {
            // Opening waits for a writer, and the lines end with the last one.
            let pipe = BufReader::new(File::open(self.questions)?);
            for line in pipe.lines() {
                inbox.add(Inbound::line(self.name(), "me", line?)?)?;
            }
        }
        Ok(())
    }

    fn deliver(&self, _chat: &str, text: &str) -> Result<()> {
        let mut options = OpenOptions::new();
        let mut answers = options.append(true).create(true).open(self.answers)?;
        writeln!(answers, "{text}")?;
        Ok(answers.sync_all()?)
    }
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(FileStore::at("agent-home"))
        .build()?;
    let pipe = Pipe {
        questions: "questions",
        answers: "answers",
    };
    bantam::serve(
        agent,
        "agent-home",
        vec![Box::new(pipe)],
        &Cancel::new(None),
    )
}
