//! What a program that runs for months tells whoever looks after it: lines on standard error, each with its weight.
//!
//! A line begins with `bantam: `, and whoever collects it adds the time. With `log.json` each is an object:
//! `{"time","level","about","text"}`. Nothing here is written to the disk.

use std::io::Write;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;

use crate::text::{one_line, rfc3339};

/// How much a line matters, by the names of `log.level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Something was lost, or will not be done.
    Error,
    /// Something is wrong and is tried again, or got around.
    Warn,
    Info,
    /// Each turn, and each of its calls.
    Debug,
}

/// Takes a line.
pub(crate) type Sink = Arc<dyn Fn(Level, &str) + Send + Sync>;

/// From the one that matters most.
const NAMES: [(&str, Level); 4] =
    [("error", Level::Error), ("warn", Level::Warn), ("info", Level::Info), ("debug", Level::Debug)];

/// The most characters of a line.
const LONGEST: usize = 500;

/// Where lines go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    least: Level,
    json: bool,
    /// What the lines are about; empty for the program itself.
    about: &'static str,
}

impl Log {
    /// With the name of the level from which on lines are written.
    pub(crate) fn new(level: &str, json: bool) -> Self {
        let least = NAMES.iter().find(|(name, _)| *name == level).map_or(Level::Info, |(_, level)| *level);
        Self { least, json, about: "" }
    }

    /// The same for lines about this.
    pub(crate) fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    /// To be handed to those who tell.
    pub(crate) fn sink(self, about: &'static str) -> Sink {
        Arc::new(move |level, text| self.about(about).write(level, text))
    }

    pub(crate) fn write(&self, level: Level, text: &str) {
        if let Some(line) = self.line(level, text, SystemTime::now()) {
            // One write, so that lines of several threads stay whole. Nobody may be there to read it.
            drop(std::io::stderr().lock().write_all(line.as_bytes()));
        }
    }

    /// The line with its end; `None` where it does not matter enough.
    fn line(&self, level: Level, text: &str, now: SystemTime) -> Option<String> {
        if level > self.least {
            return None;
        }
        let text = one_line(text, LONGEST);
        if self.json {
            let name = NAMES.iter().find(|(_, named)| *named == level).map_or("", |(name, _)| name);
            return Some(format!(
                "{}\n",
                json!({"time": rfc3339(now), "level": name, "about": self.about, "text": text})
            ));
        }
        let colon = if self.about.is_empty() { "" } else { ": " };
        Some(format!("bantam: {}{colon}{text}\n", self.about))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn a_line_is_one_line_and_told_when_it_matters_enough() {
        let log = Log::new("warn", false).about("telegram");
        assert_eq!(log.line(Level::Warn, "a\nb\x1b[0m", UNIX_EPOCH).unwrap(), "bantam: telegram: a b [0m\n");
        assert_eq!(log.line(Level::Info, "a", UNIX_EPOCH), None);
        assert!(Log::new("debug", false).line(Level::Debug, "a", UNIX_EPOCH).is_some());
        let json = Log::new("info", true).line(Level::Error, "\"鸡\"", UNIX_EPOCH).unwrap();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&json).unwrap(),
            json!({"time": "1970-01-01T00:00:00.000Z", "level": "error", "about": "", "text": "\"鸡\""})
        );
    }
}
