//! A configuration written for another program is converted once, by `onboard --import`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::harness::{Home, Run};
use crate::model::{Model, Reply, Request};

/// A fixture with the model's address, in a directory of its own beside the home.
fn fixture(home: &Home, name: &str, base: &str) -> PathBuf {
    let text = fs::read_to_string(format!(
        "{}/tests/it/configs/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    ))
    .unwrap();
    let dir = home.path("").parent().unwrap().join("other");
    fs::create_dir_all(dir.join("workspace")).unwrap();
    fs::write(dir.join("config.json"), text.replace("MODEL_BASE", base)).unwrap();
    dir
}

/// Imports at a terminal, where each question gets its line of the answers.
fn import_with(home: &Home, path: &Path, answers: &str) -> Run {
    home.bantam()
        .on_a_terminal()
        .stdin(answers)
        .args(["onboard", "--import"])
        .arg(path)
        .run()
}

/// Imports the fixture, asks a model that wants tools until it gets none, and returns what it was asked first. Each
/// fixture allows three steps.
#[track_caller]
fn works_after_import(name: &str) -> Request {
    let again = || Reply::call("list_dir", &json!({ "path": "." }));
    let model = Model::scripted([again(), again(), Reply::text("Done what I could.")]);
    let home = Home::empty();
    let dir = fixture(&home, name, &model.base());
    let before = fs::read(dir.join("config.json")).unwrap();
    // The address, and for some an id and the heartbeat; no server.
    import_with(&home, &dir, "y\ny\ny\nn\n").exits(0);
    assert_eq!(fs::read(dir.join("config.json")).unwrap(), before);
    assert!(
        !fs::read_to_string(home.path("config.json"))
            .unwrap()
            .contains("workspace"),
        "it never points at the old home"
    );
    let run = home.agent(["-m", "hi"]);
    run.exits(6)
        .prints("Done what I could.\n")
        .says("limit of 3 steps")
        .does_not_say("unknown setting");
    assert!(
        model.request(2).tools().is_empty(),
        "the third step is the last"
    );
    model.request(0)
}

#[track_caller]
fn has(request: &Request, model: &str, key: &str, max_tokens: u64, temperature: f64) {
    assert_eq!(request.body["model"], model);
    assert_eq!(
        request.header("authorization"),
        Some(format!("Bearer {key}").as_str())
    );
    assert_eq!(request.body["max_tokens"], max_tokens);
    assert_eq!(request.body["temperature"], temperature);
}

#[test]
fn picoclaw_0_works_after_an_import() {
    let request = works_after_import("picoclaw-v0");
    has(
        &request,
        "arcee-ai/trinity-large-preview:free",
        "sk-or-v1-0000-fake-picoclaw",
        4096,
        0.7,
    );
}

#[test]
fn picoclaw_3_works_after_an_import() {
    let request = works_after_import("picoclaw-v3");
    has(&request, "glm-4.7", "zhipu-fake-picoclaw-3", 32768, 0.7);
    assert_eq!(request.header("x-team"), Some("home"));
    assert_eq!(request.body["do_sample"], true);
}

#[test]
fn nanobot_works_after_an_import() {
    let request = works_after_import("nanobot");
    has(
        &request,
        "anthropic/claude-opus-4-5",
        "sk-or-v1-0000-fake-nanobot",
        4096,
        0.1,
    );
    assert_eq!(request.header("x-title"), Some("nanobot"));
}

#[test]
fn smartbot_works_after_an_import() {
    let request = works_after_import("smartbot");
    has(
        &request,
        "deepseek-chat",
        "sk-fake-0000-smartbot",
        4096,
        0.7,
    );
}

#[test]
fn a_foreign_file_in_the_home_is_answered_with_the_command_that_converts_it() {
    let model = Model::scripted([Reply::text("One.")]);
    let home = Home::empty();
    let theirs = json!({ "providers": { "groq": { "apiKey": "gsk-fake", "apiBase": model.base() } }, "hooks": [1] });
    home.config(&theirs.to_string());
    let path = home.path("config.json").display().to_string();
    let import = ["onboard", "--import", &path];
    for command in ["agent -m hi", "status", "gateway", "tools"] {
        let run = home.bantam().args(command.split(' ')).run();
        run.exits(3)
            .says("another program")
            .says(&format!("hint: bantam {}", import.join(" ")));
    }
    let run = import_with(&home, &home.path("config.json"), "y\n");
    run.exits(0);
    assert!(run.stdout.contains(": hooks\r\n"), "{}", run.stdout);
    assert_eq!(
        fs::read_to_string(home.path("config.json.old")).unwrap(),
        theirs.to_string()
    );
    home.agent(["--model", "groq/qwen/qwen3-32b", "-m", "hi"])
        .exits(0)
        .prints("One.\n")
        .is_quiet();
    assert_eq!(model.request(0).body["model"], "qwen/qwen3-32b");
    assert_eq!(
        model.request(0).header("authorization"),
        Some("Bearer gsk-fake")
    );
}

#[test]
fn dangerous_settings_are_shown_and_not_taken_over() {
    let home = Home::empty();
    let dir = fixture(&home, "picoclaw-v3", "http://localhost:1/v1");
    let theirs = json!({ "agents": { "defaults": { "model": "demo", "restrictToWorkspace": false } },
        "tools": { "exec": { "sandbox": "off" } }, "providers": { "openai": { "api_key": "cmd:/bin/key" } } });
    fs::write(dir.join("config.json"), theirs.to_string()).unwrap();
    let run = home.bantam().args(["onboard", "--import"]).arg(&dir).run();
    run.exits(0);
    let shown = "skipped  settings that bantam does not have, or that only you can set: agents.defaults.restrictToWorkspace, \
                 providers.openai.api_key, tools.exec.sandbox\n";
    assert!(run.stdout.contains(shown), "{}", run.stdout);
    let ours = fs::read_to_string(home.path("config.json")).unwrap();
    assert!(
        !["cmd:", "off", "restrict"]
            .iter()
            .any(|word| ours.contains(word)),
        "{ours}"
    );
    // Nothing is overwritten, and a file that is no JSON is refused before anything is written.
    home.bantam()
        .args(["onboard", "--import"])
        .arg(&dir)
        .run()
        .exits(0);
    assert_eq!(fs::read_to_string(home.path("config.json")).unwrap(), ours);
    let home = Home::empty();
    fs::write(dir.join("config.json"), "{ nope }").unwrap();
    home.bantam()
        .args(["onboard", "--import"])
        .arg(&dir)
        .run()
        .exits(3)
        .prints("")
        .fails_with_a_hint();
    assert!(!home.path("").exists());
}

#[test]
fn what_another_program_was_told_to_trust_is_asked_for_one_by_one() {
    let theirs = json!({
        "model_list": [
            { "model_name": "a", "model": "openai/a", "api_key": "${AWS_SECRET_ACCESS_KEY}" },
            { "model_name": "b", "model": "openai/b", "api_base": "https://b.example/v1", "api_key": "${OPENAI_API_KEY}" },
            { "model_name": "c", "model": "openai/c", "api_base": "https://c.example/v1", "api_key": "fake-c" },
        ],
        "channels": { "telegram": { "token": "123456:fake", "allow_from": [1, 2] } },
        "mcpServers": {
            "one": { "command": "npx", "args": ["-y", "one"], "env": { "KEY": "${AWS_SECRET_ACCESS_KEY}" } },
            "two": { "command": "npx", "args": ["-y", "two"] },
        },
    });
    let home = Home::empty();
    let dir = fixture(&home, "nanobot", "");
    fs::write(dir.join("config.json"), theirs.to_string()).unwrap();
    let ours = || -> serde_json::Value {
        serde_json::from_slice(&fs::read(home.path("config.json")).unwrap()).unwrap()
    };

    // Without a terminal nothing of it comes over, and each is named.
    let run = home.bantam().args(["onboard", "--import"]).arg(&dir).run();
    run.exits(0).is_quiet();
    assert_eq!(
        ours(),
        json!({
            "model_list": [{ "model_name": "a", "model": "openai/a" }],
            "channels": { "telegram": { "token": "123456:fake" } },
        })
    );
    for line in [
        "model_list.0.api_key: it reads one of your variables",
        "model_list.1.api_key: it reads one of your variables",
        "the model openai/b at https://b.example/v1",
        "the model openai/c at https://c.example/v1",
        "Telegram user 1, who may then use the bot",
        "Telegram user 2, who may then use the bot",
        "mcpServers.one.env: it reads one of your variables",
        "the MCP server one, disabled: it runs npx -y one",
        "the MCP server two, disabled: it runs npx -y two",
    ] {
        assert!(
            run.stdout
                .lines()
                .any(|shown| shown == format!("skipped  {line}")),
            "{line}: {}",
            run.stdout
        );
    }

    // At a terminal each is asked for, and Enter means no.
    fs::remove_file(home.path("config.json")).unwrap();
    import_with(&home, &dir, "\ny\ny\n\ny\n\n").exits(0);
    assert_eq!(
        ours(),
        json!({
            "model_list": [
                { "model_name": "a", "model": "openai/a" },
                { "model_name": "c", "model": "openai/c", "api_base": "https://c.example/v1", "api_key": "fake-c" },
            ],
            "channels": { "telegram": { "token": "123456:fake", "allow_from": ["1"] } },
            "mcpServers": { "one": { "command": "npx", "args": ["-y", "one"], "enabled": false } },
        })
    );
}

/// A file of nothing takes no room where it lies, and would take all of it here.
#[test]
fn a_file_that_is_far_larger_than_any_note_is_named_and_left() {
    let home = Home::empty();
    let dir = fixture(&home, "picoclaw-v3", "http://localhost:1/v1");
    let large = dir.join("workspace/large.bin");
    fs::File::create(&large)
        .unwrap()
        .set_len((100 << 20) + 1)
        .unwrap();
    let run = home.bantam().args(["onboard", "--import"]).arg(&dir).run();
    run.exits(0);
    let told = "large.bin: it has more than 100.0 MB: copy it yourself";
    assert!(run.stdout.contains(told), "{}", run.stdout);
    assert!(!home.path("workspace/large.bin").exists());
}
