//! A panic in an embedding program becomes an error, and the agent continues.

use std::panic;

use bantam::{
    Agent, Function, Message, ModelRequest, OpenAi, Provider, ProviderError, Reply, Request,
    Result, Sink,
};
use bantam::{Durability, Line, MemoryStore, Store};
use serde_json::{Value, json};

use crate::Test;
use crate::support::model::{Model, Reply as Scripted, call};

pub const TESTS: &[Test] = tests!(
    panics,
    [
        a_tool_that_panics_gives_an_error_to_the_model,
        a_provider_that_panics_ends_the_turn_and_no_more,
        a_store_that_panics_ends_the_turn_and_no_more
    ]
);

fn a_tool_that_panics_gives_an_error_to_the_model() {
    let model = Model::scripted([
        Scripted::calls([call("a", "fail", &json!({})), call("b", "fail", &json!({}))]),
        Scripted::text("It failed."),
    ]);
    let fail = Function::new("fail", "Fails.", r#"{"type":"object"}"#, |_: Value, _| {
        if true {
            panic::resume_unwind(Box::new("out of cheese"));
        }
        Ok("")
    });
    let agent = Agent::builder().provider(OpenAi::new(&model.base(), "", "x"));
    let agent = agent.tool(fail).build().unwrap();
    assert_eq!(agent.ask("Fail!").unwrap(), "It failed.");
    for result in model.request(1).texts("tool") {
        assert_eq!(result, "error: the tool panicked: out of cheese");
    }
}

struct Panicking;

impl Provider for Panicking {
    fn model(&self) -> &'static str {
        "script/x"
    }

    fn chat(&self, request: &ModelRequest, _: &dyn Sink) -> Result<Reply, ProviderError> {
        let text = match request.messages.last() {
            Some(Message::User(user)) if user.content == "Fail!" => {
                panic::resume_unwind(Box::new("no socket".to_owned()))
            }
            _ => "Yes.".to_owned(),
        };
        Ok(Reply {
            text,
            ..Reply::default()
        })
    }
}

fn a_provider_that_panics_ends_the_turn_and_no_more() {
    let agent = Agent::builder().provider(Panicking).build().unwrap();
    let error = agent.ask("Fail!").unwrap_err();
    assert_eq!(
        error.message,
        "asking script/x: the provider panicked: no socket"
    );
    assert_eq!(agent.ask("And now?").unwrap(), "Yes.");
}

/// A store that panics at some lines.
struct Fragile(MemoryStore);

impl Store for Fragile {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        self.0.read(key)
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], durability: Durability) -> Result<()> {
        if serde_json::to_string(lines).unwrap().contains("Fail!") {
            panic::resume_unwind(Box::new("no disk"));
        }
        self.0.write(key, from, lines, durability)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.0.list()
    }
}

fn a_store_that_panics_ends_the_turn_and_no_more() {
    let store = Fragile(MemoryStore::default());
    let note = Function::new(
        "note",
        "Keeps.",
        r#"{"type":"object"}"#,
        |_: Value, turn| {
            turn.values.set("note", json!("Fail!"));
            Ok("")
        },
    );
    let agent = Agent::builder().provider(Panicking).tool(note);
    let agent = agent.store(store).build().unwrap();
    let e = agent.call("note", &json!({})).unwrap_err();
    assert_eq!(e.message, "the call panicked: no disk");
    let response = agent.run(&Request::new("Fail!", "notes"), &|_| ());
    assert_eq!(
        response.error.unwrap().message,
        "the turn panicked: no disk"
    );
    // The conversation is unlocked again.
    let response = agent.run(&Request::new("And now?", "notes"), &|_| ());
    assert_eq!(response.output, "Yes.");
}
