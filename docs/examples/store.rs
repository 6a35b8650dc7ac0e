//! A store of your own: a file of JSON for each conversation.

use std::{fs, path::PathBuf};

use bantam::{Agent, Durability, Line, OpenAi, Result, Store};

pub struct Folder(pub PathBuf);

impl Store for Folder {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        let path = self.0.join(key); // a key is one plain name
        if !path.try_exists()? {
            return Ok(Vec::new());
        }
        Ok(serde_json::from_slice(&fs::read(path)?)?)
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], _: Durability) -> Result<()> {
        let mut all = self.read(key)?;
        all.splice(from.., lines.iter().cloned());
        let new = self.0.with_extension("new");
        fs::write(&new, serde_json::to_vec(&all)?)?;
        Ok(fs::rename(new, self.0.join(key))?)
    }

    fn list(&self) -> Result<Vec<String>> {
        let name = |file: fs::DirEntry| file.file_name().to_string_lossy().into_owned();
        fs::read_dir(&self.0)?.map(|file| Ok(name(file?))).collect()
    }
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    fs::create_dir_all("conversations")?;
    let agent = Agent::builder().provider(OpenAi::new(&api, "", "qwen3:4b"));
    let agent = agent.store(Folder("conversations".into())).build()?;
    println!("{}", agent.ask("What did I say last?")?);
    Ok(())
}
