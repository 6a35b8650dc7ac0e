//! Is everything well here, and if not, the line that fixes it.
//!
//! A check says what it found, not what should be so. What the jail holds is not read from a setting but tried
//! ([`canary`]). Nothing of the user's is mended or changed on the way.

pub mod bot;
pub mod canary;
pub mod home;
pub mod jail;
pub mod kernel;
pub mod model;

use std::fmt;

use crate::error::Error;
use crate::text::{one_line, printable};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Well,
    Fails,
    /// There is nothing to judge: not configured, not possible here, or as its user wants it.
    Aside,
}

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub verdict: Verdict,
    /// What was looked at.
    pub what: &'static str,
    pub found: String,
    /// Lines to type or to change, best first.
    pub fixes: Vec<String>,
}

impl Check {
    fn new(verdict: Verdict, what: &'static str, found: impl Into<String>) -> Self {
        Self { verdict, what, found: found.into(), fixes: Vec::new() }
    }

    pub fn well(what: &'static str, found: impl Into<String>) -> Self {
        Self::new(Verdict::Well, what, found)
    }

    pub fn fails(what: &'static str, found: impl Into<String>) -> Self {
        Self::new(Verdict::Fails, what, found)
    }

    pub fn aside(what: &'static str, found: impl Into<String>) -> Self {
        Self::new(Verdict::Aside, what, found)
    }

    /// An error where there should be none; its hint is the fix.
    pub fn of_error(what: &'static str, error: Error) -> Self {
        Self { fixes: error.hint.into_iter().collect(), ..Self::fails(what, error.message) }
    }

    pub fn fix(mut self, line: impl Into<String>) -> Self {
        self.fixes.push(line.into());
        self
    }

    pub fn fixes(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        self.fixes.extend(lines);
        self
    }
}

/// One line for what was found, and one for each fix.
impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, fix) = match self.verdict {
            Verdict::Well => ("ok", "tip"),
            Verdict::Fails => ("FAIL", "fix"),
            Verdict::Aside => ("--", "tip"),
        };
        writeln!(f, "{word:<4}  {}: {}", self.what, one_line(&self.found, 600))?;
        for line in &self.fixes {
            writeln!(f, "  {fix}: {}", printable(line))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_one_line_and_a_line_for_each_fix() {
        let check = Check::fails("home", "a\nb\x1b[0m").fix("chmod 700 /x").fix("or not");
        assert_eq!(check.to_string(), "FAIL  home: a b [0m\n  fix: chmod 700 /x\n  fix: or not\n");
        assert_eq!(Check::aside("jail", "off").fix("y").to_string(), "--    jail: off\n  tip: y\n");
    }
}
