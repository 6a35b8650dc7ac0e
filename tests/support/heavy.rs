//! Sites with small pages that take gigabytes or minutes to parse.

use std::io::{Read, Write};

use super::sites::serve;

/// Starts a server that answers always with these bytes, and ends with the test process.
pub fn raw(answer: Vec<u8>) -> String {
    let address = serve(move |mut stream| {
        let read = stream.read(&mut [0; 4096]);
        // The client may hang up early.
        drop(read.and_then(|_| stream.write_all(&answer)));
    });
    format!("http://{address}/")
}

/// Returns pages of some kilobytes that take gigabytes or minutes to parse.
pub fn heavy_pages() -> Vec<(&'static str, &'static str, String)> {
    let html = "text/html";
    let spans = "<tr>".to_owned() + &"<td colspan=20 rowspan=1000>x".repeat(1_000);
    let base = format!("<base href='https://a.example/{}'>", "x".repeat(60_000));
    let cells = "<tr><td>y".repeat(50_000);
    vec![
        ("titles", html, "<title>".repeat(300_000)),
        ("brackets", html, "<".repeat(4_000_000)),
        ("links", html, "[".repeat(2_000_000)),
        ("spans", html, format!("<table>{spans}{cells}")),
        ("base", html, base + &"<a href=b>c</a>".repeat(50_000)),
        (
            "lists",
            html,
            "<ul><li>".repeat(100) + &"a<br>".repeat(800_000),
        ),
        ("tables", html, "<table><tr><td>".repeat(100_000)),
        (
            "attributes",
            html,
            (0..500_000)
                .map(|n| format!("<p a{n}="))
                .collect::<Vec<_>>()
                .concat(),
        ),
        (
            "json",
            "application/json",
            format!(
                "{}{}1{}",
                "[".repeat(120),
                "1,".repeat(2_000_000),
                "]".repeat(120)
            ),
        ),
    ]
}

/// Starts a site with compressed pages.
pub fn packed(kind: &str, page: &str) -> String {
    let deflated = miniz_oxide::deflate::compress_to_vec(page.as_bytes(), 1);
    // Readers ignore the checksum and the length at the end.
    let body = [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], &deflated, &[0; 8]].concat();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    raw([head.as_bytes(), &body].concat())
}
