//! Published refusals of hosts, and their classification.

use serde_json::json;

use super::*;

/// Classifies a refusal of a request with these fields and three tools, that differs by each change.
fn refused(status: u16, body: &str) -> (ProviderError, Option<Change>) {
    let fields = "model messages max_tokens temperature stream stream_options tools prompt_cache_key \
        reasoning_effort max_completion_tokens";
    let parts =
        "cache_control images files audio system_role null reasoning adaptive signatures responses";
    let parts = parts
        .split(' ')
        .chain([STALE_REASONING, RESULTS, REPLY_AFTER]);
    let sent = Sent {
        parts: parts
            .flat_map(|part| [(part, true), (part, false)])
            .collect(),
        fields: fields.split(' ').map(str::to_owned).collect(),
        tools: ["exec", "read_file", "s__a"].map(str::to_owned).to_vec(),
        max_tokens: 8192,
        messages: 2,
        has_key: true,
    };
    classify(&HostRefusal::read(status, None, body), &sent)
}

fn error(message: &str) -> String {
    json!({"error": {"message": message}}).to_string()
}

fn kind(error: &ProviderError) -> String {
    let debug = format!("{error:?}");
    let name = debug.split([' ', '(', '{']).next();
    name.unwrap_or_default().to_owned()
}

/// Returns the columns of a table of published errors: the status, its consequence, and the text.
fn rows(table: &str) -> Vec<(u16, &str, &str)> {
    let columns = |line| {
        let mut columns = str::split(line, '\t');
        let mut next = || columns.next().unwrap();
        (next().parse().unwrap(), next(), next())
    };
    table.lines().map(columns).collect()
}

/// Errors about length, and the limit that each states.
const TOO_LONG: &str = include_str!("../../../tests/corpus/refusals/too-long.tsv");
/// Refusals that are not about length, and the kind of each.
const OTHERS: &str = include_str!("../../../tests/corpus/refusals/others.tsv");
/// Refusals of a request for 8192 tokens, with all parts, and the change that each asks for.
const CHANGES: &str = include_str!("../../../tests/corpus/refusals/changes.tsv");

/// Checks that every row of a table is understood.
fn check(table: &str, understood: impl Fn(u16, &str, &(ProviderError, Option<Change>)) -> bool) {
    let rows = rows(table);
    let mut wrong = Vec::new();
    for (status, wanted, text) in &rows {
        let body = if text.starts_with(['{', '<']) {
            (*text).to_owned()
        } else {
            error(text)
        };
        let got = refused(*status, &body);
        if !understood(*status, wanted, &got) {
            wrong.push(format!("{status} {wanted} {text}: {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn long_requests_are_told_from_other_refusals() {
    check(TOO_LONG, |status, limit, (error, change)| {
        let limit = limit.parse().ok();
        let learned = change.as_ref().and_then(Change::lasting);
        let window = limit.filter(|_| status != 429);
        matches!(error, ProviderError::TooLong { limit: stated, .. } if *stated == limit)
            && learned == window.map(|limit| Change::Window(limit, None))
    });
}

#[test]
fn other_refusals_are_told_by_their_kind() {
    check(OTHERS, |_, wanted, (error, _)| kind(error) == wanted);
}

#[test]
fn refusal_leads_to_its_change() {
    check(CHANGES, |_, wanted, (_, change)| {
        let change = change.as_ref().map(|change| format!("{change:?}"));
        change.as_deref().unwrap_or("-") == wanted
    });
}

#[test]
fn message_holds_the_reason_and_no_page() {
    let message = |status: u16, body: &str| refused(status, body).0.text().to_owned();
    let reason = "the server answered 400: bad thing";
    assert_eq!(message(400, &error("bad\nthing")), reason);
    assert_eq!(message(400, r#"{"message":"bad thing"}"#), reason);
    assert!(message(400, "<html><body>lots").contains("api_base"));
    let head = Head {
        status: 301,
        headers: vec![(
            "location".to_owned(),
            "https://new.example/v1?k=s".to_owned(),
        )],
    };
    let redirect = HostRefusal::read(301, Some(&head), "");
    assert!(
        redirect
            .message()
            .ends_with("redirected to https://new.example/v1?...")
    );
}
