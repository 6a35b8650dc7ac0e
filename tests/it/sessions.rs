//! `bantam sessions`: reading changes nothing, starting over loses nothing, and erasing removes only one conversation.

use std::fs;
use std::time::SystemTime;

use serde_json::json;

use crate::harness::{Home, Run, has_all};
use crate::model::{Model, Reply};
use crate::stored::sealed;

#[track_caller]
fn sessions<const N: usize>(home: &Home, args: [&str; N]) -> Run {
    home.bantam().arg("sessions").args(args).run()
}

/// Asks the demo model a question in the conversation `name`.
#[track_caller]
fn speak(home: &Home, name: &str) {
    home.agent(["--model", "demo/demo", "-s", name, "-m", "time"])
        .exits(0);
}

#[test]
fn sessions_list_ends_with_the_newest() {
    let (_model, home) = Home::of(Model::scripted([Reply::text("One."), Reply::text("Two.")]));
    home.agent(["-s", "old", "-m", "hi"]).exits(0);
    home.agent(["-s", "new", "-m", "hi"]).exits(0);
    home.write(
        "sessions/cli_cut.jsonl",
        [
            sealed("\"seq\":0,\"v\":1,\"session\":\"cli_cut\",\"created\":\"2026-01-01T00:00:00.000Z\"}"),
            sealed("\"seq\":1,\"time\":\"2026-01-02T03:04:05.000Z\",\"role\":\"user\",\"content\":\"and then\"}"),
        ]
        .concat(),
    );
    home.write(
        "sessions/telegram_7.jsonl",
        sealed("\"seq\":0,\"v\":9,\"session\":\"telegram_7\",\"created\":\"2025-01-01T00:00:00.000Z\"}"),
    );
    home.write("sessions/stray.txt", "not ours");
    let run = sessions(&home, ["list"]);
    run.exits(0).is_quiet();
    let lines: Vec<Vec<&str>> = run
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!((lines.len(), lines[0][0]), (5, "key"), "{}", run.stdout);
    let at = |key| lines.iter().position(|line| line[0] == key).unwrap();
    assert!(
        at("cut") < at("old") && at("old") < at("new"),
        "{}",
        run.stdout
    );
    run.shows("2026-01-02 03:04:05");
    let listed = sessions(&home, ["list", "--json"]).json()["sessions"].clone();
    let states = listed.as_array().unwrap().iter().map(|row| {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        (
            text("key"),
            row["messages"].as_u64().unwrap(),
            text("state"),
        )
    });
    let states: Vec<_> = states.collect();
    for (key, messages, state) in [
        ("new", 2, "done"),
        ("old", 2, "done"),
        ("cut", 1, "unfinished"),
        ("telegram_7", 0, "unreadable"),
    ] {
        let row = (key.to_owned(), messages, state.to_owned());
        assert!(states.contains(&row), "{states:?}");
    }

    sessions(&home, ["show", "telegram_7"]).fails(3).prints("");
}

#[test]
fn shown_conversation_has_calls_without_escapes() {
    let call = Reply::call("list_dir", &json!({ "path": "." }));
    let (_model, home) = Home::of(Model::scripted([
        call,
        Reply::text("A \u{1b}[31mred\u{1b}[0m file."),
        Reply::text("Later."),
    ]));
    home.write("workspace/shopping.txt", "oat milk\n");
    home.agent(["-m", "what is there?"]).exits(0);
    home.agent(["-m", "and now?"]).exits(0);
    let before = fs::read(home.path("sessions/cli_default.jsonl")).unwrap();

    for key in ["cli_default", "default"] {
        let run = sessions(&home, ["show", key]);
        run.exits(0).is_quiet();
        let order = [
            "user\n",
            "what is there?",
            "assistant\n",
            "  list_dir {\"path\":\".\"}\n",
            "  -> ",
            "A [31mred[0m file.",
            "-- done",
            "and now?",
            "Later.",
            "-- done",
        ];
        let mut rest = run.stdout.as_str();
        for part in order {
            rest = rest
                .split_once(part)
                .unwrap_or_else(|| panic!("{part:?} is not where it should be: {}", run.stdout))
                .1;
        }
        run.shows("shopping.txt");
        assert!(!run.stdout.contains('\u{1b}'), "{}", run.stdout);
    }
    let entries = sessions(&home, ["show", "default", "--json"]).json_lines();
    let kinds: Vec<&str> = entries
        .iter()
        .filter_map(|e| e["role"].as_str().or(e["turn"].as_str()))
        .collect();
    assert_eq!(
        kinds,
        [
            "user",
            "assistant",
            "tool",
            "assistant",
            "done",
            "user",
            "assistant",
            "done"
        ]
    );
    assert_eq!(
        entries
            .iter()
            .map(|e| e["seq"].as_u64().unwrap())
            .collect::<Vec<_>>(),
        (1..9).collect::<Vec<_>>()
    );

    sessions(&home, ["show", "default", "--after", "x"])
        .fails(2)
        .prints("");
    assert_eq!(
        fs::read(home.path("sessions/cli_default.jsonl")).unwrap(),
        before
    );
}

#[test]
fn a_reset_conversation_starts_anew_and_what_was_said_stays() {
    let (model, home) = Home::of(Model::scripted([Reply::text("One."), Reply::text("Two.")]));
    home.agent(["-m", "first"]).exits(0);
    let said = fs::read(home.path("sessions/cli_default.jsonl")).unwrap();
    let run = sessions(&home, ["reset", "default"]);
    run.exits(0).is_quiet();
    run.shows("cli_default.1.jsonl");
    assert_eq!(
        fs::read(home.path("sessions/cli_default.1.jsonl")).unwrap(),
        said
    );
    assert_eq!(home.session("cli_default").lines.len(), 1);
    sessions(&home, ["reset", "default"]).exits(0);
    assert!(
        !home.path("sessions/cli_default.2.jsonl").exists(),
        "an empty conversation is not put aside"
    );
    assert!(sessions(&home, ["list"]).stdout.contains("(new)"));

    home.agent(["-m", "second"]).answers("Two.\n");
    assert!(model.request(1).texts("assistant").is_empty());
    sessions(&home, ["reset", "cli_default"]).exits(0);
    assert!(home.path("sessions/cli_default.2.jsonl").exists());
}

#[test]
fn erasing_takes_every_file_of_one_conversation_and_nothing_else() {
    let home = Home::empty();
    for name in ["a", "ab", "a_b", "a.1"] {
        speak(&home, name);
    }
    sessions(&home, ["reset", "a"]).exits(0);
    speak(&home, "a");
    home.write("sessions/cli_a.jsonl.new", "left by a crash");
    home.write("sessions/cli_a.notes", "the user's own");
    sessions(&home, ["erase", "a"])
        .fails(2)
        .prints("")
        .says("--yes");
    let run = sessions(&home, ["erase", "a", "--yes"]);
    run.exits(0).is_quiet().prints("Erased a (3 files)\n");
    let mut left: Vec<String> = home
        .files()
        .into_iter()
        .filter(|file| file.starts_with("sessions/"))
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            "sessions/cli_a%2E1.jsonl",
            "sessions/cli_a.notes",
            "sessions/cli_a_b.jsonl",
            "sessions/cli_ab.jsonl"
        ]
    );
    assert!(
        !home.path("state/locks/cli_a.lock").exists()
            && home.path("state/locks/cli_ab.lock").exists()
    );
    sessions(&home, ["erase", "a", "--yes"]).fails(2);
    sessions(&home, ["erase", "a.1", "-y"]).answers("Erased a.1 (1 file)\n");
}

#[test]
fn on_a_terminal_erasing_is_asked_for() {
    let home = Home::empty();
    speak(&home, "default");
    let erase = |answer: &str| {
        let erase = home.bantam().on_a_terminal().silent_stdin();
        let mut erasing = erase.args(["sessions", "erase", "default"]).spawn();
        erasing.wait_for_stdout("[y/N]");
        erasing.types(answer);
        erasing.finish()
    };
    let run = erase("\n");
    run.exits(0).shows("Nothing erased");
    assert!(home.path("sessions/cli_default.jsonl").exists());
    erase("y\n").exits(0);
    assert!(!home.path("sessions/cli_default.jsonl").exists());
}

#[test]
fn a_watcher_is_told_of_lines_that_were_archived() {
    let home = Home::empty();
    speak(&home, "default");
    sessions(&home, ["reset", "default"]).exits(0);
    speak(&home, "default");
    let after = |seq| sessions(&home, ["show", "default", "--json", "--after", seq]);
    // The first turn has the lines 1 to 3.
    let run = after("2");
    run.exits(0).says("default.1");
    assert_eq!(run.json_lines()[0]["role"], "user");
    after("3").exits(0).is_quiet();
}

#[test]
fn a_key_is_never_taken_for_a_path() {
    let home = Home::empty();
    speak(&home, "default");
    home.write("config.jsonl", "not a conversation");
    for key in [
        "../config",
        "../sessions/cli_default",
        "/etc/passwd",
        "cli_default.jsonl",
        "",
        "*",
    ] {
        sessions(&home, ["erase", key, "--yes"]).exits(2).prints("");
    }
    assert!(home.path("config.jsonl").exists() && home.path("sessions/cli_default.jsonl").exists());
    sessions(&home, ["show", "defalt"])
        .exits(2)
        .says("did you mean `default`?");
}

#[test]
fn a_conversation_in_use_is_neither_reset_nor_erased() {
    let home = Home::empty();
    speak(&home, "default");
    let _held = home.hold_session("cli_default");
    let started = SystemTime::now();
    let both = ["reset", "erase"].map(|verb| {
        let yes = if verb == "erase" { &["--yes"][..] } else { &[] };
        home.bantam()
            .env("BANTAM_TEST_SPEED", "20")
            .args(["sessions", verb, "default"])
            .args(yes)
            .spawn()
    });
    for running in both {
        running.finish().fails(7).prints("");
    }
    assert!(started.elapsed().unwrap().as_millis() >= 1450);
    assert!(home.path("sessions/cli_default.jsonl").exists());
}

#[test]
fn search_covers_the_whole_conversation() {
    let model = Model::answering(|request, _| {
        let question = request.last("user");
        Reply::text(if question.contains("oven") {
            "It is hot.\nThe GRÜNE light is on."
        } else {
            "Nothing."
        })
    });
    let home = Home::with(&model.config());
    home.agent(["-s", "kitchen", "-m", "what is in the oven"])
        .exits(0);
    sessions(&home, ["reset", "kitchen"]).exits(0);
    home.agent(["-s", "kitchen", "-m", "and now"]).exits(0);
    home.agent(["-s", "garden", "-m", "an Oven, in the garden?\nno"])
        .exits(0);
    let found = |words: &[&str]| -> Vec<(String, String)> {
        let run = home
            .bantam()
            .args(["sessions", "search", "--json"])
            .args(words)
            .run();
        let list = run.exits(0).json()["sessions"].as_array().unwrap().clone();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        list.iter()
            .map(|row| (text(&row["key"]), text(&row["line"])))
            .collect()
    };
    let row = |key: &str, line: &str| (key.to_owned(), line.to_owned());
    let (garden, kitchen) = (
        row("garden", "an Oven, in the garden?"),
        row("kitchen", "what is in the oven"),
    );
    assert_eq!(found(&["OVEN"]), [garden.clone(), kitchen.clone()]);
    assert_eq!(found(&["oven", "garden"]), [garden]);
    let light = row("kitchen", "The GRÜNE light is on.");
    assert_eq!(found(&["grüne", "light", "now"]), [light]);
    assert_eq!(found(&["oven", "moon"]), []);

    sessions(&home, ["search", "moon"])
        .answers("")
        .says("no conversation");
}

#[test]
fn refused_question_is_listed_with_its_words() {
    let (_model, home) = Home::of(Model::scripted([Reply::text("Basil.")]));
    let list = || home.run(["sessions", "list"]).stdout;
    let refused = home.agent(["-s", "garden", "--budget-tokens", "5", "water?"]);
    refused.exits(6);
    assert!(list().contains("(limit) water?"), "{}", list());
    home.agent(["-s", "garden", "which herb?"]).exits(0);
    assert!(list().contains("which herb?"), "{}", list());
}

/// Memory for a program and its threads, in KB of a shell.
const LITTLE: &str = "ulimit -d 65536";

/// Returns the lines of turns, about `bytes` long, after a header.
fn turns(bytes: usize) -> String {
    let long = "tomatoes need water. ".repeat(3000);
    let mut text = String::new();
    for turn in 0_usize.. {
        let seq = turn * 4 + 1;
        let call = json!({ "id": "a", "name": "read_file", "arguments": "{}" });
        for (at, line) in [
            json!({ "role": "user", "content": format!("question {turn}") }),
            json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
            json!({ "role": "tool", "tool_call_id": "a", "content": long }),
            json!({ "turn": "done" }),
        ]
        .iter()
        .enumerate()
        {
            let rest = &line.to_string()[1..];
            text.push_str(&sealed(&format!("\"seq\":{},{rest}", seq + at)));
        }
        if text.len() >= bytes {
            break;
        }
    }
    text
}

/// Returns the first line of a segment whose lines begin with the number `base`.
fn header(base: usize) -> String {
    sealed(&format!(
        "\"seq\":0,\"v\":1,\"session\":\"cli_default\",\"created\":\"2026-01-01T00:00:00Z\",\"base\":{base}}}"
    ))
}

#[test]
fn a_long_conversation_is_read_in_little_memory() {
    const SEGMENTS: usize = 26;
    let look = json!({ "action": "search", "query": "quince" });
    let model = Model::scripted([Reply::call("memory", &look), Reply::text("Found.")]);
    let home = Home::with(&model.config());
    let body = turns(3 << 20);
    let count = body.lines().count() + 1;
    for n in 1..=SEGMENTS {
        let name = match n {
            SEGMENTS => "cli_default.jsonl".to_owned(),
            n => format!("cli_default.{n}.jsonl"),
        };
        let mut text = header((n - 1) * count) + &body;
        if n == 1 || n == SEGMENTS - 1 {
            let said = if n == 1 { "a medlar" } else { "a quince" };
            text += &sealed(&format!(
                "\"seq\":{count},\"role\":\"assistant\",\"content\":\"{said}\"}}"
            ));
        }
        home.write(&format!("sessions/{name}"), text);
    }
    home.write("sessions/cli_one.jsonl", header(0) + &turns(15 << 20));
    let run = |args: &[&str]| {
        let run = home.bantam().arg("sessions").args(args).after(LITTLE).run();
        run.exits(0);
        run
    };
    let list = run(&["list", "--json"]).json();
    for row in list["sessions"].as_array().unwrap() {
        assert_eq!(row["state"], "done", "{row}");
    }
    let shown = run(&["show", "one"]).stdout;
    assert!(shown.contains("question 200") && shown.contains("-- done"));
    assert!(run(&["show", "default.1"]).stdout.contains("a medlar"));

    let found = run(&["search", "quince"]);
    found.shows("a quince");
    // The oldest parts are more than a search reads.
    let found = run(&["search", "medlar"]);
    found.prints("").says("64 MB");
    let ask = home.bantam().args(["agent", "-s", "new", "-m", "hi"]);
    ask.after(LITTLE).run().answers("Found.\n");
    let told = model.request(1).texts("tool").concat();
    has_all(&told, ["cli_default", "a quince"]);
    let status = home.bantam().args(["status", "--json"]).after(LITTLE).run();
    assert_eq!(status.exits(0).json()["sessions"]["count"], 3);
}
