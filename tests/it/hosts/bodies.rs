//! Bodies that break off, never end, or are misleading.

use std::fmt::Write as _;
use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::{answering, asked_at, delta, done, end, fault, server};
use crate::harness::{Home, Run, merged};
use crate::model::Reply;

const STREAM: &[u8] =
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

fn quick() -> Value {
    json!({ "model_list": [ { "request_timeout": 1 } ] })
}

/// Asks a server that sends this head, and then this piece as long as it is read.
fn endless(head: &'static [u8], piece: impl Fn() -> Vec<u8> + Send + Sync + 'static) -> String {
    let address = server(move |stream| {
        answering(&stream, head);
        let piece = piece();
        while (&stream).write_all(&piece).is_ok() {}
    });
    format!("http://{address}/v1")
}

#[test]
fn a_body_that_breaks_off_is_no_answer() {
    let raw = |bytes: &'static [u8]| {
        let address = server(move |stream| answering(&stream, bytes));
        asked_at(&format!("http://{address}/v1"), &json!({})).1
    };
    let run = raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{\"choices\":[{\"message\":{\"content\":\"cut\"}}");
    run.fails(5).prints("");
    let run = raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n{\"choices\":[{\"me\r\n");
    run.fails(5).prints("");
    let seen = fault(
        31,
        "a connection that closes before an answer",
        [Reply::text("lost").cut_after(0), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(seen.requests.len(), 2);
    let calls = Reply::calls([crate::model::call("a", "list_dir", &json!({ "path": "." }))])
        .saying("Let me")
        .cut_after(4);
    let seen = fault(32, "a stream cut in its calls", [calls])
        .once()
        .fails(5, "")
        .run();
    let session = seen.home.session("cli_default");
    assert_eq!(session.history().last().unwrap()["partial"], true);
    session.has_one_result_per_call();
    let block = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Once\"}}\n\n";
    let claude = json!({ "agents": { "defaults": { "max_retries": 0 } }, "model_list": [ { "model": "anthropic/claude" } ] });
    fault(
        32,
        "Anthropic's stream without message_stop",
        [Reply::events([block])],
    )
    .config(claude)
    .fails(5, "broke off")
    .run();
}

#[test]
fn silence_is_noticed_whatever_is_sent() {
    for (tries, config) in [
        (3, quick()),
        (
            1,
            merged(
                quick(),
                &json!({ "agents": { "defaults": { "max_retries": 0 } } }),
            ),
        ),
    ] {
        let held = (0..tries).map(|_| Reply::text("Once upon a time there was").held_after(3));
        let seen = fault(33, "silence in mid sentence", held)
            .config(config)
            .fails(5, "no answer for 1 s")
            .run();
        let session = seen.home.session("cli_default");
        let last = session.history().last().unwrap()["content"]
            .as_str()
            .unwrap()
            .trim_end()
            .to_owned();
        assert_eq!(
            (last.as_str(), session.turns()),
            ("Once upon a time", vec!["error"])
        );
    }
    let pings = server(|stream| {
        answering(&stream, STREAM);
        while (&stream).write_all(b": ping\n\n").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let (_, run) = asked_at(&format!("http://{pings}/v1"), &quick());
    run.fails(5).prints("").says("no answer for 1 s");
}

/// Asks once with this memory limit of a shell, in KB.
fn asked_within(limit: &'static str, base: &str) -> Run {
    let once = json!({ "agents": { "defaults": { "max_retries": 0 } } });
    let home = Home::with(&merged(crate::harness::config_for(base), &once));
    home.bantam().args(["agent", "-m", "hi"]).after(limit).run()
}

/// For 16 MB of text.
const LITTLE: &str = "ulimit -d 100000";
const LESS: &str = "ulimit -d 50000";

#[test]
fn an_endless_answer_is_given_up_before_it_fills_memory() {
    let text = |text: &str| delta(&json!({ "content": text })).into_bytes();
    let long = move || text(&"word ".repeat(4000));
    asked_within(LITTLE, &endless(STREAM, long))
        .exits(1)
        .says("larger than 16 MB");
    let short = || delta(&json!({ "content": "w" })).into_bytes().repeat(500);
    asked_within(LITTLE, &endless(STREAM, short))
        .exits(1)
        .says("larger than 16 MB");
    let line = || b"data: {\"choices\":[{\"delta\":{\"content\":\"".repeat(1000);
    asked_within(LITTLE, &endless(STREAM, line)).says("endless event");
    let error = b"HTTP/1.1 500 No\r\nConnection: close\r\n\r\n";
    asked_within(LESS, &endless(error, || b"because ".repeat(1000)))
        .exits(5)
        .says("500: because");
}

#[test]
fn odd_bytes_are_read_as_far_as_they_mean_something() {
    let split = |bytes: &[u8], at: usize| {
        let (first, second) = (bytes[..at].to_vec(), bytes[at..].to_vec());
        let address = server(move |stream: TcpStream| {
            answering(&stream, STREAM);
            stream.set_nodelay(true).ok();
            (&stream).write_all(&first).ok();
            std::thread::sleep(Duration::from_millis(50));
            (&stream).write_all(&second).ok();
        });
        asked_at(&format!("http://{address}/v1"), &json!({})).1
    };
    let euro = format!("{}{}", delta(&json!({ "content": "5 €." })), end("stop"));
    let at = euro.find('€').unwrap() + 1;
    split(euro.as_bytes(), at).answers("5 €.\n");
    let mut bad = euro.into_bytes();
    bad[at] = 0xff;
    let run: Run = split(&bad, 10);
    assert!(
        run.exits(0).stdout.starts_with("5 ") && run.stdout.contains('\u{fffd}'),
        "{:?}",
        run.stdout
    );
    let half = Reply::html(
        200,
        "{\"choices\":[{\"message\":{\"content\":\"\\ud800\"}}]}",
    );
    fault(40, "half a character in a whole answer", [half])
        .once()
        .answers("\u{fffd}")
        .run();
}

#[test]
fn strange_json_is_an_error_and_nothing_worse() {
    let deep = "[".repeat(100_000);
    fault(41, "a body nested 100,000 deep", [Reply::html(200, &deep)])
        .once()
        .fails(5, "no reply in the response")
        .run();
    let mut odd = String::from(
        "{\"choices\":[{\"message\":{\"content\":\"Hi.\",\"content\":\"Hello.\"}}],\"usage\":{",
    );
    write!(
        odd,
        "\"prompt_tokens\":{},\"completion_tokens\":1e300}}}}",
        "9".repeat(40)
    )
    .unwrap();
    fault(
        42,
        "a key twice, numbers beyond all measure",
        [Reply::html(200, &odd)],
    )
    .answers("Hello.")
    .run();
}
