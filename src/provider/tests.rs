//! What the tests of this module share.

use serde_json::Value;

use super::dialect::{Dialect, Outgoing};
use super::quirks::Quirks;
use super::{ProviderError, Request, Sampling, System};
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

#[test]
fn a_hosts_name_is_no_reason_for_a_hint() {
    let hint = |message: &str| {
        let e = ProviderError::Transient {
            message: message.to_owned(),
            retry_after: None,
        };
        e.into_error("x/y").hint.unwrap_or_default()
    };
    let network = "check the network and the model's api_base, or try again later";
    assert_eq!(hint("open.bigmodel.cn: io: Connection refused"), network);
    assert_eq!(hint("proxy.example.org: io: Connection refused"), network);
    assert!(hint("the server answered 500: boom").starts_with("the host has a problem"));
    assert!(hint("example.org: the proxy refused the connection").starts_with("check HTTPS_PROXY"));
}
