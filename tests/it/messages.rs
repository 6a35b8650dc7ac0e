//! Texts for new users: errors, notices and hints, on both streams.

use std::fs;

use serde_json::json;

use crate::harness::{CANARY, Home, Run};
use crate::model::{Model, Reply};

#[test]
fn json_prints_an_object_for_wrong_usage_too() {
    let home = Home::empty();
    for args in [
        "agent --json --nonsense hi",
        "agent --json --max-steps",
        "agent --json --max-steps 0 hi",
        "agent --events --nonsense hi",
        "status --json extra",
        "usage --json --days x",
        "sessions list --json extra",
        "sessions show --json",
        "cron list --json extra",
        "cron history --json a b",
    ] {
        let run = home.bantam().args(args.split(' ')).run();
        run.exits(2).fails_with_a_hint();
        let object = run.json();
        assert_eq!(
            (&object["ok"], &object["error"]["kind"]),
            (&false.into(), &"usage".into()),
            "{args}"
        );
        assert!(object["error"]["hint"].is_string(), "{args}: {object}");
    }
    // A question needs no `agent`.
    for args in [
        &["--json", "a b", "--nope"][..],
        &["a b", "--json", "-x"],
        &["--json", ""],
        &["--json", "--timeout", "x"],
    ] {
        let run = home.bantam().args(args).run();
        run.exits(2).fails_with_a_hint();
        assert_eq!(run.json()["error"]["kind"], "usage", "{args:?}");
    }
    let run = home
        .bantam()
        .args(["sessions", "show", "nobody", "--json"])
        .run();
    assert_eq!(run.exits(2).json()["error"]["kind"], "usage");
    // The question did not request an object.
    home.bantam()
        .args(["agent", "-m", "hi", "--", "--json"])
        .run()
        .exits(2)
        .prints("");
    home.bantam()
        .args(["skills", "list", "--json"])
        .run()
        .exits(2)
        .prints("");
}

#[test]
fn non_utf8_stdin_is_read_with_notice() {
    let model = Model::scripted([Reply::text("A menu."), Reply::text("A menu.")]);
    let home = Home::with(&model.config());
    let run = home
        .bantam()
        .args(["agent", "-m", "what is this?"])
        .stdin(b"caf\xe9 au lait\n")
        .run();
    run.exits(0)
        .prints("A menu.\n")
        .says("standard input is not UTF-8");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    assert!(
        model
            .request(0)
            .last("user")
            .contains("caf\u{fffd} au lait")
    );
    let run = home
        .bantam()
        .args(["agent", "-q", "-m", "what is this?"])
        .stdin(b"caf\xe9\n")
        .run();
    run.exits(0).prints("A menu.\n").is_quiet();
}

#[test]
fn damaged_home_file_is_reported_in_brief() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let home = Home::with(&model.config());
    home.agent(["-m", "first"]).exits(0).is_quiet();
    let path = home.path("sessions/cli_default.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("\"role\":\"user\"", "\"role\":\"uzer\"", 1),
    )
    .unwrap();
    let run = home.agent(["-m", "second"]);
    run.exits(0)
        .prints("Hello.\n")
        .says("cli_default.jsonl:2: ");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);

    home.dir("memory/USER.md");
    let run = home.agent(["-s", "other", "-m", "third"]);
    run.exits(0).prints("Hello.\n").says("USER.md");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    home.agent(["-s", "other", "-q", "-m", "fourth"])
        .exits(0)
        .prints("Hello.\n")
        .is_quiet();
}

#[test]
fn demo_user_learns_to_set_a_model() {
    let home = Home::empty();
    home.config("{\"agents\": {\"defaults\": {\"model_name\": \"demo/demo\"}}}");
    home.bantam().args(["onboard", "--yes"]).run().exits(0);
    // An exported key has no effect while config.json names the demo.
    let bantam = || home.bantam().env("OPENROUTER_API_KEY", CANARY);
    let answer = bantam().args(["agent", "-m", "hello"]).run();
    assert!(
        answer
            .exits(0)
            .stdout
            .contains("agents.defaults.model_name"),
        "{}",
        answer.stdout
    );
    let doctor = bantam().arg("doctor").run().stdout;
    let tip = doctor
        .lines()
        .skip_while(|line| !line.starts_with("--    model: demo/demo"))
        .nth(1)
        .unwrap();
    assert!(tip.contains("bantam onboard"), "{tip}");
    assert!(
        doctor.contains("sessions: 1 file without damage"),
        "{doctor}"
    );
}

#[test]
fn the_name_alone_prints_help() {
    let home = Home::empty();
    let run = home.bantam().run();
    run.exits(0).is_quiet();
    assert!(
        run.stdout.contains("bantam agent [TEXT...]"),
        "{}",
        run.stdout
    );
    assert!(!home.path("").exists());
}

#[test]
fn onboarding_claims_no_more_than_it_has_tried() {
    let home = Home::empty();
    let run = home
        .bantam()
        .env("OPENAI_API_KEY", "sk-fake-no-such-key")
        .args(["onboard", "--yes"])
        .run();
    run.exits(0);
    assert!(!run.stdout.contains("is ready"), "{}", run.stdout);
    assert!(
        run.stdout.contains("bantam doctor --provider"),
        "{}",
        run.stdout
    );
}

#[test]
fn missing_skill_error_omits_system_message() {
    let home = Home::empty();
    let run = home.bantam().args(["skills", "install", "sk/nosuch"]).run();
    run.exits(2)
        .prints("")
        .fails_with_a_hint()
        .says("no folder named \"sk/nosuch\"")
        .does_not_say("os error");
}

#[test]
fn invalid_home_error_names_bantam_home() {
    let home = Home::empty();
    let file = home.write("file", "not a directory");
    for args in [
        "agent hi",
        "status",
        "doctor",
        "sessions list",
        "cron list",
        "cron add -e 60 -m hi",
        "usage",
        "tools",
    ] {
        let run = home
            .bantam()
            .env("BANTAM_HOME", &file)
            .args(args.split(' '))
            .run();
        run.exits(3)
            .prints("")
            .fails_with_a_hint()
            .says("is not a directory")
            .says("hint: set BANTAM_HOME");
        run.does_not_say("os error");
    }
    let run = home
        .bantam()
        .env("BANTAM_HOME", "/proc/nowhere")
        .args(["agent", "hi"])
        .run();
    run.prints("")
        .fails_with_a_hint()
        .says("hint: set BANTAM_HOME");
    let config = json!({ "agents": { "defaults": { "workspace": "/proc/nowhere" } } });
    let run = Home::with(&config)
        .bantam()
        .args(["agent", "--model", "demo/demo", "hi"])
        .run();
    run.prints("")
        .fails_with_a_hint()
        .says("hint: set agents.defaults.workspace");
}

#[test]
fn an_export_typed_at_the_prompt_does_not_reach_the_model() {
    let model = Model::never_asked();
    let home = Home::with(&model.config());
    let mut talk = home
        .bantam()
        .arg("agent")
        .on_a_terminal()
        .silent_stdin()
        .spawn();
    talk.wait_for_stdout("> ");
    talk.types("export OPENAI_API_KEY=sk-typed-by-hand\n");
    talk.wait_for_stdout("that is a shell command");
    talk.types("\u{4}");
    let run = talk.finish();
    run.exits(0);
    // The shell's prompt starts on a new line.
    assert!(run.stdout.ends_with("> \r\n"), "{:?}", run.stdout);
    assert!(
        home.files()
            .iter()
            .all(|file| !file.starts_with("sessions/")),
        "{:?}",
        home.files()
    );
}

#[test]
fn permanent_failure_does_not_restart_the_service() {
    let home = Home::empty();
    let unit = home.bantam().arg("service").run().stdout;
    // Wrong usage, an invalid configuration, refused credentials.
    assert!(
        unit.contains("\nRestartPreventExitStatus=2 3 4\n"),
        "{unit}"
    );
}

#[test]
fn status_does_not_call_a_secret_set_whose_variable_is_not() {
    let home = Home::with(&json!({ "channels": { "telegram": { "token": "${NOWHERE}" } } }));
    let line = |run: &Run| {
        run.stdout
            .lines()
            .find(|line| line.contains("telegram.token"))
            .unwrap()
            .to_owned()
    };
    let run = home.bantam().args(["status", "-v"]).run();
    assert_eq!(
        line(&run),
        "channels.telegram.token = (NOWHERE is not set) (config.json)"
    );
    let run = home
        .bantam()
        .env("NOWHERE", CANARY)
        .args(["status", "-v"])
        .run();
    assert_eq!(line(&run), "channels.telegram.token = (set) (config.json)");
}
