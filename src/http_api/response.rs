//! Writes HTTP/1.1 responses: whole responses, streams of server-sent events, and OpenAI's error objects.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::request::MAX_BODY;
use crate::error::{Error, Kind};

/// Write timeout, after which a client counts as disconnected.
const WRITE_TIME: Duration = Duration::from_secs(30);
/// Silence after which a rejected client has finished sending.
const QUIET: Duration = Duration::from_secs(1);

/// Reason for rejecting a request.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    /// HTTP status.
    pub(super) status: u16,
    /// One sentence.
    pub(super) why: String,
    /// Invalid field of the request, such as `messages[0].content`.
    pub(super) param: Option<String>,
    /// OpenAI's error code.
    pub(super) code: Option<&'static str>,
    /// Seconds to wait before a retry.
    pub(super) retry_after: Option<u64>,
    /// Whether tools may have run. In that case OpenAI's libraries must not retry the request.
    pub(super) has_acted: bool,
}

impl Refusal {
    pub(super) fn new(status: u16, why: impl Into<String>) -> Self {
        Self {
            status,
            why: why.into(),
            ..Self::default()
        }
    }

    /// Creates the error for an invalid field `param`.
    pub(crate) fn of_param(param: impl Into<String>, why: &str) -> Self {
        let param = param.into();
        Self {
            code: Some("invalid_value"),
            param: Some(param.clone()),
            ..Self::new(400, format!("{param}: {why}"))
        }
    }

    /// Creates the error for a model that cannot be asked. `models` are those of the settings.
    pub(crate) fn of_model(error: Error, models: &[String]) -> Self {
        if error.kind != Kind::Usage {
            return error.into();
        }
        let known = models.join(", ");
        Self {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::new(404, format!("{}; the models are {known}", with_hint(error)))
        }
    }

    pub(super) fn code(self, code: &'static str) -> Self {
        Self {
            code: Some(code),
            ..self
        }
    }

    pub(super) fn retry_after(self, seconds: u64) -> Self {
        Self {
            retry_after: Some(seconds),
            ..self
        }
    }

    /// Returns an error object of OpenAI's API, with the types that its clients support.
    pub(super) fn body(&self) -> Value {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.why, "type": kind, "param": self.param, "code": self.code}})
    }
}

/// The client has disconnected, so this error is never sent.
impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        Self::new(408, format!("the client did not take the answer: {e}"))
    }
}

/// The error of a turn without an answer.
impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let (status, code, seconds) = match error.kind {
            Kind::Usage => (400, None, None),
            Kind::Config => (500, Some("configuration"), None),
            Kind::Auth => (500, Some("provider_credentials"), None),
            Kind::Unavailable => (503, Some("provider_unavailable"), Some(10)),
            Kind::Limit => (429, Some("insufficient_quota"), None),
            Kind::Busy => (409, Some("conversation_busy"), Some(5)),
            Kind::Interrupted => (503, Some("ending"), Some(5)),
            Kind::Failed => (500, None, None),
        };
        Self {
            code,
            retry_after: seconds,
            ..Self::new(status, with_hint(error))
        }
    }
}

/// Returns the message of an error with its hint.
fn with_hint(error: Error) -> String {
    match error.hint {
        Some(hint) => format!("{}; {hint}", error.message),
        None => error.message,
    }
}

/// Destination of the response to one request.
pub(super) struct Responder<'a> {
    stream: &'a TcpStream,
    /// Origin that may read the response in a browser; empty for none.
    pub(super) origin: String,
    /// Whether the client supports chunked encoding.
    pub(super) is_chunked: bool,
}

impl<'a> Responder<'a> {
    pub(super) fn new(stream: &'a TcpStream) -> Self {
        drop(stream.set_nodelay(true));
        drop(stream.set_write_timeout(Some(WRITE_TIME)));
        Self {
            stream,
            origin: String::new(),
            is_chunked: true,
        }
    }

    /// Writes a response in one piece. `headers` are whole lines.
    fn write(&self, status: u16, headers: &str, body: &str) -> io::Result<()> {
        // Clients read the number.
        let reason = if status < 300 { "OK" } else { "Error" };
        let allowed = match self.origin.as_str() {
            "" => String::new(),
            origin => format!("Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n"),
        };
        let response = format!(
            "HTTP/1.1 {status} {reason}\r\n{headers}{allowed}X-Content-Type-Options: nosniff\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
        );
        let mut stream = self.stream;
        stream.write_all(response.as_bytes())
    }

    /// Sends a whole response. `headers` are whole lines.
    pub(super) fn json(&self, status: u16, body: &Value, headers: &str) -> io::Result<()> {
        let body = format!("{body}\n");
        let length = body.len();
        let kind = "Content-Type: application/json";
        let headers = format!("{kind}\r\nContent-Length: {length}\r\n{headers}");
        self.write(status, &headers, &body)
    }

    /// Answers a browser's preflight (Fetch standard, section 4.8).
    pub(super) fn preflight(&self) -> io::Result<()> {
        let headers = "Access-Control-Allow-Methods: GET, POST\r\n\
                       Access-Control-Allow-Headers: Authorization, Content-Type, X-Session\r\n\
                       Access-Control-Max-Age: 600\r\nContent-Length: 0\r\n";
        self.write(204, headers, "")
    }

    /// Sends the reason for a rejection. Then reads what the client is still sending, because closing a socket with unread input
    /// resets the connection, and the client would lose the response (RFC 9112, section 9.6).
    pub(super) fn refuse(&self, refusal: &Refusal) -> io::Result<()> {
        let mut headers = String::new();
        if let Some(seconds) = refusal.retry_after {
            headers.push_str(&format!("Retry-After: {seconds}\r\n"));
        }
        if refusal.has_acted {
            headers.push_str("x-should-retry: false\r\n");
        }
        self.json(refusal.status, &refusal.body(), &headers)?;
        self.stream.shutdown(Shutdown::Write)?;
        self.stream.set_read_timeout(Some(QUIET))?;
        io::copy(&mut self.stream.take(MAX_BODY as u64), &mut io::sink()).map(drop)
    }

    /// Starts a stream of server-sent events (HTML standard, section 9.2).
    pub(super) fn begin_events(&self) -> io::Result<()> {
        let mut headers = "Content-Type: text/event-stream\r\nX-Accel-Buffering: no\r\n".to_owned();
        if self.is_chunked {
            headers.push_str("Transfer-Encoding: chunked\r\n");
        }
        self.write(200, &headers, "")
    }

    /// Sends text of the stream. One write, so that an event is one packet if it fits.
    pub(super) fn event(&self, text: &str) -> io::Result<()> {
        let mut stream = self.stream;
        if !self.is_chunked {
            return stream.write_all(text.as_bytes());
        }
        let chunk = format!("{:x}\r\n{text}\r\n", text.len());
        stream.write_all(chunk.as_bytes())
    }

    pub(super) fn end_events(&self) -> io::Result<()> {
        let mut stream = self.stream;
        if self.is_chunked {
            stream.write_all(b"0\r\n\r\n")?;
        }
        stream.shutdown(Shutdown::Write)
    }
}
