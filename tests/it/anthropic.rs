//! Anthropic's Messages API, with a scripted server.

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, has_all, has_fields, merged};
use crate::model::{Model, Reply};

/// Returns a configuration that names this model `test` and uses Anthropic's API.
fn config(model: &Model) -> Value {
    merged(
        model.config(),
        &json!({ "model_list": [ { "model": "anthropic/claude-test" } ] }),
    )
}

/// Returns an event as the server sends it, under its name.
fn event(data: &Value) -> String {
    format!(
        "event: {}\ndata: {data}\n\n",
        data["type"].as_str().unwrap()
    )
}

fn start(index: u64, block: &Value) -> Value {
    json!({ "type": "content_block_start", "index": index, "content_block": block })
}

fn delta(index: u64, delta: &Value) -> Value {
    json!({ "type": "content_block_delta", "index": index, "delta": delta })
}

fn text(index: u64, piece: &str) -> Value {
    delta(index, &json!({ "type": "text_delta", "text": piece }))
}

fn began() -> Value {
    let usage = json!({
        "input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 3, "output_tokens": 1
    });
    json!({ "type": "message_start", "message": { "role": "assistant", "content": [], "usage": usage } })
}

fn ended(reason: &str) -> [Value; 2] {
    let delta = json!({ "stop_reason": reason, "stop_sequence": null });
    [
        json!({ "type": "message_delta", "delta": delta, "usage": { "output_tokens": 9 } }),
        json!({ "type": "message_stop" }),
    ]
}

fn streamed(events: &[Value]) -> Reply {
    Reply::stream(events.iter().map(event))
}

fn said(pieces: &[&str]) -> Reply {
    let mut events = vec![
        began(),
        json!({ "type": "ping" }),
        start(0, &json!({ "type": "text", "text": "" })),
    ];
    events.extend(pieces.iter().map(|piece| text(0, piece)));
    events.push(json!({ "type": "content_block_stop", "index": 0 }));
    events.extend(ended("end_turn"));
    streamed(&events)
}

#[test]
fn a_question_is_asked_and_answered_in_its_dialect() {
    let model = Model::scripted([said(&["Hel", "lo."])]);
    let home = Home::with(&config(&model));
    let run = home.agent(["--json", "-m", "hi"]);
    run.exits(0).is_quiet();
    let answer = run.json();
    has_fields(
        &answer,
        &json!({ "output": "Hello.", "model": "anthropic/claude-test" }),
    );
    assert_eq!(
        answer["usage"],
        json!({ "prompt_tokens": 28, "completion_tokens": 9, "total_tokens": 37, "cached_tokens": 20 })
    );
    let request = model.request(0);
    assert_eq!(request.path, "/v1/messages");
    assert_eq!(request.header("x-api-key"), Some(CANARY));
    assert_eq!(request.header("authorization"), None);
    assert_eq!(request.header("anthropic-version"), Some("2023-06-01"));
    assert_eq!(request.body["model"], "claude-test");
    assert_eq!(request.body["stream"], true);
    assert_eq!(request.body["max_tokens"], 8192);
    assert!(
        request.body["tools"][0]["input_schema"].is_object(),
        "{}",
        request.body["tools"]
    );
}

#[test]
fn effort_maps_to_budget_or_effort() {
    let effort = |model: &Model, effort: &str| {
        let entry = json!({ "model_list": [ { "reasoning_effort": effort, "temperature": 0.5 } ] });
        Home::with(&merged(config(model), &entry))
    };
    for (word, budget) in [("low", 1024), ("medium", 2048), ("high", 4096)] {
        let model = Model::scripted([said(&["Hello."])]);
        effort(&model, word).agent(["-m", "hi"]).exits(0);
        let body = model.request(0).body;
        assert_eq!(
            body["thinking"],
            json!({ "type": "enabled", "budget_tokens": budget })
        );
        assert!(
            body.get("temperature").is_none(),
            "the API refuses one beside thinking"
        );
    }
    let model = Model::scripted([said(&["Hello."])]);
    effort(&model, "none").agent(["-m", "hi"]).exits(0);
    assert!(model.request(0).body.get("thinking").is_none());
    let says = "\"thinking.type.enabled\" is not supported for this model. Use \"thinking.type.adaptive\" and \"output_config.effort\".";
    let error =
        json!({ "type": "error", "error": { "type": "invalid_request_error", "message": says } });
    let replies = [
        Reply::json(400, &error),
        said(&["Hello."]),
        said(&["Zora."]),
    ];
    let model = Model::scripted(replies);
    let home = effort(&model, "high");
    home.agent(["-m", "my name is Zora"]).answers("Hello.\n");
    // The next run is not refused.
    home.agent(["-m", "who am I?"]).answers("Zora.\n");
    for n in [1, 2] {
        let body = model.request(n).body;
        has_fields(
            &body,
            &json!({ "thinking": { "type": "adaptive" }, "output_config": { "effort": "high" } }),
        );
        assert!(body["messages"].to_string().contains("Zora"), "{body}");
    }
}

#[test]
fn stable_prompt_is_marked_for_the_cache() {
    let model = Model::scripted([said(&["One."]), said(&["Two."])]);
    let home = Home::with(&config(&model));
    home.write("memory/USER.md", "Likes tea.");
    home.agent(["-m", "hi"]).exits(0);
    home.write("memory/USER.md", "Likes coffee.");
    home.agent(["-m", "and again"]).exits(0);
    let [first, second] = [0, 1].map(|n| model.request(n).body);
    assert_eq!(
        first["system"][0], second["system"][0],
        "a write to USER.md changed what is cached"
    );
    assert_eq!(
        first["system"][0]["cache_control"],
        json!({ "type": "ephemeral" })
    );
    has_all(first["system"][1]["text"].as_str().unwrap(), ["tea"]);
    assert!(first["system"][1].get("cache_control").is_none());
    let messages = second["messages"].as_array().unwrap();
    let marked: Vec<usize> = (0..messages.len())
        .filter(|n| messages[*n].to_string().contains("cache_control"))
        .collect();
    assert_eq!(
        marked,
        [messages.len() - 1],
        "the end of the conversation and nothing else: {second}"
    );
}

#[test]
fn host_that_takes_no_cache_marks_is_asked_without_them() {
    let says = "system.0.cache_control: Extra inputs are not permitted";
    let error =
        json!({ "type": "error", "error": { "type": "invalid_request_error", "message": says } });
    let model = Model::scripted([Reply::json(400, &error), said(&["One."]), said(&["Two."])]);
    let home = Home::with(&config(&model));
    home.agent(["-m", "hi"]).answers("One.\n");
    home.agent(["-m", "and again"]).answers("Two.\n");
    for n in [1, 2] {
        assert!(!model.request(n).body.to_string().contains("cache_control"));
    }
}

#[test]
fn calls_results_and_thoughts_come_back_as_blocks() {
    let thought = [
        start(
            0,
            &json!({ "type": "thinking", "thinking": "", "signature": "" }),
        ),
        delta(
            0,
            &json!({ "type": "thinking_delta", "thinking": "Let me look." }),
        ),
        delta(
            0,
            &json!({ "type": "signature_delta", "signature": "signed" }),
        ),
    ];
    let call = |index: u64, id: &str, pieces: [&str; 2]| {
        let piece = |piece: &str| {
            delta(
                index,
                &json!({ "type": "input_json_delta", "partial_json": piece }),
            )
        };
        let block = json!({ "type": "tool_use", "id": id, "name": "list_dir", "input": {} });
        [start(index, &block), piece(pieces[0]), piece(pieces[1])]
    };
    let mut events = vec![began()];
    events.extend(thought);
    events.extend(call(1, "toolu_a", ["{\"pa", "th\":\".\"}"]));
    events.extend(call(2, "toolu_b", ["{\"path\":", "\"nowhere\"}"]));
    events.extend(ended("tool_use"));
    let model = Model::scripted([streamed(&events), said(&["Empty."])]);
    let home = Home::with(&config(&model));
    home.agent(["-m", "what is there?"]).answers("Empty.\n");
    home.session("cli_default").has_one_result_per_call();
    let messages = model.request(1).body["messages"].clone();
    let roles: Vec<&Value> = messages
        .as_array()
        .unwrap()
        .iter()
        .map(|message| &message["role"])
        .collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    let said = &messages[1]["content"];
    assert_eq!(
        said[0],
        json!({ "type": "thinking", "thinking": "Let me look.", "signature": "signed" })
    );
    assert_eq!(
        said[1],
        json!({ "type": "tool_use", "id": "toolu_a", "name": "list_dir", "input": { "path": "." } })
    );
    let results = &messages[2]["content"];
    has_fields(
        &results[0],
        &json!({ "type": "tool_result", "tool_use_id": "toolu_a" }),
    );
    has_fields(
        &results[1],
        &json!({ "tool_use_id": "toolu_b", "is_error": true }),
    );
}

#[test]
fn arguments_that_cannot_be_read_are_sent_as_an_empty_object() {
    let deep = format!("{{\"path\":{}{}}}", "[".repeat(200), "]".repeat(200));
    for arguments in [deep.as_str(), "{\"path\":1e999}"] {
        let block = json!({ "type": "tool_use", "id": "toolu_a", "name": "list_dir", "input": {} });
        let piece = json!({ "type": "input_json_delta", "partial_json": arguments });
        let mut events = vec![began(), start(0, &block), delta(0, &piece)];
        events.extend(ended("tool_use"));
        let model = Model::scripted([streamed(&events), said(&["Odd."])]);
        let home = Home::with(&config(&model));
        home.agent(["-m", "what is there?"]).answers("Odd.\n");
        let call = &model.request(1).body["messages"][1]["content"][0];
        assert_eq!(call["input"], json!({}));
    }
}

#[test]
fn last_step_declares_tools_but_forbids_calls() {
    let block =
        json!({ "type": "tool_use", "id": "t", "name": "list_dir", "input": { "path": "." } });
    let call =
        json!({ "type": "message", "content": [block], "stop_reason": "tool_use", "usage": {} });
    let model = Model::scripted([Reply::json(200, &call), said(&["Enough."])]);
    let home = Home::with(&config(&model));
    home.agent(["--max-steps", "2", "-m", "hi"])
        .exits(6)
        .prints("Enough.\n");
    let [first, last] = [0, 1].map(|n| model.request(n).body);
    assert_eq!(last["tool_choice"], json!({ "type": "none" }));
    assert_eq!(
        (&first["tools"], &first["system"]),
        (&last["tools"], &last["system"]),
        "what the host has cached stays the same"
    );
}
