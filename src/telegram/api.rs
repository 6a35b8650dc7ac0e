//! The Bot API (core.telegram.org/bots/api): one call, its answer, and what can go wrong.

use std::time::Duration;

use fs_err::File;
use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::http::{Body, Client, Fault, Outgoing, Settings};
use crate::json::parse_json;
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
                format!("Telegram refused the token ({m}): copy it again from @BotFather")
            }
            Self::Refused(409, m) => {
                format!("another program is polling with this token, or a webhook is set ({m})")
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
        let base = if base.is_empty() {
            BASE
        } else {
            base.trim_end_matches('/')
        };
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
        let len = file
            .metadata()
            .map_err(|e| Failure::Failing(e.to_string()))?
            .len();
        // Sent bytes may wait in the kernel for minutes.
        let within = Duration::from_secs(len.min(MAX_BUFFERED) / MIN_RATE);
        self.ask(
            method,
            Body::form(params, (field, name), file, len),
            within,
            cancel,
        )
    }

    fn ask(
        &self,
        method: &str,
        body: Body,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Value, Failure> {
        let url = format!("{}/{method}", self.base.reveal());
        let is_upload = body.content_type.starts_with("multipart");
        let (status, bytes) = self.receive(url, Some(body), within, MAX_ANSWER, cancel)?;
        let answer: Value = parse_json(&bytes).unwrap_or_default();
        if answer["ok"] == true {
            return Ok(answer["result"].clone());
        }
        let why = answer["description"]
            .as_str()
            .unwrap_or("this is not an answer of the Bot API")
            .to_owned();
        let parameters = &answer["parameters"];
        let is_answer = answer["ok"] == false;
        let moved = parameters["migrate_to_chat_id"].as_i64();
        Err(
            match (
                answer["error_code"].as_u64().unwrap_or(status.into()),
                moved,
            ) {
                (429, _) => Failure::TooMany(Duration::from_secs(
                    parameters["retry_after"]
                        .as_u64()
                        .unwrap_or(5)
                        .clamp(1, 3600),
                )),
                (413, _) if is_upload && !is_answer => {
                    Failure::Refused(413, "too large for the server".to_owned())
                }
                (401, _) if is_answer => Failure::Unauthorized(why),
                // The server answers so to an unknown token, and to an unknown method.
                (404, _) if is_answer && matches!(method, "getMe" | "getUpdates") => {
                    Failure::Unauthorized(why)
                }
                (400, Some(chat)) => Failure::Migrated(chat),
                (code @ 400..=499, _) if is_answer => Failure::Refused(code, why),
                // Also the page of a proxy or a captive portal, which is not an answer of the server.
                (code, _) => Failure::Failing(format!("{code}: {why}")),
            },
        )
    }

    /// Downloads a file.
    pub(crate) fn fetch(&self, id: &str, cancel: &Cancel) -> Result<Vec<u8>, Failure> {
        let found = self.call("getFile", &json!({"file_id": id}), Duration::ZERO, cancel)?;
        let path = found["file_path"]
            .as_str()
            .filter(|path| !path.contains("..") && !path.starts_with('/'));
        let path = path.ok_or_else(|| {
            Failure::Refused(0, "Telegram gave no valid path for the file".to_owned())
        })?;
        let url = format!("{}/{path}", self.files.reveal());
        let (status, bytes) = self.receive(url, None, Duration::ZERO, MAX_FILE, cancel)?;
        let said = format!("the download failed with status {status}");
        match status {
            200 => Ok(bytes),
            400..=407 | 410..=428 => Err(Failure::Refused(status.into(), said)),
            _ => Err(Failure::Failing(said)),
        }
    }

    /// The status and the body of an answer.
    fn receive(
        &self,
        url: String,
        body: Option<Body>,
        within: Duration,
        most: usize,
        cancel: &Cancel,
    ) -> Result<(u16, Vec<u8>), Failure> {
        let outgoing = Outgoing {
            url,
            headers: Vec::new(),
            body,
        };
        let mut exchange = self
            .client
            .send(outgoing, cancel)
            .map_err(|e| Failure::Failing(e.message))?;
        let mut bytes = Vec::new();
        let mut receive = || {
            let status = exchange.head(within + TIMEOUT)?.status;
            while let Some(piece) = exchange
                .body(within + TIMEOUT)?
                .filter(|_| bytes.len() <= most)
            {
                bytes.extend_from_slice(&piece);
            }
            Ok(status)
        };
        let why = match receive() {
            Ok(_) if bytes.len() > most => {
                return Err(Failure::Refused(0, "the answer is too large".to_owned()));
            }
            Ok(status) => return Ok((status, bytes)),
            Err(Fault::Cancelled(_)) => return Err(Failure::Stopped),
            Err(Fault::Broken(text)) => text,
            Err(Fault::Config(e)) => e.message,
            Err(Fault::Silent) => "no answer in time".to_owned(),
        };
        Err(if exchange.is_sent() {
            Failure::Lost(why)
        } else {
            Failure::Failing(why)
        })
    }
}

/// Sends a text as the parameter `field`, as plain text where the server cannot parse its HTML.
pub(super) fn send_styled(
    field: &str,
    piece: Option<&Piece>,
    params: Value,
    send: &dyn Fn(Value) -> Result<Value, Failure>,
) -> Result<Value, Failure> {
    let Some(piece) = piece else {
        return send(params);
    };
    let mut styled = params.clone();
    (styled[field], styled["parse_mode"]) = (piece.html.as_str().into(), "HTML".into());
    match send(styled) {
        Err(Failure::Refused(400, why)) if why.contains("parse") || why.contains("entit") => {
            let mut plain = params;
            plain[field] = piece.plain.as_str().into();
            send(plain)
        }
        result => result,
    }
}
