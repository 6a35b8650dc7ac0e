//! A store of your own: a file of JSON for each conversation.

use std::fs;
use std::path::PathBuf;

use bantam::session::{Line, LineStore, Lines};
use bantam::{Agent, OpenAi, Result};

pub struct Folder(pub PathBuf);

impl Lines for Folder {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        let path = self.0.join(key); // a key is one plain name
        if !path.try_exists()? {
            return Ok(Vec::new());
        }
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }

    fn write(&self, key: &str, from: usize, lines: &[Line]) -> Result<()> {
        let mut all = self.read(key)?;
        all.splice(from.., lines.iter().cloned());
        let new = self.0.join(format!("{key}.new"));
        fs::write(&new, serde_json::to_vec(&all)?)?;
        Ok(fs::rename(new, self.0.join(key))?)
    }
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    fs::create_dir_all("conversations")?;
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(LineStore::new(Folder("conversations".into())))
        .build()?;
    println!("{}", agent.ask("What did I say last?")?);
    Ok(())
}
