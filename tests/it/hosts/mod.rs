//! Behavior of model hosts, and bantam's output, next requests and stored messages: a table with a row for each oddity of a
//! reply, a stream, a request, a conversation or an error found in practice (`case`), and for each fault of a connection, a
//! status or a body (`fault`).
//!
//! A row defines the host's behavior, runs one question with the real program, and checks the output and the requests. Some
//! rows need more, and are separate tests that name their number.

mod bodies;
mod connections;
mod conversations;
mod errors;
mod requests;
mod shapes;
mod streams;

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::harness::{Home, Run, config_for, merged};
use crate::model::{Model, Reply, Request};
use crate::sites;

/// A row of the table.
#[must_use]
pub struct Row {
    host: Vec<Reply>,
    config: Value,
    args: Vec<&'static str>,
    code: i32,
    prints: Option<String>,
    says: Vec<&'static str>,
}

/// Result of a row.
pub struct Seen {
    pub run: Run,
    pub home: Home,
    pub requests: Vec<Request>,
}

/// Starts an oddity: its number, and the host's behavior.
pub fn case(number: u8, what: &str, host: impl IntoIterator<Item = Reply>) -> Row {
    println!("case {number}: {what}");
    row(host)
}

/// Starts a fault.
pub fn fault(number: u8, what: &str, host: impl IntoIterator<Item = Reply>) -> Row {
    println!("fault {number}: {what}");
    row(host)
}

fn row(host: impl IntoIterator<Item = Reply>) -> Row {
    let host = host.into_iter().collect();
    Row {
        host,
        config: json!({}),
        args: Vec::new(),
        code: 0,
        prints: None,
        says: Vec::new(),
    }
}

impl Row {
    /// Merged into the configuration.
    pub fn config(mut self, config: Value) -> Self {
        self.config = config;
        self
    }

    /// Merged into the entry of the only model.
    pub fn entry(self, entry: Value) -> Self {
        let mut config = json!({ "model_list": [null] });
        config["model_list"][0] = entry;
        self.config(config)
    }

    /// Disables retries.
    pub fn once(self) -> Self {
        self.config(json!({ "agents": { "defaults": { "max_retries": 0 } } }))
    }

    pub fn args(mut self, args: &[&'static str]) -> Self {
        self.args.extend(args);
        self
    }

    pub fn fails(mut self, code: i32, says: &'static str) -> Self {
        (self.code, self.prints) = (code, Some(String::new()));
        self.says.push(says);
        self
    }

    pub fn exits(mut self, code: i32) -> Self {
        self.code = code;
        self
    }

    pub fn says(mut self, says: &'static str) -> Self {
        self.says.push(says);
        self
    }

    pub fn answers(mut self, text: &str) -> Self {
        self.prints = Some(format!("{text}\n"));
        self
    }

    /// Asks one question.
    #[track_caller]
    pub fn run(self) -> Seen {
        let model = Model::scripted(self.host);
        let home = Home::with(&merged(model.config(), &self.config));
        let run = home
            .bantam()
            .args(["agent", "-m", "hi"])
            .args(&self.args)
            .run();
        run.exits(self.code);
        if let Some(text) = &self.prints {
            run.prints(text);
        }
        for text in &self.says {
            run.says(text);
        }
        if self.code == 0 && !self.args.contains(&"--show-thinking") && self.says.is_empty() {
            run.is_quiet();
        } else if self.code != 0 && !self.args.contains(&"--json") {
            run.fails_with_a_hint();
        }
        let requests = model.requests();
        Seen {
            run,
            home,
            requests,
        }
    }
}

impl Seen {
    /// Returns the results of the calls in the last request.
    #[track_caller]
    pub fn results(&self) -> Vec<String> {
        self.requests.last().unwrap().texts("tool")
    }

    /// Returns the calls in the last request: their ids, names and arguments.
    pub fn calls(&self) -> Vec<(String, String, String)> {
        let messages = self.requests.last().unwrap().messages();
        let calls = messages.iter().flat_map(|message| {
            message["tool_calls"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        });
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let function = |call: &Value| {
            (
                text(&call["id"]),
                text(&call["function"]["name"]),
                text(&call["function"]["arguments"]),
            )
        };
        calls.map(|call| function(&call)).collect()
    }
}

/// Returns the reply in a row of a file: a text, a message, deltas, events, a page, a status with a body, or a body.
fn reply_in(row: &Value) -> Reply {
    let status = row["status"].as_u64().unwrap_or(200);
    let status = u16::try_from(status).unwrap();
    let reason = row["finish"].as_str().unwrap_or("stop");
    let texts = |list: &Value| -> Vec<String> {
        let list = list.as_array().unwrap().iter();
        list.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    if let Some(text) = row.as_str() {
        Reply::text(text)
    } else if row["message"].is_object() {
        finished(&row["message"], reason)
    } else if let Some(deltas) = row["deltas"].as_array() {
        stream(deltas.iter().map(delta).chain([end(reason)]))
    } else if row["events"].is_array() {
        stream(texts(&row["events"]))
    } else if let Some(page) = row["page"].as_str() {
        Reply::html(status, page)
    } else {
        let body = row.get("body").unwrap_or(row);
        Reply::json(status, body)
    }
}

/// Replies, streams and errors in all observed formats: each row has what the host sends, and what comes of it.
const REPLIES: &str = include_str!("../../corpus/wire/replies.jsonl");

#[test]
fn replies_are_understood_in_all_observed_formats() {
    for line in REPLIES.lines() {
        let wanted: &'static Value = Box::leak(Box::new(serde_json::from_str(line).unwrap()));
        let list = |name: &str| wanted[name].as_array().into_iter().flatten();
        let texts = |name: &str| list(name).map(|text| text.as_str().unwrap());
        let number = u8::try_from(wanted["case"].as_u64().unwrap()).unwrap();
        let what = wanted["what"].as_str().unwrap();
        let mut row = case(number, what, list("host").map(reply_in));
        row = row.args(&texts("args").collect::<Vec<_>>());
        row.code = i32::try_from(wanted["code"].as_i64().unwrap_or(0)).unwrap();
        row.says = texts("says").collect();
        if let Some(text) = wanted["prints"].as_str() {
            row = row.answers(text);
        }
        if wanted["once"] == true {
            row = row.once();
        }
        if wanted["usage"].is_object() {
            row = row.args(&["--json"]);
        }
        let seen = row.run();
        seen.home.session("cli_default").has_one_result_per_call();
        if let Some(asked) = wanted["asked"].as_u64() {
            assert_eq!(seen.requests.len() as u64, asked, "{line}");
        }
        if wanted["usage"].is_object() {
            assert_eq!(seen.run.json()["usage"], wanted["usage"], "{line}");
        }
        if wanted["calls"].is_array() {
            let calls = seen.calls().into_iter();
            let (ids, calls): (Vec<_>, Vec<_>) = calls
                .map(|(id, name, arguments)| (id, json!([name, arguments])))
                .unzip();
            assert_eq!(Value::from(calls), wanted["calls"], "{line}");
            assert_eq!(seen.results().len(), ids.len(), "{line}");
            let unique: std::collections::BTreeSet<_> = ids.iter().collect();
            assert!(unique.len() == ids.len() && !ids.contains(&String::new()));
        }
        if let Some(text) = wanted["sent"].as_str() {
            assert_eq!(seen.requests[1].last("assistant"), text);
        }
        if let Some(text) = wanted["has"].as_str() {
            assert!(seen.results()[0].contains(text), "{line}");
        }
        if let Some(text) = wanted["lacks"].as_str() {
            assert!(!seen.results()[0].contains(text), "{line}");
        }
    }
}

/// Returns a whole answer with this message.
pub fn whole(message: &Value) -> Reply {
    finished(message, "stop")
}

pub fn finished(message: &Value, reason: &str) -> Reply {
    Reply::json(
        200,
        &json!({ "choices": [ { "index": 0, "message": message, "finish_reason": reason } ] }),
    )
}

/// Returns a whole answer with this call.
pub fn called(call: &Value) -> Reply {
    whole(&json!({ "role": "assistant", "content": null, "tool_calls": [call] }))
}

/// Returns a call of the tool without effects.
pub fn think(id: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": "think", "arguments": "{\"thought\":\"hm\"}" } })
}

/// Returns an event of a stream with this delta.
pub fn delta(delta: &Value) -> String {
    format!(
        "data: {}\n\n",
        json!({ "choices": [ { "index": 0, "delta": delta } ] })
    )
}

/// Returns the last events of a stream.
pub fn end(reason: &str) -> String {
    let last = json!({ "choices": [ { "index": 0, "delta": {}, "finish_reason": reason } ] });
    format!("data: {last}\n\ndata: [DONE]\n\n")
}

pub fn stream(events: impl IntoIterator<Item = String>) -> Reply {
    Reply::stream(events)
}

pub fn done() -> Reply {
    Reply::text("Done.")
}

/// Starts a server with this behavior for every connection, for the duration of the test. Returns its address.
pub fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    sites::serve(serve).to_string()
}

/// Reads a whole request, and answers with these bytes, as far as the client reads them.
pub fn answering(stream: &TcpStream, bytes: &[u8]) {
    let mut stream = stream;
    let mut read = Vec::new();
    let mut piece = [0; 16384];
    while !is_whole(&read) {
        match stream.read(&mut piece) {
            Ok(n) if n > 0 => read.extend_from_slice(&piece[..n]),
            _ => return,
        }
    }
    stream.write_all(bytes).ok();
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return false;
    };
    let length = head.to_ascii_lowercase();
    let length = length
        .lines()
        .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    body.len() >= length.unwrap_or(0)
}

/// Asks a host at this base once, without retries.
#[track_caller]
pub fn asked_at(base: &str, extra: &Value) -> (Home, Run) {
    let once = json!({ "agents": { "defaults": { "max_retries": 0 } } });
    let home = Home::with(&merged(merged(config_for(base), &once), extra));
    let run = home.agent(["-m", "hi"]);
    (home, run)
}
