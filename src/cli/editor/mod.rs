//! The line editor of a conversation: rustyline, with custom completion, keys and history.

mod complete;

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use rustyline::completion::Pair;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{
    Behavior, Cmd, CompletionType, ConditionalEventHandler, Config, Context as LineContext, Event,
    EventContext, EventHandler, Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use super::ui::Ui;
use super::ui::terminal::{self, Mode};
use crate::error::{Error, Result};
use crate::storage;
use crate::sys;
use crate::text::{is_unsafe_to_show, without_controls};
pub(super) use complete::Completer;

/// Prompt before a message.
pub(super) const PROMPT: &str = "> ";

/// Maximum number of messages in the history, and maximum size of each, in bytes; `state/history` is then smaller than 8 MB.
const MAX_ENTRIES: usize = 500;
const MAX_ENTRY: usize = 16 << 10;

/// Result of reading a message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    /// Ctrl-C, which clears the line.
    Interrupted,
    /// Ctrl-D, or the terminal was closed.
    End,
}

pub(super) struct Editor {
    reader: rustyline::Editor<Completer, FileHistory>,
    /// History file; `None` disables the history.
    history: Option<PathBuf>,
}

impl Editor {
    pub(super) fn new(ui: &Ui, completer: Completer, history: Option<PathBuf>) -> Result<Self> {
        let behavior = if ui.stdout_is_terminal {
            Behavior::Stdio
        } else {
            Behavior::PreferTerm
        };
        let config = Config::builder()
            .behavior(behavior)
            .completion_type(CompletionType::List)
            .completion_show_all_if_ambiguous(true)
            .build();
        let mut reader =
            rustyline::Editor::<_, FileHistory>::with_config(config).map_err(|e| failed(&e))?;
        reader
            .set_max_history_size(MAX_ENTRIES)
            .map_err(|e| failed(&e))?;
        reader.set_helper(Some(completer));
        for (key, handler) in [
            (KeyEvent::ctrl('Z'), Key::Suspend),
            (KeyEvent(KeyCode::Enter, Modifiers::NONE), Key::Enter),
            (KeyEvent::ctrl('J'), Key::Enter),
        ] {
            reader.bind_sequence(key, EventHandler::Conditional(Box::new(handler)));
        }
        let alt_enter = KeyEvent(KeyCode::Enter, Modifiers::ALT);
        reader.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        if let Some(path) = &history {
            // An unreadable history counts as empty.
            reader.load_history(path).ok();
        }
        Ok(Self { reader, history })
    }

    /// Reads a message or a command.
    pub(super) fn read(&mut self) -> Result<Line> {
        // rustyline detects a new size when the signal interrupts the thread that reads the keys.
        sys::unblock_signals(sys::RESIZED);
        terminal::set(Mode::Editing)?;
        let read = self.reader.readline(PROMPT);
        terminal::set(Mode::Waiting)?;
        match read {
            Ok(text) => Ok(Line::Text(without_controls(&text))),
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            // Input that is not UTF-8 discards the line.
            Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                Ok(Line::Interrupted)
            }
            Err(ReadlineError::Eof | ReadlineError::Io(_) | ReadlineError::Errno(_)) => {
                Ok(Line::End)
            }
            Err(e) => Err(failed(&e)),
        }
    }

    /// Adds a message to the history.
    pub(super) fn remember(&mut self, text: &str) -> Result<()> {
        if text.len() > MAX_ENTRY {
            return Ok(());
        }
        self.reader
            .add_history_entry(text)
            .map_err(|e| failed(&e))?;
        match &self.history {
            Some(path) => {
                if let Some(dir) = path.parent() {
                    storage::make_dir(dir)?;
                }
                self.reader.append_history(path).map_err(|e| failed(&e))
            }
            None => Ok(()),
        }
    }
}

fn failed(e: &ReadlineError) -> Error {
    Error::failed(e.to_string())
}

/// Keys with an effect outside of the line, or one that depends on it.
enum Key {
    /// Enter, which begins another line after a backslash. The backslash remains, because a pasted one must.
    Enter,
    /// Ctrl-Z.
    Suspend,
}

impl ConditionalEventHandler for Key {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, line: &EventContext) -> Option<Cmd> {
        match self {
            Self::Enter => line.line()[..line.pos()]
                .ends_with('\\')
                .then_some(Cmd::Newline),
            Self::Suspend => {
                terminal::suspend();
                Some(Cmd::Repaint)
            }
        }
    }
}

impl rustyline::completion::Completer for Completer {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _: &LineContext<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let (start, found) = self.words(&line[..cursor]);
        let is_only_one = found.len() == 1;
        let pair = |word: String| {
            let end = if is_only_one && !word.ends_with('/') {
                " "
            } else {
                ""
            };
            Pair {
                replacement: format!("{word}{end}"),
                display: word,
            }
        };
        Ok((start, found.into_iter().map(pair).collect()))
    }
}

impl Highlighter for Completer {
    /// Removes control sequences, which a paste may contain.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if line.contains(is_unsafe_to_show) {
            line.chars().filter(|c| !is_unsafe_to_show(*c)).collect()
        } else {
            line.into()
        }
    }
}

impl Hinter for Completer {
    type Hint = String;
}

impl Validator for Completer {}

impl Helper for Completer {}
