//! Reads the body of an error, in all known formats.

use serde_json::Value;

use super::HostRefusal;
use crate::json::parse_json;
use crate::provider::values::{count, list, string};

/// Anthropic's error types and their status codes. An error inside a stream has only the type.
const STATUS_OF_TYPE: [(&str, u16); 8] = [
    ("invalid_request_error", 400),
    ("authentication_error", 401),
    ("billing_error", 402),
    ("permission_error", 403),
    ("not_found_error", 404),
    ("request_too_large", 413),
    ("rate_limit_error", 429),
    ("overloaded_error", 529),
];

impl HostRefusal {
    /// Adds the texts, the status and the parameter in a value of the body.
    pub(super) fn collect(&mut self, value: &Value) {
        match value {
            Value::String(text) => match parse_json(text) {
                // OpenRouter stores the host's answer in `metadata.raw`.
                Ok(inner @ Value::Object(_)) => self.collect(&inner),
                // A numeric code must not be mistaken for a number in a message.
                _ if text.trim().bytes().all(|b| b.is_ascii_digit()) => {}
                _ if self.texts.contains(text) => {}
                _ => self.texts.push(text.trim().to_owned()),
            },
            Value::Array(items) => items.iter().take(1).for_each(|item| self.collect(item)),
            Value::Object(_) => {
                let mut inner = ["error", "detail", "errors"]
                    .map(|name| &value[name])
                    .into_iter();
                if let Some(inner) = inner.find(|inner| !inner.is_null()) {
                    return self.collect(inner);
                }
                self.stated_status = self.stated_status.or_else(|| status_in(value));
                if let Some(param) = value["param"].as_str() {
                    param.clone_into(&mut self.param);
                }
                // A sample that breaks a schema is no answer.
                if value["code"] != "json_validate_failed" {
                    string(&value["failed_generation"]).clone_into(&mut self.sample);
                }
                for name in ["message", "msg", "type", "code", "param", "metadata", "raw"] {
                    self.collect(&value[name]);
                }
                // FastAPI's error location, and llama.cpp's window.
                let place = list(&value["loc"]).iter();
                let place: Vec<String> = place
                    .map(|part| part.to_string().replace('"', ""))
                    .collect();
                if !place.is_empty() {
                    let place = place.join(".");
                    self.param = place.trim_start_matches("body.").to_owned();
                    self.texts.push(place);
                }
                if let Some(window) = count(&value["n_ctx"]) {
                    self.texts.push(format!("n_ctx {window}"));
                }
                if self.texts.is_empty() && self.stated_status.is_none() {
                    self.texts.push(value.to_string());
                }
            }
            _ => {}
        }
    }
}

/// Returns the status of an error object, by number or by type.
fn status_in(error: &Value) -> Option<u16> {
    let numbers = [&error["code"], &error["status"]];
    let mut numbers = numbers.iter().filter_map(|number| count(number));
    let status = numbers.next().and_then(|n| u16::try_from(n).ok());
    let kind = string(&error["type"]);
    let mut types = STATUS_OF_TYPE.iter();
    let of_type = types.find(|(name, _)| *name == kind);
    status
        .filter(|status| (400..=599).contains(status))
        .or(of_type.map(|(_, status)| *status))
}
