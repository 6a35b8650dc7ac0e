//! Checks the model: its name, the source of its key, and whether it answers.

use std::cell::Cell;
use std::time::Duration;

use super::Check;
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::config::vendors::Protocol;
use crate::config::{Loaded, Model, keys};
use crate::error::Result;
use crate::http::authority;
use crate::message::Message;
use crate::provider::ollama;
use crate::provider::{Chain, ProviderError, Request, Sampling, System, ToolOffer};

const NAME: &str = "model";
const ANSWER: &str = "answer";

const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of an answer, in tokens; enough for a model that reasons first.
pub(crate) const MAX_TOKENS: u64 = 1024;

/// Reports the model that would answer, and the source of its key. Runs no command to get the key.
pub(crate) fn configured_model(model: &Result<Option<Model>>, loaded: &Loaded) -> Check {
    let env = &loaded.env;
    let demo = || Check::info(NAME, "the built-in demo, which is not a language model");
    let model = match model {
        Err(e) => return Check::of_error(NAME, e.clone()),
        Ok(Some(model)) if model.protocol == Protocol::Demo => return demo().fix("bantam onboard"),
        Ok(Some(model)) => model,
        Ok(None) => match ollama::pick_model(env) {
            Some(id) => return Check::ok(NAME, format!("no key is set: {id} of Ollama answers")),
            None => return demo().fix("bantam onboard"),
        },
    };
    let at = format!("{} at {}", model.name, authority(&model.base));
    let Some(key) = model.keys.first() else {
        return Check::ok(NAME, format!("{at}, without a key"));
    };
    let source = keys::source(key);
    if keys::is_command(key) {
        return Check::ok(NAME, format!("{at}, key from {source}, which was not run"));
    }
    match keys::resolve(key, env, &loaded.home.config()) {
        Ok(_) => Check::ok(NAME, format!("{at}, key from {source}")),
        Err(e) => Check::of_error(NAME, e.doing(at)),
    }
}

/// Asks the first model for a tool call, without a conversation.
pub(crate) fn ask(chain: &Chain) -> Check {
    let Some(provider) = chain.first() else {
        return Check::info(ANSWER, "there is no model to ask");
    };
    let model = provider.model();
    if model.starts_with("demo/") {
        return Check::info(ANSWER, format!("{model} is built in and needs no test"));
    }
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
    // A host may refuse tools.
    let warning = Cell::new(None);
    let reply = provider.chat(&request, &|event| {
        if let Event::Warning(text) = event {
            warning.set(Some(text));
        }
    });
    // The answer may have found the host's default.
    let model = provider.model();
    match reply {
        Ok(reply) if !reply.calls.is_empty() => {
            Check::ok(ANSWER, format!("{model} answers and calls tools"))
        }
        Ok(_) => {
            let why = warning
                .take()
                .unwrap_or_else(|| "it replied with text".to_owned());
            Check::info(
                ANSWER,
                format!("{model} answers, but called no tool: {why}"),
            )
        }
        Err(ProviderError::Cancelled(_)) => {
            let found = format!("{model}: no answer in {} s", TIMEOUT.as_secs());
            Check::fail(ANSWER, found)
                .fix("try again later, or choose another model: bantam onboard")
        }
        Err(e) => Check::of_error(ANSWER, e.into_error(model)),
    }
}
