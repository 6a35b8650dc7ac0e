//! Files cut at every byte and with every bit flipped, as a crash or a bad card leaves them: what was whole is there, what
//! is not is told, and what is written next stays. `BANTAM_CUTS=all` flips every bit.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use bantam::cancel::Cancel;
use bantam::message::{Message, User};
use bantam::outbox::{Item, Outbox};
use bantam::session::{Durability, Entry, Files, Store};
use bantam::telegram::IncomingMessage;
use bantam::telegram::inbox::{self, Inbox};
use serde_json::{Value, json};

use crate::harness::{Home, merged};
use crate::model::{Model, Reply, call};
use crate::stored::Session;
use crate::syncs::counted;

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";

fn is_all() -> bool {
    std::env::var("BANTAM_CUTS").is_ok_and(|n| n == "all")
}

/// A session of real turns, with calls, an image and text that is not ASCII; and its home.
fn real() -> (Home, Vec<u8>) {
    let model = Model::scripted([
        Reply::calls([
            call("call_a", "read_file", &json!({ "path": "絵.png" })),
            call("call_b", "exec", &json!({ "command": "echo 日本語 && false" })),
        ])
        .saying("見てみます。"),
        Reply::text("これは画像です。🐔"),
        Reply::text("また明日。"),
    ]);
    let home = Home::with(&merged(model.config(), &json!({ "tools": { "exec": { "sandbox": "off" } } })));
    home.write("workspace/絵.png", PNG);
    home.agent(["-m", "この絵は何ですか"]).exits(0);
    home.agent(["-m", "ありがとう"]).exits(0);
    let bytes = fs::read(home.path("sessions/cli_default.jsonl")).unwrap();
    (home, bytes)
}

/// The store of a home that holds this session file and nothing else.
fn holding(home: &Home, bytes: &[u8]) -> Files {
    let dir = home.dir("sessions");
    for entry in fs::read_dir(&dir).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    fs::write(dir.join("cli_default.jsonl"), bytes).unwrap();
    Files::at(home.path(""))
}

#[test]
fn a_real_session_cut_at_any_byte_loads_and_keeps_what_comes_next() {
    let (home, bytes) = real();
    let whole = Session::parse(&bytes);
    let next = Message::User(User { content: "次".to_owned(), ..User::default() });
    for cut in 0..=bytes.len() {
        let store = holding(&home, &bytes[..cut]);
        let mut session = store.load("cli_default", &Cancel::new(None)).unwrap();
        let kept = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        // A file without a whole line is one that was never begun.
        let is_cut = kept > 0 && bytes[cut - 1] != b'\n';
        assert_eq!(session.damage.len(), usize::from(is_cut), "cut at {cut}: {:?}", session.damage);
        store.append(&mut session, &[Entry::Message(&next)], Durability::Now, SystemTime::now()).unwrap();
        drop(session);
        let after = home.session("cli_default");
        assert_eq!(after.lines[..kept], whole.lines[..kept], "cut at {cut}");
        assert_eq!(after.texts("user").last(), Some(&"次"), "cut at {cut}");
        after.has_one_result_per_call();
        let again = store.load("cli_default", &Cancel::new(None)).unwrap();
        let last = again.messages.last().map(|message| message.to_json()["content"].clone());
        assert_eq!((again.damage.len(), last), (0, Some(json!("次"))), "cut at {cut}");
    }
}

#[test]
fn no_flipped_bit_of_a_real_session_is_believed() {
    let (home, good) = real();
    let store = holding(&home, &good);
    let line = |message: &Message| Value::Object(message.to_json()).to_string();
    let known: HashSet<String> = store.peek("cli_default").unwrap().messages.iter().map(line).collect();
    assert!(known.len() >= 7);
    // Not a multiple of eight, so that each bit of a byte has its turn.
    for bit in (0..good.len() * 8).step_by(if is_all() { 1 } else { 13 }) {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(home.path("sessions/cli_default.jsonl"), &bytes).unwrap();
        let found = store.peek("cli_default").unwrap();
        assert!(!found.damage.is_empty(), "bit {bit} went unnoticed");
        let strange = found.messages.iter().map(line).find(|line| !known.contains(line));
        // The results of calls that were lost with them are made up, and say so.
        assert!(strange.is_none_or(|line| line.contains("interrupted, outcome unknown")), "bit {bit} was believed");
    }
    // And the commands tell.
    for part in 1..4 {
        let mut bytes = good.clone();
        bytes[good.len() * part / 4] ^= 4;
        holding(&home, &bytes);
        let show = home.bantam().args(["sessions", "show", "default"]).run();
        show.exits(0).says("the line is damaged");
        let doctor = home.bantam().arg("doctor").run();
        assert_eq!(doctor.code, Some(1), "{}", doctor.stdout);
        assert!(format!("{}{}", doctor.stdout, doctor.stderr).contains("the line is damaged"), "{}", doctor.stdout);
    }
}

/// What is below a directory, by name.
type Image = BTreeMap<String, Vec<u8>>;

fn taken(dir: &Path) -> Image {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())).collect()
}

fn put(dir: &Path, files: &Image) {
    for name in taken(dir).into_keys() {
        fs::remove_file(dir.join(name)).unwrap();
    }
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// Every state of a directory between two calls of a renewal of `name`, whose files were `before` and are `after`.
fn renewed(name: &str, before: &Image, after: &Image) -> Vec<Image> {
    let (old, new) = (&before[name], &after[name]);
    let [successor, aside] = [format!("{name}.new"), name.replace(".jsonl", ".1.jsonl")];
    let mut states = Vec::new();
    for cut in (0..=new.len()).step_by(new.len().div_ceil(10)).chain([new.len()]) {
        states.push([(name.to_owned(), old.clone()), (successor.clone(), new[..cut].to_vec())].into());
    }
    states.push([(aside.clone(), old.clone()), (successor, new.clone())].into());
    states.push([(aside, old.clone()), (name.to_owned(), new.clone())].into());
    states
}

#[test]
fn an_outbox_cut_at_any_byte_or_step_keeps_what_was_posted() {
    let home = Home::empty();
    let outbox = Outbox::new(bantam::paths::Home::new(home.path("")));
    let item = |text: String| Item { to: "telegram:1".into(), text, ..Item::default() };
    let ids: Vec<String> = (0..3).map(|n| outbox.post(&item(format!("{n} 日本"))).unwrap()).collect();
    outbox.progress(&ids[0], 1).unwrap();
    outbox.done(&ids[1]).unwrap();
    let state = home.path("state");
    let whole = taken(&state);
    let bytes = &whole["outbox.jsonl"];
    let texts = || -> Vec<String> { outbox.pending().unwrap().into_iter().map(|pending| pending.item.text).collect() };
    for cut in 0..=bytes.len() {
        put(&state, &[("outbox.jsonl".to_owned(), bytes[..cut].to_vec())].into());
        let lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        // A header, three that were posted, one said in part, one over.
        let mut left: Vec<String> = (0..lines.saturating_sub(1).min(3)).map(|n| format!("{n} 日本")).collect();
        if lines == 6 {
            left.remove(1);
        }
        assert_eq!(texts(), left, "cut at {cut}");
        outbox.post(&item("next".to_owned())).unwrap();
        left.push("next".to_owned());
        assert_eq!(texts(), left, "cut at {cut}");
    }

    // A renewal, which leaves what is over behind.
    put(&state, &whole);
    let long = outbox.post(&item("x".repeat(300 << 10))).unwrap();
    let before = taken(&state);
    outbox.done(&long).unwrap();
    let after = taken(&state);
    assert_eq!(after.len(), before.len());
    assert!(after["outbox.jsonl"].len() < 2000);
    let kept = texts();
    assert_eq!(kept, ["0 日本", "2 日本"]);
    for image in renewed("outbox.jsonl", &before, &after) {
        put(&state, &image);
        let (now, names) = (texts(), image.keys().cloned().collect::<Vec<_>>());
        assert!(kept.iter().all(|text| now.contains(text)), "{names:?}");
        let long = outbox.post(&item("y".repeat(300 << 10))).unwrap();
        outbox.done(&long).unwrap();
        let now = texts();
        assert!(kept.iter().all(|text| now.contains(text)), "{names:?}");
        assert_eq!(taken(&state).len(), 1, "what a crash left is gone with the next renewal: {names:?}");
    }
}

#[test]
fn an_inbox_cut_at_any_byte_or_step_keeps_what_was_confirmed() {
    let home = Home::empty();
    let state = home.dir("state");
    let open = || Inbox::open(&state, 7).unwrap();
    let said = |message: i64, text: &str| IncomingMessage {
        chat: "1".into(),
        id: message,
        text: text.into(),
        ..IncomingMessage::default()
    };
    let texts = |inbox: &Inbox| -> Vec<String> { inbox.all().into_iter().map(|open| open.message.text).collect() };
    let (mut inbox, _) = open();
    // What is confirmed to the server by the next poll is on the disk by then.
    let kept = |inbox: &mut Inbox, update: u64, text: &str| {
        let ((), count) = counted(|| inbox.keep(&[(update, said(1, text))], &[], &[]).unwrap());
        assert!(count >= 1, "{update}");
    };
    kept(&mut inbox, 10, "一");
    kept(&mut inbox, 11, "二");
    let ((), count) = counted(|| inbox.keep(&[], &[], &[(12, said(1, "一つ"))]).unwrap());
    assert_eq!((texts(&inbox)[0].as_str(), count), ("一つ", 1), "an edit is what a user wrote");
    inbox.start(&[inbox::id(10)]).unwrap();
    inbox.close(&[inbox::id(11)]).unwrap();
    drop(inbox);
    let whole = taken(&state);
    let bytes = &whole["telegram-7.jsonl"];
    for cut in 0..=bytes.len() {
        put(&state, &[("telegram-7.jsonl".to_owned(), bytes[..cut].to_vec())].into());
        let lines = bytes[..cut].iter().filter(|byte| **byte == b'\n').count();
        let mut left: Vec<&str> = match lines {
            0 | 1 => vec![],
            2 => vec!["一"],
            3 => vec!["一", "二"],
            4 | 5 => vec!["一つ", "二"],
            _ => vec!["一つ"],
        };
        let (mut inbox, damage) = open();
        assert_eq!(texts(&inbox), left, "cut at {cut}");
        assert_eq!(damage.len(), usize::from(lines > 0 && bytes[cut - 1] != b'\n'), "cut at {cut}");
        kept(&mut inbox, 20, "next");
        left.push("next");
        assert_eq!(texts(&open().0), left, "cut at {cut}");
    }

    // A renewal, which leaves what is closed behind.
    put(&state, &whole);
    let (mut inbox, _) = open();
    kept(&mut inbox, 30, &"x".repeat(11 << 17));
    let before = taken(&state);
    inbox.close(&[inbox::id(30)]).unwrap();
    let after = taken(&state);
    assert!(after.len() == 1 && after["telegram-7.jsonl"].len() < 2000);
    for image in renewed("telegram-7.jsonl", &before, &after) {
        put(&state, &image);
        let names: Vec<&String> = image.keys().collect();
        let (mut inbox, _) = open();
        assert!(texts(&inbox).contains(&"一つ".to_owned()), "{names:?}");
        assert!((10..=12).chain([30]).all(|update| inbox.has_seen(update)), "{names:?}");
        kept(&mut inbox, 40, &"y".repeat(11 << 17));
        inbox.close(&[inbox::id(40)]).unwrap();
        assert!(texts(&open().0).contains(&"一つ".to_owned()), "{names:?}");
        assert_eq!(taken(&state).len(), 1, "what a crash left is gone with the next renewal: {names:?}");
    }
}
