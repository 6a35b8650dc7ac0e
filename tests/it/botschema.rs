//! Checks requests to the Bot API against its official schema, from the Python package `aiogram`: `tests/botschema.py` writes
//! the part of it in `tests/corpus/botapi.json`.

use serde_json::{Map, Value, json};

use crate::botapi::{Asked, BotApi};

/// Returns one line for each mismatch.
fn complaints(requests: &[Value]) -> Vec<String> {
    let schema: Value = serde_json::from_str(include_str!("../corpus/botapi.json")).unwrap();
    let mut found = Vec::new();
    for (number, request) in requests.iter().enumerate() {
        let method = request["method"].as_str().unwrap();
        let mut checked = Checked {
            objects: &schema["objects"],
            typed: request["typed"] == true,
            found: Vec::new(),
        };
        match schema["methods"][method].as_object() {
            None => checked.found.push("no such method".to_owned()),
            Some(fields) => checked.fields(fields, &request["params"], "", "parameter"),
        }
        let lines = checked.found.into_iter();
        found.extend(lines.map(|line| format!("{number} {method}: {line}")));
    }
    found
}

struct Checked<'a> {
    objects: &'a Value,
    /// Whether types of values are checked. Forms contain text, so numbers may be written as text.
    typed: bool,
    found: Vec<String>,
}

impl Checked<'_> {
    fn fields(&mut self, fields: &Map<String, Value>, values: &Value, path: &str, what: &str) {
        let values = values.as_object().unwrap();
        for (name, value) in values {
            match fields.get(name) {
                None => self.found.push(format!("{path}{name}: no such {what}")),
                Some(field) => {
                    let kinds = field["types"].as_array().unwrap();
                    self.value(kinds, value, &format!("{path}{name}"));
                }
            }
        }
        for (name, field) in fields {
            if field["required"] == true && !values.contains_key(name) {
                self.found
                    .push(format!("{path}{name}: required and missing"));
            }
        }
    }

    fn value(&mut self, kinds: &[Value], value: &Value, path: &str) {
        let text = value.as_str().unwrap_or_default();
        if text.starts_with("attach://") {
            if !kinds.contains(&json!("file")) {
                self.found.push(format!("{path}: a file where none may be"));
            }
            return;
        }
        // Objects and lists are JSON in a form.
        let written = if !self.typed && text.starts_with(['[', '{']) {
            serde_json::from_str(text).ok()
        } else {
            None
        };
        let value = written.as_ref().unwrap_or(value);
        if kinds.is_empty() || kinds.iter().any(|kind| self.is_plain(kind, value)) {
            return;
        }
        // If several types are allowed, the one with the fewest mismatches is meant.
        let tried = kinds
            .iter()
            .filter_map(|kind| self.nested(kind, value, path));
        let fewest = tried.min_by_key(Vec::len);
        self.found.extend(
            fewest.unwrap_or_else(|| vec![format!("{path}: {value} is none of {kinds:?}")]),
        );
    }

    fn is_plain(&self, kind: &Value, value: &Value) -> bool {
        let written = value.as_str().filter(|_| !self.typed);
        match kind.as_str().unwrap_or_default() {
            "string" => value.is_string(),
            "integer" => value.is_i64() || written.is_some_and(|text| text.parse::<i64>().is_ok()),
            "number" => {
                value.is_number() || written.is_some_and(|text| text.parse::<f64>().is_ok())
            }
            "boolean" => value.is_boolean() || matches!(written, Some("true" | "false")),
            _ => false,
        }
    }

    /// Returns the mismatches in an object or a list; `None` for another value.
    fn nested(&self, kind: &Value, value: &Value, path: &str) -> Option<Vec<String>> {
        let mut inner = Checked {
            objects: self.objects,
            typed: self.typed,
            found: Vec::new(),
        };
        match kind {
            Value::Array(kinds) => {
                for (n, item) in value.as_array()?.iter().enumerate() {
                    inner.value(kinds, item, &format!("{path}.{n}"));
                }
            }
            kind => {
                let fields = self.objects[kind.as_str()?].as_object()?;
                value.as_object()?;
                inner.fields(fields, value, &format!("{path}."), "field");
            }
        }
        Some(inner.found)
    }
}

/// Fails unless Telegram supports every request that this server received.
#[track_caller]
pub fn check(api: &BotApi) {
    let request = |asked: Asked| json!({ "method": asked.method, "params": asked.params, "typed": asked.typed });
    let requests: Vec<Value> = api.asked("").into_iter().map(request).collect();
    assert!(!requests.is_empty(), "nothing was asked");
    let complaints = complaints(&requests);
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn request(method: &str, params: &Value, typed: bool) -> Value {
    json!({ "method": method, "params": params, "typed": typed })
}

#[test]
fn schema_check_finds_unknown_telegram_fields() {
    let text = "x".to_owned();
    let good = [
        request("getMe", &Map::new().into(), true),
        request(
            "getUpdates",
            &json!({ "offset": 1, "limit": 100, "timeout": 50, "allowed_updates": ["message"] }),
            true,
        ),
        request(
            "sendMessage",
            &json!({
                "chat_id": 1, "text": text, "parse_mode": "HTML", "message_thread_id": 2,
                "reply_parameters": { "message_id": 3, "allow_sending_without_reply": true },
                "link_preview_options": { "is_disabled": true }
            }),
            true,
        ),
        request(
            "sendMessageDraft",
            &json!({ "chat_id": 1, "draft_id": 2, "text": text }),
            true,
        ),
        request(
            "setMyCommands",
            &json!({ "commands": [{ "command": "new", "description": text }] }),
            true,
        ),
        request(
            "sendChatAction",
            &json!({ "chat_id": "1", "action": "typing" }),
            false,
        ),
        request(
            "sendDocument",
            &json!({ "chat_id": "1", "document": "attach://a.txt", "caption": text }),
            false,
        ),
    ];
    assert_eq!(complaints(&good), [""; 0]);
    let bad = [
        (
            request("sendMesage", &json!({ "chat_id": 1, "text": text }), true),
            "sendMesage: no such method",
        ),
        (
            request("sendMessage", &json!({ "chat_id": 1 }), true),
            "text: required and missing",
        ),
        (
            request(
                "sendMessage",
                &json!({ "chat_id": 1, "text": text, "html": true }),
                true,
            ),
            "html: no such parameter",
        ),
        (
            request("sendMessage", &json!({ "chat_id": 1, "text": 5 }), true),
            "text: ",
        ),
        (
            request("getUpdates", &json!({ "timeout": "50" }), true),
            "timeout: ",
        ),
        (
            request("getUpdates", &json!({ "timeout": "soon" }), false),
            "timeout: ",
        ),
        (
            request("getUpdates", &json!({ "allowed_updates": "message" }), true),
            "allowed_updates: ",
        ),
        (
            request(
                "sendMessage",
                &json!({ "chat_id": 1, "text": text, "reply_parameters": { "message": 3 } }),
                true,
            ),
            "reply_parameters.message",
        ),
        (
            request(
                "sendMessage",
                &json!({ "chat_id": 1, "text": text, "link_preview_options": { "disabled": true } }),
                true,
            ),
            "link_preview_options.disabled: no such field",
        ),
        (
            request(
                "sendMessage",
                &json!({ "chat_id": "1", "text": "attach://a" }),
                false,
            ),
            "a file where none may be",
        ),
    ];
    let requests: Vec<Value> = bad.iter().map(|(request, _)| request.clone()).collect();
    let complaints = complaints(&requests);
    for (number, (request, complaint)) in bad.iter().enumerate() {
        let seen =
            |line: &String| line.starts_with(&format!("{number} ")) && line.contains(complaint);
        assert!(
            complaints.iter().any(seen),
            "{request} passed: {complaints:#?}"
        );
    }
}
