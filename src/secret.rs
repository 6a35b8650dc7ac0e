//! Secrets: a type that cannot be printed, and the redactor that strikes known secrets from text.

use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Deserializer};

/// A key or token. It has no `Debug` and no `Display`, so that it cannot end up in a log or an error by accident.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself. Every caller puts it straight into a request's header.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self)
    }
}

/// What stands where a secret stood.
const STRUCK: &str = "[secret removed]";

/// A configured secret shorter than this is not struck: it would strike ordinary words too.
const SHORTEST: usize = 12;

/// Beginnings of well-known keys, and how many key characters must follow.
const SHAPES: [(&str, usize); 14] = [
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

/// Strikes secrets from what tools say before a model, a session or a log sees it. Clones know the same secrets.
#[derive(Clone, Default)]
pub struct Redactor {
    /// The longest first, so that a secret that contains another is struck whole.
    known: Arc<RwLock<Vec<Secret>>>,
}

impl Redactor {
    pub fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let redactor = Self::default();
        secrets.into_iter().for_each(|secret| redactor.learn(secret));
        redactor
    }

    /// One more secret, known from now on: a key that was only now looked up.
    pub fn learn(&self, secret: Secret) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if secret.0.len() >= SHORTEST && !known.contains(&secret) {
            let at = known.partition_point(|s| s.0.len() >= secret.0.len());
            known.insert(at, secret);
        }
    }

    /// `text` without configured secrets, keys of well-known shapes, and Telegram bot tokens.
    pub fn redact(&self, text: String) -> String {
        let mut text = text;
        for secret in self.known.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if text.contains(&secret.0) {
                text = text.replace(&secret.0, STRUCK);
            }
        }
        strike_shapes(text)
    }
}

fn is_key_char(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')
}

/// How many key characters `bytes` begins with.
fn key_len(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|b| is_key_char(**b)).count()
}

/// The length of the well-known key that `bytes` begins with.
fn shape_at(bytes: &[u8]) -> Option<usize> {
    for (prefix, more) in SHAPES {
        if bytes.starts_with(prefix.as_bytes()) {
            let tail = key_len(&bytes[prefix.len()..]);
            // A word of letters alone (`sk-learn-…`) is no key: every real one has a digit.
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

fn strike_shapes(text: String) -> String {
    let bytes = text.as_bytes();
    let mut out = String::new();
    let (mut kept, mut at) = (0, 0);
    while at < bytes.len() {
        let starts_word = at == 0 || !is_key_char(bytes[at - 1]);
        match starts_word.then(|| shape_at(&bytes[at..])).flatten() {
            Some(len) => {
                out.push_str(&text[kept..at]);
                out.push_str(STRUCK);
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
    fn configured_secrets_and_key_shapes_are_struck_and_prose_is_not() {
        let redactor = Redactor::new([Secret::new("hunter2hunter2"), Secret::new("short")]);
        let redact = |text: &str| redactor.redact(text.to_owned());
        assert_eq!(redact("a hunter2hunter2 b short"), format!("a {STRUCK} b short"));
        redactor.clone().learn(Secret::new("hunter2hunter2hunter3"));
        assert_eq!(redact("hunter2hunter2hunter3"), STRUCK);
        assert_eq!(redact("KEY=sk-proj-0123456789abcdefghij."), format!("KEY={STRUCK}."));
        let token = format!("1234567890:{}", "AAx".repeat(11) + "bc");
        assert_eq!(redact(&format!("日本 {token}!")), format!("日本 {STRUCK}!"));
        for plain in ["risk-0123456789abcdefghijklm", "sk-learn-is-a-python-library", "12:34:56", "2026:11"] {
            assert_eq!(redact(plain), plain);
        }
    }
}
