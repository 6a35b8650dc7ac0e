//! Fuzzing: whatever bytes a host sends, reading its reply and checking its calls ends, and does not panic.
//!
//! Runs for two seconds, or for as many as `BANTAM_FUZZ_SECONDS` says. `BANTAM_FUZZ_SEED` makes it a run of before.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::json;

use super::factory::AgentFactory;
use super::tools::of_home;
use super::*;
use crate::cancel::Cancel;
use crate::provider::ToolOffer;
use crate::provider::anthropic::ANTHROPIC;
use crate::provider::openai::OPENAI;
use crate::provider::reply::ReplyBuilder;
use crate::rng::Rng;
use crate::sse;
use crate::tool::{Registry, ToolSpec};

/// Replies as hosts send them, to begin with, and calls as models write them into their text.
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

fn below(chance: &mut Rng, limit: usize) -> usize {
    usize::try_from(chance.below(limit.max(1) as u64)).unwrap()
}

/// Changes bytes here and there: what breaks JSON, and what keeps it whole.
fn mutated(chance: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    const PIECES: [&[u8]; 16] = [
        b"null",
        b"[]",
        b"{}",
        b"\"\"",
        b"-1",
        b"1e999",
        b"\\ud800",
        b"\n\n",
        b"\r",
        b"data: ",
        b"<think>",
        b"</think>",
        b"<tool_call>",
        b"99999999999999999999",
        b"\"index\":18446744073709551615,",
        b"\xff\x00",
    ];
    let mut bytes = corpus[below(chance, corpus.len())].clone();
    for _ in 0..=below(chance, 6) {
        let (at, more) = (below(chance, bytes.len()), below(chance, 40));
        let end = (at + more).min(bytes.len());
        match below(chance, 6) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes
                .get_mut(at)
                .into_iter()
                .for_each(|byte| *byte ^= 1 << (more % 8)),
            2 => drop(bytes.splice(at..end, PIECES[below(chance, PIECES.len())].iter().copied())),
            3 => bytes.extend_from_within(at..end),
            4 => bytes.truncate(at),
            _ => {
                let other = &corpus[below(chance, corpus.len())];
                let from = below(chance, other.len());
                drop(bytes.splice(at..at, other[from..].iter().copied()));
            }
        }
    }
    bytes
}

#[test]
fn no_bytes_of_a_host_make_reading_them_panic() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let time = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let seed = number("BANTAM_FUZZ_SEED").unwrap_or(time) | 1;
    println!("BANTAM_FUZZ_SEED={seed}");
    let until = Instant::now() + Duration::from_secs(number("BANTAM_FUZZ_SECONDS").unwrap_or(2));
    let (mut chance, corpus) = (Rng(seed), corpus());
    let home = Home::new(std::env::temp_dir());
    let config = Config::load(Some(("c", "{}")), &Env::new(), Vec::new())
        .unwrap()
        .config;
    let parts = Parts {
        home: &home,
        config: &config,
        env: &Env::new(),
    };
    let hands = Arc::new(hands(parts).unwrap());
    let (tools, _) = tools::configured(&hands, parts, &Servers::default());
    let tools = Registry::new(tools, Redactor::default()).unwrap();
    let offer = |spec: &ToolSpec| ToolOffer {
        name: spec.name.clone(),
        description: "".into(),
        schema: "{}".into(),
    };
    let offers: Vec<ToolOffer> = tools.specs().map(offer).collect();
    let mut runs = 0_u64;
    while runs < 100 || Instant::now() < until {
        let bytes = mutated(&mut chance, &corpus);
        for dialect in [&OPENAI, &ANTHROPIC] {
            let [mut whole, mut streamed] =
                [0, 1].map(|_| ReplyBuilder::new(dialect.reading, &offers));
            drop(whole.event(&String::from_utf8_lossy(&bytes)));
            let mut events = sse::Decoder::default();
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((1 + below(&mut chance, 200)).min(rest.len()));
                rest = after;
                for event in events.push(piece).unwrap() {
                    drop(streamed.event(&event));
                }
            }
            events
                .finish()
                .into_iter()
                .for_each(|event| drop(streamed.event(&event)));
            for (reply, _) in [whole.finish(), streamed.finish()] {
                for mut call in reply.calls {
                    assert!(!call.name.trim().is_empty());
                    call.name = tools.meant(&call.name);
                    let prepared = tools.prepare(&call);
                    let told = (prepared.summary(), prepared.identity(), prepared.risk());
                    assert!(told.0.len() < 1000);
                }
            }
        }
        runs += 1;
    }
    println!("{runs} runs");
}

#[test]
fn an_agent_from_a_home_has_its_model_its_memory_and_no_tools() {
    let dir = std::env::temp_dir().join(format!("bantam-home-{}", std::process::id()));
    let (home, env) = (Home::new(dir.clone()), Env::new());
    fs_err::create_dir_all(home.workspace()).unwrap();
    fs_err::write(
        home.config(),
        r#"{"agents":{"defaults":{"model_name":"demo/demo"}}}"#,
    )
    .unwrap();
    fs_err::write(home.workspace().join("USER.md"), "likes tea").unwrap();
    let agent = of_home(&home, &env).unwrap().build().unwrap();
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
    fs_err::remove_dir_all(dir).unwrap();
}

#[test]
fn every_built_in_schema_names_what_it_requires() {
    let home = Home::new(std::env::temp_dir());
    let settings = r#"{"channels": {"telegram": {"token": "1:a"}}}"#;
    let loaded = Config::load(Some(("c", settings)), &Env::new(), Vec::new()).unwrap();
    let parts = Parts {
        home: &home,
        config: &loaded.config,
        env: &Env::new(),
    };
    let hands = Arc::new(hands(parts).unwrap());
    let (tools, notices) = tools::configured(&hands, parts, &Servers::default());
    assert!(tools.len() == 17 && notices.is_empty(), "{notices:?}");
    for tool in tools {
        let schema: serde_json::Value = serde_json::from_str(&tool.spec().schema).unwrap();
        for name in schema["required"].as_array().unwrap() {
            assert!(schema["properties"][name.as_str().unwrap()].is_object());
        }
    }
}

#[test]
fn no_call_enters_a_jail_that_would_show_the_home() {
    let home = Home::new("/usr/lib/bantam-home".into());
    let env = Env::new();
    let factory = AgentFactory::new(&home, &env).unwrap();
    let config = factory.load(None).unwrap().config;
    let parts = Parts {
        home: &home,
        config: &config,
        env: &env,
    };
    let hands = hands(parts).unwrap();
    let job = crate::wire::Job::Layers;
    let refused = hands.call(&job, &Cancel::new(None)).unwrap_err();
    assert!(refused.message.contains("in /usr, which commands can read"));
}
