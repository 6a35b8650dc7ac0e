//! Checks of this installation, each with at most one fix.
//!
//! The sandbox is tested by attacks ([`break_out`]), not judged by its settings. Doctor changes nothing.

pub(crate) mod bot;
pub(crate) mod break_out;
pub(crate) mod home;
pub(crate) mod model;
pub(crate) mod sandbox;

use std::path::Path;

use crate::config::Env;
use crate::error::{Error, Kind};
use crate::text::{printable, to_single_line};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Fail,
    /// Not configured, not possible here, or chosen by the user.
    Info,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub outcome: Outcome,
    pub name: &'static str,
    pub found: String,
    /// Suggested fix: a command to copy, or a sentence.
    pub fix: Option<String>,
    /// Kind of the reported error.
    pub cause: Option<Kind>,
}

impl Check {
    fn new(outcome: Outcome, name: &'static str, found: impl Into<String>) -> Self {
        Self {
            outcome,
            name,
            found: found.into(),
            fix: None,
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

    /// Creates a failure whose fix is the error's hint.
    pub(crate) fn of_error(name: &'static str, error: Error) -> Self {
        Self {
            fix: error.hint,
            cause: Some(error.kind),
            ..Self::fail(name, error.message)
        }
    }

    /// Adds this fix, unless the check already has one.
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix.get_or_insert_with(|| fix.into());
        self
    }

    /// Returns the line with the result.
    pub(crate) fn line(&self) -> String {
        let word = match self.outcome {
            Outcome::Ok => "ok",
            Outcome::Fail => "FAIL",
            Outcome::Info => "--",
        };
        let found = to_single_line(&self.found, 600);
        format!("{word:<4}  {}: {found}", self.name)
    }

    /// Returns the line with the fix.
    pub(crate) fn fix_line(&self) -> Option<String> {
        let word = match self.outcome {
            Outcome::Fail => "fix",
            Outcome::Ok | Outcome::Info => "tip",
        };
        let fix = self.fix.as_deref()?;
        Some(format!("  {word}: {}", printable(fix)))
    }
}

/// Whether a directory of the user's PATH has a program of this name, or this is the path of one.
pub(crate) fn has_program(name: &str, env: &Env) -> bool {
    let path = env.get("PATH").map_or("", String::as_str);
    path.split(':')
        .any(|dir| Path::new(dir).join(name).is_file())
}

/// Quotes a path for a shell.
fn quoted(path: &Path) -> String {
    shell_words::quote(&path.to_string_lossy()).into_owned()
}
