//! The gateway's log on standard error.
//!
//! A line starts with the time, unless the journal adds it, and `bantam: `. With `log.json` each line is an object:
//! `{"time","level","about","text"}`. The log is not written to disk.

use std::io::Write;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::error::Result;
use crate::text::{rfc3339, to_single_line};

/// Severity of a line, with the names of `log.level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    /// A loss, or work that will not be done.
    Error,
    /// A failure that is retried or worked around.
    Warn,
    Info,
    /// Each turn and each tool call.
    Debug,
}

/// Writes a line.
pub(crate) type Logger = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// Logs an error, and returns the value of a success.
pub(crate) fn log_error<T>(log: &Logger, result: Result<T>) -> Option<T> {
    result.map_err(|e| log(Level::Error, &e.message)).ok()
}

/// Names of the levels, most severe first.
const NAMES: [&str; 4] = ["error", "warn", "info", "debug"];

/// Maximum length of a text, in characters.
const LONGEST: usize = 500;

/// Settings of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    /// Index in [`NAMES`].
    least: usize,
    json: bool,
    has_time: bool,
    /// Part of the program that logs; empty for the program itself.
    about: &'static str,
}

impl Log {
    /// Creates a log. `least` is the least severe level to write; `journal` is the environment's `JOURNAL_STREAM`.
    pub(crate) fn new(least: Level, json: bool, journal: Option<&str>) -> Self {
        Self {
            least: least as usize,
            json,
            has_time: !is_read_by_journal(journal),
            about: "",
        }
    }

    /// Returns a log for another part of the program.
    pub(crate) fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    /// Returns a function that logs for a part of the program.
    pub(crate) fn sink(self, about: &'static str) -> Logger {
        Arc::new(move |level, text| self.about(about).write(level, text))
    }

    pub(crate) fn write(&self, level: Level, text: &str) {
        if let Some(line) = self.line(level, text, SystemTime::now()) {
            // One write, so that lines of several threads are not mixed. A closed standard error is ignored.
            drop(std::io::stderr().lock().write_all(line.as_bytes()));
        }
    }

    /// Returns the line with its line feed; `None` if it is not severe enough.
    fn line(&self, level: Level, text: &str, now: SystemTime) -> Option<String> {
        if level as usize > self.least {
            return None;
        }
        let text = to_single_line(text, LONGEST);
        if self.json {
            let line = json!({"time": rfc3339(now), "level": NAMES[level as usize], "about": self.about, "text": text});
            return Some(format!("{line}\n"));
        }
        let colon = if self.about.is_empty() { "" } else { ": " };
        let time = if self.has_time {
            rfc3339(now) + " "
        } else {
            String::new()
        };
        Some(format!("{time}bantam: {}{colon}{text}\n", self.about))
    }
}

/// Whether standard error is connected to the journal by the service manager (systemd.exec(5)).
fn is_read_by_journal(journal: Option<&str>) -> bool {
    let stderr = rustix::fs::fstat(std::io::stderr());
    stderr.is_ok_and(|stat| journal == Some(&format!("{}:{}", stat.st_dev, stat.st_ino)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn a_line_is_one_line_and_told_when_it_matters_enough() {
        let log = Log::new(Level::Warn, false, None).about("telegram");
        assert_eq!(
            log.line(Level::Warn, "a\nb\x1b[0m", UNIX_EPOCH).unwrap(),
            "1970-01-01T00:00:00.000Z bantam: telegram: a b [0m\n"
        );
        assert_eq!(log.line(Level::Info, "a", UNIX_EPOCH), None);
        assert!(
            Log::new(Level::Debug, false, None)
                .line(Level::Debug, "a", UNIX_EPOCH)
                .is_some()
        );
        let json = Log::new(Level::Info, true, None)
            .line(Level::Error, "\"鸡\"", UNIX_EPOCH)
            .unwrap();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&json).unwrap(),
            json!({"time": "1970-01-01T00:00:00.000Z", "level": "error", "about": "", "text": "\"鸡\""})
        );
    }
}
