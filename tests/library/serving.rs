//! Failures of a program's channel while it is served: serving ends with an error instead of waiting forever.

use std::panic;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bantam::FileStore;
use bantam::{
    Agent, Cancel, Channel, Demo, Event, Inbound, Inbox, ModelRequest, Outbound, Provider,
    ProviderError, Reply, Result, Sink,
};

use crate::Test;
use crate::programs::Place;
use crate::support::harness::Home;
use crate::support::model::Model;

pub const TESTS: &[Test] = &[
    (
        "serving::a_panic_in_show_ends_it_with_an_error",
        a_panic_in_show_ends_it_with_an_error,
    ),
    (
        "serving::a_panic_in_read_ends_it_with_an_error",
        a_panic_in_read_ends_it_with_an_error,
    ),
    (
        "serving::a_show_that_never_returns_ends_with_an_error",
        a_show_that_never_returns_ends_with_an_error,
    ),
    (
        "serving::the_end_stops_what_reads",
        the_end_stops_what_reads,
    ),
    (
        "serving::message_crashing_three_times_is_set_aside",
        message_crashing_three_times_is_set_aside,
    ),
];

/// A model failure that crashes every program.
struct Fatal;

impl Provider for Fatal {
    fn model(&self) -> &'static str {
        "script/fatal"
    }

    fn chat(&self, _: &ModelRequest, _: &dyn Sink) -> Result<Reply, ProviderError> {
        println!("asked");
        std::process::exit(7)
    }
}

/// Serves one message, and prints its events.
pub fn main() -> Result<()> {
    let agent = Agent::builder().provider(Fatal).store(FileStore::at("."));
    let asks = |inbox: &Inbox| {
        let mut message = Inbound::line("tests", "ada", "What is in this file?").unwrap();
        message.id = "1".to_owned();
        inbox.add(message).unwrap();
    };
    let shows = |event: &Outbound| {
        if let Some(text) = event.text() {
            println!("{text}");
        }
    };
    let channels = vec![bantam::channel(asks, shows)];
    bantam::serve(agent.build()?, ".", channels, &Cancel::new(None))
}

/// Much longer than serving waits for output.
const HANG: Duration = Duration::from_secs(300);

/// Serves in a separate thread, and fails the test if that does not end.
fn serve(home: &Home, channels: Vec<Box<dyn Channel>>, cancel: &Cancel) -> Result<()> {
    let agent = Agent::builder()
        .provider(Demo)
        .store(FileStore::at(home.path("")));
    let agent = agent.build().unwrap();
    let (ended, end) = mpsc::channel();
    let (place, cancel) = (home.path(""), cancel.clone());
    thread::spawn(move || ended.send(bantam::serve(agent, place, channels, &cancel)));
    end.recv_timeout(HANG).expect("serving does not end")
}

fn ask(inbox: &Inbox, chat: &str) {
    let message = Inbound::line("tests", chat, "time").unwrap();
    inbox.add(message).unwrap();
}

fn answer(event: &Outbound) -> Option<&str> {
    match &event.event {
        Event::Done(_) => Some(&event.origin.chat),
        _ => None,
    }
}

/// Returns a channel without messages that ends when serving is stopped.
fn idle(cancel: &Cancel) -> Box<dyn Channel> {
    let cancel = cancel.clone();
    bantam::channel(
        move |_| assert!(cancel.sleep(Duration::MAX).is_err()),
        |_: &Outbound| (),
    )
}

fn a_panic_in_show_ends_it_with_an_error() {
    let (home, cancel) = (Home::empty(), Cancel::new(None));
    let (shown, seen) = mpsc::channel();
    let asks = |inbox: &Inbox| {
        ask(inbox, "ada");
        ask(inbox, "ben");
    };
    let shows = move |event: &Outbound| {
        let Some(chat) = answer(event) else { return };
        if chat == "ada" {
            panic::resume_unwind(Box::new("no screen"));
        }
        shown.send(chat.to_owned()).unwrap();
    };
    let channels = vec![bantam::channel(asks, shows), idle(&cancel)];
    let e = serve(&home, channels, &cancel).unwrap_err();
    assert_eq!(
        e.message,
        "showing an event of chat ada of tests: the channel panicked: no screen"
    );
    // The others were shown, and the answer that was not shown is in its conversation.
    assert_eq!(seen.iter().collect::<Vec<_>>(), ["ben"]);
    let kept = reader(&home).session("tests_ada").unwrap();
    assert_eq!(kept.messages.len(), 2);
}

/// Returns an agent that reads the conversations of a home.
fn reader(home: &Home) -> Agent {
    let agent = Agent::builder().provider(Demo);
    agent.store(FileStore::at(home.path(""))).build().unwrap()
}

fn a_panic_in_read_ends_it_with_an_error() {
    let (home, cancel) = (Home::empty(), Cancel::new(None));
    let asks = |inbox: &Inbox| {
        ask(inbox, "ada");
        panic::resume_unwind(Box::new("no keyboard"));
    };
    let channels = vec![bantam::channel(asks, |_: &Outbound| ()), idle(&cancel)];
    let e = serve(&home, channels, &cancel).unwrap_err();
    assert_eq!(
        e.message,
        "reading messages: the channel panicked: no keyboard"
    );
    // Its message is answered now, or by the next server after it was stored.
    let (agent, started) = (reader(&home), Instant::now());
    while agent.session("tests_ada").unwrap().messages.is_empty() {
        assert!(started.elapsed() < HANG);
        serve(&home, Vec::new(), &Cancel::new(None)).unwrap();
    }
}

fn a_show_that_never_returns_ends_with_an_error() {
    let (home, cancel) = (Home::empty(), Cancel::new(None));
    let (held, release) = mpsc::channel::<()>();
    let shows = move |event: &Outbound| {
        if answer(event).is_some() {
            release.recv().ok();
        }
    };
    let asks = |inbox: &Inbox| ask(inbox, "ada");
    let e = serve(&home, vec![bantam::channel(asks, shows)], &cancel).unwrap_err();
    assert_eq!(
        e.message,
        "a channel did not show its last events within 30 seconds"
    );
    drop(held);
}

fn the_end_stops_what_reads() {
    let (home, cancel) = (Home::empty(), Cancel::new(None));
    let (refused, told) = mpsc::channel();
    let stop = cancel.clone();
    let asks = move |inbox: &Inbox| {
        stop.stop();
        // Messages on their way are stored; later ones are refused.
        for n in 0.. {
            let message = Inbound::line("tests", &n.to_string(), "time").unwrap();
            if inbox.add(message).is_err() {
                refused.send(n).unwrap();
                return;
            }
            thread::yield_now();
        }
    };
    let served = serve(
        &home,
        vec![bantam::channel(asks, |_: &Outbound| ())],
        &cancel,
    );
    served.unwrap();
    told.recv_timeout(HANG).expect("the reader is never told");
    // The end of serving stops an unstopped channel, for readers in separate threads.
    let ended = Cancel::new(None);
    serve(
        &home,
        vec![bantam::channel(|_: &Inbox| (), |_: &Outbound| ())],
        &ended,
    )
    .unwrap();
    assert!(ended.reason().is_some());
}

fn message_crashing_three_times_is_set_aside() {
    let (place, model) = (Place::new(), Model::never_asked());
    for _ in 0..3 {
        let ended = place.start("serving", &model).wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(7));
        assert_eq!(String::from_utf8(ended.stdout).unwrap(), "asked\n");
    }
    let said = "I crashed three times on this message, so I skipped it.\n";
    assert_eq!(place.run("serving", &model), said);
    // The turn has ended, and its id is known.
    assert_eq!(place.run("serving", &model), "");
}
