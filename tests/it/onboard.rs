//! A new home: created files, questions, and files that are never overwritten.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::botapi::{BotApi, TOKEN};
use crate::harness::{Bantam, CANARY, Home, Run, Running, has_all, walk};
use crate::model::{Model, Reply};

fn config(home: &Home) -> Value {
    serde_json::from_slice(&fs::read(home.path("config.json")).unwrap()).unwrap()
}

fn chosen(home: &Home) -> Value {
    config(home)["agents"]["defaults"]["model_name"].clone()
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[track_caller]
fn prints_line(run: &Run, line: &str) {
    assert!(
        run.stdout.lines().any(|l| l == line),
        "no line {line:?}: {}",
        run.stdout
    );
}

/// Returns a command that cannot contact the vendors' hosts.
fn closed(home: &Home) -> Bantam<'_> {
    home.bantam().env("HTTPS_PROXY", "http://127.0.0.1:1")
}

/// Starts it on a terminal, and answers each question when it appears.
#[track_caller]
fn onboard<'h>(bantam: Bantam<'h>, asked: &[(&str, &str)]) -> Running<'h> {
    let mut running = bantam.on_a_terminal().silent_stdin().arg("onboard").spawn();
    for (question, typed) in asked {
        running.wait_for_next_stdout(question);
        running.types(&format!("{typed}\n"));
    }
    running
}

const PROVIDER: &str = "Provider [";
const KEEP: &str = "Save these settings anyway? [y/N]";
const BOT: &str = "Connect a Telegram bot? [y/N]";

#[test]
fn script_gets_the_files_and_no_configuration() {
    let home = Home::empty();
    let run = home.run(["onboard", "--yes"]);
    run.exits(0).is_quiet();
    assert!(!home.path("config.json").exists());
    run.shows("built-in demo");
    let files = "agent/AGENT.md agent/HEARTBEAT.md agent/SOUL.md agent/prompts/summarize.md \
        agent/skills/journal/SKILL.md memory/USER.md memory/MEMORY.md";
    for file in files.split_whitespace() {
        prints_line(&run, &format!("created  {}", home.path(file).display()));
        assert_eq!(mode(&home.path(file)), 0o600, "{file}");
    }
    assert!(
        ["", "agent", "workspace", "agent/skills"]
            .iter()
            .all(|dir| mode(&home.path(dir)) == 0o700)
    );
    home.agent(["-m", "What is in my workspace?"]).exits(0);
    let deepseek = home.bantam().env("DEEPSEEK_API_KEY", CANARY);
    let run = deepseek.args(["onboard", "--yes"]).run();
    run.exits(0).shows("deepseek");
}

#[test]
fn existing_files_are_kept() {
    let home = Home::empty();
    home.config("{\"agents\": {\"defaults\": {\"model_name\": \"demo/demo\"}}}");
    home.write("agent/SOUL.md", "Mine.");
    home.write("agent/AGENTS.md", "My rules.");
    home.write("memory/MEMORY.md", "The user is Ada.");
    home.run(["onboard", "--yes"]).exits(0);
    assert!(
        !home.path("agent/AGENT.md").exists(),
        "it would come before the AGENTS.md that is there"
    );
    assert_eq!(home.read("agent/SOUL.md"), "Mine.");
    let before = snapshot(&home.path(""));
    let again = home.run(["onboard", "--yes"]);
    again.exits(0);
    assert!(!again.stdout.contains("created  "), "{}", again.stdout);
    assert_eq!(snapshot(&home.path("")), before);
}

#[test]
fn onboarding_without_terminal_does_not_ask() {
    let home = Home::empty();
    let run = home.bantam().arg("onboard").stdin("1\n\n\n").run();
    run.fails(2).prints("").says("--yes");
    assert!(!home.path("").exists());
}

#[test]
fn provider_key_and_model_are_asked_for() {
    let home = Home::empty();
    let groq = closed(&home).env("GROQ_API_KEY", CANARY);
    let asked = [
        (PROVIDER, ""),
        ("keep the key from the variable GROQ_API_KEY", ""),
        ("[the provider's default]", ""),
        (KEEP, "y"),
        (BOT, ""),
    ];
    let run = onboard(groq, &asked).finish();
    let (list, _) = run.exits(0).stdout.split_once(PROVIDER).unwrap();
    assert!(list.starts_with("Providers: groq, openai, "), "{list}");
    assert!(list.lines().count() < 12, "{list}");
    assert_eq!(
        config(&home),
        json!({ "agents": { "defaults": { "model_name": "groq" } } })
    );
    assert_eq!(mode(&home.path("config.json")), 0o600);
    run.shows("Next: bantam \"");

    let home = Home::empty();
    let asked = [
        (PROVIDER, "opnai"),
        ("did you mean openai?\r\nProvider [", "openai"),
        ("Key, not shown", "sk-not two words"),
        (
            "cannot contain spaces\r\nKey, not shown",
            "sk-typed-by-hand",
        ),
        ("Model [", "gpt-5"),
        (KEEP, "y"),
        (BOT, ""),
    ];
    let run = onboard(closed(&home).before("stty -a"), &asked).finish();
    run.exits(0);
    assert!(!run.stdout.contains("sk-"), "{}", run.stdout);
    is_as_it_was(&run);
    let entry = json!({ "model": "openai/*", "api_key": "sk-typed-by-hand" });
    assert_eq!(config(&home)["model_list"], json!([entry]));
    assert_eq!(chosen(&home), "openai/gpt-5");

    let home = Home::empty();
    let asked = [
        (PROVIDER, "mistral"),
        ("set MISTRAL_API_KEY later", ""),
        ("[the provider's default]", ""),
        (BOT, ""),
    ];
    let run = onboard(closed(&home), &asked).finish();
    let next = "Next: export MISTRAL_API_KEY=";
    run.exits(0).shows(next);
    home.agent(["-m", "hi"]).exits(3).says("MISTRAL_API_KEY");
}

/// Checks that the terminal echoes and that its keys work as before.
#[track_caller]
fn is_as_it_was(run: &Run) {
    let (_, set) = run.stdout.rsplit_once("speed ").expect("what stty says");
    let words: Vec<&str> = set.split_whitespace().collect();
    assert!(
        words.contains(&"echo") && words.contains(&"-echonl"),
        "{set}"
    );
    has_all(set, ["quit = ^\\;", "susp = ^Z;"]);
}

#[test]
fn interrupted_onboarding_changes_no_files() {
    for typed in ["sk-typed-by\u{3}", "\u{4}"] {
        let home = Home::empty();
        let mut running = onboard(closed(&home).before("stty -a"), &[(PROVIDER, "openai")]);
        running.wait_for_next_stdout("Key, not shown (");
        running.types(typed);
        let run = running.finish();
        run.exits(130);
        run.shows("nothing was saved");
        assert!(!run.stdout.contains("sk-"), "{}", run.stdout);
        is_as_it_was(&run);
        assert!(!home.path("").exists());
    }
}

#[test]
fn a_configuration_that_cannot_be_used_is_kept_and_told() {
    let home = Home::empty();
    home.config("{ nope }");
    let run = home.run(["onboard", "--yes"]);
    run.fails(3).says("config.json");
    assert!(home.path("agent/SOUL.md").exists(), "all else is made");
    assert_eq!(home.read("config.json"), "{ nope }");
}

#[test]
fn a_configuration_without_a_model_is_told_by_all_alike() {
    let home = Home::empty();
    home.config(r#"{"log":{"json":true}}"#);
    let run = home.run(["onboard", "--yes"]);
    has_all(&run.exits(0).stdout, ["no model is configured"]);
    home.agent(["-m", "hi"])
        .exits(3)
        .says("no model is configured");
    let status = home.run(["status"]);
    has_all(&status.stdout, ["no model is configured"]);
}

/// Returns every path in `root`, with its content and its time of change.
fn snapshot(root: &Path) -> BTreeMap<PathBuf, (Vec<u8>, SystemTime)> {
    let entry = |path: PathBuf| {
        let meta = path.symlink_metadata().unwrap();
        let bytes = if meta.is_file() {
            fs::read(&path).unwrap()
        } else {
            Vec::new()
        };
        (path, (bytes, meta.modified().unwrap()))
    };
    walk(root).into_iter().map(entry).collect()
}

#[test]
fn server_is_tested_with_a_question_and_keeps_its_settings() {
    let model = Model::answering(|request, _| {
        match (request.header("authorization"), request.method.as_str()) {
            (Some("Bearer sk-wrong-one"), _) => Reply::error(401, "no such key"),
            (_, "GET") => Reply::json(
                200,
                &json!({ "data": [
                { "id": "embedder" },
                { "id": "qwen3", "max_model_len": 8192, "supported_parameters": ["tools"] },
            ] }),
            ),
            _ if request.body["model"] == "embedder" => Reply::error(400, "embedder does not chat"),
            _ => Reply::text("ready"),
        }
    });
    let home = Home::empty();
    let address = model.base();
    let asked = [
        (PROVIDER, "http://127.0.0.1:1/v1"),
        ("Key, not shown (Enter: no key)", ""),
        ("Use this address anyway? [y/N]", ""),
        (PROVIDER, &*address),
        ("Key, not shown (Enter: no key)", "sk-wrong-one"),
        ("Key, not shown (Enter: keep the typed one", CANARY),
        ("Model [qwen3]: ", "embedder"),
        (KEEP, ""),
        (PROVIDER, &address),
        ("Key, not shown", CANARY),
        ("Model [qwen3]: ", "9"),
        ("type a number up to 2, or a name\r\nModel [qwen3]: ", "1"),
        (BOT, ""),
    ];
    let run = onboard(closed(&home), &asked).finish();
    run.exits(0);
    let listed = "1  qwen3     8192 tokens, tools\r\n2  embedder\r\n";
    run.shows(listed);
    assert!(
        run.stdout
            .contains("tip: start its server with its tool parser")
    );
    assert!(!run.stdout.contains(CANARY), "{}", run.stdout);
    let mut entry = json!({ "model": "server/*", "api_base": model.base(), "api_key": CANARY });
    assert_eq!(config(&home)["model_list"], json!([entry]));
    assert_eq!(chosen(&home), "server/qwen3");

    // Another model of the same server.
    entry["request_timeout"] = json!(77);
    let defaults = json!({ "defaults": { "model_name": "server/qwen3" } });
    home.config(&json!({ "agents": defaults, "model_list": [entry] }).to_string());
    let asked = [
        ("Change the model?", "y"),
        (PROVIDER, &address),
        ("keep the key from config.json", ""),
        ("Model [qwen3]: ", "qwen3:8b"),
        (BOT, ""),
    ];
    onboard(closed(&home), &asked).finish().exits(0);
    assert_eq!(config(&home)["model_list"], json!([entry]));
    assert_eq!(chosen(&home), "server/qwen3:8b");

    // The key of one server is not for another.
    let other = Model::answering(|request, _| match request.method.as_str() {
        "GET" => Reply::error(404, "no list"),
        _ => Reply::text("ready"),
    });
    let asked = [
        ("Change the model?", "y"),
        (PROVIDER, &*other.base()),
        ("Key, not shown (Enter: no key)", ""),
        ("Model: ", "small"),
        (BOT, ""),
    ];
    onboard(closed(&home), &asked).finish().exits(0);
    assert_eq!(chosen(&home), "server2/small");
    let second = json!({ "model": "server2/*", "api_base": other.base() });
    assert_eq!(config(&home)["model_list"], json!([entry, second]));
    assert_eq!(other.requests().last().unwrap().body["model"], "small");
    let requests = other.requests();
    assert!(requests.iter().all(|r| r.header("authorization").is_none()));
}

#[test]
fn first_person_who_writes_and_is_confirmed_owns_the_bot() {
    let api = BotApi::start();
    let home = Home::empty();
    home.config("{\n  \"agents\": { \"defaults\": { \"model_name\": \"demo/demo\" } }\n}\n");
    api.text(666, "hello");
    let bantam = || {
        let base = ("BANTAM_CHANNELS_TELEGRAM_API_BASE", api.base());
        closed(&home).env(base.0, base.1)
    };
    let asked = [
        ("Change the model? [y/N]", ""),
        (BOT, "y"),
        ("Token, not shown", "no-such-token"),
        ("Token, not shown", TOKEN),
        ("(id 666). Is that you? [y/N]", ""),
    ];
    let mut running = onboard(bantam(), &asked);
    api.text(42, "it is me");
    running.wait_for_next_stdout("(id 42). Is that you?");
    running.types("y\n");
    let run = running.finish();
    run.exits(0);
    assert!(!run.stdout.contains("TEST-token"), "{}", run.stdout);
    let telegram = json!({ "token": TOKEN, "enabled": true, "allow_from": [42] });
    assert_eq!(config(&home)["channels"]["telegram"], telegram);
    // A second run changes nothing.
    let before = fs::read(home.path("config.json")).unwrap();
    let asked = [
        ("Change the model?", ""),
        ("Connect another Telegram bot?", ""),
    ];
    onboard(bantam(), &asked).finish().exits(0);
    assert_eq!(fs::read(home.path("config.json")).unwrap(), before);
}

#[test]
fn ollama_models_are_listed_and_chosen() {
    let ollama = Model::answering(|request, _| match request.path.as_str() {
        "/v1/models" => Reply::json(
            200,
            &json!({ "models": [ { "name": "nomic-embed-text" }, { "name": "gemma3" }, { "name": "qwen3" } ] }),
        ),
        "/api/show" if request.body["model"] == "qwen3" => Reply::json(
            200,
            &json!({ "parameters": "num_ctx 8192", "capabilities": ["completion", "tools"] }),
        ),
        "/api/show" => Reply::json(200, &json!({ "capabilities": ["completion", "vision"] })),
        _ => Reply::text("ready"),
    });
    let home = Home::empty();
    let list = json!([{ "model_name": "ollama", "model": "ollama/-", "api_base": ollama.base() }]);
    let bantam = closed(&home).env("BANTAM_MODEL_LIST", list.to_string());
    let asked = [(PROVIDER, "ollama"), ("Model [qwen3]: ", "1"), (BOT, "")];
    let run = onboard(bantam, &asked).finish();
    run.exits(0);
    for line in ["1  gemma3            images", "2  qwen3             tools"] {
        assert!(run.stdout.contains(line), "{line}: {}", run.stdout);
    }
    assert_eq!(chosen(&home), "ollama/gemma3");
}
