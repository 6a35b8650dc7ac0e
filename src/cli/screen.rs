//! The one writer to standard output and standard error while a turn runs.
//!
//! Both may be the same terminal, so one lock guards them and knows where the cursor stands: a notice never lands in the
//! middle of an answer, and the line that says what is going on (the spinner) is gone before anything else is written.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Env;
use crate::error::Result;
use crate::markdown::Look;
use crate::text::printable;

/// What the terminal can show, as the environment tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Colours and their like; not with `NO_COLOR`, nor on a terminal that says it is dumb.
    pub ansi: bool,
    /// It can go back to the beginning of its line and write it again.
    pub rewrites: bool,
    pub look: Look,
}

impl Style {
    pub fn of(env: &Env) -> Self {
        let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
        let clever = set("TERM").is_some_and(|term| term != "dumb");
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let utf8 = locale.map(|l| l.to_ascii_lowercase()).is_some_and(|l| l.contains("utf-8") || l.contains("utf8"));
        Self { ansi: clever && set("NO_COLOR").is_none(), rewrites: clever, look: Look { utf8 } }
    }
}

/// How often the spinner turns.
const FRAME: Duration = Duration::from_millis(150);
/// What is over before this is not worth a line.
const PATIENCE: Duration = Duration::from_millis(300);

/// See the module's description. Clones are the same screen.
#[derive(Clone)]
pub struct Screen {
    shared: Arc<Shared>,
    pub style: Style,
    pub stdout_is_terminal: bool,
    pub stderr_is_terminal: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    Out,
    Err,
}

#[derive(Default)]
struct State {
    /// Where the last thing written did not end its line.
    in_line: Option<Stream>,
    /// What is going on, and since when.
    busy: Option<(String, Instant)>,
    /// How many columns of the spinner stand on the line.
    drawn: usize,
    frame: usize,
}

impl Screen {
    pub fn new(env: &Env) -> Self {
        Self {
            shared: Arc::default(),
            style: Style::of(env),
            stdout_is_terminal: io::stdout().is_terminal(),
            stderr_is_terminal: io::stderr().is_terminal(),
        }
    }

    /// Starts the thread that turns the spinner, where one can be shown.
    pub fn spin(&self) {
        if !self.stderr_is_terminal || !self.style.rewrites {
            return;
        }
        let (shared, style) = (self.shared.clone(), self.style);
        // Without the thread there is no spinner, and nothing else is missing.
        drop(std::thread::Builder::new().name("spinner".to_owned()).spawn(move || spinner(&shared, style)));
    }

    /// Says what is going on from now on; nothing when it is empty.
    pub fn busy(&self, what: &str) {
        let mut state = self.lock();
        state.erase();
        state.busy = (!what.is_empty()).then(|| (what.to_owned(), Instant::now()));
        self.shared.changed.notify_all();
    }

    /// Writes to standard output. An answer that comes is a sign of life: the spinner ends.
    pub fn answer(&self, text: &str) -> Result<()> {
        let mut state = self.lock();
        if text.is_empty() {
            return Ok(());
        }
        state.erase();
        if self.stdout_is_terminal {
            state.busy = None;
            state.in_line = (!text.ends_with('\n')).then_some(Stream::Out);
        }
        super::print(text)
    }

    /// Writes a line to standard error, on a line of its own.
    pub fn note(&self, line: &str) {
        self.tell(&printable(line));
    }

    /// The same, in a weaker colour where there are colours.
    pub fn faint(&self, line: &str) {
        let line = printable(line);
        if self.style.ansi && self.stderr_is_terminal {
            self.tell(&format!("\x1b[2m{line}\x1b[0m"));
        } else {
            self.tell(&line);
        }
    }

    fn tell(&self, line: &str) {
        let mut state = self.lock();
        state.erase();
        if self.stderr_is_terminal {
            state.end_line();
        }
        super::tell(line);
    }

    /// Asks for a line, on whichever of the two is a terminal.
    pub fn prompt(&self, text: &str) {
        let mut state = self.lock();
        state.erase();
        state.end_line();
        // A prompt that cannot be shown must not keep anybody from typing.
        if self.stderr_is_terminal {
            drop(io::stderr().lock().write_all(text.as_bytes()));
            state.in_line = Some(Stream::Err);
        } else if self.stdout_is_terminal {
            drop(super::print(text));
            state.in_line = Some(Stream::Out);
        }
    }

    /// The line that was asked for has been entered: the terminal has ended it.
    pub fn entered(&self) {
        self.lock().in_line = None;
    }

    /// Leaves the line in order when the program ends at once. Somebody may be writing, and may be stuck in it: then not.
    pub fn leave(&self) {
        if let Ok(mut state) = self.shared.state.try_lock() {
            state.erase();
            state.end_line();
        }
    }

    /// Ends a line that has begun, and the spinner with it.
    pub fn end_line(&self) {
        let mut state = self.lock();
        state.erase();
        state.busy = None;
        state.end_line();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn end_line(&mut self) {
        match self.in_line.take() {
            Some(Stream::Out) => drop(super::print("\n")),
            Some(Stream::Err) => super::tell(""),
            None => {}
        }
    }

    /// Takes the spinner off its line, and what was typed behind it. Spaces, because they work without any escape sequence.
    fn erase(&mut self) {
        if std::mem::take(&mut self.drawn) > 0 {
            let columns = width().saturating_sub(1);
            drop(write!(io::stderr().lock(), "\r{:columns$}\r", ""));
        }
    }

    fn draw(&mut self, what: &str, elapsed: Duration, look: Look) {
        const TURNING: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠧", "⠇", "⠏"];
        const PLAIN: [&str; 4] = ["|", "/", "-", "\\"];
        let frames = if look.utf8 { &TURNING[..] } else { &PLAIN };
        self.frame = (self.frame + 1) % frames.len();
        let secs = elapsed.as_secs();
        let end = if secs == 0 { String::new() } else { format!(" {secs} s") };
        // A character in the last column would wrap, and then there are two lines to erase.
        let room = width().saturating_sub(1);
        let what = clipped(what, room.saturating_sub(2 + end.len()));
        let line = clipped(&format!("{} {what}{end}", frames[self.frame]), room).to_owned();
        let now = columns(&line);
        let left = self.drawn.saturating_sub(now);
        self.drawn = self.drawn.max(now);
        drop(write!(io::stderr().lock(), "\r{line}{:left$}", ""));
    }
}

fn spinner(shared: &Shared, style: Style) {
    let mut state = shared.lock();
    loop {
        let wait = match &state.busy {
            Some((what, since)) if state.in_line.is_none() => {
                let elapsed = since.elapsed();
                match PATIENCE.checked_sub(elapsed) {
                    Some(left) if !left.is_zero() => Some(left),
                    _ => {
                        let what = what.clone();
                        state.draw(&what, elapsed, style.look);
                        Some(FRAME)
                    }
                }
            }
            // While there is nothing to say nobody is woken.
            _ => None,
        };
        state = match wait {
            Some(time) => shared.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
            None => shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        };
    }
}

/// The columns of the terminal that standard error is.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.map_or(80, |size| match size.ws_col {
        0 => 80,
        columns => usize::from(columns),
    })
}

/// The beginning of `text` that takes at most so many columns.
fn clipped(text: &str, room: usize) -> &str {
    let mut used = 0;
    let end = text.char_indices().find(|(_, c)| {
        used += columns_of(*c);
        used > room
    });
    end.map_or(text, |(at, _)| &text[..at])
}

fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// East Asian wide and emoji take two columns. Too much is harmless here, too little would leave rubbish on the line; so
/// combining characters count as one.
fn columns_of(c: char) -> usize {
    match c {
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f000}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(pairs: &[(&str, &str)]) -> (bool, bool, bool) {
        let env: Env = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let Style { ansi, rewrites, look } = Style::of(&env);
        (ansi, rewrites, look.utf8)
    }

    #[test]
    fn the_environment_tells_what_the_terminal_can_show() {
        assert_eq!(style(&[]), (false, false, false));
        assert_eq!(style(&[("TERM", "xterm"), ("LANG", "de_DE.UTF-8")]), (true, true, true));
        assert_eq!(style(&[("TERM", "xterm"), ("LANG", "en_US.utf8"), ("LC_ALL", "C")]), (true, true, false));
        assert_eq!(style(&[("TERM", "dumb"), ("LC_CTYPE", "C.UTF-8")]), (false, false, true));
        assert_eq!(style(&[("TERM", "xterm"), ("NO_COLOR", "1")]), (false, true, false));
        assert_eq!(style(&[("TERM", "xterm"), ("NO_COLOR", "")]), (true, true, false));
    }

    #[test]
    fn a_line_is_clipped_by_columns_not_characters() {
        assert_eq!(clipped("abc", 3), "abc");
        assert_eq!(clipped("日本語", 5), "日本");
        assert_eq!(clipped("日本語", 0), "");
        assert_eq!(columns("a日"), 3);
    }
}
