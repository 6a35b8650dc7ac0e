//! Named values of a conversation, which programs and tools store with its messages.
//!
//! A line is `{"state":{"value":{NAME:VALUE}}}`, and null removes a value. The header of a later segment has all values in
//! `state.values`.

use std::sync::{Mutex, MutexGuard};

use serde_json::Value;

use super::Line;
use crate::sync;

/// Named values of a conversation, for a turn and its tools. Values set by a tool are stored with the results of its calls.
#[derive(Default)]
pub struct Values(Mutex<State>);

#[derive(Default)]
struct State {
    all: Line,
    /// Values that are not stored yet; null for removed ones.
    changed: Line,
}

impl Values {
    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.0)
    }

    /// Returns the value with this name.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.lock().all.get(name).cloned()
    }

    /// Sets a value. Null removes it.
    pub fn set(&self, name: &str, value: impl Into<Value>) {
        let (mut state, value) = (self.lock(), value.into());
        put(&mut state.all, name, value.clone());
        state.changed.insert(name.to_owned(), value);
    }

    /// Removes a value.
    pub fn remove(&self, name: &str) {
        self.set(name, Value::Null);
    }

    /// Creates the values of a conversation.
    pub(crate) fn new(values: &Line) -> Self {
        Self(Mutex::new(State {
            all: values.clone(),
            changed: Line::new(),
        }))
    }

    /// Returns the values set since the last call; removed values are null.
    pub(crate) fn take_changed(&self) -> Line {
        std::mem::take(&mut self.lock().changed)
    }
}

pub(super) fn put(values: &mut Line, name: &str, value: Value) {
    if value.is_null() {
        values.remove(name);
    } else {
        values.insert(name.to_owned(), value);
    }
}
