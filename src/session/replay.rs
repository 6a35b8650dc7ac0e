//! Builds a conversation from its lines, one after the other.

use serde_json::Value;

use super::lines::{base, call_asked_about, pair, turn_end, version};
use super::{Line, NOT_BEGUN, Session, values};
use crate::message::{Message, TurnStop};

/// What a line says that an undo can take back.
enum Item {
    Message { message: Message, time: String },
    End(TurnStop),
    Asked(String),
    Values(Value),
}

/// Takes the lines of a segment, and makes a conversation of them.
pub(super) struct Replay {
    session: Session,
    asked_about: String,
    has_header: bool,
    /// What counts so far, with the number of its line.
    kept: Vec<(u64, Item)>,
    /// The format that the segment says it has.
    pub(super) version: Option<u64>,
}

impl Replay {
    pub(super) fn new(name: &str) -> Self {
        Self {
            session: Session::new(name),
            asked_about: String::new(),
            has_header: false,
            kept: Vec::new(),
            version: None,
        }
    }

    fn header(&mut self, header: &Value) {
        let text = |name: &str| header.get(name)?.as_str().map(str::to_owned);
        let session = &mut self.session;
        session.base = base(header);
        session.created = text("began").or(text("created")).unwrap_or_default();
        session.summary = text("summary");
        session.title = text("title").unwrap_or_default();
    }

    /// Takes over what no undo takes back.
    fn state(&mut self, state: &Value) {
        if let Some(model) = state.get("model").and_then(Value::as_str) {
            self.session.model = Some(model.to_owned());
        }
        if let Some(allowed) = state.get("allowed").and_then(Value::as_array) {
            let names = allowed.iter().filter_map(Value::as_str);
            self.session.allowed = names.map(str::to_owned).collect();
        }
    }

    /// Takes over what a line says.
    fn apply(&mut self, seq: u64, item: Item) {
        let session = &mut self.session;
        match item {
            Item::Values(line) => values::take_over(&mut session.values, &line),
            Item::End(end) => session.ended = Some(end),
            Item::Asked(call) => self.asked_about = call,
            Item::Message { message, time } => {
                if message.is_question() {
                    session.asked = seq;
                    session.entitle(&message);
                }
                session.ended = session.ended.filter(|_| message.is_note());
                if !time.is_empty() {
                    session.last = time;
                }
                session.messages.push(message);
            }
        }
    }

    /// The conversation, whose next line is `next`, and the results that it lacks at its end.
    pub(super) fn finish(mut self, next: u64) -> (Session, Vec<Message>) {
        self.session.next = next;
        for (seq, item) in std::mem::take(&mut self.kept) {
            if matches!(&item, Item::Message { message, .. } if message.is_question()) {
                self.session.close_turn();
            }
            self.apply(seq, item);
        }
        let asked_about = self.asked_about;
        let mut session = self.session;
        let mut missing = pair(&mut session.messages);
        let is_asked_about = |message: &Message| matches!(message, Message::ToolResult(result) if result.call_id == asked_about);
        if let Some(at) = missing.iter().position(is_asked_about) {
            session.not_begun = missing.split_off(at).len();
            for message in session.messages.iter_mut().rev().take(session.not_begun) {
                if let Message::ToolResult(result) = message {
                    NOT_BEGUN.clone_into(&mut result.content);
                }
            }
        }
        (session, missing)
    }
}

impl Replay {
    /// Takes the next line. An empty one stands for one that is damaged or missing.
    pub(super) fn line(&mut self, seq: u64, line: Line) {
        if line.is_empty() {
            return;
        }
        self.version = self.version.or(version(&line));
        let fields = Value::Object(line);
        if !self.has_header {
            self.has_header = true;
            self.header(&fields);
        }
        if let Some(from) = fields.get("undo").and_then(Value::as_u64) {
            self.kept.retain(|(seq, _)| *seq < from);
            self.session.is_undone = true;
            return;
        }
        if let Some(state) = fields.get("state") {
            self.state(state);
            if let Some(call) = call_asked_about(&fields) {
                self.kept.push((seq, Item::Asked(call)));
            }
            self.kept.push((seq, Item::Values(fields)));
        } else if let Some(end) = turn_end(&fields) {
            // A turn that the host refused is taken back before it ends; the one before it is the last then.
            self.session.is_undone = false;
            self.kept.push((seq, Item::End(end)));
        } else {
            let time = fields.get("time").and_then(Value::as_str);
            let time = time.unwrap_or_default().to_owned();
            let Some(message) = Message::from_line(fields) else {
                return;
            };
            self.session.is_undone &= !message.is_question();
            self.kept.push((seq, Item::Message { message, time }));
        }
    }
}
