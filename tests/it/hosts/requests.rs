//! The contents of a request, and hosts that refuse a part of it.

use serde_json::json;

use super::{called, case, done, think};
use crate::harness::{CANARY, Home, merged};
use crate::model::{Model, Reply};

fn refused(message: &str) -> Reply {
    Reply::error(400, message)
}

#[test]
fn the_least_is_sent() {
    let seen = case(38, "no tools, and no word about them", [done()])
        .args(&["--no-tools"])
        .run();
    let body = seen.requests[0].body.as_object().unwrap().clone();
    let names: Vec<&str> = body.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "max_tokens",
            "messages",
            "model",
            "stream",
            "stream_options"
        ]
    );
    let seen = case(41, "schemas and names that every host takes", [done()]).run();
    for tool in seen.requests[0].body["tools"].as_array().unwrap() {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap();
        assert!(
            (1..=64).contains(&name.len())
                && name
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)),
            "{name}"
        );
        let schema = function["parameters"].as_object().unwrap();
        assert!(
            schema["type"] == "object" && schema["properties"].is_object(),
            "{name}"
        );
        let words = ["oneOf", "anyOf", "allOf", "enum"];
        assert!(
            words.iter().all(|word| !schema.contains_key(*word)),
            "{name}"
        );
        let text = function["parameters"].to_string();
        assert!(
            ["\"$ref\"", "\"const\"", "\"type\":["]
                .iter()
                .all(|word| !text.contains(word)),
            "{name}: {text}"
        );
    }
}

#[test]
fn refused_system_role_moves_to_user_message() {
    let host = [refused("System role not supported"), done()];
    let seen = case(40, "no system role", host).answers("Done.").run();
    let (before, after) = (&seen.requests[0], &seen.requests[1]);
    assert_eq!(after.messages().len(), 1);
    let sent = after.last("user");
    assert!(sent.contains(before.last("system").trim()) && sent.contains("hi"));
    let told = seen.home.run(["status"]).stdout;
    assert!(told.contains("does not support the system role"), "{told}");
}

#[test]
fn names_and_addresses_are_sent_as_they_are_written() {
    for (written, sent) in [
        ("openai/test-model", "test-model"),
        ("openrouter/meta/llama:free", "meta/llama:free"),
        ("lmstudio/qwen/qwen3", "qwen/qwen3"),
        ("acme/x/y", "acme/x/y"),
    ] {
        let seen = case(
            42,
            "a prefix is taken off only if it is a vendor's",
            [done()],
        )
        .entry(json!({ "model": written }))
        .run();
        assert_eq!(seen.requests[0].body["model"], *sent);
    }
    for (path, asked) in [
        ("", "/v1/chat/completions"),
        ("/", "/v1/chat/completions"),
        ("/v1", "/v1/chat/completions"),
        ("/api/paas/v4/", "/api/paas/v4/chat/completions"),
        ("/v1/chat/completions", "/v1/chat/completions"),
    ] {
        // Addresses are completed once.
        let model = Model::scripted([done()]);
        let base = model.base().replace("/v1", path);
        Home::with(&merged(
            model.config(),
            &json!({ "model_list": [ { "api_base": base } ] }),
        ))
        .agent(["-m", "hi"])
        .exits(0);
        assert_eq!(model.request(0).path, asked);
    }
    let seen = case(44, "no key for a server of one's own", [done()])
        .entry(json!({ "api_key": "" }))
        .run();
    assert_eq!(seen.requests[0].header("authorization"), None);
    let seen = case(
        44,
        "x-api-key for Anthropic, and what the user sets",
        [Reply::json(
            200,
            &json!({ "content": [{ "type": "text", "text": "Hi." }], "stop_reason": "end_turn" }),
        )],
    )
    .entry(json!({ "model": "anthropic/claude", "headers": { "X-Team": "home" } }))
    .answers("Hi.")
    .run();
    assert_eq!(
        (
            seen.requests[0].header("x-api-key"),
            seen.requests[0].header("x-team")
        ),
        (Some(CANARY), Some("home"))
    );
}

#[test]
fn characters_that_hosts_refuse_are_not_sent() {
    let model = Model::scripted([
        called(
            &json!({ "id": "a", "function": { "name": "read_file", "arguments": "{\"path\":\"odd.txt\"}" } }),
        ),
        done(),
    ]);
    // NUL and halves of characters in a result.
    let home = Home::with(&model.config());
    home.write("workspace/odd.txt", b"a\xed\xa0\x80b\xffc\n");
    home.agent(["-m", "hi"]).exits(0);
    let result = model.request(1).last("tool");
    assert!(result.contains('a') && !result.contains('\0'), "{result:?}");
}

#[test]
fn call_ids_are_shortened_for_another_model() {
    let long = "x".repeat(64);
    // An id longer than another model takes.
    let model = Model::scripted([called(&think(&long)), done(), done()]);
    let mut config = model.config();
    let mut other = config["model_list"][0].clone();
    (other["model_name"], other["model"]) = ("other".into(), "openai/other-model".into());
    config["model_list"].as_array_mut().unwrap().push(other);
    let home = Home::with(&config);
    home.agent(["-m", "hi"]).exits(0);
    home.agent(["--model", "other", "-m", "again"]).exits(0);
    let id = |n: usize| {
        let messages = model.request(n).body["messages"].clone();
        let ids = messages.as_array().unwrap().iter();
        let mut ids = ids.filter_map(|message| message["tool_call_id"].as_str().map(str::to_owned));
        ids.next_back().unwrap()
    };
    assert_eq!((id(1), id(2).len()), (long, 9));
}
