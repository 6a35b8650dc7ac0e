//! A config.json that was written for another program answers as it did there, and stays as it is.

use std::fs;

use serde_json::{Value, json};

use crate::harness::Home;
use crate::model::{Model, Reply, Request};

/// Runs the fixture against a model that wants tools until it gets none, and returns what the model was asked first.
/// Each fixture allows three steps.
#[track_caller]
fn works_unchanged(name: &str) -> Request {
    let again = || Reply::call("list_dir", &json!({ "path": "." }));
    let model = Model::scripted([again(), again(), Reply::text("Done what I could.")]);
    let fixture = format!("{}/tests/it/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(fixture).unwrap().replace("MODEL_BASE", &model.base());
    let home = Home::empty();
    home.config(&text);
    // The fixtures keep their workspaces where those programs do, below the user's home.
    let user = home.path("").parent().unwrap().join("user");
    let run = home.bantam().env("HOME", &user).args(["agent", "-m", "hi"]).run();
    run.exits(6).prints("Done what I could.\n").says("limit of 3 steps").does_not_say("means nothing");
    assert!(model.request(2).tools().is_empty(), "the third step is the last");
    assert_eq!(fs::read_to_string(home.path("config.json")).unwrap(), text, "the file is the user's");
    let workspaces: Vec<_> = fs::read_dir(&user).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(workspaces.len(), 1, "the workspace is where the file says: {workspaces:?}");
    model.request(0)
}

#[track_caller]
fn has(request: &Request, model: &str, key: &str, max_tokens: u64, temperature: f64) {
    assert_eq!(request.body["model"], model);
    assert_eq!(request.header("authorization"), Some(format!("Bearer {key}").as_str()));
    assert_eq!(request.body["max_tokens"], max_tokens);
    assert_eq!(request.body["temperature"], temperature);
}

#[test]
fn picoclaw_0_works_unchanged() {
    let request = works_unchanged("picoclaw-v0");
    has(&request, "arcee-ai/trinity-large-preview:free", "sk-or-v1-0000-fake-picoclaw", 4096, 0.7);
}

#[test]
fn picoclaw_3_works_unchanged() {
    let request = works_unchanged("picoclaw-v3");
    has(&request, "glm-4.7", "zhipu-fake-picoclaw-3", 32768, 0.7);
    assert_eq!(request.header("x-team"), Some("home"));
    assert_eq!(request.body["do_sample"], true);
}

#[test]
fn nanobot_works_unchanged() {
    let request = works_unchanged("nanobot");
    has(&request, "anthropic/claude-opus-4-5", "sk-or-v1-0000-fake-nanobot", 4096, 0.1);
    assert_eq!(request.header("x-title"), Some("nanobot"));
}

#[test]
fn smartbot_works_unchanged() {
    let request = works_unchanged("smartbot");
    has(&request, "deepseek-chat", "sk-fake-0000-smartbot", 4096, 0.7);
}

#[test]
fn a_providers_key_serves_every_model_of_it() {
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let home = Home::with(&json!({ "providers": { "groq": { "apiKey": "gsk-fake", "apiBase": model.base() } } }));
    home.agent(["-m", "hi"]).exits(0).prints("One.\n").is_quiet();
    home.agent(["--model", "groq/qwen/qwen3-32b", "-m", "hi"]).exits(0).prints("Two.\n").is_quiet();
    assert_eq!(model.request(0).body["model"], "openai/gpt-oss-20b");
    assert_eq!(model.request(1).body["model"], "qwen/qwen3-32b");
    assert_eq!(model.request(1).header("authorization"), Some("Bearer gsk-fake"));
}

#[test]
fn a_wrong_value_is_told_by_the_place_it_has_in_the_file() {
    let home = Home::empty();
    home.config("{\n  \"maxToolIterations\": \"many\"\n}\n");
    home.agent(["-m", "hi"]).exits(3).fails_with_a_hint().says("line 2, column 24: \"maxToolIterations\" is \"many\"");
    home.config("{\n  \"providers\": {\n    \"groq\": { \"apiBase\": 7 }\n  }\n}\n");
    home.agent(["-m", "hi"]).exits(3).says("line 3, column 26: \"providers.groq.apiBase\" is 7");
    // A key is not shown wherever it stood.
    home.config(r#"{"tools":{"web":{"brave":{"enabled":true,"api_keys":[[4242]]}}}}"#);
    home.agent(["-m", "hi"]).exits(3).says("brave").does_not_say("4242");
}

#[test]
fn a_typing_mistake_in_a_foreign_file_is_still_named() {
    let model = Model::scripted([Reply::text("One.")]);
    let home = Home::with(&json!({
        "providers": { "openrouter": { "apiKey": "sk-or-fake", "apiBase": model.base() } },
        "agents": { "defaults": { "model": "a/b", "maxTokns": 5 } },
        "gateway": { "hots": "127.0.0.1" }
    }));
    let run = home.agent(["-m", "hi"]);
    run.exits(0).says("\"agents.defaults.maxTokns\" means nothing here; did you mean \"max_tokens\"?");
    run.says("\"gateway.hots\" means nothing here");
}

#[test]
fn a_file_of_a_newer_version_is_read_with_a_word_about_it() {
    let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
    let config = |version: u64, extra: Value| {
        crate::harness::merged(model.config(), &crate::harness::merged(json!({ "version": version }), &extra))
    };
    let home = Home::with(&config(3, json!({})));
    home.agent(["-m", "hi"]).exits(0).is_quiet();
    home.config(&config(4, json!({})).to_string());
    home.agent(["-m", "hi"]).exits(0).says("version is 4").does_not_say("\"version\" means nothing");
    home.config(&config(4, json!({ "tools": { "exec": { "sandbox": "vm" } } })).to_string());
    home.agent(["-m", "hi"]).exits(3).says("auto, require, off").says("newer bantam: update this one");
}
