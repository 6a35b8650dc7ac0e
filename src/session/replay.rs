//! Builds a conversation from its entries.

use serde_json::Value;

use super::entries::{Entry, Item, title};
use super::values::put;
use super::{Line, NOT_BEGUN, NOT_SHOWN, Session};
use crate::error::Result;
use crate::message::{Message, ToolResult};

/// Result of a call that was running when the program ended.
pub(super) const INTERRUPTED: &str = "interrupted, outcome unknown";

impl Session {
    /// Builds a conversation from the entries of a segment.
    pub(crate) fn of(name: &str, entries: impl Iterator<Item = Result<Entry>>) -> Result<Self> {
        let mut session = Self::new(name);
        for entry in entries {
            session.apply(entry?);
        }
        session.missing = pair(&mut session.messages);
        let asked_about = &session.asked_about;
        let is_asked_about = |message: &Message| matches!(message, Message::ToolResult(result) if result.call_id == *asked_about);
        if let Some(at) = session.missing.iter().position(is_asked_about) {
            session.not_begun = session.missing.split_off(at).len();
            for message in session.messages.iter_mut().rev().take(session.not_begun) {
                if let Message::ToolResult(result) = message {
                    NOT_BEGUN.clone_into(&mut result.content);
                }
            }
        }
        for message in &mut session.messages {
            message.replace_media(|media| media.base64.is_empty(), NOT_SHOWN);
        }
        Ok(session)
    }

    /// Adds the next entry.
    pub(super) fn apply(&mut self, entry: Entry) {
        match entry.item {
            Item::Header(header) => self.begin(&header, entry.time),
            Item::Damage(what) => self.damage.push(what),
            Item::Undo => self.is_undone = true,
            Item::State(state) => {
                self.set_state(&state);
                if !entry.is_undone {
                    if let Some(call) = state.get("asked").and_then(Value::as_str) {
                        call.clone_into(&mut self.asked_about);
                    }
                    self.set_values(state.get("value"));
                }
            }
            Item::End(end) => {
                // A turn that the host refused is undone before it ends, so the turn before it becomes the last.
                self.is_undone = false;
                if !entry.is_undone {
                    self.ended = Some(end);
                }
            }
            Item::Message(message) => {
                self.is_undone &= !message.is_question();
                self.entitle(&message, entry.is_undone);
                if entry.is_undone {
                    return;
                }
                if message.is_question() {
                    self.close_turn();
                    self.asked = entry.seq.unwrap_or_default();
                }
                if !message.is_note() {
                    self.ended = None;
                }
                if !entry.time.is_empty() {
                    self.last = entry.time;
                }
                self.messages.push(message);
            }
        }
    }

    /// Applies the first line of a segment.
    fn begin(&mut self, header: &Line, created: String) {
        let text = |name: &str| header.get(name)?.as_str().map(str::to_owned);
        let base = header.get("base").and_then(Value::as_u64);
        self.base = base.unwrap_or_default();
        self.created = text("began").unwrap_or(created);
        self.summary = text("summary");
        self.title = text("title").unwrap_or_default();
        self.has_title = !self.title.is_empty();
        if let Some(state) = header.get("state") {
            self.set_state(state);
            self.set_values(state.get("values"));
        }
    }

    /// Applies state that cannot be undone.
    fn set_state(&mut self, state: &Value) {
        if let Some(model) = state.get("model").and_then(Value::as_str) {
            self.model = Some(model.to_owned());
        }
        if let Some(allowed) = state.get("allowed").and_then(Value::as_array) {
            let names = allowed.iter().filter_map(Value::as_str);
            self.allowed = names.map(str::to_owned).collect();
        }
    }

    /// Sets these named values; null removes one.
    fn set_values(&mut self, values: Option<&Value>) {
        for (name, value) in values.and_then(Value::as_object).into_iter().flatten() {
            put(&mut self.values, name, value.clone());
        }
    }

    /// Sets the title from this message, if it is a question and the first one that counts. The words of an undone question are
    /// the title until another counts.
    pub(super) fn entitle(&mut self, message: &Message, is_undone: bool) {
        if self.has_title {
            return;
        }
        if let Some(title) = title(message) {
            (self.title, self.has_title) = (title, !is_undone);
        }
    }
}

/// Gives every call exactly one result, right after it. Results without a call are removed, calls without a result get
/// [`INTERRUPTED`]. Returns the results added at the very end, which the file does not contain yet.
pub(super) fn pair(messages: &mut Vec<Message>) -> Vec<Message> {
    let mut added = Vec::new();
    let room = Vec::with_capacity(messages.len());
    let mut rest = std::mem::replace(messages, room).into_iter().peekable();
    while let Some(message) = rest.next() {
        let calls: Vec<String> = match &message {
            Message::ToolResult(_) => continue,
            Message::Assistant(reply) => reply.calls.iter().map(|c| c.id.clone()).collect(),
            Message::System(_) | Message::User(_) => Vec::new(),
        };
        messages.push(message);
        let mut results: Vec<ToolResult> = Vec::new();
        while let Some(Message::ToolResult(result)) =
            rest.next_if(|m| matches!(m, Message::ToolResult(_)))
        {
            results.push(result);
        }
        added.clear();
        for call_id in calls {
            if let Some(at) = results.iter().position(|r| r.call_id == call_id) {
                messages.push(Message::ToolResult(results.swap_remove(at)));
                continue;
            }
            let lost = Message::ToolResult(ToolResult {
                call_id,
                content: INTERRUPTED.to_owned(),
                is_error: true,
                images: Vec::new(),
            });
            added.push(lost.clone());
            messages.push(lost);
        }
    }
    added
}
