//! The tests that every store must pass.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bantam::{Durability, Guard, Line, Store};
use serde_json::json;

/// Keys of the kinds that channels and users choose.
const KEYS: [&str; 3] = ["check_default", "check_日本 +1", "check_a%2Eb"];

fn line(text: &str) -> Line {
    json!({"text": text}).as_object().cloned().unwrap()
}

fn texts(store: &dyn Store, key: &str) -> Vec<String> {
    let lines = store.read(key).unwrap().into_iter();
    lines
        .map(|line| line["text"].as_str().unwrap().to_owned())
        .collect()
}

fn write(store: &dyn Store, key: &str, from: usize, written: &[&str]) {
    let lines: Vec<Line> = written.iter().map(|text| line(text)).collect();
    store.write(key, from, &lines, Durability::Now).unwrap();
}

fn lock(store: &dyn Store, key: &str) -> Guard {
    loop {
        if let Some(guard) = store.lock(key).unwrap() {
            return guard;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// `open` opens the same store each time, as another part of the program or another process would.
pub fn check_store(open: impl Fn() -> Arc<dyn Store> + Sync) {
    for key in KEYS {
        keeps_lines(&open, key);
    }
    locks(&open);
    takes_turns(&open);
}

fn keeps_lines(open: &impl Fn() -> Arc<dyn Store>, key: &str) {
    let store = open();
    let is_listed = || open().list().unwrap().iter().any(|listed| listed == key);
    assert!(
        texts(&*store, key).is_empty() && !is_listed(),
        "{key} is new"
    );
    let guard = lock(&*store, key);
    write(&*store, key, 0, &["Is 🐓 a bird?\n\0", "Yes."]);
    write(&*store, key, 2, &["Thanks."]);
    for opened in [store.clone(), open()] {
        let all = ["Is 🐓 a bird?\n\0", "Yes.", "Thanks."];
        assert_eq!(texts(&*opened, key), all, "appended");
    }
    assert!(is_listed(), "{key}");
    write(&*store, key, 1, &["No.", "Really?"]);
    assert_eq!(
        texts(&*open(), key),
        ["Is 🐓 a bird?\n\0", "No.", "Really?"],
        "{key}: the lines from 1 on are dropped"
    );
    write(&*store, key, 0, &["anew"]);
    write(&*store, key, 1, &["and on"]);
    drop(guard);
    let guard = lock(&*store, key);
    assert_eq!(texts(&*store, key), ["anew", "and on"], "{key}: replaced");
    store.write(key, 0, &[], Durability::Now).unwrap();
    drop(guard);
    assert!(texts(&*open(), key).is_empty(), "{key} is erased");
}

fn locks(open: &impl Fn() -> Arc<dyn Store>) {
    let (first, second) = (open(), open());
    let held = first.lock("check_lock").unwrap();
    assert!(held.is_some(), "it is free");
    assert!(second.lock("check_lock").unwrap().is_none(), "it is not");
    assert!(second.lock("check_other").unwrap().is_some(), "another is");
    assert!(
        texts(&*second, "check_lock").is_empty(),
        "reading needs none"
    );
    drop(held);
    assert!(second.lock("check_lock").unwrap().is_some(), "free again");
}

fn takes_turns(open: &(impl Fn() -> Arc<dyn Store> + Sync)) {
    let key = "check_turns";
    let turn = |who: usize| {
        let store = open();
        for n in 0..5 {
            let _guard = lock(&*store, key);
            for _ in 0..2 {
                let next = texts(&*store, key).len();
                write(&*store, key, next, &[&format!("{who} {n}")]);
                thread::yield_now();
            }
        }
    };
    thread::scope(|scope| {
        for who in 0..4 {
            scope.spawn(move || turn(who));
        }
    });
    let all = texts(&*open(), key);
    assert_eq!(all.len(), 40, "nothing is lost: {all:?}");
    assert!(all.chunks(2).all(|pair| pair[0] == pair[1]), "{all:?}");
    let store = open();
    let _guard = lock(&*store, key);
    store.write(key, 0, &[], Durability::Now).unwrap();
}
