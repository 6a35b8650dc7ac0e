//! Secrets: a type that cannot be printed, and the redactor that removes secrets from text.

use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Deserializer};

/// A key or token. Without `Debug` and `Display` it cannot end up in a log or an error by accident.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for a request's header and nothing else.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

const REMOVED: &str = "[secret removed]";

/// Shorter secrets, in bytes, are not removed: ordinary words would go too.
const MIN_LENGTH: usize = 12;

/// Prefixes of well-known keys, and how many key characters must follow.
const KEY_SHAPES: [(&str, usize); 14] = [
    ("sk-", 20),
    ("sk_live_", 16),
    ("rk_live_", 16),
    ("ghp_", 30),
    ("gho_", 30),
    ("ghs_", 30),
    ("github_pat_", 30),
    ("glpat-", 20),
    ("xoxb-", 20),
    ("xoxp-", 20),
    ("AKIA", 16),
    ("AIza", 30),
    ("gsk_", 20),
    ("hf_", 30),
];

/// Removes secrets from tool output before a model, a session or a log sees it. Clones share what they know.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    /// The longest first, so that a secret that contains another is removed whole.
    known: Arc<RwLock<Vec<Secret>>>,
}

impl Redactor {
    pub(crate) fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let redactor = Self::default();
        secrets.into_iter().for_each(|secret| redactor.learn(secret));
        redactor
    }

    /// Adds a secret, for example a key that was resolved just now.
    pub(crate) fn learn(&self, secret: Secret) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if secret.0.len() >= MIN_LENGTH && !known.contains(&secret) {
            let at = known.partition_point(|s| s.0.len() >= secret.0.len());
            known.insert(at, secret);
        }
    }

    /// `text` without configured secrets, keys of well-known shapes, and Telegram bot tokens.
    pub(crate) fn redact(&self, text: String) -> String {
        let mut text = text;
        for secret in self.known.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if text.contains(&secret.0) {
                text = text.replace(&secret.0, REMOVED);
            }
        }
        redact_shapes(text)
    }
}

fn is_key_char(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')
}

fn key_len(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| is_key_char(**b)).count()
}

/// The length of the well-known key at the start of `bytes`.
fn shape_at(bytes: &[u8]) -> Option<usize> {
    for (prefix, more) in KEY_SHAPES {
        if bytes.starts_with(prefix.as_bytes()) {
            let tail = key_len(&bytes[prefix.len()..]);
            // Real keys have a digit, `sk-learn-…` does not.
            if tail >= more && bytes[prefix.len()..prefix.len() + tail].iter().any(u8::is_ascii_digit) {
                return Some(prefix.len() + tail);
            }
        }
    }
    // A Telegram bot token: the bot's id, a colon, 35 key characters.
    let digits = bytes.iter().take_while(|b| b.is_ascii_digit()).count();
    if (6..=12).contains(&digits) && bytes.get(digits) == Some(&b':') && key_len(&bytes[digits + 1..]) == 35 {
        return Some(digits + 36);
    }
    None
}

fn redact_shapes(text: String) -> String {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let (mut kept, mut at) = (0, 0);
    while at < bytes.len() {
        let starts_word = at == 0 || !is_key_char(bytes[at - 1]);
        match starts_word.then(|| shape_at(&bytes[at..])).flatten() {
            Some(len) => {
                out.push_str(&text[kept..at]);
                out.push_str(REMOVED);
                at += len;
                kept = at;
            }
            None => at += 1,
        }
    }
    if kept == 0 {
        return text;
    }
    out.push_str(&text[kept..]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_secrets_and_key_shapes_are_removed_and_prose_is_not() {
        let redactor = Redactor::new([Secret::new("hunter2hunter2"), Secret::new("short")]);
        let redact = |text: &str| redactor.redact(text.to_owned());
        assert_eq!(redact("a hunter2hunter2 b short"), format!("a {REMOVED} b short"));
        redactor.clone().learn(Secret::new("hunter2hunter2hunter3"));
        assert_eq!(redact("hunter2hunter2hunter3"), REMOVED);
        assert_eq!(redact("KEY=sk-proj-0123456789abcdefghij."), format!("KEY={REMOVED}."));
        let token = format!("1234567890:{}", "AAx".repeat(11) + "bc");
        assert_eq!(redact(&format!("日本 {token}!")), format!("日本 {REMOVED}!"));
        for plain in ["risk-0123456789abcdefghijklm", "sk-learn-is-a-python-library", "12:34:56", "2026:11"] {
            assert_eq!(redact(plain), plain);
        }
    }
}
