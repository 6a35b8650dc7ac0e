//! HTTP of the scripted Bot API: parses requests with their parameters, and sends answers.
//!
//! A body may be JSON, a form, or a multipart form with files, and may be chunked. This module is independent of methods.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::net::TcpStream;

use serde_json::{Map, Value};

/// A request: the path, the parameters, the files by field name, and whether it was JSON.
pub struct Request {
    pub path: String,
    pub params: Map<String, Value>,
    pub files: BTreeMap<String, (String, Vec<u8>)>,
    pub typed: bool,
}

/// Returns the next request of a connection; `None` after the client has closed it.
pub fn read(reader: &mut impl BufRead, writer: &mut TcpStream) -> std::io::Result<Option<Request>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let target = first
        .split_whitespace()
        .nth(1)
        .unwrap_or_default()
        .to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end().split_once(':') {
            Some((name, value)) => {
                headers.insert(name.to_ascii_lowercase(), value.trim().to_owned())
            }
            None => break,
        };
    }
    if headers.contains_key("expect") {
        writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body = Vec::new();
    if let Some(length) = headers.get("content-length") {
        body.resize(length.parse().map_err(std::io::Error::other)?, 0);
        reader.read_exact(&mut body)?;
    } else if headers.contains_key("transfer-encoding") {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let length = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
            let mut chunk = vec![0; length + 2]; // with the line end behind it
            reader.read_exact(&mut chunk)?;
            if length == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..length]);
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut request = Request {
        path: path.to_owned(),
        params: form(query),
        files: BTreeMap::new(),
        typed: false,
    };
    let kind = headers.get("content-type").map_or("", String::as_str);
    if kind.starts_with("application/json") {
        request.typed = true;
        if let Ok(Value::Object(params)) = serde_json::from_slice(&body) {
            request.params.extend(params);
        }
    } else if let Some(boundary) = kind
        .strip_prefix("multipart/form-data")
        .and_then(|rest| rest.split_once("boundary="))
    {
        multipart(&body, boundary.1.trim_matches('"'), &mut request);
    } else {
        request.params.extend(form(&String::from_utf8_lossy(&body)));
    }
    Ok(Some(request))
}

/// Sends an answer; the connection remains open for the next request.
pub fn respond(
    writer: &mut TcpStream,
    status: u16,
    kind: &str,
    body: &[u8],
) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} Scripted\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    writer.write_all(&[head.as_bytes(), body].concat())
}

fn form(text: &str) -> Map<String, Value> {
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (decoded(name), decoded(value).into()))
        .collect()
}

fn decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut bytes = text.bytes();
    while let Some(b) = bytes.next() {
        out.push(match b {
            b'+' => b' ',
            b'%' => {
                let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).unwrap_or(b'?')
            }
            b => b,
        });
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Returns the position of `what`. Fast also in a debug build, because files have 50 MB.
fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        at += (&bytes[at..])
            .skip_until(what[0])
            .ok()
            .filter(|skipped| *skipped > 0)?;
        if bytes[at - 1..].starts_with(what) {
            return Some(at - 1);
        }
    }
}

fn multipart(body: &[u8], boundary: &str, request: &mut Request) {
    let mark = format!("--{boundary}").into_bytes();
    let mut left = body;
    while let Some(start) = find(left, &mark) {
        left = &left[start + mark.len()..];
        let (Some(head), Some(end)) = (find(left, b"\r\n\r\n"), find(left, &mark)) else {
            return;
        };
        if head > end {
            continue;
        }
        let content = &left[head + 4..end.saturating_sub(2).max(head + 4)];
        let head = String::from_utf8_lossy(&left[..head]);
        let quoted = |name: &str| {
            head.split_once(&format!(" {name}=\""))
                .and_then(|(_, rest)| rest.split_once('"'))
        };
        let Some((field, _)) = quoted("name") else {
            continue;
        };
        if let Some((file, _)) = quoted("filename") {
            request
                .params
                .insert(field.to_owned(), format!("attach://{file}").into());
            request
                .files
                .insert(field.to_owned(), (file.to_owned(), content.to_vec()));
        } else {
            request
                .params
                .insert(field.to_owned(), String::from_utf8_lossy(content).into());
        }
    }
}
