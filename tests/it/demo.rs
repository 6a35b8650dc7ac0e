//! The built-in model: a few verbs, the real loop, the real tools.

use serde_json::{Value, json};

use crate::harness::{Home, has_all, merged};
use crate::model::{Model, Reply};

#[test]
fn answer_and_usage_report_the_same_tokens() {
    let home = Home::empty();
    let answer = home.agent(["--json", "-m", "hi"]).json();
    let usage = home.run(["usage", "--json"]).json();
    for name in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        assert!(answer["usage"][name].as_u64() > Some(0), "{answer}");
        assert_eq!(answer["usage"][name], usage["total"][name], "{name}");
    }
}

/// The first question of README.md, on a machine without any setup.
#[test]
fn without_a_configuration_the_demo_model_answers() {
    let home = Home::empty();
    home.write("workspace/shopping.txt", "oat milk\n");
    let run = home.agent(["-m", "What is in my workspace?"]);
    run.exits(0).says("demo").says("_API_KEY");
    run.shows("shopping.txt");
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool", "assistant"]);
    session.has_one_result_per_call();
    home.agent(["-q", "-m", "list files"]).exits(0).is_quiet();
    has_all(
        home.agent(["--json", "-q", "-m", "list files"]).json()["model"]
            .as_str()
            .unwrap(),
        ["demo"],
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
    run.answers("I live here.\n")
        .says(&format!("qwen3:4b of Ollama at {}", ollama.address()))
        .says("16384");
    assert_eq!(ollama.request(5).body["model"], "qwen3:4b");
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
    has_all(&run.stderr, ["4096", "OLLAMA_CONTEXT_LENGTH"]);
    let own = json!({ "model_list": [ { "context_window": 30_000 } ] });
    let home = Home::with(&merged(config(&model), &own));
    home.write("workspace/long.txt", "short");
    home.agent(["-m", "hi"]).exits(0).is_quiet();
}
