//! Client of the Bot API (core.telegram.org/bots/api): calls, answers and failures.

use std::time::Duration;

use fs_err::File;
use serde_json::{Value, json};

use crate::cancel::Cancel;
use crate::http::{Body, Client, Fault, Outgoing, Settings};
use crate::json::parse_json;
use crate::secret::Secret;

/// Telegram's own server.
pub(crate) const BASE: &str = "https://api.telegram.org";

/// Time limit of an answer, in addition to the time of a long poll.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of an answer, in bytes. A hundred updates with replies and entities are smaller.
const MAX_ANSWER: usize = 16 << 20;
/// Maximum size of a file that bots can download, in bytes.
pub(crate) const MAX_FILE: usize = 20 << 20;

/// Maximum size of the kernel's send buffer (`tcp_wmem`), in bytes.
const MAX_BUFFERED: u64 = 4 << 20;
/// Minimum expected upload rate, in bytes per second.
const MIN_RATE: u64 = 16 << 10;

pub(crate) struct Api {
    client: Client,
    /// Base address, including the token.
    base: Secret,
    files: Secret,
}

/// Reason for a failed call. The texts do not contain the token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// The server rejects the token.
    Unauthorized(String),
    /// Too many calls, with `retry_after`.
    TooMany(Duration),
    /// The group has moved to this id.
    Migrated(i64),
    /// The server rejects this call permanently, with this code; 409 means that another program polls with the token.
    Refused(u64, String),
    /// A failure of the network, the server or this call that may be temporary.
    Failing(String),
    /// The answer was lost, so the server may have executed the call.
    Lost(String),
    /// The caller cancelled the call.
    Stopped,
}

impl Failure {
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Unauthorized(m) => {
                let to = "channels.telegram.token, or TELEGRAM_BOT_TOKEN";
                format!("Telegram refused the token ({m}): copy it again from @BotFather into {to}")
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

    /// Whether the chat takes no message at all.
    pub(super) fn is_about_chat(&self) -> bool {
        let refusals = ["chat not found", "rights to send", "CHAT_WRITE_FORBIDDEN"];
        match self {
            Self::Refused(403, _) => true,
            Self::Refused(400, why) => refusals.iter().any(|refusal| why.contains(refusal)),
            _ => false,
        }
    }

    /// Whether the server may accept the same text without its styles.
    pub(super) fn is_about_text(&self) -> bool {
        let others = ["to edit", "thread not", "not modified", "TOPIC_"];
        match self {
            Self::Refused(400, why) => {
                !self.is_about_chat() && !others.iter().any(|other| why.contains(other))
            }
            _ => false,
        }
    }
}

impl Api {
    /// Creates a client. `base` is the server's address; empty means [`BASE`].
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

    /// Calls a method. `within` is the time for which the server may delay its answer in a long poll.
    pub(crate) fn call(
        &self,
        method: &str,
        params: &Value,
        within: Duration,
        cancel: &Cancel,
    ) -> Result<Value, Failure> {
        self.ask(method, Body::json(params), within, cancel)
    }

    /// Uploads a file named `name` as the parameter `field` of a method.
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
        // Sent bytes may remain in the kernel's buffer for minutes.
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
        let code = answer["error_code"].as_u64().unwrap_or(status.into());
        let wait = parameters["retry_after"].as_u64().unwrap_or(5);
        Err(match (code, moved) {
            (429, _) => Failure::TooMany(Duration::from_secs(wait.clamp(1, 3600))),
            (401, _) if is_answer => Failure::Unauthorized(why),
            // The server's answer to both an unknown token and an unknown method.
            (404, _) if is_answer && matches!(method, "getMe" | "getUpdates") => {
                Failure::Unauthorized(why)
            }
            (400, Some(chat)) => Failure::Migrated(chat),
            (code @ 400..=499, _) if is_answer => Failure::Refused(code, why),
            // Includes pages of proxies and captive portals, which are not answers of the server.
            (code, _) => Failure::Failing(format!("{code}: {why}")),
        })
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

    /// Returns the status and the body of an answer.
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
            while let Some(piece) = exchange.body(within + TIMEOUT)? {
                if bytes.len() > most {
                    break;
                }
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
