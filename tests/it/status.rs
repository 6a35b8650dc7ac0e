//! Setup and origins of values; reading them changes nothing and reveals no secret.

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, config_for, has_all, has_fields, merged};

#[test]
fn status_without_setup_creates_no_files() {
    let home = Home::empty();
    let run = home.run(["status"]);
    run.exits(0).is_quiet();
    for part in [
        env!("CARGO_PKG_VERSION"),
        "bantam onboard",
        "demo",
        "sessions   none",
    ] {
        assert!(
            run.stdout.contains(part),
            "{part:?} is missing: {}",
            run.stdout
        );
    }
    assert!(!home.path("").exists(), "looking makes nothing");
}

#[test]
fn settings_are_shown_with_their_sources_and_without_secrets() {
    let extra = json!({ "agents": { "defaults": { "max_tokns": 1 } }, "channels": { "telegram": { "token": CANARY } } });
    let home = Home::with(&merged(config_for("http://localhost:1/v1"), &extra));
    let show = |args: &[&str]| {
        let variable = ("BANTAM_AGENTS_DEFAULTS_TIMEOUT", "77");
        let run = home.bantam().env(variable.0, variable.1).args(args).run();
        run.exits(0).is_quiet();
        run.stdout.clone()
    };
    let page = show(&["status"]);
    for line in [
        "model      openai/test-model",
        "key        config.json (plain text)",
    ] {
        assert!(
            page.lines().any(|l| l == line),
            "{line:?} is missing: {page}"
        );
    }
    has_all(&page, ["warning    ", "max_tokns"]);
    let page = show(&["config", "get"]);
    for (setting, value, source) in [
        ("agents.defaults.max_retries", "2", "config.json"),
        (
            "agents.defaults.timeout",
            "77",
            "the variable BANTAM_AGENTS_DEFAULTS_TIMEOUT",
        ),
        ("model_list[0].api_key", "(set)", "config.json"),
        ("channels.telegram.token", "(set)", "config.json"),
    ] {
        let mut lines = page.lines().filter(|line| line.starts_with(setting));
        let fits = |line: &str| line.contains(&format!(" {value} ")) && line.ends_with(source);
        assert!(lines.any(fits), "{setting}: {page}");
    }
    assert_eq!(home.files(), ["config.json"]);
}

#[test]
fn key_source_is_shown_without_running_commands() {
    let home = Home::empty();
    let key = |text: &str| {
        let list = json!([{ "model_name": "m", "model": "openai/m", "api_key": text }]);
        home.config(&json!({ "model_list": list }).to_string());
        let run = home
            .bantam()
            .env("OPENAI_API_KEY", CANARY)
            .arg("status")
            .run();
        run.exits(0);
        let line = run
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("key "));
        line.unwrap_or_else(|| panic!("no line about the key: {}", run.stdout))
            .trim()
            .to_owned()
    };
    assert_eq!(key(""), "the variable OPENAI_API_KEY");
    assert_eq!(key("${OPENAI_API_KEY}"), "the variable OPENAI_API_KEY");
    assert_eq!(
        key("${NOWHERE}"),
        "the variable NOWHERE, which is not set: export NOWHERE=..."
    );
    assert_eq!(key("file:/nowhere/key"), "the file /nowhere/key");
    let ran = home.path("ran");
    assert_eq!(
        key(&format!("cmd:/usr/bin/touch {}", ran.display())),
        "a command in config.json"
    );
    assert!(!ran.exists());
}

#[test]
fn a_missing_key_is_told_with_the_line_that_mends_it() {
    let home = Home::with(
        &json!({ "agents": { "defaults": { "model_name": "deepseek/deepseek-chat" } } }),
    );
    let run = home.run(["status"]);
    run.exits(0);
    has_all(&run.stdout, ["none: ", "export DEEPSEEK_API_KEY="]);
    let object = home.run(["status", "--json"]).json();
    assert_eq!(object["model"], Value::Null);
    assert_eq!(object["error"]["kind"], "config");
}

#[test]
fn status_with_broken_config_exits_3() {
    let home = Home::empty();
    home.config("{ \"agents\": nope }");
    let run = home.run(["status"]);
    run.fails(3).says("line 1");
    has_all(&run.stdout, ["home ", "sessions "]);
    let run = home.run(["status", "--json"]);
    run.exits(3);
    has_fields(
        &run.json(),
        &json!({ "ok": false, "error": { "kind": "config" } }),
    );

    let home = Home::empty();
    home.dir("config.json");
    home.run(["status"]).fails(3).says("config.json");
}
