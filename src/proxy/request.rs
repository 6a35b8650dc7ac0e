//! What a client asks of the proxy: the head of a request judged and, for plain HTTP, written anew.
//!
//! The client is whatever the model started, so nothing of the head is passed on as it came. What two readers could
//! understand differently (two lengths, a length and chunks, a bare line feed, a folded line) is refused, because the
//! server behind might be the second reader.

use super::relay::Framing;

/// A request that may be carried out, as far as its form goes.
#[derive(Debug)]
pub struct Request {
    /// As it was written; an address of version 6 still in its brackets.
    pub host: String,
    pub port: u16,
    pub kind: Kind,
}

#[derive(Debug)]
pub enum Kind {
    /// `CONNECT`: bytes both ways.
    Tunnel,
    /// One plain request: what the server gets for a head, and what of the body follows.
    Forward { head: Vec<u8>, body: Framing },
}

/// Headers that are for this hop only (RFC 9110, section 7.6.1, and what came before it), and those written anew.
const OURS: &[&str] = &[
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// Whether a head that begins like this is wrong already, so that there is no use in waiting for its end: a line feed
/// without its carriage return, or the reverse.
pub fn has_a_bare_line_end(bytes: &[u8]) -> bool {
    let line_feed = |at: usize| at > 0 && bytes[at - 1] == b'\r';
    let carriage_return = |at: usize| bytes.get(at + 1).is_none_or(|next| *next == b'\n');
    bytes.iter().enumerate().any(|(at, b)| match b {
        b'\n' => !line_feed(at),
        b'\r' => !carriage_return(at),
        _ => false,
    })
}

/// Reads a head, without the empty line that ends it.
pub fn parse(head: &[u8]) -> Result<Request, &'static str> {
    // Bytes above ASCII stand for themselves: nothing that is looked at may hold them, and the rest is passed on.
    let text: String = head.iter().copied().map(char::from).collect();
    // What is left of a line end here was only half of one.
    if text.split("\r\n").any(|line| line.chars().any(|c| c.is_ascii_control() && c != '\t')) {
        return Err("the request holds a control character, or a line that does not end in CR LF");
    }
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err("the first line is not METHOD TARGET VERSION");
    };
    if !is_token(method) || !target.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("the first line holds a character that may not stand there");
    }
    if !matches!(version, "HTTP/1.0" | "HTTP/1.1") {
        return Err("the version is neither HTTP/1.0 nor HTTP/1.1");
    }
    let headers = lines.map(header).collect::<Result<Vec<_>, _>>()?;
    let body = body(&headers, version)?;
    if method == "CONNECT" {
        if !matches!(body, Framing::Length(0)) {
            return Err("CONNECT has no body");
        }
        let (host, port) = authority(target)?;
        let port = port.ok_or("CONNECT wants HOST:PORT")?;
        return Ok(Request { host: host.to_owned(), port, kind: Kind::Tunnel });
    }
    let (authority_text, path) = absolute(method, target)?;
    let (host, port) = authority(authority_text)?;
    let head = rewritten(&format!("{method} {path} {version}\r\nHost: {authority_text}\r\n"), &headers, &body);
    Ok(Request { host: host.to_owned(), port: port.unwrap_or(80), kind: Kind::Forward { head, body } })
}

fn header(line: &str) -> Result<(&str, &str), &'static str> {
    let (name, value) = line.split_once(':').ok_or("a header has no colon")?;
    // This refuses folded lines and a space before the colon, too.
    if !is_token(name) {
        return Err("a header's name holds a character that may not stand there");
    }
    Ok((name, value.trim_matches([' ', '\t'])))
}

/// RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// How the body of the request is delimited. Anything two readers could disagree on is an error.
fn body(headers: &[(&str, &str)], version: &str) -> Result<Framing, &'static str> {
    let all = |wanted: &str| {
        let same = |(name, _): &&(&str, &str)| name.eq_ignore_ascii_case(wanted);
        headers.iter().filter(same).map(|(_, value)| *value).collect::<Vec<_>>()
    };
    match (all("content-length").as_slice(), all("transfer-encoding").as_slice()) {
        ([], []) => Ok(Framing::Length(0)),
        ([length], []) => {
            // `parse` would take a sign, and the empty string is no number to it.
            let length = length.bytes().all(|b| b.is_ascii_digit()).then(|| length.parse().ok()).flatten();
            length.map(Framing::Length).ok_or("Content-Length is not one number")
        }
        ([], [coding]) if version == "HTTP/1.1" && coding.eq_ignore_ascii_case("chunked") => Ok(Framing::chunked()),
        ([], _) => Err("Transfer-Encoding is not just chunked"),
        (_, []) => Err("there is more than one Content-Length"),
        (_, _) => Err("there are both Content-Length and Transfer-Encoding"),
    }
}

/// `HOST` or `HOST:PORT`. Whether the host can be one is for the guard to say; here it only has to be clear what of it
/// is the host.
fn authority(text: &str) -> Result<(&str, Option<u16>), &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']').ok_or("an address has a bracket too few")? + 2;
            match &text[end..] {
                "" => (text, None),
                port => (&text[..end], Some(port.strip_prefix(':').ok_or("something stands behind an address")?)),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(['@', '/', '\\', '?', '#', '%']) {
        return Err("the target is not HOST:PORT, without a user's name");
    }
    let number = |port: &str| {
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| port.parse().ok()).flatten().ok_or("the port is not a number from 1 to 65535")
    };
    Ok((host, port.map(number).transpose()?))
}

/// Splits `http://AUTHORITY/PATH` into the authority and what a server wants for a target.
fn absolute<'a>(method: &str, target: &'a str) -> Result<(&'a str, String), &'static str> {
    let Some((scheme, rest)) = target.split_once("://") else {
        return Err("this is a proxy: it wants the whole http:// address");
    };
    if !scheme.eq_ignore_ascii_case("http") {
        return Err("only http:// can be asked for like this; for https:// use CONNECT");
    }
    if rest.contains('#') {
        return Err("the address has a fragment");
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let path = match path {
        // RFC 9112, section 3.2.4.
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    Ok((authority, path))
}

/// The head as the server gets it: `start`, the client's headers without those that are ours, and ours.
fn rewritten(start: &str, headers: &[(&str, &str)], body: &Framing) -> Vec<u8> {
    let of_connection = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    let named: Vec<&str> = of_connection.flat_map(|(_, value)| value.split(',')).map(str::trim).collect();
    let is_ours = |name: &str| OURS.iter().chain(&named).any(|ours| name.eq_ignore_ascii_case(ours));
    let mut head = start.to_owned();
    for (name, value) in headers.iter().filter(|(name, _)| !is_ours(name)) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    match body {
        Framing::Chunked(_) => head.push_str("Transfer-Encoding: chunked\r\n"),
        // A client that sent no length gets none: a GET with one looks odd to some servers.
        Framing::Length(_) => {
            let length = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            head.push_str(&length.map(|(_, value)| format!("Content-Length: {value}\r\n")).unwrap_or_default());
        }
        Framing::UntilClosed => {}
    }
    head.push_str("Connection: close\r\n\r\n");
    // Every character was made from one byte.
    head.chars().filter_map(|c| u8::try_from(c).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded(head: &str) -> (String, u16, String) {
        let request = parse(head.as_bytes()).unwrap();
        let Kind::Forward { head, .. } = request.kind else { panic!("{head:?} asks for a tunnel") };
        (request.host, request.port, String::from_utf8(head).unwrap())
    }

    #[test]
    fn a_plain_request_is_written_anew_for_the_server() {
        let (host, port, head) = forwarded(
            "POST HTTP://Example.test:8080/a?b=//c HTTP/1.1\r\nHost: other.test\r\nHost: third.test\r\nAccept: */*\r\n\
             Connection: keep-alive, X-Secret, content-length\r\nX-Secret: 1\r\nProxy-Authorization: Basic x\r\n\
             Proxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nTE: trailers\r\nUpgrade: h2c\r\nContent-Length: 3\r\nX:\t y ",
        );
        assert_eq!((host.as_str(), port), ("Example.test", 8080));
        assert_eq!(
            head,
            "POST /a?b=//c HTTP/1.1\r\nHost: Example.test:8080\r\nAccept: */*\r\nX: y\r\nContent-Length: 3\r\n\
             Connection: close\r\n\r\n"
        );
    }

    #[test]
    fn targets_become_what_a_server_wants() {
        let table = [
            ("GET http://h HTTP/1.1", "h", 80, "GET / HTTP/1.1\r\nHost: h\r\n"),
            ("GET http://h?q HTTP/1.0", "h", 80, "GET /?q HTTP/1.0\r\nHost: h\r\n"),
            ("GET http://h/@x:y HTTP/1.1", "h", 80, "GET /@x:y HTTP/1.1\r\nHost: h\r\n"),
            ("OPTIONS http://h:1 HTTP/1.1", "h", 1, "OPTIONS * HTTP/1.1\r\nHost: h:1\r\n"),
            ("GET http://[::1]/ HTTP/1.1", "[::1]", 80, "GET / HTTP/1.1\r\nHost: [::1]\r\n"),
            ("GET http://[::1]:81/ HTTP/1.1", "[::1]", 81, "GET / HTTP/1.1\r\nHost: [::1]:81\r\n"),
        ];
        for (line, host, port, start) in table {
            let (h, p, head) = forwarded(line);
            assert_eq!((h.as_str(), p), (host, port), "{line}");
            assert_eq!(head, format!("{start}Connection: close\r\n\r\n"), "{line}");
        }
    }

    #[test]
    fn a_tunnel_wants_a_host_and_a_port() {
        let request = parse(b"CONNECT [2606:2800::1]:443 HTTP/1.1\r\nHost: x").unwrap();
        assert_eq!((request.host.as_str(), request.port), ("[2606:2800::1]", 443));
        assert!(matches!(request.kind, Kind::Tunnel));
    }

    #[test]
    fn bytes_above_ascii_pass_through_a_header_unchanged() {
        let request = parse(b"GET http://h/ HTTP/1.1\r\nX: \xe9\xff").unwrap();
        let Kind::Forward { head, .. } = request.kind else { panic!("a GET asks for a tunnel") };
        assert!(head.windows(7).any(|w| w == b"X: \xe9\xff\r\n"));
    }

    #[test]
    fn what_two_readers_could_understand_differently_is_refused() {
        let start = "POST http://h/ HTTP/1.1\r\n";
        let headers = [
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Content-Length: 3\r\nContent-Length: 3",
            "Content-Length: 3\r\ncontent-length: 4",
            "Content-Length: 3, 3",
            "Content-Length: +3",
            "Content-Length: -3",
            "Content-Length: 0x3",
            "Content-Length:",
            "Content-Length: 99999999999999999999",
            "Content-Length : 3",
            "Content-Length\t: 3",
            " Content-Length: 3",
            "A: b\r\n Content-Length: 3",
            "A: b\r\n\tc",
            "A: b\nContent-Length: 3",
            "A: b\rContent-Length: 3",
            "A: b\r",
            "A: b\n",
            "A: b\0c",
            "A: b\x0bc",
            "A\0: b",
            ": b",
            "no colon",
            "A\u{e9}: b",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: chunked, identity",
            "Transfer-Encoding: identity",
            "Transfer-Encoding: xchunked",
            "Transfer-Encoding: \"chunked\"",
            "Transfer-Encoding: \x0bchunked",
            "Transfer-Encoding:",
        ];
        for bad in headers {
            assert!(parse(format!("{start}{bad}").as_bytes()).is_err(), "{bad:?}");
        }
        let lines = [
            "",
            "GET",
            "GET http://h/",
            "GET  http://h/ HTTP/1.1",
            "GET http://h/ HTTP/1.1 ",
            " GET http://h/ HTTP/1.1",
            "GET\thttp://h/\tHTTP/1.1",
            "GET http://h/ http/1.1",
            "GET http://h/ HTTP/2.0",
            "GET http://h/ HTTP/0.9",
            "G(T http://h/ HTTP/1.1",
            "GET / HTTP/1.1",
            "GET //h/ HTTP/1.1",
            "GET h:80 HTTP/1.1",
            "GET https://h/ HTTP/1.1",
            "GET ftp://h/ HTTP/1.1",
            "GET file:///etc/passwd HTTP/1.1",
            "GET gopher://h/ HTTP/1.1",
            "GET http:// HTTP/1.1",
            "GET http:///x HTTP/1.1",
            "GET http://:80/ HTTP/1.1",
            "GET http://h:/ HTTP/1.1",
            "GET http://h:+80/ HTTP/1.1",
            "GET http://h:99999/ HTTP/1.1",
            "GET http://h:80:80/ HTTP/1.1",
            "GET http://u@h/ HTTP/1.1",
            "GET http://u:p@h/ HTTP/1.1",
            "GET http://good.test:80@h/ HTTP/1.1",
            "GET http://h\\@good.test/ HTTP/1.1",
            "GET http://h/#f HTTP/1.1",
            "GET http://h#@good.test/ HTTP/1.1",
            "GET http://%68/ HTTP/1.1",
            "GET http://[::1/ HTTP/1.1",
            "GET http://[::1]x/ HTTP/1.1",
            "GET http://[fe80::1%25eth0]/ HTTP/1.1",
            "GET http://h/\u{e9} HTTP/1.1",
            "CONNECT h HTTP/1.1",
            "CONNECT h: HTTP/1.1",
            "CONNECT :443 HTTP/1.1",
            "CONNECT http://h:443 HTTP/1.1",
            "CONNECT u@h:443 HTTP/1.1",
            "CONNECT h:443/x HTTP/1.1",
            "CONNECT h:443:443 HTTP/1.1",
            "CONNECT ::1:443 HTTP/1.1",
            "CONNECT h:443 HTTP/1.1\r\nContent-Length: 3",
            "CONNECT h:443 HTTP/1.1\r\nTransfer-Encoding: chunked",
            "POST http://h/ HTTP/1.0\r\nTransfer-Encoding: chunked",
        ];
        for bad in lines {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
