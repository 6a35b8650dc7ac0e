//! The line editor of a conversation: rustyline, with completion of commands and file names, and a history.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Behavior, Cmd, CompletionType, ConditionalEventHandler, Config, Context as LineContext, Event,
    EventContext, EventHandler, Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use super::slash;
use super::ui::Ui;
use crate::config::Env;
use crate::error::{Error, Result};
use crate::paths::of_user;
use crate::storage;
use crate::text::{is_unsafe_to_show, without_controls};

/// Prompt before a message.
const PROMPT: &str = "> ";
/// Typed end of a line that another one follows; a control character is not shown.
const CONTINUED: &str = "\\\u{1}\n";

/// Maximum number of messages in the history, and maximum size of each, in bytes; `state/history` is then smaller than 8 MB.
const MAX_ENTRIES: usize = 500;
const MAX_ENTRY: usize = 16 << 10;

pub(super) struct Editor {
    reader: rustyline::Editor<LineHelper, FileHistory>,
    /// History file; `None` disables the history.
    history: Option<PathBuf>,
}

impl Editor {
    pub(super) fn new(ui: &Ui, history: Option<PathBuf>) -> Result<Self> {
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
        let limited = reader.set_max_history_size(MAX_ENTRIES);
        limited.map_err(|e| failed(&e))?;
        let env = ui.env.clone();
        reader.set_helper(Some(LineHelper { env }));
        let alt_enter = KeyEvent(KeyCode::Enter, Modifiers::ALT);
        reader.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        let enter = KeyEvent(KeyCode::Enter, Modifiers::NONE);
        reader.bind_sequence(enter, EventHandler::Conditional(Box::new(Continuation)));
        if let Some(path) = &history {
            // An unreadable history counts as empty.
            reader.load_history(path).ok();
        }
        Ok(Self { reader, history })
    }

    /// Reads a message or a command; `None` after Ctrl-D, or if the terminal was closed. A dumb terminal edits its lines itself.
    pub(super) fn read(&mut self) -> Result<Option<String>> {
        match self.reader.readline(PROMPT) {
            Ok(text) => {
                let text = without_controls(&text.replace(CONTINUED, "\n"));
                self.remember(&text);
                Ok(Some(text))
            }
            // Ctrl-C discards the line, and so does input that is not UTF-8.
            Err(ReadlineError::Interrupted) => Ok(Some(String::new())),
            Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::InvalidData => {
                Ok(Some(String::new()))
            }
            Err(ReadlineError::Eof | ReadlineError::Io(_) | ReadlineError::Errno(_)) => Ok(None),
            Err(e) => Err(failed(&e)),
        }
    }

    /// Adds a message to the history. If the file cannot be written, only this conversation recalls it.
    fn remember(&mut self, text: &str) {
        if text.len() > MAX_ENTRY {
            return;
        }
        self.reader.add_history_entry(text).ok();
        if let Some(path) = &self.history {
            path.parent().map(storage::make_dir);
            self.reader.append_history(path).ok();
        }
    }
}

fn failed(e: &ReadlineError) -> Error {
    Error::failed(e.to_string())
}

struct LineHelper {
    env: Arc<Env>,
}

impl rustyline::completion::Completer for LineHelper {
    type Candidate = String;

    /// Returns the start of the word before the cursor, and its possible completions.
    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _: &LineContext<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let before = &line[..cursor];
        let start = before.rfind(char::is_whitespace).map_or(0, |at| at + 1);
        let word = &before[start..];
        let mut found: Vec<String> = match word.strip_prefix('@') {
            Some(path) => files(path, &self.env),
            None if start == 0 => slash::names()
                .chain(["/clear"])
                .map(str::to_owned)
                .collect(),
            None => Vec::new(),
        };
        found.retain(|found| found.starts_with(word));
        found.sort_unstable();
        Ok((start, found))
    }
}

/// Returns the files in the directory of `@PATH`; directories end in a slash. White space would split a name into words.
fn files(path: &str, env: &Env) -> Vec<String> {
    let dir = path.rfind('/').map_or("", |at| &path[..=at]);
    let entries = std::fs::read_dir(match dir {
        "" => PathBuf::from("."),
        dir => of_user(dir, env.get("HOME")),
    });
    let shown = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let is_word = !name.contains(|c: char| c.is_whitespace() || c.is_control());
        let slash = if entry.path().is_dir() { "/" } else { "" };
        is_word.then(|| format!("@{dir}{name}{slash}"))
    };
    let entries = entries.into_iter().flatten().flatten();
    entries.filter_map(shown).collect()
}

impl Highlighter for LineHelper {
    /// Removes control sequences, which a paste may contain.
    fn highlight<'l>(&self, line: &'l str, _: usize) -> Cow<'l, str> {
        if line.contains(is_unsafe_to_show) {
            line.chars().filter(|c| !is_unsafe_to_show(*c)).collect()
        } else {
            line.into()
        }
    }
}

impl Hinter for LineHelper {
    type Hint = String;
}

/// Enter after a backslash begins another line, with a mark by which the backslash is removed; a pasted one remains.
struct Continuation;

impl ConditionalEventHandler for Continuation {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, line: &EventContext) -> Option<Cmd> {
        let is_continued = line.line()[..line.pos()].ends_with('\\');
        is_continued.then(|| Cmd::Insert(1, CONTINUED[1..].to_owned()))
    }
}

impl Validator for LineHelper {
    /// A backslash at the end begins another line on a dumb terminal, which has no keys.
    fn validate(&self, line: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match line.input().strip_suffix('\\') {
            Some(_) => ValidationResult::Incomplete,
            None => ValidationResult::Valid(None),
        })
    }
}

impl Helper for LineHelper {}
