//! Writes HTTP/1.1 responses: whole responses, streams of server-sent events, and OpenAI's error objects.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Write timeout, after which a client counts as disconnected.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(30);
/// Time limit for a rejected client to finish sending before its connection is closed.
const LINGER: Duration = Duration::from_secs(1);

/// Reason for rejecting a request.
#[derive(Debug)]
pub(super) struct Refusal {
    /// HTTP status.
    pub(super) status: u16,
    /// One sentence.
    pub(super) why: String,
    /// Invalid field of the request, such as `messages[0].content`.
    pub(super) param: Option<String>,
    /// OpenAI's error code; empty for none.
    pub(super) code: &'static str,
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
            param: None,
            code: "",
            retry_after: None,
            has_acted: false,
        }
    }

    /// Creates the error for an invalid field `param`.
    pub(super) fn of_param(param: impl Into<String>, why: impl Into<String>) -> Self {
        Self {
            param: Some(param.into()),
            code: "invalid_value",
            ..Self::new(400, why)
        }
    }

    pub(super) fn code(self, code: &'static str) -> Self {
        Self { code, ..self }
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
        let code = Some(self.code).filter(|code| !code.is_empty());
        json!({"error": {"message": self.why, "type": kind, "param": self.param, "code": code}})
    }
}

/// The client has disconnected, so this error is never sent.
impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        Self::new(408, format!("the client did not take the answer: {e}"))
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        204 => "No Content",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Error",
    }
}

/// Destination of the response to one request.
pub(super) struct Responder<'a> {
    stream: &'a TcpStream,
    /// Origin that may read the response in a browser; empty for none.
    pub(super) origin: String,
    /// Whether the client supports chunked encoding.
    pub(super) is_chunked: bool,
    /// Whether the request method is HEAD, so that the response has no body.
    pub(super) is_head: bool,
}

impl<'a> Responder<'a> {
    pub(super) fn new(stream: &'a TcpStream) -> Self {
        Self {
            stream,
            origin: String::new(),
            is_chunked: true,
            is_head: false,
        }
    }

    fn head(&self, status: u16, headers: &[(&str, &str)]) -> String {
        let mut head = format!("HTTP/1.1 {status} {}\r\n", reason(status));
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.origin.is_empty() {
            let origin = &self.origin;
            head.push_str(&format!(
                "Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n"
            ));
        }
        head.push_str(
            "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        );
        head
    }

    /// Sends a whole response.
    pub(super) fn json(&self, status: u16, body: &Value, more: &[(&str, &str)]) -> io::Result<()> {
        let body = format!("{body}\n");
        let length = body.len().to_string();
        let mut headers = vec![
            ("Content-Type", "application/json"),
            ("Content-Length", &length),
        ];
        headers.extend(more);
        let mut response = self.head(status, &headers);
        if !self.is_head {
            response.push_str(&body);
        }
        let mut stream = self.stream;
        stream.write_all(response.as_bytes())
    }

    /// Answers a browser's preflight (Fetch standard, section 4.8).
    pub(super) fn preflight(&self) -> io::Result<()> {
        let headers = [
            ("Access-Control-Allow-Methods", "GET, POST"),
            (
                "Access-Control-Allow-Headers",
                "Authorization, Content-Type, X-Session",
            ),
            ("Access-Control-Max-Age", "600"),
            ("Content-Length", "0"),
        ];
        let mut stream = self.stream;
        stream.write_all(self.head(204, &headers).as_bytes())
    }

    /// Sends the reason for a rejection. Then reads for a while, because closing a socket with unread input resets the
    /// connection, and the client might lose the response.
    pub(super) fn refuse(&self, refusal: &Refusal) -> io::Result<()> {
        let seconds = refusal.retry_after.map(|seconds| seconds.to_string());
        let mut headers = Vec::new();
        headers.extend(
            seconds
                .iter()
                .map(|seconds| ("Retry-After", seconds.as_str())),
        );
        if refusal.has_acted {
            headers.push(("x-should-retry", "false"));
        }
        match refusal.status {
            401 => headers.push(("WWW-Authenticate", "Bearer")),
            405 => headers.push(("Allow", "GET, HEAD, POST, OPTIONS")),
            _ => {}
        }
        self.json(refusal.status, &refusal.body(), &headers)?;
        linger(self.stream)
    }

    /// Starts a stream of server-sent events.
    pub(super) fn events(&self) -> io::Result<EventStream<'a>> {
        let mut headers = vec![
            ("Content-Type", "text/event-stream"),
            ("X-Accel-Buffering", "no"),
        ];
        if self.is_chunked {
            headers.push(("Transfer-Encoding", "chunked"));
        }
        let mut stream = self.stream;
        stream.write_all(self.head(200, &headers).as_bytes())?;
        Ok(EventStream {
            stream,
            is_chunked: self.is_chunked,
        })
    }
}

/// A stream of server-sent events (HTML standard, section 9.2).
pub(super) struct EventStream<'a> {
    stream: &'a TcpStream,
    is_chunked: bool,
}

impl EventStream<'_> {
    pub(super) fn data(&mut self, data: &str) -> io::Result<()> {
        self.write(&format!("data: {data}\n\n"))
    }

    /// Sends an empty comment, so that proxies do not close an idle connection.
    pub(super) fn keep_alive(&mut self) -> io::Result<()> {
        self.write(":\n\n")
    }

    pub(super) fn end(self) -> io::Result<()> {
        let mut stream = self.stream;
        if self.is_chunked {
            stream.write_all(b"0\r\n\r\n")?;
        }
        stream.shutdown(Shutdown::Write)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        let piece = if self.is_chunked {
            format!("{:x}\r\n{text}\r\n", text.len())
        } else {
            text.to_owned()
        };
        // One write, so that an event is one packet if it fits.
        self.stream.write_all(piece.as_bytes())
    }
}

fn linger(mut stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let until = Instant::now() + LINGER;
    let mut piece = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        stream.set_read_timeout(Some(left))?;
        if stream.read(&mut piece)? == 0 {
            return Ok(());
        }
    }
}
