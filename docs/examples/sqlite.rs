//! A store in SQLite, which several processes may use at the same time.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use bantam::{Agent, Durability, Error, Guard, Line, OpenAi, Result, Store};
use rusqlite::{Connection, ErrorCode, params};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS lines (key, n, line, PRIMARY KEY (key, n))";

pub struct Sqlite(PathBuf, Mutex<Connection>);

impl Sqlite {
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self> {
        let dir = dir.into();
        std::fs::create_dir_all(&dir)?;
        let db = Connection::open(dir.join("conversations.db")).map_err(failed)?;
        db.execute_batch(TABLE).map_err(failed)?;
        Ok(Self(dir, Mutex::new(db)))
    }
}

fn failed(e: rusqlite::Error) -> Error {
    Error::failed(format!("using SQLite: {e}"))
}

impl Store for Sqlite {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        let db = self.1.lock().unwrap();
        let select = db.prepare_cached("SELECT line FROM lines WHERE key = ? ORDER BY n");
        let mut select = select.map_err(failed)?;
        let rows = select.query_map([key], |row| row.get(0)).map_err(failed)?;
        let line = |row: rusqlite::Result<String>| Ok(serde_json::from_str(&row.map_err(failed)?)?);
        rows.map(line).collect()
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], _: Durability) -> Result<()> {
        let mut db = self.1.lock().unwrap();
        let change = db.transaction().map_err(failed)?;
        let delete = "DELETE FROM lines WHERE key = ? AND n >= ?";
        change.execute(delete, params![key, from]).map_err(failed)?;
        for (n, line) in (from..).zip(lines) {
            let values = params![key, n, serde_json::to_string(line)?];
            let insert = "INSERT INTO lines VALUES (?, ?, ?)";
            change.execute(insert, values).map_err(failed)?;
        }
        change.commit().map_err(failed)
    }

    fn list(&self) -> Result<Vec<String>> {
        let db = self.1.lock().unwrap();
        let select = db.prepare_cached("SELECT DISTINCT key FROM lines");
        let mut select = select.map_err(failed)?;
        let keys = select.query_map([], |row| row.get(0)).map_err(failed)?;
        keys.map(|key| key.map_err(failed)).collect()
    }

    /// The lock of a database of its own: it ends with this process, however that ends.
    fn lock(&self, key: &str) -> Result<Option<Guard>> {
        let lock = Connection::open(self.0.join(format!("{key}.lock"))).map_err(failed)?;
        lock.busy_timeout(Duration::ZERO).map_err(failed)?;
        match lock.execute_batch("BEGIN EXCLUSIVE") {
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(None),
            Err(e) => Err(failed(e)),
            Ok(()) => Ok(Some(Box::new(Mutex::new(lock)))),
        }
    }
}

pub fn main() -> Result<()> {
    let api = std::env::var("MODEL_API").unwrap_or("http://localhost:11434/v1".to_owned());
    let agent = Agent::builder()
        .provider(OpenAi::new(&api, "", "qwen3:4b"))
        .store(Sqlite::open("conversations")?)
        .build()?;
    println!("{}", agent.ask("What did I say last?")?);
    Ok(())
}
