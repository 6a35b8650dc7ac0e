//! Conversations that exceed their model's window: sent requests, stored messages, and crashes between two segments.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::Home;
use crate::model::{Model, Reply, Request};
use crate::stored::{assert_single_result_per_call, sealed};

fn is_for_a_summary(request: &Request) -> bool {
    request.texts("system")[0].contains("so that the assistant can continue")
}

/// Returns the size of a request, at four bytes per token as most hosts count.
fn tokens(request: &Request) -> u64 {
    let body = &request.body;
    (body["messages"].to_string().len() + body["tools"].to_string().len()) as u64 / 4
}

/// Returns a model that counts tokens, and refuses what exceeds its window.
fn strict(window: u64, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Model {
    Model::answering(move |request, _| {
        let asked = tokens(request);
        if asked + request.body["max_tokens"].as_u64().unwrap_or(0) > window {
            let says = format!("This model's maximum context length is {window} tokens.");
            return Reply::error(400, &says);
        }
        if is_for_a_summary(request) {
            assert!(request.tools().is_empty());
            return Reply::text("The first word was APPLE.").counted(asked, 10);
        }
        answer(request).counted(asked, 300)
    })
}

/// Returns a home whose model has a window of this many tokens. The prompt and the tools take about 4,000 of them.
fn home(model: &Model, window: u64) -> Home {
    let entry = json!({ "model_list": [{ "context_window": window }] });
    Home::asking(model, &entry)
}

fn sessions_with(home: &Home, part: &str) -> Vec<String> {
    let files = home.files().into_iter();
    let sessions = files.filter(|file| file.starts_with("sessions/"));
    sessions.filter(|file| file.contains(part)).collect()
}

#[test]
fn thirty_turns_fit_a_small_window_with_room_for_each_answer() {
    for window in [8192, 16_384, 32_768] {
        let short = Arc::new(AtomicUsize::new(0));
        let cut = short.clone();
        let model = strict(window, move |request| {
            let reply = request.body["max_tokens"].as_u64().unwrap();
            if reply < (window / 4).min(8192) {
                cut.fetch_add(1, Ordering::SeqCst);
            }
            let said = request.messages().pop().unwrap();
            if said["role"] == "user" && said.to_string().contains("read:") {
                return Reply::call("read_file", &json!({ "path": "long.txt" }));
            }
            Reply::text(&"words ".repeat(200))
        });
        let home = home(&model, window);
        home.write("workspace/long.txt", "words and more\n".repeat(250));
        for n in 0..30 {
            let what = if n % 10 == 0 { "read" } else { "say" };
            let text = format!("question {n}, {what}: {}", "long ".repeat(400));
            home.agent(["-m", &text]).exits(0).is_quiet();
        }
        assert_eq!(short.load(Ordering::SeqCst), 0, "{window}: short of room");
        let requests = model.requests();
        let (summaries, turns): (Vec<_>, Vec<_>) = requests
            .iter()
            .partition(|request| is_for_a_summary(request));
        assert_eq!(turns.len(), 33, "{window}: none was refused");
        let (system, files) = (
            &turns.last().unwrap().texts("system")[0],
            sessions_with(&home, "cli_default."),
        );
        assert_eq!(files.len() > 1, !summaries.is_empty());
        assert_eq!(
            system.contains("The first word was APPLE."),
            files.len() > 1
        );
        // Every message is in one of the segments.
        let all = files.iter().map(|file| home.read(file));
        let all: String = all.collect();
        assert!((0..30).all(|n| all.contains(&format!("question {n}, "))));
        if window == 8192 {
            assert!(summaries.len() > 2, "{}", summaries.len());
            let shown = home.run(["sessions", "show", "default"]);
            assert!(shown.stdout.contains("summary\nThe first word was APPLE."));
            let dry = home.agent(["--dry-run", "-m", "hi"]);
            assert!(dry.stdout.contains("The first word was APPLE."));
        }
    }
}

#[test]
fn old_results_are_dropped_before_summarizing() {
    let model = strict(21_000, |request| {
        assert!(!is_for_a_summary(request));
        if request.messages().last().unwrap()["role"] == "user" {
            Reply::call("read_file", &json!({ "path": "long.txt" }))
        } else {
            Reply::text("Read.")
        }
    });
    let home = home(&model, 21_000);
    home.write("workspace/long.txt", "words and more words\n".repeat(700));
    for n in 0..3 {
        home.agent(["-m", &format!("read it, {n}")]).exits(0);
    }
    let run = home.agent(["-v", "-m", "read it, 3"]);
    run.exits(0).says("old tool results dropped");
    let last = model.requests().pop().unwrap();
    assert_single_result_per_call(&last.messages());
    let results = last.texts("tool");
    assert!(results[0].starts_with("[result of read_file, "));
    assert!(results[3].contains("words and more words"));
    assert_eq!(last.texts("user").len(), 4);
    let archived = home.session("cli_default.1");
    let is_whole = |result: &&str| result.contains("words and more words");
    assert!(archived.texts("tool").iter().all(is_whole));
    home.session("cli_default").has_one_result_per_call();
}

#[test]
fn older_results_of_a_long_turn_are_dropped() {
    let model = strict(21_000, |request| match request.texts("tool").len() {
        10 => Reply::text("Read."),
        n => Reply::call("read_file", &json!({ "path": format!("{n}.txt") })),
    });
    let home = home(&model, 21_000);
    for n in 0..10 {
        let text = format!("words of {n}\n").repeat(1000);
        home.write(&format!("workspace/{n}.txt"), text);
    }
    home.agent(["-m", "read all"]).answers("Read.\n");
    let requests = model.requests();
    assert_eq!(requests.len(), 11, "none was refused");
    let last = requests.last().unwrap();
    assert_single_result_per_call(&last.messages());
    assert!(last.texts("tool")[0].ends_with(" dropped to save room]"));
    assert!(last.texts("tool")[9].contains("words of 9"));
}

#[test]
fn failed_summary_does_not_stop_the_turn() {
    let model = Model::answering(|request, _| {
        if is_for_a_summary(request) {
            return Reply::error(400, "not today");
        }
        Reply::text(&"a".repeat(3000)).counted(tokens(request), 750)
    });
    let home = home(&model, 8192);
    for n in 0..5 {
        let text = format!("turn {n} {}", "q".repeat(3000));
        home.agent(["-m", &text]).exits(0);
    }
    let run = home.agent(["-v", "-m", "the last"]);
    run.exits(0)
        .says("could not be summarized (")
        .says("not today");
    let session = home.session("cli_default");
    assert_eq!((session.texts("user").len(), session.turns().len()), (6, 6));
    assert_eq!(sessions_with(&home, "cli_default.").len(), 1);
    assert!(model.requests().last().unwrap().texts("user").len() < 6);
    // The count of a shortened request says nothing of the whole conversation.
    let mut requests = model.requests().into_iter();
    assert!(requests.all(|request| is_for_a_summary(&request) || tokens(&request) < 8192));
}

#[test]
fn failed_summary_drops_nothing_in_a_later_step() {
    let model = Model::answering(|request, _| {
        if is_for_a_summary(request) {
            return Reply::error(400, "not today");
        }
        let is_read = request.last("user").contains("read");
        let reply = match request.texts("tool").len() {
            n if is_read && n < 6 => {
                Reply::call("read_file", &json!({ "path": format!("{n}.txt") }))
            }
            _ => Reply::text(&"a".repeat(3000)),
        };
        reply.counted(tokens(request), 750)
    });
    let home = home(&model, 8192);
    for n in 0..6 {
        let text = format!("words of {n}\n").repeat(300);
        home.write(&format!("workspace/{n}.txt"), text);
    }
    for n in 0..3 {
        let text = format!("turn {n} {}", "q".repeat(3000));
        home.agent(["-m", &text]).exits(0);
    }
    let run = home.agent(["-v", "-m", "read all"]);
    run.exits(0).says("could not be summarized (");
    assert!(model.requests().last().unwrap().texts("user").len() < 4);
    assert!(model.requests().last().unwrap().texts("tool")[0].contains("dropped"));
    assert_eq!(home.session("cli_default").texts("user").len(), 4);
}

#[test]
fn a_stated_limit_is_compacted_for_at_once() {
    // The limit is unknown at first, or the host has less than is configured.
    for configured in [0, 40_000] {
        let model = strict(8192, |_| Reply::text(&"a".repeat(4000)));
        let home = home(&model, configured);
        long_ago(&home, 4, &"words ".repeat(700));
        home.agent(["-m", "one"]).exits(0);
        let summaries: Vec<bool> = model.requests().iter().map(is_for_a_summary).collect();
        assert_eq!(summaries, [false, true, false], "{configured}");
        if configured == 0 {
            // The next process knows the limit.
            for _ in 0..6 {
                home.agent(["-m", &"q".repeat(4000)]).exits(0);
            }
            let later = &model.requests()[3..];
            assert!(later.iter().all(|request| tokens(request) < 8192 * 3 / 4));
        }
    }
}

#[test]
fn a_message_that_is_refused_again_is_an_error_with_a_hint() {
    let model = Model::answering(|request, _| {
        if request.last("user").contains("never") {
            return Reply::error(400, "This model's maximum context length is 4096 tokens.");
        }
        Reply::text("Yes.")
    });
    let home = home(&model, 0);
    home.agent(["-m", "one"]).exits(0);
    let run = home.agent(["-m", "never"]);
    run.fails(1).prints("");
    run.says("maximum context length").says("--new");
    home.agent(["-m", "on we go"]).answers("Yes.\n");
}

#[test]
fn a_request_larger_than_any_window_is_refused_before_it_is_sent() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let home = home(&model, 131_072);
    home.agent(["-m", "one"]).exits(0);
    let log = "2026-11-28T12:00:00 host app[1]: an event of the day\n".repeat(38_000);
    home.write("app.log", &log[..1_000_000]);
    let path = home.path("app.log");
    let attached = ["-a", path.to_str().unwrap(), "-m", "what is wrong?"];
    for run in [
        home.bantam()
            .args(["agent", "-m", "what is wrong?"])
            .stdin(&log)
            .run(),
        home.bantam().args(["agent"]).args(attached).run(),
        home.bantam()
            .args(["agent", "--no-session"])
            .args(attached)
            .run(),
    ] {
        run.fails(2).prints("");
        run.says("tokens").says("131072");
    }
    assert_eq!(model.requests().len(), 1, "nothing was sent");
    home.agent(["-m", "two"]).exits(0);
    assert_eq!(model.request(1).texts("user").len(), 2, "nor kept");
}

/// Writes a session with this number of turns in 2020, each text beginning with `words`.
fn long_ago(home: &Home, turns: usize, words: &str) {
    let time = "2020-01-01T00:00:00.000Z";
    let header = format!("\"seq\":0,\"v\":1,\"session\":\"cli_default\",\"created\":\"{time}\"}}");
    let said = |(seq, role): (usize, &str)| {
        sealed(&format!(
            "\"seq\":{seq},\"time\":\"{time}\",\"role\":\"{role}\",\"content\":\"{words}{role} {seq}\"}}"
        ))
    };
    let lines = (1..).zip(["user", "assistant"].repeat(turns)).map(said);
    let lines = std::iter::once(sealed(&header)).chain(lines);
    home.write("sessions/cli_default.jsonl", lines.collect::<String>());
}

#[test]
fn a_limit_on_messages_begins_with_the_users() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let limit = json!({ "session": { "history_limit": 4 } });
    let home = Home::asking(&model, &limit);
    long_ago(&home, 4, "");
    home.agent(["-m", "now"]).exits(0);
    assert_eq!(model.request(0).texts("user").len(), 2);
    let session = home.session("cli_default");
    assert_eq!(session.texts("user").len(), 5, "all of it is stored");
}

#[test]
fn a_conversation_that_was_idle_for_long_begins_anew() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let home = Home::empty();
    for (hours, seen) in [(0.0, 3), (0.5, 1)] {
        let ttl = json!({ "session": { "ttl_hours": hours } });
        home.reconfigure(&model, &ttl);
        long_ago(&home, 2, "");
        home.agent(["-m", "anew"]).exits(0);
        let last = model.requests().pop().unwrap();
        assert_eq!(last.texts("user").len(), seen, "{hours}");
    }
    let archived = home.session("cli_default.1");
    assert_eq!(archived.texts("user"), ["user 1", "user 3"]);
    assert_eq!(home.session("cli_default").texts("user"), ["anew"]);
}

#[test]
fn crash_during_renewal_loses_nothing() {
    let model = strict(8192, |_| Reply::text(&"a".repeat(3000)));
    let home = home(&model, 8192);
    let (live, new) = (
        home.path("sessions/cli_default.jsonl"),
        home.path("sessions/cli_default.jsonl.new"),
    );
    let old = home.path("sessions/cli_default.1.jsonl");
    while !old.exists() {
        home.agent(["-m", &"q".repeat(3000)]).exits(0);
    }
    // The old segment ends with the message of the turn that compacted it; the new one begins with its header and that message.
    let (before, after) = (fs::read(&old).unwrap(), fs::read(&live).unwrap());
    let begun = home.session("cli_default").lines[0]["lines"]
        .as_u64()
        .unwrap();
    let ends: Vec<usize> = after
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'\n')
        .map(|(at, _)| at + 1)
        .collect();
    let after = &after[..ends[usize::try_from(begun).unwrap() - 1]];
    let cuts = [
        0,
        1,
        after.len() / 3,
        ends[0] - 1,
        ends[0],
        ends[1],
        after.len() - 1,
        after.len(),
    ];
    let while_written = cuts.map(|cut| vec![(&live, &before[..]), (&new, &after[..cut])]);
    let between = cuts.map(|cut| vec![(&old, &before[..]), (&new, &after[..cut])]);
    let done = vec![(&old, &before[..]), (&live, after)];
    for files in while_written.into_iter().chain(between).chain([done]) {
        for file in sessions_with(&home, "") {
            fs::remove_file(home.path(&file)).unwrap();
        }
        for (path, bytes) in &files {
            fs::write(path, bytes).unwrap();
        }
        let names: Vec<String> = files
            .iter()
            .map(|(path, bytes)| format!("{} {}", path.display(), bytes.len()))
            .collect();
        let show = || {
            home.run(["sessions", "show", "default", "--json"])
                .json_lines()
        };
        let shown = show();
        assert!(shown.iter().any(|line| line["role"] == "user"), "{names:?}");
        home.agent(["--model", "demo/demo", "-m", "time"]).exits(0);
        let now = home.session("cli_default");
        assert_eq!(now.texts("user").last(), Some(&"time"), "{names:?}");
        assert!(!new.exists(), "{names:?}");
        // The displayed messages are the loaded ones.
        let said: Vec<&Value> = shown
            .iter()
            .filter(|line| line["role"] == "user")
            .map(|line| &line["content"])
            .collect();
        let kept: Vec<&Value> = now
            .history()
            .into_iter()
            .filter(|m| m["role"] == "user")
            .map(|m| &m["content"])
            .collect();
        assert_eq!(kept[..kept.len() - 1], said, "{names:?}");
    }
}
