//! The model: which one answers, where its key comes from, and whether it does answer.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::Check;
use crate::cancel::Cancel;
use crate::config::vendors::Protocol;
use crate::config::{Config, Env, keys};
use crate::http::authority;
use crate::message::{Media, Message, Reply, User};
use crate::paths::Home;
use crate::provider::{Provider, ProviderError, Request, System, ToolOffer};
use crate::secret::Redactor;
use crate::text::{millis, one_line};

const NAME: &str = "model";

const TIMEOUT: Duration = Duration::from_secs(60);
/// Enough for a model that thinks first.
pub(crate) const MAX_TOKENS: u64 = 1024;

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

/// A red square.
const IMAGE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mP4z8BAEmIY1TCqYfhqAACQ+f8B8u7oVwAAAABJRU5ErkJggg==";

/// What a request brought besides its reply.
struct Asked {
    reply: Reply,
    /// Pieces of text and of thoughts.
    pieces: u32,
    first: Option<Duration>,
    took: Duration,
}

/// Asks twice, without a conversation: for a call of a tool, and about an image. Tells what works, and how fast.
pub(crate) fn ask(provider: &dyn Provider, redactor: &Redactor) -> Vec<Check> {
    const NAME: &str = "answer";
    let model = provider.model();
    if model.starts_with("demo/") {
        return vec![Check::info(NAME, format!("{model} is built in: there is no model to ask"))];
    }
    let failed = |e: ProviderError| match e {
        ProviderError::Cancelled(_) => Check::fail(NAME, format!("{model} said nothing in {} s", TIMEOUT.as_secs()))
            .fix("check the network and the model's api_base, or try again later"),
        e => Check::of_error(NAME, e.into_error(model)),
    };
    let ping = ToolOffer {
        name: "ping".into(),
        description: "Tests tool calls.".into(),
        schema: r#"{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}"#.into(),
    };
    let question = Message::user("Call the tool ping with the word ready.");
    let (called, without_tools) = match send(provider, question, &[ping]) {
        Ok(asked) => asked,
        Err(e) => return vec![failed(e)],
    };
    let image = Media { mime: "image/png".to_owned(), base64: IMAGE.to_owned(), ..Media::default() };
    let question = User {
        content: "Which colour is it? Answer in one sentence.".to_owned(),
        media: vec![image],
        ..User::default()
    };
    let (seen, without_images) = match send(provider, Message::User(question), &[]) {
        Ok(asked) => asked,
        Err(e) => return vec![failed(e)],
    };
    let text = one_line(&redactor.redact(seen.reply.text.clone()), 60);
    let checks = [
        Check::ok(NAME, format!("{model} said \"{text}\" after {} ms{}", millis(seen.took), speed(&seen))),
        match (without_tools, called.reply.calls.first()) {
            (Some(why), _) => Check::info("tools", why),
            (None, Some(_)) => Check::ok("tools", format!("{model} calls them")),
            (None, None) => Check::info("tools", format!("{model} was asked to call one, and did not")),
        },
        if seen.pieces > 1 {
            Check::ok("streaming", format!("{} pieces", seen.pieces))
        } else {
            Check::info("streaming", format!("{model} sends its answer in one piece"))
        },
        without_images
            .map_or_else(|| Check::ok("images", format!("{model} takes them")), |why| Check::info("images", why)),
    ];
    checks.into()
}

/// Asks once. The reply comes with what it was made without.
fn send(
    provider: &dyn Provider,
    message: Message,
    tools: &[ToolOffer],
) -> Result<(Asked, Option<String>), ProviderError> {
    let (started, pieces, first) = (Instant::now(), Cell::new(0), Cell::new(None));
    let count = |_: &str| {
        pieces.set(pieces.get() + 1);
        first.set(first.get().or(Some(started.elapsed())));
    };
    let request = Request {
        system: System::default(),
        messages: &[message],
        tools,
        stream: true,
        on_thought: &count,
        cancel: &Cancel::new(Some(TIMEOUT)),
    };
    let reply = provider.chat(&request, &mut |text| count(text))?;
    let asked = Asked { reply, pieces: pieces.get(), first: first.get(), took: started.elapsed() };
    Ok((asked, provider.left_out(&request)))
}

/// "; first byte after 300 ms, 40 tokens/s", as far as it can be told.
fn speed(asked: &Asked) -> String {
    let Some(first) = asked.first else { return String::new() };
    let (written, writing) = (asked.reply.usage.completion_tokens, millis(asked.took.saturating_sub(first)).max(1));
    let rate = if written > 0 && asked.pieces > 1 {
        format!(", {} tokens/s", written * 1000 / writing)
    } else {
        String::new()
    };
    format!("; first byte after {} ms{rate}", millis(first))
}
