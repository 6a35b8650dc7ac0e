//! The line editor of a conversation: rustyline, with custom completion, keys and history.

mod complete;

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

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

use super::term::screen::Screen;
use super::term::tty::{self, Mode};
use crate::error::{Error, Result};
use crate::storage;
use crate::sync;
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
    /// Ctrl-C, and whether there was text.
    Interrupted {
        had_text: bool,
    },
    /// Ctrl-D, or the terminal was closed.
    End,
}

pub(super) struct Editor {
    reader: rustyline::Editor<Completer, FileHistory>,
    /// Text at the time of Ctrl-C or Ctrl-Z.
    left: Arc<Mutex<Left>>,
    /// History file; `None` disables the history.
    history: Option<PathBuf>,
}

/// State after a key that ended the reading.
#[derive(Default)]
struct Left {
    before_cursor: String,
    after_cursor: String,
    is_suspended: bool,
}

impl Editor {
    pub(super) fn new(
        screen: &Screen,
        completer: Completer,
        history: Option<PathBuf>,
    ) -> Result<Self> {
        let behavior = if screen.stdout_is_terminal {
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
        let left = Arc::new(Mutex::new(Left::default()));
        for key in ['C', 'Z'] {
            let leave = Box::new(Leave(left.clone()));
            reader.bind_sequence(KeyEvent::ctrl(key), EventHandler::Conditional(leave));
        }
        for key in [
            KeyEvent(KeyCode::Enter, Modifiers::NONE),
            KeyEvent::ctrl('J'),
        ] {
            reader.bind_sequence(key, EventHandler::Conditional(Box::new(GoOn)));
        }
        let alt_enter = KeyEvent(KeyCode::Enter, Modifiers::ALT);
        reader.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        if let Some(path) = &history {
            // An unreadable history counts as empty.
            reader.load_history(path).ok();
        }
        Ok(Self {
            reader,
            left,
            history,
        })
    }

    /// Reads a message or a command.
    pub(super) fn read(&mut self) -> Result<Line> {
        // rustyline detects a new size when the signal interrupts the thread that reads the keys.
        sys::unblock_signals(sys::RESIZED);
        let mut initial = (String::new(), String::new());
        loop {
            tty::set(Mode::Editing)?;
            let read = self
                .reader
                .readline_with_initial(PROMPT, (&initial.0, &initial.1));
            tty::set(Mode::Waiting)?;
            match read {
                Ok(text) => return Ok(Line::Text(joined(&text))),
                Err(ReadlineError::Interrupted) => {
                    let left = std::mem::take(&mut *self.left());
                    if !left.is_suspended {
                        let had_text =
                            !left.before_cursor.is_empty() || !left.after_cursor.is_empty();
                        return Ok(Line::Interrupted { had_text });
                    }
                    tty::suspend();
                    initial = (left.before_cursor, left.after_cursor);
                }
                // Input that is not UTF-8 discards the line.
                Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                    return Ok(Line::Interrupted { had_text: true });
                }
                Err(ReadlineError::Eof | ReadlineError::Io(_) | ReadlineError::Errno(_)) => {
                    return Ok(Line::End);
                }
                Err(e) => return Err(failed(&e)),
            }
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

    fn left(&self) -> MutexGuard<'_, Left> {
        sync::lock(&self.left)
    }
}

/// Returns the message without the backslashes before typed line breaks.
fn joined(text: &str) -> String {
    without_controls(&text.replace(&format!("\\{TYPED}\n"), "\n"))
}

fn failed(e: &ReadlineError) -> Error {
    Error::failed(e.to_string())
}

/// Handles Ctrl-C and Ctrl-Z, which end the reading and save the text.
struct Leave(Arc<Mutex<Left>>);

impl ConditionalEventHandler for Leave {
    fn handle(&self, key: &Event, _: RepeatCount, _: bool, line: &EventContext) -> Option<Cmd> {
        let (before, after) = line.line().split_at(line.pos());
        *sync::lock(&self.0) = Left {
            before_cursor: before.to_owned(),
            after_cursor: after.to_owned(),
            is_suspended: key.get(0) == Some(&KeyEvent::ctrl('Z')),
        };
        Some(Cmd::Interrupt)
    }
}

/// Handles Enter after a backslash, which continues the message in a new line.
struct GoOn;

/// Marks a backslash before a typed Enter, because a pasted backslash at the end of a line must remain. It is invisible.
const TYPED: char = '\u{1}';

impl ConditionalEventHandler for GoOn {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, line: &EventContext) -> Option<Cmd> {
        let goes_on = line.line()[..line.pos()].ends_with('\\');
        goes_on.then(|| Cmd::Insert(1, format!("{TYPED}\n")))
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
