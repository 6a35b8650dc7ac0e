//! Makes the host of a configured model: its API, its key, its proxy, and what was learned about it.

use std::sync::Arc;

use super::anthropic::ANTHROPIC;
use super::host::Host;
use super::learned::Learned;
use super::openai::{AZURE, OPENAI};
use crate::config::keys::ApiKey;
use crate::config::vendors::Protocol;
use crate::config::{Model, Parts};
use crate::redact::Redactor;
use crate::secret::Secret;

/// The host of a model; `None` for the demo.
pub(crate) fn connect(
    model: &Model,
    key: Option<&Secret>,
    parts: Parts,
    redactor: &Redactor,
) -> Option<Host> {
    connect_as(model, key, Learned::of(model, parts.home), parts, redactor)
}

/// The same, with what was learned about it.
pub(crate) fn connect_as(
    model: &Model,
    key: Option<&Secret>,
    learned: Learned,
    parts: Parts,
    redactor: &Redactor,
) -> Option<Host> {
    let dialect = match model.protocol {
        Protocol::OpenAi => &OPENAI,
        Protocol::Azure => &AZURE,
        Protocol::Anthropic => &ANTHROPIC,
        Protocol::Demo => return None,
    };
    let Parts { home, env, .. } = parts;
    let key = key.map(|key| {
        ApiKey::new(
            key.clone(),
            Arc::new(env.clone()),
            home.config(),
            redactor.clone(),
        )
    });
    Some(Host::new(dialect, model.clone(), key, learned, env))
}
