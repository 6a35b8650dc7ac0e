//! `bantam doctor`: results for healthy and damaged homes, which it leaves unchanged.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::botapi::{BOT_NAME, BotApi, TOKEN};
use crate::harness::{Home, Run, config_for, merged};
use crate::model::{Model, Reply};
use crate::stored::sealed;
use crate::without_syscall::{self, ANYTHING_THAT_HOLDS, LANDLOCK, NAMESPACES};

/// Returns a home whose model has an unused address.
fn healthy() -> Home {
    Home::with(&config_for("http://127.0.0.1:9/v1"))
}

fn doctor(home: &Home) -> Run {
    home.bantam().arg("doctor").run()
}

/// Returns the first line with this prefix.
#[track_caller]
fn line<'r>(run: &'r Run, start: &str) -> &'r str {
    let found = run.stdout.lines().find(|line| line.starts_with(start));
    found.unwrap_or_else(|| panic!("no line begins with {start:?}:\n{}", run.stdout))
}

/// Returns the command suggested after the line with this prefix; empty if there is none.
#[track_caller]
fn fix(run: &Run, start: &str) -> String {
    line(run, start);
    let mut below = run
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with(start))
        .skip(1);
    let fix = below.next().unwrap_or_default();
    let fix = fix
        .strip_prefix("  fix: ")
        .or_else(|| fix.strip_prefix("  tip: "));
    fix.unwrap_or_default().to_owned()
}

/// Returns the names of the break-outs that were not stopped or not tried.
fn out_of_the_cage(run: &Run) -> Vec<&str> {
    run.stdout
        .lines()
        .filter(|line| line.contains("break-out: ") && !line.starts_with("ok "))
        .collect()
}

/// Returns the number of stopped break-outs.
fn break_outs(run: &Run) -> usize {
    let start = "ok    break-out: ";
    let found = run.stdout.lines().find_map(|line| line.strip_prefix(start));
    let count = found.and_then(|found| found.split(' ').next()?.parse().ok());
    count.unwrap_or(0)
}

fn set_mode(home: &Home, below: &str, mode: u32) {
    fs::set_permissions(home.path(below), fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn healthy_home_passes_and_is_unchanged() {
    let home = healthy();
    home.write("workspace/notes.txt", "mine\n");
    home.write("agent/AGENT.md", "Be kind.\n");
    let before = home.files();
    let run = doctor(&home);
    run.exits(0).is_quiet();
    for start in [
        "ok    home: ",
        "ok    config: ",
        "ok    sessions: ",
        "ok    workspace: ",
        "ok    sandbox: ",
    ] {
        line(&run, start);
    }
    let model = line(&run, "ok    model: ");
    assert!(
        model.contains("openai/test-model at 127.0.0.1:9") && model.contains("config.json"),
        "{model}"
    );
    assert!(!run.stdout.contains("FAIL"), "{}", run.stdout);
    assert_eq!(out_of_the_cage(&run), [""; 0]);
    assert_eq!(break_outs(&run), 3, "{}", run.stdout);
    assert_eq!(home.files(), before);
}

#[test]
fn a_broken_configuration_is_shown_with_its_place() {
    let home = Home::empty();
    home.config("{ \"tools\": { \"exec\": { \"sandbox\": \"of\" } } }");
    let run = doctor(&home);
    run.exits(1);
    let found = line(&run, "FAIL  config: ");
    assert!(
        found.contains("config.json") && found.contains("tools.exec.sandbox"),
        "{found}"
    );
    assert!(
        fix(&run, "FAIL  config: ").contains("auto"),
        "{}",
        run.stdout
    );
    line(&run, "--    sandbox: not checked");
}

#[test]
fn loose_permissions_get_a_working_fix() {
    let home = healthy();
    set_mode(&home, "config.json", 0o666);
    set_mode(&home, "", 0o755);
    let run = doctor(&home);
    run.exits(1);
    let lines = [fix(&run, "FAIL  home: "), fix(&run, "FAIL  config: ")];
    for line in lines {
        let shell = std::process::Command::new("/bin/sh")
            .args(["-c", &line])
            .status()
            .unwrap();
        assert!(shell.success(), "{line}");
    }
    doctor(&home).exits(0);
}

#[test]
fn a_damaged_conversation_is_told_by_line_and_not_touched() {
    let home = healthy();
    let good = |seq: u64, rest: &str| sealed(&format!("\"seq\":{seq},{rest}}}"));
    let header = good(
        0,
        "\"v\":1,\"session\":\"cli_x\",\"created\":\"2026-01-01T00:00:00.000Z\"",
    );
    let user = good(1, "\"role\":\"user\",\"content\":\"hello\"");
    let text = format!(
        "{header}{}{}",
        user.replace("hello", "hullo"),
        good(2, "\"turn\":\"done\"")
    );
    let damaged = home.write("sessions/cli_x.jsonl", &text);
    let torn = home.write(
        "sessions/cli_torn.jsonl",
        format!("{header}{{\"crc\":\"0000"),
    );
    home.write("sessions/cli_good.jsonl", format!("{header}{user}"));
    home.dir("workspace");
    let before = home.files();
    let run = doctor(&home);
    run.exits(1);
    let found = line(&run, "FAIL  sessions: ");
    assert!(
        found.contains(&format!("{}:2:", damaged.display())),
        "{found}"
    );
    assert!(
        fix(&run, "FAIL  sessions: ").starts_with("go on"),
        "{}",
        run.stdout
    );
    assert!(line(&run, "--    sessions: ").contains(&torn.display().to_string()));
    assert!(!run.stdout.contains("cli_good"), "{}", run.stdout);
    assert_eq!(home.files(), before);
    assert_eq!(fs::read_to_string(damaged).unwrap(), text);
    assert!(fs::read_to_string(torn).unwrap().ends_with("\"0000"));
}

#[test]
fn without_a_sandbox_it_says_that_nothing_holds() {
    let off = json!({ "tools": { "exec": { "sandbox": "off" } } });
    let run = doctor(&Home::with(&merged(
        config_for("http://127.0.0.1:9/v1"),
        &off,
    )));
    run.exits(0);
    assert!(
        line(&run, "--    sandbox: ").contains("nothing confines a command"),
        "{}",
        run.stdout
    );
    assert_eq!(break_outs(&run), 0);
}

#[test]
fn missing_namespaces_fall_back_to_landlock() {
    let run = healthy()
        .bantam()
        .arg("doctor")
        .on_a_system_without(&[NAMESPACES])
        .run();
    run.exits(0);
    assert!(
        line(&run, "ok    sandbox: ").contains("Landlock"),
        "{}",
        run.stdout
    );
    let why = line(&run, "--    sandbox: ");
    assert!(
        why.contains("namespaces are refused") && why.contains("git"),
        "{why}"
    );
    assert_eq!(out_of_the_cage(&run), [""; 0]);
    assert_eq!(break_outs(&run), 3, "{}", run.stdout);
}

#[test]
fn without_landlock_namespaces_hold() {
    let run = healthy()
        .bantam()
        .arg("doctor")
        .on_a_system_without(&[LANDLOCK])
        .run();
    run.exits(0);
    let sandbox = line(&run, "ok    sandbox: ");
    assert!(
        sandbox.contains("namespaces") && !sandbox.contains("Landlock"),
        "{sandbox}"
    );
    assert_eq!(out_of_the_cage(&run), [""; 0]);
    assert_eq!(break_outs(&run), 3, "{}", run.stdout);
}

#[test]
fn without_either_it_fails_and_names_the_page_for_systems() {
    let home = healthy();
    let run = home
        .bantam()
        .arg("doctor")
        .on_a_system_without(&[NAMESPACES, LANDLOCK])
        .run();
    run.exits(1);
    assert!(
        line(&run, "FAIL  sandbox: ").contains("no sandbox"),
        "{}",
        run.stdout
    );
    let fix = fix(&run, "FAIL  sandbox: ");
    for part in ["bantam help sandbox", "tools.exec.enabled false"] {
        assert!(fix.contains(part), "{fix}");
    }
    assert_eq!(break_outs(&run), 0);
}

#[test]
fn every_command_gets_out_of_a_sandbox_that_does_not_hold() {
    let home = healthy();
    home.write("agent/AGENT.md", "Be kind.\n");
    home.dir("workspace");
    let before = home.files();
    let run = home
        .bantam()
        .arg("doctor")
        .on_a_system_without(ANYTHING_THAT_HOLDS)
        .run();
    run.exits(1);
    // It trusts its sandbox, as reported by the kernel; the commands show the truth.
    line(&run, "ok    sandbox: ");
    let escapes = run
        .stdout
        .lines()
        .filter(|line| line.starts_with("FAIL  break-out: "));
    assert_eq!(escapes.count(), 3, "{}", run.stdout);
    assert!(
        fix(&run, "FAIL  break-out: ").contains("tools.exec.enabled false"),
        "{}",
        run.stdout
    );
    assert_eq!(home.files(), before);
}

#[test]
fn model_check_tests_a_tool_call() {
    let model = Model::scripted([
        Reply::error(
            400,
            "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.",
        ),
        Reply::call("ping", &json!({ "word": "ready" })),
        Reply::error(401, "no such key"),
    ]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "tools": { "exec": { "enabled": false } } }),
    ));
    let run = home.bantam().args(["doctor", "--provider"]).run();
    run.exits(0);
    for start in ["ok    answer: ", "ok    tools: "] {
        line(&run, start);
    }
    assert!(
        line(&run, "--    learned: ").contains("max_completion_tokens"),
        "{}",
        run.stdout
    );
    assert_eq!(model.request(1).tools(), ["ping"]);
    let body: Value = model.request(1).body;
    assert!(
        body["max_completion_tokens"]
            .as_u64()
            .is_some_and(|tokens| tokens <= 1024),
        "{body}"
    );
    let run = home
        .bantam()
        .args(["doctor", "--provider", "openai/test-model"])
        .run();
    run.exits(1);
    assert!(
        line(&run, "FAIL  answer: ").contains("no such key"),
        "{}",
        run.stdout
    );
    assert!(
        fix(&run, "FAIL  answer: ").contains("key"),
        "{}",
        run.stdout
    );
    let kept: Vec<String> = home
        .files()
        .into_iter()
        .filter(|path| path.starts_with("sessions/"))
        .collect();
    assert_eq!(kept, [""; 0]);
}

#[test]
fn bot_check_reports_blocked_messages() {
    let api = BotApi::start();
    let home = |token: &str, allow_from: Value| {
        let bot = json!({"enabled": true, "token": token, "allow_from": allow_from, "api_base": api.base()});
        Home::with(&merged(
            config_for("http://127.0.0.1:9/v1"),
            &json!({"channels": {"telegram": bot}}),
        ))
    };
    let run = doctor(&home(TOKEN, json!([1])));
    assert!(
        line(&run, "ok    telegram: ").contains(&format!("@{BOT_NAME}")),
        "{}",
        run.stdout
    );
    run.exits(0);
    let run = doctor(&home(TOKEN, json!([])));
    line(
        &run,
        "FAIL  telegram: channels.telegram.allow_from is empty",
    );
    run.exits(1);
    let run = doctor(&home("123456:TEST-another", json!([1])));
    assert!(
        line(&run, "FAIL  telegram: Telegram refused the token").contains("Unauthorized"),
        "{}",
        run.stdout
    );
    assert!(
        fix(&run, "FAIL  telegram: ").contains("@BotFather"),
        "{}",
        run.stdout
    );
    run.exits(1);
    api.webhook(true);
    api.text(1, "is anybody there?");
    let run = doctor(&home(TOKEN, json!([1])));
    line(&run, "FAIL  telegram: a webhook is set");
    line(&run, "--    telegram: 1 message waiting at Telegram");
    run.exits(1);
}

#[test]
fn unwritable_home_has_a_fix() {
    let home = healthy();
    home.dir("workspace");
    set_mode(&home, "", 0o500);
    for args in [
        &["cron", "add", "-m", "x", "-e", "60"][..],
        &["config", "set", "log.json", "true"],
        &["agent", "-m", "hi"],
    ] {
        let run = without_syscall::privileges(|| home.bantam().args(args).run());
        run.exits(1)
            .fails_with_a_hint()
            .says("is a directory you can write, or set BANTAM_HOME to another");
    }
    let run = without_syscall::privileges(|| doctor(&home));
    set_mode(&home, "", 0o700);
    run.exits(1);
    assert!(!run.stdout.contains("os error"), "{}", run.stdout);
    for start in ["FAIL  home: ", "FAIL  break-out: "] {
        assert!(!fix(&run, start).is_empty(), "{}", run.stdout);
    }
}
