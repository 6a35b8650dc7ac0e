//! Files cut at every byte and with every bit flipped, as by a crash or a bad card: intact lines are loaded, damage is
//! reported, and later lines are stored. `BANTAM_CUTS=all` flips every bit.

use std::collections::HashSet;
use std::fs;

use bantam::FileStore;
use bantam::{Agent, Demo, Message, Request};
use serde_json::{Value, json};

use crate::harness::{Home, has_all, merged};
use crate::model::{Model, Reply, call};
use crate::stored::Session;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01";

fn is_all() -> bool {
    std::env::var("BANTAM_CUTS").is_ok_and(|n| n == "all")
}

/// Returns a session of real turns, with calls, an image and non-ASCII text, and its home.
fn real() -> (Home, Vec<u8>) {
    let model = Model::scripted([
        Reply::calls([
            call("call_a", "read_file", &json!({ "path": "絵.png" })),
            call(
                "call_b",
                "exec",
                &json!({ "command": "echo 日本語 && false" }),
            ),
        ])
        .saying("見てみます。"),
        Reply::text("これは画像です。🐔"),
        Reply::text("また明日。"),
    ]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "tools": { "exec": { "sandbox": "off" } } }),
    ));
    home.write("workspace/絵.png", PNG);
    home.agent(["-m", "この絵は何ですか"]).exits(0);
    home.agent(["-m", "ありがとう"]).exits(0);
    let bytes = fs::read(home.path("sessions/cli_default.jsonl")).unwrap();
    (home, bytes)
}

/// Returns an agent in a home with only this session file.
fn holding(home: &Home, bytes: &[u8]) -> Agent {
    let dir = home.dir("sessions");
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        // The image is next to the log.
        if path.extension().is_none_or(|end| end != "media") {
            fs::remove_file(path).unwrap();
        }
    }
    fs::write(dir.join("cli_default.jsonl"), bytes).unwrap();
    let agent = Agent::builder().provider(Demo);
    agent.store(FileStore::at(home.path(""))).build().unwrap()
}

#[test]
fn real_session_cut_anywhere_loads_and_appends() {
    let (home, bytes) = real();
    let whole = Session::parse(&bytes);
    // Around each end of a line, and elsewhere at every ninth byte.
    let is_tried = |cut: &usize| {
        let near = cut.saturating_sub(2)..bytes.len().min(cut + 2);
        is_all() || cut % 9 == 0 || bytes[near].contains(&b'\n')
    };
    for cut in (0..=bytes.len()).filter(is_tried) {
        let agent = holding(&home, &bytes[..cut]);
        let session = agent.session("cli_default").unwrap();
        let kept = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        let is_cut = cut > 0 && bytes[cut - 1] != b'\n';
        assert_eq!(
            session.damage.len(),
            usize::from(is_cut),
            "cut at {cut}: {:?}",
            session.damage
        );
        let response = agent.run(&Request::new("次", "cli_default"), &|_| ());
        assert_eq!(response.error, None, "cut at {cut}");
        let after = home.session("cli_default");
        assert_eq!(after.lines[..kept], whole.lines[..kept], "cut at {cut}");
        assert_eq!(after.texts("user").last(), Some(&"次"), "cut at {cut}");
        after.has_one_result_per_call();
        let again = agent.session("cli_default").unwrap();
        assert!(again.damage.is_empty(), "cut at {cut}");
    }
}

#[test]
fn no_flipped_bit_of_a_real_session_is_believed() {
    let (home, good) = real();
    let agent = holding(&home, &good);
    let line = |message: &Message| Value::Object(message.to_json()).to_string();
    let known: HashSet<String> = agent
        .session("cli_default")
        .unwrap()
        .messages
        .iter()
        .map(line)
        .collect();
    assert!(known.len() >= 7);
    // Not a multiple of eight, so that each bit of a byte is flipped in turn.
    for bit in (0..good.len() * 8).step_by(if is_all() { 1 } else { 13 }) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(home.path("sessions/cli_default.jsonl"), &bytes).unwrap();
        let found = agent.session("cli_default").unwrap();
        assert!(!found.damage.is_empty(), "bit {bit} went unnoticed");
        let strange = found
            .messages
            .iter()
            .map(line)
            .find(|line| !known.contains(line));
        // Lost results of calls and lost ends of questions are replaced by these texts.
        let made_up = ["interrupted, outcome unknown", " before an answer]"];
        let is_made_up = |line: String| made_up.iter().any(|text| line.contains(text));
        assert!(strange.is_none_or(is_made_up), "bit {bit} was believed");
    }
    // The commands also report the damage.
    for part in 1..4 {
        let mut bytes = good.clone();
        bytes[good.len() * part / 4] ^= 4;
        holding(&home, &bytes);
        let show = home.run(["sessions", "show", "default"]);
        show.exits(0).says("the line is damaged");
        let doctor = home.run(["doctor"]);
        assert_eq!(doctor.code, Some(1), "{}", doctor.stdout);
        has_all(
            &format!("{}{}", doctor.stdout, doctor.stderr),
            ["the line is damaged"],
        );
    }
}
