//! Display of a turn in the chat and in the log, and messages after failures of Telegram or the token.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::bot::{config, ends, start};
use crate::botapi::{BOT, BotApi, Fault, State};
use crate::harness::{Home, has_all, has_none, until};
use crate::model::{Model, Reply};

/// The two allowed users.
const OWNER: i64 = 42;
const OTHER: i64 = 43;

#[test]
fn a_message_whose_response_was_lost_is_not_sent_again() {
    let model = Model::answering(|_, n| Reply::text(&format!("Answer {n}.")));
    let (api, home) = crate::bot::home(&model);
    // Repeating these is harmless.
    api.fault("getUpdates", Fault::CutAfter);
    api.fault("sendChatAction", Fault::CutAfter);
    api.fault("sendMessage", Fault::CutAfter);
    let gateway = start(&home);
    api.text(OWNER, "hello");
    let texts = api.wait_for_texts(OWNER, 2);
    assert!(texts[0] == "Answer 0.", "{texts:?}");
    has_all(&texts[1], ["may not have arrived"]);
    api.text(OWNER, "and now?");
    assert_eq!(api.wait_for_texts(OWNER, 3)[2], "Answer 1.");
    ends(gateway);
    assert_eq!(api.texts(OWNER).len(), 3);
}

#[test]
fn a_styled_text_that_is_refused_arrives_without_its_styles() {
    let address = |n: usize| format!("https://site.example/{}/{n}", "long".repeat(20));
    let links = (0..60).map(|n| format!("- [page {n}]({})\n", address(n)));
    let links: String = links.collect();
    let words = "long ".repeat(800);
    let picture = json!({ "content": "[seen](https://site.example/seen)", "file": "a.txt" });
    let replies = [
        Reply::text("see [the **guide**](https://site.example/guide) now"),
        Reply::text(&links),
        Reply::call("message", &picture),
        Reply::text("Sent."),
        Reply::text(&words),
        Reply::text(&words),
    ];
    let (model, api) = (Model::scripted(replies), BotApi::start());
    let home = Home::with(&config(&model, &api));
    home.write("workspace/a.txt", "a\n");
    let gateway = start(&home);
    let refuse = |method, why| api.fault(method, Fault::Error(400, why));
    refuse("sendMessage", "Bad Request: ENTITIES_TOO_LONG");
    api.text(OWNER, "where?");
    let texts = api.wait_for_texts(OWNER, 1);
    assert_eq!(texts, ["see the guide (https://site.example/guide) now"]);
    refuse("sendMessage", "Bad Request: of a kind to come");
    api.text(OWNER, "more");
    let texts = api.wait_for_texts(OWNER, 3)[1..].join("\n");
    for n in 0..60 {
        let line = format!("• page {n} ({})", address(n));
        assert_eq!(texts.matches(&line).count(), 1, "{line} in {texts}");
    }
    // A caption goes as a text of its own, which is refused as well.
    refuse("sendDocument", "Bad Request: ENTITIES_TOO_LONG");
    refuse("sendMessage", "Bad Request: ENTITIES_TOO_LONG");
    api.text(OWNER, "send it");
    let texts = api.wait_for_texts(OWNER, 6)[3..].to_vec();
    assert_eq!(texts, ["seen (https://site.example/seen)", "", "Sent."]);
    // The server counts otherwise.
    let long = [
        "Bad Request: message is too long",
        "Bad Request: MESSAGE_TOO_LONG",
    ];
    for (why, count) in long.into_iter().zip([8, 10]) {
        refuse(
            "sendMessage",
            "Bad Request: can't parse entities: user not found",
        );
        refuse("sendMessage", why);
        api.text(OWNER, "in halves");
        let halves = api.wait_for_texts(OWNER, count)[count - 2..].to_vec();
        assert_eq!(halves.join(" "), words.trim_end());
    }
    ends(gateway);
}

#[test]
fn failing_delivery_is_dropped_after_two_minutes() {
    let model = Model::answering(|request, _| match request.texts("tool").len() {
        0 if request.last("user").contains("a file") => {
            Reply::call("message", &json!({ "content": "", "file": "notes.txt" }))
        }
        _ => Reply::text("Sent."),
    });
    let (api, home) = crate::bot::home(&model);
    home.write("workspace/notes.txt", "some notes\n");
    api.weather(|method| {
        (method == "sendDocument").then_some(Fault::Error(500, "Internal Server Error"))
    });
    let gateway = home
        .bantam()
        .env("BANTAM_TEST_SPEED", "20")
        .arg("gateway")
        .spawn();
    let begun = Instant::now();
    api.text(OWNER, "send a file");
    api.wait_for_asked("sendDocument", 3);
    api.text(OTHER, "hello");
    assert_eq!(api.wait_for_texts(OTHER, 1), ["Sent."]);
    assert!(
        api.wait_up_to(Duration::from_secs(60), |state| state.sent.len() == 3),
        "{:?}",
        api.texts(OWNER)
    );
    assert!(
        begun.elapsed() > Duration::from_secs(118) / 20,
        "after {:?}",
        begun.elapsed()
    );
    let texts = api.texts(OWNER);
    assert!(
        texts
            .iter()
            .any(|text| text.contains("notes.txt could not be sent")),
        "{texts:?}"
    );
    assert!(texts.iter().any(|text| text == "Sent."), "{texts:?}");
    ends(gateway);
}

#[test]
fn missing_network_at_start_is_waited_for() {
    let model = Model::answering(|_, _| Reply::text("Here."));
    let api = BotApi::start();
    let home = Home::with(&config(&model, &api));
    api.fault("getMe", Fault::Page(502));
    api.fault("getMe", Fault::CutBefore);
    api.fault("getMe", Fault::TooMany(3));
    // Pages of a captive portal are no answers of Telegram, and refuse nothing.
    for status in [403, 404, 401] {
        api.fault("sendMessage", Fault::Page(status));
    }
    let gateway = start(&home);
    api.text(OWNER, "hello");
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Here."]);
    ends(gateway);
    let tries = api.asked("getMe");
    let waited = tries[3].at - tries[2].at;
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
}

#[test]
fn the_log_has_the_time_unless_a_journal_adds_it() {
    let (model, api) = (Model::never_asked(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let logged = |prelude: &'static str| {
        let gateway = home.bantam().arg("gateway").after(prelude).spawn();
        gateway.wait_for_stderr("serving as");
        gateway.signal(Signal::TERM);
        let run = gateway.finish();
        run.exits(0);
        run.stderr
    };
    let has_time = |line: &str| {
        let (time, rest) = line.split_once(' ').unwrap();
        time.len() == 24 && time.ends_with('Z') && rest.starts_with("bantam: ")
    };
    // The second prelude inherits the variable from a service with another output.
    for prelude in [":", "export JOURNAL_STREAM=1:1"] {
        let log = logged(prelude);
        assert!(log.lines().all(has_time), "{log}");
    }
    let log = logged("export JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2)");
    assert!(
        log.lines().all(|line| line.starts_with("bantam: ")),
        "{log}"
    );
}

/// Scripts report their results, without a model.
#[test]
fn a_text_is_sent_without_a_model() {
    let model = Model::answering(|request, _| Reply::text(&request.body.to_string()));
    let api = BotApi::start();
    api.chat(42);
    let home = Home::with(&config(&model, &api));
    let send = |args: &[&str]| home.bantam().arg("send").args(args);
    send(&["The backup", "is done"]).run().answers("");
    send(&["--to", "telegram:42"])
        .stdin("disk: 91 %\n")
        .run()
        .exits(0);
    assert_eq!(api.texts(42), ["The backup is done", "disk: 91 %"]);
    assert!(model.requests().is_empty());
    // The conversation contains it.
    let gateway = start(&home);
    api.text(42, "what was that?");
    until("it answers", || {
        api.texts(42)
            .iter()
            .any(|text| text.contains("The backup is done") && text.contains("what was that"))
    });
    ends(gateway);
    send(&[]).stdin("").run().fails(2);
    send(&["--to", "pigeon:1", "x"]).run().fails(2);
    send(&["--to", "telegram:999", "x"]).run().fails(1);
    for base in ["localhost:8081", "http://telegram.example.com"] {
        let other = send(&["x"]).env("BANTAM_CHANNELS_TELEGRAM_API_BASE", base);
        other.run().fails(3).says("channels.telegram.api_base");
    }
    home.config(&model.config().to_string());
    send(&["x"]).run().fails(2);
}

#[test]
fn closed_topic_answer_goes_to_the_group() {
    const GROUP: i64 = -1_000_000_000_123;
    let model = Model::answering(|_, n| Reply::text(&format!("Answer {n}.")));
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    for (n, why) in [
        "Bad Request: message thread not found",
        "Bad Request: TOPIC_CLOSED",
    ]
    .into_iter()
    .enumerate()
    {
        api.fault("sendMessage", Fault::Error(400, why));
        api.topic(GROUP, OWNER, 7, "@test_bantam_bot hello");
        let texts = api.wait_for_texts(GROUP, n + 1);
        assert!(texts[n].contains("topic 7") && texts[n].contains(&format!("Answer {n}.")));
    }
    ends(gateway);
}

#[test]
fn the_owner_is_told_once_of_a_chat_that_takes_nothing() {
    let refusals = [
        (403, "Forbidden: bot was blocked by the user"),
        (
            400,
            "Bad Request: not enough rights to send text messages to the chat",
        ),
        (400, "Bad Request: CHAT_WRITE_FORBIDDEN"),
        (400, "Bad Request: have no rights to send a message"),
        (400, "Bad Request: of a kind to come"),
    ];
    let model = Model::answering(|_, _| Reply::text("Hello."));
    let api = BotApi::start();
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    let groups = (0..).map(|n| -1_000_000_000_101 - n);
    for (told, (group, (status, why))) in (1..).zip(groups.zip(refusals)) {
        api.refuse(group, status, why);
        for answered in 1..3 {
            api.mention(group, OWNER, "hello");
            until("it is refused", || {
                let asked = api.asked("sendMessage").into_iter();
                asked
                    .filter(|asked| asked.params["chat_id"] == group)
                    .count()
                    >= answered
            });
        }
        let texts = api.wait_for_texts(OWNER, told);
        assert!(texts[told - 1].contains(&group.to_string()), "{texts:?}");
    }
    api.text(OWNER, "hello");
    let texts = api.wait_for_texts(OWNER, refusals.len() + 1);
    assert_eq!(texts[refusals.len()], "Hello.");
    ends(gateway);
    assert_eq!(api.texts(OWNER).len(), refusals.len() + 1);
}

#[test]
fn a_long_answer_delays_no_other_chat() {
    let long = |bytes: usize| {
        "A line of sixty-four characters, with its end, makes it longer.\n".repeat(bytes / 64)
    };
    let (pieces, file) = (long(60_000), long(800_000));
    let bold = "**word** ".repeat(3000);
    let answers = (pieces.clone(), file.clone());
    let in_one_event = |text: &str| {
        let choice = json!({ "index": 0, "delta": { "content": text }, "finish_reason": "stop" });
        let chunk = json!({ "choices": [choice] });
        Reply::stream([format!("data: {chunk}\n\n"), "data: [DONE]\n\n".to_owned()])
    };
    let model = Model::answering(move |request, _| match request.last("user") {
        asked if asked.contains("pieces") => in_one_event(&answers.0),
        asked if asked.contains("file") => in_one_event(&answers.1),
        asked if asked.contains("bold") => in_one_event(&bold),
        _ => Reply::text("Hello."),
    });
    let (api, home) = crate::bot::home(&model);
    let slow = Fault::Late(Duration::from_millis(200));
    api.weather(move |method| method.starts_with("sendM").then(|| slow.clone()));
    let gateway = start(&home);
    let sent = |state: &State, chat| state.sent.iter().filter(|sent| sent.chat == chat).count();
    for (n, asked) in ["in pieces", "as a file", "in bold"]
        .into_iter()
        .enumerate()
    {
        let before = api.texts(OWNER).len();
        api.text(OWNER, asked);
        api.wait_for_texts(OWNER, before + 1);
        let begun = Instant::now();
        api.text(OTHER, "hello");
        let time = Duration::from_secs(3);
        assert!(
            api.wait_up_to(time, |state| sent(state, OTHER) > n),
            "{asked}"
        );
        let took = begun.elapsed();
        assert!(took < time, "{asked}: {took:?}");
        let all = [15, 2, 5][n];
        assert_eq!(api.wait_for_texts(OWNER, before + all).len(), before + all);
    }
    ends(gateway);
    let sent = api.sent(OWNER);
    let texts: Vec<&str> = sent[..15].iter().map(|sent| sent.text.as_str()).collect();
    assert_eq!(texts.join("\n"), pieces.trim_end());
    let (name, bytes) = sent[16].file.as_ref().unwrap();
    assert!(sent[15].text.contains("A line of") && sent[15].text.contains(name));
    assert_eq!(
        (name.as_str(), bytes.len()),
        ("answer.md", file.trim_end().len())
    );
}

/// A slow network delays only the chat whose draft is slow.
#[test]
fn slow_draft_does_not_delay_other_chats() {
    const SLOW: Duration = Duration::from_secs(12);
    let model = Model::answering(|request, _| {
        let reply = Reply::text("one two three");
        if request.last("user").contains("slow") {
            reply.held_after(3)
        } else {
            reply
        }
    });
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.fault("sendMessageDraft", Fault::Late(SLOW));
    api.text(OWNER, "slow");
    api.wait_for_asked("sendMessageDraft", 1);
    let begun = Instant::now();
    api.text(OTHER, "hello");
    api.wait_for_texts(OTHER, 1);
    assert!(begun.elapsed() < SLOW / 2, "{:?}", begun.elapsed());
    // No draft appears after the answer.
    model.release();
    api.wait_for_texts(OWNER, 1);
    assert!(begun.elapsed() > SLOW * 3 / 4, "{:?}", begun.elapsed());
    ends(gateway);
}

#[test]
fn a_refused_draft_stops_no_other_drafts() {
    let model = Model::answering(|_, _| Reply::text("one two three").held_after(3));
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    api.fault(
        "sendMessageDraft",
        Fault::Error(403, "Forbidden: bot was blocked by the user"),
    );
    for (count, user) in [(1, OWNER), (2, OTHER)] {
        api.text(user, "hello");
        api.wait_for_asked("sendMessageDraft", count);
    }
    model.release();
    model.release();
    api.wait_for_texts(OTHER, 1);
    ends(gateway);
}

#[test]
fn a_message_follows_its_group_to_the_supergroup() {
    let (old, new) = (-5, -1_000_000_000_777);
    let (model, api) = (Model::never_asked(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    api.chat(old);
    api.migrate(old, new);
    let to = format!("telegram:{old}");
    home.run(["send", "--to", &to, "The backup is done"])
        .exits(0);
    assert_eq!(api.wait_for_texts(new, 1), ["The backup is done"]);
}

/// Returns a model that answers with the number of the user's messages in its conversation.
fn counting() -> Model {
    Model::answering(|request, _| Reply::text(&request.texts("user").len().to_string()))
}

/// Adds a message of the owner to a group that is a reply to the bot.
fn say_to_bot(api: &BotApi, chat: i64) {
    let to_bot = json!({ "from": { "id": BOT }, "text": "hi" });
    api.message(
        chat,
        OWNER,
        &json!({ "text": "hello", "reply_to_message": to_bot }),
    );
}

#[test]
fn a_conversation_follows_its_group_to_the_supergroup() {
    let (old, new) = (-5, -1_000_000_000_777);
    let (model, api) = (counting(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    let say = |chat: i64| say_to_bot(&api, chat);
    say(old);
    api.wait_for_texts(old, 1);
    say(old);
    assert_eq!(api.wait_for_texts(old, 2), ["1", "2"]);
    // Both messages of Telegram, and the group's last one and next one, in one poll after a restart.
    ends(gateway);
    say(old);
    api.message(old, BOT, &json!({ "migrate_to_chat_id": new }));
    api.migrate(old, new);
    say(new);
    let gateway = start(&home);
    assert_eq!(api.wait_for_texts(new, 1), ["3"]);
    ends(gateway);
    let listed = home.run(["sessions", "list"]);
    let listed = &listed.exits(0).stdout;
    has_all(listed, ["telegram_-1000000000777"]);
    has_none(listed, ["telegram_-5 "]);
}

/// A supergroup that has a conversation keeps it, and nobody can move another chat's conversation.
#[test]
fn a_conversation_is_not_moved_over_another() {
    let (old, new) = (-5, -1_000_000_000_777);
    let (model, api) = (counting(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    let say = |chat: i64| say_to_bot(&api, chat);
    for chat in [old, new] {
        say(chat);
        api.wait_for_texts(chat, 1);
    }
    api.message(new, BOT, &json!({ "migrate_from_chat_id": old }));
    for chat in [old, new] {
        say(chat);
        assert_eq!(api.wait_for_texts(chat, 2)[1], "2");
    }
    ends(gateway);
}

#[test]
fn a_message_with_a_hidden_author_is_reported_once() {
    let (model, api) = (Model::never_asked(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    let group = -1_000_000_000_777;
    api.chat(OWNER);
    let anonymous = |chat: i64, text: &str| {
        let from = json!({"id": 1_087_968_824, "is_bot": true, "first_name": "Group"});
        let sender = json!({"id": chat, "type": "supergroup", "title": "Group"});
        api.message(
            chat,
            OWNER,
            &json!({"from": from, "sender_chat": sender, "text": text}),
        );
    };
    // Words that are not for the bot are nobody's business.
    anonymous(-1_000_000_000_778, "good morning");
    anonymous(group, "/status");
    anonymous(group, "/new hello");
    assert!(api.wait_for_texts(OWNER, 1)[0].contains("-1000000000777"));
    api.text(OWNER, "/status");
    api.wait_for_texts(OWNER, 2);
    ends(gateway);
    assert_eq!((api.texts(OWNER).len(), api.texts(group).len()), (2, 0));
}

#[test]
fn a_message_that_cannot_be_read_gets_one_notice() {
    let model = Model::answering(|request, _| Reply::text(&request.last("user")));
    let (api, home) = crate::bot::home(&model);
    let gateway = start(&home);
    let story = json!({"story": {"id": 1, "chat": {"id": 9, "type": "channel", "title": "News"}}});
    for _ in 0..3 {
        api.message(OWNER, OWNER, &story);
    }
    // A kind that does not exist yet, a notice of the chat, and a list that can be read.
    api.message(OWNER, OWNER, &json!({"hologram": {"file_id": "x"}}));
    api.message(OWNER, OWNER, &json!({"round_photo": {"file_id": "x"}}));
    for notice in [
        json!({"message_auto_delete_timer_changed": {"message_auto_delete_time": 9}}),
        json!({"left_chat_member": {"id": 5, "is_bot": false, "first_name": "Eve"}}),
    ] {
        api.message(OWNER, OWNER, &notice);
    }
    api.message(
        OWNER,
        OWNER,
        &json!({"checklist": {"title": "Shopping", "tasks": [
            {"id": 1, "text": "milk"}, {"id": 2, "text": "bread"}
        ]}}),
    );
    let texts = api.wait_for_texts(OWNER, 4);
    ends(gateway);
    let all = texts.join("\n");
    assert_eq!(api.texts(OWNER).len(), 4, "{texts:?}");
    has_all(&all, ["(story)", "(hologram)", "(round_photo)"]);
    has_all(&all, ["[checklist: Shopping: milk / bread]"]);
    assert_eq!(model.requests().len(), 1);
}
