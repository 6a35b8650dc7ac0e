//! The part of a conversation that is sent.

use serde_json::json;

use super::{called, case, done, think, whole};
use crate::harness::{CANARY, Home, merged};
use crate::model::{Model, Reply, Request};

fn roles(request: &Request) -> Vec<String> {
    request
        .messages()
        .iter()
        .map(|message| message["role"].as_str().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn each_call_is_followed_by_its_results_and_nothing_in_between() {
    let seen = case(
        46,
        "two calls of a reply",
        [
            whole(&json!({ "tool_calls": [think("a"), think("b")] })),
            done(),
        ],
    )
    .answers("Done.")
    .run();
    assert_eq!(
        roles(&seen.requests[1]),
        ["system", "user", "assistant", "tool", "tool"]
    );
    // Compaction::a_limit_on_messages_begins_with_the_users: the first message is a user's, and no turn is
    // cut in two.
    let model = Model::scripted([Reply::error(500, "out of order"), done()]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "agents": { "defaults": { "max_retries": 0 } } }),
    ));
    home.agent(["-m", "one"]).exits(5);
    home.agent(["-m", "two"]).exits(0);
    // Roles take turns though a question had no answer, and the last is the user's.
    assert_eq!(
        roles(&model.request(1)),
        ["system", "user", "assistant", "user"]
    );
}

#[test]
fn reply_without_text_and_calls_is_not_sent() {
    let (model, home) = Home::of(Model::scripted([
        whole(&json!({ "content": "", "reasoning_content": "only thoughts" })),
        whole(&json!({ "content": "" })),
        done(),
    ]));
    home.agent(["-m", "one"]).exits(1).says("empty answer");
    home.agent(["-m", "two"]).exits(0);
    // A reply with neither text nor calls is not sent.
    let sent = model
        .request(2)
        .messages()
        .iter()
        .filter(|message| message["content"] == "" || message["content"].is_null())
        .count();
    assert_eq!(sent, 0);
}

#[test]
fn texts_are_plain_and_never_empty() {
    let seen = case(
        51,
        "content that came in parts goes back as text",
        [whole(&json!({ "content": [{ "type": "text", "text": "I look." }], "tool_calls": [think("a")] })), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(seen.requests[1].messages()[2]["content"], "I look.");
    let exec =
        json!({ "id": "a", "function": { "name": "exec", "arguments": "{\"command\":\"true\"}" } });
    let seen = case(52, "a result without text", [called(&exec), done()])
        .config(json!({ "tools": { "exec": { "sandbox": "off" } } }))
        .answers("Done.")
        .run();
    assert!(!seen.results()[0].is_empty());
}

#[test]
fn reasoning_returns_only_to_its_model() {
    let thoughtful = || {
        whole(
            &json!({ "content": null, "reasoning_content": "hm", "reasoning_details": [{ "text": "hm" }], "tool_calls": [think("a")] }),
        )
    };
    let seen = case(53, "reasoning of a turn with calls", [thoughtful(), done()])
        .answers("Done.")
        .run();
    let message = seen.requests[1].messages()[2].clone();
    assert_eq!(
        (
            &message["reasoning_content"],
            &message["reasoning_details"][0]["text"]
        ),
        (&json!("hm"), &json!("hm"))
    );
    // Another model gets none of it, and the first has it again.
    let model = Model::scripted([thoughtful(), done(), done(), done()]);
    let entry = |name: &str| json!({ "model_name": name, "model": format!("openai/{name}"), "api_base": model.base(), "api_key": CANARY });
    let home = Home::with(&merged(model.config(), &json!({ "model_list": null })));
    home.config(
        &json!({ "agents": { "defaults": { "model_name": "one" } }, "model_list": [entry("one"), entry("two")] })
            .to_string(),
    );
    home.agent(["-m", "hi"]).exits(0);
    home.agent(["--model", "two", "-m", "and you?"]).exits(0);
    home.agent(["--model", "one", "-m", "and now?"]).exits(0);
    let kept: Vec<bool> = (1..4)
        .map(|n| {
            model.request(n).messages()[2]
                .get("reasoning_content")
                .is_some()
        })
        .collect();
    assert_eq!(kept, [true, false, true]);
    assert!(
        model.request(2).messages()[2]
            .get("reasoning_details")
            .is_none()
    );
}
