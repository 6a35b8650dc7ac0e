//! Redaction of realistic files, and of hostile texts.

use crate::computed::computed;

use super::*;

fn redact(text: &str) -> String {
    Redactor::default().redact(text.to_owned())
}

fn output(text: &str) -> String {
    Redactor::default().redact_output(text.to_owned(), "")
}

#[test]
fn files_lose_their_secrets_and_nothing_else() {
    // Text between « and » is removed; other text is unchanged.
    let files = include_str!("../../tests/corpus/redact.txt").split("== ");
    for file in files.skip(1) {
        let mut parts = file.split('«');
        let mut expected = parts.next().unwrap().to_owned();
        for part in parts {
            expected += REMOVED;
            expected += part.split_once('»').unwrap().1;
        }
        assert_eq!(output(&file.replace(['«', '»'], "")), expected);
    }
}

#[test]
fn a_value_of_any_length_and_of_any_letters_is_removed() {
    for len in [3000, 4093, 4097, 100_000] {
        for letters in ["k7", "é7"] {
            let value = letters.repeat(len / 2);
            for text in [
                format!("DB_PASSWORD={value} and more"),
                format!("{{\"password\": \"{value}\"}} and more"),
            ] {
                let shown = output(&text);
                assert!(!shown.contains(&letters.repeat(2)), "{len} {letters}");
                assert!(shown.ends_with(" and more"), "{len} {letters}");
            }
        }
    }
}

#[test]
fn a_megabyte_of_names_takes_under_a_second() {
    // A debug build takes ten times as long, so it reads a fourth.
    let (length, limit) = (1 << 18, 250);
    for pair in [
        "NAME=",
        "PASSWORD=",
        "A_KEY=/a",
        "TOKEN:/",
        "SECRET=$",
        "password=",
        "password:",
        "password='",
        "password: \"a ",
        "password = a\n",
        "x\\\"token\\\":",
        "pass=é",
        "A_TOKEN=1 ",
        "NAME=value\n",
        "://a:b1@",
        "eyJ.",
        "SG.",
        "-----BEGIN ",
        "-----BEGIN PRIVATE KEY-----( ",
        "AAAA\n-----END PRIVATE KEY-----",
        "Bearer a/",
    ] {
        let text = pair.repeat(length / pair.len());
        let before = computed();
        drop(output(&(text + " x")));
        let took = computed() - before;
        assert!(took < limit, "{pair:?}: {took}0 ms");
    }
}

#[test]
fn configured_secrets_and_key_shapes_are_removed_and_prose_is_not() {
    let redactor: Redactor = [Secret::new("hunter2hunter2"), Secret::new("short")]
        .into_iter()
        .collect();
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
    let plains = "risk-0123456789abcdefghijklm sk-learn-is-a-python-library 12:34:56 2026:11";
    for plain in plains.split_whitespace() {
        assert_eq!(redact(plain), plain);
    }
}

#[test]
fn known_key_formats_are_redacted() {
    let long = "a1".repeat(32);
    for key in [
        format!("npm_{}", &long[..36]),
        format!("pypi-{long}"),
        format!("dckr_pat_{}", &long[..27]),
        format!("shpat_{}", &long[..32]),
        format!("AGE-SECRET-KEY-1{}", long.to_uppercase()),
        format!("ghp_{}", &long[..36]),
        "AKIA0123456789ABCDEF".to_owned(),
        format!("xoxa-2-{}", &long[..20]),
        format!("xoxs-{}", &long[..20]),
        format!("tvly-dev-{}", &long[..32]),
        format!("SG.{}.{}", &long[..22], &long[..43]),
    ] {
        assert_eq!(
            redact(&format!("x={key};")),
            format!("x={REMOVED};"),
            "{key}"
        );
    }
    let header = redact("GET / HTTP/1.1\nAuthorization: Bearer abc.def/g+h.1234567==\nAccept: */*");
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
        "SG.1 and SG.2.",
        "pypi-server-1.0-py3-none-any",
        "-H 'Authorization: Bearer $OPENAI_API_KEY'",
        "-----BEGIN CERTIFICATE-----",
        "-----BEGIN PUBLIC KEY-----",
        "if text.startswith(b\"-----BEGIN OPENSSH PRIVATE KEY-----\"):\n    return load(text)",
        "-----END PRIVATE KEY-----",
    ] {
        assert_eq!(redact(plain), plain);
    }
}

#[test]
fn names_of_settings_and_arguments_tell_secrets() {
    let names = "key --api-key apiKey X-Subscription-Token access_token clientSecret PASSWORD2 PGPASSWORD \
        SMTP_PASS";
    for name in names.split_whitespace() {
        assert!(is_secret_name(name), "{name}");
    }
    let names = "keyboard --model public-key token_limit secret-name tokens id BYPASS COMPASS_HEADING \
        OLDPWD";
    for name in names.split_whitespace() {
        assert!(!is_secret_name(name), "{name}");
    }
}
