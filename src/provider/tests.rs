//! What the tests of this room share.

use serde_json::Value;

use super::dialect::{Dialect, Outgoing};
use super::quirks::Quirks;
use super::{Request, Sampling, System};
use crate::cancel::Cancel;
use crate::config::{Config, Env};
use crate::message::Message;

/// The body that a dialect writes for a conversation.
pub(super) fn wire(dialect: &Dialect, system: &str, messages: &[Message]) -> Value {
    let list = r#"{"model_list":[{"model":"x/y","api_base":"http://h"}]}"#;
    let config = Config::load(Some(("c", list)), &Env::new(), Vec::new());
    let model = config.unwrap().config.choose_model(&Env::new());
    let request = Request {
        system: System::marked(system, system.len()),
        messages,
        tools: &[],
        withheld: false,
        stream: false,
        sampling: &Sampling::default(),
        on_thought: &|_| (),
        on_trace: &|_| (),
        cancel: &Cancel::new(None),
    };
    let outgoing = Outgoing {
        model: &model.unwrap().unwrap(),
        request: &request,
        quirks: Quirks(&[]),
    };
    serde_json::from_str(&outgoing.body(dialect)).unwrap()
}
