//! Checks the model: its name, the source of its key, and whether it answers.

use std::time::Duration;

use super::Check;
use crate::app::facts::Facts;
use crate::cancel::Cancel;
use crate::config::vendors::Protocol;
use crate::config::{Loaded, keys, shown};
use crate::http::authority;
use crate::message::Message;
use crate::provider::ollama;
use crate::provider::{Chain, ProviderError, Request, Sampling, System, ToolOffer};

const NAME: &str = "model";
const ANSWER: &str = "answer";

const TIMEOUT: Duration = Duration::from_secs(60);

/// Reports the model that would answer, and the source of its key. Runs no command to get the key.
pub(crate) fn configured_model(facts: &Facts, loaded: &Loaded) -> Check {
    let model = match &facts.model {
        Err(e) => return Check::of_error(NAME, e.clone()),
        Ok(Some(model)) if model.protocol != Protocol::Demo => model,
        Ok(model) => {
            let ollama = model.is_none().then(|| ollama::pick_model(&loaded.env));
            let demo = "the built-in demo, which is not a language model";
            return match ollama.flatten() {
                Some(id) => Check::ok(NAME, format!("no key is set: {id} of Ollama answers")),
                None => Check::info(NAME, demo).fix("bantam onboard"),
            };
        }
    };
    let at = format!("{} at {}", shown(&model.name), authority(&model.base));
    let found = format!("{at}, key: {}", facts.key());
    match model.keys.first().filter(|key| !keys::is_command(key)) {
        None => Check::ok(NAME, found),
        Some(key) => match keys::resolve(key, &loaded.env, &loaded.home.config()) {
            Ok(_) => Check::ok(NAME, found),
            Err(e) => Check::of_error(NAME, e.doing(at)),
        },
    }
}

/// Asks the first model for a tool call, without a conversation.
pub(crate) fn ask(chain: &Chain) -> Check {
    let first = chain.first();
    let Some(provider) = first.filter(|first| !first.model().starts_with("demo/")) else {
        return Check::info(ANSWER, "the demo is built in and needs no test");
    };
    let ping = ToolOffer {
        name: "ping".into(),
        description: "Tests tool calls.".into(),
        schema: r#"{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}"#
            .into(),
    };
    let request = Request {
        system: System::default(),
        messages: &[Message::user("Call the tool ping with the word ready.")],
        tools: &[ping],
        withheld: false,
        stream: true,
        sampling: &Sampling::default(),
        input_tokens: 0,
        cancel: &Cancel::new(Some(TIMEOUT)),
    };
    let reply = provider.chat(&request, &|_| ());
    // The answer may have found the host's default.
    let model = provider.model();
    match reply {
        Ok(reply) if !reply.calls.is_empty() => {
            Check::ok(ANSWER, format!("{model} answers and calls tools"))
        }
        Ok(_) => Check::info(ANSWER, format!("{model} answers, but called no tool")).fix(
            "start its server with its tool parser, or choose another model: bantam help models",
        ),
        Err(ProviderError::Cancelled(_)) => {
            let found = format!("{model}: no answer in {} s", TIMEOUT.as_secs());
            Check::fail(ANSWER, found)
                .fix("try again later, or choose another model: bantam onboard")
        }
        Err(e) => Check::of_error(ANSWER, e.into_error(model)),
    }
}
