//! Reads one HTTP/1.1 request (RFC 9112) from a connection. Ambiguous input is rejected, and each part has limits in bytes and
//! in time.
//!
//! A connection has one request, so bytes after its body are never read as a second request.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::response::Refusal;

/// Maximum size of the request line and the headers, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Maximum number of headers.
const MAX_HEADERS: usize = 64;
/// Maximum size of a body, in bytes.
pub(super) const MAX_BODY: usize = 8 << 20;
/// Headers that may occur once.
const SINGLE: &str =
    "host content-length transfer-encoding authorization origin x-session expect content-type";
const HEAD_TIME: Duration = Duration::from_secs(10);
const BODY_TIME: Duration = Duration::from_secs(60);

/// The request line and the headers. Header names are in lower case.
#[derive(Debug, Default)]
pub(super) struct Head {
    pub(super) method: String,
    /// Path without the query.
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) is_http_1_0: bool,
    /// Size of the body, in bytes.
    pub(super) length: usize,
}

impl Head {
    /// Returns the value of a header that can only occur once.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }
}

/// A connection, with bytes that were read ahead.
pub(super) struct Reader<'a> {
    stream: &'a TcpStream,
    ahead: Vec<u8>,
    deadline: Instant,
}

impl<'a> Reader<'a> {
    pub(super) fn new(stream: &'a TcpStream) -> Self {
        Self {
            stream,
            ahead: Vec::new(),
            deadline: Instant::now() + HEAD_TIME,
        }
    }

    /// Reads the head of the request.
    pub(super) fn head(&mut self) -> Result<Head, Refusal> {
        let mut from = 0;
        let end = loop {
            match find(&self.ahead[from..], b"\r\n\r\n") {
                Some(at) if from + at + 4 <= MAX_HEAD => break from + at + 4,
                _ if self.ahead.len() > MAX_HEAD => {
                    return Err(Refusal::new(431, "the head is larger than 16 KB"));
                }
                _ => {}
            }
            // The end may be split between two reads.
            from = self.ahead.len().saturating_sub(3);
            self.more("the head")?;
        };
        let head = parse(&self.ahead[..end])?;
        self.ahead.drain(..end);
        Ok(head)
    }

    /// Reads the body of the request.
    pub(super) fn body(mut self, head: &Head) -> Result<Vec<u8>, Refusal> {
        self.deadline = Instant::now() + BODY_TIME;
        if head.header("expect").is_some() {
            // The next read detects an error.
            drop(self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
        while self.ahead.len() < head.length {
            self.more("the body")?;
        }
        self.ahead.truncate(head.length);
        Ok(self.ahead)
    }

    /// Reads more bytes of this part, before its deadline.
    fn more(&mut self, part: &str) -> Result<(), Refusal> {
        let mut piece = [0; 16 << 10];
        let left = self.deadline.saturating_duration_since(Instant::now());
        // After the deadline, there is no valid timeout.
        let set = self.stream.set_read_timeout(Some(left));
        let read = set.and_then(|()| self.stream.read(&mut piece));
        match read.map_err(|e| e.kind()) {
            Ok(count @ 1..) => self.ahead.extend_from_slice(&piece[..count]),
            Err(ErrorKind::Interrupted) => {}
            Err(ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::InvalidInput) => {
                return Err(Refusal::new(408, format!("{part} did not arrive in time")));
            }
            Ok(0) | Err(_) => {
                let why = format!("the connection ended before {part} was complete");
                return Err(Refusal::new(400, why));
            }
        }
        Ok(())
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn bad<T>(why: &str) -> Result<T, Refusal> {
    Err(Refusal::new(400, why))
}

/// Parses a head, including the empty line at its end.
fn parse(text: &[u8]) -> Result<Head, Refusal> {
    // The parser accepts a lone line feed as a line end, on which servers disagree.
    let mut before = 0;
    for byte in text {
        let is_end = *byte == b'\n';
        if is_end != (before == b'\r') {
            return bad("a line of the head does not end with CR LF");
        }
        before = *byte;
    }
    if text.starts_with(b"\r\n") {
        return bad("the request begins with an empty line");
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(text) {
        Ok(httparse::Status::Complete(length)) if length == text.len() => {}
        Ok(_) => return bad("the head is not an HTTP request"),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(Refusal::new(431, "the request has more than 64 headers"));
        }
        Err(e) => return bad(&format!("the head is not an HTTP request: {e}")),
    }
    let target = request.path.unwrap_or_default();
    if !target.starts_with('/') {
        return bad("the request's target is not a path");
    }
    let mut head = Head {
        method: request.method.unwrap_or_default().to_owned(),
        path: target.split('?').next().unwrap_or_default().to_owned(),
        is_http_1_0: request.version == Some(0),
        ..Head::default()
    };
    for header in request.headers.iter() {
        let name = header.name.to_ascii_lowercase();
        let Ok(value) = std::str::from_utf8(header.value) else {
            return bad("a header is not UTF-8");
        };
        // These headers determine access or the framing of the body, so duplicates are ambiguous.
        let is_single = SINGLE.split(' ').any(|single| single == name);
        if is_single && head.header(&name).is_some() {
            return bad(&format!("the header {name} appears twice"));
        }
        let value = value.trim_matches([' ', '\t']).to_owned();
        head.headers.push((name, value));
    }
    let expected = head.header("expect").unwrap_or("100-continue");
    if !expected.eq_ignore_ascii_case("100-continue") {
        return bad("the only Expect that bantam takes is 100-continue");
    }
    head.length = length(&head)?;
    Ok(head)
}

/// Returns the size of the body. Servers may disagree on the size of an encoded body.
fn length(head: &Head) -> Result<usize, Refusal> {
    if head.header("transfer-encoding").is_some() {
        let why = "send the body with a Content-Length, and without a Transfer-Encoding";
        return Err(Refusal::new(411, why));
    }
    let length = head.header("content-length").unwrap_or("0");
    if length.is_empty() || !length.bytes().all(|b| b.is_ascii_digit()) {
        return bad("Content-Length is not a number");
    }
    match length.parse() {
        Ok(length) if length <= MAX_BODY => Ok(length),
        _ => Err(Refusal::new(413, "the body is larger than 8 MB")),
    }
}

#[cfg(test)]
#[path = "request/tests/fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener};

    /// Returns the status for a request from a client that sends these bytes and then closes its side.
    fn status(text: &str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        client.write_all(text.as_bytes()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut reader = Reader::new(&server);
        let head = reader.head();
        let body = head.and_then(|head| reader.body(&head));
        body.map_or_else(|refusal| refusal.status, |_| 200)
    }

    #[test]
    fn ambiguous_request_framing_is_refused() {
        for bad in [
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nContent-Length: 0x3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nContent-Length: \r\n\r\nabc",
            "POST / HTTP/1.1\r\nContent-Length : 3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
            "POST / HTTP/1.1\nHost: a\n\n",
            "POST / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n",
            "POST / HTTP/1.1\r\n Content-Length: 3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "POST / HTTP/1.1\r\nX\0Y: b\r\n\r\n",
            "\r\nPOST / HTTP/1.1\r\n\r\n",
            "POST http://elsewhere/ HTTP/1.1\r\n\r\n",
            "CONNECT a:443 HTTP/1.1\r\n\r\n",
            "POST  /  HTTP/1.1\r\n\r\n",
            "POST / HTTP/2.0\r\n\r\n",
            "POST /\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\nExpect: 200-ok\r\n\r\nabc",
        ] {
            assert_eq!(status(bad), 400, "{bad:?}");
        }
        for (headers, expected) in [
            ("Content-Length: 3\r\nTransfer-Encoding: chunked", 411),
            ("Content-Length: 8388609", 413),
            ("Content-Length: 99999999999999999999999", 413),
            ("Host: a", 200),
        ] {
            let request = format!("POST / HTTP/1.1\r\n{headers}\r\n\r\nabc");
            assert_eq!(status(&request), expected, "{headers}");
        }
        let long = format!("GET / HTTP/1.1\r\nX: {}\r\n\r\n", "a".repeat(MAX_HEAD));
        assert_eq!(status(&long), 431);
        let many = format!(
            "GET / HTTP/1.1\r\n{}\r\n",
            "X: a\r\n".repeat(MAX_HEADERS + 1)
        );
        assert_eq!(status(&many), 431);
    }
}
