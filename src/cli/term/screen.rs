//! The only writer to standard output and standard error during a turn.
//!
//! Both may be the same terminal, so one lock guards them and the cursor's position. A notice never splits an answer, and the
//! progress indicator is erased before other output.

use std::io::{self, IsTerminal, Write};
use std::ops::Not as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::tty;
use crate::config::Env;
use crate::error::Result;
use crate::markdown;
use crate::sync;
use crate::text::{clip, counted, printable};

/// Whether this process may draw on its terminal. A background job would overwrite the user's input.
fn is_in_foreground() -> bool {
    // Without a controlling terminal, drawing disturbs no user.
    rustix::termios::tcgetpgrp(io::stderr())
        .is_ok_and(|group| group != rustix::process::getpgrp())
        .not()
}

/// Waiting time after which the indicator also shows it.
const LONG: Duration = Duration::from_secs(5);

/// Abilities of the terminal, according to the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Style {
    /// Escape sequences; false with `NO_COLOR` and on a dumb terminal.
    pub ansi: bool,
    pub utf8: bool,
}

impl Style {
    pub(in crate::cli) fn from_env(env: &Env) -> Self {
        let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let utf8 = locale
            .map(|l| l.to_ascii_lowercase())
            .is_some_and(|l| l.contains("utf-8") || l.contains("utf8"));
        let term = set("TERM").map_or("dumb", String::as_str);
        let ansi = term != "dumb" && set("NO_COLOR").is_none();
        Self { ansi, utf8 }
    }
}

/// Screen of the process; clones share it.
#[derive(Clone)]
pub(in crate::cli) struct Screen {
    cursor: Arc<Mutex<Cursor>>,
    pub style: Style,
    pub stdout_is_terminal: bool,
    pub stderr_is_terminal: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

#[derive(Default)]
struct Cursor {
    /// The stream whose last line is incomplete.
    open_line: Option<Stream>,
    /// The current activity and its start. Redrawn after each notice until the answer begins.
    progress: Option<(&'static str, Instant)>,
    is_drawn: bool,
    /// Last line printed by a running command.
    last_line: String,
}

impl Screen {
    pub(in crate::cli) fn new(env: &Env) -> Self {
        Self {
            cursor: Arc::default(),
            style: Style::from_env(env),
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal() && is_in_foreground(),
        }
    }

    /// Shows an activity, on a terminal that can erase it again.
    pub(in crate::cli) fn progress(&self, text: &'static str) {
        if self.stderr_is_terminal && self.style.ansi {
            let mut cursor = self.lock();
            cursor.erase();
            cursor.progress = Some((text, Instant::now()));
            cursor.last_line.clear();
            cursor.draw();
        }
    }

    /// Shows the last output line after the activity, if an activity is shown.
    pub(in crate::cli) fn last_line(&self, line: &str) {
        let mut cursor = self.lock();
        if cursor.progress.is_some() {
            cursor.erase();
            cursor.last_line = printable(line);
            cursor.draw();
        }
    }

    /// Updates the waiting time.
    pub(in crate::cli) fn tick(&self) {
        let mut cursor = self.lock();
        if cursor.is_drawn {
            cursor.erase();
            cursor.draw();
        }
    }

    /// Continues the line of a stream, and first ends an incomplete line of the other stream on this terminal.
    fn write(&self, stream: Stream, text: &str) -> Result<()> {
        let mut cursor = self.lock();
        cursor.erase();
        let is_shown = if stream == Stream::Out {
            self.stdout_is_terminal
        } else {
            self.stderr_is_terminal
        };
        if is_shown && cursor.open_line.is_some_and(|open| open != stream) {
            cursor.end_line();
        }
        if is_shown || stream == Stream::Err {
            cursor.open_line = (!text.ends_with('\n')).then_some(stream);
        }
        match stream {
            Stream::Err => drop(io::stderr().lock().write_all(text.as_bytes())),
            Stream::Out => {
                if is_shown {
                    cursor.progress = None;
                }
                return super::print(text);
            }
        }
        Ok(())
    }

    /// Writes to standard output.
    pub(in crate::cli) fn answer(&self, text: &str) -> Result<()> {
        if text.is_empty() {
            Ok(())
        } else {
            self.write(Stream::Out, text)
        }
    }

    /// Writes a line to standard error.
    pub(in crate::cli) fn note(&self, line: &str) {
        self.write_line(&printable(line));
    }

    /// Writes a dimmed line to standard error.
    pub(in crate::cli) fn detail(&self, line: &str) {
        let bullet = if self.style.utf8 { "·" } else { "-" };
        self.write_line(&self.dimmed(&format!("{bullet} {}", printable(line))));
    }

    /// Shows the lines that a call removes and adds, up to 12 of them, or up to 200 if `all`.
    pub(in crate::cli) fn change(&self, lines: &[String], all: bool) {
        let most = if all { 200 } else { 12 };
        for line in lines.iter().take(most) {
            self.changed_line(clip(line, 200));
        }
        let left = lines.len().saturating_sub(most);
        if left > 0 {
            self.detail(&counted(left, "more line"));
        }
    }

    /// Shows all lines, for a question.
    pub(in crate::cli) fn whole_change(&self, lines: &[String]) {
        for line in lines {
            self.changed_line(line);
        }
    }

    fn changed_line(&self, line: &str) {
        let has_colors = self.style.ansi && self.stderr_is_terminal;
        let line = printable(line);
        self.write_line(&match line.chars().next() {
            Some('-') if has_colors => format!("  \x1b[31m{line}\x1b[0m"),
            Some('+') if has_colors => format!("  \x1b[32m{line}\x1b[0m"),
            _ => format!("  {line}"),
        });
    }

    /// Continues the model's dimmed reasoning on standard error.
    pub(in crate::cli) fn thought(&self, text: &str) {
        self.draw(&self.dimmed(text));
    }

    fn dimmed(&self, text: &str) -> String {
        let has_colors = self.style.ansi && self.stderr_is_terminal;
        if has_colors {
            format!("\x1b[2m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn write_line(&self, line: &str) {
        let mut cursor = self.lock();
        cursor.erase();
        if self.stderr_is_terminal || cursor.open_line == Some(Stream::Err) {
            cursor.end_line();
        }
        super::tell(line);
        cursor.draw();
    }

    /// Writes an edited line, or a part of one, to standard error.
    pub(in crate::cli) fn draw(&self, text: &str) {
        drop(self.write(Stream::Err, text));
    }

    /// Whether the terminal supports line editing.
    pub(in crate::cli) fn can_move_the_cursor(&self, env: &Env) -> bool {
        self.stderr_is_terminal
            && env
                .get("TERM")
                .is_some_and(|term| !term.is_empty() && term != "dumb")
    }

    /// Records that the cursor is at the beginning of a line.
    pub(in crate::cli) fn entered(&self) {
        self.lock().open_line = None;
    }

    /// Ends an open line and the progress indicator.
    pub(in crate::cli) fn end_line(&self) {
        self.lock().clear();
    }

    /// Like [`Screen::end_line`], at the program's sudden end, unless another thread is stuck in a write.
    pub(in crate::cli) fn end_line_if_free(&self) {
        if let Ok(mut cursor) = self.cursor.try_lock() {
            cursor.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Cursor> {
        sync::lock(&self.cursor)
    }
}

impl Cursor {
    fn clear(&mut self) {
        self.erase();
        self.progress = None;
        self.end_line();
    }

    fn end_line(&mut self) {
        match self.open_line.take() {
            Some(Stream::Out) => drop(super::print("\n")),
            Some(Stream::Err) => super::tell(""),
            None => {}
        }
    }

    fn draw(&mut self) {
        if let (Some((text, since)), None) = (self.progress, self.open_line) {
            let waited = since.elapsed();
            let seconds = waited.as_secs();
            let shown = match self.last_line.as_str() {
                "" if waited < LONG => text.to_owned(),
                "" => format!("{text} {seconds} s; Ctrl-C stops"),
                line => format!("{text} {seconds} s: {line}"),
            };
            // A line that wraps could not be erased.
            let shown = within(&shown, tty::size().0.saturating_sub(1));
            drop(io::stderr().lock().write_all(shown.as_bytes()));
            self.is_drawn = true;
        }
    }

    /// Erases the indicator, and text that the user typed after it.
    fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            drop(io::stderr().lock().write_all(b"\r\x1b[K"));
        }
    }
}

/// Returns the beginning of a line, up to `columns` wide.
pub(super) fn within(line: &str, columns: usize) -> &str {
    let mut end = 0;
    for (at, c) in line.char_indices() {
        let next = at + c.len_utf8();
        if markdown::columns(&line[..next]) > columns {
            break;
        }
        end = next;
    }
    &line[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect_style(pairs: &[(&str, &str)]) -> Style {
        Style::from_env(
            &pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        )
    }

    fn style(pairs: &[(&str, &str)]) -> (bool, bool) {
        (detect_style(pairs).ansi, detect_style(pairs).utf8)
    }

    #[test]
    fn the_environment_tells_what_the_terminal_can_show() {
        assert_eq!(style(&[]), (false, false));
        assert_eq!(
            style(&[("TERM", "xterm"), ("LANG", "de_DE.UTF-8")]),
            (true, true)
        );
        assert_eq!(
            style(&[("TERM", "xterm"), ("LANG", "en_US.utf8"), ("LC_ALL", "C")]),
            (true, false)
        );
        assert_eq!(
            style(&[("TERM", "dumb"), ("LC_CTYPE", "C.UTF-8")]),
            (false, true)
        );
        assert_eq!(
            style(&[("TERM", "xterm"), ("NO_COLOR", "1")]),
            (false, false)
        );
        assert_eq!(style(&[("TERM", "xterm"), ("NO_COLOR", "")]), (true, false));
    }
}
