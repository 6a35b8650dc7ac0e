//! Behavior of the sender with servers that violate the Bot API.

use std::io::{Read, Write, copy, sink};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use super::api::Api;
use super::*;
use crate::cancel::Cancel;
use crate::http;
use crate::log::Logger;
use crate::outbox::{Item, Outbox};
use crate::secret::Secret;
use crate::test_dir::TestDir;

/// Reaction of the server to a call.
#[derive(Clone, Copy)]
enum Does {
    /// Accepts the call.
    Takes,
    /// Answers with this status and text before reading the body, and closes.
    Says(u16, &'static str),
    /// Closes without an answer before reading the body.
    Cuts,
}

/// Starts a server; returns its address, and the called methods.
fn server(does: fn(&str) -> Does) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = asked.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let seen = seen.clone();
            // The bot may disconnect at the end of the test.
            thread::spawn(move || serve(stream, does, &seen).ok());
        }
    });
    (url, asked)
}

fn serve(
    mut stream: TcpStream,
    does: fn(&str) -> Does,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let method = head
        .split(' ')
        .nth(1)
        .unwrap()
        .rsplit('/')
        .next()
        .unwrap()
        .to_owned();
    seen.lock().unwrap().push(method.clone());
    let (status, body) = match does(&method) {
        Does::Cuts => return Ok(()),
        Does::Says(status, body) => (status, body),
        Does::Takes => {
            let length = head
                .split("content-length: ")
                .nth(1)
                .and_then(|rest| rest.lines().next())
                .unwrap();
            copy(
                &mut stream.try_clone()?.take(length.parse().unwrap()),
                &mut sink(),
            )?;
            (200, r#"{"ok":true,"result":{}}"#)
        }
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} So\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    // In one write, because closing with an unread body resets the connection and drops unsent data.
    stream.write_all(answer.as_bytes())
}

fn text(to: &str) -> Item {
    Item {
        to: to.to_owned(),
        text: "an answer".to_owned(),
        ..Item::default()
    }
}

/// Posts a file with `len` bytes.
fn post_file(outbox: &Outbox, to: &str, len: usize) -> String {
    let (mut file, name) = outbox.new_file().unwrap();
    file.push(&vec![7; len]).unwrap();
    file.keep().unwrap();
    outbox
        .post(
            &Item {
                to: to.to_owned(),
                file: name,
                name: "big.bin".to_owned(),
                ..Item::default()
            },
            &[],
            None,
        )
        .unwrap()
}

/// Sends the home's outbox through this server until it is empty, for up to `time` seconds. Returns the number of remaining messages.
fn send(dir: &TestDir, url: &str, time: u64) -> usize {
    let api = Arc::new(Api::new(
        http::Settings::default(),
        url,
        &Secret::new("123:token"),
    ));
    let log: Logger = Arc::new(|_, line: &str| eprintln!("{line}"));
    let outbox = Outbox::new(dir.home());
    let is_done = || outbox.pending().unwrap().is_empty();
    let cancel = Cancel::new(Some(Duration::from_secs(time)));
    MessageSender::new(api, outbox.clone(), cancel, log, None)
        .deliver_until(&is_done)
        .unwrap();
    outbox.pending().unwrap().len()
}

#[test]
fn a_page_of_somebody_else_does_not_destroy_an_answer() {
    for does in [
        (|_: &str| Does::Says(403, "<html>Pay for this network</html>")) as fn(&str) -> Does,
        |_| Does::Says(404, "<html>Not found</html>"),
        |_| Does::Says(401, r#"{"error":"unauthorized"}"#),
    ] {
        let dir = TestDir::new();
        let outbox = Outbox::new(dir.home());
        let id = outbox.post(&text("telegram:1"), &[], None).unwrap();
        let (url, _) = server(does);
        assert_eq!(send(&dir, &url, 1), 1);
        let (url, asked) = server(|_| Does::Takes);
        assert_eq!(send(&dir, &url, 10), 0);
        assert_eq!(outbox.queue().given_up(&id).unwrap(), None);
        assert_eq!(*asked.lock().unwrap(), ["sendmessage"]);
    }
}

#[test]
fn early_upload_refusal_is_read() {
    let (url, asked) = server(|method| match method {
        "senddocument" => Does::Says(
            413,
            r#"{"ok":false,"error_code":413,"description":"Request Entity Too Large"}"#,
        ),
        _ => Does::Takes,
    });
    let dir = TestDir::new();
    let outbox = Outbox::new(dir.home());
    let id = post_file(&outbox, "telegram:1", 20 << 20);
    outbox.post(&text("telegram:1"), &[], None).unwrap();
    assert_eq!(send(&dir, &url, 20), 0);
    let why = outbox.queue().given_up(&id).unwrap().unwrap();
    assert!(why.contains("Too Large"), "{why}");
    // The next message, and a notice about the dropped one.
    assert_eq!(
        *asked.lock().unwrap(),
        ["senddocument", "sendmessage", "sendmessage"]
    );
}

#[test]
fn failing_upload_does_not_block_its_chat() {
    let (url, asked) = server(|method| {
        if method == "senddocument" {
            Does::Cuts
        } else {
            Does::Takes
        }
    });
    let dir = TestDir::new();
    let outbox = Outbox::new(dir.home());
    let id = post_file(&outbox, "telegram:1", 8 << 20);
    outbox.post(&text("telegram:1"), &[], None).unwrap();
    assert_eq!(send(&dir, &url, 30), 0);
    assert!(outbox.queue().given_up(&id).unwrap().is_some());
    let asked = asked.lock().unwrap().clone();
    assert_eq!(asked[asked.len() - 2..], ["sendmessage", "sendmessage"]);
    assert!(asked.len() > 4, "{asked:?}");
}
