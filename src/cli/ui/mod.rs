//! The standard streams and the terminal: only this module writes to the streams and reads answers.
//!
//! Both streams may be the same terminal, so one lock guards them. A notice never splits a line of an answer, and the progress
//! indicator is erased before other output.

mod ask;
mod events;
mod lines;
mod signals;
pub(super) mod terminal;

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard};

use super::args::Args;
use crate::config::Env;
use crate::markdown::Terminal;
use crate::sync;
use crate::text::{counted, printable};
pub(super) use ask::Echo;
pub(super) use events::{failure_json, response_json};
pub(super) use lines::{hanging_indent, notice, print, print_json, report, say, table};
use lines::{line_width, within};
use signals::Signals;

/// Format of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    /// One object for the whole turn.
    Json,
    /// A line for each event, followed by that object.
    Events,
}

/// Amount of output on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

/// The user at the terminal, or the program that reads the output. Clones share the streams.
#[derive(Clone)]
pub(super) struct Ui {
    pub env: Arc<Env>,
    pub format: Format,
    pub verbosity: Verbosity,
    /// Whether to show the model's reasoning.
    pub thinking: bool,
    pub stdout_is_terminal: bool,
    pub stderr_is_terminal: bool,
    pub signals: Signals,
    shown: Arc<Mutex<Shown>>,
}

/// State of the streams.
#[derive(Default)]
struct Shown {
    /// Whether the last line is incomplete.
    is_open: bool,
    /// Whether the last line is a thought or a question, and no part of an answer.
    is_aside: bool,
    /// The current activity, which is drawn again after each notice until the answer begins.
    progress: Option<&'static str>,
    is_drawn: bool,
    /// Renders the current text on a terminal.
    markdown: Option<Terminal>,
    /// Number of the last line of `--events`.
    events: u64,
    /// Complete answers so far, if they are not streamed.
    answers: String,
}

impl Ui {
    pub(super) fn new(env: &Arc<Env>) -> Self {
        Self {
            env: env.clone(),
            format: Format::Text,
            verbosity: Verbosity::Normal,
            thinking: false,
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal() && is_in_foreground(),
            signals: Signals::default(),
            shown: Arc::default(),
        }
    }

    /// Whether to use escape sequences: not with `NO_COLOR` and on a dumb terminal.
    pub(super) fn has_colors(&self) -> bool {
        let term = self.env.get("TERM").map_or("", String::as_str);
        !matches!(term, "" | "dumb") && self.env.get("NO_COLOR").is_none_or(String::is_empty)
    }

    /// Returns the output that these flags ask for.
    pub(super) fn with_flags(&self, args: &Args) -> Self {
        let format = match (args.has("json"), args.has("events")) {
            (true, _) => Format::Json,
            (_, true) => Format::Events,
            _ => Format::Text,
        };
        let verbosity = match (args.has("quiet"), args.has("verbose")) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        };
        Self {
            format,
            verbosity,
            thinking: args.has("show-thinking"),
            ..self.clone()
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.verbosity == Verbosity::Quiet
    }

    /// Shows warnings and notices, unless quiet.
    pub(super) fn warn<'a>(&self, lines: impl IntoIterator<Item = &'a String>) {
        if !self.is_quiet() {
            lines.into_iter().for_each(|line| self.note(line));
        }
    }

    /// Shows a notice of the program.
    pub(super) fn note(&self, text: &str) {
        self.line(&format!("bantam: {}", printable(text)));
    }

    /// Shows a dimmed line about a running turn.
    pub(super) fn detail(&self, line: &str) {
        self.line(&self.dimmed(&format!("· {}", printable(line))));
    }

    /// Shows a line of a dialog.
    pub(super) fn line(&self, line: &str) {
        let mut shown = self.lock();
        shown.end_line();
        say(line);
        shown.draw();
    }

    /// Shows the lines that a call removes and adds, up to `most` of them.
    fn change(&self, lines: &[String], most: usize) {
        let has_colors = self.has_colors() && self.stderr_is_terminal;
        for line in lines.iter().take(most) {
            let line = printable(line);
            self.line(&match line.chars().next() {
                Some('-') if has_colors => format!("  \x1b[31m{line}\x1b[0m"),
                Some('+') if has_colors => format!("  \x1b[32m{line}\x1b[0m"),
                _ => format!("  {line}"),
            });
        }
        let left = lines.len().saturating_sub(most);
        if left > 0 {
            self.detail(&counted(left, "more line"));
        }
    }

    fn dimmed(&self, text: &str) -> String {
        if self.has_colors() && self.stderr_is_terminal {
            format!("\x1b[2m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    /// Writes a part of a line to standard error.
    pub(super) fn prompt(&self, text: &str) {
        let mut shown = self.lock();
        shown.erase();
        if !std::mem::replace(&mut shown.is_aside, true) {
            shown.end_line();
        }
        shown.is_open = !text.ends_with('\n');
        drop(io::stderr().lock().write_all(text.as_bytes()));
    }

    /// Shows an activity, on a terminal that can erase it again.
    fn progress(&self, text: &'static str) {
        let is_seen = self.stderr_is_terminal && self.has_colors() && !self.is_quiet();
        if is_seen && self.format == Format::Text {
            let mut shown = self.lock();
            shown.progress = Some(text);
            shown.draw();
        }
    }

    /// Ends an open line and the progress indicator.
    pub(super) fn end_line(&self) {
        let mut shown = self.lock();
        shown.end_line();
        shown.progress = None;
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        sync::lock(&self.shown)
    }
}

impl Shown {
    /// Erases the indicator, and ends an incomplete line where the answer is, if both streams are terminals.
    fn end_line(&mut self) {
        self.erase();
        if std::mem::take(&mut self.is_open) {
            if terminal::is_output() {
                drop(print("\n"));
            } else {
                say("");
            }
        }
    }

    /// Draws the indicator, unless it would join an incomplete line.
    fn draw(&mut self) {
        self.erase();
        if let (Some(text), false) = (self.progress, self.is_open) {
            // A line that wraps could not be erased.
            let line = within(text, line_width());
            drop(io::stderr().lock().write_all(line.as_bytes()));
            self.is_drawn = true;
        }
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            drop(io::stderr().lock().write_all(b"\r\x1b[K"));
        }
    }
}

/// Whether this process may draw on its terminal. A background job would overwrite the user's input.
fn is_in_foreground() -> bool {
    // Without a controlling terminal, drawing disturbs no user.
    let group = rustix::termios::tcgetpgrp(io::stderr());
    group.map_or(true, |group| group == rustix::process::getpgrp())
}
