//! Named values of a conversation: what programs and tools keep beside its messages.
//!
//! A line is `{"state":{"value":{NAME:VALUE}}}`, and null takes a value away. The header of a later segment has those of the
//! one before it in `state.values`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::Line;

/// The named values of a conversation, for a turn and its tools. What tools set is stored with the results of their calls.
#[derive(Default)]
pub struct Values(Mutex<State>);

#[derive(Default)]
struct State {
    all: Line,
    /// The names of those that are not stored yet.
    changed: Vec<String>,
}

impl Values {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value with this name.
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

    /// Those of a conversation.
    pub(crate) fn of(values: &Line) -> Self {
        Self(Mutex::new(State {
            all: values.clone(),
            changed: Vec::new(),
        }))
    }

    /// What was set since the last call, null for what was removed.
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

/// Takes over what a line sets.
pub(super) fn take_over(values: &mut Line, state: &Value) {
    for name in ["values", "value"] {
        let set = state.get(name).and_then(Value::as_object);
        for (name, value) in set.into_iter().flatten() {
            put(values, name, value.clone());
        }
    }
}

/// The `state` that sets a value.
pub(super) fn state(name: &str, value: &Value) -> Value {
    json!({"value": {name: value}})
}
