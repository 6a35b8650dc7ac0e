//! Shared code of this module's tests.

use serde_json::Value;

use super::host::Host;
use super::{Provider, Request, Sampling, System};
use crate::cancel::Cancel;
use crate::config::vendors::Protocol;
use crate::config::{Config, Env};
use crate::message::Message;

/// Returns the body of a request for a conversation.
pub(super) fn wire(protocol: Protocol, system: &str, messages: &[Message]) -> Value {
    let list = r#"{"model_list":[{"model":"x/y","api_base":"http://h"}]}"#;
    let config = Config::load(Some(("c", list)), &Env::new(), Vec::new());
    let model = config.unwrap().config.choose_model(&Env::new());
    let mut model = model.unwrap().unwrap();
    model.protocol = protocol;
    let request = Request {
        system: System::marked(system, system.len()),
        messages,
        tools: &[],
        withheld: false,
        stream: false,
        sampling: &Sampling::default(),
        input_tokens: 0,
        cancel: &Cancel::new(None),
    };
    Host::new(model, None, &Env::new()).preview(&request)
}
