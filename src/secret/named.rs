//! Secrets that have no shape of their own: what stands behind names such as `DB_PASSWORD=`, `"token":` and `<secret>`, and the
//! password of an address. Source code has the same names before types, calls and variables: those stay readable.

use std::ops::Range;

use super::{REMOVED, is_key_char};

/// A longer name is none, in bytes.
const MAX_NAME: usize = 64;
/// How much of a value is judged, in bytes: it ends at its quote, or at white space.
const MAX_VALUE: usize = 4096;
/// White space between a name and its value.
const MAX_GAP: usize = 40;

/// Words that stand for a secret in examples, or for its absence.
const PLACEHOLDERS: [&str; 24] = [
    "your",
    "<",
    "[",
    "...",
    "changeme",
    "change-me",
    "change_me",
    "changeit",
    "replace",
    "insert",
    "enter",
    "xxx",
    "***",
    "todo",
    "redacted",
    "hidden",
    "placeholder",
    "example",
    "dummy",
    "null",
    "none",
    "undefined",
    "true",
    "false",
];
/// Words of which names, types and labels consist: a value of nothing else is one of these.
const NAMING: [&str; 75] = [
    "a", "access", "admin", "any", "api", "app", "auth", "base64", "basic", "bearer", "bool",
    "boolean", "bytes", "char", "client", "confirm", "cookie", "csrf", "current", "data", "db",
    "default", "env", "error", "field", "file", "form", "get", "hash", "header", "i32", "i64",
    "id", "input", "int", "int32", "int64", "is", "key", "label", "login", "my", "name", "new",
    "nil", "number", "object", "old", "optional", "pass", "passwd", "password", "refresh",
    "required", "reset", "root", "secret", "self", "session", "sha256", "str", "string", "test",
    "text", "the", "token", "type", "u32", "u64", "u8", "user", "utf8", "value", "varchar", "x",
];
/// What stands behind `secret` in names of something else.
const NOT_SECRET: [&str; 19] = [
    "s",
    "ary",
    "name",
    "names",
    "id",
    "ref",
    "refs",
    "type",
    "url",
    "uri",
    "path",
    "file",
    "dir",
    "arn",
    "store",
    "version",
    "length",
    "provider",
    "namespace",
];
/// What stands before `token` in names of marks and places.
const NOT_TOKEN: [&str; 16] = [
    "page",
    "continuation",
    "next",
    "sync",
    "eos",
    "bos",
    "pad",
    "unk",
    "sep",
    "mask",
    "cls",
    "stop",
    "end",
    "start",
    "cancellation",
    "special",
];
const KEYS: [&str; 9] = [
    "apikey",
    "accesskey",
    "privatekey",
    "authkey",
    "encryptionkey",
    "signingkey",
    "masterkey",
    "sharedkey",
    "accountkey",
];

/// What a name promises.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A word may be one.
    Password,
    /// It looks like chance.
    Token,
}

pub(super) struct Name {
    kind: Kind,
    /// As variables of the environment are written.
    is_upper: bool,
}

impl Name {
    pub(super) fn of(name: &str) -> Option<Self> {
        let is_upper = !name.bytes().any(|b| b.is_ascii_lowercase());
        let plain: String = name
            .chars()
            .filter(char::is_ascii_alphanumeric)
            .map(|c| c.to_ascii_lowercase())
            .collect();
        let plain = plain.trim_end_matches(|c: char| c.is_ascii_digit());
        let ends = |words: &[&str]| words.iter().any(|word| plain.ends_with(word));
        let is_password = ends(&["password", "passwd", "passphrase"])
            || ends(&["pwd"]) && !matches!(plain, "pwd" | "oldpwd")
            || plain == "pass"
            || is_upper && name.ends_with("_PASS")
            || plain
                .rsplit_once("secret")
                .is_some_and(|(_, rest)| !NOT_SECRET.contains(&rest));
        let is_token = plain
            .strip_suffix("token")
            .is_some_and(|before| !NOT_TOKEN.iter().any(|word| before.ends_with(word)))
            || ends(&KEYS)
            || is_upper && name.ends_with("_KEY") && !plain.contains("public");
        let kind = match (is_password, is_token) {
            (true, _) => Kind::Password,
            (false, true) => Kind::Token,
            (false, false) => return None,
        };
        Some(Self { kind, is_upper })
    }
}

/// How a value is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Quoted,
    /// The whole rest of a line that begins with its name, as in YAML and INI files.
    Line,
    /// Among other words, as in code and prose.
    Bare,
}

/// How many bytes of values may be judged in a text of this length. A text made of names repeats a value behind each: beyond
/// this, what stands behind a name is secret unseen.
pub(super) fn budget(len: usize) -> usize {
    2 * len + (64 << 10)
}

/// Where the secret value of the name at `at` is, which begins a word.
pub(super) fn value_at(text: &str, at: usize, budget: &mut usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let rest = &bytes[at..];
    let len = rest
        .iter()
        .take_while(|b| is_key_char(**b))
        .take(MAX_NAME + 1)
        .count();
    if !(4..=MAX_NAME).contains(&len) {
        return None;
    }
    let start = after_separator(bytes, at, at + len)?;
    let name = Name::of(&text[at..at + len])?;
    let (value, form) = value(text, at, start);
    *budget = budget.saturating_sub(value.len());
    if *budget == 0 {
        return text
            .get(value.clone())
            .filter(|v| !v.is_empty())
            .map(|_| value);
    }
    let may_be = |value: &Range<usize>, form| {
        text.get(value.clone())
            .is_some_and(|value| is_secret(value, &name, form))
    };
    if may_be(&value, form) {
        return Some(value.start..end_of_long(text, &value));
    }
    // A constant with its type: `PASSWORD: &str = "..."`.
    let line = &bytes[start..bytes.len().min(start + MAX_GAP)];
    let is_of_type = |b: &u8| b.is_ascii_alphanumeric() || b" &'_<>[]:".contains(b);
    let type_len = line.iter().take_while(|b| is_of_type(b)).count();
    if line.get(type_len) != Some(&b'=') || form == Form::Quoted {
        return None;
    }
    let start = start + type_len + 1;
    let start = start + gap(&bytes[start..]);
    let (value, form) = self::value(text, at, start);
    let is_value = form == Form::Quoted && may_be(&value, form);
    is_value.then(|| value.start..end_of_long(text, &value))
}

/// Where a value ends that may be longer than what of it is judged.
fn end_of_long(text: &str, value: &Range<usize>) -> usize {
    // The last character of what is judged may reach beyond it.
    if value.len() + 3 < MAX_VALUE {
        return value.end;
    }
    let rest = &text[value.end..];
    let ends = |c: char| c.is_ascii_whitespace() || matches!(c, '"' | '\'' | '`');
    value.end + rest.find(ends).unwrap_or(rest.len())
}

fn gap(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take(MAX_GAP)
        .take_while(|b| matches!(b, b' ' | b'\t'))
        .count()
}

fn quote_len(bytes: &[u8]) -> usize {
    match bytes {
        [b'"' | b'\'' | b'`', ..] => 1,
        [b'\\', b'"' | b'\'', ..] => 2,
        _ => 0,
    }
}

/// Where a value begins behind a name that reaches from `at` to `end`, if one can.
fn after_separator(bytes: &[u8], at: usize, end: usize) -> Option<usize> {
    let mut next = end;
    if at > 0 && bytes[at - 1] == b'<' && bytes.get(next) == Some(&b'>') {
        return Some(next + 1);
    }
    next += quote_len(&bytes[next..]);
    if bytes.get(next) == Some(&b']') {
        next += 1;
    }
    next += gap(&bytes[next..]);
    next += match &bytes[next..] {
        [b'=', b'=' | b'~', ..] | [b':', b':', ..] => return None,
        [b'=', b'>', ..] | [b':', b'=', ..] => 2,
        [b'=' | b':', ..] => 1,
        _ => return None,
    };
    Some(next + gap(&bytes[next..]))
}

/// The value that begins at `start`, of the name at `at`.
fn value(text: &str, at: usize, start: usize) -> (Range<usize>, Form) {
    let bytes = text.as_bytes();
    let ends_line = |b: &u8| matches!(b, b'\n' | b'\r');
    // Python and Rust write a letter before the quote.
    let prefix = usize::from(
        matches!(bytes.get(start), Some(b'b' | b'r' | b'f' | b'u'))
            && quote_len(&bytes[start + 1..]) == 1,
    );
    let quote = quote_len(&bytes[start + prefix..]);
    let end_of = |from: usize, ends: &dyn Fn(usize) -> bool| {
        let mut last = bytes.len().min(from + MAX_VALUE);
        while !text.is_char_boundary(last) {
            last -= 1;
        }
        (from..last).find(|at| ends(*at)).unwrap_or(last)
    };
    if quote > 0 {
        let from = start + prefix + quote;
        let mark = &bytes[start + prefix..from];
        let is_escaped = |at: usize| quote == 1 && at > from && bytes[at - 1] == b'\\';
        let end = end_of(from, &|at| {
            ends_line(&bytes[at]) || bytes[at..].starts_with(mark) && !is_escaped(at)
        });
        return (from..end, Form::Quoted);
    }
    if start > 0 && bytes[start - 1] == b'>' && at > 0 && bytes[at - 1] == b'<' {
        let end = end_of(start, &|at| bytes[at] == b'<' || ends_line(&bytes[at]));
        return (start..end, Form::Quoted);
    }
    let end = end_of(start, &|at| {
        bytes[at].is_ascii_whitespace() || matches!(bytes[at], b'"' | b'\'' | b'`')
    });
    // `db.password` is one name.
    let before = |from: usize, is: &dyn Fn(u8) -> bool| {
        let back = bytes[..from].iter().rev().take(MAX_GAP);
        back.take_while(|b| is(**b)).count()
    };
    let whole = at - before(at, &|b| is_key_char(b) || b == b'.');
    let line_starts = before(whole, &|b| matches!(b, b' ' | b'-' | b'\t'));
    let begins_line = whole == line_starts || ends_line(&bytes[whole - line_starts - 1]);
    let is_last = bytes.get(end).is_none_or(ends_line);
    // Code has spaces around `=`, and indents it.
    let is_assigned = bytes[start - 1] != b':' && bytes[at..start].contains(&b'=');
    let is_code = is_assigned && (line_starts > 0 || bytes[start - 1] == b' ');
    let form = if begins_line && is_last && !is_code {
        Form::Line
    } else {
        Form::Bare
    };
    (start..end, form)
}

fn is_secret(value: &str, name: &Name, form: Form) -> bool {
    let lower = value.to_ascii_lowercase();
    if value.len() < 4
        || value.contains(REMOVED)
        || value.starts_with("-----BEGIN")
        || PLACEHOLDERS.iter().any(|word| lower.starts_with(word))
        || is_reference(value)
        || is_place(value)
        || is_naming(value)
        || value.bytes().all(|b| b == value.as_bytes()[0])
    {
        return false;
    }
    let has = |is: fn(&u8) -> bool| value.as_bytes().iter().any(is);
    let (letters, digits) = (has(u8::is_ascii_alphabetic), has(u8::is_ascii_digit));
    if value.contains(char::is_whitespace) {
        return name.is_upper && name.kind == Kind::Password && form == Form::Quoted;
    }
    let mut others = value.chars().skip(1);
    let has_mark = value.len() >= 8 && others.any(|c| "@#!^~%&*".contains(c));
    let is_word = !digits
        && value
            .bytes()
            .all(|b| b.is_ascii_alphabetic() || b"-_.".contains(&b));
    let capitals = value.bytes().filter(u8::is_ascii_uppercase).count();
    let is_capitalized = capitals == 1 && value.as_bytes()[0].is_ascii_uppercase();
    if name.kind == Kind::Token && is_word {
        return form != Form::Bare && value.len() >= 20 && !value.contains(['-', '_', '.']);
    }
    if name.kind == Kind::Token {
        return value.len() >= 8 && letters && digits && (form != Form::Bare || !is_code(value))
            || value.len() >= 8 && !letters && form != Form::Bare && !value.contains('-')
            || value.len() >= 16 && !is_code(value);
    }
    match form {
        Form::Quoted => name.is_upper || !(is_word && is_capitalized),
        _ if is_code(value) => false,
        Form::Line if name.is_upper => true,
        Form::Line if is_word => {
            value.len() >= 6 && !value.contains('.') && !has(u8::is_ascii_uppercase)
        }
        Form::Line => digits && value.len() >= 6 || has_mark,
        Form::Bare if name.is_upper => !is_word || value.len() >= 6,
        Form::Bare => letters && digits && value.len() >= 6 || has_mark,
    }
}

/// Whether it consists of words for things: `accessToken`, `csrf_token`, `string`.
fn is_naming(value: &str) -> bool {
    value.is_ascii()
        && words(value).all(|word| NAMING.contains(&word.to_ascii_lowercase().as_str()))
}

/// `user_password`, `userPassword` and `user-password` have two words.
fn words(value: &str) -> impl Iterator<Item = &str> {
    let parts = value.split(|c: char| !c.is_ascii_alphanumeric());
    let humps = parts.flat_map(|part| {
        let mut rest = part;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let next = rest[1..].find(|c: char| c.is_ascii_uppercase());
            let (word, more) = rest.split_at(next.map_or(rest.len(), |at| at + 1));
            rest = more;
            Some(word)
        })
    });
    humps.filter(|word| !word.is_empty())
}

/// Whether something else will stand in its place: `$NAME`, `${NAME}`, `{{ name }}`, `%(name)s`, `process.env.NAME`.
fn is_reference(value: &str) -> bool {
    let name = value
        .strip_prefix(['$', '%', '@', ':', '!', '&', '*'])
        .unwrap_or(value);
    let is_name = name.len() < value.len()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name
            .trim_end_matches('%')
            .bytes()
            .all(|b| is_key_char(b) || b == b'.');
    is_name
        || [
            "${",
            "$(",
            "{{",
            "%(",
            "#{",
            "environ",
            "process.env",
            "getenv",
        ]
        .iter()
        .any(|mark| value.contains(mark))
        || value.starts_with(['{', '|', '`']) && value.len() < 40
}

/// Whether it says where a secret is.
fn is_place(value: &str) -> bool {
    let starts = [
        "/", "./", "../", "~/", "http://", "https://", "file:", "cmd:", "env:",
    ];
    starts.iter().any(|start| value.starts_with(start)) && !value.contains(['+', '='])
}

/// Whether it reads as an expression of a programming language: names, their members, calls, types.
fn is_code(value: &str) -> bool {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    let path = |text: &str| {
        let text = text.trim_start_matches(['&', '*', '!', '?']);
        !text.is_empty()
            && text
                .split(['.', ':', '?', '>', '-'])
                .all(|part| part.is_empty() || is_name(part))
    };
    if let Some((before, _)) = value.split_once(['(', '[', '<', '{']) {
        return before.is_empty() || path(before);
    }
    let whole = value.trim_end_matches([',', ';', ')', '}', ']', '?', '|']);
    let is_member = whole.contains('.') && path(whole);
    let has_digit = whole.bytes().any(|b| b.is_ascii_digit());
    is_member
        || whole.len() < value.len() && whole.len() < 20 && path(whole)
        || !has_digit && whole.contains(['_', ':']) && path(whole)
        || is_naming(whole)
}

/// Where the password of an address is, if `://` is at `at`: `scheme://user:password@host`.
pub(super) fn password_at(text: &str, at: usize) -> Option<Range<usize>> {
    let from = at + "://".len();
    let rest = text.as_bytes().get(from..)?;
    let ends =
        |b: &u8| b.is_ascii_whitespace() || matches!(b, b'/' | b'"' | b'\'' | b'`' | b'<' | b'>');
    let host = rest.iter().take(MAX_VALUE).take_while(|b| !ends(b));
    let authority = text.get(from..from + host.count())?;
    let (user, _) = authority.rsplit_once('@')?;
    let (name, password) = user.split_once(':')?;
    let is_example = password.is_empty()
        || is_reference(password)
        || is_naming(password)
        || PLACEHOLDERS
            .iter()
            .any(|word| password.to_ascii_lowercase().starts_with(word));
    let start = from + name.len() + 1;
    (!is_example).then(|| start..start + password.len())
}
