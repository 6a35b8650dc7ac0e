//! Whether the stores of docs/examples are some.

use std::fs;
use std::sync::Arc;

use bantam::{Agent, Demo, ErrorKind, Request};
use bantam::{FileStore, MemoryStore, Store};

use crate::Test;
use crate::programs::Place;
use crate::store::Folder;
use crate::support::store_check::check_store;

pub const TESTS: &[Test] = tests!(
    stores,
    [
        a_folder_of_json_is_one,
        a_program_lists_conversations_and_erases_them
    ]
);

fn a_folder_of_json_is_one() {
    let place = Place::new();
    fs::create_dir(place.path("kept")).unwrap();
    let store: Arc<dyn Store> = Arc::new(Folder(place.path("kept")));
    check_store(|| store.clone());
}

fn a_program_lists_conversations_and_erases_them() {
    let place = Place::new();
    listed(MemoryStore::default());
    listed(FileStore::at(place.path("home")));
    let dir = place.path("home/sessions");
    let left = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let left: Vec<_> = left.collect();
    assert!(left.len() == 1 && left[0].ends_with("b.jsonl"), "{left:?}");
    let files = FileStore::at(place.path("home"));
    let agent = Agent::builder()
        .provider(Demo)
        .store(files)
        .build()
        .unwrap();
    let e = agent.erase("../home/sessions/b").unwrap_err();
    assert_eq!(e.kind, ErrorKind::Usage);
}

fn listed(store: impl Store + 'static) {
    let agent = Agent::builder().provider(Demo).store(store);
    let agent = agent.build().unwrap();
    assert!(agent.sessions().unwrap().is_empty());
    let titled = Request {
        title: "Clocks".to_owned(),
        ..Request::new("time", "a")
    };
    let unnamed = agent.run(&Request::new("hello", ""), &|_| ()).session;
    for request in [titled, Request::new("time", "b"), Request::new("time", "b")] {
        let response = agent.run(&request, &|_| ());
        assert!(response.error.is_none(), "{:?}", response.error);
    }
    let all = agent.sessions().unwrap();
    let row = |key: &str| all.iter().find(|summary| summary.key == key).unwrap();
    let (a, b) = (row("a"), row("b"));
    assert_eq!(
        (a.title.as_str(), a.messages, a.state),
        ("Clocks", 2, "done")
    );
    assert_eq!((b.title.as_str(), b.messages), ("time", 4));
    assert!(!b.created.is_empty() && b.created <= b.last);
    assert!(all.len() == 3 && all[2].key == unnamed && all[0].last >= all[2].last);
    agent.set("a", "mood", "fair").unwrap();
    for (key, was_there) in [("a", true), ("a", false), (&*unnamed, true), ("c", false)] {
        assert_eq!(agent.erase(key), Ok(was_there), "{key}");
    }
    let again = agent.session("a").unwrap();
    assert!(again.created.is_empty() && again.values.is_empty());
    assert_eq!(agent.sessions().unwrap().len(), 1);
}
