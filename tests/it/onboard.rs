//! A new home: what is written, what is asked, what is never overwritten, and what comes over from another agent.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::botapi::{BotApi, TOKEN};
use crate::harness::{CANARY, Home, Run, walk};
use crate::model::{Model, Reply};

fn config(home: &Home) -> Value {
    serde_json::from_slice(&fs::read(home.path("config.json")).unwrap()).unwrap()
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

#[test]
fn a_script_gets_a_whole_home_without_being_asked() {
    let home = Home::empty();
    let run = home.bantam().args(["onboard", "--yes"]).run();
    run.exits(0).is_quiet();
    assert_eq!(
        config(&home),
        json!({ "agents": { "defaults": { "model_name": "demo/demo" } } })
    );
    assert!(
        run.stdout.contains("built-in demo") && run.stdout.contains("export OPENROUTER_API_KEY="),
        "{}",
        run.stdout
    );
    for file in [
        "agent/AGENT.md",
        "agent/HEARTBEAT.md",
        "agent/IDENTITY.md",
        "agent/SOUL.md",
        "agent/prompts/summarize.md",
        "agent/skills/journal/SKILL.md",
        "agent/skills/system-health/SKILL.md",
        "workspace/USER.md",
        "workspace/memory/MEMORY.md",
    ] {
        prints_line(&run, &format!("created  {}", home.path(file).display()));
        assert_eq!(mode(&home.path(file)), 0o600, "{file}");
    }
    assert_eq!(mode(&home.path("config.json")), 0o600);
    assert!(
        ["", "agent", "workspace", "agent/skills"]
            .iter()
            .all(|dir| mode(&home.path(dir)) == 0o700)
    );
    home.agent(["-m", "list files"]).exits(0).is_quiet();
}

#[test]
fn the_first_vendor_whose_key_is_there_is_chosen_and_its_key_stays_where_it_is() {
    let home = Home::empty();
    let onboard = || {
        home.bantam()
            .env("MISTRAL_API_KEY", CANARY)
            .env("DEEPSEEK_API_KEY", CANARY)
    };
    onboard()
        .args(["onboard", "--yes"])
        .run()
        .exits(0)
        .is_quiet();
    let expected = json!({
        "agents": { "defaults": { "model_name": "deepseek" } },
        "model_list": [
            { "model": "deepseek/*", "api_key": "${DEEPSEEK_API_KEY}" }
        ]
    });
    assert_eq!(config(&home), expected);
    let status = onboard().args(["status"]).run();
    status.exits(0).is_quiet();
    prints_line(&status, "key        the variable DEEPSEEK_API_KEY");
}

#[test]
fn nothing_is_ever_overwritten() {
    let home = Home::empty();
    home.config("{\"agents\": {\"defaults\": {\"model_name\": \"demo/demo\"}}}");
    home.write("agent/SOUL.md", "Mine.");
    home.write("agent/AGENTS.md", "My rules.");
    home.write("workspace/memory/MEMORY.md", "The user is Ada.");
    let run = home
        .bantam()
        .env("OPENAI_API_KEY", CANARY)
        .args(["onboard", "--yes"])
        .run();
    run.exits(0);
    for file in [
        "config.json",
        "agent/SOUL.md",
        "agent/AGENTS.md",
        "workspace/memory/MEMORY.md",
    ] {
        prints_line(&run, &format!("kept     {}", home.path(file).display()));
    }
    assert!(
        !home.path("agent/AGENT.md").exists(),
        "it would come before the AGENTS.md that is there"
    );
    assert_eq!(
        fs::read_to_string(home.path("agent/SOUL.md")).unwrap(),
        "Mine."
    );
    assert_eq!(
        config(&home),
        json!({ "agents": { "defaults": { "model_name": "demo/demo" } } })
    );

    let before = snapshot(&home.path(""));
    let again = home.bantam().args(["onboard", "--yes"]).run();
    again.exits(0);
    assert!(!again.stdout.contains("created  "), "{}", again.stdout);
    assert_eq!(snapshot(&home.path("")), before);
}

#[test]
fn without_a_terminal_nothing_is_asked_and_nothing_written() {
    let home = Home::empty();
    home.bantam()
        .arg("onboard")
        .stdin("1\n\n\n")
        .run()
        .exits(2)
        .prints("")
        .fails_with_a_hint()
        .says("--yes");
    assert!(!home.path("").exists());
}

/// What `bantam onboard` on a terminal makes of what is typed there.
#[track_caller]
/// On a terminal, without a way to the hosts of the vendors.
fn closed(home: &Home) -> crate::harness::Bantam<'_> {
    home.bantam()
        .env("HTTPS_PROXY", "http://127.0.0.1:1")
        .on_a_terminal()
}

fn typed(home: &Home, text: &str) -> Run {
    home.bantam()
        .env("GROQ_API_KEY", CANARY)
        .env("HTTPS_PROXY", "http://127.0.0.1:1")
        .on_a_terminal()
        .stdin(text)
        .arg("onboard")
        .run()
}

#[test]
fn on_a_terminal_vendor_key_and_model_are_asked_for() {
    let home = Home::empty();
    let run = typed(&home, "\n\n\n");
    run.exits(0);
    let groq = run.stdout.find("groq").unwrap();
    assert!(
        groq < run.stdout.find("openai").unwrap(),
        "whose key is there comes first: {}",
        run.stdout
    );
    assert_eq!(config(&home)["model_list"][0]["api_key"], "${GROQ_API_KEY}");
    assert_eq!(config(&home)["model_list"][0]["model"], "groq/*");
    assert!(run.stdout.contains("Next: bantam \""), "{}", run.stdout);

    let home = Home::empty();
    let run = typed(
        &home,
        "opnai\nopenai\nsk-not two words\nsk-typed-by-hand\nopenai/gpt-5\n",
    );
    run.exits(0);
    assert!(
        run.stdout.contains("did you mean openai?"),
        "{}",
        run.stdout
    );
    let entry =
        json!({ "model_name": "openai", "model": "openai/gpt-5", "api_key": "sk-typed-by-hand" });
    assert_eq!(config(&home)["model_list"], json!([entry]));
    let told = run.stdout.rsplit("created ").next().unwrap();
    assert!(!told.contains("sk-typed"), "the key is told back: {told}");

    let home = Home::empty();
    let run = typed(&home, "mistral\n\n\n");
    run.exits(0);
    assert!(
        run.stdout.contains("Next: export MISTRAL_API_KEY="),
        "{}",
        run.stdout
    );

    let home = Home::empty();
    typed(&home, "ollama\n\nllama3.2\n").exits(0);
    assert_eq!(
        config(&home)["model_list"],
        json!([{ "model_name": "ollama", "model": "ollama/llama3.2", "api_base": "http://127.0.0.1:9/v1" }])
    );
}

#[test]
fn a_key_is_not_shown_while_it_is_typed() {
    let home = Home::empty();
    let mut running = closed(&home)
        .silent_stdin()
        .arg("onboard")
        .before("stty -a")
        .spawn();
    running.wait_for_stdout("Number or name");
    running.types("openai\n");
    running.wait_for_stdout("Key, not shown (");
    // Neither the one that is no key nor the one that is.
    running.types("sk-not two words\n");
    running.wait_for_stdout("cannot contain spaces");
    running.types("sk-typed-by-hand\n");
    running.wait_for_stdout("Model [");
    running.types("gpt-5-seen\n\u{4}");
    let run = running.finish();
    run.exits(0);
    assert!(!run.stdout.contains("sk-"), "{}", run.stdout);
    assert!(
        run.stdout.contains("gpt-5-seen\r\n"),
        "what is no secret is seen: {}",
        run.stdout
    );
    assert_eq!(
        config(&home)["model_list"][0]["api_key"],
        "sk-typed-by-hand"
    );
    is_as_it_was(&run);
}

/// The terminal shows what is typed, and its keys do what they did.
#[track_caller]
fn is_as_it_was(run: &Run) {
    let (_, set) = run.stdout.rsplit_once("speed ").expect("what stty says");
    let words: Vec<&str> = set.split_whitespace().collect();
    assert!(
        words.contains(&"echo") && words.contains(&"-echonl"),
        "{set}"
    );
    assert!(
        set.contains("quit = ^\\;") && set.contains("susp = ^Z;"),
        "{set}"
    );
}

#[test]
fn whoever_stops_while_typing_a_key_gets_the_terminal_back() {
    let home = Home::empty();
    let mut running = closed(&home)
        .silent_stdin()
        .arg("onboard")
        .before("stty -a")
        .spawn();
    running.wait_for_stdout("Number or name");
    running.types("openai\n");
    running.wait_for_stdout("Key, not shown (");
    running.types("sk-typed-by");
    running.types("\u{3}");
    let run = running.finish();
    run.exits(130);
    assert!(!run.stdout.contains("sk-"), "{}", run.stdout);
    is_as_it_was(&run);
    assert!(!home.path("").exists());
}

#[test]
fn whoever_stops_half_way_has_changed_nothing() {
    let home = Home::empty();
    typed(&home, "openai\n").exits(130);
    assert!(!home.path("").exists());
}

#[test]
fn a_home_that_cannot_be_made_is_told_with_what_to_check() {
    let home = Home::empty();
    let nowhere = home.path("file/home");
    fs::create_dir_all(home.path("")).unwrap();
    home.write("file", "in the way");
    let run = home
        .bantam()
        .env("BANTAM_HOME", nowhere)
        .args(["onboard", "--yes"])
        .run();
    run.exits(1)
        .prints("")
        .fails_with_a_hint()
        .says("BANTAM_HOME");
    // No rights help on a file system that is not for writing.
    let run = home
        .bantam()
        .env("BANTAM_HOME", "/proc/bantam")
        .args(["onboard", "--yes"])
        .run();
    run.exits(1)
        .prints("")
        .fails_with_a_hint()
        .says("BANTAM_HOME");
    home.bantam()
        .without("BANTAM_HOME")
        .args(["onboard", "--yes"])
        .run()
        .exits(3)
        .prints("")
        .fails_with_a_hint();
}

#[test]
fn a_configuration_that_cannot_be_used_is_kept_and_told() {
    let home = Home::empty();
    home.config("{ nope }");
    let run = home.bantam().args(["onboard", "--yes"]).run();
    run.exits(3).fails_with_a_hint().says("config.json");
    assert!(home.path("agent/SOUL.md").exists(), "all else is made");
    assert_eq!(
        fs::read_to_string(home.path("config.json")).unwrap(),
        "{ nope }"
    );
}

#[test]
fn a_workspace_elsewhere_is_told_of() {
    let home = Home::empty();
    home.config(
        &json!({ "agents": { "defaults": { "workspace": "/srv/agent", "model_name": "demo/demo" } } }).to_string(),
    );
    let run = home.bantam().args(["onboard", "--yes"]).run();
    run.exits(0);
    assert!(
        run.stdout.contains("The agent works in /srv/agent"),
        "{}",
        run.stdout
    );
}

/// Every path below `root`, with what it holds and when it was changed.
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
fn a_model_at_another_address_is_proven_by_one_request() {
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
    let mut running = closed(&home).silent_stdin().arg("onboard").spawn();
    running.wait_for_stdout("Number or name");
    running.types("other\n");
    for (asked, typed) in [
        ("Address", "http://127.0.0.1:1/v1".to_owned()),
        ("Another address, or Enter", model.base()),
        ("A name for it [server]: ", "openai".to_owned()),
        ("openai is taken", "gpu-box".to_owned()),
        ("Key, not shown", "sk-wrong-one".to_owned()),
        ("Type another key?", String::new()),
        ("Key, not shown", CANARY.to_owned()),
        ("Model [qwen3]: ", "embedder".to_owned()),
        ("Send it a test question", String::new()),
        ("Choose again?", String::new()),
        // What was typed is not typed again.
        ("or skip [1, gpu-box]: ", String::new()),
        ("Address [http://127.0.0.1:", String::new()),
        ("Enter: keep the current one", String::new()),
        ("Model [qwen3]: ", "llama".to_owned()),
        (
            "gpu-box does not list llama [keep, or another name]: ",
            "qwen".to_owned(),
        ),
        (
            "gpu-box does not list qwen [keep, or another name]: ",
            "qwen3".to_owned(),
        ),
        ("Send it a test question", String::new()),
        ("Connect a Telegram bot?", "n".to_owned()),
    ] {
        running.wait_for_next_stdout(asked);
        running.types(&format!("{typed}\n"));
    }
    let run = running.finish();
    run.exits(0);
    assert!(run.stdout.contains("said \"ready\""), "{}", run.stdout);
    assert!(
        run.stdout.contains("The models could not be listed: "),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("1  qwen3     8192 tokens, tools\r\n"),
        "{}",
        run.stdout
    );
    assert!(!run.stdout.contains(CANARY), "{}", run.stdout);
    let entry = json!({ "model": "gpu-box/*", "api_base": model.base(), "api_key": CANARY });
    assert_eq!(config(&home)["model_list"], json!([entry]));
    assert_eq!(
        config(&home)["agents"]["defaults"]["model_name"],
        "gpu-box/qwen3"
    );
}

#[test]
fn the_first_who_writes_to_the_bot_and_is_confirmed_is_its_owner() {
    let api = BotApi::start();
    let home = Home::empty();
    home.config("{\n  \"agents\": { \"defaults\": { \"model_name\": \"demo/demo\" } }\n}\n");
    api.text(666, "hello");
    let onboard = |step: &str| {
        home.bantam()
            .env("BANTAM_CHANNELS_TELEGRAM_API_BASE", api.base())
            .on_a_terminal()
            .silent_stdin()
            .args(["onboard", step])
    };
    let mut running = onboard("telegram").spawn();
    for typed in ["1:no-such-token", TOKEN] {
        running.wait_for_next_stdout("Token, not shown");
        running.types(&format!("{typed}\n"));
    }
    running.wait_for_next_stdout("(id 666). Is that you?");
    running.types("n\n");
    api.text(42, "it is me");
    running.wait_for_next_stdout("(id 42). Is that you?");
    running.types("\n");
    let run = running.finish();
    run.exits(0);
    assert!(!run.stdout.contains("TEST-token"), "{}", run.stdout);
    let telegram = json!({ "token": TOKEN, "enabled": true, "allow_from": [42] });
    assert_eq!(config(&home)["channels"]["telegram"], telegram);
    // Once more changes nothing.
    let before = fs::read(home.path("config.json")).unwrap();
    let run = onboard("telegram").spawn().finish();
    assert!(
        run.exits(0).stdout.contains("Keeping the token") && !run.stdout.contains("kept   "),
        "{}",
        run.stdout
    );
    assert_eq!(fs::read(home.path("config.json")).unwrap(), before);
}

#[test]
fn the_models_of_an_ollama_are_listed_with_what_they_can_do_and_chosen_by_number() {
    let ollama = Model::answering(|request, _| match request.path.as_str() {
        "/v1/models" => Reply::json(
            200,
            &json!({ "data": [ { "id": "nomic-embed-text" }, { "id": "gemma3" }, { "id": "qwen3" } ] }),
        ),
        "/api/ps" => Reply::json(200, &json!({ "models": [] })),
        "/api/show" if request.body["model"] == "qwen3" => Reply::json(
            200,
            &json!({ "parameters": "num_ctx 8192", "capabilities": ["completion", "tools"] }),
        ),
        "/api/show" => Reply::json(200, &json!({ "capabilities": ["completion", "vision"] })),
        _ => Reply::text("ready"),
    });
    let home = Home::empty();
    let list = json!([{ "model_name": "ollama", "model": "ollama/-", "api_base": ollama.base() }]);
    let mut running = closed(&home)
        .env("BANTAM_MODEL_LIST", list.to_string())
        .silent_stdin()
        .arg("onboard")
        .spawn();
    for (asked, typed) in [
        ("or skip [1", "ollama"),
        ("Model [qwen3]: ", "1"),
        ("Send it a test question", "n"),
    ] {
        running.wait_for_next_stdout(asked);
        running.types(&format!("{typed}\n"));
    }
    running.types("\u{4}");
    let run = running.finish();
    run.exits(0);
    for line in [
        "1  gemma3            4096 tokens, images",
        "2  qwen3             8192 tokens, tools",
    ] {
        assert!(run.stdout.contains(line), "{line}: {}", run.stdout);
    }
    assert_eq!(config(&home)["model_list"][0]["model"], "ollama/gemma3");
}

#[test]
fn a_model_is_added_to_those_that_are_there() {
    let model = Model::scripted((0..4).map(|_| Reply::text("ready")));
    let home = Home::empty();
    let before = json!({ "model_name": "vllm", "model": "demo/demo" });
    home.config(&json!({ "model_list": [before] }).to_string());
    let mut running = closed(&home)
        .silent_stdin()
        .args(["onboard", "model"])
        .spawn();
    for (asked, typed) in [
        ("or skip [", "other".to_owned()),
        ("Address", model.base()),
        ("A name for it [server]: ", String::new()),
        ("Key, not shown", String::new()),
        ("Model: ", "qwen3".to_owned()),
        ("Send it a test question", String::new()),
        ("Use server/qwen3 from now on?", "n".to_owned()),
    ] {
        running.wait_for_next_stdout(asked);
        running.types(&format!("{typed}\n"));
    }
    running.finish().exits(0);
    assert_eq!(config(&home)["model_list"][0], before);
    assert!(config(&home)["agents"].is_null());
    assert_eq!(config(&home)["model_list"][1]["model"], "server/*");

    // It is there the next time, and keeps what nobody is asked about.
    let mut edited = config(&home);
    edited["model_list"][1]["request_timeout"] = json!(77);
    home.config(&edited.to_string());
    let mut running = closed(&home)
        .silent_stdin()
        .args(["onboard", "model"])
        .spawn();
    for (asked, typed) in [
        ("   1  server      configured: http://127.0.0.1:", ""),
        ("or skip [", "1"),
        ("Address [http://127.0.0.1:", ""),
        ("Key, not shown (Enter: no key)", CANARY),
        ("Model: ", "qwen4"),
        ("Send it a test question", ""),
        ("Use server/qwen4 from now on?", ""),
    ] {
        running.wait_for_next_stdout(asked);
        if !asked.starts_with(' ') {
            running.types(&format!("{typed}\n"));
        }
    }
    running.finish().exits(0);
    let listed = &config(&home)["model_list"];
    assert_eq!(
        (
            listed.as_array().unwrap().len(),
            &listed[1]["request_timeout"],
            &listed[1]["api_key"]
        ),
        (2, &json!(77), &json!(CANARY))
    );
    let chosen = &config(&home)["agents"]["defaults"]["model_name"];
    assert_eq!(chosen, "server/qwen4");
    // And the model that answers is what Enter means.
    let mut running = closed(&home)
        .silent_stdin()
        .args(["onboard", "model"])
        .spawn();
    for (asked, typed) in [
        ("or skip [1, server]: ", ""),
        ("Address [", ""),
        ("Key, not shown (Enter: keep the current one)", ""),
        ("Model [qwen4]: ", ""),
        ("Send it a test question", "n"),
    ] {
        running.wait_for_next_stdout(asked);
        running.types(&format!("{typed}\n"));
    }
    running.finish().exits(0);
    home.bantam()
        .args(["onboard", "bot"])
        .run()
        .exits(2)
        .fails_with_a_hint();
    home.bantam()
        .args(["onboard", "model"])
        .run()
        .exits(2)
        .fails_with_a_hint();
}

/// A vendor, and an address under a name that stands for one model.
#[test]
fn configured_hosts_come_first_and_keep_what_is_set() {
    let base = "http://127.0.0.1:1/v1";
    let home = Home::empty();
    let list = json!([
        { "model_name": "mine", "model": "Qwen/Qwen3-8B", "api_base": base },
        { "model_name": "openai", "model": "openai/gpt-5", "api_keys": ["sk-set-by-hand"] },
        { "model_name": "second", "model": "openai/gpt-5-mini", "api_keys": ["sk-set-by-hand"] },
    ]);
    let settings =
        json!({ "agents": { "defaults": { "model_name": "openai" } }, "model_list": list });
    home.config(&settings.to_string());
    let talk = |asked: &[(&str, &str)]| {
        let mut running = closed(&home)
            .silent_stdin()
            .args(["onboard", "model"])
            .spawn();
        answers(&mut running, asked);
        let run = running.finish();
        run.exits(0);
        assert!(!run.stdout.contains("sk-"), "{}", run.stdout);
        run.stdout.clone()
    };
    // Enter alone changes nothing.
    let told = talk(&[
        ("or skip [2, openai]: ", ""),
        ("Key, not shown (Enter: keep the current one): ", ""),
        ("Model [gpt-5]: ", ""),
        ("Send it a test question", "n"),
    ]);
    for line in [
        "   1  mine        configured: http://127.0.0.1:1/v1\r\n",
        "   2  openai      configured: https://api.openai.com/v1\r\n",
    ] {
        assert!(told.contains(line), "{told}");
    }
    assert_eq!(told.matches("  openai ").count(), 1, "{told}");
    assert_eq!(config(&home), settings);
    // Another model gets the same key.
    talk(&[
        ("or skip [2, openai]: ", "OpenAI"),
        ("Key, not shown (Enter: keep the current one): ", ""),
        ("Model [gpt-5]: ", "gpt-5-nano"),
        ("Send it a test question", "n"),
        ("Use openai-2 from now on?", "n"),
    ]);
    let added = json!({ "model_name": "openai-2", "model": "openai/gpt-5-nano", "api_key": "sk-set-by-hand" });
    assert_eq!(config(&home)["model_list"][3], added);
    // Its address is asked for, and the other models there have its name in front.
    talk(&[
        ("or skip [", "mine"),
        ("Address [http://127.0.0.1:1/v1]: ", ""),
        ("Key, not shown (Enter: no key): ", ""),
        ("Model: ", "acme/small"),
        ("Send it a test question", "n"),
        ("Use mine/acme/small from now on?", ""),
    ]);
    assert_eq!(
        config(&home)["model_list"][4],
        json!({ "model": "mine/*", "api_base": base })
    );
    let status = home.bantam().arg("status").run();
    prints_line(status.exits(0), "model      mine/acme/small");
}

/// Answers questions at a terminal.
#[track_caller]
fn answers(running: &mut crate::harness::Running<'_>, asked: &[(&str, &str)]) {
    for (question, typed) in asked {
        running.wait_for_next_stdout(question);
        running.types(&format!("{typed}\n"));
    }
}

#[test]
fn a_finished_home_is_shown_and_changed_by_name() {
    let model = Model::answering(|request, _| match request.header("authorization") {
        Some("Bearer sk-new-key") => Reply::text("ready"),
        _ => Reply::error(401, "no such key"),
    });
    let home = Home::empty();
    let entry = json!({ "model_name": "mine", "model": "vllm/x", "api_base": model.base(), "api_key": "sk-old-key" });
    home.config(
        &json!({ "agents": { "defaults": { "model_name": "mine" } }, "model_list": [entry] })
            .to_string(),
    );
    let mut running = closed(&home).silent_stdin().arg("onboard").spawn();
    answers(
        &mut running,
        &[
            ("Change model, key or bot?", "modle"),
            ("type model, key, bot", "key"),
            ("Key, not shown", "sk-wrong-one"),
            ("Type another key?", ""),
            ("Key, not shown", "sk-new-key"),
            ("Change model, key or bot?", ""),
        ],
    );
    let run = running.finish();
    run.exits(0);
    assert!(run.stdout.contains("vllm/x"), "{}", run.stdout);
    assert!(!run.stdout.contains("sk-"), "{}", run.stdout);
    assert_eq!(config(&home)["model_list"][0]["api_key"], "sk-new-key");
}

#[test]
fn whoever_stops_keeps_what_is_proven_and_an_ended_line() {
    let model = Model::answering(|_, _| Reply::text("ready"));
    let home = Home::empty();
    let mut running = closed(&home)
        .silent_stdin()
        .arg("onboard")
        .before("echo next-line")
        .spawn();
    let base = model.base();
    answers(
        &mut running,
        &[
            ("or skip [1", "other"),
            ("Address", &base),
            ("A name for it", ""),
            ("Key, not shown", ""),
            ("Model: ", "qwen3"),
            ("Send it a test question", ""),
        ],
    );
    running.wait_for_next_stdout("Connect a Telegram bot?");
    running.types("\u{3}");
    let run = running.finish();
    run.exits(130);
    assert!(
        run.stdout.contains("\nnext-line") || run.stdout.trim_end().ends_with("] ^C"),
        "{}",
        run.stdout
    );
    assert!(
        run.stdout.contains("] ^C\r\n"),
        "the prompt has its own line: {}",
        run.stdout
    );
    assert_eq!(
        config(&home)["agents"]["defaults"]["model_name"],
        "server/qwen3"
    );
}

/// Some hosts list their models for everybody.
#[test]
fn a_key_that_is_refused_by_an_answer_is_asked_for_again_alone() {
    let model = Model::answering(|request, _| {
        match (request.header("authorization"), request.method.as_str()) {
            (_, "GET") => Reply::json(200, &json!({ "data": [{ "id": "qwen3" }] })),
            (Some("Bearer sk-right-one"), _) => Reply::text("ready"),
            _ => Reply::error(401, "no such key"),
        }
    });
    let home = Home::empty();
    let mut running = closed(&home).silent_stdin().arg("onboard").spawn();
    for (asked, typed) in [
        ("Number or name", "other"),
        ("Address", &model.base()),
        ("A name for it", "box"),
        ("Key, not shown (Enter: no key): ", ""),
        ("Model [qwen3]: ", ""),
        ("Send it a test question", ""),
        ("no such key", ""),
        ("Type a key? [Y/n] ", ""),
        ("Key, not shown", "sk-wrong-one"),
        ("no such key", ""),
        ("Type another key? [Y/n] ", ""),
        ("Key, not shown", "sk-right-one"),
        ("said \"ready\"", ""),
        ("Connect a Telegram bot?", "\u{4}"),
    ] {
        running.wait_for_next_stdout(asked);
        if !matches!(asked, "no such key" | "said \"ready\"") {
            let enter = if typed == "\u{4}" { "" } else { "\n" };
            running.types(&format!("{typed}{enter}"));
        }
    }
    let run = running.finish();
    run.exits(0);
    // It asks for the key itself.
    assert!(!run.stdout.contains("`bantam onboard"), "{}", run.stdout);
    let entry = json!({ "model": "box/*", "api_base": model.base(), "api_key": "sk-right-one" });
    assert_eq!(config(&home)["model_list"], json!([entry]));
}
