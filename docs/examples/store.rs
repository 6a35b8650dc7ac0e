//! A store of your own: conversations as objects that are put whole and got whole, here files in a folder.
//!
//! ```text
//! cargo run -- /tmp/conversations "What time is it?"
//! ```

use std::env::args;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bantam::agent::{Agent, Cancel, Request};
use bantam::error::{Error, Kind, Result};
use bantam::provider::demo::Demo;
use bantam::session::{Durability, Line, Session, Store};

/// Each conversation is a folder, and each object in it a list of lines. Objects are named by the place of their first line, so that
/// their names sort; one that takes the place of all before it says so.
pub struct Objects {
    root: PathBuf,
}

/// A lock is an object that only one can create. Whoever dies with it leaves it, so a real one would have a time to live.
struct Lock(PathBuf);

impl Drop for Lock {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            eprintln!("unlocking {}: {error}", self.0.display());
        }
    }
}

impl Objects {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Of a conversation, whose name must not lead out of `root` or to another.
    fn folder(&self, name: &str) -> Result<PathBuf> {
        if name.is_empty() || name.contains(['/', '\\', '.', '\0']) {
            return Err(Error::usage(format!("{name:?} cannot be a folder's name")));
        }
        Ok(self.root.join(name))
    }

    fn lock(&self, name: &str) -> Result<Option<Lock>> {
        let folder = self.folder(name)?;
        fs::create_dir_all(&folder)?;
        let path = folder.join("lock");
        match File::create_new(&path) {
            Ok(_) => Ok(Some(Lock(path))),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The objects of a conversation that count, in their order.
    fn objects(&self, name: &str) -> Result<Vec<PathBuf>> {
        let folder = match fs::read_dir(self.folder(name)?) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            folder => folder?,
        };
        let mut paths = Vec::new();
        for entry in folder {
            let path = entry?.path();
            if path.extension().is_some_and(|end| end == "json") {
                paths.push(path);
            }
        }
        paths.sort();
        let is_first = |path: &PathBuf| path.to_string_lossy().ends_with("-0.json");
        let first = paths.iter().rposition(is_first).unwrap_or(0);
        Ok(paths.split_off(first))
    }

    /// Puts an object; it is there whole, or not at all.
    fn put(&self, session: &Session, kind: u8, lines: &[Line]) -> Result<()> {
        let folder = self.folder(&session.name)?;
        let new = folder.join("new");
        let mut file = File::create(&new)?;
        file.write_all(&serde_json::to_vec(lines)?)?;
        file.sync_all()?;
        fs::rename(
            new,
            folder.join(format!("{:020}-{kind}.json", session.place())),
        )?;
        Ok(())
    }
}

fn get(path: &Path) -> Result<Vec<Line>> {
    serde_json::from_slice(&fs::read(path)?)
        .map_err(|error| Error::failed(format!("reading {}: {error}", path.display())))
}

impl Store for Objects {
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session> {
        let started = Instant::now();
        let mut is_told = false;
        let lock = loop {
            if let Some(lock) = self.lock(name)? {
                break lock;
            }
            if started.elapsed() >= Duration::from_secs(30) {
                return Err(Error::new(Kind::Busy, format!("{name} is in use")));
            }
            if !is_told && started.elapsed() >= Duration::from_secs(1) {
                waiting();
                is_told = true;
            }
            if cancel.sleep(Duration::from_millis(20)).is_err() {
                return Err(Error::new(Kind::Interrupted, "stopped while waiting"));
            }
        };
        Ok(self.peek(name)?.locked_by(lock))
    }

    fn peek(&self, name: &str) -> Result<Session> {
        let mut lines = Vec::new();
        for path in self.objects(name)? {
            lines.extend(get(&path)?);
        }
        Session::read(name, lines)
    }

    fn write(&self, session: &mut Session, lines: &[Line], _: Durability) -> Result<()> {
        self.put(session, 1, lines)
    }

    fn replace(&self, session: &mut Session, lines: Vec<Line>) -> Result<Option<PathBuf>> {
        self.put(session, 0, &lines)?;
        Ok(None)
    }
}

fn main() -> Result<()> {
    let [_, folder, question] = &args().collect::<Vec<_>>()[..] else {
        return Err(Error::usage("usage: store FOLDER QUESTION"));
    };
    let store = Objects::new(folder);
    let agent = Agent::builder().provider(Demo).store(store).build()?;
    println!(
        "{}",
        agent.run(&Request::new(question, "notes"), &|_| {}).output
    );
    println!(
        "{} messages are kept",
        Objects::new(folder).peek("notes")?.messages.len()
    );
    Ok(())
}
