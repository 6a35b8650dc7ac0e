//! Reads one HTTP/1.1 request (RFC 9112) from a connection. Ambiguous input is rejected, and each part has limits in bytes and
//! in time.
//!
//! A connection has one request, so bytes after its body are never read as a second request.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::response::Refusal;

/// Maximum size of the request line and the headers, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Maximum number of headers.
const MAX_HEADERS: usize = 64;
/// Maximum size of a body, in bytes, without the framing of chunks.
pub(super) const MAX_BODY: usize = 8 << 20;
/// Maximum size of the framing of a chunked body, in bytes.
const MAX_FRAMING: usize = 1 << 20;
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
    framing: Framing,
}

/// Framing of the body (RFC 9112, section 6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Framing {
    /// No body.
    #[default]
    Empty,
    Length(usize),
    Chunked,
}

impl Head {
    /// Returns the value of a header that can only occur once.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(own, _)| own == name)
            .map(|(_, value)| value.as_str())
    }

    /// Maximum size of the body, in bytes.
    pub(super) fn body_size(&self) -> usize {
        match self.framing {
            Framing::Empty => 0,
            Framing::Length(length) => length.min(MAX_BODY),
            Framing::Chunked => MAX_BODY,
        }
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

    /// Reads the head of the request; `None` if the client closed the connection without sending any bytes.
    pub(super) fn head(&mut self) -> Result<Option<Head>, Refusal> {
        let mut from = 0;
        let end = loop {
            if let Some(at) = find(&self.ahead[from..], b"\r\n\r\n") {
                break from + at + 4;
            }
            if self.ahead.len() > MAX_HEAD {
                return Err(Refusal::new(431, "the head is larger than 16 KB"));
            }
            // The end may be split between two reads.
            from = self.ahead.len().saturating_sub(3);
            match self.more() {
                Ok(()) => {}
                Err(_) if self.ahead.is_empty() => return Ok(None),
                Err(e) => return Err(unread(&e, "the head")),
            }
        };
        if end > MAX_HEAD {
            return Err(Refusal::new(431, "the head is larger than 16 KB"));
        }
        let head = parse(&self.ahead[..end])?;
        self.ahead.drain(..end);
        Ok(Some(head))
    }

    /// Reads the body of the request.
    pub(super) fn body(&mut self, head: &Head) -> Result<Vec<u8>, Refusal> {
        self.deadline = Instant::now() + BODY_TIME;
        match head.framing {
            Framing::Empty => return Ok(Vec::new()),
            Framing::Length(length) if length > MAX_BODY => return Err(too_large()),
            Framing::Length(_) | Framing::Chunked => {}
        }
        match head.header("expect") {
            None => {}
            Some(expect) if expect.eq_ignore_ascii_case("100-continue") => {
                let continued = self.stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
                continued.map_err(|e| unread(&e, "the body"))?;
            }
            Some(_) => return bad("the only Expect that bantam takes is 100-continue"),
        }
        match head.framing {
            Framing::Length(length) => {
                self.fill(length)?;
                Ok(self.ahead.drain(..length).collect())
            }
            _ => self.chunks(),
        }
    }

    /// Reads a chunked body (RFC 9112, section 7.1) without trailers.
    fn chunks(&mut self) -> Result<Vec<u8>, Refusal> {
        let mut body = Vec::new();
        let mut framing = 0;
        loop {
            let line = self.line(&mut framing)?;
            let length = chunk_length(&line)?;
            if length == 0 {
                break;
            }
            if length > MAX_BODY - body.len() {
                return Err(too_large());
            }
            self.fill(length + 2)?;
            body.extend(self.ahead.drain(..length));
            if self.ahead.drain(..2).as_slice() != b"\r\n" {
                return bad("a chunk is longer than it says");
            }
        }
        // Clients do not send trailers, and other servers might read a trailer as the next request.
        if !self.line(&mut framing)?.is_empty() {
            return bad("the chunked body has trailers");
        }
        Ok(body)
    }

    /// Returns the next line of the framing, without its end.
    fn line(&mut self, framing: &mut usize) -> Result<Vec<u8>, Refusal> {
        const LONGEST: usize = 4 << 10;
        let end = loop {
            if let Some(end) = find(&self.ahead, b"\r\n") {
                break end;
            }
            if self.ahead.len() > LONGEST {
                return bad("a line of the chunked body is too long");
            }
            self.more().map_err(|e| unread(&e, "the body"))?;
        };
        *framing += end + 2;
        if *framing > MAX_FRAMING {
            return bad("the body has too many chunks");
        }
        let line = self.ahead[..end].to_vec();
        self.ahead.drain(..end + 2);
        Ok(line)
    }

    /// Reads until this many bytes of the body are here.
    fn fill(&mut self, length: usize) -> Result<(), Refusal> {
        while self.ahead.len() < length {
            self.more().map_err(|e| unread(&e, "the body"))?;
        }
        Ok(())
    }

    /// Reads more bytes, before the deadline of the current part.
    fn more(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 << 10];
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    self.ahead.extend_from_slice(&piece[..n]);
                    return Ok(());
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn too_large() -> Refusal {
    Refusal::new(413, "the body is larger than 8 MB")
}

fn unread(e: &io::Error, what: &str) -> Refusal {
    match e.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => {
            Refusal::new(408, format!("{what} did not arrive in time"))
        }
        _ => Refusal::new(
            400,
            format!("the connection ended before {what} was complete"),
        ),
    }
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
    head.framing = framing(&head)?;
    Ok(head)
}

fn framing(head: &Head) -> Result<Framing, Refusal> {
    match (
        head.header("transfer-encoding"),
        head.header("content-length"),
    ) {
        (None, None) => Ok(Framing::Empty),
        (Some(_), Some(_)) => bad("the body has both a length and an encoding"),
        (Some(_), _) if head.is_http_1_0 => bad("HTTP/1.0 has no Transfer-Encoding"),
        (Some(coding), None) if coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
        (Some(_), None) => bad("the only Transfer-Encoding that bantam takes is chunked"),
        (None, Some(length)) => {
            let is_number = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
            match length.parse::<usize>() {
                Ok(length) if is_number => Ok(Framing::Length(length)),
                Err(_) if is_number => Err(too_large()),
                _ => bad("Content-Length is not a number"),
            }
        }
    }
}

/// Parses the length of a chunk. Extensions are ignored.
fn chunk_length(line: &[u8]) -> Result<usize, Refusal> {
    let digits = line.split(|b| *b == b';').next().unwrap_or_default();
    // Some servers accept a lone line feed as the end of the line, and `from_str_radix` accepts a sign.
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    if !is_hex || line.iter().any(u8::is_ascii_control) {
        return bad("a chunk does not begin with its length");
    }
    let digits = String::from_utf8_lossy(digits);
    usize::from_str_radix(&digits, 16).map_err(|_| too_large())
}

#[cfg(test)]
#[path = "request/tests/fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener};
    use std::thread;

    /// Returns the result of reading a request from a client that sends these bytes and then closes its side.
    fn read(bytes: &[u8]) -> Result<Option<(Head, Vec<u8>)>, u16> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        thread::scope(|scope| {
            // Moved here, so that it is also closed when the reader panics.
            let server = server;
            scope.spawn(move || {
                // The reader may reject the request before it has read all of it.
                drop(client.write_all(bytes));
                drop(client.shutdown(Shutdown::Write));
                drop(io::copy(&mut client, &mut io::sink()));
            });
            let mut reader = Reader::new(&server);
            let read = match reader.head() {
                Ok(None) => Ok(None),
                Ok(Some(head)) => reader.body(&head).map(|body| Some((head, body))),
                Err(refusal) => Err(refusal),
            };
            server.shutdown(Shutdown::Both).unwrap_or_default();
            read.map_err(|refusal| refusal.status)
        })
    }

    fn status(text: &str) -> u16 {
        read(text.as_bytes()).map_or_else(|status| status, |_| 200)
    }

    #[test]
    fn a_chunked_body_is_joined() {
        let head = "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n";
        let body = |chunks: &str| {
            let read = read(format!("{head}{chunks}").as_bytes());
            read.map(|read| String::from_utf8(read.unwrap().1).unwrap())
        };
        assert_eq!(
            body("3\r\nabc\r\n0a;x=y\r\n0123456789\r\n0\r\n\r\n").unwrap(),
            "abc0123456789"
        );
        for bad in [
            "+3\r\nabc\r\n0\r\n\r\n",
            "3 \r\nabc\r\n0\r\n\r\n",
            "0x3\r\nabc\r\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "3\nabc\n0\n\n",
            "\r\nabc\r\n0\r\n\r\n",
            "3\r\nabc\r\n",
            "-1\r\n\r\n",
            // Servers disagree on lone line feeds, and some read the bytes after the last chunk as the next request.
            "3;x\nabc\r\nabc\r\n0\r\n\r\n",
            "3;\rx\r\nabc\r\n0\r\n\r\n",
            "3\r\nabc\r\n0;\n\r\n\r\n",
            "3\r\nabc\r\n0\r\nGET / HTTP/1.1\r\n\r\n",
            "3\r\nabc\r\n0\r\nA: b\r\n\r\n",
        ] {
            assert_eq!(body(bad), Err(400), "{bad:?}");
        }
        assert_eq!(body("fffffffffffffffff\r\n"), Err(413));
        assert_eq!(body("800001\r\n"), Err(413));
        // The sum with the previous length would overflow to 0.
        let last = usize::MAX;
        let wrapping = format!("1\r\nx\r\n{last:x}\r\n");
        assert_eq!(body(&wrapping), Err(413));
    }

    #[test]
    fn ambiguous_request_framing_is_refused() {
        for (bad, expected) in [
            (
                "POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
                400,
            ),
            ("POST / HTTP/1.1\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
            ("POST / HTTP/1.1\r\nContent-Length: +3\r\n\r\nabc", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 0x3\r\n\r\nabc", 400),
            ("POST / HTTP/1.1\r\nContent-Length: \r\n\r\nabc", 400),
            ("POST / HTTP/1.1\r\nContent-Length : 3\r\n\r\nabc", 400),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
                400,
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
                400,
            ),
            (
                "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                400,
            ),
            ("POST / HTTP/1.1\nHost: a\n\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\n Content-Length: 3\r\n\r\nabc", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nX\0Y: b\r\n\r\n", 400),
            ("\r\nPOST / HTTP/1.1\r\n\r\n", 400),
            ("POST http://elsewhere/ HTTP/1.1\r\n\r\n", 400),
            ("CONNECT a:443 HTTP/1.1\r\n\r\n", 400),
            ("POST  /  HTTP/1.1\r\n\r\n", 400),
            ("POST / HTTP/2.0\r\n\r\n", 400),
            ("POST /\r\n\r\n", 400),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
            ("\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}\r\n\r\n", 400),
            ("POST / HTTP/1.1\r\nHost: a\r\n", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc", 400),
            ("POST / HTTP/1.1\r\nContent-Length: 8388609\r\n\r\n", 413),
            (
                "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
                413,
            ),
            (
                "POST / HTTP/1.1\r\nContent-Length: 3\r\nExpect: 200-ok\r\n\r\nabc",
                400,
            ),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ] {
            assert_eq!(status(bad), expected, "{bad:?}");
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
