//! State of the gateway for `bantam status`, in the file `state/gateway.json`.
//!
//! `{"v":1,"pid","ticks","started","bot":"@NAME","polling":{"ok","since","why"},"ended"}`, with times as RFC 3339 in UTC;
//! `"ended"` is set when the gateway has ended. The file is replaced without a sync, and only after changes. A gateway that
//! crashed leaves the file unchanged, so its lock shows whether a gateway is running.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::error::Result;
use crate::json::parse_json;
use crate::paths::Home;
use crate::storage::{self, Durability};
use crate::sync;
use crate::text::rfc3339;

/// Version of the file's format.
const VERSION: u64 = 1;

fn path(home: &Home) -> PathBuf {
    home.state().join("gateway.json")
}

/// The file of the gateway that this process runs.
pub(crate) struct StatusFile {
    home: Home,
    /// Content of the file; null before the start.
    fields: Mutex<Value>,
}

impl StatusFile {
    /// Continues the file of this process, if the program was restarted.
    pub(crate) fn of_process(home: &Home) -> Self {
        let is_own = |fields: &Value| {
            let (pid, ticks) = (std::process::id(), start_ticks());
            fields["pid"] == pid && fields["ticks"] == ticks && fields["ended"].is_null()
        };
        Self {
            home: home.clone(),
            fields: Mutex::new(read(home).filter(is_own).unwrap_or_default()),
        }
    }

    /// Whether this process has started a gateway, also before a restart of the program.
    pub(crate) fn has_begun(&self) -> bool {
        !sync::lock(&self.fields).is_null()
    }

    /// Stores the state of a gateway that starts now.
    pub(crate) fn begin(&self, now: SystemTime) -> Result<()> {
        let started = rfc3339(now);
        *sync::lock(&self.fields) = json!({
            "v": VERSION,
            "pid": std::process::id(),
            "ticks": start_ticks(),
            "started": started,
            "polling": {"ok": true, "since": started, "why": ""},
        });
        self.set("bot", "".into())
    }

    /// Stores that a poll succeeded, or why polls fail.
    pub(crate) fn polls(&self, why: Option<&str>, now: SystemTime) -> Result<()> {
        let mut polling = sync::lock(&self.fields)["polling"].clone();
        if polling["ok"] != why.is_none() {
            polling["since"] = rfc3339(now).into();
        }
        polling["ok"] = why.is_none().into();
        polling["why"] = why.unwrap_or_default().into();
        self.set("polling", polling)
    }

    /// Stores that the gateway has ended, unless another one has begun since.
    pub(crate) fn end(&self, now: SystemTime) -> Result<()> {
        let file = read(&self.home).unwrap_or_default();
        if file["pid"] != std::process::id() {
            return Ok(());
        }
        self.set("ended", rfc3339(now).into())
    }

    /// Stores a field, such as `bot`, if the gateway has begun.
    pub(crate) fn set(&self, name: &str, value: Value) -> Result<()> {
        let mut fields = sync::lock(&self.fields);
        if fields.is_null() || fields.get(name) == Some(&value) {
            return Ok(());
        }
        let mut changed = fields.clone();
        changed[name] = value;
        let text = changed.to_string();
        storage::replace(&path(&self.home), text.as_bytes(), Durability::Later)?;
        *fields = changed;
        Ok(())
    }
}

/// Returns the time when this process started, in ticks since the machine's start (`starttime` in `proc_pid_stat(5)`). It tells
/// a restarted program from another process with the same id: in a container, each gateway may be process 1.
fn start_ticks() -> String {
    let stat = fs_err::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name before it may contain spaces and parentheses.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().nth(19);
    ticks.unwrap_or_default().to_owned()
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
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    #[test]
    fn it_is_written_when_something_has_changed_and_only_then() {
        let dir = TestDir::new();
        let home = Home::new(dir.join("home"));
        let at =
            |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
        assert!(read(&home).is_none() && !is_running(&home) && !home.root().exists());
        let file = StatusFile::of_process(&home);
        file.set("ended", "now".into()).unwrap();
        assert!(!file.has_begun() && read(&home).is_none());
        file.begin(at(0)).unwrap();
        file.set("bot", "@some_bot".into()).unwrap();
        // Each write makes a new file.
        let inode = || fs_err::metadata(path(&home)).unwrap().ino();
        let begun = inode();
        file.polls(None, at(5)).unwrap();
        assert_eq!(inode(), begun, "a poll like the one before");
        file.polls(Some("no route"), at(10)).unwrap();
        let failing = inode();
        assert_ne!(failing, begun);
        file.polls(Some("no route"), at(20)).unwrap();
        assert_eq!(inode(), failing, "the same fault goes on");
        file.polls(Some("409"), at(30)).unwrap();
        let polling = read(&home).unwrap()["polling"].clone();
        assert_eq!(
            polling,
            json!({"ok": false, "since": rfc3339(at(10)), "why": "409"})
        );
        file.polls(None, at(40)).unwrap();
        let file = StatusFile::of_process(&home);
        assert!(file.has_begun());
        file.set("ended", rfc3339(at(50)).into()).unwrap();
        let fields = read(&home).unwrap();
        assert_eq!(
            fields["polling"],
            json!({"ok": true, "since": rfc3339(at(40)), "why": ""})
        );
        assert_eq!(
            (&fields["bot"], &fields["ended"]),
            (&json!("@some_bot"), &json!(rfc3339(at(50))))
        );
        for (name, other) in [("pid", json!(1)), ("ticks", json!("1"))] {
            file.begin(at(60)).unwrap();
            file.set(name, other).unwrap();
            assert!(!StatusFile::of_process(&home).has_begun(), "{name}");
        }
        storage::replace(&path(&home), b"{\"v\":2}", Durability::Later).unwrap();
        assert!(read(&home).is_none());
    }
}
