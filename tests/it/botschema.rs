//! Requests to the Bot API against its official schema, as the Python package `aiogram` carries it.
//!
//! `tests/run` installs it under the target folder; `tests/botschema.py` does the comparing.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Map, Value, json};

use crate::botapi::{Asked, BotApi};

/// The version whose schema is meant: Bot API 10.3.
const VERSION: &str = "3.31.0";

/// What does not fit, one line for each.
fn complaints(requests: &Value) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let package = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .unwrap()
        .join("aiogram");
    let manifest = package.join(format!("aiogram-{VERSION}.dist-info"));
    assert!(
        manifest.exists(),
        "no aiogram {VERSION} below {0}; `tests/run` installs it, and so does\n    \
         python3 -m pip install --target {0} aiogram=={VERSION}",
        package.display()
    );
    let mut child = Command::new("python3")
        .arg(root.join("tests/botschema.py"))
        .env("PYTHONPATH", &package)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(requests.to_string().as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "tests/botschema.py failed, see above"
    );
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

/// Fails unless every request that this server got is one that Telegram knows.
#[track_caller]
pub fn check(api: &BotApi) {
    let request = |asked: Asked| json!({ "method": asked.method, "params": asked.params, "typed": asked.typed });
    let requests: Vec<Value> = api.asked("").into_iter().map(request).collect();
    assert!(!requests.is_empty(), "nothing was asked");
    let complaints = complaints(&requests.into());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

fn request(method: &str, params: &Value, typed: bool) -> Value {
    json!({ "method": method, "params": params, "typed": typed })
}

#[test]
fn what_telegram_knows_fits_and_what_it_does_not_is_seen() {
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
    assert_eq!(complaints(&good.to_vec().into()), [""; 0]);
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
    let complaints = complaints(&requests.into());
    for (number, (request, complaint)) in bad.iter().enumerate() {
        let seen =
            |line: &String| line.starts_with(&format!("{number} ")) && line.contains(complaint);
        assert!(
            complaints.iter().any(seen),
            "{request} passed: {complaints:#?}"
        );
    }
}
