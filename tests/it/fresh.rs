//! A question starts a separate conversation, which `-c` continues and which is deleted when it is old.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::harness::{Home, has_all, until};
use crate::model::{Model, Reply};

/// Returns the keys of the conversations of a home.
fn keys(home: &Home) -> Vec<String> {
    let files = home.files().into_iter();
    files
        .filter_map(|file| {
            let key = file.strip_prefix("sessions/")?.strip_suffix(".jsonl")?;
            Some(key.to_owned())
        })
        .collect()
}

fn echoing() -> Model {
    Model::answering(|request, _| Reply::text(&format!("{} so far", request.texts("user").len())))
}

#[test]
fn continue_flag_resumes_the_newest_conversation() {
    let model = echoing();
    let home = Home::with(&model.config());
    for n in 1..=3 {
        let asked = home.bantam().args(["agent", "one more"]).fresh().run();
        asked.answers("1 so far\n");
        assert_eq!(keys(&home).len(), n);
    }
    home.agent(["-c", "and now?"]).answers("2 so far\n");
    home.agent(["-s", "default", "hello"]).answers("1 so far\n");
    home.agent(["-c", "go on"]).answers("2 so far\n");
    assert_eq!(keys(&home).len(), 4);
    home.agent(["--no-session", "-s", "x", "hi"])
        .exits(2)
        .says("--session and --no-session cannot be used together");
}

#[test]
fn spaced_argument_or_pipe_is_a_question() {
    let model = Model::answering(|request, _| Reply::text(&request.last("user")));
    let home = Home::with(&model.config());
    let run = home.run(["What is up?"]);
    assert!(
        run.exits(0).stdout.ends_with("What is up?\n"),
        "{}",
        run.stdout
    );
    let run = home.run(["What is up?", "--json"]);
    let object: Value = serde_json::from_str(&run.exits(0).stdout).unwrap();
    assert_eq!(object["ok"], true);
    let run = home.bantam().stdin("disk full\n").run();
    run.exits(0).shows("disk full");
    // Without piped input.
    assert!(home.bantam().run().exits(0).stdout.contains("bantam agent"));
    home.run(["-V"])
        .answers(concat!("bantam ", env!("CARGO_PKG_VERSION"), "\n"));
    home.run(["statsu"])
        .exits(2)
        .says("did you mean `bantam status`?");
    // A single word asks about piped input.
    let run = home.bantam().arg("Summarize").stdin("three notes\n").run();
    let asked = &run.exits(0).stdout;
    has_all(asked, ["Summarize", "three notes"]);
    home.bantam()
        .arg("statsu")
        .stdin("x")
        .run()
        .exits(2)
        .says("bantam status");
    home.agent(["-m", "hi", "there"])
        .exits(2)
        .says("put quotes around all of it");
}

#[test]
fn old_conversations_that_nobody_named_are_deleted_and_others_stay() {
    let model = echoing();
    let home = Home::with(&model.config());
    home.bantam().args(["agent", "old"]).fresh().run().exits(0);
    let old = keys(&home).pop().unwrap();
    home.agent(["-s", "garden", "hi"]).exits(0);
    home.run(["sessions", "reset", "garden"]).exits(0);
    home.bantam().args(["agent", "new"]).fresh().run().exits(0);
    assert_eq!(keys(&home).len(), 4, "{:?}", home.files());
    // A delivered reminder is removed from its conversation.
    let sessions = home.path("sessions");
    std::fs::copy(
        sessions.join("cli_garden.jsonl"),
        sessions.join("cron_reminder.jsonl"),
    )
    .unwrap();
    let days = |days: u64| SystemTime::now() - Duration::from_secs(days * 86_400);
    for file in [old.as_str(), "cron_reminder", "cli_garden", "cli_garden.1"] {
        let path = home.path(&format!("sessions/{file}.jsonl"));
        File::options()
            .append(true)
            .open(path)
            .unwrap()
            .set_modified(days(31))
            .unwrap();
    }
    let list = || {
        let run = home.run(["sessions", "list", "--json"]);
        let listed: Value = serde_json::from_str(&run.exits(0).stdout).unwrap();
        listed["sessions"].as_array().unwrap().len()
    };
    let held = home.hold_session(&old);
    let never = json!({ "session": { "keep_days": 0 } });
    home.reconfigure(&model, &never);
    assert_eq!(
        (list(), keys(&home).len()),
        (4, 5),
        "nothing is deleted ever"
    );
    home.config(&model.config().to_string());
    assert_eq!(list(), 3, "one that is in use stays");
    assert!(!keys(&home).contains(&"cli_garden.1".to_owned()));
    drop(held);
    // A process that another test is just starting has a copy of the lock until it executes.
    until("it goes when nobody holds it", || list() == 2);
    let files = home.files();
    assert!(!files.iter().any(|file| file.contains(&old)), "{files:?}");
    assert!(keys(&home).contains(&"cli_garden".to_owned()));
}

/// As `xargs -P 20` does.
#[test]
fn two_hundred_questions_at_once_wait_for_nothing_but_the_model() {
    const QUESTIONS: usize = 200;
    const AT_ONCE: usize = 20;
    let model = Model::answering(|request, _| Reply::text(&request.last("user")));
    let home = Home::with(&model.config());
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= QUESTIONS {
                        break;
                    }
                    let question = format!("question {n}.");
                    let run = home.bantam().args(["agent", &question]).fresh().run();
                    run.exits(0).is_quiet();
                    run.shows(&question);
                }
            });
        }
    });
    assert_eq!(keys(&home).len(), QUESTIONS, "each has its conversation");
    let files = home.files().into_iter();
    let calls = files.filter(|file| file.starts_with("usage/"));
    let lines: usize = calls
        .map(|file| {
            home.read(&file)
                .lines()
                .filter(|line| !line.is_empty())
                .count()
        })
        .sum();
    assert_eq!(lines, QUESTIONS, "each call is recorded");
}

/// A printed name can be typed, and a typo does not start a conversation with a similar name.
#[test]
fn a_conversation_has_one_name_everywhere() {
    let model = echoing();
    let home = Home::with(&model.config());
    let ask = |args: &[&str]| {
        let agent = home.bantam().arg("agent").args(args);
        agent.args(["-m", "more"]).run()
    };
    let fresh = home.bantam().args(["agent", "--json", "hi"]).fresh().run();
    let unnamed = fresh.exits(0).json()["session"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(unnamed.starts_with('+') && unnamed.len() < 16, "{unnamed}");
    ask(&["-s", &unnamed]).answers("2 so far\n");
    let names = [
        "my garden",
        "v1.2",
        "Gru\u{308}n/gelb",
        "50%",
        "a%20b",
        "a b",
        "日本",
    ];
    for (n, name) in names.into_iter().enumerate() {
        ask(&["-s", name]).answers("1 so far\n");
        ask(&["-c"]).answers("2 so far\n");
        let object = ask(&["-c", "--json"]).exits(0).json();
        assert_eq!(
            (&object["session"], keys(&home).len()),
            (&json!(name), n + 2)
        );
        let status = home.run(["status", "--json"]).exits(0).json();
        assert_eq!(status["sessions"]["newest"]["key"], name);
    }
    let run = |args: &[&str]| home.bantam().arg("sessions").args(args).run();
    for command in [&["list", "--json"][..], &["search", "more", "--json"]] {
        let listed = run(command).exits(0).json()["sessions"].clone();
        let shown = listed.as_array().unwrap().iter();
        let shown: Vec<&str> = shown.map(|row| row["key"].as_str().unwrap()).collect();
        assert!(names.iter().all(|name| shown.contains(name)), "{shown:?}");
    }
    let page = run(&["list"]).exits(0).stdout.clone();
    assert!(page.contains("\nmy garden "), "{page}");
    for name in names.into_iter().chain([unnamed.as_str()]) {
        let shown = run(&["show", name]).exits(0).stdout.clone();
        assert!(shown.contains("2 so far"), "{name}: {shown}");
        run(&["erase", name, "--yes"]).exits(0);
    }
    assert_eq!(keys(&home).len(), 0);
    for foreign in ["telegram_111", "cron_job", "+nosuch"] {
        ask(&["-s", foreign]).fails(2);
    }
}
