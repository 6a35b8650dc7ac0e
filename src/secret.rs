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
const KEY_SHAPES: [(&str, usize); 21] = [
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
    ("npm_", 36),
    ("pypi-", 50),
    ("dckr_pat_", 20),
    ("shpat_", 32),
    ("AGE-SECRET-KEY-1", 50),
    ("Bearer ", 16),
    ("bearer ", 16),
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
        secrets
            .into_iter()
            .for_each(|secret| redactor.learn(secret));
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

    /// `text` without configured secrets, keys of well-known shapes, bearer tokens, Telegram bot tokens and private key
    /// blocks. A plain `password=` stays: the model must be able to edit such a file.
    pub(crate) fn redact(&self, text: String) -> String {
        let mut text = text;
        for secret in self
            .known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
        {
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

/// The length of the well-known key at the start of `text`.
fn key_len(text: &str) -> Option<usize> {
    for (prefix, more) in KEY_SHAPES {
        let Some(rest) = text.strip_prefix(prefix) else {
            continue;
        };
        let is_token = |b: &u8| is_key_char(*b) || prefix.ends_with(' ') && b".~+/=".contains(b);
        let key: Vec<u8> = rest.bytes().take_while(is_token).collect();
        // Real keys have a digit, `sk-learn-...` does not.
        if key.len() >= more && key.iter().any(u8::is_ascii_digit) {
            return Some(prefix.len() + key.len());
        }
    }
    // A Telegram bot token: the bot's id, a colon, 35 key characters.
    let (id, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let key = rest
        .strip_prefix(':')?
        .bytes()
        .take_while(|b| is_key_char(*b))
        .count();
    ((6..=12).contains(&id.len()) && key == 35).then_some(id.len() + 36)
}

/// The length of the private key block at the start of `text`; one that is cut off runs to the end.
fn block_len(text: &str) -> Option<usize> {
    let (kind, _) = text.strip_prefix("-----BEGIN ")?.split_once("-----")?;
    let end = format!("-----END {kind}-----");
    kind.contains("PRIVATE KEY")
        .then(|| text.find(&end).map_or(text.len(), |at| at + end.len()))
}

fn redact_shapes(text: String) -> String {
    let mut out = String::new();
    let (mut kept, mut at) = (0, 0);
    while at < text.len() {
        let starts_word = at == 0 || !is_key_char(text.as_bytes()[at - 1]);
        let secret = text
            .get(at..)
            .filter(|_| starts_word)
            .and_then(|rest| key_len(rest).or_else(|| block_len(rest)));
        match secret {
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
        assert_eq!(
            redact("a hunter2hunter2 b short"),
            format!("a {REMOVED} b short")
        );
        redactor.clone().learn(Secret::new("hunter2hunter2hunter3"));
        assert_eq!(redact("hunter2hunter2hunter3"), REMOVED);
        assert_eq!(
            redact("KEY=sk-proj-0123456789abcdefghij."),
            format!("KEY={REMOVED}.")
        );
        let token = format!("1234567890:{}", "AAx".repeat(11) + "bc");
        assert_eq!(
            redact(&format!("日本 {token}!")),
            format!("日本 {REMOVED}!")
        );
        for plain in [
            "risk-0123456789abcdefghijklm",
            "sk-learn-is-a-python-library",
            "12:34:56",
            "2026:11",
        ] {
            assert_eq!(redact(plain), plain);
        }
    }

    #[test]
    fn keys_of_well_known_shapes_headers_and_private_key_blocks_are_removed_whole() {
        let redact = |text: &str| Redactor::default().redact(text.to_owned());
        let long = "a1".repeat(32);
        for key in [
            format!("npm_{}", &long[..36]),
            format!("pypi-{long}"),
            format!("dckr_pat_{}", &long[..27]),
            format!("shpat_{}", &long[..32]),
            format!("AGE-SECRET-KEY-1{}", long.to_uppercase()),
            format!("ghp_{}", &long[..36]),
            "AKIA0123456789ABCDEF".to_owned(),
        ] {
            assert_eq!(
                redact(&format!("x={key};")),
                format!("x={REMOVED};"),
                "{key}"
            );
        }
        let header =
            redact("GET / HTTP/1.1\nAuthorization: Bearer abc.def/g+h.1234567==\nAccept: */*");
        assert_eq!(
            header,
            format!("GET / HTTP/1.1\nAuthorization: {REMOVED}\nAccept: */*")
        );
        for kind in ["", "RSA ", "OPENSSH ", "ENCRYPTED "] {
            let block = format!(
                "-----BEGIN {kind}PRIVATE KEY-----\nMIIE\nvQ==\n-----END {kind}PRIVATE KEY-----"
            );
            assert_eq!(
                redact(&format!("key:\n{block}\nend")),
                format!("key:\n{REMOVED}\nend")
            );
            assert_eq!(redact(&block[..40]), REMOVED, "cut off");
        }
        for plain in [
            "password=hunter2hunter2",
            "npm_config_registry_2",
            "pypi-server-1.0-py3-none-any",
            "-H 'Authorization: Bearer $OPENAI_API_KEY'",
            "-----BEGIN CERTIFICATE-----",
            "-----BEGIN PUBLIC KEY-----",
        ] {
            assert_eq!(redact(plain), plain);
        }
    }
}
