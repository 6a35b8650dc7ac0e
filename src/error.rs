//! The one error type: the failed action, the reason, and a hint how to fix it.
//!
//! The [`Kind`] decides the exit code; the rest is text for people. `anyhow` is not used, because kind and hint travel with
//! every error.

use std::fmt;
use std::io::ErrorKind;
use std::panic::AssertUnwindSafe;

/// Category of an error. Each kind has an exit code and a word in `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// The command line or the input was wrong.
    Usage,
    /// The configuration was wrong, or no key was found.
    Config,
    /// The provider refused the credentials.
    Auth,
    /// The provider was unreachable, silent or overloaded after all retries.
    Unavailable,
    /// Steps, time, tokens or budget ran out.
    Limit,
    /// Another run has locked the session.
    Busy,
    /// The user stopped the run.
    Interrupted,
    /// Anything else.
    Failed,
}

impl Kind {
    /// Returns the exit code of the program and the word in `--json`.
    fn code_and_name(self) -> (u8, &'static str) {
        match self {
            Self::Failed => (1, "failed"),
            Self::Usage => (2, "usage"),
            Self::Config => (3, "config"),
            Self::Auth => (4, "auth"),
            Self::Unavailable => (5, "unavailable"),
            Self::Limit => (6, "limit"),
            Self::Busy => (7, "busy"),
            Self::Interrupted => (130, "interrupted"),
        }
    }

    /// Returns the exit code of the program.
    pub fn exit_code(self) -> u8 {
        self.code_and_name().0
    }

    /// Returns the word in `--json`.
    pub fn name(self) -> &'static str {
        self.code_and_name().1
    }
}

/// An error for the user. `message` is lower case, one line, without a full stop.
///
/// `{}` shows the message, `{:?}` also the kind and the hint, so that an error returned from `main` is readable.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    /// Category, which decides the exit code.
    pub kind: Kind,
    /// The failed action and the reason.
    pub message: String,
    /// Suggested fix, worded for the command line; a program may have a better hint for its users.
    pub hint: Option<String>,
}

/// The result of nearly every function here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Creates an error of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
        }
    }

    /// Creates an error of the kind [`Kind::Failed`].
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    /// Creates an error of the kind [`Kind::Usage`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Creates an error of the kind [`Kind::Config`].
    pub fn config(message: impl Into<String>) -> Self {
        Self::new(Kind::Config, message)
    }

    /// Adds a suggested fix.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prefixes the message with the failed action.
    pub fn doing(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

/// Runs `what`; if the program is built to unwind, a panic in it becomes an error.
///
/// Unwind safety: values that `what` was changing are dropped, or are behind locks that tolerate a panic.
pub(crate) fn contained<T>(who: &str, what: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(what)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let why = text.unwrap_or("without a word");
        Err(Error::failed(format!("{who} panicked: {why}")))
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.kind.name())?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        let error = Self::failed(plain(&e.to_string()));
        match e.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                error.hint("free some space on that disk")
            }
            _ => error,
        }
    }
}

/// Simplifies a system error by removing the error number and the wording of our libraries: "failed to open file `/x`: No such
/// file or directory (os error 2)".
fn plain(text: &str) -> String {
    let text = text
        .rsplit_once(" (os error ")
        .map_or(text, |(text, _)| text);
    let parts = text.strip_prefix("failed to ").and_then(|rest| {
        let (what, rest) = rest.split_once(" `")?;
        let (path, why) = rest.rsplit_once("`: ")?;
        Some((what.split(' ').next()?, path.replace('`', ""), why))
    });
    let Some((verb, path, why)) = parts else {
        return text.to_owned();
    };
    let verb = match verb {
        "canonicalize" => "find",
        "query" => "read",
        verb => verb,
    };
    format!("cannot {verb} {path}: {why}")
}

impl From<rustix::io::Errno> for Error {
    fn from(e: rustix::io::Errno) -> Self {
        std::io::Error::from(e).into()
    }
}

impl From<serde_json::Error> for Error {
    fn from(e: serde_json::Error) -> Self {
        Self::failed(e.to_string())
    }
}

/// Adds `.doing("reading x")` to any result whose error can become an [`Error`].
pub trait Context<T> {
    /// Prefixes the error's message with `what`.
    fn doing(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn doing(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|e| e.into().doing(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_reads_well() {
        let e = Error::config("no model").doing("asking");
        assert_eq!(format!("{e:?}"), "asking: no model (config)");
        let e = e.hint("name one");
        assert_eq!(
            format!("{e:?}"),
            "asking: no model (config)\nhint: name one"
        );
    }
}
