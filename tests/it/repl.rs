//! The conversation at a terminal.

use serde_json::json;

use crate::harness::{Home, Running, has_all, has_none};
use crate::model::{Model, Reply};

/// Runs `bantam agent ARGS...` at a terminal until it asks for the first line.
#[track_caller]
fn conversation<'h, const N: usize>(home: &'h Home, args: [&str; N]) -> Running<'h> {
    let asked = home.bantam().arg("agent").args(args);
    let running = asked.silent_stdin().on_a_clever_terminal(200).spawn();
    running.wait_for_stdout("> ");
    running
}

#[test]
fn ctrl_c_ends_only_the_turn() {
    let (_model, home) = Home::of(Model::scripted([
        Reply::text("Once upon a time there was").held_after(3),
        Reply::text("Yes."),
    ]));
    let mut talk = conversation(&home, []);
    talk.types_until("tell me\n", "Once upon a");
    talk.types_until("\x03", "bantam: stopped");
    talk.types_until("still there?\n", "Yes.");
    talk.types("/quit\n");
    talk.finish().exits(0);
    assert_eq!(home.session("cli_default").turns(), ["cancelled", "done"]);
}

#[test]
fn ctrl_c_at_prompt_clears_the_line() {
    let (model, home) = Home::of(Model::scripted([Reply::text("Here.")]));
    let mut talk = conversation(&home, []);
    talk.types_until_next("never mind\x03", "never mind");
    talk.wait_for_next_stdout("\u{1b}[?2004h");
    talk.types_until("hi\n", "Here.\r\n\r\n\u{1b}[?2004h");
    let asked = model.request(0).last("user");
    assert!(asked.ends_with("\nhi"), "{asked}");
    talk.types("\x04");
    talk.finish().exits(0);
}

#[test]
fn earlier_conversation_is_continued_also_after_new() {
    let model = Model::answering(|_, n| Reply::text(&format!("Answer {n}.")));
    let home = Home::with(&model.config());
    home.agent(["-s", "garden", "basil?"]).exits(0);
    let users = |n: usize| {
        let texts = model.request(n).texts("user");
        let last_line = |text: &String| text.lines().last().unwrap().to_owned();
        texts.iter().map(last_line).collect::<Vec<_>>()
    };
    let mut talk = conversation(&home, ["-q"]);
    for (line, shown) in [
        ("/resume\n", "garden  basil?"),
        ("first\n", "Answer 1.\r\n\r\n\u{1b}[?2004h"),
        (
            "/new\n",
            "started a new conversation; /resume default.1 goes back\r\n\u{1b}[?2004h",
        ),
        ("second\n", "Answer 2.\r\n\r\n\u{1b}[?2004h"),
        ("/resume\n", "default.1  first"),
        (
            "/resume default.1\n",
            "you asked last: first\r\n\u{1b}[?2004h",
        ),
        ("third\n", "Answer 3.\r\n\r\n\u{1b}[?2004h"),
        ("/clear\n", "/resume default.3 goes back\r\n\u{1b}[?2004h"),
        (
            "/resume garden\n",
            "you asked last: basil?\r\n\u{1b}[?2004h",
        ),
        ("mint?\n", "Answer 4.\r\n\r\n\u{1b}[?2004h"),
        ("/resume gardne\n", "did you mean `garden`?"),
        ("/resume default.9\n", "hint: "),
    ] {
        talk.types_until_next(line, shown);
    }
    talk.types("/quit\n");
    talk.finish().exits(0);
    assert_eq!(users(2), ["second"]);
    assert_eq!(users(3), ["first", "third"]);
    assert_eq!(users(4), ["basil?", "mint?"]);
    assert_eq!(home.session("cli_default.2").texts("user"), ["second"]);
    // The command line does the same.
    let shown = home.run(["sessions", "show", "default.2"]);
    shown.exits(0).shows("second");
    home.agent(["-s", "default.2", "fourth"]).exits(0);
    assert_eq!(users(5), ["second", "fourth"]);
    home.agent(["-s", "default.1", "--dry-run", "fifth"])
        .exits(0);
    assert_eq!(home.session("cli_default").texts("user")[1], "fourth");
    home.write("sessions/telegram_42.jsonl", "");
    home.write("sessions/telegram_42.1.jsonl", "");
    let refused = home.agent(["-s", "telegram_42.1", "sixth"]);
    refused.exits(2).says("belongs to another channel");
    let refused = home.run(["sessions", "show", "default.99"]);
    refused.fails(2);
}

#[test]
fn another_model_goes_on_with_the_conversation() {
    // Without the setting, the first of the list is the default.
    for (args, named) in [(&["-q"][..], false), (&["-q", "--no-session"], true)] {
        let model = Model::scripted([Reply::text("One."), Reply::text("Two.")]);
        let mut config = model.config();
        if !named {
            config["agents"]["defaults"]["model_name"] = "".into();
        }
        let mut other = config["model_list"][0].clone();
        other["model_name"] = "other".into();
        other["model"] = "openai/other-model".into();
        config["model_list"].as_array_mut().unwrap().push(other);
        let home = Home::with(&config);
        let asked = home.bantam().arg("agent").args(args);
        let mut talk = asked.silent_stdin().on_a_clever_terminal(200).spawn();
        talk.types_until("first\n", "One.\r\n\r\n\u{1b}[?2004h");
        talk.types("/model\n");
        talk.wait_for_stdout("/model NAME changes it: test, other, or provider/model");
        talk.types_until("/model nobody\n", "hint: ");
        talk.types("/model other\n");
        talk.wait_for_stdout("the model is now openai/other-model\r\n\u{1b}[?2004h");
        talk.types_until("second\n", "Two.");
        talk.types("/model default\n");
        talk.wait_for_next_stdout("the model is now openai/test-model\r\n\u{1b}[?2004h");
        talk.types("/quit\n");
        talk.finish().exits(0);
        assert_eq!(model.request(1).body["model"], "other-model");
        assert_eq!(
            model.request(1).texts("user").len(),
            2,
            "{}",
            model.request(1).body
        );
    }
}

#[test]
fn help_usage_and_mistyped_commands_are_answered_without_the_model() {
    let (_model, home) = Home::of(Model::scripted([Reply::text("Four.")]));
    let mut talk = conversation(&home, []);
    talk.types_until("/help\n", "/model [NAME]");
    talk.types_until("/usgae\n", "did you mean `/usage`?");
    talk.types_until("/model opnai\n", "hint: ");
    talk.types_until("two and two?\n", "Four.\r\n\r\n\u{1b}[?2004h");
    talk.types("/usage\n");
    talk.wait_for_stdout("1 turn, 11 input tokens (3 cached), 7 output tokens");
    talk.types_until("/status\n", "context: about ");
    talk.types_until("/thinking\n", "the model's reasoning is shown");
    talk.types_until("/thinking\n", "the model's reasoning is hidden");
    talk.types("\n  \n/quit\n");
    let said = talk.finish().exits(0).stdout.clone();
    let status = said.rsplit("/status").next().unwrap();
    assert_eq!(status.matches("messages").count(), 1, "{status}");
}

#[test]
fn pasted_and_continued_lines_are_one_message() {
    let (model, home) = Home::of(Model::scripted([Reply::text("One."), Reply::text("Two.")]));
    let mut talk = conversation(&home, []);
    talk.types("\x1b[200~fn f() {\n    grüße(世界) \\\n\n}\n\x1b[201~\r");
    talk.wait_for_stdout("One.\r\n\r\n\u{1b}[?2004h");
    talk.types("first \\\r");
    talk.types_until("second\r", "Two.");
    talk.types("/quit\n");
    talk.finish().exits(0);
    assert!(
        model
            .request(0)
            .last("user")
            .ends_with("\nfn f() {\n    grüße(世界) \\\n\n}"),
        "{}",
        model.request(0).body
    );
    assert!(
        model.request(1).last("user").ends_with("\nfirst \nsecond"),
        "{}",
        model.request(1).body
    );
}

#[test]
fn an_answer_is_asked_for_again_and_taken_back() {
    let replies = [
        Reply::text("One."),
        Reply::text("Two."),
        Reply::text("Two again."),
        Reply::error(401, "no such key"),
        Reply::text("Three."),
        Reply::text("Four."),
    ];
    for args in [&["-q"][..], &["-q", "--no-session"]] {
        let (model, home) = Home::of(Model::scripted(replies.clone()));
        let mut talk = home
            .bantam()
            .arg("agent")
            .args(args)
            .silent_stdin()
            .on_a_clever_terminal(200)
            .spawn();
        talk.types_until("/retry\r", "bantam: no question to retry");
        talk.types_until("first\r", "One.\r\n\r\n\u{1b}[?2004h");
        talk.types_until("second\r", "Two.\r\n\r\n\u{1b}[?2004h");
        talk.types_until("/retry\r", "asking again: second");
        talk.wait_for_stdout("Two again.\r\n\r\n\u{1b}[?2004h");
        // A question without a trace is asked again.
        talk.types_until("third\r", "no such key");
        talk.types_until("/retry\r", "Three.\r\n\r\n\u{1b}[?2004h");
        talk.types_until("/undo\r", "bantam: undone: third");
        talk.types_until("/undo\r", "bantam: nothing to undo");
        talk.types_until("fourth\r", "Four.");
        talk.types("/quit\r");
        talk.finish().exits(0);
        let users = |n: usize| {
            model
                .request(n)
                .texts("user")
                .iter()
                .map(|text| text.lines().last().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(users(2), ["first", "second"]);
        assert_eq!(users(4), ["first", "second", "third"]);
        assert_eq!(users(5), ["first", "second", "fourth"]);
    }
}

#[test]
fn files_go_with_a_message_that_names_them() {
    let (model, home) = Home::of(Model::scripted([Reply::text("One."), Reply::text("Two.")]));
    let (one, two) = (
        home.write("one.txt", "basil\n"),
        home.write("two.txt", "mint\n"),
    );
    let mut talk = conversation(&home, []);
    let shown = two.display().to_string();
    talk.types(&format!(
        "compare @{} with @{}\t, @nobody\r",
        one.display(),
        &shown[..shown.len() - 3]
    ));
    talk.wait_for_stdout("one.txt, 6 bytes; ");
    talk.wait_for_stdout(&format!("{shown}, 5 bytes? [y/N] "));
    // A question typed too early is not an answer.
    talk.types_until_next("what is in it?\n", "Not understood. Attach");
    talk.wait_for_next_stdout("[y/N] ");
    talk.types_until("y\n", "One.\r\n\r\n\u{1b}[?2004h");
    talk.types(&format!("\u{1b}[200~and @{shown} now?\u{1b}[201~\r"));
    talk.wait_for_next_stdout("now?");
    talk.wait_for_next_stdout("[y/N] ");
    talk.types_until("\n", "bantam: sent without the files");
    talk.wait_for_stdout("Two.");
    talk.types("/quit\r");
    talk.finish().exits(0);
    let asked = model.request(0).last("user");
    has_all(
        &asked,
        ["one.txt]\n```\nbasil\n```", "two.txt]\n```\nmint\n```"],
    );
    assert!(asked.contains(", @nobody\n"), "{asked}");
    has_none(&model.request(1).last("user"), ["```\nmint"]);
}

/// The author of pasted text must not choose files, so no part of a paste answers the question.
#[test]
fn pasted_text_attaches_no_file() {
    for (term, paste) in [
        // A terminal without paste marks, and a paste with a fake end mark.
        ("dumb", "read @SECRET please\ny\nyes\n"),
        (
            "xterm",
            "\u{1b}[200~read\u{1b}[201~ @SECRET please\ry\ryes\r",
        ),
    ] {
        let (model, home) = Home::of(Model::answering(|_, _| Reply::text("Fine.")));
        let secret = home.write("secret.txt", "basil\n").display().to_string();
        let mut talk = home
            .bantam()
            .arg("agent")
            .silent_stdin()
            .on_a_terminal()
            .env("TERM", term)
            .spawn();
        talk.wait_for_stdout("> ");
        talk.types(&paste.replace("SECRET", &secret));
        talk.wait_for_stdout("6 bytes? [y/N] ");
        talk.types_until("\n", "sent without the files");
        talk.wait_for_stdout("Fine.");
        talk.types("\u{15}/quit\n");
        talk.finish().exits(0);
        has_none(&model.request(0).body.to_string(), ["basil"]);
    }
}

/// Pasted text is recalled by the up arrow like typed text.
#[test]
fn history_line_asks_before_attaching_file() {
    let (model, home) = Home::of(Model::scripted([Reply::text("One."), Reply::text("Two.")]));
    let secret = home.write("secret.txt", "basil\n").display().to_string();
    let mut talk = conversation(&home, []);
    talk.types(&format!("\u{1b}[200~read @{secret}\u{1b}[201~\r"));
    talk.wait_for_next_stdout("[y/N] ");
    talk.types_until_next("n\n", "One.\r\n\r\n\u{1b}[?2004h");
    talk.types_until_next("\u{1b}[A\r", "[y/N] ");
    talk.types_until_next("\x03", "Two.");
    talk.types("/quit\n");
    talk.finish().exits(0);
    for n in 0..2 {
        assert!(!model.request(n).body.to_string().contains("basil"));
    }
}

#[test]
fn skills_are_run_by_name() {
    let (model, home) = Home::of(Model::scripted([Reply::text("One.")]));
    home.write(
        "agent/skills/write-news/SKILL.md",
        "---\ndescription: News.\n---\nWrite three lines.\n",
    );
    let mut talk = conversation(&home, []);
    talk.types_until("/write-new\r", "did you mean `/write-news`?");
    talk.types_until("/write-news of today\r", "One.\r\n\r\n\u{1b}[?2004h");
    talk.types_until("/status\r", "you asked last: /write-news of today");
    talk.types_until("/undo\r", "undone: /write-news of today");
    talk.types("/quit\r");
    talk.finish().exits(0);
    let asked = model.request(0).last("user");
    has_all(&asked, ["Write three lines."]);
    assert!(asked.ends_with("of today"), "{asked}");
}

#[test]
fn a_dumb_terminal_reads_plain_lines() {
    let (model, home) = Home::of(Model::scripted([Reply::text("One.")]));
    let mut talk = home
        .bantam()
        .arg("agent")
        .silent_stdin()
        .on_a_terminal()
        .env("TERM", "dumb")
        .spawn();
    talk.wait_for_stdout("> ");
    talk.types_until("first \\\nsecond\n", "One.\r\n\r\n> ");
    talk.types("\x04");
    let run = talk.finish();
    run.exits(0);
    assert!(!run.stdout.contains('\u{1b}'), "{:?}", run.stdout);
    let asked = model.request(0).last("user");
    assert!(asked.ends_with("\nfirst \\\nsecond"), "{asked}");
}

#[test]
fn host_models_are_listed_and_selectable() {
    let model = Model::answering(|request, _| match request.method.as_str() {
        "GET" => Reply::json(
            200,
            &json!({ "data": [
                { "id": "gpt-small", "context_length": 8192 },
                { "id": "small-talk" },
            ] }),
        ),
        _ => Reply::text("One."),
    });
    let list = json!({ "model_list": [ { "model": "openai/*", "api_key": "k", "api_base": model.base() } ] });
    let home = Home::asking(&model, &list);
    let mut talk = conversation(&home, []);
    talk.types_until_next("/model\n", "gpt-small   8192 tokens\r\n");
    talk.wait_for_next_stdout("/model NAME changes it: test, one of these, or provider/model; ");
    talk.types("/model small-talk\n");
    talk.wait_for_next_stdout("the model is now openai/small-talk\r\n");
    talk.types_until_next("hi\n", "One.");
    talk.types("/quit\n");
    talk.finish().exits(0);
    let asked = model.requests().pop().unwrap();
    assert_eq!(asked.body["model"], "small-talk");
}
