//! Whether the store of docs/examples/sqlite.rs is one, and whether its program continues its conversation.

#[allow(dead_code)]
#[path = "../../docs/examples/sqlite.rs"]
mod example;
#[path = "../support/store_check.rs"]
mod store_check;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use example::Sqlite;
use serde_json::json;

/// Returns a new folder in the target folder.
fn new_folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder).unwrap();
    }
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// Serves a model that counts the user's messages, and returns its address.
fn serve_model() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request, mut part) = (stream.unwrap(), String::new(), [0; 8192]);
            // The body ends with the object that begins it.
            while !request.contains("\r\n\r\n{") || !request.ends_with('}') {
                let read = stream.read(&mut part).unwrap();
                assert!(read > 0, "cut: {request}");
                request += &String::from_utf8_lossy(&part[..read]);
            }
            let count = request.matches(r#""role":"user""#).count();
            let message = json!({"role": "assistant", "content": format!("{count} things.")});
            let body = json!({"choices": [{"message": message, "finish_reason": "stop"}]});
            let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close";
            let body = body.to_string();
            let length = body.len();
            write!(stream, "{head}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        }
    });
    address
}

#[test]
fn sqlite_is_a_store() {
    let folder = new_folder("store");
    // Each is opened as by another process.
    store_check::check_store(|| Arc::new(Sqlite::open(&folder).unwrap()));
}

#[test]
fn sqlite_program_continues_its_conversation() {
    let (folder, model) = (new_folder("program"), serve_model());
    for answer in ["1 things.\n", "2 things.\n"] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_sqlite"));
        let program = program.current_dir(&folder).env("MODEL_API", &model);
        let output = program.output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            answer,
            "{output:?}"
        );
    }
    assert!(folder.join("conversations/conversations.db").is_file());
}
