//! A person's week: forty questions at the shell and in a chat, with all kinds of events.
//!
//! The host is as strict as the strictest real one: it refuses two consecutive messages of a user, a call without its result,
//! and certain pictures or words anywhere in the request. Each question has a number, by which the host and the test identify
//! questions and answers, and count them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::prelude::{BASE64_STANDARD, Engine};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::bot::{dies, ends};
use crate::botapi::{BotApi, TOKEN};
use crate::harness::{Bantam, CANARY, Home, Run, has_all};
use crate::model::{Model, Reply, Request, call};
use crate::stored::{assert_single_result_per_call, sealed};

const OWNER: i64 = 42;
/// A picture that the host can read, and one that it cannot.
const GOOD_PICTURE: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01 good";
const BAD_PICTURE: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01 bad!";
/// Refused by the host's filter.
const FORBIDDEN: &str = "forbidden-word";
/// Longer than the host's window, in bytes.
const OVERLONG: usize = 400_000;

/// The host's behavior for the question with this number.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Answered,
    /// Answers after a tool call.
    Looked,
    /// Refuses a part of the question, wherever it is: a word, a picture, its length.
    Refused,
    /// Is overloaded for this question.
    Overloaded,
    /// Does not answer the first request, and the user gives up.
    Silent,
}

/// Records of the host.
#[derive(Default)]
struct Seen {
    /// Number of requests for each question, and of answers to it.
    asked: BTreeMap<usize, usize>,
    answered: BTreeMap<usize, usize>,
    wrong: Vec<String>,
}

#[derive(Clone)]
struct Host {
    seen: Arc<Mutex<Seen>>,
}

/// Returns the numbers of the questions in a text such as `(Q7) what is it?`.
fn numbers(text: &str) -> Vec<usize> {
    let parts = text.split("(Q").skip(1);
    parts
        .filter_map(|part| part.split_once(')')?.0.parse().ok())
        .collect()
}

/// Questions 1 to 30 are asked at the shell, the others in the chat.
fn fate(n: usize) -> Fate {
    match n {
        2 | 15 | 27 | 33 => Fate::Looked,
        3 | 8 | 10 | 18 | 36 => Fate::Refused,
        5 | 12 | 21 | 24 | 32 | 38 => Fate::Silent,
        14 | 34 => Fate::Overloaded,
        _ => Fate::Answered,
    }
}

fn answer(n: usize) -> String {
    format!("The answer to {n}.")
}

/// Returns why a request is invalid.
fn illegal(request: &Request) -> Option<String> {
    let messages = request.messages();
    let roles: Vec<&str> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap_or_default())
        .collect();
    let rest = &roles[roles.iter().take_while(|role| **role == "system").count()..];
    if rest.first() != Some(&"user") || !["user", "tool"].contains(rest.last().unwrap_or(&"")) {
        return Some(format!("begins or ends with the wrong role: {roles:?}"));
    }
    if rest
        .windows(2)
        .any(|pair| pair[0] == pair[1] && pair[0] != "tool")
    {
        return Some(format!("two messages of one role in a row: {roles:?}"));
    }
    let glued = request
        .texts("user")
        .into_iter()
        .find(|text| numbers(text).len() != 1);
    glued.map(|text| {
        format!(
            "a user's message is not one question: {}",
            text.chars().take(300).collect::<String>()
        )
    })
}

impl Host {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reply(&self, request: &Request) -> Reply {
        if request
            .texts("system")
            .first()
            .is_some_and(|text| text.contains("so that the assistant can continue"))
        {
            return Reply::text("They asked questions.");
        }
        let mut seen = self.lock();
        assert_single_result_per_call(&request.messages());
        seen.wrong.extend(illegal(request));
        let Some(n) = numbers(&request.last("user")).pop() else {
            return Reply::error(400, "what is the question?");
        };
        *seen.asked.entry(n).or_default() += 1;
        let body = request.body.to_string();
        if body.contains(FORBIDDEN) {
            return Reply::json(
                400,
                &json!({ "error": { "code": "content_filter", "message": "The response was filtered due to the prompt triggering the content management policy." } }),
            );
        }
        if body.contains(&BASE64_STANDARD.encode(BAD_PICTURE)) {
            return Reply::error(400, "Could not process image");
        }
        if body.len() > OVERLONG {
            return Reply::error(
                400,
                "This model's maximum context length is 90000 tokens, and you sent more.",
            );
        }
        let is_looking = request
            .messages()
            .last()
            .is_some_and(|message| message["role"] == "user");
        match fate(n) {
            Fate::Looked if is_looking => {
                return Reply::calls([call("c", "list_dir", &json!({ "path": "." }))]);
            }
            Fate::Overloaded => return Reply::error(503, "overloaded"),
            Fate::Silent if seen.asked[&n] == 1 => return Reply::text(&answer(n)).held(),
            _ => {}
        }
        *seen.answered.entry(n).or_default() += 1;
        Reply::text(&answer(n))
    }
}

/// One person's machine.
struct Person {
    home: Home,
    host: Host,
    model: Model,
}

impl Person {
    fn new(api: &BotApi) -> Self {
        let host = Host {
            seen: Arc::default(),
        };
        let answering = host.clone();
        let model = Model::answering(move |request, _| answering.reply(request));
        let entry = |name: &str| json!({ "model_name": name, "model": format!("openai/{name}"), "api_base": model.base(), "api_key": CANARY });
        let home = Home::with(&json!({
            "agents": { "defaults": { "model_name": "first", "max_retries": 1, "retry_initial_delay": 0.01 } },
            "model_list": [entry("first"), entry("second")],
            "channels": { "telegram": { "enabled": true, "token": TOKEN, "allow_from": [OWNER], "api_base": api.base() } },
            "tools": { "exec": { "sandbox": "off" } }
        }));
        Self { home, host, model }
    }

    fn command(&self, n: usize, text: &str, flags: &[&str]) -> Bantam<'_> {
        let text = format!("(Q{n}) {text}");
        self.home
            .bantam()
            .args(["agent", "-s", "week", "-m", &text])
            .args(flags)
    }

    /// Asks at the shell; stdout must be exactly the answer, if the host gave one.
    #[track_caller]
    fn asks(&self, n: usize, text: &str, flags: &[&str], code: i32) -> Run {
        let run = self.command(n, text, flags).run();
        let expected = if code == 0 {
            answer(n) + "\n"
        } else {
            String::new()
        };
        run.exits(code).prints(&expected);
        run
    }

    /// Asks, and ends the program with this signal while the host is silent.
    #[track_caller]
    fn loses_patience(&self, n: usize, signal: Signal) {
        let asked = self.model.asked();
        let running = self.command(n, "are you there?", &[]).spawn();
        self.model.wait_for_requests(asked + 1);
        running.signal(signal);
        running.finish().prints("");
    }

    /// Returns the last request, which must contain this question.
    #[track_caller]
    fn last_request(&self, n: usize) -> Request {
        let request = self.model.requests().pop().unwrap();
        assert_eq!(numbers(&request.last("user")), [n]);
        request
    }

    fn session(&self) -> PathBuf {
        self.home.path("sessions/cli_week.jsonl")
    }
}

#[test]
fn no_question_of_a_week_is_lost_glued_or_answered_twice() {
    let api = BotApi::start();
    let person = Person::new(&api);
    let (good, bad) = (
        person.home.write("good.png", GOOD_PICTURE),
        person.home.write("bad.png", BAD_PICTURE),
    );
    let (good, bad) = (good.to_str().unwrap(), bad.to_str().unwrap());

    // Monday: a refused word, an undone question, and one that timed out.
    person.asks(1, "good morning", &[], 0);
    person.asks(2, "what is in the workspace?", &[], 0);
    person.asks(3, FORBIDDEN, &[], 1).fails_with_a_hint();
    person.asks(4, "and now?", &[], 0);
    person.loses_patience(5, Signal::INT);
    person.asks(6, "tell me a joke", &[], 0);

    // Tuesday: pictures.
    person.asks(7, "what is this?", &["-a", good], 0);
    person
        .asks(8, "and this?", &["-a", bad], 1)
        .fails_with_a_hint();
    person.asks(9, "and this one again?", &["-a", good], 0);
    assert!(
        person
            .last_request(9)
            .body
            .to_string()
            .contains(&BASE64_STANDARD.encode(GOOD_PICTURE))
    );

    // Wednesday: too long, too slow, too busy.
    let run = person
        .command(10, "what does it say?", &[])
        .stdin("words ".repeat(OVERLONG / 5))
        .run();
    run.fails(1).prints("");
    person.asks(11, "shorter", &[], 0);
    person.asks(12, "are you asleep?", &["--timeout", "1"], 6);
    person.asks(13, "awake now?", &[], 0);
    person.asks(14, "are you busy?", &[], 5);
    person.asks(15, "look around", &[], 0);
    assert!(
        !person
            .last_request(15)
            .body
            .to_string()
            .contains(&BASE64_STANDARD.encode(GOOD_PICTURE)),
        "old pictures"
    );

    // Thursday: another model, and back.
    person.asks(16, "who are you?", &["--model", "second"], 0);
    assert_eq!(person.last_request(16).body["model"], "second");
    person.asks(17, "and you?", &[], 0);
    assert_eq!(person.last_request(17).body["model"], "first");
    person.asks(18, FORBIDDEN, &["--model", "second"], 1);
    person.asks(19, "all right", &[], 0);
    person.asks(20, "good night", &[], 0);

    // Friday: the program is killed, and the power fails while a line is written.
    person.loses_patience(21, Signal::KILL);
    person.asks(22, "still there?", &[], 0);
    person.asks(23, "good", &[], 0);
    person.loses_patience(24, Signal::KILL);
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(person.session())
        .unwrap();
    file.write_all(b"{\"crc\":\"0bad").unwrap();
    drop(file);
    person.asks(25, "the light is back", &[], 0);

    // Saturday: another time zone, and a clock that was years ahead.
    let run = person
        .command(26, "when is it?", &[])
        .env("TZ", "Asia/Kathmandu")
        .run();
    run.answers(&(answer(26) + "\n"));
    has_all(&person.last_request(26).last("user"), ["+05:45"]);
    let ahead = fs::read_to_string(person.session()).unwrap();
    fs::write(person.session(), years_ahead(&ahead)).unwrap();
    person.asks(27, "look around again", &[], 0);
    for n in 28..=30 {
        person.asks(n, "anything else?", &[], 0);
    }

    // Sunday: in the chat.
    let mut gateway = person.home.bantam().arg("gateway").spawn();
    let mut count = 0;
    let mut told = |texts: usize| {
        count += texts;
        api.wait_for_texts(OWNER, count).split_off(count - texts)
    };
    let writes = |n: usize, text: &str| api.text(OWNER, &format!("(Q{n}) {text}"));
    writes(31, "good morning");
    assert_eq!(told(1), [answer(31)]);
    let asked = person.model.asked();
    writes(32, "are you there?");
    person.model.wait_for_requests(asked + 1);
    api.text(OWNER, "/stop");
    told(1);
    writes(33, "look around");
    assert_eq!(told(1), [answer(33)]);
    writes(34, "are you busy?");
    told(1);
    writes(35, "and now?");
    assert_eq!(told(1), [answer(35)]);
    writes(36, FORBIDDEN);
    told(1);
    api.text(OWNER, "/model second");
    told(1);
    writes(37, "who are you?");
    assert_eq!(told(1), [answer(37)]);
    assert_eq!(person.last_request(37).body["model"], "second");
    let asked = person.model.asked();
    writes(38, "wait for it");
    person.model.wait_for_requests(asked + 1);
    dies(gateway);
    gateway = person.home.bantam().arg("gateway").spawn();
    assert_eq!(told(1), [answer(38)]);
    for n in [39, 40] {
        writes(n, "and then?");
        assert_eq!(told(1), [answer(n)]);
    }
    api.wait_for_confirmation();
    ends(gateway);

    let seen = person.host.lock();
    assert!(seen.wrong.is_empty(), "{:#?}", seen.wrong);
    for n in 1..=40 {
        let expected = usize::from(matches!(fate(n), Fate::Answered | Fate::Looked) || n == 38);
        assert_eq!(
            seen.answered.get(&n).copied().unwrap_or_default(),
            expected,
            "answers to question {n}"
        );
    }
}

/// Returns a session file as written with a clock three years ahead.
fn years_ahead(text: &str) -> String {
    let line = |(n, line): (usize, &str)| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let object = line.as_object_mut().unwrap();
        object.remove("crc");
        for field in ["time", "created"] {
            if let Some(time) = object.get(field).and_then(Value::as_str) {
                let year: u32 = time[..4].parse().unwrap();
                let later = format!("{}{}", year + 4, &time[4..]);
                object.insert(field.to_owned(), later.into());
            }
        }
        object.remove("seq");
        sealed(&format!("\"seq\":{n},{}", &line.to_string()[1..]))
    };
    text.lines().enumerate().map(line).collect()
}
