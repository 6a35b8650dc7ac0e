//! Checks the model: its name, the source of its key, and whether it answers.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::Check;
use crate::bus::Event;
use crate::cancel::Cancel;
use crate::config::vendors::Protocol;
use crate::config::{Config, Env, keys};
use crate::http::authority;
use crate::message::{Message, Reply};
use crate::paths::Home;
use crate::provider::ollama;
use crate::provider::{Provider, ProviderError, Request, Sampling, Sink, System, ToolOffer};
use crate::redact::Redactor;
use crate::text::{millis, to_single_line};

const NAME: &str = "model";
const ANSWER: &str = "answer";
const TOOLS: &str = "tools";

const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of an answer, in tokens; enough for a model that reasons first.
pub(crate) const MAX_TOKENS: u64 = 1024;

/// Reports the model that would answer, and the source of its key. Runs no command to get the key.
pub(crate) fn configured_model(home: &Home, config: &Config, env: &Env) -> Check {
    const EXPORT: &str = "export OPENROUTER_API_KEY=...    # or another vendor's";
    let model = match config.choose_model(env) {
        Err(e) => return Check::of_error(NAME, e),
        Ok(None) => {
            if let Some(id) = ollama::pick_model(env) {
                return Check::ok(NAME, format!("no key is set: {id} of Ollama answers"));
            }
            return Check::info(
                NAME,
                "no key: Ollama answers if it is there, else the built-in demo",
            )
            .fix(EXPORT);
        }
        Ok(Some(model)) => model,
    };
    if model.protocol == Protocol::Demo {
        return Check::info(
            NAME,
            format!("{}: built in, not a language model", model.name),
        )
        .fix("run `bantam onboard`, which connects a real one");
    }
    let at = format!("{} at {}", model.name, authority(&model.base));
    let Some(key) = model.keys.first() else {
        return Check::ok(NAME, format!("{at}, without a key"));
    };
    let source = keys::source(key);
    let source = source.trim_start_matches("in ");
    if keys::is_command(key) {
        return Check::ok(NAME, format!("{at}, key from {source}, which was not run"));
    }
    match keys::resolve(key, env, &home.config()) {
        Ok(_) => Check::ok(NAME, format!("{at}, key from {source}")),
        Err(e) => Check::of_error(NAME, e.doing(at)),
    }
}

/// Asks a model for a tool call, without a conversation.
pub(crate) fn ask(provider: &dyn Provider, redactor: &Redactor) -> Vec<Check> {
    let model = provider.model();
    if model.starts_with("demo/") {
        let found = format!("{model} is built in: there is no model to ask");
        return vec![Check::info(ANSWER, found)];
    }
    let started = Instant::now();
    let notice = Cell::new(None);
    let reply = match request_call(provider, &|event| {
        if let Event::Warning(text) = event {
            notice.set(Some(text));
        }
    }) {
        Ok(reply) => reply,
        Err(ProviderError::Cancelled(_)) => {
            let found = format!("{model} said nothing in {} s", TIMEOUT.as_secs());
            let fix = "check the network and the model's api_base, or try again later";
            return vec![Check::fail(ANSWER, found).fix(fix)];
        }
        Err(e) => return vec![Check::of_error(ANSWER, e.into_error(model))],
    };
    // The answer may have found the host's default.
    let model = provider.model();
    let tools = match (notice.take(), reply.calls.is_empty()) {
        (Some(why), _) => Check::info(TOOLS, why),
        (None, false) => Check::ok(TOOLS, format!("{model} calls them")),
        (None, true) => {
            let text = to_single_line(&redactor.redact(reply.text), 60);
            let found = format!(
                "the model replied with text instead of calling a tool, and may not support tools: \"{text}\""
            );
            Check::info(TOOLS, found)
        }
    };
    let answer = format!("{model} answered after {} ms", millis(started.elapsed()));
    vec![Check::ok(ANSWER, answer), tools]
}

/// Sends one request, which asks for a call of a tool. `sink` gets features that the model or its host refuses.
fn request_call(provider: &dyn Provider, sink: &dyn Sink) -> Result<Reply, ProviderError> {
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
    provider.chat(&request, sink)
}
