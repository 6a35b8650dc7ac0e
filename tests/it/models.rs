//! `bantam models`: what the configured hosts offer, and what is learned from that.

use serde_json::{Value, json};

use crate::harness::{Home, merged};
use crate::model::{Model, Reply};

/// A host with a list of models, which answers questions, too.
fn host(list: Value) -> Model {
    Model::answering(
        move |request, _| match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/v1/models") => Reply::json(200, &list),
            ("GET", _) => Reply::error(404, "no such page"),
            _ => Reply::text("Hello.").counted(request.body.to_string().len() as u64 / 4, 2),
        },
    )
}

#[test]
fn models_are_listed_with_what_their_host_tells_and_the_window_is_kept() {
    let model = host(json!({ "data": [
        { "id": "test-model", "context_length": 8192, "supported_parameters": ["tools"], "architecture": { "input_modalities": ["text"] } },
        { "id": "another" },
    ] }));
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"])
        .exits(0)
        .prints("Hello.\n")
        .is_quiet();
    assert_eq!(model.asked(), 1, "a question asks for nothing else");
    let run = home.bantam().arg("models").run();
    run.exits(0).is_quiet();
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(
        lines[0].ends_with(": 2 models") && lines[2].starts_with("openai/another"),
        "{}",
        run.stdout
    );
    assert_eq!(
        lines[1].split_whitespace().collect::<Vec<_>>().join(" "),
        "model window in tokens tools images"
    );
    assert_eq!(
        lines[3].split_whitespace().collect::<Vec<_>>(),
        ["openai/test-model", "8192", "yes", "no"]
    );
    assert!(model.request(1).header("authorization").is_some());
    let told = home.bantam().arg("status").run().stdout;
    assert!(
        told.contains(": reads 8192 tokens at once (since 20"),
        "{told}"
    );

    // By the name of an entry, for programs.
    let object = home
        .bantam()
        .args(["models", "test", "--json"])
        .run()
        .json();
    assert_eq!(
        object["models"][1],
        json!({ "model": "openai/test-model", "window": 8192, "tools": true, "images": false })
    );
    assert_eq!(object["models"][0]["window"], Value::Null);

    // And a conversation is kept below it.
    for n in 0..4 {
        home.agent(["-m", &format!("question {n}: {}", "long ".repeat(1200))])
            .exits(0);
    }
    assert!(
        home.path("sessions/cli_default.1.jsonl").exists(),
        "nothing was compacted"
    );
}

#[test]
fn local_servers_are_asked_for_their_windows_in_their_own_ways() {
    let llama = Model::answering(|request, _| match request.path.as_str() {
        "/v1/models" => Reply::json(200, &json!({ "data": [ { "id": "local" } ] })),
        "/props" => Reply::json(
            200,
            &json!({ "default_generation_settings": { "n_ctx": 4096 } }),
        ),
        _ => Reply::error(404, "no such page"),
    });
    let ollama = Model::answering(|request, _| match request.path.as_str() {
        "/v1/models" => Reply::json(200, &json!({ "data": [ { "id": "local" } ] })),
        "/api/ps" => Reply::json(200, &json!({ "models": [] })),
        _ => Reply::json(
            200,
            &json!({ "parameters": "num_ctx 4096", "capabilities": ["tools", "vision"] }),
        ),
    });
    let studio = Model::answering(|request, _| match request.path.as_str() {
        "/api/v0/models" => Reply::json(
            200,
            &json!({ "data": [ { "id": "local", "type": "vlm", "max_context_length": 9000, "loaded_context_length": 4096 } ] }),
        ),
        _ => Reply::error(404, "no such page"),
    });
    for (model, name, more) in [
        (llama, "acme/local", ["?", "?"]),
        (ollama, "ollama/local", ["yes", "yes"]),
        (studio, "lmstudio/local", ["?", "yes"]),
    ] {
        let extra = json!({ "model_list": [ { "model": name, "api_key": "" } ] });
        let home = Home::with(&merged(model.config(), &extra));
        let run = home.bantam().arg("models").run();
        run.exits(0);
        let line: Vec<&str> = run
            .stdout
            .lines()
            .nth(2)
            .unwrap()
            .split_whitespace()
            .skip(1)
            .collect();
        assert_eq!(line, ["4096", more[0], more[1]], "{name}: {}", run.stdout);
    }
}

#[test]
fn a_host_that_refuses_or_is_unknown_is_told() {
    let model = Model::answering(|_, _| Reply::error(401, "no such key"));
    let home = Home::with(&model.config());
    home.bantam()
        .arg("models")
        .run()
        .exits(4)
        .says("no such key");
    home.bantam()
        .args(["models", "nowhere"])
        .run()
        .exits(3)
        .fails_with_a_hint()
        .says("nowhere");
    let page = Model::answering(|_, _| Reply::html(200, "<html><body>It works!"));
    Home::with(&page.config())
        .bantam()
        .arg("models")
        .run()
        .exits(1)
        .says("api_base");
    Home::empty()
        .bantam()
        .arg("models")
        .run()
        .exits(3)
        .fails_with_a_hint();
}

#[test]
fn a_vendor_that_does_not_answer_is_named_as_it_was_asked_for() {
    let home = Home::with(
        &json!({ "model_list": [ { "model": "ollama/*", "api_base": "http://127.0.0.1:9/v1" } ] }),
    );
    home.bantam()
        .args(["models", "ollama"])
        .run()
        .exits(5)
        .says("asking ollama: ")
        .does_not_say("/-");
}
