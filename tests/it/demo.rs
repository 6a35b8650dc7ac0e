//! The built-in model: a few verbs, the real loop, the real tools.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Home, merged};
use crate::model::{Model, Reply};

/// `bantam agent -m "list files"` on a machine without any setup.
#[test]
fn without_a_configuration_the_demo_model_answers() {
    let home = Home::empty();
    home.write("workspace/shopping.txt", "oat milk\n");
    let run = home.agent(["-m", "list files"]);
    run.exits(0).says("demo").says("_API_KEY");
    assert!(run.stdout.contains("shopping.txt"), "{}", run.stdout);
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool", "assistant"]);
    session.has_one_result_per_call();
    home.agent(["-q", "-m", "list files"]).exits(0).is_quiet();
    assert!(
        home.agent(["--json", "-q", "-m", "list files"]).json()["model"]
            .as_str()
            .unwrap()
            .contains("demo")
    );
}

#[test]
fn without_a_configuration_an_ollama_that_answers_is_asked() {
    let tags = json!({ "models": [ { "name": "llama3:8b" }, { "name": "qwen3:4b" }, { "name": "other" } ] });
    let [plain, with_tools] = [json!(["completion"]), json!(["completion", "tools"])].map(
        |capabilities| json!({ "capabilities": capabilities, "parameters": "num_ctx                        16384" }),
    );
    let replies = [
        tags,
        plain,
        with_tools.clone(),
        json!({ "models": [] }),
        with_tools,
    ];
    let replies = replies
        .map(|body| Reply::json(200, &body))
        .into_iter()
        .chain([Reply::text("I live here.")]);
    let ollama = Model::scripted(replies);
    let home = Home::empty();
    let run = home
        .bantam()
        .args(["agent", "-m", "who are you?"])
        .env("OLLAMA_HOST", ollama.address())
        .run();
    run.exits(0)
        .prints("I live here.\n")
        .says(&format!("qwen3:4b of Ollama at {}", ollama.address()))
        .says("16384");
    assert_eq!(ollama.request(5).body["model"], "qwen3:4b");
}

#[test]
fn running_ollama_comes_first_in_onboard() {
    let tags = json!({ "models": [ { "id": "qwen3:4b", "name": "qwen3:4b" } ] });
    let ollama = Model::answering(move |request, _| match request.path.as_str() {
        "/api/version" => Reply::json(200, &json!({ "version": "0.9.0" })),
        "/v1/models" => Reply::json(200, &tags),
        _ => Reply::error(404, "not found"),
    });
    let home = Home::empty();
    let asking = home
        .bantam()
        .arg("onboard")
        .env("OLLAMA_HOST", ollama.address());
    let mut running = asking.on_a_terminal().silent_stdin().spawn();
    running.wait_for_stdout(&format!("1  ollama       answers at {}", ollama.address()));
    for (asked, typed) in [
        ("[1, ollama]: ", ""),
        ("Model [qwen3:4b]", ""),
        ("Keep these settings?", "y"),
        ("Connect a Telegram bot?", ""),
    ] {
        running.wait_for_stdout(asked);
        running.types(&format!("{typed}\n"));
    }
    running.finish().exits(0);
    let config: Value =
        serde_json::from_slice(&std::fs::read(home.path("config.json")).unwrap()).unwrap();
    assert_eq!(config["model_list"][0]["api_base"], ollama.base());
}

/// A host that reads its models from a slow disk.
#[test]
fn an_ollama_that_takes_a_second_is_waited_for() {
    let ollama = Model::answering(|request, _| {
        std::thread::sleep(Duration::from_secs(1));
        match request.path.as_str() {
            "/api/tags" => Reply::json(200, &json!({ "models": [ { "name": "qwen3:4b" } ] })),
            "/api/show" => Reply::json(200, &json!({ "capabilities": ["tools"] })),
            "/api/ps" => Reply::json(200, &json!({ "models": [] })),
            _ => Reply::text("Slow and steady."),
        }
    });
    let home = Home::empty();
    let run = home
        .bantam()
        .args(["agent", "-m", "hello"])
        .env("OLLAMA_HOST", ollama.address())
        .run();
    run.exits(0).prints("Slow and steady.\n");
}

#[test]
fn ollama_context_window_is_read_and_used() {
    let ollama = |parameters: &'static str, loaded: Value| {
        Model::answering(move |request, _| {
            let tokens = request.body.to_string().len() as u64 / 4;
            match request.path.as_str() {
                "/api/ps" => Reply::json(200, &json!({ "models": loaded })),
                "/api/show" => Reply::json(200, &json!({ "parameters": parameters })),
                _ if request.messages().last().unwrap()["role"] == "user" => {
                    Reply::call("read_file", &json!({ "path": "long.txt" })).counted(tokens, 100)
                }
                _ => Reply::text("Read.").counted(tokens, 100),
            }
        })
    };
    let config_of = |name: &str, model: &Model| {
        merged(
            model.config(),
            &json!({ "model_list": [ { "model": name } ] }),
        )
    };
    let config = |model: &Model| config_of("ollama/qwen3:4b", model);
    let loaded = |name: &str| json!([ { "name": name, "context_length": 21_000 } ]);
    for (name, parameters, loaded) in [
        ("ollama/qwen3:4b", "num_ctx 21000\nstop \"x\"", json!([])),
        ("ollama/qwen3:4b", "num_ctx 4096", loaded("qwen3:4b")),
        ("ollama/qwen3", "num_ctx 4096", loaded("qwen3:latest")),
        (
            "ollama/qwen3:latest",
            "num_ctx 4096",
            loaded("qwen3:latest"),
        ),
    ] {
        let model = ollama(parameters, loaded);
        let home = Home::with(&config_of(name, &model));
        home.write("workspace/long.txt", "words and more words\n".repeat(700));
        home.agent(["-m", "read it, 0"]).exits(0).says("21000");
        for n in 1..4 {
            home.agent(["-m", &format!("read it, {n}")]).exits(0);
        }
        assert!(
            home.path("sessions/cli_default.1.jsonl").exists(),
            "{name}, {parameters}: nothing was compacted"
        );
    }
    let model = ollama("", json!([]));
    let home = Home::with(&config(&model));
    home.write("workspace/long.txt", "short");
    let run = home.agent(["-m", "hi"]);
    assert!(
        run.stderr.contains("4096") && run.stderr.contains("OLLAMA_CONTEXT_LENGTH"),
        "{}",
        run.stderr
    );
    let own = json!({ "model_list": [ { "context_window": 30_000 } ] });
    let home = Home::with(&merged(config(&model), &own));
    home.write("workspace/long.txt", "short");
    home.agent(["-m", "hi"]).exits(0).is_quiet();
}

#[test]
fn the_demo_model_drives_the_real_loop() {
    let home = Home::empty();
    home.write("workspace/shopping.txt", "oat milk\n");
    let run = home.agent(["--model", "demo/demo", "-m", "list files"]);
    run.exits(0);
    assert!(run.stdout.contains("shopping.txt"), "{}", run.stdout);
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool", "assistant"]);
    session.has_one_result_per_call();
}

#[test]
fn missing_home_is_created_from_the_template() {
    let home = Home::empty();
    home.agent(["--model", "demo/demo", "-m", "list files"])
        .exits(0);
    assert!(home.path("workspace").is_dir());
    assert!(
        !home.path("config.json").exists(),
        "bantam agent writes no configuration"
    );
}

#[test]
fn the_demo_model_reads_writes_and_runs() {
    let home = Home::with(&json!({ "tools": { "exec": { "sandbox": "off" } } }));
    home.write("workspace/shopping.txt", "oat milk\n");
    let run = home.agent(["--model", "demo/demo", "-m", "read shopping.txt"]);
    run.exits(0);
    assert!(run.stdout.contains("oat milk"), "{}", run.stdout);
    let run = home.agent([
        "--model",
        "demo/demo",
        "-m",
        "write rye bread to notes/more.txt",
    ]);
    run.exits(0);
    assert_eq!(
        std::fs::read_to_string(home.path("workspace/notes/more.txt")).unwrap(),
        "rye bread\n"
    );
    let run = home.agent(["--model", "demo/demo", "-m", "run echo $((40 + 2))"]);
    run.exits(0);
    assert!(run.stdout.contains("42"), "{}", run.stdout);
}

#[test]
fn demo_model_explains_setting_a_key() {
    let home = Home::empty();
    let run = home.agent(["--model", "demo/demo", "-m", "Why is the sky blue?"]);
    run.exits(0);
    assert!(run.stdout.contains("API_KEY"), "{}", run.stdout);
}

#[test]
fn the_demo_model_is_configured_like_any_other() {
    let home = Home::with(&json!({ "agents": { "defaults": { "model_name": "demo/demo" } } }));
    home.agent(["-m", "list files"]).exits(0);
}

/// If only an Ollama is available, it is shown everywhere.
#[test]
fn an_ollama_that_is_used_is_known_to_models_and_doctor() {
    let ollama = Model::answering(|request, _| match request.path.as_str() {
        "/api/version" => Reply::json(200, &json!({ "version": "0.9.0" })),
        "/api/tags" => Reply::json(200, &json!({ "models": [{ "name": "qwen3:4b" }] })),
        "/v1/models" => Reply::json(200, &json!({ "data": [{ "id": "qwen3:4b" }] })),
        _ => Reply::error(404, "not found"),
    });
    let home = Home::empty();
    let run = |args: &[&str]| {
        let run = home
            .bantam()
            .args(args)
            .env("OLLAMA_HOST", ollama.address());
        run.run()
    };
    let models = run(&["models"]);
    assert!(
        models.exits(0).stdout.contains("ollama/qwen3:4b"),
        "{}",
        models.stdout
    );
    let doctor = run(&["doctor"]);
    assert!(
        doctor.stdout.contains("qwen3:4b of Ollama answers"),
        "{}",
        doctor.stdout
    );
    run(&["agent", "--model", "qwen3:4b", "-m", "hi"])
        .exits(2)
        .says("did you mean `ollama/qwen3:4b`?");
}
