//! Messages to chats in addition to the answers: the tool `message`, files, `--to`, and their records in conversations.

use std::fs;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::bot::{self, dies, ends, serving};
use crate::botapi::{BotApi, Fault};
use crate::botschema;
use crate::harness::{Home, has_all, has_fields, has_none, merged, until};
use crate::model::{Model, Reply, Request, call};

/// The two allowed users.
const OWNER: i64 = 42;
const OTHER: i64 = 43;
/// A user unknown to the bot.
const STRANGER: i64 = 666;
/// A user who is no longer allowed.
const REVOKED: i64 = 667;

fn config(model: &Model, api: &BotApi) -> Value {
    for chat in [OWNER, OTHER, STRANGER, REVOKED] {
        api.chat(chat);
    }
    bot::config(model, api)
}

fn home(model: &Model) -> (BotApi, Home) {
    let api = BotApi::start();
    let home = Home::with(&config(model, &api));
    (api, home)
}

/// Returns a model that makes these calls of `message`, one in each reply, and then repeats the last result.
fn sending(calls: impl IntoIterator<Item = Value>) -> Model {
    let calls: Vec<Value> = calls.into_iter().collect();
    Model::answering(
        move |request, _| match calls.get(request.texts("tool").len()) {
            Some(args) => Reply::call("message", args),
            None => Reply::text(&format!("Done: {}", request.last("tool"))),
        },
    )
}

/// Returns the smallest plausible PNG of this size.
fn png(width: u32, height: u32) -> Vec<u8> {
    [
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(),
        &width.to_be_bytes(),
        &height.to_be_bytes(),
    ]
    .concat()
}

/// Returns the files that wait to be sent.
fn waiting(home: &Home) -> Vec<String> {
    home.files()
        .into_iter()
        .filter(|file| file.starts_with("state/outbox/"))
        .collect()
}

/// Returns the messages that wait for a conversation.
#[track_caller]
fn notes(home: &Home, key: &str) -> Vec<String> {
    let queue = home.read("state/queue.jsonl");
    let all = queue
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|line| line["kind"] == "deferred" && line["item"]["session"] == key)
        .map(|line| line["item"]["content"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_message_is_in_the_chat_before_the_answer() {
    let model = Model::answering(|request: &Request, _| match request.texts("tool").len() {
        0 => Reply::calls([
            call("a", "message", &json!({ "content": "**One** moment." })),
            call("b", "message", &json!({ "content": "Still at it." })),
        ]),
        _ => Reply::text("The answer.").held(),
    });
    let (api, home) = home(&model);
    let gateway = serving(&home);
    api.text(OWNER, "do something long");
    assert_eq!(
        api.wait_for_texts(OWNER, 2),
        ["One moment.", "Still at it."]
    );
    model.wait_for_holds(1);
    model.release();
    assert_eq!(api.wait_for_texts(OWNER, 3)[2], "The answer.");
    ends(gateway);
    assert!(
        notes(&home, "telegram_42").is_empty(),
        "it is in the conversation already"
    );
    botschema::check(&api);
}

#[test]
fn message_tool_needs_a_bot() {
    let (model, api) = (Model::never_asked(), BotApi::start());
    let home = Home::with(&config(&model, &api));
    has_all(&home.run(["tools"]).exits(0).stdout, ["\nmessage "]);
    home.config(&model.config().to_string());
    has_none(&home.run(["tools"]).exits(0).stdout, ["\nmessage "]);
}

#[test]
fn message_tool_reaches_only_known_chats() {
    let group = -1_000_000_000_123;
    let model = sending([
        json!({ "content": "psst", "chat_id": STRANGER }),
        json!({ "content": "psst", "chat_id": REVOKED }),
        json!({ "content": "psst", "chat_id": format!("{REVOKED}_7") }),
        json!({ "content": "psst", "chat_id": "+42" }),
        json!({ "content": "psst", "chat_id": "not a number" }),
        json!({ "content": "psst", "channel": "email" }),
        json!({ "content": "" }),
        json!({ "content": "To you.", "chat_id": OTHER }),
        json!({ "content": "To all.", "chat_id": group.to_string() }),
        json!({ "content": "To the topic.", "chat_id": format!("{group}_7") }),
        json!({ "content": "To whom it may concern." }),
    ]);
    let api = BotApi::start();
    api.chat(group);
    let home = Home::with(&config(&model, &api));
    // This user was allowed before.
    home.write(&format!("sessions/telegram_{REVOKED}.jsonl"), "");
    // An allowed user has written there.
    home.write(&format!("sessions/telegram_{group}.jsonl"), "");
    // From the command line, without a gateway: the command delivers it.
    let run = home.agent(["-m", "tell them"]);
    has_all(&run.exits(0).stdout, ["sending to telegram:42"]);
    assert_eq!(api.texts(OTHER), ["To you."]);
    assert_eq!(api.texts(OWNER), ["To whom it may concern."]);
    let mut sent: Vec<_> = api
        .sent(group)
        .into_iter()
        .map(|sent| (sent.thread, sent.text))
        .collect();
    sent.sort();
    assert_eq!(
        sent,
        [
            (None, "To all.".to_owned()),
            (Some(7), "To the topic.".to_owned())
        ]
    );
    assert!(api.texts(STRANGER).is_empty() && api.texts(REVOKED).is_empty());
    let told = model.requests().last().unwrap().texts("tool");
    assert!(
        told[..5].iter().all(|told| told.contains("unknown chat")),
        "{told:?}"
    );
    has_all(&told[5], ["telegram"]);
    has_all(&told[6], ["empty"]);
    let noted = &notes(&home, "telegram_43")[0];
    has_all(noted, ["another conversation, cli:default", "To you."]);
    botschema::check(&api);
}

#[test]
fn a_job_writes_to_where_its_answer_goes() {
    let model = sending([json!({ "content": "I am at it." })]);
    let (api, home) = home(&model);
    let gateway = serving(&home);
    home.run("cron add -m report --at +1s --to telegram:43".split(' '))
        .exits(0);
    let texts = api.wait_for_texts(OTHER, 2);
    assert_eq!(texts[0], "I am at it.");
    assert!(texts[1].contains("sending to telegram:43"), "{texts:?}");
    until("both are noted", || notes(&home, "telegram_43").len() == 2);
    ends(gateway);
    assert!(api.texts(OWNER).is_empty());
}

#[test]
fn files_go_out_whole_as_what_they_are() {
    let large: Vec<u8> = (0..3 << 20)
        .map(|n: u32| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    let long = "word ".repeat(300);
    let model = sending([
        json!({ "content": "**All** of it", "file": "out/large.bin" }),
        json!({ "content": "", "file": "a \"b\"\n.png" }),
        json!({ "content": "wide", "file": "wide.png" }),
        json!({ "content": long, "file": "notes.txt" }),
        json!({ "content": "x", "file": "out" }),
        json!({ "content": "x", "file": "missing" }),
        json!({ "content": "x", "file": "../config.json" }),
        json!({ "content": "x", "file": "empty" }),
        json!({ "content": "x", "file": "huge" }),
    ]);
    let (api, home) = home(&model);
    home.write("workspace/out/large.bin", &large);
    home.write("workspace/a \"b\"\n.png", png(80, 60));
    home.write("workspace/wide.png", png(6000, 6000));
    home.write("workspace/notes.txt", "some notes\n");
    home.write("workspace/empty", "");
    fs::File::create(home.path("workspace/huge"))
        .unwrap()
        .set_len((50 << 20) + 1)
        .unwrap();
    let gateway = serving(&home);
    api.text(OWNER, "send them");
    api.wait_for_texts(OWNER, 6);
    until("nothing waits", || waiting(&home).is_empty());
    ends(gateway);
    let sent = api.sent(OWNER);
    let file = |n: usize| sent[n].file.clone().unwrap();
    assert!(file(0) == ("large.bin".to_owned(), large) && sent[0].text == "All of it");
    assert_eq!(
        (file(1), sent[1].text.as_str()),
        (("a _b__.png".to_owned(), png(80, 60)), "")
    );
    assert_eq!(
        (file(2), sent[2].text.as_str()),
        (("wide.png".to_owned(), png(6000, 6000)), "wide")
    );
    assert_eq!((&sent[3].file, sent[3].text.as_str()), (&None, long.trim()));
    assert_eq!(
        (file(4).1, sent[4].text.as_str()),
        (b"some notes\n".to_vec(), "")
    );
    let methods: Vec<String> = api
        .asked("")
        .into_iter()
        .map(|asked| asked.method)
        .filter(|method| method.starts_with("send"))
        .collect();
    let files: Vec<&str> = methods
        .iter()
        .filter(|m| !["sendChatAction", "sendMessageDraft"].contains(&m.as_str()))
        .map(|m| &m[4..])
        .collect();
    // The wide one is refused as a photo.
    assert_eq!(
        files[..6],
        [
            "Document", "Photo", "Photo", "Document", "Message", "Document"
        ]
    );
    let told = model.requests().last().unwrap().texts("tool");
    for (n, says) in [
        (4, "is a directory"),
        (5, "does not exist"),
        (6, "leads out"),
        (7, "is empty"),
        (8, "too large"),
    ] {
        assert!(told[n].contains(says), "{n}: {}", told[n]);
    }
    botschema::check(&api);
}

/// Returns a reply with these pictures and this text.
fn drawn(text: &str, pictures: &[Vec<u8>]) -> Reply {
    let image = |bytes: &Vec<u8>| {
        let url = format!("data:image/png;base64,{}", STANDARD.encode(bytes));
        json!({ "type": "image_url", "image_url": { "url": url } })
    };
    let images: Vec<Value> = pictures.iter().map(image).collect();
    let message = json!({ "role": "assistant", "content": text, "images": images });
    let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
    Reply::json(200, &json!({ "choices": [choice] }))
}

#[test]
fn a_picture_of_the_model_is_kept_shown_and_sent() {
    for (text, pictures) in [
        ("A small one.", vec![png(80, 60)]),
        ("", vec![png(80, 60), png(60, 80)]),
    ] {
        let all = pictures.clone();
        let model = Model::answering(move |request, _| match request.last("user") {
            said if said.contains("draw") => drawn(text, &all),
            _ => Reply::text("Seen."),
        });
        let (api, home) = home(&model);
        let lines = |run: &str| -> Vec<String> {
            let paths = run.split("[picture: ").skip(1);
            paths
                .map(|rest| rest.split_once(']').unwrap().0.to_owned())
                .collect()
        };
        for flags in [&[][..], &["--no-session"], &["--json"]] {
            let run = home
                .bantam()
                .args(["agent", "-m", "draw"])
                .args(flags)
                .run();
            run.exits(0).shows(text);
            let kept = lines(&run.stdout)
                .into_iter()
                .map(|path| fs::read(path).unwrap());
            assert_eq!(kept.collect::<Vec<_>>(), pictures, "{}", run.stdout);
        }
        home.agent(["-m", "what is it?"]).exits(0);
        let told = model.requests().pop().unwrap().texts("assistant").concat();
        assert!(told.contains("[picture: ") && !told.contains("base64"));
        let gateway = serving(&home);
        api.text(OWNER, "draw");
        api.wait_for_texts(OWNER, pictures.len() + 1);
        ends(gateway);
        let sent = api.sent(OWNER);
        let files = sent.iter().filter_map(|sent| sent.file.clone());
        assert_eq!(files.map(|(_, bytes)| bytes).collect::<Vec<_>>(), pictures);
        botschema::check(&api);
    }
}

#[test]
fn a_file_outlives_the_program_and_the_network() {
    let model = sending([json!({ "content": "here", "file": "notes.txt" })]);
    let (api, home) = home(&model);
    home.write("workspace/notes.txt", "some notes\n");
    api.fault("sendDocument", Fault::TooMany(1));
    api.fault("sendDocument", Fault::Page(502));
    api.fault("sendDocument", Fault::Silence);
    let gateway = serving(&home);
    api.text(OWNER, "send it");
    api.wait_for_asked("sendDocument", 3);
    // Later changes in the workspace do not matter, because the file was copied during the call.
    fs::remove_file(home.path("workspace/notes.txt")).unwrap();
    dies(gateway);
    assert_eq!(waiting(&home).len(), 1);
    home.write("state/outbox/orphan", "a crash has left it");
    let gateway = serving(&home);
    // Its delivery was uncertain, so it is there twice.
    api.wait_for_texts(OWNER, 3);
    until("nothing waits", || waiting(&home).is_empty());
    ends(gateway);
    let files: Vec<_> = api
        .sent(OWNER)
        .into_iter()
        .filter_map(|sent| sent.file)
        .collect();
    assert_eq!(
        files,
        [
            ("notes.txt".to_owned(), b"some notes\n".to_vec()),
            files[0].clone()
        ]
    );
}

#[test]
fn an_answer_goes_to_a_chat_with_and_without_a_gateway() {
    let model = Model::answering(|_, n| Reply::text(&format!("**Answer** {n}.")));
    let (api, home) = home(&model);
    home.agent(["--to", "telegram:42", "-m", "hi"])
        .answers("**Answer** 0.\n")
        .is_quiet();
    let object = home
        .agent(["--to", "telegram:43", "--no-session", "--json", "-m", "hi"])
        .exits(0)
        .json();
    has_fields(&object, &json!({ "ok": true, "output": "**Answer** 1." }));
    let run = home
        .bantam()
        .args(["agent", "-t", "summarize", "--to", "telegram:42", "-q"])
        .stdin("a text")
        .run();
    run.answers("**Answer** 2.\n").is_quiet();
    assert_eq!(
        (api.texts(OWNER), api.texts(OTHER)),
        (
            vec!["Answer 0.".into(), "Answer 2.".into()],
            vec!["Answer 1.".into()]
        )
    );
    let gateway = serving(&home);
    home.agent(["--to", "telegram:42", "-m", "hi"])
        .answers("**Answer** 3.\n")
        .is_quiet();
    assert_eq!(api.texts(OWNER)[2..], ["Answer 3."]);
    api.text(OWNER, "yes, do it");
    api.wait_for_texts(OWNER, 4);
    ends(gateway);
    let asked = model.request(4).body.to_string();
    for n in [0, 2, 3] {
        assert!(asked.contains(&format!("**Answer** {n}.")), "{n}: {asked}");
    }
    has_all(&asked, ["The answer to a question on the command line"]);
    assert_eq!(notes(&home, "telegram_43").len(), 1);
    botschema::check(&api);
}

#[test]
fn an_answer_that_fails_or_is_refused_is_not_delivered() {
    let model = Model::scripted([
        Reply::error(401, "no such key"),
        Reply::text("To nobody."),
        Reply::text("To you."),
    ]);
    let (api, home) = home(&model);
    home.agent(["--to", "telegram:42", "-m", "hi"]).exits(4);
    api.block(OWNER);
    let run = home.agent(["--to", "telegram:42", "-m", "hi"]);
    run.exits(1)
        .prints("To nobody.\n")
        .fails_with_a_hint()
        .says("bot was blocked by the user");
    home.agent(["--to", "telegram:43", "-m", "hi"]).exits(0);
    assert_eq!(
        (api.sent(OWNER).len(), api.texts(OTHER)),
        (0, vec!["To you.".to_owned()])
    );
}

#[test]
fn undelivered_answer_is_sent_after_restart() {
    let (model, api) = (Model::scripted([Reply::text("Kept.")]), BotApi::start());
    let config = config(&model, &api);
    // An unused port.
    let nowhere = json!({ "channels": { "telegram": { "api_base": "http://127.0.0.1:9" } } });
    let home = Home::with(&merged(config.clone(), &nowhere));
    let run = home
        .bantam()
        .env("BANTAM_TEST_SPEED", "20")
        .args(["agent", "--to", "telegram:42", "--json", "-m", "hi"])
        .run();
    let object = run.exits(1).json();
    assert!(
        run.took > Duration::from_secs(1) && run.took < Duration::from_secs(29),
        "{:?}",
        run.took
    );
    has_fields(&object, &json!({ "ok": false, "output": "Kept." }));
    assert_eq!(object["error"]["kind"], "failed");
    run.fails_with_a_hint().says("queued");
    home.config(&config.to_string());
    let gateway = serving(&home);
    assert_eq!(api.wait_for_texts(OWNER, 1), ["Kept."]);
    ends(gateway);
}
