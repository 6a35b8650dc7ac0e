//! A client of the HTTP endpoint that sends given bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// An obvious fake.
pub const TOKEN: &str = "token-of-a-test-0123456789";

/// Returns settings of a gateway that serves only the endpoint.
pub fn settings() -> Value {
    let http = json!({ "enabled": true, "listen": "127.0.0.1:0", "token": TOKEN });
    json!({ "channels": { "http": http }, "cron": { "enabled": false }, "log": { "level": "debug" } })
}

/// Returns the address that the gateway reports.
pub fn address(said: &str) -> String {
    let address = said.split("http://").nth(1).unwrap();
    address.split(['/', ' ']).next().unwrap().to_owned()
}

/// Address of the endpoint.
#[derive(Clone)]
pub struct Door {
    pub address: String,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    fn read(all: &[u8]) -> Self {
        let text = String::from_utf8_lossy(all).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or(0);
        let body = if head.contains("Transfer-Encoding: chunked") {
            joined(body)
        } else {
            body.to_owned()
        };
        Self {
            status,
            head: head.to_owned(),
            body,
        }
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    #[track_caller]
    pub fn is(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.body);
        self
    }

    /// Returns the text of the only choice.
    #[track_caller]
    pub fn text(&self) -> String {
        let text = &self.json()["choices"][0]["message"]["content"];
        text.as_str()
            .unwrap_or_else(|| panic!("{}", self.body))
            .to_owned()
    }

    /// Returns the events of a stream, without `[DONE]`.
    #[track_caller]
    pub fn events(&self) -> Vec<Value> {
        let mut data: Vec<&str> = self
            .body
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{}", self.body);
        data.iter()
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// Returns the joined values of a field in all deltas.
    pub fn streamed(&self, field: &str) -> String {
        let events = self.events();
        let texts = events
            .iter()
            .filter_map(|e| e["choices"][0]["delta"][field].as_str());
        texts.collect()
    }
}

impl Door {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).unwrap();
        stream
    }

    /// Sends these bytes and reads to the end of the connection.
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        exchange(self.connect(), bytes)
    }

    pub fn get(&self, path: &str) -> Answer {
        let authorization = format!("Authorization: Bearer {TOKEN}");
        self.raw(
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n\r\n").as_bytes(),
        )
    }

    pub fn post(&self, body: &Value, headers: &[&str]) -> Answer {
        self.raw(post(body, headers).as_bytes())
    }

    pub fn ask(&self, text: &str) -> Answer {
        self.post(
            &json!({ "messages": [{ "role": "user", "content": text }] }),
            &[],
        )
    }
}

pub fn post(body: &Value, headers: &[&str]) -> String {
    let body = body.to_string();
    let mut head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {}\r\n",
        body.len()
    );
    let has = |name: &str| headers.iter().any(|h| h.to_lowercase().starts_with(name));
    for (name, line) in [
        ("host:", "Host: localhost".to_owned()),
        ("authorization:", format!("Authorization: Bearer {TOKEN}")),
        ("content-type:", "Content-Type: application/json".to_owned()),
    ] {
        if !has(name) {
            head.push_str(&format!("{line}\r\n"));
        }
    }
    for line in headers {
        head.push_str(&format!("{line}\r\n"));
    }
    format!("{head}\r\n{body}")
}

/// Joins the chunks of a body.
fn joined(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        if length == 0 {
            return whole;
        }
        whole.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").unwrap();
    }
    panic!("a stream without an end: {whole}");
}

/// Sends these bytes and reads to the end of the connection. Without an answer, the status is 0.
pub fn exchange(mut stream: TcpStream, bytes: &[u8]) -> Answer {
    // The request may be refused before all is sent.
    drop(stream.write_all(bytes));
    let mut all = Vec::new();
    drop(stream.read_to_end(&mut all));
    Answer::read(&all)
}
