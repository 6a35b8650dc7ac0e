//! State of the gateway for `bantam status`, in the file `state/gateway.json`.
//!
//! `{"v":1,"pid","started","bot":"@NAME","polling":{"ok","since","why"},"ended"}`, with times as RFC 3339 in UTC;
//! `"ended"` is set when the gateway has ended. The file is replaced without a sync, and only after changes. A gateway that
//! crashed leaves the file unchanged, so its lock shows whether a gateway is running.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::error::Result;
use crate::json::parse_json;
use crate::paths::Home;
use crate::storage::{self, Durability, Lock};
use crate::text::rfc3339;

/// Version of the file's format.
const VERSION: u64 = 1;

fn path(home: &Home) -> PathBuf {
    home.state().join("gateway.json")
}

/// Stores the state of a gateway that starts now.
pub(crate) fn begin(home: &Home, now: SystemTime) -> Result<()> {
    let started = rfc3339(now);
    write(
        home,
        &json!({
            "v": VERSION,
            "pid": std::process::id(),
            "started": started,
            "bot": "",
            "polling": {"ok": true, "since": started, "why": ""},
        }),
    )
}

/// Stores the name of the bot.
pub(crate) fn serves_as(home: &Home, name: &str) -> Result<()> {
    change(home, |fields| fields["bot"] = format!("@{name}").into())
}

/// Stores that a poll succeeded, or why polls fail.
pub(crate) fn polls(home: &Home, why: Option<&str>, now: SystemTime) -> Result<()> {
    change(home, |fields| {
        let polling = &mut fields["polling"];
        if polling["ok"] != why.is_none() {
            polling["since"] = rfc3339(now).into();
        }
        polling["ok"] = why.is_none().into();
        polling["why"] = why.unwrap_or_default().into();
    })
}

/// Stores that the gateway has ended, if it is this process.
pub(crate) fn end(home: &Home, now: SystemTime) -> Result<()> {
    change(home, |fields| fields["ended"] = rfc3339(now).into())
}

/// Changes the file if this process has written it.
fn change(home: &Home, change: impl FnOnce(&mut Value)) -> Result<()> {
    // The poller may change it while the program ends.
    let _lock = Lock::acquire(&home.lock("status"), Duration::from_secs(1))?;
    let Some(old) = own(home) else {
        return Ok(());
    };
    let mut fields = old.clone();
    change(&mut fields);
    if fields == old {
        return Ok(());
    }
    write(home, &fields)
}

fn write(home: &Home, fields: &Value) -> Result<()> {
    let text = fields.to_string();
    storage::replace(&path(home), text.as_bytes(), Durability::Later)
}

/// Returns the file if this process has written it, also before a restart of the program, and has not ended.
fn own(home: &Home) -> Option<Value> {
    let is_own = |fields: &Value| fields["pid"] == std::process::id() && fields["ended"].is_null();
    read(home).filter(is_own)
}

/// Whether this process ran a gateway before it was restarted.
pub(crate) fn is_restarted(home: &Home) -> bool {
    own(home).is_some()
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

    #[test]
    fn it_is_written_when_something_has_changed_and_only_then() {
        let dir = TestDir::new();
        let home = Home::new(dir.join("home"));
        let at =
            |seconds: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds);
        assert!(read(&home).is_none() && !is_running(&home) && !home.root().exists());
        begin(&home, at(0)).unwrap();
        serves_as(&home, "some_bot").unwrap();
        // Each write makes a new file.
        let file = || fs_err::metadata(path(&home)).unwrap().ino();
        let begun = file();
        polls(&home, None, at(5)).unwrap();
        assert_eq!(file(), begun, "a poll like the one before");
        polls(&home, Some("no route"), at(10)).unwrap();
        let failing = file();
        assert_ne!(failing, begun);
        polls(&home, Some("no route"), at(20)).unwrap();
        assert_eq!(file(), failing, "the same fault goes on");
        polls(&home, Some("409"), at(30)).unwrap();
        let polling = read(&home).unwrap()["polling"].clone();
        assert_eq!(
            polling,
            json!({"ok": false, "since": rfc3339(at(10)), "why": "409"})
        );
        polls(&home, None, at(40)).unwrap();
        assert!(is_restarted(&home));
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
        // Of another process.
        begin(&home, at(60)).unwrap();
        change(&home, |fields| fields["pid"] = 1.into()).unwrap();
        end(&home, at(70)).unwrap();
        assert!(read(&home).unwrap()["ended"].is_null() && !is_restarted(&home));
        storage::replace(&path(&home), b"{\"v\":2}", Durability::Later).unwrap();
        assert!(read(&home).is_none());
    }
}
