//! The model: which one, whose key, and whether it answers.

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

const WHAT: &str = "model";

/// How long the model has to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Tokens of the answer: some hosts refuse fewer.
pub const TOKENS: u64 = 16;

/// The model that would answer, and where its key comes from: never the key, and no command is run to get it.
pub fn chosen(home: &Home, config: &Config, env: &Env, configured: bool) -> Check {
    const EXPORT: &str = "export OPENROUTER_API_KEY=...    # or another vendor's";
    let model = match config.choose_model(env) {
        Err(e) => return Check::of_error(WHAT, e),
        Ok(None) if configured => {
            return Check::fails(WHAT, "none is configured and no key was found").fix(EXPORT);
        }
        Ok(None) => {
            return Check::aside(WHAT, "no key: an Ollama on this machine answers, or else the built-in demo")
                .fix(EXPORT);
        }
        Ok(Some(model)) => model,
    };
    if model.protocol == Protocol::Demo {
        return Check::aside(WHAT, format!("{}: built in, no language model", model.name)).fix(EXPORT);
    }
    let at = format!("{} at {}", model.name, authority(&model.base));
    let Some(key) = model.keys.first() else { return Check::well(WHAT, format!("{at}, without a key")) };
    let source = match model.key_origin.as_str() {
        "config.json" => keys::source(key).trim_start_matches("in ").to_owned(),
        variable => format!("the variable {variable}"),
    };
    if keys::is_command(key) {
        return Check::well(WHAT, format!("{at}, key from {source}, which was not run"));
    }
    match keys::resolve(key, env, &home.config()) {
        Ok(_) => Check::well(WHAT, format!("{at}, key from {source}")),
        Err(e) => Check::of_error(WHAT, e.doing(at)),
    }
}

/// Asks for one word. No conversation, no tools, no second try.
pub fn asked(provider: &dyn Provider, redactor: &Redactor) -> Check {
    const WHAT: &str = "answer";
    let model = provider.model();
    if model.starts_with("demo/") {
        return Check::aside(WHAT, format!("{model} is built in: there is nobody to ask"));
    }
    let started = Instant::now();
    let request = Request {
        system: System::default(),
        messages: &[Message::user("Answer with one word: ready")],
        tools: &[],
        stream: true,
        cancel: &Cancel::new(Some(PATIENCE)),
    };
    match provider.chat(&request, &mut |_| ()) {
        Ok(reply) => {
            let text = one_line(&redactor.redact(reply.text), 60);
            let said = if text.is_empty() { format!("nothing within {TOKENS} tokens") } else { format!("\"{text}\"") };
            let took = millis(started.elapsed());
            Check::well(WHAT, format!("{model} said {said} after {took} ms"))
        }
        Err(ProviderError::Cancelled(_)) => {
            Check::fails(WHAT, format!("{model} said nothing in {} s", PATIENCE.as_secs()))
                .fix("check the network and the model's api_base, or try again later")
        }
        Err(e) => Check::of_error(WHAT, e.into_error(model)),
    }
}
