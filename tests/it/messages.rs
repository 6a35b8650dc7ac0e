//! Texts for new users: errors, notices and hints, on both streams.

use std::fs;

use crate::harness::Home;
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
fn permanent_failure_does_not_restart_the_service() {
    let home = Home::empty();
    let unit = home.bantam().arg("service").run().stdout;
    // Wrong usage, an invalid configuration, refused credentials.
    assert!(
        unit.contains("\nRestartPreventExitStatus=2 3 4\n"),
        "{unit}"
    );
}
