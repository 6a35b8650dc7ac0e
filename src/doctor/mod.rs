//! Checks of this installation, each with the lines that fix what it found.
//!
//! The sandbox is tried ([`canary`]), not judged by its settings. Doctor repairs and changes nothing.

pub(crate) mod bot;
pub(crate) mod canary;
pub(crate) mod home;
pub(crate) mod model;
pub(crate) mod sandbox;

use std::fmt;
use std::path::Path;

use crate::error::{Error, Kind};
use crate::text::{one_line, printable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Fail,
    /// Not configured, not possible here, or as the user wants it.
    Info,
}

/// What to do about what a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fix {
    /// A line to be copied as it is.
    Command(String),
    Advice(String),
}

impl Fix {
    fn text(&self) -> &str {
        match self {
            Self::Command(text) | Self::Advice(text) => text,
        }
    }
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub outcome: Outcome,
    pub name: &'static str,
    pub found: String,
    /// Best first.
    pub fixes: Vec<Fix>,
    /// The kind of the error that it tells of.
    pub cause: Option<Kind>,
}

impl Check {
    fn new(outcome: Outcome, name: &'static str, found: impl Into<String>) -> Self {
        Self {
            outcome,
            name,
            found: found.into(),
            fixes: Vec::new(),
            cause: None,
        }
    }

    pub(crate) fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(Outcome::Ok, name, found)
    }

    pub(crate) fn fail(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(Outcome::Fail, name, found)
    }

    pub(crate) fn info(name: &'static str, found: impl Into<String>) -> Self {
        Self::new(Outcome::Info, name, found)
    }

    /// A failure whose fix is the error's hint.
    pub(crate) fn of_error(name: &'static str, error: Error) -> Self {
        Self {
            fixes: error.hint.map(Fix::Advice).into_iter().collect(),
            cause: Some(error.kind),
            ..Self::fail(name, error.message)
        }
    }

    /// Adds advice.
    pub(crate) fn fix(mut self, advice: impl Into<String>) -> Self {
        self.fixes.push(Fix::Advice(advice.into()));
        self
    }

    /// Adds a command.
    pub(crate) fn command(mut self, line: impl Into<String>) -> Self {
        self.fixes.push(Fix::Command(line.into()));
        self
    }

    /// What was found, in a line, and a line for each fix with whether it is a command.
    pub(crate) fn lines(&self) -> (String, Vec<(String, bool)>) {
        let (word, fix) = match self.outcome {
            Outcome::Ok => ("ok", "tip"),
            Outcome::Fail => ("FAIL", "fix"),
            Outcome::Info => ("--", "tip"),
        };
        let found = format!("{word:<4}  {}: {}", self.name, one_line(&self.found, 600));
        let line = |it: &Fix| {
            let line = format!("  {fix}: {}", printable(it.text()));
            (line, matches!(it, Fix::Command(_)))
        };
        (found, self.fixes.iter().map(line).collect())
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (found, fixes) = self.lines();
        writeln!(f, "{found}")?;
        fixes
            .into_iter()
            .try_for_each(|(line, _)| writeln!(f, "{line}"))
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    shell_words::quote(&path.to_string_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_one_line_and_a_line_for_each_fix() {
        let check = Check::fail("home", "a\nb\x1b[0m")
            .command("chmod 700 /x")
            .fix("or not");
        assert_eq!(
            check.to_string(),
            "FAIL  home: a b [0m\n  fix: chmod 700 /x\n  fix: or not\n"
        );
        assert_eq!(
            Check::info("sandbox", "off").fix("y").to_string(),
            "--    sandbox: off\n  tip: y\n"
        );
    }
}
