//! Errors: retries, their delays, and the user's messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;

use super::{Seen, case, done, fault};
use crate::harness::{CANARY, Home, merged};
use crate::model::{Model, Reply};

fn waited(seen: &Seen) -> Duration {
    seen.requests[1].at - seen.requests[0].at
}

#[test]
fn a_wait_is_understood_in_every_form() {
    let limited = || Reply::error(429, "slow down");
    let limit = limited().header("Retry-After", "1");
    let seen = fault(15, "429 with a wait", [limit, done()])
        .answers("Done.")
        .run();
    assert!(waited(&seen) >= Duration::from_secs(1));
    let garbage = limited().header("Retry-After", "1e400");
    fault(18, "a wait that means nothing: our own", [garbage, done()])
        .answers("Done.")
        .run();
    let endless = limited().header("Retry-After", "1000000000000000000");
    let seen = fault(18, "a wait beyond a minute is not waited for", [endless])
        .fails(5, "slow down")
        .run();
    assert!(
        seen.run.took < Duration::from_secs(50),
        "{:?}",
        seen.run.took
    );
    let never = Reply::error(503, "gone fishing").header("x-should-retry", "false");
    case(58, "x-should-retry: false", [never])
        .fails(5, "gone fishing")
        .run();
    let again = Reply::error(400, "the gateway tripped").header("x-should-retry", "true");
    let seen = case(58, "x-should-retry: true", [again, done()])
        .answers("Done.")
        .run();
    assert_eq!(seen.requests.len(), 2);
}

#[test]
fn loading_server_is_waited_for() {
    let loading = Reply::error(503, "Loading model");
    let model = Model::scripted([loading, done()]);
    let extra = json!({ "agents": { "defaults": { "max_retries": 0 } } });
    let home = Home::with(&merged(model.config(), &extra));
    home.agent(["-m", "hi"]).answers("Done.\n");
    assert_eq!(model.requests().len(), 2);
}

#[test]
fn quota_is_told_apart_from_a_rate() {
    let broke = json!({ "error": { "message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota" } });
    let seen = case(
        57,
        "an account that is used up is not asked again",
        [Reply::json(429, &broke)],
    )
    .fails(4, "quota")
    .run();
    assert_eq!(seen.requests.len(), 1);
    let gemini = json!({ "error": {
        "code": 429, "status": "RESOURCE_EXHAUSTED", "message": "You exceeded your current quota, please check your plan and billing details.",
        "details": [ { "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s" } ],
    } });
    let openai = json!({ "error": {
        "message": "Rate limit reached for requests per min (RPM): Limit 3. Please try again in 200ms. You can increase \
                    your rate limit by adding a payment method to your account at https://example.com/billing.",
        "type": "requests", "code": "rate_limit_exceeded",
    } });
    for limit in [gemini, openai] {
        case(
            57,
            "a rate limit that speaks of billing",
            [Reply::json(429, &limit), done()],
        )
        .answers("Done.")
        .run();
    }
}

#[test]
fn missing_model_and_captive_portal_are_named() {
    fault(
        23,
        "404 for the model",
        [Reply::error(404, "The model `test-model` does not exist")],
    )
    .fails(3, "does not exist")
    .says("check the model's name")
    .run();
    let portal = Reply::html(200, "<html><head><title>Sign in</title>");
    fault(25, "200 with a captive portal", [portal])
        .fails(1, "api_base")
        .run();
}

#[test]
fn oversized_request_is_shortened_once() {
    for (status, body, window) in [
        (
            400,
            json!({ "error": { "message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded" } }),
            Some(8192),
        ),
        (413, json!("request too large"), None),
    ] {
        // A context that is too long.
        // An overflow by any status and name.
        let limit = Arc::new(AtomicUsize::new(usize::MAX));
        let model = Model::answering(move |request, n| match n {
            0..=5 => Reply::text(&"words ".repeat(400)),
            // Until messages are left out.
            _ if request.body["messages"].to_string().len() >= limit.load(Ordering::SeqCst)
                || n == 6 =>
            {
                let len = request.body["messages"].to_string().len();
                limit.fetch_min(len, Ordering::SeqCst);
                Reply::json(status, &body)
            }
            _ if request
                .last("system")
                .contains("so that the assistant can continue") =>
            {
                Reply::text("Much was said.")
            }
            _ => done(),
        });
        let home = Home::with(&model.config());
        for n in 0..6 {
            home.agent(["-m", &format!("question {n}: {}", "long ".repeat(300))])
                .exits(0);
        }
        home.agent(["-m", "and now?"]).answers("Done.\n");
        let last = model.requests().pop().unwrap().body.to_string().len();
        assert!(
            last < model.request(6).body.to_string().len(),
            "{last}: nothing was left out"
        );
        let told = home.run(["status"]).stdout;
        match window {
            Some(window) => assert!(
                told.contains(&format!("context window {window} tokens")),
                "{told}"
            ),
            None => assert!(!told.contains("context window"), "{told}"),
        }
    }
    let token = Reply::error(401, "invalid token: limit of your plan");
    case(59, "a token that is a key", [token])
        .fails(4, "invalid token")
        .run();
}

#[test]
fn an_error_is_found_wherever_it_stands() {
    let late = format!("{}maximum context length is 8192", "x".repeat(200));
    let late = || Reply::error(400, &late);
    case(60, "a reason late in the text", [late(), late()])
        .fails(1, "shorten the message")
        .run();
    case(
        62,
        "an error that quotes the key",
        [Reply::error(
            401,
            &format!("Incorrect API key provided: {CANARY}."),
        )],
    )
    .args(&["-v"])
    .fails(4, "Incorrect API key")
    .run();
    let controls = case(
        61,
        "an error with control characters",
        [Reply::error(400, "no \u{1b}]0;owned\u{7} such thing")],
    )
    .fails(1, "such thing")
    .run();
    assert!(
        !controls.run.stderr.contains(['\u{1b}', '\u{7}']),
        "{:?}",
        controls.run.stderr
    );
}

#[test]
fn tries_are_limited_and_happen_within_the_turns_time() {
    let overloaded = [500, 502, 503].map(|status| Reply::error(status, "overloaded"));
    case(58, "given up after max_retries", overloaded)
        .fails(5, "overloaded")
        .run();
    let model = Model::scripted([Reply::error(429, "slow down").header("Retry-After", "50")]);
    let home = Home::with(&merged(model.config(), &json!({})));
    let run = home.agent(["--timeout", "45", "-m", "hi"]);
    assert!(
        matches!(run.code, Some(5 | 6)) && run.took < Duration::from_secs(40),
        "{:?} after {:?}",
        run.code,
        run.took
    );
}
