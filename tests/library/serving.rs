//! The end of serving, and messages that crash the program.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bantam::FileStore;
use bantam::{
    Agent, Cancel, Channel, Demo, Inbound, Inbox, ModelRequest, Provider, ProviderError, Reply,
    Result, Sink,
};

use crate::Test;
use crate::programs::Place;
use crate::support::harness::Home;
use crate::support::model::Model;

pub const TESTS: &[Test] = tests!(
    serving,
    [
        the_end_stops_what_reads,
        message_crashing_three_times_is_set_aside
    ]
);

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

/// A channel that adds messages by a function, and prints its texts.
struct Asks<F>(F);

impl<F: Fn(&Inbox) -> Result<()> + Send + Sync> Channel for Asks<F> {
    fn name(&self) -> &'static str {
        "tests"
    }

    fn poll(&self, inbox: &Inbox, _: &Cancel) -> Result<()> {
        (self.0)(inbox)
    }

    fn deliver(&self, _: &str, text: &str) -> Result<()> {
        println!("{text}");
        Ok(())
    }
}

/// Serves one message, and prints its answer.
pub fn main() -> Result<()> {
    let agent = Agent::builder().provider(Fatal).store(FileStore::at("."));
    let channel = Asks(|inbox: &Inbox| {
        let mut message = Inbound::line("tests", "ada", "What is in this file?")?;
        message.id = "1".to_owned();
        inbox.add(message).map(drop)
    });
    bantam::serve(
        agent.build()?,
        ".",
        vec![Box::new(channel)],
        &Cancel::new(None),
    )
}

/// Much longer than serving waits for output.
const HANG: Duration = Duration::from_secs(300);

/// Serves in a separate thread, and fails the test if that does not end.
fn serve(home: &Home, channel: impl Channel + 'static, cancel: &Cancel) -> Result<()> {
    let agent = Agent::builder()
        .provider(Demo)
        .store(FileStore::at(home.path("")));
    let agent = agent.build().unwrap();
    let (ended, end) = mpsc::channel();
    let (place, cancel) = (home.path(""), cancel.clone());
    let channels: Vec<Box<dyn Channel>> = vec![Box::new(channel)];
    thread::spawn(move || ended.send(bantam::serve(agent, place, channels, &cancel)));
    end.recv_timeout(HANG).expect("serving does not end")
}

fn the_end_stops_what_reads() {
    let (home, cancel) = (Home::empty(), Cancel::new(None));
    let (refused, told) = mpsc::channel();
    let stop = cancel.clone();
    let asks = move |inbox: &Inbox| {
        stop.stop();
        // Messages on their way are stored; later ones are refused.
        let mut n = 0;
        while inbox
            .add(Inbound::line("tests", &n.to_string(), "time")?)
            .is_ok()
        {
            n += 1;
            thread::yield_now();
        }
        refused.send(n).unwrap();
        Ok(())
    };
    serve(&home, Asks(asks), &cancel).unwrap();
    told.recv_timeout(HANG).expect("the reader is never told");
    // The end of serving stops an unstopped channel, for readers in separate threads.
    let ended = Cancel::new(None);
    serve(&home, Asks(|_: &Inbox| Ok(())), &ended).unwrap();
    assert!(ended.reason().is_some());
    let agent = Agent::builder().provider(Demo).build().unwrap();
    bantam::serve(agent, home.path(""), Vec::new(), &Cancel::new(None)).unwrap();
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
