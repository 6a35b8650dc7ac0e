//! Builds a conversation from its lines.

use std::path::Path;

use serde_json::Value;

use super::lines::{base, call_asked_about, pair, refuse_newer, turn_end, version};
use super::{Line, Loaded, NOT_BEGUN, NOT_SHOWN, Session, values};
use crate::error::Result;
use crate::message::{Message, TurnStop};

/// Content of a line that can be undone.
enum Item {
    Message { message: Message, time: String },
    End(TurnStop),
    Asked(String),
    Values(Value),
}

/// Position of a conversation in its lines.
#[derive(Clone, Copy, Default)]
pub(super) struct Position {
    /// Number in the conversation of its segment's first line.
    pub base: u64,
    /// Number of the next line in its segment.
    pub next: u64,
    /// Number of the line with the user's last message.
    pub asked: u64,
}

/// Result of a replay.
pub(super) struct Replayed {
    pub session: Session,
    pub position: Position,
    /// Results that the file lacks at its end.
    pub missing: Vec<Message>,
    /// Number of results at the end, of calls that have not begun. They are not in the file.
    pub not_begun: usize,
    /// Whether a turn was undone, and no turn has begun or ended since.
    pub is_undone: bool,
}

/// Builds the conversation from these lines.
pub(super) fn replay(key: &str, loaded: Loaded) -> Result<Replayed> {
    refuse_newer(loaded.lines.iter().find_map(version), Path::new(key))?;
    let next = loaded.lines.len() as u64;
    let mut replay = Replay::new(key);
    for (seq, line) in (0..).zip(loaded.lines) {
        replay.line(seq, line);
    }
    let mut replayed = replay.finish(next);
    replayed.session.damage = loaded.warnings;
    for message in &mut replayed.session.messages {
        message.replace_media(|media| media.base64.is_empty(), NOT_SHOWN);
    }
    Ok(replayed)
}

/// Reads the lines of a segment and builds a conversation.
struct Replay {
    session: Session,
    position: Position,
    is_undone: bool,
    asked_about: String,
    has_header: bool,
    /// Items that count so far, with their line numbers.
    kept: Vec<(u64, Item)>,
    /// First item of the last undone turn, a title for a conversation without another question.
    undone: Option<(u64, Item)>,
}

impl Replay {
    fn new(name: &str) -> Self {
        Self {
            session: Session::new(name),
            position: Position::default(),
            is_undone: false,
            asked_about: String::new(),
            has_header: false,
            kept: Vec::new(),
            undone: None,
        }
    }

    fn header(&mut self, header: &Line) {
        let text = |name: &str| header.get(name)?.as_str().map(str::to_owned);
        let session = &mut self.session;
        self.position.base = base(header);
        session.created = text("began").or(text("created")).unwrap_or_default();
        session.summary = text("summary");
        session.title = text("title").unwrap_or_default();
    }

    /// Applies state that cannot be undone.
    fn state(&mut self, state: &Value) {
        if let Some(model) = state.get("model").and_then(Value::as_str) {
            self.session.model = Some(model.to_owned());
        }
        if let Some(allowed) = state.get("allowed").and_then(Value::as_array) {
            let names = allowed.iter().filter_map(Value::as_str);
            self.session.allowed = names.map(str::to_owned).collect();
        }
    }

    /// Applies the content of a line.
    fn apply(&mut self, seq: u64, item: Item) {
        let session = &mut self.session;
        match item {
            Item::Values(state) => values::take_over(&mut session.values, &state),
            Item::End(end) => session.ended = Some(end),
            Item::Asked(call) => self.asked_about = call,
            Item::Message { message, time } => {
                if message.is_question() {
                    self.position.asked = seq;
                    session.entitle(&message);
                }
                if !message.is_note() {
                    session.ended = None;
                }
                if !time.is_empty() {
                    session.last = time;
                }
                session.messages.push(message);
            }
        }
    }

    /// Returns the conversation, whose next line is `next`.
    fn finish(mut self, next: u64) -> Replayed {
        self.position.next = next;
        for (seq, item) in std::mem::take(&mut self.kept) {
            if matches!(&item, Item::Message { message, .. } if message.is_question()) {
                self.session.close_turn();
            }
            self.apply(seq, item);
        }
        let asked_about = self.asked_about;
        let mut session = self.session;
        if let Some((_, Item::Message { message, .. })) = &self.undone {
            session.entitle(message);
        }
        let mut not_begun = 0;
        let mut missing = pair(&mut session.messages);
        let is_asked_about = |message: &Message| matches!(message, Message::ToolResult(result) if result.call_id == asked_about);
        if let Some(at) = missing.iter().position(is_asked_about) {
            not_begun = missing.split_off(at).len();
            for message in session.messages.iter_mut().rev().take(not_begun) {
                if let Message::ToolResult(result) = message {
                    NOT_BEGUN.clone_into(&mut result.content);
                }
            }
        }
        Replayed {
            session,
            position: self.position,
            missing,
            not_begun,
            is_undone: self.is_undone,
        }
    }

    /// Reads the next line. Damaged and missing lines are empty.
    fn line(&mut self, seq: u64, mut line: Line) {
        if line.is_empty() {
            return;
        }
        if !self.has_header {
            self.has_header = true;
            self.header(&line);
        }
        if let Some(from) = line.get("undo").and_then(Value::as_u64) {
            let at = self.kept.partition_point(|(seq, _)| *seq < from);
            self.undone = self.kept.drain(at..).next();
            self.is_undone = true;
            return;
        }
        if let Some(state) = line.remove("state") {
            self.state(&state);
            if let Some(call) = call_asked_about(&state) {
                self.kept.push((seq, Item::Asked(call)));
            }
            self.kept.push((seq, Item::Values(state)));
        } else if let Some(end) = turn_end(&line) {
            // A turn that the host refused is undone before it ends, so the turn before it becomes the last.
            self.is_undone = false;
            self.kept.push((seq, Item::End(end)));
        } else {
            let time = line.get("time").and_then(Value::as_str);
            let time = time.unwrap_or_default().to_owned();
            let Some(message) = Message::from_line(Value::Object(line)) else {
                return;
            };
            self.is_undone &= !message.is_question();
            self.kept.push((seq, Item::Message { message, time }));
        }
    }
}
