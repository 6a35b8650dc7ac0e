//! Checks the model: its name, the source of its key, and whether it answers.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::Check;
use crate::cancel::Cancel;
use crate::config::vendors::Protocol;
use crate::config::{Config, Env, keys};
use crate::http::authority;
use crate::message::{Media, Message, Reply, User};
use crate::paths::Home;
use crate::provider::ollama;
use crate::provider::{Provider, ProviderError, Request, Sampling, System, ToolOffer};
use crate::redact::Redactor;
use crate::text::{millis, to_single_line};

const NAME: &str = "model";
const ANSWER: &str = "answer";

const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of an answer, in tokens; enough for a model that reasons first.
pub(crate) const MAX_TOKENS: u64 = 1024;

/// Reports the model that would answer, and the source of its key. Runs no command to get the key.
pub(crate) fn configured_model(home: &Home, config: &Config, env: &Env, configured: bool) -> Check {
    const EXPORT: &str = "export OPENROUTER_API_KEY=...    # or another vendor's";
    let model = match config.choose_model(env) {
        Err(e) => return Check::of_error(NAME, e),
        Ok(None) if configured => {
            return Check::fail(NAME, "none is configured and no key was found").fix(EXPORT);
        }
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

/// PNG of a red square.
const IMAGE: &str = "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mP4z8BAEmIY1TCqYfhqAACQ+f8B8u7oVwAAAABJRU5ErkJggg==";

/// Result of a request.
struct Asked {
    reply: Reply,
    /// Features that the model or its host refused.
    notice: Option<String>,
    /// Number of pieces of text and of reasoning.
    pieces: u32,
    first: Option<Duration>,
    took: Duration,
}

/// Sends two requests without a conversation, to test tool calls and images. Reports the results and the speed.
pub(crate) fn ask(provider: &dyn Provider, redactor: &Redactor) -> Vec<Check> {
    let model = provider.model();
    if model.starts_with("demo/") {
        return vec![Check::info(
            ANSWER,
            format!("{model} is built in: there is no model to ask"),
        )];
    }
    abilities(provider, redactor).unwrap_or_else(|e| match e {
        ProviderError::Cancelled(_) => {
            vec![
                Check::fail(
                    ANSWER,
                    format!("{model} said nothing in {} s", TIMEOUT.as_secs()),
                )
                .fix("check the network and the model's api_base, or try again later"),
            ]
        }
        e => vec![Check::of_error(ANSWER, e.into_error(model))],
    })
}

fn abilities(provider: &dyn Provider, redactor: &Redactor) -> Result<Vec<Check>, ProviderError> {
    let model = provider.model();
    let ping = ToolOffer {
        name: "ping".into(),
        description: "Tests tool calls.".into(),
        schema: r#"{"type":"object","properties":{"word":{"type":"string"}},"required":["word"]}"#
            .into(),
    };
    let called = send(
        provider,
        Message::user("Call the tool ping with the word ready."),
        &[ping],
    )?;
    let media = vec![Media {
        mime: "image/png".to_owned(),
        base64: IMAGE.to_owned(),
        ..Media::default()
    }];
    let content = "Which colour is it? Answer in one sentence.".to_owned();
    let seen = send(
        provider,
        Message::User(User {
            content,
            media,
            ..User::default()
        }),
        &[],
    )?;
    let text = to_single_line(&redactor.redact(seen.reply.text.clone()), 60);
    Ok(vec![
        Check::ok(
            ANSWER,
            format!(
                "{model} said \"{text}\" after {} ms{}",
                millis(seen.took),
                speed(&seen)
            ),
        ),
        match (called.notice, called.reply.calls.first()) {
            (Some(why), _) => Check::info("tools", why),
            (None, Some(_)) => Check::ok("tools", format!("{model} calls them")),
            (None, None) => Check::info(
                "tools",
                "the model answered in words instead of calling a tool; it may not support tools",
            ),
        },
        match seen.pieces {
            0 | 1 => Check::info(
                "streaming",
                format!("{model} sends its answer in one piece"),
            ),
            pieces => Check::ok("streaming", format!("{pieces} pieces")),
        },
        match seen.notice {
            Some(why) => Check::info("images", why),
            None => Check::ok("images", format!("{model} takes them")),
        },
    ])
}

/// Sends one request.
fn send(
    provider: &dyn Provider,
    message: Message,
    tools: &[ToolOffer],
) -> Result<Asked, ProviderError> {
    let (started, pieces, first) = (Instant::now(), Cell::new(0), Cell::new(None));
    let notice = Cell::new(None);
    let count = |_: &str| {
        pieces.set(pieces.get() + 1);
        first.set(first.get().or(Some(started.elapsed())));
    };
    let request = Request {
        system: System::default(),
        messages: &[message],
        tools,
        withheld: false,
        stream: true,
        sampling: &Sampling::default(),
        on_thought: &count,
        on_trace: &|_| (),
        on_notice: &|text| notice.set(Some(text.to_owned())),
        input_tokens: 0,
        cancel: &Cancel::new(Some(TIMEOUT)),
    };
    let reply = provider.chat(&request, &mut |text| count(text))?;
    let took = started.elapsed();
    Ok(Asked {
        reply,
        notice: notice.take(),
        pieces: pieces.get(),
        first: first.get(),
        took,
    })
}

/// Formats "; first byte after 300 ms, 40 tokens/s", as far as known.
fn speed(asked: &Asked) -> String {
    let Some(first) = asked.first else {
        return String::new();
    };
    let (written, writing) = (
        asked.reply.usage.completion_tokens,
        millis(asked.took.saturating_sub(first)).max(1),
    );
    let is_known = written > 0 && asked.pieces > 1;
    let rate = if is_known {
        format!(", {} tokens/s", written * 1000 / writing)
    } else {
        String::new()
    };
    format!("; first byte after {} ms{rate}", millis(first))
}
