//! Output of a running turn on a terminal and in a pipe.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::{Home, has_all, has_fields, seen};
use crate::model::{Model, Reply};

const MARKDOWN: &str = "# Plants\n\n- **water** the `basil`\n- 2*3*4 litres\n\n```sh\nls *.txt\n```\n| [a](http://h) | b |\n|---|---|\n| 世界 | 2 |\n\nDone.";

#[test]
fn markdown_is_readable_on_a_terminal_and_unchanged_in_a_pipe() {
    let model = Model::scripted([Reply::text(MARKDOWN), Reply::text(MARKDOWN)]);
    let home = Home::with(&model.config());
    let run = home
        .bantam()
        .args(["agent", "-n", "-m", "hi"])
        .on_a_clever_terminal(80)
        .run();
    run.exits(0);
    let shown = seen(&run.stdout);
    assert!(
        shown.ends_with("Plants\n\n• water the basil\n• 2*3*4 litres\n\n```sh\nls *.txt\n```\na (http://h) │ b\n─────────────┼──\n世界         │ 2\n\nDone.\n"),
        "{shown:?}"
    );
    has_all(&run.stdout, ["\u{1b}[1mwater\u{1b}[0m"]);
    assert_eq!(
        home.session("cli_default").texts("assistant"),
        [MARKDOWN],
        "what is stored is what came"
    );
    let piped = home.run(["agent", "-m", "hi"]);
    piped.answers(&format!("{MARKDOWN}\n")).is_quiet();
}

#[test]
fn no_color_and_a_dumb_terminal_get_no_escape_sequences() {
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let (_model, home) = Home::of(Model::scripted([
            Reply::call("list_dir", &json!({ "path": "." })),
            Reply::text(MARKDOWN),
        ]));
        let asked = home
            .bantam()
            .args(["agent", "-n", "-m", "hi"])
            .on_a_clever_terminal(80)
            .env(name, value);
        let run = asked.run();
        run.exits(0);
        assert!(
            !run.stdout.contains('\u{1b}'),
            "{name}={value}: {:?}",
            run.stdout
        );
        let text = MARKDOWN.replace('\n', "\r\n");
        assert!(
            run.stdout.ends_with(&format!("{text}\r\n")),
            "{name}={value}: {:?}",
            run.stdout
        );
    }
}

#[test]
fn model_output_is_stripped_of_escape_sequences() {
    let (_model, home) = Home::of(Model::scripted([Reply::text(
        "a\u{1b}]0;owned\u{7}b **c\u{1b}[2J** \u{9b}31md\re",
    )]));
    let run = home
        .bantam()
        .args(["agent", "-n", "-m", "hi"])
        .on_a_clever_terminal(80)
        .run();
    run.exits(0);
    has_all(&run.stdout, ["a]0;ownedb \u{1b}[1mc[2J\u{1b}[0m 31mde"]);
    assert!(
        !run.stdout.contains(['\u{7}', '\u{9b}']),
        "{:?}",
        run.stdout
    );
}

#[test]
fn json_output_is_stripped_of_control_characters() {
    let said = "a\u{9b}31mb\u{85}\u{7f}é";
    for (format, asks) in [("--json", true), ("--events", true), ("--dry-run", false)] {
        let (_model, home) = Home::of(Model::scripted(asks.then(|| Reply::text(said))));
        let run = home
            .bantam()
            .args(["agent", "-n", "-q", format, "-m", said])
            .on_a_terminal()
            .run();
        run.exits(0);
        assert!(
            !run.stdout.contains(|c| ('\u{7f}'..='\u{9f}').contains(&c)),
            "{format}: {:?}",
            run.stdout
        );
        has_all(&run.stdout, ["a\\u009b31mb\\u0085\\u007fé"]);
    }
}

#[test]
fn each_piece_is_shown_before_the_answer_ends() {
    let (model, home) = Home::of(Model::scripted([Reply::text(
        "First words, and **then** the rest.",
    )
    .held_after(2)]));
    let running = home
        .bantam()
        .args(["agent", "-n", "-m", "hi"])
        .on_a_clever_terminal(80)
        .spawn();
    running.wait_for_stdout("First");
    model.release();
    let run = running.finish();
    assert_eq!(
        seen(&run.stdout)
            .matches("First words, and then the rest.\n")
            .count(),
        1,
        "{:?}",
        run.stdout
    );
}

/// What is shown keeps its lines.
#[test]
fn text_after_a_resize_has_the_new_width() {
    let words = "seven letters ".repeat(8);
    let answer = format!("{words}\n\n{words}\n\nDone.");
    let (model, home) = Home::of(Model::scripted([Reply::text(&answer).held_after(3)]));
    let asked = home.bantam().args(["agent", "-n", "-m", "hi"]);
    let running = asked.on_a_clever_terminal(60).spawn();
    running.wait_for_stdout("seven");
    let script = running.pid();
    let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children")).unwrap();
    let child = children.split_whitespace().next().unwrap();
    // An ordinary user cannot open the descriptors of this process, which may hold a key.
    let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1;
    let tty: u32 = fields.split(' ').nth(4).unwrap().parse().unwrap();
    let terminal = format!("/dev/pts/{}", tty & 0xff | tty >> 12 & 0xfff00);
    let stty = Command::new("stty")
        .args(["-F", &terminal, "cols", "25"])
        .status();
    assert!(stty.unwrap().success());
    model.release();
    let run = running.finish();
    let shown = seen(&run.exits(0).stdout);
    let (_, after) = shown.split_once("\n\n").unwrap();
    assert!(after.lines().all(|line| line.len() < 25), "{shown:?}");
    assert!(after.ends_with("Done.\n"), "{shown:?}");
}

#[test]
fn events_end_with_the_json_object() {
    let (model, home) = Home::of(Model::scripted([
        Reply::call("list_dir", &json!({ "path": "." })).saying("Looking."),
        Reply::text("Nothing is here.").held_after(2),
    ]));
    let running = home
        .bantam()
        .args(["agent", "--events", "-m", "hi"])
        .spawn();
    // Before the end of the answer.
    running.wait_for_stdout("Nothing ");
    model.release();
    let run = running.finish();
    run.exits(0).is_quiet();
    let lines: Vec<Value> = run
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut names: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["event"].as_str())
        .collect();
    names.retain(|name| *name != "trace");
    names.dedup();
    assert_eq!(
        names,
        [
            "delta",
            "progress",
            "tool_started",
            "tool_finished",
            "delta"
        ]
    );
    let numbers = lines.iter().filter_map(|line| line["number"].as_u64());
    assert!(numbers.eq(1..lines.len() as u64), "{lines:?}");
    let said = lines
        .iter()
        .filter(|line| line["event"] == "delta")
        .filter_map(|line| line["text"].as_str());
    assert_eq!(said.collect::<String>(), "Looking.Nothing is here.");
    let last = lines.last().unwrap();
    has_fields(last, &json!({ "ok": true, "output": "Nothing is here." }));
    assert!(last["event"].is_null(), "{last}");
}
