//! The gateway, with a Telegram that follows the real rules.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::{Value, json};

use crate::bot::{config, dies, ends, start};
use crate::botapi::{BOT_NAME, BotApi, Fault};
use crate::botschema;
use crate::harness::{Home, has_all, has_none, until};
use crate::model::{Model, Reply, Request};

/// The allowed user, and a stranger.
const OWNER: i64 = 42;
const STRANGER: i64 = 666;
/// A group.
const GROUP: i64 = -1_000_000_000_123;

/// Returns a model that repeats its input.
fn echo() -> Model {
    Model::answering(|request, _| match request.method.as_str() {
        "GET" => Reply::error(404, "no such page"),
        _ => Reply::text(&format!("You said: {}", said(request))),
    })
}

/// Returns the user's last text, without clock and notes.
fn said(request: &Request) -> String {
    let text = request.last("user");
    // Text that a job adds.
    let text = text.split("\n\n[If there is nothing").next().unwrap();
    text.rsplit("]\n")
        .next()
        .unwrap_or_default()
        .trim()
        .to_owned()
}

#[test]
fn owner_is_answered_and_stranger_ignored() {
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    api.text(STRANGER, "let me in");
    api.text(OWNER, "hello 你好 🐓");
    let texts = api.wait_for_texts(OWNER, 2);
    assert!(
        texts.iter().any(|text| text.contains("hello 你好 🐓")),
        "{texts:?}"
    );
    assert!(texts.iter().any(|text| text.contains("666")), "{texts:?}");
    let name = fs::read_to_string(format!("/proc/{}/comm", gateway.pid())).unwrap();
    assert_eq!(name, "bantam\n", "what a list of processes shows");
    api.text(STRANGER, "please");
    api.text(667, "me too");
    api.text(OWNER, "again");
    api.wait_for_texts(OWNER, 4);
    api.wait_for_confirmation();
    ends(gateway);
    assert!(api.texts(STRANGER).is_empty());
    assert_eq!(
        api.texts(OWNER)
            .iter()
            .filter(|text| text.contains("Unknown users"))
            .count(),
        2
    );
    assert_eq!(model.requests().len(), 2);
    home.session("telegram_42").has_one_result_per_call();
    botschema::check(&api);
}

/// The owner can press twice, and other users cannot press.
#[test]
fn a_stranger_is_let_in_by_the_owner_alone() {
    let (model, api) = (echo(), BotApi::start());
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    api.text(STRANGER, "let me in");
    let last = |what: &str| {
        until(what, || {
            let sent = api.sent(OWNER).pop();
            sent.is_some_and(|sent| sent.source.contains(what) && !sent.buttons.is_empty())
        });
        api.sent(OWNER).pop().unwrap()
    };
    let notice = last("666");
    let data = |button: &str| {
        let found = notice.buttons.iter().find(|(text, _)| text == button);
        found.unwrap().1.clone()
    };
    // Another allowed user is not the owner, and a group is not the owner's chat.
    api.press_data(43, 43, notice.id, &data("Let in"));
    api.press_data(43, 43, notice.id, "letin:43");
    // A client of the owner can send any data: only a stranger who wrote is let in, and only after the question.
    api.press_data(OWNER, OWNER, notice.id, "letin:4242");
    api.press_data(OWNER, OWNER, notice.id, "let:4243");
    api.wait_for_asked("answerCallbackQuery", 4);
    api.press(OWNER, OWNER, notice.id, "Let in");
    let question = last("all tools");
    // A confirmation does not count after a No.
    api.press(OWNER, OWNER, question.id, "No");
    until("the stranger is ignored", || {
        let sent = api.sent(OWNER).pop();
        sent.is_some_and(|sent| sent.text.contains("is ignored"))
    });
    api.press_data(OWNER, OWNER, question.id, &format!("letin:{STRANGER}"));
    let question = last("all tools");
    has_none(&home.read("config.json"), ["666"]);
    api.press(OWNER, OWNER, question.id, "Yes, let in");
    gateway.wait_for_stderr("restarting");
    until("the stranger is told", || {
        api.texts(STRANGER)
            .iter()
            .any(|text| text.contains("You may write to me"))
    });
    api.text(STRANGER, "hello");
    until("the stranger is answered", || {
        api.texts(STRANGER)
            .iter()
            .any(|text| text.contains("You said: hello"))
    });
    ends(gateway);
    // The next program also knows of the press.
    let told = api.texts(STRANGER);
    let told = told.iter().filter(|text| text.contains("You may write"));
    assert_eq!(told.count(), 1);
    let written = home.read("config.json");
    let written: Value = serde_json::from_str(&written).unwrap();
    let ids = &written["channels"]["telegram"]["allow_from"];
    assert_eq!(*ids, json!([OWNER, 43, STRANGER]));
    botschema::check(&api);
}

/// Only a sign that more may follow delays an answer, as the length of a text that a client has cut.
#[test]
fn a_plain_message_is_answered_without_a_wait() {
    let model = Model::answering(|_, _| Reply::text("Here."));
    let (api, home) = crate::bot::home(&model);
    let gateway = crate::bot::serving(&home);
    let times = (1..=10).map(|count| {
        let begun = Instant::now();
        api.text(OWNER, "hello");
        api.wait_for_texts(OWNER, count);
        begun.elapsed()
    });
    // The machine may be busy, but not for each message.
    let fastest = times.min().unwrap();
    assert!(fastest < Duration::from_millis(200), "{fastest:?}");
    api.text(OWNER, &"x".repeat(4096));
    api.wait_for_confirmation();
    api.text(OWNER, "the end");
    api.wait_for_texts(OWNER, 11);
    ends(gateway);
    assert_eq!(model.requests().len(), 11);
    let asked = model.request(10).last("user");
    has_all(&asked, ["xxxx", "the end"]);
}

#[test]
fn messages_before_the_first_reply_are_answered_with_it() {
    let model = Model::answering(|request, n| match n {
        0 => Reply::text("never sent").held(),
        _ if seen(request, "three, corrected") == 0 => Reply::text("too early").held(),
        _ => Reply::text("All."),
    });
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.text(OWNER, "one");
    model.wait_for_holds(1);
    api.text(OWNER, "two");
    let three = api.text(OWNER, "three");
    api.edit(OWNER, OWNER, three, "three, corrected");
    assert_eq!(api.wait_for_texts(OWNER, 1), ["All."]);
    ends(gateway);
    let last = model.requests().pop().unwrap().texts("user").concat();
    let places = ["one", "two", "three, corrected"].map(|text| last.find(text));
    assert!(places[0].is_some() && places.is_sorted(), "{last}");
}

/// Returns how often the users' messages to the model contain a text.
fn seen(request: &Request, what: &str) -> usize {
    request.texts("user").concat().matches(what).count()
}

/// Returns a call that differs from the others of its turn. A message may take a moment to reach the running turn.
fn go_on(number: usize) -> Reply {
    Reply::call("list_dir", &json!({ "path": ".", "depth": number + 1 }))
}

/// A correction such as "No, in the other folder" must not wait for the end of the turn.
#[test]
fn a_message_reaches_the_running_turn_before_its_next_request() {
    let model = Model::answering(|request, n| match n {
        1 => go_on(n).held(),
        _ if seen(request, "third-thing") > 0 => Reply::text("Third."),
        _ if seen(request, "second-thing") > 0 => Reply::text("Both."),
        _ => go_on(n),
    });
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.text(OWNER, "first-thing");
    model.wait_for_holds(1);
    api.text(OWNER, "second-thing");
    api.wait_for_confirmation();
    model.release();
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Both."]);
    let request = model.requests().pop().unwrap();
    let roles: Vec<&str> = request
        .messages()
        .iter()
        .filter_map(|message| message["role"].as_str())
        .collect();
    assert_eq!(roles[roles.len() - 3..], ["tool", "assistant", "user"]);
    assert!(request.last("user").contains("second-thing"));
    // It is one turn, which the next question includes and /undo undoes as a whole.
    api.text(OWNER, "third-thing");
    assert_eq!(api.wait_for_texts(OWNER, 2)[1], "Third.");
    let third = model.requests().pop().unwrap();
    for thing in ["first-thing", "second-thing", "third-thing"] {
        assert_eq!(seen(&third, thing), 1, "{thing}");
    }
    assert!(
        third
            .texts("assistant")
            .iter()
            .all(|text| !text.contains("interrupted"))
    );
    ends(gateway);
    home.session("telegram_42").has_one_result_per_call();
}

#[test]
fn no_more_than_sixteen_messages_are_one_turn() {
    let model = Model::answering(|request, _| match seen(request, "item") {
        count if count < 15 => Reply::text("too early").held(),
        count => Reply::text(&format!("{count} items.")),
    });
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.text(OWNER, "one");
    model.wait_for_holds(1);
    for n in 0..20 {
        api.text(OWNER, &format!("item {n}."));
    }
    assert_eq!(api.wait_for_texts(OWNER, 2), ["15 items.", "20 items."]);
    ends(gateway);
}

#[test]
fn a_new_conversation_begins_before_what_waits_is_answered() {
    let model = Model::scripted([
        go_on(0),
        Reply::text("First.").held(),
        Reply::text("Second."),
    ]);
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.text(OWNER, "aardvark");
    model.wait_for_holds(1);
    api.text(OWNER, "badger");
    api.text(OWNER, "/new");
    assert_eq!(
        api.wait_for_texts(OWNER, 3),
        ["(Stopped.)", "This is a new conversation.", "Second."]
    );
    ends(gateway);
    let second = model.request(2).body["messages"].to_string();
    has_all(&second, ["badger"]);
    has_none(&second, ["aardvark"]);
}

#[test]
fn a_question_behind_new_is_asked_in_the_new_conversation() {
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    api.text(OWNER, "aardvark");
    api.wait_for_texts(OWNER, 1);
    api.text(OWNER, "/new what is 2+2?");
    api.wait_for_texts(OWNER, 3);
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01";
    api.photo(OWNER, png, &json!({ "caption": "/new\nwhat is this?" }));
    api.wait_for_texts(OWNER, 5);
    api.photo(OWNER, png, &json!({ "caption": "/new" }));
    api.wait_for_texts(OWNER, 7);
    api.photo(OWNER, png, &json!({ "caption": "/status" }));
    let texts = api.wait_for_texts(OWNER, 8);
    has_all(&texts[7], ["context: about"]);
    api.message(-5, OWNER, &json!({ "text": "/new and here?" }));
    let of_group = api.wait_for_texts(-5, 2);
    ends(gateway);
    for n in [1, 3, 5] {
        assert_eq!(texts[n], "This is a new conversation.");
    }
    assert_eq!(texts[2], "You said: what is 2+2?");
    assert!(of_group[1].contains("and here?"), "{of_group:?}");
    for n in 1..4 {
        let sent = model.request(n).body["messages"].to_string();
        let questions = sent.matches(r#""role":"user""#).count();
        assert!(questions == 1 && !sent.contains("/new"), "{sent}");
        assert_eq!(sent.contains("image_url"), n > 1, "{sent}");
    }
}

#[test]
fn chats_run_in_parallel_with_immediate_stop() {
    let model = Model::answering(|request, _| {
        let said = said(request);
        let reply = Reply::text(&format!("About {said}."));
        if said == "slow" { reply.held() } else { reply }
    });
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.text(OWNER, "slow");
    model.wait_for_holds(1);
    api.text(43, "quick");
    assert_eq!(api.wait_for_texts(43, 1), ["About quick."]);
    assert!(api.texts(OWNER).is_empty());
    api.text(OWNER, "/stop");
    assert_eq!(api.wait_for_texts(OWNER, 1), ["(Stopped.)"]);
    api.text(OWNER, "/stop");
    assert_eq!(api.wait_for_texts(OWNER, 2)[1], "There is nothing to stop.");
    api.text(OWNER, "and now");
    assert_eq!(api.wait_for_texts(OWNER, 3)[2], "About and now.");
    ends(gateway);
}

/// The disk does not answer while a command of another chat reads a file.
#[test]
fn slow_command_does_not_delay_a_stop() {
    let model = Model::answering(|_, _| Reply::text("Too late.").held());
    let (api, home) = crate::bot::home(&model);
    home.dir("usage");
    let file = home.path("usage/2099-01.jsonl");
    mkfifoat(CWD, file, Mode::RUSR | Mode::WUSR).unwrap();
    let gateway = start(&home);
    api.text(OWNER, "slow");
    model.wait_for_holds(1);
    api.text(43, "/usage");
    api.text(OWNER, "/stop");
    assert_eq!(api.wait_for_texts(OWNER, 1), ["(Stopped.)"]);
    ends(gateway);
    assert!(api.texts(43).is_empty(), "the command was not slow");
}

#[test]
fn the_commands_do_what_they_say() {
    let (model, api) = (echo(), BotApi::start());
    let mut config = config(&model, &api);
    let mut other = config["model_list"][0].clone();
    (other["model_name"], other["model"]) = ("second".into(), "openai/other".into());
    let mut nameless = other.clone();
    (nameless["model_name"], nameless["model"]) = ("".into(), "openai/third".into());
    config["model_list"]
        .as_array_mut()
        .unwrap()
        .extend([other, nameless]);
    let home = Home::with(&config);
    let gateway = start(&home);
    for (n, (command, says)) in [
        ("/start", "/new"),
        ("remember the moon", "You said: remember the moon"),
        ("/status", "openai/test-model"),
        ("/status", "of 131072 tokens"),
        ("/usage", "1 requests, 11 input and 7 output tokens"),
        ("/model", "openai/test-model"),
        ("/model none/such", "no model named"),
        ("/sttus", "There is no command /sttus"),
        ("/usr/bin is full", "You said: /usr/bin is full"),
        ("/model second", "This chat now uses openai/other"),
        ("/new", "new conversation"),
        ("what did I say?", "You said: what did I say?"),
    ]
    .iter()
    .enumerate()
    {
        api.text(OWNER, command);
        let texts = api.wait_for_texts(OWNER, n + 1);
        assert!(texts[n].contains(says), "{command}: {texts:?}");
    }
    ends(gateway);
    let mut requests = model.requests();
    requests.retain(|request| request.method == "POST");
    assert_eq!(requests.len(), 3);
    assert_eq!(
        requests[2].body["model"], "test-model",
        "a new conversation has the configured model"
    );
    assert!(!requests[2].body.to_string().contains("the moon"));
    let commands = &api.asked("setMyCommands")[0].params["commands"];
    assert!(
        commands
            .as_array()
            .unwrap()
            .iter()
            .any(|command| command["command"] == "stop")
    );
    botschema::check(&api);
}

#[test]
fn messages_under_way_together_are_not_blamed_for_a_crash() {
    let is_ill = Arc::new(AtomicBool::new(true));
    let ill = is_ill.clone();
    let model = Model::answering(move |request, n| {
        let said = said(request);
        let reply = Reply::text(&format!("About {said}."));
        // The second message is harmless, but its turn is running at the first crash.
        if ill.load(Ordering::SeqCst) && (said == "one" || n < 2) {
            reply.held()
        } else {
            reply
        }
    });
    let (api, home) = crate::bot::home(&model);
    for kill in 1..=3 {
        let gateway = start(&home);
        if kill == 1 {
            api.text(OWNER, "one");
            api.text(43, "two");
            model.wait_for_requests(2);
        }
        model.wait_for_holds(1 + kill);
        dies(gateway);
    }
    is_ill.store(false, Ordering::SeqCst);
    let gateway = start(&home);
    let told = api.wait_for_texts(OWNER, 1);
    assert!(told[0].contains("crashed three times"), "{told:?}");
    // It may be sent twice, because the second kill may come before its record.
    assert_eq!(api.wait_for_texts(43, 1)[0], "About two.");
    ends(gateway);
}

#[test]
fn messages_are_answered_despite_failing_requests() {
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let mut requests = 0;
    api.weather(move |method| {
        requests += 1;
        match requests % 9 {
            // A message lost in this way is not sent again.
            2 if method != "sendMessage" => Some(Fault::Reset),
            5 => Some(Fault::Half),
            8 => Some(Fault::Late(Duration::from_millis(300))),
            _ => None,
        }
    });
    let gateway = start(&home);
    for n in 1..=4 {
        let said = format!("message {n}");
        api.text(OWNER, &said);
        until("it is answered", || {
            api.texts(OWNER).iter().any(|text| text.contains(&said))
        });
    }
    api.calm();
    ends(gateway);
    assert_eq!(
        model.requests().len(),
        4,
        "an answer that was on its way was made again"
    );
}

#[test]
fn another_poller_does_not_make_it_deaf() {
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    api.fault(
        "getUpdates",
        Fault::Error(409, "Conflict: terminated by other getUpdates request"),
    );
    let gateway = start(&home);
    gateway.wait_for_stderr("another program is polling");
    api.text(OWNER, "still there?");
    assert_eq!(api.wait_for_texts(OWNER, 1), ["You said: still there?"]);
    ends(gateway);
}

#[test]
fn in_a_group_it_answers_who_means_it() {
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    let group = -1_000_000_000_123;
    api.message(group, OWNER, &json!({ "text": "not for the bot" }));
    api.mention(group, STRANGER, "nor this");
    api.mention(group, OWNER, "this is");
    let texts = api.wait_for_texts(group, 1);
    assert!(texts[0].contains("this is"), "{texts:?}");
    let id = api.sent(group)[0].id;
    api.reply(group, OWNER, id, "and this");
    api.wait_for_texts(group, 2);
    api.topic(group, OWNER, 7, "@test_bantam_bot in a topic");
    api.wait_for_texts(group, 3);
    ends(gateway);
    assert_eq!(api.sent(group)[2].thread, Some(7));
    let asked: BTreeSet<String> = model
        .requests()
        .iter()
        .map(|request| request.last("user"))
        .collect();
    assert_eq!(asked.len(), 3, "{asked:?}");
    home.session("telegram_-1000000000123_7")
        .has_one_result_per_call();
    botschema::check(&api);
}

#[test]
fn crashed_job_is_resumed_and_answered_once() {
    let model = Model::answering(|request, number| {
        let reply = Reply::text(&format!("About {}.", said(request)));
        if number == 0 { reply.held() } else { reply }
    });
    let api = BotApi::start();
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    gateway.wait_for_stderr("serving as");
    home.run("cron add -m once --at +1s --to telegram:42".split(' '))
        .exits(0);
    model.wait_for_requests(1);
    dies(gateway);
    let gateway = start(&home);
    api.wait_for_texts(OWNER, 1);
    ends(gateway);
    let gateway = start(&home);
    api.text(OWNER, "hello");
    let texts = api.wait_for_texts(OWNER, 2);
    ends(gateway);
    has_all(&texts[0], ["once"]);
    has_all(&texts[1], ["hello"]);
    // The request of the run was repeated, and its question is in the conversation once.
    assert_eq!(model.requests().len(), 3);
    assert_eq!(model.request(1).texts("user").len(), 1);
    let history = home.run(["cron", "history", "--json"]).json();
    let runs = history["runs"].as_array().unwrap();
    assert_eq!((runs.len(), &runs[0]["status"]), (1, &json!("ok")));
}

/// A power cut may leave zeros in place of a conversation, or after its last line.
#[test]
fn a_chat_is_told_that_its_conversation_is_damaged() {
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let path = "sessions/telegram_42.jsonl";
    for n in 0..3 {
        let mut damaged = fs::read(home.path(path)).unwrap_or_default();
        match n {
            0 => damaged.resize(4096, 0),
            1 => damaged.fill(0),
            _ => damaged.extend([0; 512]),
        }
        home.write(path, damaged);
        let gateway = start(&home);
        api.text(OWNER, "hello");
        let texts = api.wait_for_texts(OWNER, n + 1);
        ends(gateway);
        assert!(texts[n].contains("telegram_42.jsonl"), "{texts:?}");
    }
}

/// A command that the bot does not have is refused, also during a turn, and never becomes a question.
#[test]
fn unknown_commands_never_reach_the_model() {
    let model = Model::answering(|request, n| match n {
        0 => Reply::text("First.").held(),
        _ => Reply::text(&request.last("user")),
    });
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.text(OWNER, "aardvark");
    model.wait_for_holds(1);
    for text in ["/foo", "/stop_it", "/Foo"] {
        api.text(OWNER, text);
    }
    api.text(OWNER, "/Status");
    api.wait_for_confirmation();
    model.release();
    let texts = api.wait_for_texts(OWNER, 5);
    for name in ["/foo", "/stop_it", "/Foo"] {
        let refused = texts
            .iter()
            .filter(|text| text.contains("no command") && text.contains(name));
        assert_eq!(refused.count(), 1, "{name}: {texts:?}");
    }
    assert!(
        texts.iter().any(|text| text.contains("turns running")),
        "{texts:?}"
    );
    // A quotation or a name of a bot changes nothing.
    let before = api.text(OWNER, "/foo@other_bot");
    api.reply(OWNER, OWNER, before, "/bar");
    let texts = api.wait_for_texts(OWNER, 7)[5..].join("\n");
    has_all(&texts, ["no command /foo;", "no command /bar;"]);
    // In a group, a command of another bot is not for this one.
    for text in ["/foo", "/new@other_bot", "/STOP@Other_Bot"] {
        api.message(GROUP, OWNER, &json!({ "text": text }));
    }
    api.mention(GROUP, OWNER, "badger");
    let said = api.wait_for_texts(GROUP, 1);
    has_all(&said[0], ["badger"]);
    has_none(&said[0], ["foo"]);
    ends(gateway);
    assert_eq!(model.requests().len(), 2);
}

#[test]
fn an_album_in_a_group_is_one_message_although_one_picture_mentions_the_bot() {
    let (model, api) = (echo(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01";
    let part = |album: &str, caption: &str| {
        let size =
            json!({ "file_id": api.file(png), "file_unique_id": "u", "width": 1, "height": 1 });
        let mention = json!([{ "type": "mention", "offset": 0, "length": BOT_NAME.len() + 1 }]);
        let mut extra = json!({ "media_group_id": album, "photo": [size] });
        if !caption.is_empty() {
            let caption = format!("@{BOT_NAME} {caption}");
            extra["caption"] = caption.into();
            extra["caption_entities"] = mention;
        }
        api.message(GROUP, OWNER, &extra);
    };
    for caption in ["", "what is this?", ""] {
        part("77", caption);
    }
    api.wait_for_texts(GROUP, 1);
    // Each part comes with another poll, and the last one mentions the bot.
    part("76", "");
    api.wait_for_confirmation();
    part("78", "");
    api.wait_for_confirmation();
    part("78", "");
    api.wait_for_confirmation();
    part("78", "and these?");
    api.wait_for_texts(GROUP, 2);
    ends(gateway);
    assert_eq!(model.requests().len(), 2);
    for request in 0..2 {
        let asked = model.request(request).last("user");
        assert_eq!(asked.matches("was attached").count(), 3, "{asked}");
    }
}
