//! The line editor of a conversation.

mod buffer;
mod complete;
mod history;
mod keys;
mod layout;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::screen::Screen;
use super::tty::{self, Mode};
use crate::error::Result;
use crate::text::printable;
use buffer::{Buffer, Motion};
pub(super) use complete::Completer;
pub(super) use history::History;
use keys::{Happened, Key, Keys};
use layout::{Layout, layout};

/// Before a message, and before each of its lines but the first.
pub(super) const PROMPT: &str = "> ";
pub(super) const CONTINUATION: &str = ". ";

/// How reading a message ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Text(String),
    /// Ctrl-C; whether there was text.
    Interrupted {
        had_text: bool,
    },
    /// Ctrl-D, or the terminal is gone.
    End,
}

pub(super) struct Editor {
    completer: Completer,
    pub history: History,
    screen: Screen,
    /// Becomes readable when the terminal has another size.
    resized: Arc<OwnedFd>,
    keys: Keys,
    buffer: Buffer,
    /// The number of the entry of the history that is shown; its length while that is a new text.
    entry: usize,
    /// The new text, while an entry of the history is shown.
    draft: String,
    /// What is looked for in the history.
    search: Option<String>,
    /// Part of the text was pasted.
    pub has_paste: bool,
    /// What is on the screen, from its first row on, and the columns it was drawn for.
    drawn: Layout,
    columns: usize,
}

impl Editor {
    pub(super) fn new(
        screen: Screen,
        resized: Arc<OwnedFd>,
        completer: Completer,
        history: History,
    ) -> Self {
        Self {
            completer,
            history,
            screen,
            resized,
            keys: Keys::default(),
            buffer: Buffer::default(),
            entry: 0,
            draft: String::new(),
            search: None,
            has_paste: false,
            drawn: Layout::default(),
            columns: 80,
        }
    }

    /// Reads a message or a command.
    pub(super) fn read(&mut self) -> Result<Outcome> {
        (self.entry, self.search, self.has_paste) = (self.history.entries.len(), None, false);
        tty::set(Mode::Editing)?;
        self.draw();
        self.screen.draw(tty::PASTE_ON);
        let outcome = loop {
            let key = match self.keys.next(self.resized.as_fd()) {
                Happened::Key(key) => key,
                Happened::Resized => {
                    self.draw();
                    continue;
                }
                Happened::Gone => break Outcome::End,
            };
            let key = if self.search.is_some() {
                self.search_key(key)
            } else {
                Some(key)
            };
            if let Some(outcome) = key.and_then(|key| self.press(key)) {
                break outcome;
            }
            self.draw();
        };
        self.leave(if matches!(outcome, Outcome::Interrupted { .. }) {
            "^C"
        } else {
            ""
        });
        tty::set(Mode::Waiting)?;
        self.buffer.take();
        Ok(outcome)
    }

    /// Does what a key says.
    fn press(&mut self, key: Key) -> Option<Outcome> {
        match key {
            Key::Text(text) => self.buffer.insert(&printable(&text)),
            Key::Paste(text) => {
                self.has_paste = true;
                self.buffer.insert(&printable(&text));
            }
            Key::Enter => return self.enter(),
            Key::Newline => self.buffer.insert("\n"),
            Key::Tab => self.complete(),
            Key::Go(motion) => {
                let moved = self.buffer.go(motion);
                match motion {
                    Motion::Up if !moved && self.entry > 0 => self.show_entry(self.entry - 1),
                    Motion::Down if !moved => self.show_entry(self.entry + 1),
                    _ => {}
                }
            }
            Key::Delete(motion) => self.buffer.delete(motion),
            Key::Cut(motion) => self.buffer.cut(motion),
            Key::PutBack => self.buffer.paste(),
            Key::Search => {
                self.draft = self.buffer.text().to_owned();
                self.search = Some(String::new());
            }
            Key::Clear => {
                self.screen.draw("\x1b[H\x1b[2J");
                self.drawn = Layout::default();
            }
            Key::Interrupt => {
                return Some(Outcome::Interrupted {
                    had_text: !self.buffer.text().is_empty(),
                });
            }
            Key::End if self.buffer.text().is_empty() => return Some(Outcome::End),
            Key::End => self.buffer.delete(Motion::Right),
            Key::Suspend => {
                self.leave("");
                tty::suspend();
                self.screen.draw(tty::PASTE_ON);
            }
            Key::Cancel | Key::Unknown => {}
        }
        None
    }

    /// Ends the message, unless it goes on behind a backslash.
    fn enter(&mut self) -> Option<Outcome> {
        if !self.buffer.before().ends_with('\\') {
            return Some(Outcome::Text(self.buffer.text().to_owned()));
        }
        self.buffer.delete(Motion::Left);
        self.buffer.insert("\n");
        None
    }

    /// Shows another entry of the history; behind the last one is the new text.
    fn show_entry(&mut self, entry: usize) {
        let last = self.history.entries.len();
        if self.entry == last && entry < last {
            self.draft = self.buffer.text().to_owned();
        }
        if entry <= last {
            self.entry = entry;
            self.buffer.set(
                self.history
                    .entries
                    .get(entry)
                    .unwrap_or(&self.draft)
                    .clone(),
            );
        }
    }

    /// Searches on, or ends the search and returns the key.
    fn search_key(&mut self, key: Key) -> Option<Key> {
        let text = self.search.take().unwrap_or_default();
        let last = self.history.entries.len();
        let (text, from) = match key {
            Key::Text(more) | Key::Paste(more) => (text + &more, last),
            Key::Delete(Motion::Left) => (
                text.chars()
                    .take(text.chars().count().saturating_sub(1))
                    .collect(),
                last,
            ),
            Key::Search => (text, self.entry),
            Key::Cancel | Key::Interrupt => {
                self.entry = last;
                self.buffer.set(std::mem::take(&mut self.draft));
                return None;
            }
            key => return Some(key),
        };
        if let Some(found) = self.history.find(&text, from).filter(|_| !text.is_empty()) {
            self.entry = found;
            self.buffer.set(self.history.entries[found].clone());
        }
        self.search = Some(text);
        None
    }

    fn complete(&mut self) {
        let (start, found) = self.completer.complete(self.buffer.before());
        let word = self.buffer.before()[start..].to_owned();
        let Some(first) = found.first() else { return };
        let common = found.iter().fold(first.as_str(), |common, other| {
            let same = common
                .char_indices()
                .zip(other.chars())
                .find(|((_, a), b)| a != b)
                .map(|((at, _), _)| at);
            &common[..same.unwrap_or(common.len().min(other.len()))]
        });
        if found.len() == 1 {
            let end = if first.ends_with('/') { "" } else { " " };
            self.buffer.replace_from(start, &format!("{first}{end}"));
        } else if common.len() > word.len() {
            self.buffer.replace_from(start, common);
        } else {
            self.leave("");
            self.screen.note(&found.join("  "));
            self.screen.draw(tty::PASTE_ON);
        }
    }

    fn layout(&self, cursor: usize) -> Layout {
        let prompt = self
            .search
            .as_ref()
            .map_or(PROMPT.to_owned(), |text| format!("(search: {text}) "));
        layout(&prompt, self.buffer.text(), cursor, self.columns)
    }

    /// Draws the text. Of one that is higher than the screen, only the rows around the cursor.
    fn draw(&mut self) {
        let before = self.columns;
        let (columns, rows) = tty::size();
        self.columns = columns;
        let mut layout = self.layout(self.buffer.cursor());
        let top = layout
            .cursor
            .0
            .saturating_sub(rows - 1)
            .max(layout.cursor.0.min(layout.rows.len().saturating_sub(rows)));
        layout.rows.drain(..top);
        layout.rows.truncate(rows);
        layout.cursor.0 -= top;
        self.paint(layout, before);
    }

    /// Draws everything, and goes to the line below.
    fn leave(&mut self, mark: &str) {
        self.search = None;
        self.paint(self.layout(self.buffer.text().len()), self.columns);
        self.drawn = Layout::default();
        self.screen.draw(&format!("{}{mark}\n", tty::PASTE_OFF));
    }

    /// Replaces what is drawn, which was drawn `columns` wide.
    fn paint(&mut self, layout: Layout, columns: usize) {
        let mut out = String::new();
        if !self.drawn.rows.is_empty() {
            // A terminal that became narrower has wrapped each row.
            let wraps = |width: usize| {
                if columns > self.columns {
                    width.saturating_sub(1) / self.columns
                } else {
                    0
                }
            };
            let (row, column) = self.drawn.cursor;
            let above: usize = self.drawn.rows[..row]
                .iter()
                .map(|row| 1 + wraps(crate::markdown::width(row)))
                .sum();
            let up = above + wraps(column + 1);
            if up > 0 {
                out.push_str(&format!("\x1b[{up}A"));
            }
            out.push_str("\r\x1b[J");
        }
        out.push_str(&layout.rows.join("\n"));
        let (row, column) = layout.cursor;
        let (last, end) = (
            layout.rows.len() - 1,
            layout
                .rows
                .last()
                .map_or(0, |row| crate::markdown::width(row)),
        );
        if (row, column) != (last, end) {
            if row < last {
                out.push_str(&format!("\x1b[{}A", last - row));
            }
            out.push('\r');
            if column > 0 {
                out.push_str(&format!("\x1b[{column}C"));
            }
        }
        self.screen.draw(&out);
        self.drawn = layout;
    }
}
