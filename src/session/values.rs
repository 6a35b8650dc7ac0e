//! Named values of a conversation, which programs and tools store with its messages.
//!
//! A line is `{"state":{"value":{NAME:VALUE}}}`, and null removes a value. The header of a later segment has all values in
//! `state.values`.

use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

use super::Line;

use crate::sync;

/// Named values of a conversation, for a turn and its tools. Values set by a tool are stored with the results of its calls.
#[derive(Default)]
pub struct Values(Mutex<State>);

#[derive(Default)]
struct State {
    all: Line,
    /// Names of values that are not stored yet.
    changed: Vec<String>,
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
        let mut state = self.lock();
        put(&mut state.all, name, value.into());
        if !state.changed.iter().any(|changed| changed == name) {
            state.changed.push(name.to_owned());
        }
    }

    /// Removes a value.
    pub fn remove(&self, name: &str) {
        self.set(name, Value::Null);
    }

    /// Creates the values of a conversation.
    pub(crate) fn new(values: &Line) -> Self {
        Self(Mutex::new(State {
            all: values.clone(),
            changed: Vec::new(),
        }))
    }

    /// Returns the values set since the last call; removed values are null.
    pub(crate) fn take_changed(&self) -> Vec<(String, Value)> {
        let mut state = self.lock();
        let changed = std::mem::take(&mut state.changed);
        let value = |name: String| {
            let value = state.all.get(&name).cloned().unwrap_or_default();
            (name, value)
        };
        changed.into_iter().map(value).collect()
    }
}

pub(super) fn put(values: &mut Line, name: &str, value: Value) {
    if value.is_null() {
        values.remove(name);
    } else {
        values.insert(name.to_owned(), value);
    }
}

/// Applies the values set by a line.
pub(super) fn take_over(values: &mut Line, state: &Value) {
    for name in ["values", "value"] {
        let set = state.get(name).and_then(Value::as_object);
        for (name, value) in set.into_iter().flatten() {
            put(values, name, value.clone());
        }
    }
}

/// Creates the `state` that sets a value.
pub(super) fn state(name: &str, value: &Value) -> Value {
    json!({"value": {name: value}})
}
