//! The model: which one answers, where its key comes from, and whether it does answer.

use std::time::{Duration, Instant};

use super::Check;
use crate::cancel::Cancel;
use crate::config::vendors::Protocol;
use crate::config::{Config, Env, keys};
use crate::http::authority;
use crate::message::Message;
use crate::paths::Home;
use crate::provider::{Provider, ProviderError, Request, System};
use crate::secret::Redactor;
use crate::text::{millis, one_line};

const NAME: &str = "model";

const TIMEOUT: Duration = Duration::from_secs(30);
/// Some hosts refuse fewer.
pub(crate) const MAX_TOKENS: u64 = 16;

/// The model that would answer, and where its key comes from. Runs no command to get the key.
pub(crate) fn configured_model(home: &Home, config: &Config, env: &Env, configured: bool) -> Check {
    const EXPORT: &str = "export OPENROUTER_API_KEY=...    # or another vendor's";
    let model = match config.choose_model(env) {
        Err(e) => return Check::of_error(NAME, e),
        Ok(None) if configured => {
            return Check::fail(NAME, "none is configured and no key was found").fix(EXPORT);
        }
        Ok(None) => {
            return Check::info(NAME, "no key: Ollama on this machine answers, else the built-in demo").fix(EXPORT);
        }
        Ok(Some(model)) => model,
    };
    if model.protocol == Protocol::Demo {
        return Check::info(NAME, format!("{}: built in, not a language model", model.name))
            .fix("in config.json, change agents.defaults.model_name to openrouter/auto (or another vendor/model)")
            .fix(EXPORT);
    }
    let at = format!("{} at {}", model.name, authority(&model.base));
    let Some(key) = model.keys.first() else { return Check::ok(NAME, format!("{at}, without a key")) };
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

/// Asks for one word, once, without a conversation or tools.
pub(crate) fn ask(provider: &dyn Provider, redactor: &Redactor) -> Check {
    const NAME: &str = "answer";
    let model = provider.model();
    if model.starts_with("demo/") {
        return Check::info(NAME, format!("{model} is built in: there is no model to ask"));
    }
    let started = Instant::now();
    let request = Request {
        system: System::default(),
        messages: &[Message::user("Answer with one word: ready")],
        tools: &[],
        stream: true,
        cancel: &Cancel::new(Some(TIMEOUT)),
    };
    match provider.chat(&request, &mut |_| ()) {
        Ok(reply) => {
            let text = one_line(&redactor.redact(reply.text), 60);
            Check::ok(NAME, format!("{model} said \"{text}\" after {} ms", millis(started.elapsed())))
        }
        Err(ProviderError::Cancelled(_)) => {
            Check::fail(NAME, format!("{model} said nothing in {} s", TIMEOUT.as_secs()))
                .fix("check the network and the model's api_base, or try again later")
        }
        Err(e) => Check::of_error(NAME, e.into_error(model)),
    }
}
