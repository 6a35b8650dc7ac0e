//! Tests the scripted Telegram: each of its rules by plain HTTP, because other tests depend on them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::botapi::{BotApi, Fault, TOKEN};
use crate::botschema;
use crate::entities::{parse, strict};

/// Returns the status and the body of the answer; `None` if the connection ends before.
fn raw(api: &BotApi, path: &str, kind: &str, body: &[u8]) -> Option<(u16, Vec<u8>)> {
    let mut stream = TcpStream::connect(api.base().strip_prefix("http://").unwrap()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    if reader.read_line(&mut first).ok()? == 0 {
        return None;
    }
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("Content-Length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    Some((first.split(' ').nth(1).unwrap().parse().unwrap(), body))
}

fn ask(api: &BotApi, method: &str, params: &Value) -> (u16, Value) {
    let path = format!("/bot{TOKEN}/{method}");
    let (status, body) = raw(
        api,
        &path,
        "application/json",
        params.to_string().as_bytes(),
    )
    .expect("an answer");
    (status, serde_json::from_slice(&body).unwrap())
}

/// Returns the result of a method that must succeed.
#[track_caller]
fn ok(api: &BotApi, method: &str, params: &Value) -> Value {
    let (status, body) = ask(api, method, params);
    assert_eq!(
        (status, &body["ok"]),
        (200, &true.into()),
        "{method}: {body}"
    );
    body["result"].clone()
}

/// Returns the description of a method that must fail with this status.
#[track_caller]
fn refused(api: &BotApi, status: u16, method: &str, params: &Value) -> String {
    let (is, body) = ask(api, method, params);
    assert_eq!(
        (is, &body["error_code"]),
        (status, &status.into()),
        "{method}: {body}"
    );
    body["description"].as_str().unwrap().to_owned()
}

fn ids(updates: &Value) -> Vec<i64> {
    updates
        .as_array()
        .unwrap()
        .iter()
        .map(|update| update["update_id"].as_i64().unwrap())
        .collect()
}

#[test]
fn updates_stay_until_a_later_offset_confirms_them() {
    let api = BotApi::start();
    for n in 0..5 {
        api.text(42, &format!("message {n}"));
    }
    let all = ids(&ok(&api, "getUpdates", &json!({})));
    assert_eq!(all, [7001, 7002, 7003, 7004, 7005]);
    assert_eq!(
        ids(&ok(&api, "getUpdates", &json!({ "limit": 2 }))),
        all[..2]
    );
    assert_eq!(
        ids(&ok(&api, "getUpdates", &json!({ "offset": 7001 }))),
        all
    );
    assert_eq!(
        ids(&ok(&api, "getUpdates", &json!({ "offset": 7003 }))),
        all[2..]
    );
    assert_eq!(
        ids(&ok(&api, "getUpdates", &json!({ "offset": 0 }))),
        all[2..]
    );
    assert_eq!(
        ids(&ok(&api, "getUpdates", &json!({ "offset": -1 }))),
        all[4..]
    );
    assert_eq!(api.unconfirmed(), all[4..]);
    assert_eq!(
        ids(&ok(&api, "getUpdates", &json!({ "offset": 7006 }))),
        [0; 0]
    );
    api.wait_for_confirmation();
    // After an idle week, the numbers start anywhere.
    api.restart_updates_at(9);
    api.text(42, "again");
    assert_eq!(ids(&ok(&api, "getUpdates", &json!({}))), [9]);
}

#[test]
fn kinds_of_updates_that_were_not_asked_for_do_not_come() {
    let api = BotApi::start();
    ok(
        &api,
        "getUpdates",
        &json!({ "allowed_updates": ["message"] }),
    );
    api.edit(42, 42, 1, "edited");
    api.text(42, "plain");
    assert_eq!(ids(&ok(&api, "getUpdates", &json!({}))), [7002]);
    ok(&api, "getUpdates", &json!({ "allowed_updates": [] }));
    api.edit(42, 42, 1, "edited");
    assert_eq!(ids(&ok(&api, "getUpdates", &json!({}))), [7002, 7003]);
}

#[test]
fn second_poll_ends_the_first() {
    let api = BotApi::start();
    thread::scope(|scope| {
        let first = scope.spawn(|| ask(&api, "getUpdates", &json!({ "timeout": 30 })));
        api.wait_for_poll();
        let second = scope.spawn(|| ok(&api, "getUpdates", &json!({ "timeout": 30 })));
        let (status, body) = first.join().unwrap();
        assert_eq!(status, 409);
        assert!(
            body["description"]
                .as_str()
                .unwrap()
                .starts_with("Conflict: terminated by other getUpdates request")
        );
        api.text(42, "at last");
        assert_eq!(ids(&second.join().unwrap()), [7001]);
    });
    // Without an update, it waits exactly as long as requested.
    let start = Instant::now();
    assert_eq!(
        ids(&ok(
            &api,
            "getUpdates",
            &json!({ "offset": 7002, "timeout": 1 })
        )),
        [0; 0]
    );
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn polls_and_a_webhook_exclude_each_other() {
    let api = BotApi::start();
    api.webhook(true);
    assert!(
        refused(&api, 409, "getUpdates", &json!({}))
            .contains("can't use getUpdates method while webhook is active")
    );
    ok(&api, "deleteWebhook", &json!({}));
    ok(&api, "getUpdates", &json!({}));
}

#[test]
fn texts_are_parsed_and_counted_as_telegram_does() {
    let api = BotApi::start();
    api.chat(42);
    let send = |text: &str| json!({ "chat_id": 42, "text": text, "parse_mode": "HTML" });
    let message = ok(&api, "sendMessage", &send("<b>a &lt; b</b>"));
    assert_eq!(
        (&message["text"], &message["chat"]["id"]),
        (&"a < b".into(), &42.into())
    );
    ok(
        &api,
        "sendMessage",
        &json!({ "chat_id": "42", "text": "<b>plain" }),
    );
    ok(
        &api,
        "sendMessage",
        &send(&format!("<b>{}</b>", "😀".repeat(2048))),
    );
    assert_eq!(api.wait_for_texts(42, 3)[..2], ["a < b", "<b>plain"]);
    for (text, description) in [
        ("", "message text is empty"),
        (" <b> </b>\n", "message text is empty"),
        (
            "<x>a</x>",
            "can't parse entities: Unsupported start tag \"x\" at byte offset 0",
        ),
        (
            "é<b>a",
            "can't parse entities: Can't find end tag corresponding to start tag \"b\"",
        ),
        (
            "a</b>",
            "can't parse entities: Unexpected end tag at byte offset 1",
        ),
        (
            "<b>a</i>",
            "can't parse entities: Unmatched end tag at byte offset 4, expected \"</b>\", found \"</i>\"",
        ),
        (
            "a < b",
            "can't parse entities: Unsupported start tag \"\" at byte offset 2",
        ),
        (
            "a <b",
            "can't parse entities: Unclosed start tag at byte offset 2",
        ),
        (&"x".repeat(4097), "message is too long"),
        (&"😀".repeat(2049), "message is too long"),
        (&"&amp;".repeat(7000), "text is too long"),
    ] {
        assert_eq!(
            refused(&api, 400, "sendMessage", &send(text)),
            format!("Bad Request: {description}")
        );
    }
    // A bot should not send these, although the server accepts them.
    for lenient in [
        "<B>a</B>",
        "a > b",
        "a & b",
        "<b></b>a",
        "<code><b>a</b></code>",
        "<b><code>a</code></b>",
        "<a href='http://h'>a</a>",
    ] {
        assert!(
            parse(lenient).is_ok() && strict(lenient).is_err(),
            "{lenient}"
        );
    }
}

#[test]
fn chats_that_cannot_be_written_to_say_why() {
    let api = BotApi::start();
    let to = |chat: i64| json!({ "chat_id": chat, "text": "hello" });
    assert_eq!(
        refused(&api, 400, "sendMessage", &to(42)),
        "Bad Request: chat not found"
    );
    api.chat(42);
    api.block(42);
    assert_eq!(
        refused(&api, 403, "sendMessage", &to(42)),
        "Forbidden: bot was blocked by the user"
    );
    api.chat(-5);
    api.migrate(-5, -1_000_000_000_005);
    let (status, body) = ask(&api, "sendMessage", &to(-5));
    assert_eq!(
        (status, &body["parameters"]["migrate_to_chat_id"]),
        (400, &(-1_000_000_000_005_i64).into())
    );
    ok(&api, "sendMessage", &to(-1_000_000_000_005));
    assert_eq!(
        ok(
            &api,
            "getChat",
            &json!({ "chat_id": -1_000_000_000_005_i64 })
        )["type"],
        "supergroup"
    );
}

#[test]
fn drafts_are_for_private_chats_and_have_a_number() {
    let api = BotApi::start();
    api.chat(42);
    api.chat(-5);
    let draft =
        |chat: i64, id: i64, text: &str| json!({ "chat_id": chat, "draft_id": id, "text": text });
    ok(&api, "sendMessageDraft", &draft(42, 1, ""));
    ok(&api, "sendMessageDraft", &draft(42, 1, "so far"));
    assert_eq!(
        api.drafts(),
        [(42, 1, String::new()), (42, 1, "so far".to_owned())]
    );
    refused(&api, 400, "sendMessageDraft", &draft(42, 0, "x"));
    refused(&api, 400, "sendMessageDraft", &draft(-5, 1, "x"));
    assert!(api.sent(42).is_empty());
    botschema::check(&api);
}

#[test]
fn edits_actions_and_commands_follow_their_rules() {
    let api = BotApi::start();
    api.chat(42);
    let id = ok(
        &api,
        "sendMessage",
        &json!({ "chat_id": 42, "text": "first" }),
    )["message_id"]
        .clone();
    let edit = |text: &str| json!({ "chat_id": 42, "message_id": id, "text": text });
    ok(&api, "editMessageText", &edit("second"));
    assert_eq!(api.texts(42), ["second"]);
    assert!(
        refused(&api, 400, "editMessageText", &edit("second")).contains("message is not modified")
    );
    let other = json!({ "chat_id": 42, "message_id": 999, "text": "x" });
    assert!(refused(&api, 400, "editMessageText", &other).contains("message to edit not found"));
    ok(
        &api,
        "sendChatAction",
        &json!({ "chat_id": 42, "action": "typing" }),
    );
    refused(
        &api,
        400,
        "sendChatAction",
        &json!({ "chat_id": 42, "action": "dancing" }),
    );
    ok(
        &api,
        "setMyCommands",
        &json!({ "commands": [{ "command": "new", "description": "Starts anew" }] }),
    );
    refused(
        &api,
        400,
        "setMyCommands",
        &json!({ "commands": [{ "command": "New!", "description": "x" }] }),
    );
    ok(
        &api,
        "answerCallbackQuery",
        &json!({ "callback_query_id": "1" }),
    );
    assert_eq!(refused(&api, 404, "sendMesage", &json!({})), "Not Found");
    assert_eq!(ok(&api, "getMe", &json!({}))["is_bot"], true);
}

#[test]
fn files_go_both_ways() {
    let api = BotApi::start();
    api.photo(42, b"\x89PNG the photo", &json!({ "caption": "see" }));
    api.document(42, "a.txt", "text/plain", b"content", &json!({}));
    api.voice(42, b"OggS");
    api.album(42, &[b"one photo", b"two photo"], "both");
    let updates = ok(&api, "getUpdates", &json!({}));
    let message = |n: usize| &updates[n]["message"];
    assert_eq!(message(3)["media_group_id"], message(4)["media_group_id"]);
    assert_eq!(
        (&message(3)["caption"], &message(4)["caption"]),
        (&"both".into(), &Value::Null)
    );
    assert_eq!(message(2)["voice"]["mime_type"], "audio/ogg");
    let file = &message(0)["photo"].as_array().unwrap().last().unwrap()["file_id"];
    let path = ok(&api, "getFile", &json!({ "file_id": file }))["file_path"]
        .as_str()
        .unwrap()
        .to_owned();
    let (status, content) = raw(&api, &format!("/file/bot{TOKEN}/{path}"), "", b"").unwrap();
    assert_eq!(
        (status, content.as_slice()),
        (200, b"\x89PNG the photo".as_slice())
    );
    assert_eq!(
        raw(&api, &format!("/file/bot{TOKEN}/files/none"), "", b"")
            .unwrap()
            .0,
        404
    );
    refused(&api, 400, "getFile", &json!({ "file_id": "none" }));

    let part = |head: &str, content: &str| {
        format!("--cut\r\nContent-Disposition: form-data; {head}\r\n\r\n{content}\r\n")
    };
    let fields = part("name=\"chat_id\"", "42") + &part("name=\"caption\"", "here");
    let body =
        fields + &part("name=\"document\"; filename=\"out.txt\"", "line\r\nline") + "--cut--\r\n";
    let path = format!("/bot{TOKEN}/sendDocument");
    let (status, _) = raw(
        &api,
        &path,
        "multipart/form-data; boundary=cut",
        body.as_bytes(),
    )
    .unwrap();
    assert_eq!(status, 200);
    let sent = &api.sent(42)[0];
    assert_eq!(
        (sent.text.as_str(), &sent.file),
        (
            "here",
            &Some(("out.txt".to_owned(), b"line\r\nline".to_vec()))
        )
    );
    let asked = api.asked("sendDocument").pop().unwrap();
    assert_eq!(
        (asked.typed, &asked.params["document"], asked.status),
        (false, &"attach://out.txt".into(), 200)
    );
    let (status, _) = raw(
        &api,
        &format!("/bot{TOKEN}/sendMessage"),
        "application/x-www-form-urlencoded",
        b"chat_id=42&text=a+%26%20b",
    )
    .unwrap();
    assert_eq!((status, api.texts(42)[1].as_str()), (200, "a & b"));
    botschema::check(&api);
}

#[test]
fn files_have_their_limits() {
    let api = BotApi::start();
    api.chat(42);
    let png = |width: u32, height: u32| {
        [
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(),
            &width.to_be_bytes(),
            &height.to_be_bytes(),
        ]
        .concat()
    };
    let jpeg = |bytes: usize| [&[0xff, 0xd8, 0xff], vec![0; bytes].as_slice()].concat();
    for (method, name, content, says) in [
        ("sendDocument", "a.txt", b"text".to_vec(), ""),
        ("sendDocument", "a.txt", Vec::new(), "non-empty"),
        (
            "sendDocument",
            "a.bin",
            vec![0; (50 << 20) + 1],
            "Too Large",
        ),
        ("sendDocument", "", b"text".to_vec(), "file name"),
        ("sendDocument", "../a", b"text".to_vec(), "file name"),
        ("sendPhoto", "a.png", png(5000, 5000), ""),
        (
            "sendPhoto",
            "a.png",
            png(5000, 5001),
            "PHOTO_INVALID_DIMENSIONS",
        ),
        (
            "sendPhoto",
            "a.png",
            png(10, 210),
            "PHOTO_INVALID_DIMENSIONS",
        ),
        (
            "sendPhoto",
            "a.txt",
            b"text".to_vec(),
            "IMAGE_PROCESS_FAILED",
        ),
        ("sendPhoto", "a.jpg", jpeg(100), ""),
        ("sendPhoto", "a.jpg", jpeg(10 << 20), "too big for a photo"),
    ] {
        let field = if method == "sendPhoto" {
            "photo"
        } else {
            "document"
        };
        let head = format!(
            "--cut\r\nContent-Disposition: form-data; name=\"chat_id\"\r\n\r\n42\r\n\
             --cut\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\r\n"
        );
        let body = [head.as_bytes(), &content, b"\r\n--cut--\r\n"].concat();
        let path = format!("/bot{TOKEN}/{method}");
        let (status, answer) =
            raw(&api, &path, "multipart/form-data; boundary=cut", &body).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(status == 200, says.is_empty(), "{method} {name}: {answer}");
        assert!(answer.contains(says), "{method} {name}: {answer}");
    }
}

#[test]
fn groups_topics_and_replies_look_as_they_do_in_telegram() {
    let api = BotApi::start();
    api.mention(-5, 42, "hello");
    api.topic(-1_000_000_000_005, 42, 7, "in a topic");
    let sent = ok(
        &api,
        "sendMessage",
        &json!({ "chat_id": -5, "text": "an answer" }),
    )["message_id"]
        .as_i64()
        .unwrap();
    api.reply(-5, 42, sent, "and?");
    let updates = ok(&api, "getUpdates", &json!({}));
    let message = |n: usize| &updates[n]["message"];
    assert_eq!(
        (
            &message(0)["chat"]["type"],
            &message(0)["entities"][0]["type"]
        ),
        (&"group".into(), &"mention".into())
    );
    assert_eq!(
        (
            &message(1)["message_thread_id"],
            &message(1)["is_topic_message"]
        ),
        (&7.into(), &true.into())
    );
    assert_eq!(message(2)["reply_to_message"]["from"]["is_bot"], true);
}

#[test]
fn faults_come_once_each_and_where_they_were_put() {
    let api = BotApi::start();
    api.chat(42);
    let hello = json!({ "chat_id": 42, "text": "hello" });
    api.fault("sendMessage", Fault::TooMany(3));
    ok(&api, "getMe", &json!({}));
    let (status, body) = ask(&api, "sendMessage", &hello);
    assert_eq!(
        (status, &body["parameters"]["retry_after"]),
        (429, &3.into())
    );
    api.fault("", Fault::Page(502));
    let path = format!("/bot{TOKEN}/sendMessage");
    let send = || {
        raw(
            &api,
            &path,
            "application/json",
            hello.to_string().as_bytes(),
        )
    };
    assert!(send().is_some_and(|(status, body)| status == 502 && body.starts_with(b"<html>")));
    api.fault(
        "",
        Fault::Error(400, "Bad Request: can't parse entities: of your own"),
    );
    assert!(refused(&api, 400, "sendMessage", &hello).ends_with("of your own"));
    assert!(api.sent(42).is_empty());
    api.fault("", Fault::CutBefore);
    assert!(send().is_none() && api.sent(42).is_empty());
    api.fault("", Fault::CutAfter);
    assert!(send().is_none() && api.sent(42).len() == 1);
    api.fault("", Fault::Silence);
    thread::scope(|scope| {
        // The request is executed, and the connection remains open without an answer until one side ends it.
        let mut stream = TcpStream::connect(api.base().strip_prefix("http://").unwrap()).unwrap();
        scope.spawn(|| api.wait_for_texts(42, 2));
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{hello}",
            hello.to_string().len()
        )
        .unwrap();
    });
    ok(&api, "sendMessage", &hello);
    api.wait_for_asked("sendMessage", 7);
    assert_eq!(api.sent(42).len(), 3);
    assert!(api.asked("").is_sorted_by_key(|asked| asked.at));
}

#[test]
fn a_wrong_token_is_told_so() {
    let api = BotApi::start();
    assert_eq!(raw(&api, "/bot1:other/getMe", "", b"").unwrap().0, 401);
    assert_eq!(raw(&api, "/botnonsense/getMe", "", b"").unwrap().0, 404);
    assert_eq!(raw(&api, "/", "", b"").unwrap().0, 404);
    assert!(api.asked("").is_empty());
}
