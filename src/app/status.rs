//! State of the gateway for `bantam status`, in the file `state/gateway.json`.
//!
//! `{"v":1,"pid","started","bot":"@NAME","polling":{"ok","since","why"},"ended"}`, with times as RFC 3339 in UTC; `"ended"` is
//! set when the gateway has ended. The file is replaced without a sync, and only after changes. A gateway that crashed leaves
//! the file unchanged, so its lock shows whether a gateway is running.

use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::error::Result;
use crate::json::parse_json;
use crate::paths::Home;
use crate::storage::{self, Durability};
use crate::text::rfc3339;

/// Version of the file's format.
const VERSION: u64 = 1;

/// Writes the file of the running gateway.
pub(crate) struct StatusFile {
    path: PathBuf,
    fields: Value,
}

fn path(home: &Home) -> PathBuf {
    home.state().join("gateway.json")
}

impl StatusFile {
    /// Creates the status of a gateway that starts now.
    pub(crate) fn new(home: &Home, now: SystemTime) -> Self {
        let started = rfc3339(now);
        let fields = json!({
            "v": VERSION,
            "pid": std::process::id(),
            "started": started,
            "bot": "",
            "polling": {"ok": true, "since": started, "why": ""},
        });
        Self {
            path: path(home),
            fields,
        }
    }

    /// Stores the name of the bot.
    pub(crate) fn serves_as(&mut self, name: &str) -> Result<()> {
        self.set("bot", format!("@{name}").into())
    }

    /// Stores that a poll succeeded, or why polls fail.
    pub(crate) fn polls(&mut self, why: Option<&str>, now: SystemTime) -> Result<()> {
        let before = &self.fields["polling"];
        let is_same = before["ok"] == why.is_none();
        let since = if is_same {
            before["since"].clone()
        } else {
            rfc3339(now).into()
        };
        self.set(
            "polling",
            json!({"ok": why.is_none(), "since": since, "why": why.unwrap_or_default()}),
        )
    }

    pub(crate) fn write(&self) -> Result<()> {
        storage::replace(
            &self.path,
            self.fields.to_string().as_bytes(),
            Durability::Later,
        )
    }

    fn set(&mut self, name: &str, value: Value) -> Result<()> {
        if self.fields[name] == value {
            return Ok(());
        }
        self.fields[name] = value;
        self.write()
    }
}

/// Returns the file if this process has written it, also before a restart of the program, and has not ended.
fn own(home: &Home) -> Option<Value> {
    let pid = std::process::id();
    read(home).filter(|fields| fields["pid"] == pid && fields["ended"].is_null())
}

/// Whether this process ran a gateway before it was restarted.
pub(crate) fn is_restarted(home: &Home) -> bool {
    own(home).is_some()
}

/// Stores that the gateway has ended, if it is this process.
pub(crate) fn end(home: &Home, now: SystemTime) -> Result<()> {
    let Some(fields) = own(home) else {
        return Ok(());
    };
    let path = path(home);
    StatusFile { path, fields }.set("ended", rfc3339(now).into())
}

/// Reads the file of a home's last gateway; `None` if it is missing or has another version.
pub(crate) fn read(home: &Home) -> Option<Value> {
    let text = fs_err::read_to_string(path(home)).ok()?;
    parse_json(&text)
        .ok()
        .filter(|fields| fields["v"] == VERSION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notify::is_running;
    use crate::test_dir::TestDir;
    use std::time::Duration;

    #[test]
    fn it_is_written_when_something_has_changed_and_only_then() {
        let dir = TestDir::new();
        let home = Home::new(dir.join("home"));
        let at =
            |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
        assert!(read(&home).is_none() && !is_running(&home) && !home.root().exists());
        let mut status = StatusFile::new(&home, at(0));
        status.write().unwrap();
        status.serves_as("some_bot").unwrap();
        let written = || fs_err::metadata(path(&home)).is_ok();
        fs_err::remove_file(path(&home)).unwrap();
        status.polls(None, at(5)).unwrap();
        assert!(!written(), "a poll like the one before");
        status.polls(Some("no route"), at(10)).unwrap();
        assert!(written());
        fs_err::remove_file(path(&home)).unwrap();
        status.polls(Some("no route"), at(20)).unwrap();
        assert!(!written(), "the same fault goes on");
        status.polls(Some("409"), at(30)).unwrap();
        let polling = read(&home).unwrap()["polling"].clone();
        assert_eq!(
            polling,
            json!({"ok": false, "since": rfc3339(at(10)), "why": "409"})
        );
        status.polls(None, at(40)).unwrap();
        end(&home, at(50)).unwrap();
        let fields = read(&home).unwrap();
        assert_eq!(
            fields["polling"],
            json!({"ok": true, "since": rfc3339(at(40)), "why": ""})
        );
        assert_eq!(
            (&fields["bot"], &fields["ended"]),
            (&json!("@some_bot"), &json!(rfc3339(at(50))))
        );
        let mut other = StatusFile::new(&home, at(60));
        other.set("pid", 1.into()).unwrap();
        end(&home, at(70)).unwrap();
        assert!(
            read(&home).unwrap()["ended"].is_null(),
            "of another process"
        );
        storage::replace(&path(&home), b"{\"v\":2}", Durability::Later).unwrap();
        assert!(read(&home).is_none());
    }
}
