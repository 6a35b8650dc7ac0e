//! Requests that two readers could interpret differently, from public lists: CL.TE, TE.CL and TE.TE, folded lines, lone line
//! feeds, bytes that some readers skip, lengths in every spelling, chunks with extensions, and a second request after the
//! first. Each has a valid token and question, so a reader that accepts one asks the model.

use serde_json::json;

use super::door::TOKEN;
use super::rng::Rng;

/// Lines with a transfer encoding. Each makes the request invalid, independent of its length.
const ENCODINGS: [&str; 32] = [
    "Transfer-Encoding: chunked",
    "transfer-encoding: CHUNKED",
    "Transfer-Encoding : chunked",
    "Transfer-Encoding\t: chunked",
    " Transfer-Encoding: chunked",
    "\tTransfer-Encoding: chunked",
    "Transfer-Encoding:\u{b}chunked",
    "Transfer-Encoding:\u{c}chunked",
    "Transfer-Encoding: \0chunked",
    "Transfer-Encoding: chunked\0",
    "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunkedx",
    "Transfer-Encoding: chunked, identity",
    "Transfer-Encoding: identity, chunked",
    "Transfer-Encoding: gzip, chunked",
    "Transfer-Encoding: chunked, chunked",
    "Transfer-Encoding: ,chunked",
    "Transfer-Encoding: chunked;q=1",
    "Transfer-Encoding: \"chunked\"",
    "Transfer-Encoding: 'chunked'",
    "Transfer-Encoding: identity",
    "Transfer-Encoding:",
    "Transfer-Encoding: cow\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: cow",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
    "Transfer-Encoding:\r\n chunked",
    "Transfer-Encoding: chunked\r\n , identity",
    "X: y\nTransfer-Encoding: chunked",
    "X: y\rTransfer-Encoding: chunked",
    "Transfer-Encoding: chunked\n",
    "Transfer\0-Encoding: chunked",
    "Transfer-Encoding\u{a0}: chunked",
];

/// Lines with a length that is not a plain number, or with two lengths. `N` is the right one.
const LENGTHS: [&str; 30] = [
    "Content-Length: +N",
    "Content-Length: -N",
    "Content-Length: -1",
    "Content-Length: 0xN",
    "Content-Length: N.0",
    "Content-Length: Ne0",
    "Content-Length: N,N",
    "Content-Length: N, N",
    "Content-Length: N N",
    "Content-Length: N;",
    "Content-Length: \"N\"",
    "Content-Length:",
    "Content-Length: ",
    "Content-Length: N\0",
    "Content-Length: \u{b}N",
    "Content-Length: N\u{c}",
    "Content-Length : N",
    "Content-Length\t: N",
    " Content-Length: N",
    "Content-Length: 0\r\nContent-Length: N",
    "Content-Length: N\r\ncontent-length: 0",
    "Content-Length: N\r\nContent-Length: N",
    "Content-Length:\r\n N",
    "X: y\nContent-Length: N",
    "Content-Length: \u{664}",
    "Content-Length: 99999999999999999999999999",
    "Content-Length: 18446744073709551617",
    "Content-Length: 4294967297000",
    "Content-Length: 8388609",
    "Content-Length: N_0",
];

/// Invalid request lines.
const LINES: [&str; 18] = [
    "POST  /v1/chat/completions HTTP/1.1",
    "POST\t/v1/chat/completions HTTP/1.1",
    "POST /v1/chat/completions  HTTP/1.1",
    "POST /v1/chat/completions HTTP/1.1 x",
    "POST /v1/chat/completions HTTP/1.2",
    "POST /v1/chat/completions HTTP/2.0",
    "POST /v1/chat/completions HTTP/1.11",
    "POST /v1/chat/completions http/1.1",
    "POST /v1/chat/completions",
    "POST /v1/chat/completions HTTP/0.9",
    "POST http://localhost/v1/chat/completions HTTP/1.1",
    "POST /v1/chat/completions\0 HTTP/1.1",
    "PO ST /v1/chat/completions HTTP/1.1",
    "POST /v1/chat /completions HTTP/1.1",
    "\r\nPOST /v1/chat/completions HTTP/1.1",
    "\nPOST /v1/chat/completions HTTP/1.1",
    " POST /v1/chat/completions HTTP/1.1",
    "POST * HTTP/1.1",
];

/// Invalid chunks. `N` is the length in hexadecimal digits, `Q` the question.
const CHUNKS: [&str; 25] = [
    "N \r\nQ\r\n0\r\n\r\n",
    " N\r\nQ\r\n0\r\n\r\n",
    "+N\r\nQ\r\n0\r\n\r\n",
    "-N\r\nQ\r\n0\r\n\r\n",
    "0xN\r\nQ\r\n0\r\n\r\n",
    "N\nQ\n0\n\n",
    "N\r\nQ0\r\n\r\n",
    "N\r\nQ\n0\r\n\r\n",
    "N\rQ\r\n0\r\n\r\n",
    "N\u{b}\r\nQ\r\n0\r\n\r\n",
    "N\0\r\nQ\r\n0\r\n\r\n",
    "N_\r\nQ\r\n0\r\n\r\n",
    "1N\r\nQ\r\n0\r\n\r\n",
    "ffffffff\r\nQ\r\n0\r\n\r\n",
    "ffffffffffffffff\r\nQ\r\n0\r\n\r\n",
    "fffffffffffffffffff\r\nQ\r\n0\r\n\r\n",
    "\r\nQ\r\n0\r\n\r\n",
    ";x=y\r\nQ\r\n0\r\n\r\n",
    "N\r\nQ\r\n",
    "N\r\nQ\r\n0\r\n",
    "N;x\n\r\nQ\r\n0\r\n\r\n",
    "N;\n0\r\n\r\nQ\r\n0\r\n\r\n",
    "N;x=\ry\r\nQ\r\n0\r\n\r\n",
    "N\r\nQ\r\n0\r\nContent-Length: N\r\n\r\n",
    "N\r\nQ\r\n0\r\nno trailer\r\n\r\n",
];

/// Header lines that are invalid anywhere.
const HEADERS: [&str; 16] = [
    "Host: localhost\r\nHost: evil.example",
    "Host: evil.example",
    "Host: localhost\r\n evil.example",
    "X: y\r\n folded",
    "X\0: y",
    "X y: z",
    ": empty",
    "no colon",
    "X: y\nZ: w",
    "X: y\rZ: w",
    "X: \u{0}",
    "X: y\u{7f}",
    "Expect: 200-ok",
    "Expect: 100-continue, chunked",
    "Authorization: Bearer other",
    "Origin: http://evil.example",
];

/// Returns a random hostile request.
pub fn request(chance: &mut Rng) -> Vec<u8> {
    let mut pick = |list: &[&'static str]| {
        let at = chance.below(list.len() as u64);
        list[usize::try_from(at).unwrap()]
    };
    let question = json!({ "messages": [{ "role": "user", "content": "smuggled" }] }).to_string();
    let good_line = "POST /v1/chat/completions HTTP/1.1";
    let good_length = "Content-Length: N";
    let (mut line, mut headers, mut body) = (good_line, Vec::new(), "Q");
    match pick(&[
        "encoding", "both", "length", "line", "chunks", "header", "late",
    ]) {
        // Both headers are present; one is hidden from some readers.
        "encoding" => {
            headers.extend([good_length, pick(&ENCODINGS)]);
            body = pick(&["Q", "0\r\n\r\nQ", "N\r\nQ\r\n0\r\n\r\n"]);
        }
        "both" => headers.extend([pick(&ENCODINGS), pick(&LENGTHS)]),
        "length" => headers.push(pick(&LENGTHS)),
        "line" => {
            line = pick(&LINES);
            headers.push(good_length);
        }
        "chunks" => {
            headers.push("Transfer-Encoding: chunked");
            body = pick(&CHUNKS);
        }
        "header" => {
            headers.extend([good_length, pick(&HEADERS)]);
        }
        // The length is greater than the body.
        _ => {
            headers.push("Content-Length: 1N");
        }
    }
    headers.extend(["Content-Type: application/json", "Host: localhost"]);
    // A second `Authorization` or `Host` makes two.
    let token = format!("Authorization: Bearer {TOKEN}");
    headers.push(&token);
    if pick(&["first", "last"]) == "first" {
        headers.reverse();
    }
    let head = format!("{line}\r\n{}\r\n\r\n", headers.join("\r\n"));
    let in_body = if body.starts_with('Q') {
        question.len().to_string()
    } else {
        format!("{:x}", question.len())
    };
    let body = body.replace('N', &in_body).replace('Q', &question);
    let head = spelled(&head, &question);
    // A fooled reader would take this for the next request.
    let behind = match pick(&["", "", "request"]) {
        "request" => format!(
            "{good_line}\r\nHost: localhost\r\n{token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{question}",
            question.len()
        ),
        _ => String::new(),
    };
    format!("{head}{body}{behind}").into_bytes()
}

/// Replaces `N` in the values of lengths by the length of the question.
fn spelled(head: &str, question: &str) -> String {
    let length = question.len().to_string();
    let lines = head.split_inclusive('\n').map(|line| {
        let is_length = line.to_ascii_lowercase().contains("content-length") || line.trim() == "N";
        match (is_length, line.split_once(':')) {
            (true, Some((name, value))) => format!("{name}:{}", value.replace('N', &length)),
            (true, None) => line.replace('N', &length),
            (false, _) => line.to_owned(),
        }
    });
    lines.collect()
}
