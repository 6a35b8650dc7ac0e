//! A request is never repeated without a wait or a change, and each repeat is counted.

use std::time::Duration;

use serde_json::{Value, json};

use crate::bot::{ends, start};
use crate::botapi::Fault;
use crate::harness::Home;
use crate::model::{Model, Reply};

/// Ways of a host to ask for no wait at all.
const NO_WAIT: [(&str, &str); 4] = [
    ("Retry-After", "0"),
    ("Retry-After", "-1"),
    ("retry-after-ms", "0"),
    ("x-ratelimit-reset-tokens", "0ms"),
];

#[test]
fn rate_limit_without_wait_uses_counted_tries() {
    for (row, (name, value)) in NO_WAIT.into_iter().enumerate() {
        let limited =
            Model::answering(move |_, _| Reply::error(429, "slow down").header(name, value));
        let spoken = Model::answering(|_, _| Reply::error(429, "Please try again in 0ms"));
        let last = Model::scripted([Reply::text("Hello.")]);
        let keys = &["key-one", "key-two", "key-three"][..=row % 3];
        let entry = |name: &str, model: &Model, keys: &[&str]| json!({ "model_name": name, "model": format!("openai/{name}"), "api_base": model.base(), "api_keys": keys });
        let home = Home::with(&json!({
            "agents": { "defaults": {
                "model_name": "one", "model_fallbacks": ["two", "three"],
                "max_retries": 1, "retry_initial_delay": 0.01
            } },
            "model_list": [
                entry("one", &limited, keys), entry("two", &spoken, &["key"]), entry("three", &last, &["key"])
            ]
        }));
        let run = home.agent(["-v", "-m", "hi"]);
        run.answers("Hello.\n").says("asking openai/three");
        let asked = limited.asked();
        assert!(
            asked > keys.len() && asked <= 2 * keys.len(),
            "{name}: {asked}"
        );
        assert_eq!(spoken.asked(), 2);
        assert!(run.took >= Duration::from_secs(1), "{name}: {:?}", run.took);
        let told = run.stderr.matches("slow down").count();
        assert_eq!(told, asked, "{}", run.stderr);
    }
}

#[test]
fn telegram_limit_without_wait_is_delayed() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let (api, home) = crate::bot::home(&model);
    for method in ["getUpdates", "sendMessage", "sendMessage"] {
        api.fault(method, Fault::TooMany(0));
    }
    let gateway = start(&home);
    api.text(42, "hi");
    assert_eq!(api.wait_for_texts(42, 1), ["Hello."]);
    ends(gateway);
    for (method, count) in [("getUpdates", 2), ("sendMessage", 3)] {
        let asked = api.asked(method);
        assert!(asked.len() >= count, "{method}");
        for pair in asked.windows(2).take(count - 1) {
            let waited = pair[1].at - pair[0].at;
            assert!(waited >= Duration::from_millis(990), "{method}: {waited:?}");
        }
    }
}

/// Runs a turn that calls this tool once.
fn asked_by_tool(tool: &'static str, args: Value, settings: &Value) {
    let model = Model::answering(move |request, _| match request.texts("tool").pop() {
        None => Reply::call(tool, &args),
        Some(_) => Reply::text("Done."),
    });
    let home = Home::asking(&model, settings);
    home.agent(["-m", "call it"]).answers("Done.\n");
}

#[test]
fn a_limited_search_engine_and_mcp_server_are_not_asked_again() {
    let limited = || Reply::error(429, "slow down").header("Retry-After", "0");
    let engine = Model::answering(move |_, _| limited());
    let origin = engine.base().trim_end_matches("/v1").to_owned();
    let search = json!({ "provider": "searxng", "base_url": origin });
    let settings = json!({ "tools": { "web": { "search": search } } });
    asked_by_tool("web_search", json!({ "query": "x" }), &settings);
    assert_eq!(engine.asked(), 1);

    let server = Model::answering(move |request, _| {
        let result = match request.body["method"].as_str().unwrap_or_default() {
            "initialize" => json!({ "protocolVersion": "2025-11-25", "capabilities": {} }),
            "tools/list" => {
                json!({ "tools": [{ "name": "say", "inputSchema": { "type": "object" } }] })
            }
            "tools/call" => return limited(),
            _ => return Reply::json(202, &Value::Null),
        };
        let id = &request.body["id"];
        Reply::json(
            200,
            &json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        )
    });
    let settings = json!({ "mcpServers": { "far": { "url": server.base() } } });
    asked_by_tool("far__say", json!({}), &settings);
    let requests = server.requests();
    let calls = requests
        .iter()
        .filter(|request| request.body["method"] == "tools/call");
    assert_eq!(calls.count(), 1);
}
