//! What a setting is, and what its type accepts.

use serde_json::{Value, json};

use crate::json::parse_json;

/// What a value may be, and its default where that is not empty.
#[derive(Clone, Copy)]
pub(crate) enum Type {
    Text,
    /// Text with a default.
    TextOr(&'static str),
    /// Text that is never shown.
    Secret,
    Bool(bool),
    /// The same, where it makes a difference that nobody has said which.
    Switch,
    /// A whole number: the least, the default.
    Whole(u64, u64),
    /// A number: the least, the default.
    Number(f64, f64),
    /// A number of at least 0, or null, which is the default.
    Optional,
    /// One of several words: the default, all of them.
    OneOf(&'static str, &'static [&'static str]),
    /// A list of texts; numbers count as text.
    Texts,
    /// A list of secrets.
    Secrets,
    /// Names and texts, which may be secrets.
    Map,
    /// Names and anything, which may be secrets.
    Any,
}

/// One setting. In its path `[]` stands for each entry of a list, `*` for each name of a map.
pub(crate) struct Setting {
    pub path: &'static str,
    pub kind: Type,
    pub help: &'static str,
}

use Type::{
    Any, Bool, Map, Number, OneOf, Optional, Secret, Secrets, Switch, Text, TextOr, Texts, Whole,
};

impl Type {
    pub(super) fn default(self) -> Value {
        match self {
            Text | Secret => json!(""),
            TextOr(default) => json!(default),
            Bool(default) => json!(default),
            Switch => json!(false),
            Whole(_, default) => json!(default),
            Number(_, default) => json!(default),
            Optional => Value::Null,
            OneOf(default, _) => json!(default),
            Texts | Secrets => json!([]),
            Map | Any => json!({}),
        }
    }

    /// The value; `None` if it is not of this type. A single text becomes a list of one, and numbers in a list become text.
    pub(super) fn check(self, value: Value) -> Option<Value> {
        let fits = match self {
            Text | TextOr(_) | Secret => value.is_string(),
            Bool(_) | Switch => value.is_boolean(),
            Whole(least, _) => value.as_u64().is_some_and(|n| n >= least),
            Number(least, _) => value.as_f64().is_some_and(|n| n >= least),
            Optional => value.as_f64().is_some_and(|n| n >= 0.0),
            OneOf(default, words) => value
                .as_str()
                .is_some_and(|word| word == default || words.contains(&word)),
            Texts | Secrets => return texts(value),
            Map => value
                .as_object()
                .is_some_and(|map| map.values().all(Value::is_string)),
            Any => value.is_object(),
        };
        fits.then_some(value)
    }
}

fn texts(value: Value) -> Option<Value> {
    let text = |value: Value| match value {
        Value::String(text) => Some(Value::String(text)),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    };
    match value {
        Value::Array(items) => items.into_iter().map(text).collect(),
        // Meant as JSON, and broken.
        Value::String(text) if is_json(&text) => None,
        single => text(single).map(|text| json!([text])),
    }
}

/// Whether a text for a list is meant as JSON: no path, id or key begins like this.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['[', '{', '"'])
}

impl Setting {
    /// The parts of the path, with `]` for each entry of a list: `model_list`, `]`, `model`.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.path.split(['.', '['])
    }

    /// `BANTAM_` and the path in capitals; `None` inside lists and maps.
    pub(crate) fn env_name(&self) -> Option<String> {
        let is_fixed = !self.path.contains(['[', '*']);
        is_fixed.then(|| {
            format!(
                "BANTAM_{}",
                self.path.replace('.', "_").to_ascii_uppercase()
            )
        })
    }

    /// Whether this is the variable of the setting.
    pub(super) fn is_variable(&self, name: &str) -> bool {
        let Some(name) = name.strip_prefix("BANTAM_") else {
            return false;
        };
        let letters = self.path.bytes().map(|b| match b {
            b'.' => b'_',
            b => b.to_ascii_uppercase(),
        });
        letters.eq(name.bytes()) && !self.path.contains(['[', '*'])
    }

    pub(crate) fn default(&self) -> Value {
        self.kind.default()
    }

    pub(crate) fn is_secret(&self) -> bool {
        matches!(self.kind, Secret | Secrets | Map | Any)
    }

    /// See [`Type::check`].
    pub(crate) fn check(&self, value: &Value) -> Option<Value> {
        self.kind.check(value.clone())
    }

    /// What [`Setting::check`] accepts.
    pub(crate) fn expected(&self) -> String {
        match self.kind {
            Text | TextOr(_) | Secret => "text in quotes".to_owned(),
            Bool(_) | Switch => "true or false".to_owned(),
            Whole(least, _) => format!("a whole number of at least {least}"),
            Number(least, _) => format!("a number of at least {least}"),
            Optional => "a number of at least 0, or null".to_owned(),
            OneOf(_, words) => format!("one of: {}", words.join(", ")),
            Texts | Secrets => "a list of texts: [\"a\", \"b\"]".to_owned(),
            Map => "names and texts: {\"a\": \"b\"}".to_owned(),
            Any => "an object in braces".to_owned(),
        }
    }

    /// The JSON that a variable's text means: text needs no quotes, and a list may be given with commas.
    pub(crate) fn parse(&self, text: &str) -> Value {
        match self.kind {
            Text | TextOr(_) | Secret | OneOf(..) => text.into(),
            Texts | Secrets if !is_json(text) => text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty())
                .collect(),
            _ => parse_json(text).unwrap_or_else(|_| text.into()),
        }
    }
}
