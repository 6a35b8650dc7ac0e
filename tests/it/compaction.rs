//! Conversations that exceed their model's window: sent requests, stored messages, and crashes between two segments.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::harness::{Home, merged};
use crate::model::{Model, Reply, Request};
use crate::stored::{assert_single_result_per_call, sealed};

/// Marks a request for a summary.
const FOR_A_SUMMARY: &str = "so that the assistant can continue";

fn is_for_a_summary(request: &Request) -> bool {
    request.texts("system")[0].contains(FOR_A_SUMMARY)
}

/// Returns a model that counts like most hosts: four bytes per token.
fn counting(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Model {
    Model::answering(move |request, _| {
        answer(request).counted(request.body.to_string().len() as u64 / 4, 100)
    })
}

/// Returns a home whose model has a window of this many tokens. The prompt and the tools take about 4,000 of them.
fn home(model: &Model, window: u64) -> Home {
    let window = json!({ "model_list": [{ "context_window": window }], "tools": { "exec": { "sandbox": "off" } } });
    Home::with(&merged(model.config(), &window))
}

fn sessions_with(home: &Home, part: &str) -> Vec<String> {
    let files = home
        .files()
        .into_iter()
        .filter(|file| file.starts_with("sessions/"));
    files.filter(|file| file.contains(part)).collect()
}

#[test]
fn old_results_are_dropped_before_summarizing() {
    let model = counting(|request| {
        assert!(!is_for_a_summary(request));
        let asked = request.messages().last().unwrap()["role"] == "user";
        if asked {
            Reply::call("read_file", &json!({ "path": "long.txt" }))
        } else {
            Reply::text("Read.")
        }
    });
    let home = home(&model, 21_000);
    home.write("workspace/long.txt", "words and more words\n".repeat(700));
    for n in 0..3 {
        home.agent(["-m", &format!("read it, {n}")])
            .exits(0)
            .prints("Read.\n");
    }
    let run = home.agent(["-v", "-m", "read it, 3"]);
    run.exits(0)
        .prints("Read.\n")
        .says("old tool results were dropped");
    let last = model.requests().pop().unwrap();
    assert_single_result_per_call(&last.messages());
    let results = last.texts("tool");
    assert!(
        results[0].starts_with("[result of read_file, ")
            && results[0].ends_with(" dropped to save room]")
    );
    assert!(results[3].contains("words and more words"));
    assert_eq!(last.texts("user").len(), 4);
    // The old segment has the whole conversation.
    let old = home.session("cli_default.1");
    assert!(
        old.texts("tool")
            .iter()
            .all(|result| result.contains("words and more words"))
    );
    home.session("cli_default").has_one_result_per_call();
}

#[test]
fn a_conversation_ten_times_the_window_goes_on() {
    const WINDOW: usize = 8000;
    let model = counting(|request| {
        // This host enforces its window, and counts four bytes per token.
        if request.body.to_string().len() / 4 > WINDOW {
            return Reply::error(
                400,
                "This model's maximum context length is 8000 tokens, and you sent more.",
            );
        }
        if is_for_a_summary(request) {
            assert!(request.tools().is_empty());
            return Reply::text("The user counts. The first word was APPLE.");
        }
        let said = request.last("user");
        if said.contains("APPLE 0 ") && request.texts("tool").is_empty() {
            return Reply::call(
                "memory",
                &json!({ "action": "append", "content": "The other word is PLUM." }),
            );
        }
        if said.contains("the other word?") {
            // The model knows only the contents of its request.
            let knows = request.texts("system")[0].contains("The other word is PLUM.");
            return Reply::text(if knows { "PLUM" } else { "Nobody told me." });
        }
        Reply::text(&format!(
            "{} That was {}.",
            "a".repeat(5000),
            request.texts("user").len()
        ))
    });
    let home = home(&model, WINDOW as u64);
    let mut said = 0;
    for n in 0..35 {
        let text = format!("APPLE {n} {}", "q".repeat(4000));
        said += text.len() + 5000;
        home.agent(["-m", &text]).exits(0).is_quiet();
    }
    assert!(said / 4 > WINDOW * 9, "{said}");
    let requests = model.requests();
    let (summaries, turns): (Vec<_>, Vec<_>) = requests
        .iter()
        .partition(|request| is_for_a_summary(request));
    assert!(
        summaries.len() > 5 && turns.len() < 45,
        "{} and {}",
        summaries.len(),
        turns.len()
    );
    let last = turns.last().unwrap();
    let system = &last.texts("system")[0];
    let (_, earlier) = system
        .split_once("\n\n[EARLIER IN THIS CONVERSATION]\n")
        .expect("the summary");
    let (stable, _) = system
        .split_once("\n\n[USER PREFERENCES]\n")
        .expect("what the model writes");
    assert!(
        earlier.starts_with("```\n") && earlier.contains("The first word was APPLE."),
        "{earlier}"
    );
    assert!(
        turns
            .iter()
            .all(|turn| turn.texts("system")[0].starts_with(stable)),
        "what comes first never changes"
    );
    assert_eq!(last.messages()[1]["role"], "user");
    assert!(last.last("user").contains("APPLE 34 "));
    // Every message is in one of the segments.
    for n in 0..35 {
        let files = sessions_with(&home, "cli_default.");
        let word = format!("APPLE {n} qqq");
        assert!(
            files
                .iter()
                .any(|file| fs::read_to_string(home.path(file)).unwrap().contains(&word)),
            "{word}"
        );
    }
    assert!(
        fs::metadata(home.path("sessions/cli_default.jsonl"))
            .unwrap()
            .len()
            < 40_000
    );
    let run = home.bantam().args(["sessions", "show", "default"]).run();
    assert!(
        run.stdout.contains("summary\nThe user counts."),
        "{}",
        run.stdout
    );
    // An early fact is known at the end.
    home.agent(["-m", "What was the other word?"])
        .exits(0)
        .prints("PLUM\n");
    // A dry run shows the request, with the summary.
    let run = home.agent(["--dry-run", "-m", "hi"]);
    assert!(
        run.stdout.contains("The first word was APPLE."),
        "{}",
        run.stdout
    );
}

#[test]
fn failed_summary_does_not_stop_the_turn() {
    let model = counting(|request| {
        if is_for_a_summary(request) {
            Reply::error(400, "not today")
        } else {
            Reply::text(&"a".repeat(3000))
        }
    });
    let home = home(&model, 8000);
    for n in 0..5 {
        home.agent(["-m", &format!("turn {n} {}", "q".repeat(3000))])
            .exits(0);
    }
    let run = home.agent(["-v", "-m", "the last"]);
    run.exits(0)
        .says("could not be summarised (")
        .says("not today");
    let session = home.session("cli_default");
    assert_eq!((session.texts("user").len(), session.turns().len()), (6, 6));
    assert_eq!(
        sessions_with(&home, "cli_default."),
        ["sessions/cli_default.jsonl"]
    );
    assert!(model.requests().last().unwrap().texts("user").len() < 6);
}

#[test]
fn length_refusal_is_retried_once() {
    let model = counting(|request| {
        let too_long = || Reply::error(400, "This model's maximum context length is 4096 tokens.");
        match request.texts("user").last() {
            _ if is_for_a_summary(request) => Reply::text("In short: one, two."),
            Some(last) if last.ends_with("never") => too_long(),
            _ if request.texts("user").len() > 3 => too_long(),
            _ => Reply::text("Yes."),
        }
    });
    let home = home(&model, 0);
    for text in ["one", "two", "three", "four"] {
        home.agent(["-m", text]).exits(0).prints("Yes.\n");
    }
    let requests = model.requests();
    let what = "refused, refused within the stated window, summarised, asked once more";
    assert_eq!(requests.len(), 7, "{what}");
    assert!(requests[6].texts("system")[0].contains("In short: one, two."));
    home.agent(["-m", "never"])
        .exits(1)
        .prints("")
        .fails_with_a_hint()
        .says("maximum context length")
        .says("--new");
    let asked = model.requests()[7..]
        .iter()
        .filter(|request| !is_for_a_summary(request))
        .count();
    assert_eq!(asked, 2);
    home.agent(["-m", "on we go"]).exits(0).prints("Yes.\n");
}

/// Writes a session with this number of turns in 2020.
fn long_ago(home: &Home, turns: usize) {
    let time = "2020-01-01T00:00:00.000Z";
    let header = format!("\"seq\":0,\"v\":1,\"session\":\"cli_default\",\"created\":\"{time}\"}}");
    let said = |(seq, role): (usize, &str)| {
        sealed(&format!(
            "\"seq\":{seq},\"time\":\"{time}\",\"role\":\"{role}\",\"content\":\"{role} {seq}\"}}"
        ))
    };
    let lines = (1..).zip(["user", "assistant"].repeat(turns)).map(said);
    home.write(
        "sessions/cli_default.jsonl",
        std::iter::once(sealed(&header))
            .chain(lines)
            .collect::<String>(),
    );
}

#[test]
fn a_limit_on_messages_begins_with_the_users() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let home = Home::with(&merged(
        model.config(),
        &json!({ "session": { "history_limit": 4 } }),
    ));
    for n in 0..5 {
        home.agent(["-m", &format!("turn {n}")]).exits(0);
    }
    let last = model.requests().pop().unwrap();
    let roles: Vec<&str> = last
        .messages()
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    assert!(last.texts("user")[0].contains("turn 3"));
    assert_eq!(
        home.session("cli_default").texts("user").len(),
        5,
        "all of it is stored"
    );
}

#[test]
fn a_conversation_that_was_idle_for_long_begins_anew() {
    let model = Model::answering(|_, _| Reply::text("Yes."));
    let with =
        |ttl: f64| merged(model.config(), &json!({ "session": { "ttl_hours": ttl } })).to_string();
    let home = Home::empty();
    long_ago(&home, 2);
    home.config(&with(0.0));
    home.agent(["-m", "for ever"]).exits(0);
    assert_eq!(model.request(0).texts("user").len(), 3);

    long_ago(&home, 2);
    home.config(&with(0.5));
    home.agent(["-v", "-m", "anew"])
        .exits(0)
        .says("a new conversation begins");
    assert_eq!(model.request(1).texts("user").len(), 1);
    assert_eq!(
        home.session("cli_default.1").texts("user"),
        ["user 1", "user 3"]
    );
    assert_eq!(home.session("cli_default").texts("user"), ["anew"]);
    home.agent(["-m", "and on"]).exits(0);
    assert_eq!(model.request(2).texts("user").len(), 2);
}

/// Returns the files of the sessions, with their content.
fn image(home: &Home) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = sessions_with(home, "")
        .into_iter()
        .map(|file| home.path(&file));
    files
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn crash_during_renewal_loses_nothing() {
    let model = counting(|request| {
        if is_for_a_summary(request) {
            Reply::text("In short.")
        } else {
            Reply::text(&"a".repeat(3000))
        }
    });
    let home = home(&model, 8000);
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
        for path in image(&home).into_keys() {
            fs::remove_file(path).unwrap();
        }
        for (path, bytes) in &files {
            fs::write(path, bytes).unwrap();
        }
        let state = image(&home);
        let names: Vec<String> = files
            .iter()
            .map(|(path, bytes)| format!("{} {}", path.display(), bytes.len()))
            .collect();
        let show = || {
            home.bantam()
                .args(["sessions", "show", "default", "--json"])
                .run()
                .json_lines()
        };
        let shown = show();
        assert!(shown.iter().any(|line| line["role"] == "user"), "{names:?}");
        assert!(
            home.bantam()
                .args(["sessions", "list"])
                .run()
                .stdout
                .contains("default"),
            "{names:?}"
        );
        assert_eq!(image(&home), state, "looking changes nothing");
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

#[test]
fn a_small_window_leaves_room_for_each_answer() {
    for window in [8192, 16_384, 32_768] {
        let refused = Arc::new(AtomicUsize::new(0));
        let short = Arc::new(AtomicUsize::new(0));
        let (refusals, cuts) = (refused.clone(), short.clone());
        let model = Model::answering(move |request, _| {
            let body = &request.body;
            // Four bytes are about one token.
            let asked = (body["messages"].to_string().len() + body["tools"].to_string().len()) / 4;
            let reply = usize::try_from(body["max_tokens"].as_u64().unwrap()).unwrap();
            if asked + reply > window {
                refusals.fetch_add(1, Ordering::SeqCst);
                let says = format!("This model's maximum context length is {window} tokens.");
                return Reply::error(400, &says);
            }
            if reply < (window / 4).min(8192) {
                cuts.fetch_add(1, Ordering::SeqCst);
            }
            let said = request.messages().pop().unwrap();
            let reply = if said["role"] == "user" && said.to_string().contains("0:") {
                Reply::call("read_file", &json!({ "path": "long.txt" }))
            } else {
                Reply::text(&"words ".repeat(200))
            };
            reply.counted(asked as u64, 300)
        });
        let entry = json!({ "model_list": [{ "context_window": window }] });
        let home = Home::with(&merged(model.config(), &entry));
        home.write("workspace/long.txt", "words and more\n".repeat(250));
        for n in 0..30 {
            home.agent(["-m", &format!("question {n}: {}", "long ".repeat(200))])
                .exits(0);
        }
        let found = [&refused, &short].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(found, [0, 0], "{window}: refused, and short of room");
    }
}
