//! `tools.confirm`: the user is asked before the calls that they name. If the user cannot be asked, such a call is refused.

use serde_json::{Value, json};

use crate::harness::{Home, Running};
use crate::model::{Model, Reply};

/// Returns a model that writes a file named like the last word of each question, and then reports the result.
fn writing() -> Model {
    Model::answering(|request, _| {
        if let Some(result) = request
            .messages()
            .last()
            .filter(|last| last["role"] == "tool")
        {
            return Reply::text(&format!("Result: {}", result["content"]));
        }
        let question = request.last("user");
        let file = question.trim().rsplit(' ').next().unwrap().to_owned();
        Reply::call(
            "write_file",
            &json!({ "path": file, "content": "one\ntwo\n" }),
        )
    })
}

fn home(model: &Model, names: &[&str]) -> Home {
    let confirm = json!({ "tools": { "confirm": names } });
    Home::asking(model, &confirm)
}

fn at_a_terminal<'h>(home: &'h Home, args: &[&str]) -> Running<'h> {
    home.bantam()
        .args(["agent", "-s", "garden"])
        .args(args)
        .silent_stdin()
        .on_a_terminal()
        .env("TERM", "xterm")
        .spawn()
}

#[test]
fn a_file_that_would_be_replaced_is_shown_as_a_change() {
    let model = writing();
    let home = home(&model, &["writes"]);
    home.write("workspace/a.txt", "one\nold words\n");
    let mut talk = at_a_terminal(&home, &["-m", "write a.txt"]);
    talk.wait_for_next_stdout("-old words");
    talk.wait_for_next_stdout("+two");
    talk.wait_for_next_stdout("(default: no) ");
    talk.types("n\n");
    let run = talk.finish();
    // Unchanged lines are not part of the diff.
    assert!(!run.stdout.contains("+one"), "{}", run.stdout);
}

/// The user's permission applies to the file shown in the question.
#[test]
fn file_that_changes_after_the_question_is_not_replaced() {
    for (before, meanwhile) in [
        (Some("old words\n"), "other words\n"),
        (None, "new words\n"),
    ] {
        let model = writing();
        let home = home(&model, &["writes"]);
        if let Some(before) = before {
            home.write("workspace/a.txt", before);
        }
        let mut talk = at_a_terminal(&home, &["-m", "write a.txt"]);
        talk.wait_for_next_stdout("(default: no) ");
        home.write("workspace/a.txt", meanwhile);
        talk.types("y\n");
        talk.finish();
        let told = model.request(1).last("tool").clone();
        assert!(told.contains("has changed since"), "{told}");
        let now = home.read("workspace/a.txt");
        assert_eq!(now, meanwhile);
    }
}

#[test]
fn without_anyone_to_ask_the_call_is_refused() {
    let model = writing();
    for names in [&["writes"][..], &["write_file"]] {
        let home = home(&model, names);
        let run = home.agent(["--json", "-m", "write a.txt"]);
        let object: Value = serde_json::from_str(&run.exits(6).stdout).unwrap();
        let output = object["output"].as_str().unwrap();
        assert!(output.contains("nobody can be asked here"), "{output}");
        assert_eq!(object["error"]["kind"], "limit");
        let hint = object["error"]["hint"].as_str().unwrap();
        assert!(hint.contains("tools.confirm"), "{hint}");
        assert!(!home.path("workspace/a.txt").exists());
    }
    // Other calls need no approval.
    let home = home(&model, &["exec", "runs"]);
    home.agent(["-m", "write a.txt"]).exits(0);
    assert!(home.path("workspace/a.txt").exists());
}

#[test]
fn at_the_terminal_the_user_says_yes_no_or_always() {
    let model = writing();
    let home = home(&model, &["writes"]);
    let mut talk = at_a_terminal(&home, &[]);
    talk.wait_for_next_stdout("> ");
    for (file, answer, is_written) in [
        ("no.txt", "n\n", false),
        ("nothing.txt", "\n", false),
        ("yes.txt", "y\n", true),
        ("always.txt", "a\n", true),
    ] {
        talk.types(&format!("write {file}\r"));
        talk.wait_for_next_stdout("+two");
        talk.wait_for_next_stdout("(default: no) ");
        assert!(!home.path(&format!("workspace/{file}")).exists());
        talk.types_until_next(answer, "Result: ");
        talk.wait_for_next_stdout("> ");
        assert_eq!(
            home.path(&format!("workspace/{file}")).exists(),
            is_written,
            "{file}"
        );
    }
    talk.types_until_next("write free.txt\r", "Result: ");
    talk.types("/quit\r");
    talk.finish().exits(0);
    assert!(home.path("workspace/free.txt").exists());
    // The permission applies only to this conversation.
    home.agent(["-s", "garden", "-m", "write later.txt"])
        .exits(0);
    home.agent(["-s", "kitchen", "-m", "write other.txt"])
        .exits(6);
    home.run(["sessions", "reset", "garden"]).exits(0);
    home.agent(["-s", "garden", "-m", "write again.txt"])
        .exits(6);
}

#[test]
fn an_edit_shows_its_change_at_the_terminal() {
    let model = writing();
    let home = home(&model, &[]);
    let run = at_a_terminal(&home, &["-m", "write a.txt"]).finish();
    let shown = &run.exits(0).stdout;
    assert!(shown.contains("\u{1b}[32m+one\u{1b}[0m"), "{shown}");
    let plain = home
        .bantam()
        .args(["agent", "write b.txt"])
        .on_a_terminal()
        .env("TERM", "xterm")
        .env("NO_COLOR", "1")
        .run();
    let shown = &plain.exits(0).stdout;
    assert!(shown.contains("  +one"), "{shown}");
    home.agent(["-m", "write c.txt"]).exits(0).is_quiet();
}

#[test]
fn confirm_name_without_effect_is_refused() {
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let home = Home::asking(
        &model,
        &json!({"tools": {"confirm": ["wirtes", "clock__now", "exec", "nothing__now", "clock__*"]},
            "mcpServers": {"clock": {"url": "http://127.0.0.1:1/", "enabled": false}}}),
    );
    let (says, hint) = (
        "tools.confirm: no tool, MCP server or group named \"wirtes\"",
        "did you mean `writes`?",
    );
    let run = home.agent(["-m", "hi"]);
    let line = format!("{says}; {hint}");
    run.exits(0).says(&line).says("\"nothing__now\"");
    run.says("\"clock__*\"; did you mean `clock`?");
    run.does_not_say("\"exec\"").does_not_say("clock__now");
    let doctor = home.run(["doctor"]);
    let both = format!("{says}\n  fix: {hint}\n");
    doctor.shows(&both);

    let home = Home::with(&model.config());
    let set = |value: &str| home.run(["config", "set", "tools.confirm", value]);
    set(r#"["runs", "wirtes"]"#).fails(2).says("\"wirtes\"");
    // Each tool has a name for the setting.
    let run = home
        .bantam()
        .arg("tools")
        .env("TELEGRAM_BOT_TOKEN", "1:fake")
        .run();
    let rows = run.exits(0).stdout.lines().skip(1);
    let names: Vec<&str> = rows.filter_map(|row| row.split(' ').next()).collect();
    assert!(names.contains(&"message"), "{}", run.stdout);
    set(&json!(names).to_string()).exits(0).is_quiet();
}

/// Effects of calls that their questions must show, for every spelling of the call.
fn hiding() -> Vec<(&'static str, Value, Vec<String>)> {
    let lines: Vec<String> = (0..40).map(|n| format!("line {n}")).collect();
    let key = "-----BEGIN PRIVATE KEY-----\n: abcdefghijklmnopqrstuvwxyz\ntouch b\n-----END PRIVATE KEY-----";
    let exec = |command: &str| json!({ "command": command });
    let write = |content: &str| json!({ "path": "a.txt", "content": content });
    vec![
        (
            "exec",
            exec("DB_PASSWORD=x9;touch</dev/null>a"),
            vec!["DB_PASSWORD=x9;touch</dev/null>a".to_owned()],
        ),
        (
            "exec",
            exec(&format!(": '{key}'")),
            key.lines().map(str::to_owned).collect(),
        ),
        (
            "exec",
            exec("echo # harmless\ntouch a"),
            vec!["\r\n  touch a".to_owned()],
        ),
        (
            "exec",
            exec("echo \u{202e}a\u{200b}b\rc\u{e0041}d\u{7}e\u{2066}f"),
            vec!["\\u{202e}a\\u{200b}b\\u{d}c\\u{e0041}d\\u{7}e\\u{2066}f".to_owned()],
        ),
        (
            "exec",
            json!({ "command": "make", "working_dir": "there", "timeout": 599 }),
            vec!["timeout: 599".to_owned(), "working_dir: there".to_owned()],
        ),
        (
            "write_file",
            write(&lines.join("\n")),
            lines.iter().map(|line| format!("+{line}")).collect(),
        ),
        (
            "write_file",
            write(&format!("{}touch a", "a ".repeat(200))),
            vec!["a touch a".to_owned()],
        ),
        (
            "write_file",
            write("TOKEN=\"x9;touch a\""),
            vec!["TOKEN=\"x9;touch a\"".to_owned()],
        ),
    ]
}

#[test]
fn a_question_at_the_terminal_hides_nothing() {
    let calls = hiding();
    let model = Model::answering(|request, _| {
        let question = request.last("user");
        let number = question
            .trim()
            .rsplit([' ', '\n'])
            .next()
            .unwrap()
            .parse::<usize>();
        match number {
            Ok(number) if request.texts("tool").len() <= number => {
                let (tool, arguments, _) = &hiding()[number];
                Reply::call(tool, arguments)
            }
            _ => Reply::text("Over."),
        }
    });
    let home = home(&model, &["writes", "runs"]);
    let mut talk = at_a_terminal(&home, &[]);
    talk.wait_for_next_stdout("> ");
    for (number, (.., shown)) in calls.iter().enumerate() {
        talk.types(&format!("{number}\r"));
        for text in shown {
            talk.wait_for_next_stdout(text);
        }
        talk.wait_for_next_stdout("(default: no) ");
        talk.types_until_next("n\n", "Over.");
        talk.wait_for_next_stdout("> ");
    }
    talk.types("/quit\r");
    talk.finish().exits(0);
}

#[test]
fn ctrl_c_at_question_stops_the_turn() {
    let model = writing();
    let home = home(&model, &["writes"]);
    let mut talk = at_a_terminal(&home, &[]);
    talk.wait_for_next_stdout("> ");
    talk.types_until_next("write no.txt\r", "(default: no) ");
    talk.types_until_next("n\n", "not run: write_file no.txt");
    talk.wait_for_next_stdout("Result: ");
    talk.wait_for_next_stdout("> ");
    let asked = model.requests().len();
    talk.types_until_next("write stopped.txt\r", "(default: no) ");
    talk.types_until_next("\u{3}", "bantam: stopped");
    talk.wait_for_next_stdout("> ");
    assert_eq!(
        model.requests().len(),
        asked + 1,
        "the model is not asked again"
    );
    talk.types("/quit\r");
    talk.finish().exits(0);
    // It also ends a single question.
    let mut once = at_a_terminal(&home, &["-m", "write once.txt"]);
    once.wait_for_next_stdout("(default: no) ");
    once.types("\u{3}");
    once.finish().exits(130);
    for file in ["no.txt", "stopped.txt", "once.txt"] {
        assert!(!home.path(&format!("workspace/{file}")).exists(), "{file}");
    }
}
