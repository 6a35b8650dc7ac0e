//! `tools.confirm` in Telegram: the owner is asked with buttons, and can answer only with them.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bot::{config, dies, ends, start};
use crate::botapi::{BotApi, Sent};
use crate::botschema;
use crate::harness::{Home, has_all, merged, until};
use crate::model::{Model, Reply, call};
use crate::stored::{open_items, sealed};

const OWNER: i64 = 42;
const OTHER: i64 = 43;
const STRANGER: i64 = 666;
const GROUP: i64 = -1_000_000_000_555;

/// Returns a model that writes the files named after `write` in a question, in one reply, and then reports the results.
fn writing() -> Model {
    Model::answering(|request, _| {
        let messages = request.messages();
        // Other messages may have arrived since.
        let asks = |text: &str| text.contains("write ");
        let last = messages.iter().rposition(|message| {
            message["role"] == "user" && message["content"].as_str().is_some_and(asks)
        });
        let results: Vec<String> = messages[last.unwrap_or_default()..]
            .iter()
            .filter(|message| message["role"] == "tool")
            .map(|message| message["content"].as_str().unwrap().to_owned())
            .collect();
        let users = request.texts("user");
        let question = users.iter().rfind(|text| asks(text)).cloned();
        let question = question.unwrap_or_default();
        let Some((_, files)) = question.split_once("write ").filter(|_| results.is_empty()) else {
            return Reply::text(&format!("Results: {}", results.join(" | ")));
        };
        Reply::calls(files.split_whitespace().map(|file| {
            let arguments = json!({ "path": file, "content": "one\ntwo\n" });
            call("call_1", "write_file", &arguments)
        }))
    })
}

fn home(model: &Model, api: &BotApi) -> Home {
    api.chat(OWNER);
    Home::with(&merged(
        config(model, api),
        &json!({ "tools": { "confirm": ["writes"] } }),
    ))
}

/// Waits until this many messages with buttons were sent to the owner, and returns the last one.
#[track_caller]
fn asked(api: &BotApi, count: usize) -> Sent {
    let asks = |sent: &Sent| sent.chat == OWNER && sent.source.contains("May I call");
    let all = || -> Vec<Sent> { api.sent(OWNER).into_iter().filter(asks).collect() };
    until("the owner is asked", || all().len() >= count);
    all().remove(count - 1)
}

#[track_caller]
fn wait_for(api: &BotApi, chat: i64, text: &str) {
    until(&format!("{text:?} is sent to {chat}"), || {
        api.texts(chat).iter().any(|sent| sent.contains(text))
    });
}

#[track_caller]
#[test]
fn the_owner_says_yes_no_or_always_by_a_button() {
    let (model, api) = (writing(), BotApi::start());
    let home = home(&model, &api);
    let gateway = start(&home);
    let is_there = |file: &str| home.path(&format!("workspace/{file}")).exists();
    for (n, (file, button, is_written, decided)) in [
        ("no.txt", "No", false, "❌ Not allowed."),
        ("yes.txt", "Yes", true, "✅ Allowed."),
        (
            "always.txt",
            "Always allow this tool here",
            true,
            "✅ Allowed, always in this conversation.",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        api.text(OWNER, &format!("write {file}"));
        let question = asked(&api, n + 1);
        for shown in ["write_file", file, "+one", "+two"] {
            assert!(question.text.contains(shown), "{question:?}");
        }
        assert!(!is_there(file));
        api.press(OWNER, OWNER, question.id, button);
        wait_for(&api, OWNER, decided);
        let question = asked(&api, n + 1);
        assert!(question.text.ends_with(decided), "{question:?}");
        assert!(question.buttons.is_empty());
        until("the answer is there", || {
            api.texts(OWNER)
                .iter()
                .filter(|text| text.contains("Results:"))
                .count()
                == n + 1
        });
        assert_eq!(is_there(file), is_written, "{file}");
    }
    api.text(OWNER, "write free.txt");
    until("it is written unasked", || is_there("free.txt"));
    wait_for(&api, OWNER, "Results:");
    // The permission applies to the conversation.
    api.text(OWNER, "/new");
    wait_for(&api, OWNER, "This is a new conversation.");
    api.text(OWNER, "write again.txt");
    let question = asked(&api, 4);
    api.press(OWNER, OWNER, question.id, "No");
    wait_for(&api, OWNER, "said no");
    api.wait_for_asked("answerCallbackQuery", 4);
    ends(gateway);
    assert!(open_items(&home.path(""), "ask").is_empty());
    home.session("telegram_42").has_one_result_per_call();
    botschema::check(&api);
}

#[test]
fn only_the_asked_user_can_answer() {
    let (model, api) = (writing(), BotApi::start());
    let home = home(&model, &api);
    let gateway = start(&home);
    api.text(OWNER, "write first.txt");
    let first = asked(&api, 1);
    let data = |sent: &Sent, shown: &str| -> String {
        let button = sent.buttons.iter().find(|(text, _)| text == shown);
        button.unwrap().1.clone()
    };
    let yes = data(&first, "Yes");
    api.press(OWNER, STRANGER, first.id, "Yes");
    api.press(OWNER, OTHER, first.id, "Yes");
    api.press_data(GROUP, OWNER, first.id, &yes);
    api.press_data(OTHER, OTHER, first.id, &yes);
    api.press_data(OWNER, OWNER, first.id, "y:ask-1");
    api.press_data(OWNER, OWNER, first.id, "y");
    api.press_data(OWNER, OWNER, first.id, &yes.replacen('y', "x", 1));
    // Text is a message, which waits for the answer.
    api.text(OWNER, "yes");
    api.text(OWNER, "y");
    api.text(OWNER, &yes);
    api.wait_for_confirmation();
    // All are acknowledged, except the stranger's.
    api.wait_for_asked("answerCallbackQuery", 6);
    assert!(!home.path("workspace/first.txt").exists());
    assert!(!asked(&api, 1).buttons.is_empty());
    api.press(OWNER, OWNER, first.id, "No");
    wait_for(&api, OWNER, "❌ Not allowed.");
    wait_for(&api, OWNER, "said no");
    // A button of an earlier question does not answer a later one.
    api.text(OWNER, "write second.txt");
    let second = asked(&api, 2);
    api.press_data(OWNER, OWNER, first.id, &yes);
    api.press_data(OWNER, OWNER, second.id, &yes);
    api.wait_for_asked("answerCallbackQuery", 9);
    assert!(!asked(&api, 2).buttons.is_empty());
    assert!(!home.path("workspace/second.txt").exists());
    api.press(OWNER, OWNER, second.id, "Yes");
    until("it is written", || {
        home.path("workspace/second.txt").exists()
    });
    ends(gateway);
    assert!(!home.path("workspace/first.txt").exists());
    assert!(api.texts(STRANGER).is_empty());
}

#[test]
fn a_question_outlives_the_program() {
    let (model, api) = (writing(), BotApi::start());
    let home = home(&model, &api);
    let mut gateway = start(&home);
    api.text(OWNER, "write a.txt b.txt c.txt");
    let first = asked(&api, 1);
    // More often than the limit of crashes per message, and once while the gateway is down before the answer.
    for n in 1..5 {
        until("the turn waits", || {
            if !open_items(&home.path(""), "out").is_empty() {
                return false;
            }
            let queue = home.read("state/queue.jsonl");
            queue.matches("\"halt\":[\"telegram:").count() >= n
        });
        dies(gateway);
        let polls = api.asked("getUpdates").len();
        gateway = start(&home);
        api.wait_for_asked("getUpdates", polls + 1);
    }
    ends(gateway);
    api.press(OWNER, OWNER, first.id, "Yes");
    gateway = start(&home);
    until("the first file is there", || {
        home.path("workspace/a.txt").exists()
    });
    let second = asked(&api, 2);
    // A kill before the delivery is recorded would send it twice.
    until("it is sent", || {
        open_items(&home.path(""), "out").is_empty()
    });
    dies(gateway);
    gateway = start(&home);
    api.press(OWNER, OWNER, second.id, "No");
    let third = asked(&api, 3);
    api.press(OWNER, OWNER, third.id, "Yes");
    wait_for(&api, OWNER, "Results:");
    ends(gateway);
    let there = ["a", "b", "c"].map(|file| home.path(&format!("workspace/{file}.txt")).exists());
    assert_eq!(there, [true, false, true]);
    // One reply of the model made these calls, and one answered their results.
    assert_eq!(model.requests().len(), 2);
    assert_eq!(asked(&api, 3).id, third.id);
    home.session("telegram_42").has_one_result_per_call();
    let results = model.request(1).texts("tool");
    assert!(results[1].contains("said no"), "{results:?}");
    assert!(!results.join(" ").contains("interrupted"), "{results:?}");
}

#[test]
fn no_answer_is_no_and_a_stop_ends_the_question() {
    let (model, api) = (writing(), BotApi::start());
    let home = home(&model, &api);
    // An hour is three seconds.
    let gateway = home
        .bantam()
        .arg("gateway")
        .env("BANTAM_TEST_SPEED", "1200")
        .spawn();
    api.text(OWNER, "write a.txt");
    let question = asked(&api, 1);
    wait_for(&api, OWNER, "❌ Not allowed: no answer within an hour.");
    wait_for(&api, OWNER, "has not answered");
    api.press_data(OWNER, OWNER, question.id, "y:ask-1");
    ends(gateway);
    let gateway = start(&home);
    api.text(OWNER, "write b.txt");
    asked(&api, 2);
    until("the question's message is recorded", || {
        open_items(&home.path(""), "out").is_empty()
    });
    api.text(OWNER, "/stop");
    wait_for(&api, OWNER, "❌ Not allowed: the turn was stopped.");
    wait_for(&api, OWNER, "(Stopped.)");
    ends(gateway);
    assert!(!home.path("workspace/a.txt").exists() && !home.path("workspace/b.txt").exists());
    assert!(open_items(&home.path(""), "ask").is_empty());
}

#[test]
fn waiting_question_does_not_block_other_chats() {
    let (model, api) = (writing(), BotApi::start());
    let home = home(&model, &api);
    let mut config = merged(
        config(&model, &api),
        &json!({ "tools": { "confirm": ["writes"] } }),
    );
    config["gateway"] = json!({ "workers": 1 });
    config["agents"]["defaults"]["timeout"] = 4.into();
    home.config(&config.to_string());
    let gateway = start(&home);
    let begun = Instant::now();
    api.text(OWNER, "write a.txt");
    let first = asked(&api, 1);
    // Another allowed user is not the owner, so the owner is asked.
    api.text(OTHER, "write b.txt");
    let second = asked(&api, 2);
    assert!(second.text.contains("User (43)"), "{second:?}");
    api.text(OWNER, "/status");
    wait_for(&api, OWNER, "open questions: 2, messages behind them: 0");
    api.mention(GROUP, OWNER, "hello");
    wait_for(&api, GROUP, "Results:");
    assert!(api.texts(OTHER).is_empty());
    until("the turn's time is over", || {
        begun.elapsed() > Duration::from_secs(6)
    });
    api.press(OWNER, OWNER, second.id, "Yes");
    wait_for(&api, OTHER, "Results:");
    api.press(OWNER, OWNER, first.id, "Yes");
    wait_for(&api, OWNER, "Results:");
    ends(gateway);
    assert!(home.path("workspace/a.txt").exists() && home.path("workspace/b.txt").exists());
    let typing = |asked: &&crate::botapi::Asked| asked.params["chat_id"] == OTHER;
    let typed = api.asked("sendChatAction");
    assert!(
        typed.iter().filter(typing).count() <= 2,
        "it types for nobody"
    );
}

/// Returns a model that runs the command named after `run` in a question, and then reports the result.
fn running() -> Model {
    Model::answering(|request, _| {
        let last = request.messages().pop().unwrap();
        if last["role"] == "tool" {
            return Reply::text(&format!("Results: {}", last["content"]));
        }
        let question = request.last("user");
        let (_, command) = question.split_once("run ").unwrap();
        let command = match command {
            "long" => format!("echo {}; touch a.txt", "a ".repeat(6000)),
            "endless" => format!("echo {}; touch a.txt", "a ".repeat(60_000)),
            command => command.to_owned(),
        };
        Reply::call("exec", &json!({ "command": command }))
    })
}

/// Returns the messages sent to the owner after a number of earlier ones, once the last of them has buttons.
#[track_caller]
fn question_since(api: &BotApi, before: usize) -> Vec<Sent> {
    let new = || api.sent(OWNER).split_off(before);
    until("the owner is asked", || {
        new().last().is_some_and(|sent| !sent.buttons.is_empty())
    });
    new()
}

#[test]
fn a_question_hides_nothing_of_what_is_run() {
    let (model, api) = (running(), BotApi::start());
    api.chat(OWNER);
    let home = Home::with(&merged(
        config(&model, &api),
        &json!({ "tools": { "confirm": ["runs"] } }),
    ));
    let gateway = start(&home);
    let key = "-----BEGIN PRIVATE KEY-----\nabcdefghijklmnopqrstuvwxyz\n-----END PRIVATE KEY-----";
    let key = format!(": '{key}'");
    for (n, (command, shown)) in [
        ("DB_PASSWORD=x9;touch</dev/null>a.txt", ""),
        (key.as_str(), ""),
        (
            "echo \u{202e}a\u{200b}b; touch a.txt",
            "echo \\u{202e}a\\u{200b}b; touch a.txt",
        ),
        ("long", "; touch a.txt"),
    ]
    .into_iter()
    .enumerate()
    {
        let before = api.sent(OWNER).len();
        api.text(OWNER, &format!("run {command}"));
        let messages = question_since(&api, before);
        let shown = if shown.is_empty() { command } else { shown };
        let whole: Vec<&str> = messages.iter().map(|sent| sent.text.as_str()).collect();
        let whole = whole.join("\n");
        assert!(whole.contains(shown), "{whole}");
        if command == "long" {
            assert_eq!(
                whole.matches("a\n").count() + whole.matches("a ").count(),
                6000
            );
        }
        let last = messages.last().unwrap();
        assert_eq!(last.buttons.len(), 3);
        api.press(OWNER, OWNER, last.id, "No");
        until("it is decided", || {
            api.texts(OWNER)
                .iter()
                .filter(|text| text.contains("said no"))
                .count()
                > n
        });
    }
    let before = api.sent(OWNER).len();
    api.text(OWNER, "run endless");
    let messages = question_since(&api, before);
    let last = messages.last().unwrap();
    has_all(&last.text, ["more characters are not shown"]);
    let [(no, data)] = last.buttons.as_slice() else {
        panic!("{last:?}");
    };
    assert_eq!(no, "No");
    let (_, id) = data.split_once(':').unwrap();
    for answer in ["y", "a"] {
        api.press_data(OWNER, OWNER, last.id, &format!("{answer}:{id}"));
    }
    api.wait_for_asked("answerCallbackQuery", 6);
    api.press(OWNER, OWNER, last.id, "No");
    until("it is decided", || {
        api.texts(OWNER)
            .iter()
            .filter(|text| text.contains("said no"))
            .count()
            == 5
    });
    ends(gateway);
    assert!(!home.path("workspace/a.txt").exists());
    botschema::check(&api);
}

#[test]
fn an_answer_to_another_text_is_none_to_this_call() {
    let (model, api) = (writing(), BotApi::start());
    let home = home(&model, &api);
    let gateway = start(&home);
    api.text(OWNER, "write a.txt");
    let first = asked(&api, 1);
    until("it is sent", || {
        open_items(&home.path(""), "out").is_empty()
    });
    dies(gateway);
    // The same call, as repeated after a lost reply, asks for something else.
    let path = home.path("state/queue.jsonl");
    let other = |line: &str| match line.split_once("\",") {
        Some((_, rest)) if line.contains("May I call") => sealed(&rest.replace("a.txt", "b.txt")),
        _ => format!("{line}\n"),
    };
    let queue: String = fs::read_to_string(&path)
        .unwrap()
        .lines()
        .map(other)
        .collect();
    fs::write(&path, queue).unwrap();
    api.press(OWNER, OWNER, first.id, "Yes");
    let gateway = start(&home);
    let second = asked(&api, 2);
    assert!(second.text.contains("a.txt"), "{second:?}");
    wait_for(&api, OWNER, "a newer question replaced it.");
    api.wait_for_asked("answerCallbackQuery", 1);
    assert!(!home.path("workspace/a.txt").exists());
    api.press(OWNER, OWNER, second.id, "Yes");
    wait_for(&api, OWNER, "Results:");
    ends(gateway);
    assert!(home.path("workspace/a.txt").exists());
    assert!(open_items(&home.path(""), "ask").is_empty());
}
