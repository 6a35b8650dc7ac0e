//! The examples of docs/embedding.md, run without a network.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bantam::{Agent, Event, Message, ModelRequest, Provider, ProviderError, Reply, Sink};
use serde_json::json;

use crate::harness::{Home, has_all};

#[path = "../../docs/examples/batch.rs"]
#[allow(dead_code)]
mod batch;
#[path = "../../docs/examples/calculator.rs"]
#[allow(dead_code)]
mod calculator;

/// Repeats the question. Counts its requests.
struct Scripted(Arc<AtomicUsize>);

impl Provider for Scripted {
    fn model(&self) -> &'static str {
        "script/x"
    }

    fn chat(&self, request: &ModelRequest, _: &dyn Sink) -> Result<Reply, ProviderError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        match request.messages.last() {
            Some(Message::User(user)) => Ok(Reply {
                text: format!("\"{}\"", user.content),
                ..Reply::default()
            }),
            last => panic!("{last:?}"),
        }
    }
}

#[test]
fn calculator_example_shows_its_events() {
    let (answer, events) = calculator::calculate("What is 6 * 7?").unwrap();
    assert_eq!(answer, "That is 42.");
    assert!(events.iter().any(
        |event| matches!(event, Event::ToolFinished { name, ok: true, .. } if name == "calculate")
    ));
    has_all(
        &calculator::calculate("1 / 0").unwrap().0,
        ["nothing can be divided by 0"],
    );
    has_all(
        &calculator::calculate("Hello").unwrap().0,
        ["Ask for a sum"],
    );
}

#[test]
fn a_batch_asks_each_row_once() {
    let (home, asked) = (Home::with(&json!({})), Arc::new(AtomicUsize::new(0)));
    let run = |csv: &str| {
        let builder = Agent::builder().provider(Scripted(asked.clone()));
        (
            batch::answer(builder, csv, &home.path("answers")).unwrap(),
            asked.load(Ordering::SeqCst),
        )
    };
    let first = "a,ok,\"\"\"One, or two?\"\"\"".to_owned();
    assert_eq!(run("a,One, or two?\n\n"), (vec![first.clone()], 1));
    assert_eq!(
        run("a,One, or two?\nb,Three\n"),
        (vec![first, "b,ok,\"\"\"Three\"\"\"".to_owned()], 2)
    );
}
