//! The Bot API (core.telegram.org/bots/api): one call, its answer, and what can go wrong.

use std::hash::{BuildHasher, RandomState};
use std::io::{Cursor, Read};
use std::time::Duration;

use fs_err::File;
use serde_json::{Value, json};

use crate::cancel::{Cancel, Why};
use crate::http::{Body, Client, Fault, Outgoing, Settings};
use crate::secret::Secret;

/// Where Telegram's own server is.
pub const BASE: &str = "https://api.telegram.org";

/// How long an answer may take beyond what was asked for.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most bytes of an answer.
const MOST: usize = 8 << 20;
/// Files of at most this many bytes can be fetched from Telegram's own server.
pub const MOST_FILE: usize = 20 << 20;

/// The most of a file that the kernel takes before it has gone out: the largest buffer that it gives a connection (`tcp_wmem`).
const MOST_WAITING: u64 = 4 << 20;
/// Bytes a second that a line is believed to do.
const SLOWEST: u64 = 16 << 10;

pub struct Api {
    client: Client,
    /// Of the server, with the token in it.
    base: Secret,
    files: Secret,
}

/// Why a call came to nothing. The texts hold no token.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The token is refused: nothing will work.
    Unauthorized(String),
    /// Somebody else polls with this token.
    Conflict(String),
    /// Too many calls: the next one after this time.
    TooMany(Duration),
    /// The group has become another chat.
    Migrated(i64),
    /// It will never accept this call. With its code.
    Refused(u64, String),
    /// The server cannot be reached at all.
    Unreachable(String),
    /// The answer is larger than any should be.
    TooLarge,
    /// A fault that may pass.
    Passing(String),
    /// An upload broke off, or took too long: it may be the line, or the file.
    Broken(String),
    /// This program is ending.
    Stopped,
}

impl Failure {
    pub fn text(&self) -> String {
        match self {
            Self::Unauthorized(m) => format!("the token is refused ({m})"),
            Self::Conflict(m) | Self::Refused(_, m) => m.clone(),
            Self::Unreachable(m) | Self::Passing(m) | Self::Broken(m) => m.clone(),
            Self::TooMany(time) => format!("too many requests: the next one in {} s", time.as_secs()),
            Self::Migrated(chat) => format!("the chat is {chat} by now"),
            Self::TooLarge => "the answer is too large".to_owned(),
            Self::Stopped => "stopped".to_owned(),
        }
    }
}

impl Api {
    /// `base` is the server's address; empty for Telegram's own.
    pub fn new(settings: Settings, base: &str, token: &Secret) -> Self {
        let base = if base.is_empty() { BASE } else { base.trim_end_matches('/') };
        let token = token.reveal();
        Self {
            client: Client::new(settings),
            base: Secret::new(format!("{base}/bot{token}")),
            files: Secret::new(format!("{base}/file/bot{token}")),
        }
    }

    /// Calls a method. `within` is how long the server may hold its answer back on purpose.
    pub fn call(&self, method: &str, params: &Value, within: Duration, cancel: &Cancel) -> Result<Value, Failure> {
        self.ask(method, Body::Json(params.to_string().into_bytes()), within, cancel).map_err(|e| match e {
            Failure::Broken(why) => Failure::Passing(why),
            e => e,
        })
    }

    /// Calls a method with a file, as the parameter `field`; people see it as `name`. It may take as long as a slow line
    /// needs for it, and no longer.
    pub fn upload(
        &self,
        method: &str,
        params: &Value,
        (field, name, file): (&str, &str, File),
        cancel: &Cancel,
    ) -> Result<Value, Failure> {
        let len = file.metadata().map_err(|e| Failure::Passing(e.to_string()))?.len();
        // What has gone out may still wait in the kernel, on a slow line for minutes.
        let within = Duration::from_secs(len.min(MOST_WAITING) / SLOWEST);
        let timed = cancel.with_timeout(2 * PATIENCE + Duration::from_secs(len / SLOWEST));
        match self.ask(method, form(params, field, name, file, len), within, &timed) {
            Err(Failure::Stopped) if cancel.why().is_none() => {
                Err(Failure::Broken("it took too long for its size".to_owned()))
            }
            result => result,
        }
    }

    fn ask(&self, method: &str, body: Body, within: Duration, cancel: &Cancel) -> Result<Value, Failure> {
        let url = format!("{}/{method}", self.base.reveal());
        let is_upload = matches!(body, Body::Upload { .. });
        let (status, body) = self.exchange(Outgoing { url, headers: Vec::new(), body }, within, MOST, cancel)?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        if answer["ok"] == true {
            return Ok(answer["result"].clone());
        }
        let said = answer["description"].as_str().unwrap_or("no answer of the Bot API").to_owned();
        let parameters = &answer["parameters"];
        let code = answer["error_code"].as_u64().unwrap_or(status.into());
        // The page of a proxy or of a network that wants to be paid says nothing of what the server would do.
        if answer["ok"] != false && code != 429 {
            let is_too_large = code == 413 && is_upload;
            return Err(if is_too_large {
                Failure::Refused(code, "it is too large for the server".to_owned())
            } else {
                Failure::Passing(format!("{code}: {said}"))
            });
        }
        Err(match code {
            401 => Failure::Unauthorized(said),
            // For a token that it does not know, and for a method.
            404 if matches!(method, "getMe" | "getUpdates") => Failure::Unauthorized(said),
            409 => Failure::Conflict(said),
            429 => {
                Failure::TooMany(Duration::from_secs(parameters["retry_after"].as_u64().unwrap_or(5).clamp(1, 3600)))
            }
            400 if parameters["migrate_to_chat_id"].is_i64() => {
                Failure::Migrated(parameters["migrate_to_chat_id"].as_i64().unwrap_or_default())
            }
            code @ 400..=499 => Failure::Refused(code, said),
            code => Failure::Passing(format!("{code}: {said}")),
        })
    }

    /// Fetches a file, and gives it to `take` part by part.
    pub fn fetch(&self, id: &str, cancel: &Cancel, take: &mut dyn FnMut(&[u8])) -> Result<(), Failure> {
        let refused = |why: &str| Failure::Refused(0, why.to_owned());
        let found = self.call("getFile", &json!({"file_id": id}), Duration::ZERO, cancel)?;
        let path = found["file_path"].as_str().ok_or_else(|| refused("Telegram does not say where it is"))?;
        if path.contains("..") || path.starts_with('/') {
            return Err(refused("Telegram keeps it in a place that cannot be read"));
        }
        let url = format!("{}/{path}", self.files.reveal());
        let outgoing = Outgoing { url, headers: Vec::new(), body: Body::None };
        let mut good = |status, piece: &[u8]| {
            if status == 200 {
                take(piece);
            }
        };
        let said = |status| format!("fetching it failed with status {status}");
        match self.stream(outgoing, Duration::ZERO, MOST_FILE, cancel, &mut good)? {
            200 => Ok(()),
            status @ (400..=407 | 410..=428) => Err(Failure::Refused(status.into(), said(status))),
            status => Err(Failure::Passing(said(status))),
        }
    }

    fn exchange(
        &self,
        outgoing: Outgoing,
        within: Duration,
        most: usize,
        cancel: &Cancel,
    ) -> Result<(u16, Vec<u8>), Failure> {
        let mut body = Vec::new();
        let status = self.stream(outgoing, within, most, cancel, &mut |_, piece| body.extend_from_slice(piece))?;
        Ok((status, body))
    }

    /// Gives the body of an answer to `take`, with its status.
    fn stream(
        &self,
        outgoing: Outgoing,
        within: Duration,
        most: usize,
        cancel: &Cancel,
        take: &mut dyn FnMut(u16, &[u8]),
    ) -> Result<u16, Failure> {
        let failed = |fault: Fault| match fault {
            Fault::Unreachable(text) => Failure::Unreachable(text),
            Fault::Broken(text) => Failure::Broken(text),
            Fault::Silent => Failure::Passing("no answer in time".to_owned()),
            Fault::Cancelled(Why::Stopped | Why::Deadline) => Failure::Stopped,
        };
        let mut exchange = self.client.send(outgoing, cancel).map_err(|e| Failure::Passing(e.message))?;
        let status = exchange.head(within + PATIENCE).map_err(failed)?.status;
        let mut len = 0;
        while let Some(piece) = exchange.body(within + PATIENCE).map_err(failed)? {
            len += piece.len();
            if len > most {
                return Err(Failure::TooLarge);
            }
            take(status, &piece);
        }
        Ok(status)
    }
}

/// Parameters and a file as `multipart/form-data` (RFC 7578). The file is read when it is sent.
fn form(params: &Value, field: &str, name: &str, file: File, len: u64) -> Body {
    // Whoever wrote the file must not be able to guess it: the rest of the file would be parameters.
    let [one, other] = [0, 1].map(|n| RandomState::new().hash_one(n));
    let boundary = format!("bantam-{one:016x}{other:016x}");
    let mut before = String::new();
    for (name, value) in params.as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        before.push_str(&format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"));
    }
    // What would end the name, or the header.
    let name: String = name.chars().map(|c| if c.is_control() || "\"\\/".contains(c) { '_' } else { c }).collect();
    before.push_str(&format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"{name}\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    ));
    let after = format!("\r\n--{boundary}--\r\n");
    let whole = (before.len() + after.len()) as u64 + len;
    let reader = Cursor::new(before).chain(file.take(len)).chain(Cursor::new(after));
    let content_type = format!("multipart/form-data; boundary={boundary}");
    Body::Upload { content_type, len: whole, reader: Box::new(reader) }
}
