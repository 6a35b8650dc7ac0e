//! Removes secrets from text: keys of this configuration, keys in well-known formats, and values with secret names.
//!
//! Names are more reliable than values: an upper-case name with a value, as in `DB_PASSWORD=hunter2`, is data. A lower-case
//! name is often code, so it only counts in the formats of YAML, INI and JSON.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::secret::Secret;
use crate::sync;
use crate::text::to_single_line;

/// Replacement of a secret.
pub(crate) const REMOVED: &str = "[secret removed]";

/// Secrets to remove from tool results, in addition to the keys of this configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Redact {
    /// Keys in well-known formats.
    Keys,
    /// Also values with names such as `PASSWORD`, `SECRET` and `TOKEN`.
    #[default]
    Secrets,
    Off,
}

/// Minimum length of removed secrets, in bytes, because shorter ones may be ordinary words.
const MIN_LENGTH: usize = 12;

/// Prefixes of well-known keys, each with the minimum number of key characters after it.
const KEY_SHAPES: &str = "sk- 20, sk_live_ 16, rk_live_ 16, ghp_ 30, gho_ 30, ghs_ 30, github_pat_ 30, \
    glpat- 20, xoxa- 20, xoxb- 20, xoxp- 20, xoxs- 20, AKIA 16, AIza 30, gsk_ 20, hf_ 30, npm_ 36, \
    pypi- 50, dckr_pat_ 20, shpat_ 32, dop_v1_ 60, tvly- 20, ya29. 30, whsec_ 24, xai- 40, r8_ 30, \
    AGE-SECRET-KEY-1 50, Bearer  16, bearer  16, Authorization: Basic  12";

/// Number of consecutive key characters that identify a line of a private key instead of a word.
const LINE_OF_A_KEY: usize = 24;

/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 64;
/// Maximum length of white space around a separator, and of text before a name on its line, in bytes.
const MAX_GAP: usize = 80;
/// Maximum length of a value that can be harmless, in bytes; limits the time for such values.
const MAX_KEPT: usize = 256;
/// Maximum number of values per text that are compared with the user's message; further values are removed.
const MAX_LOOKED_FOR: usize = 64;

/// Removes secrets from text before it reaches a model, a session or a log. Clones share their keys.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    /// Longest first, so that a secret that contains another is removed completely.
    known: Arc<Mutex<Vec<Secret>>>,
    /// What is removed from results of tools.
    pub(crate) level: Redact,
}

impl FromIterator<Secret> for Redactor {
    fn from_iter<I: IntoIterator<Item = Secret>>(secrets: I) -> Self {
        let redactor = Self::default();
        secrets
            .into_iter()
            .for_each(|secret| redactor.learn(secret));
        redactor
    }
}

/// Applies `change` to each text in a value, names included.
pub(crate) fn change_texts(value: &Value, change: &dyn Fn(&str) -> String) -> Value {
    let inner = |value: &Value| change_texts(value, change);
    match value {
        Value::String(text) => change(text).into(),
        Value::Array(list) => list.iter().map(inner).collect(),
        Value::Object(map) => {
            let fields = map.iter();
            fields
                .map(|(name, value)| (change(name), inner(value)))
                .collect()
        }
        other => other.clone(),
    }
}

impl Redactor {
    /// Adds a secret, for example a key that was just resolved.
    pub(crate) fn learn(&self, secret: Secret) {
        let mut known = sync::lock(&self.known);
        if secret.reveal().len() >= MIN_LENGTH && !known.contains(&secret) {
            let at = known.partition_point(|s| s.reveal().len() >= secret.reveal().len());
            known.insert(at, secret);
        }
    }

    /// Removes the keys of this configuration from `text`. Untrusted text cannot cause other removals.
    pub(crate) fn redact_known(&self, mut text: String) -> String {
        for secret in sync::lock(&self.known).iter() {
            if text.contains(secret.reveal()) {
                text = text.replace(secret.reveal(), REMOVED);
            }
        }
        text
    }

    /// Removes the keys of this configuration from the next piece of a text. An end that may begin a key waits in `held`.
    pub(crate) fn redact_piece(&self, held: &mut String, piece: &str) -> String {
        let mut text = self.redact_known(std::mem::take(held) + piece);
        let known = sync::lock(&self.known);
        let longest = known.first().map_or(0, |key| key.reveal().len());
        let ends = text.char_indices().map(|(at, _)| at);
        let mut ends = ends.skip_while(|at| text.len() - at >= longest);
        let begins = |at: &usize| {
            let is_of = |key: &Secret| key.reveal().starts_with(&text[*at..]);
            known.iter().any(is_of)
        };
        if let Some(at) = ends.find(begins) {
            *held = text.split_off(at);
        }
        text
    }

    /// Removes configured keys and keys in well-known formats.
    pub(crate) fn redact(&self, text: String) -> String {
        self.removed(text, Redact::Keys, "")
    }

    /// Removes secrets from a tool's output, except those in the user's message.
    pub(crate) fn redact_output(&self, output: String, user_text: &str) -> String {
        self.removed(output, self.level, user_text)
    }

    /// Sanitizes untrusted text, such as a host's error or a server's description, to one line of up to `max` characters.
    /// Secrets are removed before truncating, because a truncated key would not be recognized.
    pub(crate) fn foreign(&self, text: &str, max: usize) -> String {
        to_single_line(&self.redact(text.to_owned()), max)
    }

    fn removed(&self, text: String, level: Redact, user_text: &str) -> String {
        let text = self.redact_known(text);
        if level == Redact::Off {
            return text;
        }
        let scanner = Scanner {
            text: &text,
            has_names: level == Redact::Secrets,
            user_text,
            lookups: MAX_LOOKED_FOR,
            end_of_word: 0,
        };
        scanner.removed().unwrap_or(text)
    }
}

/// Whether a setting or an argument of this name is a secret.
pub(crate) fn is_secret_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("key") || Promise::of_name(name).is_some()
}

fn is_key_char(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')
}

fn key_chars(text: &str) -> usize {
    text.bytes().take_while(|b| is_key_char(*b)).count()
}

/// Returns the length of the well-known key at the start of `text`.
fn key_len(text: &str, shapes: &[(&str, usize)]) -> Option<usize> {
    for (prefix, more) in shapes {
        let Some(rest) = text.strip_prefix(prefix) else {
            continue;
        };
        let is_token = |b: &u8| is_key_char(*b) || prefix.ends_with(' ') && b".~+/=".contains(b);
        let len = rest.bytes().take_while(is_token).count();
        // Real keys contain a digit; `sk-learn-...` does not.
        if len >= *more && rest[..len].bytes().any(|b| b.is_ascii_digit()) {
            return Some(prefix.len() + len);
        }
    }
    // A key of SendGrid: two parts of 22 and 43 characters.
    if let Some(rest) = text.strip_prefix("SG.") {
        let id = key_chars(rest);
        let key = rest[id..].strip_prefix('.').map_or(0, key_chars);
        return (id >= 16 && key >= 32).then_some("SG.".len() + id + 1 + key);
    }
    // A Telegram bot token: the bot's id, a colon, 35 key characters.
    let (id, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let key = key_chars(rest.strip_prefix(':')?);
    ((6..=12).contains(&id.len()) && key == 35).then_some(id.len() + 36)
}

/// Returns the kind of private key whose first or last line this is, and the length of the line.
fn private_key_line<'a>(text: &'a str, dashes: &str) -> Option<(&'a str, usize)> {
    let rest = text.strip_prefix(dashes)?;
    let line = &rest.as_bytes()[..rest.len().min(60)];
    let len = line
        .iter()
        .take_while(|b| b.is_ascii_uppercase() || **b == b' ')
        .count();
    let kind = &rest[..len];
    let is_line = kind.contains("PRIVATE KEY") && rest[len..].starts_with("-----");
    is_line.then_some((kind, dashes.len() + len + "-----".len()))
}

/// Returns the length of the private key block at the start of `text`. A truncated block ends with its last line of key
/// characters.
fn block_len(text: &str) -> Option<usize> {
    let (kind, begin) = private_key_line(text, "-----BEGIN ")?;
    // Keys do not contain this many dashes, and the search does not scan text twice.
    let len = text[begin..].find("-----");
    let (body, rest) = text[begin..].split_at(len.unwrap_or(text.len() - begin));
    let end = format!("-----END {kind}-----");
    if rest.starts_with(&end) {
        return Some(begin + body.len() + end.len());
    }
    let is_bare = |line: &str| {
        line.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+/=-".contains(&b))
    };
    let is_key = |line: &str| {
        let runs = line.split(|c: char| !(c.is_ascii_alphanumeric() || "+/=".contains(c)));
        runs.map(str::len).max() >= Some(LINE_OF_A_KEY) || line.contains(": ") && line.len() < 80
    };
    let lines = body.split_inclusive('\n');
    let of_key = lines.take_while(|line| is_bare(line.trim()) || is_key(line));
    let len: usize = of_key.map(str::len).sum();
    (!body[..len].trim().is_empty()).then_some(begin + len)
}

/// Returns the range of a private key whose beginning is missing, if its last line is at `at`.
fn end_of_block(text: &str, at: usize) -> Option<Range<usize>> {
    private_key_line(&text[at..], "-----END ")?;
    let is_key = |line: &&str| {
        let line = line.trim();
        line.len() >= 4
            && line
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
    };
    // Counts each line with the line feed before it.
    let lines = text[..at].strip_suffix('\n')?.rsplit('\n');
    let len: usize = lines.take_while(is_key).map(|line| line.len() + 1).sum();
    (len > 0).then_some(at - len.min(at)..at)
}

/// Returns the length of the JSON web token at the start of `text`: two parts that are objects, and a signature.
fn web_token_len(text: &str) -> Option<usize> {
    let part = |from: usize| key_chars(text.get(from..).unwrap_or_default());
    if !text.starts_with("eyJ") {
        return None;
    }
    let header = part(0);
    let claims = part(header + 1);
    let is_token = text[header..].starts_with(".eyJ") && header > 12 && claims > 12;
    let both = header + 1 + claims;
    let signature = if text.get(both..).is_some_and(|rest| rest.starts_with('.')) {
        1 + part(both + 1)
    } else {
        0
    };
    is_token.then_some(both + signature)
}

/// Returns the range of a key in a well-known format at `at`.
fn key_at(text: &str, at: usize, shapes: &[(&str, usize)]) -> Option<Range<usize>> {
    let rest = text.get(at..)?;
    if rest.starts_with("://") {
        return password_at(text, at + "://".len());
    }
    if at > 0 && is_key_char(text.as_bytes()[at - 1]) {
        return None;
    }
    let len = key_len(rest, shapes)
        .or_else(|| block_len(rest))
        .or_else(|| web_token_len(rest));
    match len {
        Some(len) => Some(at..at + len),
        None => end_of_block(text, at),
    }
}

/// Returns the password of an address whose user and host start at `from`: `scheme://user:PASSWORD@host`.
fn password_at(text: &str, from: usize) -> Option<Range<usize>> {
    let rest = &text[from..];
    let ends = |c: char| c.is_ascii_whitespace() || matches!(c, '/' | '"' | '\'' | '`' | '<' | '>');
    let authority = &rest[..rest.find(ends).unwrap_or(rest.len())];
    let (user, _) = authority.rsplit_once('@')?;
    let (name, password) = user.split_once(':')?;
    let start = from + name.len() + 1;
    (!is_kept(password)).then(|| start..start + password.len())
}

/// Kind of the value that a name suggests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Promise {
    /// The value may be a word.
    Password,
    /// The value has a digit, or is long.
    Token,
}

impl Promise {
    /// Returns the kind for a secret name, such as `DB_PASSWORD`, `access-token` or `apiKey`.
    fn of_name(name: &str) -> Option<Self> {
        const PASSWORDS: &str = "PASSWORD PASSWD PASSPHRASE PASS PWD SECRET CREDENTIALS APIKEY";
        // `SECRET_NAME` refers to a secret, but does not contain it.
        const OTHERS: &str = "NAME ID FILE PATH DIR URL TYPE VERSION LENGTH COUNT LIMIT";
        // Cursors of lists are called tokens: `nextPageToken`.
        const PUBLIC: &str = "PUBLIC NEXT PAGE";
        // Other words that end like a secret's.
        const ORDINARY: &str = "BYPASS COMPASS OVERPASS TRESPASS OLDPWD";
        let is_in = |words: &str, part: &str| words.split(' ').any(|word| word == part);
        let parts = parts(name);
        let ends = |word: &str| {
            let mut parts = parts.iter().filter(|part| !is_in(ORDINARY, part));
            parts.any(|part| part.ends_with(word))
        };
        let last = parts.last()?.as_str();
        if is_in(OTHERS, last) || parts.iter().any(|part| is_in(PUBLIC, part)) {
            None
        } else if PASSWORDS.split(' ').any(ends) {
            Some(Self::Password)
        } else if ends("TOKEN") || parts.len() > 1 && last == "KEY" {
            Some(Self::Token)
        } else {
            None
        }
    }

    fn may_be(self, value: &str) -> bool {
        self == Self::Password || value.len() >= 16 || value.contains(|c: char| c.is_ascii_digit())
    }
}

/// Splits a name into upper-case parts without numbers: `DB_PASSWORD_2`, `db-password` and `dbPassword` have two.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = ' ';
    for c in name.chars() {
        if !c.is_ascii_alphabetic() || c.is_ascii_uppercase() && before.is_ascii_lowercase() {
            parts.push(String::new());
        }
        if let (Some(part), true) = (parts.last_mut(), c.is_ascii_alphabetic()) {
            part.push(c.to_ascii_uppercase());
        }
        before = c;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// Whether a value is harmless, even with a secret name.
fn is_kept(value: &str) -> bool {
    const NOTHING: [&str; 6] = ["true", "false", "null", "none", "undefined", "string"];
    const PLACES: &str = "/ ./ ../ ~/ file: cmd: env: http:// https://";
    value.len() < 4
        || value.len() <= MAX_KEPT
            && (is_reference(value)
                // A key in base64 may start with a slash.
                || PLACES.split(' ').any(|start| value.starts_with(start)) && !value.contains(['+', '='])
                || NOTHING.iter().any(|word| value.eq_ignore_ascii_case(word))
                || value.bytes().all(|b| b == value.as_bytes()[0]))
}

/// Whether a value is a placeholder: `$X`, `${X}`, `$(x)`, `{{X}}`, `<X>`, `process.env.X`.
fn is_reference(value: &str) -> bool {
    let is_name = |name: &str| name.bytes().all(is_key_char);
    let starts =
        |name: &str| name.starts_with(|c: char| c.is_ascii_alphabetic() || "_{(|".contains(c));
    match value.split_at_checked(1) {
        Some(("$", name)) => name.starts_with(['{', '(']) || starts(name) && is_name(name),
        Some(("<", name)) => starts(name),
        _ if value.starts_with("{{") => true,
        _ => {
            let is_letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
            let is_word = |word: &str| !word.is_empty() && word.bytes().all(is_letter);
            let value = value.trim_end_matches([',', ';']);
            value.contains('.') && value.split('.').all(is_word)
        }
    }
}

/// Returns the start of the value whose name ends at `at`, and whether the name is in quotes, as in JSON.
fn value_start(bytes: &[u8], at: usize) -> Option<(usize, bool)> {
    let quote = quote_len(&bytes[at..]);
    let is_index = quote > 0 && bytes.get(at + quote) == Some(&b']');
    let begin = at + quote + usize::from(is_index);
    let sign = begin + blanks(&bytes[begin..]);
    let len = match &bytes[sign..] {
        [b'=', b'=' | b'~', ..] | [b':', b':', ..] => return None,
        [b'=', b'>', ..] | [b':', b'=', ..] => 2,
        [b'=' | b':', ..] => 1,
        _ => return None,
    };
    Some((sign + len + blanks(&bytes[sign + len..]), quote > 0))
}

fn blanks(bytes: &[u8]) -> usize {
    let blanks = bytes.iter().take(MAX_GAP);
    blanks.take_while(|b| matches!(b, b' ' | b'\t')).count()
}

fn quote_len(bytes: &[u8]) -> usize {
    match bytes {
        [b'"' | b'\'', ..] => 1,
        [b'\\', b'"' | b'\'', ..] => 2,
        _ => 0,
    }
}

/// Searches a text for secrets, from start to end.
struct Scanner<'a> {
    text: &'a str,
    /// Whether to search for secret names.
    has_names: bool,
    user_text: &'a str,
    /// Remaining number of values to compare with the user's message.
    lookups: usize,
    /// End of the last unquoted value, which many names in the value may need.
    end_of_word: usize,
}

impl Scanner<'_> {
    /// Returns the text with each secret replaced; `None` if it has no secrets.
    fn removed(mut self) -> Option<String> {
        let shapes = KEY_SHAPES.split(", ").filter_map(|shape| {
            let (prefix, more) = shape.rsplit_once(' ')?;
            Some((prefix, more.parse().ok()?))
        });
        let shapes = &shapes.collect::<Vec<_>>();
        let mut out = String::new();
        let (mut kept, mut at) = (0, 0);
        while at < self.text.len() {
            let found = key_at(self.text, at, shapes).or_else(|| self.named_at(at));
            let Some(secret) = found.filter(|found| !self.is_said(found)) else {
                at += 1;
                continue;
            };
            out.push_str(&self.text[kept..secret.start.max(kept)]);
            out.push_str(REMOVED);
            (kept, at) = (secret.end, secret.end.max(at + 1));
        }
        (kept > 0).then(|| out + &self.text[kept..])
    }

    /// Whether the user's message contains this value.
    fn is_said(&mut self, value: &Range<usize>) -> bool {
        self.lookups = self.lookups.saturating_sub(1);
        self.lookups > 0 && self.user_text.contains(&self.text[value.clone()])
    }

    /// Returns the secret value of the name that starts at `at`.
    fn named_at(&mut self, at: usize) -> Option<Range<usize>> {
        let bytes = self.text.as_bytes();
        if !self.has_names || !is_key_char(bytes[at]) || at > 0 && is_key_char(bytes[at - 1]) {
            return None;
        }
        // A line may start within a string: `"DEBUG=1\nDB_PASSWORD=hunter2"`.
        let is_escape = at > 0 && bytes[at - 1] == b'\\' && matches!(bytes[at], b'n' | b'r' | b't');
        let at = at + usize::from(is_escape);
        let letters = bytes[at..].iter().take(MAX_NAME + 1);
        let len = letters.take_while(|b| is_key_char(**b)).count();
        if len > MAX_NAME {
            return None;
        }
        let name = &self.text[at..at + len];
        let (start, is_quoted) = value_start(bytes, at + len)?;
        let promise = Promise::of_name(name)?;
        let is_upper = !name.contains(|c: char| c.is_ascii_lowercase() || c == '-');
        let (range, quote) = self.value(start);
        let value = &self.text[range.clone()];
        let is_spaced = bytes[at + len].is_ascii_whitespace();
        let is_data = match quote {
            0 if is_upper && !is_spaced => true,
            // Code has brackets, or ends with a comma or a semicolon.
            0 => {
                self.is_line(at, range.end)
                    && !value.contains(['(', '[', '{', '<'])
                    && !value.ends_with([',', ';'])
            }
            _ => is_upper || is_quoted || self.is_line(at, range.end + quote),
        };
        // The result of a test: `--- PASS: NAME`.
        let is_result = name == "PASS" && bytes[at + len] == b':';
        let is_mark = |text: &str| text.starts_with(REMOVED) || text.starts_with("-----BEGIN");
        let is_secret = is_data
            && !is_result
            && promise.may_be(value)
            && !is_kept(value)
            && !value.eq_ignore_ascii_case(name)
            && !is_mark(&self.text[range.start..]);
        is_secret.then_some(range)
    }

    /// Returns the range of the value that starts at `start`, and the length of its quotes. A quoted value ends at its quote or
    /// its line; others end at white space or any quote.
    fn value(&mut self, start: usize) -> (Range<usize>, usize) {
        let bytes = self.text.as_bytes();
        let quote = quote_len(&bytes[start..]);
        let from = start + quote;
        if quote == 0 {
            if self.end_of_word < start {
                let ends = |c: char| c.is_ascii_whitespace() || matches!(c, '"' | '\'' | '`');
                let len = self.text[start..].find(ends);
                self.end_of_word = len.map_or(self.text.len(), |len| start + len);
            }
            return (start..self.end_of_word, 0);
        }
        let mark = &bytes[start..from];
        let is_escaped = |at: usize| quote == 1 && at > from && bytes[at - 1] == b'\\';
        let ends = |at: &usize| {
            matches!(bytes[*at], b'\n' | b'\r')
                || bytes[*at..].starts_with(mark) && !is_escaped(*at)
        };
        (
            from..(from..bytes.len()).find(ends).unwrap_or(bytes.len()),
            quote,
        )
    }

    /// Whether a name at `at` and its value, which ends at `end` with its quote, fill a line, as in YAML, INI and JSON.
    fn is_line(&self, at: usize, end: usize) -> bool {
        let bytes = self.text.as_bytes();
        let window = &bytes[at.saturating_sub(MAX_GAP)..at];
        let before = window.rsplit(|b| matches!(b, b'\n' | b'\r')).next();
        let before = before.unwrap_or_default();
        // The start of the name in `db.password` and `$password`.
        let own = before.iter().rposition(u8::is_ascii_whitespace);
        let before = before[..own.map_or(0, |at| at + 1)].trim_ascii();
        // A mark of a list or of a difference, or the location of a search result: `file.yml:12:`.
        let is_first = before.iter().all(|b| b" \t-+".contains(b))
            || before.ends_with(b":") && !before.contains(&b' ');
        let mut after = bytes[end.min(bytes.len())..].iter().take(MAX_GAP);
        let after = after.find(|b| !b" \t,;".contains(b));
        is_first && matches!(after, None | Some(b'\n' | b'\r' | b'#'))
    }
}

#[cfg(test)]
mod tests;
