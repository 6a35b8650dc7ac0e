//! Stores, including those of other programs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use bantam::{
    Agent, ErrorKind, Message, ModelRequest, Provider, ProviderError, Reply, Request, Result, Sink,
};
use bantam::{Durability, FileStore, Line, MemoryStore, Store};

use crate::harness::Home;
use crate::support::store_check::check_store;

#[test]
fn files_and_memory_are_stores() {
    let home = Home::empty();
    let memory = MemoryStore::default();
    check_store(|| Arc::new(memory.clone()));
    check_store(|| Arc::new(FileStore::at(home.path(""))));
    let own: Arc<dyn Store> = Arc::new(Map::default());
    check_store(|| own.clone());
}

/// A store of three functions, with the default lock.
#[derive(Default)]
struct Map(Mutex<BTreeMap<String, Vec<Line>>>);

impl Store for Map {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        let all = self.0.lock().unwrap();
        Ok(all.get(key).cloned().unwrap_or_default())
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], _: Durability) -> Result<()> {
        let mut all = self.0.lock().unwrap();
        let kept = all.entry(key.to_owned()).or_default();
        kept.splice(from.., lines.iter().cloned());
        all.retain(|_, lines| !lines.is_empty());
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.0.lock().unwrap().keys().cloned().collect())
    }
}

/// Answers, but refuses the key of the fourth request; slowly, so that two simultaneous turns would overlap.
#[derive(Default)]
struct Refusing(AtomicUsize);

impl Provider for Refusing {
    fn model(&self) -> &'static str {
        "script/x"
    }

    fn chat(&self, _: &ModelRequest, _: &dyn Sink) -> Result<Reply, ProviderError> {
        if self.0.fetch_add(1, Ordering::SeqCst) == 3 {
            return Err(ProviderError::AuthFailed {
                message: "no such key".into(),
                no_key: false,
            });
        }
        thread::sleep(Duration::from_millis(100));
        Ok(Reply {
            text: "Yes.".to_owned(),
            ..Reply::default()
        })
    }
}

/// Returns `u` for each message of the user, `a` for each of the model.
fn order(agent: &Agent) -> String {
    let session = agent.session("notes").unwrap();
    let letter = |message: &Message| match message {
        Message::User(_) => 'u',
        _ => 'a',
    };
    session.messages.iter().map(letter).collect()
}

#[test]
fn a_refused_key_takes_back_its_turn_and_nothing_before_it() {
    let builder = Agent::builder().provider(Refusing::default());
    let agent = builder.build().unwrap();
    for n in 0..4 {
        let response = agent.run(&Request::new(format!("question {n}"), "notes"), &|_| {});
        let refused = response
            .error
            .is_some_and(|error| error.kind == ErrorKind::Auth);
        assert_eq!(refused, n == 3);
    }
    assert_eq!(order(&agent), "uauaua");
}

#[test]
fn two_turns_at_once_in_memory_follow_each_other() {
    let builder = Agent::builder().provider(Refusing::default());
    let agent = builder.build().unwrap();
    thread::scope(|scope| {
        for question in ["left", "right"] {
            let agent = &agent;
            scope.spawn(move || agent.run(&Request::new(question, "notes"), &|_| {}));
        }
    });
    assert_eq!(order(&agent), "uaua");
}
