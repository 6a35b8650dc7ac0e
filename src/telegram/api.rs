//! The Bot API (core.telegram.org/bots/api): one call, its answer, and what can go wrong.

use std::time::Duration;

use fs_err::File;
use serde_json::{Value, json};

use crate::cancel::{Cancel, Why};
use crate::http::{Body, Client, Fault, Outgoing, Settings};
use crate::markdown::Piece;
use crate::secret::Secret;

/// Telegram's own server.
pub(crate) const BASE: &str = "https://api.telegram.org";

/// How long an answer may take beyond the long poll's time.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The most bytes of an answer: a hundred updates with replies and entities take less.
const MAX_ANSWER: usize = 16 << 20;
/// The most bytes of a file that bots can download.
pub(crate) const MAX_FILE: usize = 20 << 20;

/// The most bytes that the kernel buffers for a connection (`tcp_wmem`).
const MAX_BUFFERED: u64 = 4 << 20;
/// The slowest line, in bytes a second.
const MIN_RATE: u64 = 16 << 10;

pub(crate) struct Api {
    client: Client,
    /// The address with the token.
    base: Secret,
    files: Secret,
}

/// Why a call failed. The texts hold no token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The token is refused.
    Unauthorized(String),
    /// Too many calls; `retry_after`.
    TooMany(Duration),
    /// The group has this id now.
    Migrated(i64),
    /// The server will never accept this call; its code, 409 if another program polls with this token.
    Refused(u64, String),
    /// A fault that may pass, of the network, the server or this call.
    Failing(String),
    /// The answer was lost: the server may have acted on the call.
    Lost(String),
    /// The caller's cancel.
    Stopped,
}

impl Failure {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Unauthorized(m) => {
                format!("Telegram refused the token ({m}): copy it again from @BotFather into channels.telegram.token")
            }
            Self::Refused(_, m) | Self::Failing(m) | Self::Lost(m) => m.clone(),
            Self::TooMany(time) => format!("too many requests, retry after {} s", time.as_secs()),
            Self::Migrated(chat) => format!("the chat has moved to {chat}"),
            Self::Stopped => "stopped".to_owned(),
        }
    }
}

impl Api {
    /// `base` is the server's address; empty means [`BASE`].
    pub(crate) fn new(settings: Settings, base: &str, token: &Secret) -> Self {
        let base = if base.is_empty() { BASE } else { base.trim_end_matches('/') };
        let token = token.reveal();
        Self {
            client: Client::new(settings),
            base: Secret::new(format!("{base}/bot{token}")),
            files: Secret::new(format!("{base}/file/bot{token}")),
        }
    }

    /// Calls a method. `within` is how long the server may hold back its answer, for a long poll.
    pub(crate) fn call(
        &self,
        method: &str,
        params: &Value,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Value, Failure> {
        self.ask(method, Body::json(params), within, cancel)
    }

    /// Calls a method with a file as the parameter `field`, shown as `name`.
    pub(crate) fn upload(
        &self,
        method: &str,
        params: &Value,
        (field, name, file): (&str, &str, File),
        cancel: &Cancel,
    ) -> Result<Value, Failure> {
        let len = file.metadata().map_err(|e| Failure::Failing(e.to_string()))?.len();
        // Sent bytes may wait in the kernel for minutes.
        let within = Duration::from_secs(len.min(MAX_BUFFERED) / MIN_RATE);
        self.ask(method, Body::form(params, (field, name), file, len), within, cancel)
    }

    fn ask(&self, method: &str, body: Body, within: Duration, cancel: &Cancel) -> Result<Value, Failure> {
        let url = format!("{}/{method}", self.base.reveal());
        let is_upload = body.content_type.starts_with("multipart");
        let outgoing = Outgoing { url, headers: Vec::new(), body: Some(body) };
        let mut bytes = Vec::new();
        let status =
            self.stream(outgoing, within, MAX_ANSWER, cancel, &mut |_, piece| bytes.extend_from_slice(piece))?;
        let answer: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        if answer["ok"] == true {
            return Ok(answer["result"].clone());
        }
        let why = answer["description"].as_str().unwrap_or("no answer of the Bot API").to_owned();
        let parameters = &answer["parameters"];
        let is_answer = answer["ok"] == false;
        Err(match answer["error_code"].as_u64().unwrap_or(status.into()) {
            429 => {
                Failure::TooMany(Duration::from_secs(parameters["retry_after"].as_u64().unwrap_or(5).clamp(1, 3600)))
            }
            413 if is_upload && !is_answer => Failure::Refused(413, "too large for the server".to_owned()),
            401 if is_answer => Failure::Unauthorized(why),
            // The server answers so to an unknown token, and to an unknown method.
            404 if is_answer && matches!(method, "getMe" | "getUpdates") => Failure::Unauthorized(why),
            400 if parameters["migrate_to_chat_id"].is_i64() => {
                Failure::Migrated(parameters["migrate_to_chat_id"].as_i64().unwrap_or_default())
            }
            code @ 400..=499 if is_answer => Failure::Refused(code, why),
            // Also the page of a proxy or a captive portal, which is not an answer of the server.
            code => Failure::Failing(format!("{code}: {why}")),
        })
    }

    /// Downloads a file, and gives it to `take` part by part.
    pub(crate) fn fetch(&self, id: &str, cancel: &Cancel, take: &mut dyn FnMut(&[u8])) -> Result<(), Failure> {
        let refused = |why: &str| Failure::Refused(0, why.to_owned());
        let found = self.call("getFile", &json!({"file_id": id}), Duration::ZERO, cancel)?;
        let path = found["file_path"].as_str().ok_or_else(|| refused("Telegram gave no path for the file"))?;
        if path.contains("..") || path.starts_with('/') {
            return Err(refused("Telegram gave an invalid path for the file"));
        }
        let url = format!("{}/{path}", self.files.reveal());
        let outgoing = Outgoing { url, headers: Vec::new(), body: None };
        let mut good = |status, piece: &[u8]| {
            if status == 200 {
                take(piece);
            }
        };
        let said = |status| format!("the download failed with status {status}");
        match self.stream(outgoing, Duration::ZERO, MAX_FILE, cancel, &mut good)? {
            200 => Ok(()),
            status @ (400..=407 | 410..=428) => Err(Failure::Refused(status.into(), said(status))),
            status => Err(Failure::Failing(said(status))),
        }
    }

    /// Gives the status and the body of an answer to `take`, part by part.
    fn stream(
        &self,
        outgoing: Outgoing,
        within: Duration,
        most: usize,
        cancel: &Cancel,
        take: &mut dyn FnMut(u16, &[u8]),
    ) -> Result<u16, Failure> {
        let mut exchange = self.client.send(outgoing, cancel).map_err(|e| Failure::Failing(e.message))?;
        let mut receive = || {
            let (status, mut len) = (exchange.head(within + TIMEOUT)?.status, 0);
            while let Some(piece) = exchange.body(within + TIMEOUT)? {
                len += piece.len();
                if len > most {
                    break;
                }
                take(status, &piece);
            }
            Ok((status, len))
        };
        let why = match receive() {
            Ok((_, len)) if len > most => return Err(Failure::Refused(0, "the answer is too large".to_owned())),
            Ok((status, _)) => return Ok(status),
            Err(Fault::Cancelled(Why::Stopped | Why::Deadline)) => return Err(Failure::Stopped),
            Err(Fault::Broken(text) | Fault::Unreachable(text)) => text,
            Err(Fault::Config(e)) => e.message,
            Err(Fault::Silent) => "no answer in time".to_owned(),
        };
        Err(if exchange.is_sent() { Failure::Lost(why) } else { Failure::Failing(why) })
    }
}

/// Sends a text as the parameter `field`, as plain text where the server cannot parse its HTML.
pub(super) fn send_styled(
    field: &str,
    piece: Option<&Piece>,
    params: Value,
    send: &dyn Fn(Value) -> Result<Value, Failure>,
) -> Result<(), Failure> {
    let Some(piece) = piece else { return send(params).map(drop) };
    let mut styled = params.clone();
    (styled[field], styled["parse_mode"]) = (piece.html.as_str().into(), "HTML".into());
    match send(styled) {
        Err(Failure::Refused(400, why)) if why.contains("parse") || why.contains("entit") => {
            let mut plain = params;
            plain[field] = piece.plain.as_str().into();
            send(plain).map(drop)
        }
        result => result.map(drop),
    }
}
