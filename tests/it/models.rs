//! `bantam models`: models of the configured hosts, and facts learned from the lists.

use serde_json::{Value, json};

use crate::bot;
use crate::botapi::BotApi;
use crate::botschema;
use crate::harness::{CANARY, Home, has_all, merged};
use crate::model::{Model, Reply};

/// Returns a host with a list of models, which also answers questions.
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
fn model_list_shows_and_stores_windows() {
    let model = host(json!({ "data": [
        { "id": "test-model", "context_length": 8192, "supported_parameters": ["tools"], "architecture": { "input_modalities": ["text"] } },
        { "id": "another" },
    ] }));
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).answers("Hello.\n").is_quiet();
    assert_eq!(model.asked(), 1, "a question asks for nothing else");
    let run = home.run(["models"]);
    run.exits(0).is_quiet();
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[0].ends_with(": 2 models"), "{}", run.stdout);
    assert_eq!(lines[1], "openai/another");
    assert_eq!(lines[2], "openai/test-model  8192 tokens, tools");
    assert!(model.request(1).header("authorization").is_some());
    let told = home.run(["status"]).stdout;
    has_all(&told, [": context window 8192 tokens (since 20"]);

    // By the name of an entry, for programs.
    let object = home.run(["models", "test", "--json"]).json();
    assert_eq!(
        object["models"][1],
        json!({ "model": "openai/test-model", "window": 8192, "tools": true, "images": false })
    );
    assert_eq!(object["models"][0]["window"], Value::Null);

    // A conversation is also limited to the window.
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
fn a_host_that_refuses_or_is_unknown_is_told() {
    let (_model, home) = Home::of(Model::answering(|_, _| Reply::error(401, "no such key")));
    home.run(["models"]).exits(4).says("no such key");
    home.run(["models", "nowhere"]).fails(2).says("nowhere");
    let page = Model::answering(|_, _| Reply::html(200, "<html><body>It works!"));
    Home::with(&page.config())
        .run(["models"])
        .exits(1)
        .says("api_base");
    Home::empty().run(["models"]).fails(3);
}

#[test]
fn every_name_that_is_listed_is_taken() {
    let first = host(json!({ "data": [{ "id": "one" }, { "id": "Qwen/two" }] }));
    let second = host(json!({ "data": [{ "id": "three" }, { "id": "vendor/four" }] }));
    let entry = |model: &str, host: &Model| json!({ "model": model, "api_base": host.base(), "api_key": CANARY });
    let home = Home::with(&json!({ "model_list": [
        entry("gpu-box/*", &first),
        entry("openai/first", &first),
        entry("b/*", &second),
    ] }));
    let run = home.run(["models", "--json"]);
    let mut asked = Vec::new();
    for line in run.exits(0).stdout.lines() {
        let host: Value = serde_json::from_str(line).unwrap();
        for model in host["models"].as_array().unwrap() {
            let name = model["model"].as_str().unwrap();
            home.agent(["--model", name, "-m", "hi"]).exits(0);
            asked.push(name.to_owned());
        }
    }
    assert_eq!(asked.len(), 4, "{asked:?}");
    let models = |host: &Model| -> Vec<Value> {
        let questions = host
            .requests()
            .into_iter()
            .filter(|request| request.method == "POST");
        questions
            .map(|request| request.body["model"].clone())
            .collect()
    };
    assert_eq!(models(&first), ["Qwen/two", "one"]);
    assert_eq!(models(&second), ["three", "vendor/four"]);
}

/// Returns a home with two hosts of several models, of which both have `shared`.
fn home_of_two_hosts(local: &Model, far: &Model) -> Home {
    Home::with(&json!({
        "agents": { "defaults": { "model_name": "local/mine" } },
        "model_list": [
            { "model": "local/*", "api_base": local.base() },
            { "model": "far/*", "api_base": far.base(), "api_key": CANARY },
        ],
    }))
}

#[test]
fn bare_name_is_the_only_model_of_this_name() {
    let local = host(json!({ "data": [{ "id": "qwen3-30b" }, { "id": "shared" }] }));
    let far = host(json!({ "data": [{ "id": "meta/llama" }, { "id": "shared" }] }));
    let home = home_of_two_hosts(&local, &far);
    home.agent(["--model", "qwen3-30b", "-m", "hi"]).exits(0);
    home.agent(["--model", "meta/llama", "-m", "hi"]).exits(0);
    let asked = |host: &Model| {
        let mut requests = host.requests();
        requests.retain(|request| request.method == "POST");
        requests[0].body["model"].clone()
    };
    assert_eq!(
        (asked(&local), asked(&far)),
        (json!("qwen3-30b"), json!("meta/llama"))
    );

    let add = ["cron", "add", "-e", "1h", "--model", "qwen3-30b", "x"];
    home.run(add).exits(0);
    let jobs = home.read("cron/jobs.json");
    assert!(jobs.contains("\"local/qwen3-30b\""), "{jobs}");
    let setting = "agents.defaults.model_name";
    let set = ["config", "set", setting, "qwen3-30b"];
    home.run(set).exits(0);
    let get = ["config", "get", setting];
    home.run(get).prints("local/qwen3-30b\n");
}

#[test]
fn unknown_model_is_wrong_usage_wherever_it_is_typed() {
    let local = host(json!({ "data": [{ "id": "qwen3-30b" }, { "id": "shared" }] }));
    let far = host(json!({ "data": [{ "id": "shared" }] }));
    let home = home_of_two_hosts(&local, &far);
    for (typed, near) in [
        ("qwen3-30", "local/qwen3-30b"),
        ("shared", "`local/shared`"),
        ("lokal/shared", "local/shared"),
    ] {
        for args in [
            &["agent", "-m", "hi", "--model", typed][..],
            &["cron", "add", "-e", "1h", "x", "--model", typed],
            &["config", "set", "agents.defaults.model_name", typed],
        ] {
            let run = home.run(args);
            run.exits(2).says("no model named").says(near);
        }
    }
}

#[test]
fn without_a_configuration_the_models_of_ollama_are_listed() {
    let ollama = Model::answering(|request, _| match request.path.as_str() {
        "/api/version" => Reply::json(200, &json!({ "version": "1" })),
        "/v1/models" => Reply::json(200, &json!({ "models": [{ "name": "qwen3:4b" }] })),
        _ => Reply::error(404, "no such page"),
    });
    // A URL as Ollama's other clients take it, and as an api_base.
    for path in ["", "/v1/"] {
        let host = format!("http://{}{path}", ollama.address());
        let models = Home::empty()
            .bantam()
            .arg("models")
            .env("OLLAMA_HOST", host)
            .run();
        models.exits(0);
        has_all(&models.stdout, ["ollama/qwen3:4b"]);
    }
}

#[test]
fn first_models_have_buttons_and_others_are_typed() {
    let mut ids: Vec<Value> = (10..40)
        .map(|n| json!({ "id": format!("model-{n}") }))
        .collect();
    // Telegram limits the data of a button to 64 bytes.
    ids[0] = json!({ "id": "x".repeat(80) });
    let (model, api) = (host(json!({ "data": ids })), BotApi::start());
    let mut config = bot::config(&model, &api);
    let entry = &mut config["model_list"][0];
    (entry["model_name"], entry["model"]) = ("".into(), "gpu-box/*".into());
    config["agents"]["defaults"]["model_name"] = "gpu-box/local".into();
    let home = Home::with(&config);
    let gateway = bot::start(&home);
    api.text(42, "/model");
    let says = |n: usize| api.wait_for_texts(42, n + 1)[n].clone();
    assert!(says(0).contains("any other name after /model"));
    let list = api.sent(42)[0].clone();
    assert_eq!(
        (list.buttons.len(), &*list.buttons[0].0),
        (20, "gpu-box/local")
    );
    api.press(42, 42, list.id, "gpu-box/model-11");
    assert_eq!(says(1), "This chat now uses gpu-box/model-11.");
    api.text(42, "/model model-39");
    assert_eq!(says(2), "This chat now uses gpu-box/model-39.");
    api.text(42, "/model model-9");
    assert!(says(3).contains("no model named"), "{}", says(3));
    bot::ends(gateway);
    botschema::check(&api);
}

#[test]
fn a_host_that_wants_a_key_and_got_none_says_so() {
    let model = Model::answering(|_, _| Reply::error(401, "Missing bearer"));
    let with = |entry: Value| {
        let home = Home::with(&json!({
            "agents": { "defaults": { "model_name": "box/tiny" } },
            "model_list": [merged(json!({ "model": "box/*", "api_base": model.base() }), &entry)],
        }));
        let run = home.agent(["-m", "hi"]);
        run.fails(4);
        run.stderr.clone()
    };
    let said = with(json!({}));
    has_all(
        &said,
        [
            "hint: the provider requires a key, and none is set: run `bantam onboard`, or set \"api_key\" in its entry of model_list",
        ],
    );
    assert!(with(json!({ "api_key": "k" })).contains("hint: check the key"));
    let own = json!({ "headers": { "Authorization": "Basic eA==" } });
    assert!(with(own).contains("hint: check the key"));
}
