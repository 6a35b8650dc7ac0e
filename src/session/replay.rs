//! Builds a conversation from its lines, one after the other. The oldest messages are left out if there are more than any model
//! could be sent, so that memory does not grow with the log.

use std::collections::VecDeque;
use std::ops::Range;

use serde_json::Value;

use super::lines::{base, call_asked_about, pair, turn_end, version};
use super::{NOT_BEGUN, Session, TurnEnd, values};
use crate::message::Message;
use crate::storage::{Line, Sink};

/// About how many bytes of messages are in memory: two and a half million tokens of text.
const MAX_LOADED: usize = 8 << 20;

/// What a line says that an undo can take back.
enum Item {
    Message { message: Message, time: String },
    End(TurnEnd),
    Asked(String),
    Values(Value),
}

struct Loaded {
    seq: u64,
    weight: usize,
    item: Item,
}

/// Takes the lines of a segment, and makes a conversation of them.
pub(super) struct Replay {
    /// The state after the lines before the kept ones.
    session: Session,
    asked_about: String,
    has_header: bool,
    kept: VecDeque<Loaded>,
    weight: usize,
    /// The numbers of the lines that were taken back.
    undone: Vec<Range<u64>>,
    /// Lines were left out to make room for some that were taken back later.
    has_gap: bool,
    /// How many damaged places of the segment the user has been told of.
    pub(super) told: usize,
    /// The format that the segment says it has.
    pub(super) version: Option<u64>,
}

impl Replay {
    pub(super) fn new(name: &str) -> Self {
        Self {
            session: Session::new(name),
            asked_about: String::new(),
            has_header: false,
            kept: VecDeque::new(),
            weight: 0,
            undone: Vec::new(),
            has_gap: false,
            told: 0,
            version: None,
        }
    }

    /// Reads the conversation without the lines that were taken back.
    pub(super) fn without(name: &str, undone: Vec<Range<u64>>) -> Self {
        Self {
            undone,
            ..Self::new(name)
        }
    }

    /// A replay that reads the lines again, if any were left out to make room for some that were taken back later.
    pub(super) fn again(&mut self) -> Option<Self> {
        let undone = std::mem::take(&mut self.undone);
        self.has_gap
            .then(|| Self::without(&self.session.name, undone))
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
        if let Some(told) = state.get("damage_told").and_then(Value::as_u64) {
            self.told = usize::try_from(told).unwrap_or(usize::MAX);
        }
    }

    fn keep(&mut self, seq: u64, len: usize, item: Item) {
        let weight = size_of::<Loaded>() + len;
        self.weight += weight;
        self.kept.push_back(Loaded { seq, weight, item });
        if self.weight > MAX_LOADED {
            self.leave_out();
        }
    }

    /// Leaves out the oldest quarter and what else there is of the turn that ends in. A turn that is longer by itself keeps its
    /// question.
    fn leave_out(&mut self) {
        let mut question = None;
        while self.weight > MAX_LOADED / 4 * 3 {
            question = self.leave_out_first().or(question);
        }
        let is_question = |kept: &Loaded| matches!(&kept.item, Item::Message { message, .. } if message.is_question());
        if let Some(at) = self.kept.iter().position(is_question) {
            for _ in 0..at {
                self.leave_out_first();
            }
        } else if let Some(question) = question {
            self.session.left_out -= 1;
            self.weight += question.weight;
            self.kept.push_front(question);
        }
    }

    /// Leaves out the first line. Returns it if it is a question.
    fn leave_out_first(&mut self) -> Option<Loaded> {
        let Loaded { seq, weight, item } = self.kept.pop_front()?;
        self.weight -= weight;
        let message = self.apply(seq, item)?;
        self.session.left_out += 1;
        let time = self.session.last.clone();
        message.is_question().then_some(Loaded {
            seq,
            weight,
            item: Item::Message { message, time },
        })
    }

    /// Takes over what a line says. Returns its message.
    fn apply(&mut self, seq: u64, item: Item) -> Option<Message> {
        let session = &mut self.session;
        match item {
            Item::Values(line) => values::take_over(&mut session.values, &line),
            Item::End(end) => session.ended = Some(end),
            Item::Asked(call) => self.asked_about = call,
            Item::Message { message, time } => {
                session.named.message(&message);
                if message.is_question() {
                    session.asked = seq;
                    session.entitle(&message);
                }
                session.ended = session.ended.filter(|_| message.is_note());
                if !time.is_empty() {
                    session.last = time;
                }
                return Some(message);
            }
        }
        None
    }

    /// The conversation, whose next line is `next`, and the results that it lacks at its end.
    pub(super) fn finish(mut self, next: u64) -> (Session, Vec<Message>) {
        self.session.next = next;
        while let Some(Loaded { seq, item, .. }) = self.kept.pop_front() {
            if matches!(&item, Item::Message { message, .. } if message.is_question()) {
                self.session.close_turn();
            }
            let message = self.apply(seq, item);
            self.session.messages.extend(message);
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

impl Sink for Replay {
    fn line(&mut self, Line { seq, mut fields }: Line, len: usize) {
        self.version = self.version.or(version(&fields));
        if !self.has_header {
            self.has_header = true;
            self.header(&fields);
        }
        if let Some(undone) = undone(seq, &fields) {
            let from = undone.start;
            self.undone.push(undone);
            self.has_gap |= self.session.left_out > 0;
            while self.kept.back().is_some_and(|last| last.seq >= from) {
                let last = self.kept.pop_back();
                self.weight -= last.map_or(0, |last| last.weight);
            }
            return;
        }
        // Known beforehand only if the lines are read again.
        let is_undone = self.undone.iter().any(|undone| undone.contains(&seq));
        if let Some(state) = fields.get("state") {
            self.state(state);
        }
        if is_undone {
            return;
        }
        if fields.get("state").is_some() {
            if let Some(call) = call_asked_about(&fields) {
                self.keep(seq, len, Item::Asked(call));
            }
            self.keep(seq, len, Item::Values(fields));
        } else if let Some(end) = turn_end(&fields) {
            self.keep(seq, len, Item::End(end));
        } else if let Some(message) = Message::from_json(&fields) {
            let time = match fields.get_mut("time").map(Value::take) {
                Some(Value::String(time)) => time,
                _ => String::new(),
            };
            self.keep(seq, len, Item::Message { message, time });
        }
    }
}

/// The numbers of the lines that the line of this number takes back, if it does.
pub(super) fn undone(seq: u64, fields: &Value) -> Option<Range<u64>> {
    Some(fields.get("undo")?.as_u64()?..seq)
}
