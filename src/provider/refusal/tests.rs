//! Published refusals of hosts, and their classification.

use serde_json::json;

use super::*;

/// Classifies a refusal of a request with these fields, all parts, and three tools.
fn refused(status: u16, body: &str) -> (ProviderError, Option<Change>) {
    let fields = [
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "stream",
        "stream_options",
        "tools",
        "prompt_cache_key",
        "reasoning_effort",
        "max_completion_tokens",
    ];
    let sent = Sent {
        fields: fields.map(str::to_owned).to_vec(),
        parts: vec![
            "images",
            "files",
            "audio",
            "reasoning",
            "system_role",
            "null",
        ],
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

/// Returns the columns of a table of published errors: the status, what it leads to, and the text.
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

#[test]
fn long_requests_are_told_from_other_refusals() {
    let mut wrong = Vec::new();
    let table = rows(TOO_LONG);
    for (status, limit, text) in &table {
        let (status, limit) = (*status, limit.parse::<u64>().ok());
        let (got, changes) = refused(status, &error(text));
        let wanted = limit.filter(|_| status != 429).map(Change::Window);
        let is_right =
            matches!(got, ProviderError::TooLong { limit: stated, .. } if stated == limit);
        if !is_right || changes != wanted {
            wrong.push(format!("{status} {text}: {got:?} {changes:?}"));
        }
    }
    // 95 of 100 must be right.
    assert!(wrong.len() <= table.len() / 20, "{wrong:#?}");
    for (body, limit) in [
        (
            json!({"error": {"code": 400, "message": "the request exceeds the context", "type": "exceed_context_size_error", "n_ctx": 2048}}),
            Some(2048),
        ),
        (
            json!({"error": {"code": "context_length_exceeded", "message": "no"}}),
            None,
        ),
        (
            json!({"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
            Some(131_072),
        ),
        (
            json!({"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
            None,
        ),
        (
            json!({"error": {"metadata": {"raw": "{\"error\":{\"message\":\"maximum context length is 8192\"}}"}}}),
            Some(8192),
        ),
        (json!({"detail": "too many tokens"}), None),
    ] {
        let (got, _) = refused(400, &body.to_string());
        assert!(
            matches!(got, ProviderError::TooLong { limit: stated, .. } if stated == limit),
            "{body}: {got:?}"
        );
    }
}

#[test]
fn other_refusals_are_not_taken_for_length() {
    let mut wrong = Vec::new();
    let table = rows(OTHERS);
    for (status, expected, text) in &table {
        let is_page = text.starts_with('<');
        let body = if is_page {
            (*text).to_owned()
        } else {
            error(text)
        };
        let (got, changes) = refused(*status, &body);
        if kind(&got) != *expected {
            wrong.push(format!("{status} {text}: {got:?} {changes:?}"));
        }
    }
    assert!(wrong.len() <= table.len() / 20, "{wrong:#?}");
    for (body, expected) in [
        (
            json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
            "Transient",
        ),
        (
            json!({"error": {"type": "rate_limit_error", "message": "slow"}}),
            "RateLimited",
        ),
        (
            json!({"error": {"type": "authentication_error", "message": "invalid x-api-key"}}),
            "AuthFailed",
        ),
        (
            json!({"error": {"message": "boom", "code": 503}}),
            "Transient",
        ),
    ] {
        assert_eq!(kind(&refused(200, &body.to_string()).0), expected, "{body}");
    }
}

#[test]
fn refusal_leads_to_its_change() {
    let mut wrong = Vec::new();
    for (status, wanted, text) in rows(CHANGES) {
        let body = if text.starts_with('{') {
            text.to_owned()
        } else {
            error(text)
        };
        let (error, change) = refused(status, &body);
        let change = change.map(|change| format!("{change:?}"));
        if change.as_deref().unwrap_or("-") != wanted {
            wrong.push(format!("{status} {text}: {change:?} {error:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
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

#[test]
fn what_the_host_did_is_not_blamed_on_the_message() {
    let sample = |code: &str| json!({"error": {"message": "Failed.", "code": code, "failed_generation": "x"}});
    let filtered = json!({"error": {
        "message": "The response was filtered due to the prompt triggering the content policy.",
        "code": "content_filter",
        "param": "prompt",
    }});
    for (status, body, wanted) in [
        (400, sample("tool_use_failed").to_string(), "Transient"),
        (400, sample("json_validate_failed").to_string(), "Transient"),
        (422, sample("tool_use_failed").to_string(), "Transient"),
        (400, sample("output_parse_failed").to_string(), "Transient"),
        (400, sample("a_code_to_come").to_string(), "Transient"),
        (
            403,
            error("Your input was flagged by moderation"),
            "MessageRefused",
        ),
        (
            403,
            error("Country, region, or territory not supported"),
            "Rejected",
        ),
        (
            403,
            error("This service is not offered at your location"),
            "Rejected",
        ),
        (
            403,
            error("Project `p` does not have access to model `m`"),
            "NotFound",
        ),
        (
            403,
            error("The model `m` is blocked at the project level"),
            "NotFound",
        ),
        (
            403,
            error("Your API key lacks the permission"),
            "AuthFailed",
        ),
        (
            500,
            error("model requires more system memory (9.8 GiB) than is available (5.6 GiB)"),
            "Rejected",
        ),
        (500, error("CUDA error: out of memory"), "Rejected"),
        (400, filtered.to_string(), "MessageRefused"),
        (400, String::new(), "Rejected"),
        (422, "{}".to_owned(), "Rejected"),
    ] {
        assert_eq!(kind(&refused(status, &body).0), wanted, "{body}");
    }
}
