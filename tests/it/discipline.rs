//! Tool discipline: every call of a model, valid or not, has one result, and the user gets an answer.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::fixtures::calls;
use crate::harness::{CANARY, Home, has_all, has_fields};
use crate::model::{Call, Model, Reply, Request, call, written_call};
use crate::stored::assert_single_result_per_call;

/// Returns a home with this model, in which commands run quickly, without a sandbox.
fn unsandboxed(model: &Model) -> Home {
    Home::asking(model, &json!({ "tools": { "exec": { "sandbox": "off" } } }))
}

/// Checks more than providers require: the results are in the order of their calls.
#[track_caller]
fn in_order(messages: &[&Value]) {
    assert_single_result_per_call(messages);
    let ids = |list: &Value| -> Vec<Value> {
        list.as_array()
            .into_iter()
            .flatten()
            .map(|call| call["id"].clone())
            .collect()
    };
    let called: Vec<Value> = messages
        .iter()
        .flat_map(|message| ids(&message["tool_calls"]))
        .collect();
    let results = messages.iter().filter(|message| message["role"] == "tool");
    let answered: Vec<Value> = results
        .map(|message| message["tool_call_id"].clone())
        .collect();
    assert_eq!(called, answered);
}

#[test]
fn each_call_is_told_to_a_person_in_one_line() {
    let rows = r#"
read_file {"path": "notes.txt"} | read_file notes.txt
write_file {"path": "a.txt", "content": "long\nand no one's business"} | write_file a.txt
exec {"command": "cat a.txt\n# \u001b[31mred", "working_dir": "."} | exec cat a.txt # [31mred
read_file {"path": "a\u001b]0;owned\u0007b\r\nc"} | read_file a
cron {"action": "add", "message": "look\nhere", "at": "+1h"} | cron add look here
exce {} | exce cannot run: no tool named "exce"; did you mean exec?
exec {} | exec cannot run: invalid arguments for exec: "command" is missing"#;
    let rows: Vec<_> = rows
        .trim()
        .lines()
        .filter_map(|row| row.split_once(" | "))
        .collect();
    let made = rows.iter().map(|(row, _)| calls(row).remove(0));
    let made = made
        .enumerate()
        .map(|(n, (name, args))| call(&format!("c{n}"), name, &args));
    let model = Model::scripted([Reply::calls(made), Reply::text("Done.")]);
    let run = unsandboxed(&model).agent(["-v", "-m", "go"]);
    run.exits(0);
    for (row, says) in &rows {
        assert!(run.stderr.contains(says), "{row}: {}", run.stderr);
    }
    let control = ['\u{1b}', '\u{7}', '\r'];
    assert!(!run.stderr.contains(control), "{:?}", run.stderr);
}

#[test]
fn invalid_json_arguments_are_quoted_not_run() {
    let cut = format!(
        "{{\"command\": \"echo made > made.txt; : {}",
        "é".repeat(5000)
    );
    let model = Model::scripted([
        Reply::calls([
            written_call("a", "exec", &cut),
            written_call(
                "b",
                "exec",
                "{\"command\": \"echo made > made.txt\"} and {}",
            ),
            written_call("c", "exec", "['echo made > made.txt']"),
        ]),
        Reply::text("Done."),
    ]);
    let home = unsandboxed(&model);
    home.agent(["-m", "go"]).exits(0);
    for result in model.request(1).texts("tool") {
        has_all(&result, ["not valid JSON"]);
        assert!(result.chars().count() < 700, "{result}");
    }
    assert!(!home.path("workspace/made.txt").exists());
    assert!(
        home.session("cli_default").history()[2..5]
            .iter()
            .all(|result| result["is_error"] == true)
    );
}

/// A command's error is at the end of its output, and its subject at the start.
#[test]
fn a_long_output_keeps_both_ends() {
    let command = "i=0; while [ $i -lt 10000 ]; do echo \"line $i\"; i=$((i+1)); done; echo ERROR: why; exit 3";
    let exec = Reply::call("exec", &json!({ "command": command }));
    let model = Model::scripted([exec, Reply::text("Read.")]);
    unsandboxed(&model)
        .agent(["-m", "read it"])
        .answers("Read.\n");
    let result = model.request(1).last("tool");
    assert!(result.starts_with("line 0\nline 1\n"), "{result}");
    assert!(
        result.ends_with("line 9999\nERROR: why\n[exit code 3]"),
        "{result}"
    );
    has_all(&result, ["[68914 characters are left out here"]);
    assert!(result.len() < 31_000);
}

/// Also in a window that a whole part would fill.
#[test]
fn a_long_file_is_read_in_parts() {
    for (window, lines, most) in [(200_000, 4_000, 50_000), (24_000, 600, 18_000)] {
        let text = (0..lines).fold(String::new(), |mut text, n| {
            writeln!(text, "{n} {}", "é".repeat(n % 50)).unwrap();
            text
        });
        let model = Model::answering(|request, n| {
            let offset = match n {
                0 => Some("1".to_owned()),
                // Continues as a model would, by the notice.
                _ => (request.last("tool").rsplit_once("with offset "))
                    .map(|(_, next)| next.trim_end_matches("]\n").to_owned()),
            };
            let args = json!({ "path": "long.txt", "offset": offset });
            offset.map_or(Reply::text("Read."), |_| Reply::call("read_file", &args))
        });
        let entry = json!({ "model_list": [{ "context_window": window }] });
        let home = Home::asking(&model, &entry);
        home.write("workspace/long.txt", &text);
        home.agent(["-m", "read it"]).answers("Read.\n");
        let parts = model.requests().pop().unwrap().texts("tool");
        let is_short = parts.iter().all(|part| part.len() < most);
        assert!(
            parts.len() > 2 && is_short,
            "{window}: {} parts",
            parts.len()
        );
        let lines = parts.iter().flat_map(|part| part.lines());
        let own: Vec<&str> = lines.filter(|line| !line.starts_with('[')).collect();
        assert_eq!(own.join("\n") + "\n", text);
    }
}

#[test]
fn a_secret_over_the_cut_of_a_result_is_redacted() {
    // Output before the configuration, so that the shown part would end within the key.
    let before = Arc::new(AtomicUsize::new(0));
    let padding = Arc::clone(&before);
    let model = Model::answering(move |_, n| match n {
        0 => {
            let x = padding.load(Ordering::Relaxed);
            let pad = |c: char, n: usize| format!("head -c {n} /dev/zero | tr '\\0' {c}");
            let command = format!(
                "{}; tr -d '\\n' <../config.json; {}",
                pad('x', x),
                pad('y', 30_000)
            );
            Reply::call("exec", &json!({ "command": command }))
        }
        _ => Reply::text("Read."),
    });
    let home = unsandboxed(&model);
    let key = home.read("config.json").find(CANARY).unwrap();
    before.store(15_000 - key - CANARY.len() / 2, Ordering::Relaxed);
    home.agent(["-m", "read it"]).exits(0);
    let result = model.request(1).last("tool");
    assert!(
        result.contains("left out") && !result.contains(&CANARY[..8]),
        "{result}"
    );
}

#[test]
fn endlessly_repeated_call_is_stopped() {
    let model = Model::answering(|request, n| {
        if request.tools().is_empty() {
            return Reply::text("I was going in circles.");
        }
        // Equal calls in different spellings.
        let spaces = " ".repeat(n);
        Reply::calls([written_call(
            "c",
            "list_dir",
            &format!("{{{spaces}\"path\": \".\"}}"),
        )])
    });
    let home = Home::with(&model.config());
    let run = home.agent(["--json", "-m", "look"]);
    run.exits(6);
    let answer = run.json();
    has_fields(
        &answer,
        &json!({ "output": "I was going in circles.", "stop": "limit" }),
    );
    assert_eq!(answer["error"]["kind"], "limit");
    assert_eq!(answer["steps"], 5);
    let oks: Vec<bool> = answer["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["ok"] == true)
        .collect();
    assert_eq!(oks, [true, true, false, false]);
    let results = model.request(4).texts("tool");
    assert_eq!(
        results[2],
        "not run: this same call was made 2 times, and brings nothing new; answer with text, or do something else"
    );
    assert!(
        results[3].ends_with("no more tools now: answer with text, from the results so far"),
        "{}",
        results[3]
    );
    let session = home.session("cli_default");
    in_order(&session.history());
    assert_eq!(session.turns(), ["limit"]);
}

#[test]
fn last_step_tells_the_model_no_tools() {
    let look = || Reply::call("list_dir", &json!({ "path": "." }));
    let (model, home) = Home::of(Model::scripted([look(), Reply::text("So far.")]));
    home.agent(["--max-steps", "2", "-m", "look"])
        .exits(6)
        .prints("So far.\n")
        .says("limit of 2 steps\n");
    // They remain in the request, whose start the host has cached.
    let [first, last] = [0, 1].map(|n| model.request(n).body);
    assert_eq!(first["tools"], last["tools"]);
    assert_eq!(last["tool_choice"], "none");
    assert!(
        model
            .request(1)
            .last("tool")
            .ends_with("[no more tools in this turn: answer with what you have]")
    );

    let model = Model::scripted([Reply::text("At once.")]);
    Home::with(&model.config())
        .agent(["--max-steps", "1", "-m", "hi"])
        .answers("At once.\n");

    let (_model, home) = Home::of(Model::scripted([look(), look()]));
    let run = home.agent(["--max-steps", "2", "-m", "look"]);
    run.exits(6).says("limit of 2 steps").fails_with_a_hint();
    run.prints("");
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant", "tool", "assistant"]);
    assert_eq!(session.turns(), ["limit"]);
}

#[test]
fn host_refusing_tool_choice_gets_no_tools() {
    let (model, home) = Home::of(Model::answering(|request, _| {
        match request.body.get("tool_choice") {
            Some(_) => Reply::error(400, "tool_choice: Extra inputs are not permitted"),
            None if request.tools().is_empty() => Reply::text("So far."),
            None => Reply::call("list_dir", &json!({ "path": "." })),
        }
    }));
    for requests in [3, 5] {
        home.agent(["--max-steps", "2", "-m", "look"])
            .exits(6)
            .prints("So far.\n");
        assert_eq!(model.requests().len(), requests, "learned once");
    }
}

/// Reproducible pseudo-random numbers (xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides as u64).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())]
    }

    /// Returns an odd reply, such as some models give.
    fn reply(&mut self, request: &Request) -> Reply {
        const NAMES: [&str; 8] = [
            "exec",
            "read_file",
            "list_dir",
            "think",
            "exce",
            "a b/c\u{7}",
            "functions.exec",
            "日本",
        ];
        const ARGUMENTS: [&str; 13] = [
            "{\"path\": \".\"}",
            "{\"path\": \"notes.txt\"}",
            "{\"command\": \"echo hi; exit 3\"}",
            "{\"command\": \"head -c 70000 /dev/zero | tr '\\\\0' z\"}",
            "{\"thought\": \"\\u0000\\ud83d\"}",
            "{\"path\": \"../../etc/passwd\"}",
            "{\"path\": \"a\\u0000b\"}",
            "{\"command\": ",
            "null",
            "[]",
            "\"{}\"",
            "",
            "{\"path\": {\"path\": {\"path\": 1e999}}}",
        ];
        const IDS: [&str; 5] = ["call_1", "call_1", "call_2", "", "id with spaces é"];
        let calls: Vec<Call> = (0..self.pick(&[1, 1, 2, 2, 3, 3, 9, 9, 70]))
            .map(|_| written_call(self.pick(&IDS), self.pick(&NAMES), self.pick(&ARGUMENTS)))
            .collect();
        let reply = match self.roll(12) {
            0 => Reply::text(""),
            1 => Reply::text("An answer."),
            2 => Reply::calls(calls).finish("length"),
            3 => Reply::calls(calls).finish("content_filter"),
            4 => Reply::calls(calls).finish("stop"),
            _ => Reply::calls(calls),
        };
        if request.tools().is_empty() || self.roll(3) == 0 {
            reply.saying("Some words.")
        } else {
            reply
        }
    }
}

#[test]
fn random_calls_each_get_one_result() {
    let dice = Mutex::new(Dice(0x9e37_79b9_7f4a_7c15));
    let model = Model::answering(move |request, _| {
        in_order(&request.messages());
        dice.lock().unwrap().reply(request)
    });
    let home = unsandboxed(&model);
    home.write("workspace/notes.txt", "water the plants\n");
    for turn in 0..12 {
        let run = home.agent(["--max-steps", "7", "-m", "go on"]);
        assert!(
            matches!(run.code, Some(0 | 1 | 6)),
            "turn {turn} exits {:?}: {}",
            run.code,
            run.stderr
        );
    }
    let session = home.session("cli_default");
    in_order(&session.history());
    let requests = model.requests();
    assert!(
        requests.len() > 30 && session.texts("tool").len() > 100,
        "{} requests",
        requests.len()
    );
    // A panic in a thread of the server would be unnoticed.
    for request in requests {
        in_order(&request.messages());
        let calls = request
            .messages()
            .into_iter()
            .flat_map(|m| m["tool_calls"].as_array().cloned().unwrap_or_default());
        for call in calls {
            let name = call["function"]["name"].as_str().unwrap();
            assert!(
                name.bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'),
                "{name:?}"
            );
        }
    }
}
