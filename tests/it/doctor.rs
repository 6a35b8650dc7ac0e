//! `bantam doctor`: results for healthy and broken homes, which it leaves unchanged.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::botapi::{BOT_NAME, BotApi, TOKEN};
use crate::harness::{Bantam, Home, Run, config_for, has_all, merged};
use crate::model::{Model, Reply};
use crate::without_syscall::{self, ANYTHING_THAT_HOLDS, LANDLOCK, NAMESPACES, Withheld};

/// An address where nothing listens.
const CLOSED: &str = "http://127.0.0.1:9/v1";

/// Returns a home whose model has an unused address.
fn healthy() -> Home {
    let home = Home::with(&config_for(CLOSED));
    home.write("agent/AGENT.md", "Be kind.\n");
    home.dir("workspace");
    home
}

fn doctor(home: &Home) -> Run {
    home.run(["doctor"])
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
    let lines = run.stdout.lines();
    let mut below = lines.skip_while(|line| !line.starts_with(start)).skip(1);
    let fix = below.next().unwrap_or_default();
    let words = ["  fix: ", "  tip: "];
    let fix = words.iter().find_map(|word| fix.strip_prefix(word));
    fix.unwrap_or_default().to_owned()
}

/// Returns the lines about break-outs with this prefix.
fn break_outs<'r>(run: &'r Run, start: &str) -> Vec<&'r str> {
    let lines = run.stdout.lines();
    lines
        .filter(|line| line.starts_with(&format!("{start}break-out: ")))
        .collect()
}

#[track_caller]
fn stops_all_break_outs(run: &Run) {
    let stopped = break_outs(run, "ok    ");
    assert!(stopped[0].contains("3 of 3"), "{}", run.stdout);
    let others = [break_outs(run, "FAIL  "), break_outs(run, "--    ")].concat();
    assert_eq!(others, [""; 0]);
}

#[test]
fn healthy_home_passes_and_is_unchanged() {
    let home = healthy();
    home.write("workspace/notes.txt", "mine\n");
    let before = home.files();
    let run = doctor(&home);
    run.exits(0).is_quiet();
    for name in ["home", "config", "sessions", "jobs", "workspace", "sandbox"] {
        line(&run, &format!("ok    {name}: "));
    }
    let model = line(&run, "ok    model: ");
    has_all(model, ["openai/test-model at 127.0.0.1:9", "config.json"]);
    stops_all_break_outs(&run);
    assert_eq!(home.files(), before);
}

/// A broken home or machine, and the line and the cure for it.
struct Broken {
    make: fn(&Home),
    machine: fn(Bantam) -> Bantam,
    line: &'static str,
    cause: &'static str,
    cure: &'static str,
}

const ANY: fn(Bantam) -> Bantam = |bantam| bantam;
const NOTHING: fn(&Home) = |_| ();

/// Other tests have the rows that need a machine of their own: `full::doctor_names_a_full_disk` mounts a small disk, and
/// `owners::doctor_names_files_of_another_user` in tests/root needs root.
#[test]
fn broken_home_has_one_line_with_its_cause_and_cure() {
    let rows = [
        Broken {
            make: |home| drop(home.write("cron/jobs.json", "{ \"jobs\": [")),
            machine: ANY,
            line: "FAIL  jobs: ",
            cause: "cron/jobs.json",
            cure: "mv ",
        },
        Broken {
            make: |home| fs::remove_dir_all(home.path("agent")).unwrap(),
            machine: ANY,
            line: "--    agent: ",
            cause: "agent is missing",
            cure: "bantam onboard --yes",
        },
        Broken {
            make: |home| drop(home.write("sessions/cli_x.jsonl", vec![0; 900])),
            machine: ANY,
            line: "FAIL  sessions: ",
            cause: "cli_x.jsonl",
            cure: "bantam -s x ",
        },
        Broken {
            make: NOTHING,
            machine: |bantam| bantam.env("PATH", "/nowhere"),
            line: "--    pdf: ",
            cause: "pdftotext",
            cure: "sudo apt install poppler-utils",
        },
        Broken {
            make: NOTHING,
            machine: |bantam| bantam.arg("--provider"),
            line: "FAIL  answer: ",
            cause: "the connection was refused",
            cure: "curl -I http://127.0.0.1:9/v1",
        },
        Broken {
            make: |home| {
                let bot =
                    json!({"token": TOKEN, "allow_from": [1], "api_base": "http://127.0.0.1:9"});
                let bot = json!({"channels": {"telegram": bot}});
                home.config(&merged(config_for(CLOSED), &bot).to_string());
            },
            machine: ANY,
            line: "FAIL  telegram: ",
            cause: "cannot reach Telegram",
            cure: "curl ",
        },
        Broken {
            make: NOTHING,
            machine: |bantam| bantam.on_a_system_without(&[NAMESPACES, LANDLOCK]),
            line: "FAIL  sandbox: ",
            cause: "no sandbox",
            cure: "bantam help sandbox",
        },
        Broken {
            make: |home| home.config("{ \"tools\": { \"exec\": { \"sandbox\": \"of\" } } }"),
            machine: ANY,
            line: "FAIL  config: ",
            cause: "tools.exec.sandbox",
            cure: "auto",
        },
    ];
    for row in rows {
        let home = healthy();
        (row.make)(&home);
        let before = home.files();
        let run = (row.machine)(home.bantam().arg("doctor")).run();
        run.exits(i32::from(row.line.starts_with("FAIL")));
        let found = line(&run, row.line);
        assert!(found.contains(row.cause), "{}", run.stdout);
        assert!(fix(&run, row.line).contains(row.cure), "{}", run.stdout);
        let failed = run.stdout.lines().filter(|line| line.starts_with("FAIL"));
        assert!(failed.count() <= 1, "{}", run.stdout);
        assert_eq!(home.files(), before);
    }
}

#[test]
fn loose_permissions_get_a_working_fix() {
    let home = healthy();
    for (below, mode) in [("config.json", 0o666), ("", 0o755)] {
        fs::set_permissions(home.path(below), fs::Permissions::from_mode(mode)).unwrap();
    }
    let run = doctor(&home);
    run.exits(1);
    for line in [fix(&run, "FAIL  home: "), fix(&run, "FAIL  config: ")] {
        let mut shell = std::process::Command::new("/bin/sh");
        let shell = shell.args(["-c", &line]).status().unwrap();
        assert!(shell.success(), "{line}");
    }
    doctor(&home).exits(0);
}

#[test]
fn sandbox_that_is_off_is_reported() {
    let off = json!({ "tools": { "exec": { "sandbox": "off" } } });
    let run = doctor(&Home::with(&merged(config_for(CLOSED), &off)));
    run.exits(0);
    let sandbox = line(&run, "--    sandbox: ");
    assert!(sandbox.contains("commands are not confined"), "{sandbox}");
    assert_eq!(break_outs(&run, "ok    "), [""; 0]);
}

#[test]
fn either_sandbox_alone_stops_break_outs() {
    let without = |withheld: &'static [Withheld]| {
        let home = healthy();
        let run = home
            .bantam()
            .arg("doctor")
            .on_a_system_without(withheld)
            .run();
        run.exits(0);
        stops_all_break_outs(&run);
        run
    };
    let run = without(&[NAMESPACES]);
    assert!(line(&run, "ok    sandbox: ").contains("Landlock"));
    let why = line(&run, "--    sandbox: ");
    assert!(why.contains("namespaces are refused") && why.contains("git"));
    let run = without(&[LANDLOCK]);
    let sandbox = line(&run, "ok    sandbox: ");
    assert!(sandbox.contains("namespaces") && !sandbox.contains("Landlock"));
}

#[test]
fn every_command_gets_out_of_a_sandbox_that_does_not_hold() {
    let home = healthy();
    let before = home.files();
    let bantam = home.bantam().arg("doctor");
    let run = bantam.on_a_system_without(ANYTHING_THAT_HOLDS).run();
    run.exits(1);
    // It trusts its sandbox, as reported by the kernel; the commands show the truth.
    line(&run, "ok    sandbox: ");
    assert_eq!(break_outs(&run, "FAIL  ").len(), 3, "{}", run.stdout);
    let fix = fix(&run, "FAIL  break-out: ");
    assert!(fix.contains("tools.exec.enabled false"), "{fix}");
    assert_eq!(home.files(), before);
}

#[test]
fn model_check_tests_a_tool_call() {
    let model = Model::scripted([
        Reply::call("ping", &json!({ "word": "ready" })),
        Reply::error(401, "no such key"),
    ]);
    let off = json!({ "tools": { "exec": { "enabled": false } } });
    let home = Home::asking(&model, &off);
    let ask = || home.run(["doctor", "--provider"]);
    let run = ask();
    run.exits(0);
    assert!(line(&run, "ok    answer: ").contains("calls tools"));
    assert_eq!(model.request(0).tools(), ["ping"]);
    let run = ask();
    run.exits(1);
    let answer = line(&run, "FAIL  answer: ");
    assert!(answer.contains("no such key"), "{answer}");
    assert!(fix(&run, "FAIL  answer: ").contains("bantam onboard"));
    assert!(!home.path("sessions").exists());
}

#[test]
fn bot_check_reports_blocked_messages() {
    let api = BotApi::start();
    let doctor = |token: &str, allow_from: Value| {
        let bot = json!({"enabled": true, "token": token, "allow_from": allow_from, "api_base": api.base()});
        let bot = json!({"channels": {"telegram": bot}});
        doctor(&Home::with(&merged(config_for(CLOSED), &bot)))
    };
    let run = doctor(TOKEN, json!([1]));
    let bot = line(&run, "ok    telegram: ");
    assert!(bot.contains(&format!("@{BOT_NAME}")), "{bot}");
    run.exits(0);
    let run = doctor(TOKEN, json!([]));
    assert!(line(&run, "FAIL  telegram: ").contains("allow_from is empty"));
    run.exits(1);
    let run = doctor("123456:TEST-another", json!([1]));
    assert!(line(&run, "FAIL  telegram: ").contains("Unauthorized"));
    assert!(fix(&run, "FAIL  telegram: ").contains("@BotFather"));
    run.exits(1);
}

#[test]
fn unwritable_home_has_a_fix() {
    let home = healthy();
    let set_mode =
        |mode| fs::set_permissions(home.path(""), fs::Permissions::from_mode(mode)).unwrap();
    set_mode(0o500);
    for args in [
        &["cron", "add", "-m", "x", "-e", "60"][..],
        &["config", "set", "log.json", "true"],
        &["agent", "-m", "hi"],
    ] {
        let run = without_syscall::privileges(|| home.run(args));
        run.fails(1)
            .says("is a directory you can write, or set BANTAM_HOME to another");
    }
    let run = without_syscall::privileges(|| doctor(&home));
    set_mode(0o700);
    run.exits(1);
    has_all(&fix(&run, "FAIL  home: "), ["chmod"]);
}
