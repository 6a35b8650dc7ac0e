//! Fuzz tests: reading ends without a panic for arbitrary bytes from hosts and MCP servers, in configurations, conversations
//! and the queue.

use std::path::Path;

use serde_json::json;

use super::*;
use crate::cancel::Cancel;
use crate::provider::ToolOffer;
use crate::provider::reply::{Read, ReplyBuilder};
use crate::provider::{anthropic, openai, responses};
use crate::rng::{below, fuzz};
use crate::sse;
use crate::test_dir::TestDir;
use crate::tool::ToolSpec;
use crate::worker::protocol::{FileAction, FileJob};

/// Opens a home with these settings and an empty environment.
fn app(home: PathBuf, settings: &str) -> App {
    App {
        text: Ok(Some(settings.to_owned())).into(),
        ..App::new(paths::Home::new(home), Arc::default())
    }
}

/// Initial corpus: replies of hosts, and tool calls that models wrote as text.
fn corpus() -> Vec<Vec<u8>> {
    let written = files("calls").into_iter().map(|text| {
        let text = String::from_utf8(text).unwrap();
        let message = json!({"message": {"content": text}, "finish_reason": "stop"});
        json!({"choices": [message]}).to_string().into_bytes()
    });
    files("hosts").into_iter().chain(written).collect()
}

fn files(folder: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let entries = fs_err::read_dir(dir.join(folder)).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path| fs_err::read(path).unwrap();
    paths.into_iter().map(read).collect()
}

/// Sequences that are likely to break a parser.
const PIECES: &str = "null¦[]¦{}¦\"\"¦-1¦1e999¦\\ud800¦\n\n¦\r¦data: ¦<think>¦</think>¦<tool_call>¦99999999999999999999¦\
    \"index\":18446744073709551615,¦\0";

#[test]
fn no_bytes_of_a_host_make_reading_them_panic() {
    let (tools, _) = app(std::env::temp_dir(), "{}").tools().unwrap();
    let tools = tools.for_agent(Redactor::default());
    let offer = |spec: &ToolSpec| ToolOffer {
        name: spec.name.clone(),
        description: "".into(),
        schema: "{}".into(),
    };
    let offers: Vec<ToolOffer> = tools.specs().map(offer).collect();
    fuzz(&corpus(), PIECES, |bytes, chance| {
        let readers: [Read; 3] = [openai::read, anthropic::read, responses::read];
        for read in readers {
            let [mut whole, mut streamed] = [0, 1].map(|_| ReplyBuilder::new(&offers, &|_| ()));
            drop(read(&String::from_utf8_lossy(bytes), &mut whole));
            let mut events = sse::Decoder::default();
            let mut rest = bytes;
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((1 + below(chance, 200)).min(rest.len()));
                rest = after;
                for event in events.push(piece).unwrap() {
                    drop(read(&event, &mut streamed));
                    streamed.show();
                }
            }
            events
                .finish()
                .for_each(|event| drop(read(&event, &mut streamed)));
            for reply in [whole.finish(), streamed.finish()].into_iter().flatten() {
                for mut call in reply.calls {
                    assert!(!call.name.trim().is_empty());
                    call.name = tools.resolve(&call.name);
                    let prepared = tools.prepare(&call);
                    let told = (prepared.summary(), prepared.identity(), prepared.risk());
                    assert!(told.0.len() < 1000);
                }
            }
        }
    });
}

#[test]
fn no_bytes_in_the_configuration_make_reading_it_panic() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/examples");
    let names = fs_err::read_dir(examples).unwrap();
    let files = names
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "json"));
    let mut corpus: Vec<Vec<u8>> = files.map(|path| fs_err::read(path).unwrap()).collect();
    corpus.push(
        br#"{"model_list":[{"model_name":"a","model":"vllm/a","price":{"input":0.5}}],"mcpServers":{"x":{"command":"y","env":{"A":"${B}"}}},"tools":{"confirm":["writes"],"exec":{"timeout":60}}}"#.to_vec(),
    );
    fuzz(&corpus, PIECES, |bytes, _| {
        let text = String::from_utf8_lossy(bytes);
        let Ok(loaded) = Config::load(Some(("c", &text)), &Env::new(), Vec::new()) else {
            return;
        };
        drop(loaded.config.choose_model(&Env::new()));
        drop(unconfirmed(&loaded.config));
    });
}

#[test]
fn no_message_of_a_server_makes_reading_it_panic() {
    let frames = [
        r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"hi"},{"type":"image","data":"iVBORw0KGgo="}],"isError":true}}"#,
        r#"[{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"total":2}}]"#,
        r#"{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"message":"Who?"}}"#,
        r#"{"name":"say","description":"Says.","inputSchema":{"type":"object","properties":{}},"annotations":{"readOnlyHint":true}}"#,
    ];
    let corpus = frames.map(|frame| frame.as_bytes().to_vec());
    fuzz(&corpus, PIECES, |bytes, _| {
        crate::mcp::read_frame(&String::from_utf8_lossy(bytes));
    });
}

/// Lines with valid checksums, because the author of a log may have written anything.
#[test]
fn hostile_log_lines_do_not_panic() {
    let dir = TestDir::new();
    let lines = [
        r#"{"v":1,"session":"cli_a","created":"2026-02-01T10:00:00Z","summary":"s","base":3,"state":{"model":"m","values":{"a":1}}}"#,
        r#"{"role":"user","content":"hi","time":"2026-02-01T10:00:00Z","media":[{"file":"../a","crc":1}]}"#,
        r#"{"role":"assistant","content":"a","calls":[{"id":"c","name":"exec","arguments":"{}"}],"tool_calls":[{"id":"c"}]}"#,
        r#"{"role":"tool","call_id":"c","content":"r","is_error":true}"#,
        r#"{"turn":"done"}"#,
        r#"{"undo":2}"#,
        r#"{"add":"telegram:1","kind":"k","item":{"text":"x"},"done":["a"],"starts":2,"part":1,"group":["b"]}"#,
        r#"{"start":["telegram:1"],"halt":["a"]}"#,
    ];
    let corpus = lines.map(|line| line.as_bytes().to_vec());
    let whole: Vec<crate::storage::Fields> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut number = 0_usize;
    fuzz(&corpus, PIECES, |bytes, _| {
        let Ok(spoilt) = serde_json::from_slice::<crate::storage::Fields>(bytes) else {
            return;
        };
        number += 1;
        let mut lines = whole.clone();
        let at = number % lines.len();
        lines[at] = spoilt;
        let (session, queue) = (dir.join("sessions/cli_a.jsonl"), dir.join("queue.jsonl"));
        for path in [&session, &queue] {
            drop(fs_err::remove_file(path));
            drop(crate::storage::Journal::create(path, &lines).unwrap());
        }
        let store = crate::session::FileStore::at(&*dir);
        if let Ok(found) = crate::session::Session::peek(&store, "cli_a") {
            assert!(found.messages.len() <= 100);
        }
        let queue = crate::storage::Queue::new(queue, dir.join("q.lock"), 100);
        drop(queue.select("k", &mut |_| true));
    });
}

#[test]
fn agent_from_home_has_no_tools() {
    let dir = TestDir::new();
    let home = dir.home();
    fs_err::create_dir_all(home.notes()).unwrap();
    fs_err::write(
        home.config(),
        r#"{"agents":{"defaults":{"model_name":"demo/demo"}}}"#,
    )
    .unwrap();
    fs_err::write(home.notes().join("USER.md"), "likes tea").unwrap();
    let agent = App::new(home.clone(), Arc::default())
        .prepared()
        .unwrap()
        .agent()
        .unwrap()
        .build()
        .unwrap();
    let preview = agent
        .preview(&crate::agent::Request::new("hello", "library_x"))
        .unwrap();
    assert!(
        !agent.ask("time").unwrap().is_empty() && !preview.contains("read_file"),
        "{preview}"
    );
    assert!(
        preview.contains("likes tea") && home.session("library_default").exists(),
        "{preview}"
    );
}

/// A program that answers people must not fall back to the demo because of a missing key.
#[test]
fn an_agent_from_a_home_without_a_model_is_an_error() {
    let dir = TestDir::new();
    let nobody = ("OLLAMA_HOST".to_owned(), "127.0.0.1:1".to_owned());
    let env = Arc::new(Env::from([nobody]));
    let e = App::new(dir.home(), env)
        .prepared()
        .unwrap()
        .agent()
        .err()
        .unwrap();
    assert_eq!(e.kind, crate::error::Kind::Config);
    assert!(e.message.contains("no model"), "{e}");
    assert!(e.hint.unwrap().contains("bantam onboard"));
}

#[test]
fn every_built_in_schema_names_what_it_requires() {
    let settings = r#"{"channels": {"telegram": {"token": "1:a"}}}"#;
    let (tools, notices) = app(std::env::temp_dir(), settings).tools().unwrap();
    assert!(notices.is_empty(), "{notices:?}");
    for spec in tools.specs() {
        assert!(
            super::tools::CONFIRMED.contains(&*spec.name),
            "{}",
            spec.name
        );
        let schema: serde_json::Value = serde_json::from_str(&spec.schema).unwrap();
        for name in schema["required"].as_array().into_iter().flatten() {
            assert!(schema["properties"][name.as_str().unwrap()].is_object());
        }
    }
}

#[test]
fn no_call_enters_a_sandbox_that_would_show_the_home() {
    let workers = app("/usr/lib/bantam-home".into(), "{}").workers().unwrap();
    let job = FileJob::new(".", FileAction::ListDir { depth: None });
    let refused = workers.call(job, &Cancel::new(None)).unwrap_err();
    assert!(refused.message.contains("in /usr, which commands can read"));
}
