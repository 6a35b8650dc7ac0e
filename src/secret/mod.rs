//! Secrets: a type that cannot be printed, and the redactor that removes secrets from text: those it knows, those of a known
//! shape, and those with a telling name (`named`).

mod named;

use std::ops::Range;
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

/// Whether what stands behind this name is a secret: a password, a token, a key.
pub(crate) fn is_secret_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("key") || named::Name::of(name).is_some()
}

/// Stands where a secret was.
pub(crate) const REMOVED: &str = "[secret removed]";

/// What is removed from that which tools return, besides the keys of this configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Redact {
    /// Keys of well-known shapes.
    Keys,
    /// These, and what stands behind names such as `PASSWORD`, `SECRET` and `TOKEN`.
    #[default]
    Secrets,
    Off,
}

/// Shorter secrets, in bytes, are not removed: ordinary words would go too.
const MIN_LENGTH: usize = 12;

/// Prefixes of well-known keys, and how many key characters must follow.
const KEY_SHAPES: [(&str, usize); 28] = [
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
    ("dop_v1_", 60),
    ("SG.", 40),
    ("ya29.", 30),
    ("whsec_", 24),
    ("xai-", 40),
    ("r8_", 30),
    ("AGE-SECRET-KEY-1", 50),
    ("Bearer ", 16),
    ("bearer ", 16),
    ("Authorization: Basic ", 12),
];

/// So many key characters on end are a line of a private key, and no word.
const LINE_OF_A_KEY: usize = 24;

/// The most values of a text that are looked for in what the user wrote; further ones are removed.
const MAX_LOOKED_FOR: usize = 64;

/// Removes secrets from tool output before a model, a session or a log sees it. Clones share what they know.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    /// The longest first, so that a secret that contains another is removed whole.
    known: Arc<RwLock<Vec<Secret>>>,
    level: Redact,
}

impl Redactor {
    pub(crate) fn new(secrets: impl IntoIterator<Item = Secret>) -> Self {
        let redactor = Self::default();
        secrets
            .into_iter()
            .for_each(|secret| redactor.learn(secret));
        redactor
    }

    /// The same, which removes so much of what tools return.
    pub(crate) fn at(self, level: Redact) -> Self {
        Self { level, ..self }
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
    /// blocks.
    pub(crate) fn redact(&self, text: String) -> String {
        let text = self.without_known(text);
        without(&text, |at| key_at(&text, at)).unwrap_or(text)
    }

    /// What a tool returned, without the secrets in it, but for those that are in `said`: the words of the user.
    pub(crate) fn strike(&self, text: String, said: &str) -> String {
        let text = self.without_known(text);
        let mut left = MAX_LOOKED_FOR;
        let mut budget = named::budget(text.len());
        let mut was_said = |value: &str| {
            left = left.saturating_sub(1);
            left > 0 && said.contains(value)
        };
        let unsaid = |found: Option<Range<usize>>, was_said: &mut dyn FnMut(&str) -> bool| {
            found.filter(|range| !was_said(&text[range.clone()]))
        };
        let struck = match self.level {
            Redact::Off => None,
            Redact::Keys => without(&text, |at| unsaid(key_at(&text, at), &mut was_said)),
            Redact::Secrets => without(&text, |at| {
                let found = key_at(&text, at);
                let found = found.or_else(|| named_at(&text, at, &mut budget));
                unsaid(found, &mut was_said)
            }),
        };
        struck.unwrap_or(text)
    }

    /// `text` without the secrets of this configuration. Nobody who does not know one can have anything else removed.
    pub(crate) fn without_known(&self, mut text: String) -> String {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        for secret in known.iter() {
            if text.contains(&secret.0) {
                text = text.replace(&secret.0, REMOVED);
            }
        }
        text
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

/// The kind of private key that this line of dashes begins or ends, with the line's length.
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

/// The length of the private key block at the start of `text`. One that is cut off ends with its last line of key characters;
/// one without a key is the word of a program that reads or writes such blocks.
fn block_len(text: &str) -> Option<usize> {
    let (kind, begin) = private_key_line(text, "-----BEGIN ")?;
    // No key has so many dashes, and what one look has read the next does not read again.
    let len = text[begin..].find("-----");
    let (body, rest) = text[begin..].split_at(len.unwrap_or(text.len() - begin));
    let is_bare = |line: &str| {
        line.bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"+/=-".contains(&b))
    };
    let is_key = |line: &str| {
        let runs = line.split(|c: char| !(c.is_ascii_alphanumeric() || "+/=".contains(c)));
        runs.map(str::len).max() >= Some(LINE_OF_A_KEY) || line.contains(": ") && line.len() < 80
    };
    let end = format!("-----END {kind}-----");
    if rest.starts_with(&end) {
        let mut parts = body.split(['\n', '\r', '\\']).map(str::trim);
        let has_key = !body.trim().is_empty() && parts.all(is_bare) || body.split('\n').any(is_key);
        return has_key.then_some(begin + body.len() + end.len());
    }
    let lines = body.split_inclusive('\n');
    let of_key = lines.take_while(|line| is_bare(line.trim()) || is_key(line));
    let len: usize = of_key.map(str::len).sum();
    (!body[..len].trim().is_empty()).then_some(begin + len)
}

/// Where the private key begins of which only the end is here: its last line is at `at`.
fn end_of_block(text: &str, at: usize) -> Option<Range<usize>> {
    private_key_line(&text[at..], "-----END ")?;
    let is_key = |line: &&str| {
        let line = line.trim();
        line.len() >= 4
            && line
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
    };
    // Each line with the line feed before it.
    let lines = text[..at].strip_suffix('\n')?.rsplit('\n');
    let len: usize = lines.take_while(is_key).map(|line| line.len() + 1).sum();
    (len > 0).then_some(at - len.min(at)..at)
}

/// The length of the JSON web token at the start of `text`: two parts that are objects, and a signature.
fn web_token_len(text: &str) -> Option<usize> {
    let part = |from: usize| {
        let rest = text.get(from..).unwrap_or_default();
        rest.bytes().take_while(|b| is_key_char(*b)).count()
    };
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

fn begins_word(text: &str, at: usize) -> bool {
    at == 0 || !is_key_char(text.as_bytes()[at - 1])
}

/// The key of a well-known shape at `at`.
fn key_at(text: &str, at: usize) -> Option<Range<usize>> {
    let rest = text.get(at..).filter(|_| begins_word(text, at))?;
    let len = key_len(rest)
        .or_else(|| block_len(rest))
        .or_else(|| web_token_len(rest));
    match len {
        Some(len) => Some(at..at + len),
        None => end_of_block(text, at),
    }
}

/// The secret value of the name at `at`, or the password of the address whose `://` is there.
fn named_at(text: &str, at: usize, budget: &mut usize) -> Option<Range<usize>> {
    match text.as_bytes()[at] {
        b':' if text.as_bytes()[at..].starts_with(b"://") => named::password_at(text, at),
        b if is_key_char(b) && begins_word(text, at) => named::value_at(text, at, budget),
        _ => None,
    }
}

/// `text` with a mark in the place of each secret that `find` finds at a position or behind it; `None` if there is none.
fn without(text: &str, mut find: impl FnMut(usize) -> Option<Range<usize>>) -> Option<String> {
    let mut out = String::new();
    let (mut kept, mut at) = (0, 0);
    while at < text.len() {
        let Some(secret) = find(at) else {
            at += 1;
            continue;
        };
        out.push_str(&text[kept..secret.start.max(kept)]);
        out.push_str(REMOVED);
        (kept, at) = (secret.end, secret.end.max(at + 1));
    }
    (kept > 0).then(|| out + &text[kept..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_any_length_and_of_any_letters_goes_and_costs_little() {
        let redactor = Redactor::default();
        for len in [3000, 4093, 4094, 4095, 4096, 4097, 5000, 100_000] {
            for letters in ["k7", "é7"] {
                let value = letters.repeat(len / 2);
                for text in [
                    format!("DB_PASSWORD={value} and more"),
                    format!("{{\"password\": \"{value}\"}} and more"),
                ] {
                    let struck = redactor.strike(text, "");
                    assert!(!struck.contains(&letters.repeat(2)), "{len} {letters}");
                    assert!(struck.ends_with(" and more"), "{len} {letters}");
                }
            }
        }
        let text = "pass=é".repeat(140_000);
        let started = std::time::Instant::now();
        drop(redactor.strike(text, ""));
        let took = started.elapsed();
        assert!(took.as_secs() < 30, "{took:?}");
    }

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
            let (_, last) = block.split_once('\n').unwrap();
            let end = format!("-----END {kind}PRIVATE KEY-----");
            assert_eq!(redact(last), format!("{REMOVED}{end}"), "the last lines");
        }
        for plain in [
            "password=hunter2hunter2",
            "npm_config_registry_2",
            "pypi-server-1.0-py3-none-any",
            "-H 'Authorization: Bearer $OPENAI_API_KEY'",
            "-----BEGIN CERTIFICATE-----",
            "-----BEGIN PUBLIC KEY-----",
            "START = \"-----BEGIN RSA PRIVATE KEY-----\"\nEND = \"-----END RSA PRIVATE KEY-----\"\ndef f():",
            "if text.startswith(b\"-----BEGIN OPENSSH PRIVATE KEY-----\"):\n    return load(text)",
            "-----END PRIVATE KEY-----",
        ] {
            assert_eq!(redact(plain), plain);
        }
    }

    fn strike(text: &str) -> String {
        Redactor::default().strike(text.to_owned(), "")
    }

    #[test]
    fn what_stands_behind_a_telling_name_is_struck() {
        for (text, secret) in [
            ("DB_PASSWORD=hunter2", "hunter2"),
            (
                "export DB_PASSWORD='correct horse battery'",
                "correct horse battery",
            ),
            ("DB_PASSWORD=\"a \\\" b\"\nX=1", "a \\\" b"),
            ("POSTGRES_PASSWORD: letmein", "letmein"),
            ("PGPASSWORD=swordfish psql -h db", "swordfish"),
            ("SMTP_PASS=p@ss,w0rd", "p@ss,w0rd"),
            ("SECRET_KEY_BASE=0f1e2d3c4b5a", "0f1e2d3c4b5a"),
            ("CLIENT_SECRET=kJ8sLq2", "kJ8sLq2"),
            ("GITHUB_TOKEN=1a2b3c4d5e", "1a2b3c4d5e"),
            ("STRIPE_KEY=zz9876543210abcdef", "zz9876543210abcdef"),
            ("env: [\"DB_PASSWORD=hunter2\", \"DEBUG=1\"]", "hunter2"),
            ("{\"password\": \"letmein\"}", "letmein"),
            ("{\"password\":\"12345\",\"a\":1}", "12345"),
            ("\"{\\\"password\\\": \\\"letmein!\\\"}\"", "letmein!"),
            (
                "\"clientSecret\": \"super-duper-value\"",
                "super-duper-value",
            ),
            ("\"access_token\": \"1f2e3d4c5b6a\",", "1f2e3d4c5b6a"),
            ("  password: hunter2", "hunter2"),
            ("- password: letmeinplease\n", "letmeinplease"),
            ("password = s3cr3t!x", "s3cr3t!x"),
            ("db.password=letmein", "letmein"),
            (
                "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
                "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            ),
            (
                "//npm.example.org/:_authToken=8c7b6a59-4838-2716",
                "8c7b6a59-4838-2716",
            ),
            ("password: $2b$12$abcdefghijk", "$2b$12$abcdefghijk"),
            ("const PASSWORD: &str = \"hunter2\";", "hunter2"),
            ("let token = \"1a2b3c4d5e6f\";", "1a2b3c4d5e6f"),
            ("$password = 'hunter2';", "hunter2"),
            ("config[\"password\"] = \"hunter2\"", "hunter2"),
            ("<password>letmein2</password>", "letmein2"),
            ("login with password: abc123x please", "abc123x"),
            ("curl --password=abc123x", "abc123x"),
            ("DATABASE_URL=postgres://app:s3cr3t@db/x", "s3cr3t"),
            ("git clone https://me:hunter2@git.example.org/x", "hunter2"),
            ("日本 PASSWORD=日本語日本語 x", "日本語日本語"),
            (
                "Authorization: Basic dXNlcjpodW50ZXIy",
                "Authorization: Basic dXNlcjpodW50ZXIy",
            ),
            (
                "token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.SflKxwRJSMeKKF2 end",
                "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.SflKxwRJSMeKKF2",
            ),
            (
                "PRIVATE_KEY=\"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\"",
                "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----",
            ),
        ] {
            assert_eq!(strike(text), text.replacen(secret, REMOVED, 1), "{text}");
        }
    }

    #[test]
    fn code_examples_and_prose_with_such_names_stay_readable() {
        for text in [
            "token = next()",
            "token = lexer.next_token()",
            "let token = self.peek()?;",
            "password: string",
            "password: String,",
            "password?: string;",
            "pub password: Option<String>,",
            "password: &str, token: &'a [u8]",
            "secret: [u8; 32]",
            "token: u64,",
            "def login(user, password=None, token=\"\"):",
            "login(user=user, password=password, token=tok2)",
            "    password=settings.password2,",
            "password = getpass.getpass()",
            "password = value",
            "password=os.environ[\"DB_PASSWORD\"]",
            "PASSWORD=$1",
            "TOKEN=$(cat token.txt)",
            "TOKEN=`cat token.txt`",
            "PASSWORD=${DB_PASSWORD:-}",
            "password: {{ vault.password }}",
            "password: ${{ secrets.TOKEN }}",
            "password: process.env.PASSWORD",
            "if password == \"hunter2\" {",
            "Token::Ident(name)",
            "token::next()",
            "{\"password\": \"string\", \"token\": null}",
            "{\"password\": \"Passwort\", \"token\": \"Jeton\"}",
            "\"password\": \"Your password is wrong\"",
            "\"csrf_token\": \"csrf_token\", type=\"password\"",
            "\"eos_token\": \"</s>\", \"next_page_token\": \"CAUQAA1234567\"",
            "max_tokens: 4096, \"total_tokens\": 123456789",
            "token = \"EOF\"",
            "TOKEN_TYPE=bearer12",
            "secretName: my-tls-2",
            "POSTGRES_PASSWORD_FILE=/run/secrets/db1",
            "password_hash = argon2id(password)",
            "api_key: file:/etc/key1",
            "\"api_key\": \"${OPENAI_API_KEY}\"",
            "PASSWORD=changeme",
            "PASSWORD=<your password>",
            "password: ********",
            "- password: optional",
            "Password: must be at least 8 characters",
            "the token: it expires in 2026",
            "PWD=/home/me1 OLDPWD=/tmp/x1",
            "secretary: Anna12345",
            "http://localhost:8080/x@y postgres://user:password@localhost",
            "ssh://git@example.org:22/x",
            "enum Kind { Password, Token }",
            "match token { Some(t) => t, None => return }",
            "input[type=password]:focus",
            "const secret = await getSecret(name);",
            "KEY=value MONKEY=banana",
            "eyJust a word.eyJ",
        ] {
            assert_eq!(strike(text), text);
        }
    }

    #[test]
    fn words_of_the_user_are_shown_and_levels_remove_less() {
        let text = "DB_PASSWORD=hunter2 KEY=sk-proj-0123456789abcdefghij";
        let said = "Use hunter2 as the password.";
        let redactor = Redactor::new([Secret::new("mine-all-mine")]);
        let strike = |level, said| redactor.clone().at(level).strike(text.to_owned(), said);
        assert_eq!(
            strike(Redact::Secrets, ""),
            format!("DB_PASSWORD={REMOVED} KEY={REMOVED}")
        );
        let shown = format!("DB_PASSWORD=hunter2 KEY={REMOVED}");
        assert_eq!(strike(Redact::Secrets, said), shown);
        assert_eq!(strike(Redact::Keys, ""), shown);
        assert_eq!(strike(Redact::Off, ""), text);
        let own = redactor
            .at(Redact::Off)
            .strike("mine-all-mine".to_owned(), "mine-all-mine");
        assert_eq!(own, REMOVED, "bantam's own keys are never shown");
    }

    #[test]
    fn a_hostile_text_takes_no_longer_than_any() {
        for part in [
            "token=",
            "password='",
            "password: \"a ",
            "SECRET=a1",
            "://a:b1@",
            "eyJ.",
            "-----BEGIN ",
            "-----BEGIN PRIVATE KEY-----( ",
            "AAAA\n-----END PRIVATE KEY-----",
            "Bearer a/",
            "x\\\"token\\\":",
        ] {
            let text = part.repeat((1 << 20) / part.len());
            let begun = std::time::Instant::now();
            let struck = strike(&text);
            assert!(
                begun.elapsed().as_secs() < 10,
                "{part}: {:?}",
                begun.elapsed()
            );
            if std::env::var_os("BANTAM_TIMES").is_some() {
                eprintln!("{part}: {:?}, {}", begun.elapsed(), struck.len());
            }
        }
    }
}
