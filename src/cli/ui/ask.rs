//! Questions to the user at the terminal. Input from before a question does not count as its answer.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::termios::{QueueSelector, tcflush};

use super::Ui;
use super::lines::wrap;
use super::terminal;
use crate::error::{Context, Error, Kind, Result};
use crate::sys;
use crate::text::printable;

/// Maximum pause between two inputs that belong together, such as a paste.
const QUIET: Duration = Duration::from_millis(200);
/// Maximum length of a line that a terminal returns.
const MAX_LINE: usize = 4096;

/// Whether an answer is visible while it is typed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum Echo {
    Shown,
    Hidden,
}

impl Ui {
    /// Asks, and returns the line that is typed from now on, trimmed. `None` after Ctrl-C or Ctrl-D, or if the turn is stopped.
    fn ask(&self, question: &str, echo: Echo) -> Result<Option<String>> {
        terminal::begin_answer(echo)?;
        let answer = self.read_answer(question);
        terminal::restore();
        let answer = answer?;
        if answer.ends_with('\n') {
            self.lock().is_open = false;
            Ok(Some(answer.trim().to_owned()))
        } else {
            self.end_line();
            Ok(None)
        }
    }

    /// Reads the line as typed; without a line feed if the user gave up.
    fn read_answer(&self, question: &str) -> Result<String> {
        forget_input()?;
        while is_typed()? {
            forget_input()?;
        }
        forget_input()?;
        // The answer is typed after the trailing spaces.
        let question = printable(question);
        let text = question.trim_end_matches(' ');
        self.prompt(&(wrap(text, 0, true) + &question[text.len()..]));
        while !is_typed()? {
            if self.signals.has_stopped_turn() {
                return Ok(String::new());
            }
        }
        // The terminal returns whole lines, which Ctrl-C ends without a line feed.
        let mut answer = [0; MAX_LINE];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(io::stdin(), &mut answer));
        Ok(String::from_utf8_lossy(&answer[..read.doing("reading the answer")?]).into_owned())
    }

    /// Asks until the answer begins one of these, and returns its meaning. Enter is the empty answer, which comes first. `None`
    /// as in [`Ui::ask`].
    pub(super) fn choose<T: Copy>(
        &self,
        question: &str,
        answers: &[(&str, T)],
    ) -> Result<Option<T>> {
        let mut asked = question.to_owned();
        while let Some(typed) = self.ask(&asked, Echo::Shown)? {
            let typed = typed.to_ascii_lowercase();
            let mut begun = answers.iter().filter(|(word, _)| word.starts_with(&typed));
            if let Some((_, meant)) = begun.next() {
                return Ok(Some(*meant));
            }
            asked = format!("Not understood. {question}");
        }
        Ok(None)
    }

    /// Asks whether to do something; Enter means `default`. `None` after Ctrl-C or Ctrl-D.
    pub(in crate::cli) fn yes_or_no(&self, question: &str, default: bool) -> Result<Option<bool>> {
        let answers = [("", default), ("yes", true), ("no", false)];
        let shown = if default { "[Y/n]" } else { "[y/N]" };
        self.choose(&format!("{question} {shown} "), &answers)
    }

    /// Like [`Ui::yes_or_no`], but requires an answer.
    ///
    /// # Errors
    /// Returns [`Kind::Interrupted`] without an answer.
    pub(in crate::cli) fn agrees(&self, question: &str, default: bool) -> Result<bool> {
        // Restores the terminal if a signal arrives during the question.
        self.signals.watch()?;
        self.yes_or_no(question, default)?.ok_or_else(not_answered)
    }

    /// Asks until `check` accepts the answer, and returns its result.
    ///
    /// # Errors
    /// Returns [`Kind::Interrupted`] without an answer.
    pub(in crate::cli) fn ask_until<T>(
        &self,
        question: &str,
        echo: Echo,
        check: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T> {
        self.signals.watch()?;
        loop {
            let typed = self.ask(question, echo)?;
            match check(&typed.ok_or_else(not_answered)?) {
                Ok(answer) => return Ok(answer),
                Err(why) => self.line(&why),
            }
        }
    }
}

fn is_typed() -> Result<bool> {
    let stdin = io::stdin();
    let ready = sys::poll(&[(stdin.as_fd(), PollFlags::IN)], Some(QUIET)).doing("asking")?;
    Ok(ready[0])
}

fn forget_input() -> Result<()> {
    tcflush(io::stdin(), QueueSelector::IFlush).doing("asking")
}

fn not_answered() -> Error {
    Error::new(Kind::Interrupted, "stopped: the question was not answered")
}
