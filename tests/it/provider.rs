//! What a server can do wrong, and what bantam then tells, tries again and keeps.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, Run, config_for, merged};
use crate::model::{Model, Reply};

/// A home on this model that tries nothing twice.
fn once(model: &Model) -> Home {
    Home::with(&merged(model.config(), &json!({ "agents": { "defaults": { "max_retries": 0 } } })))
}

#[test]
fn a_refused_key_exits_4_is_not_tried_again_and_leaves_no_trace() {
    for status in [401, 403] {
        let model = Model::scripted([Reply::error(status, "Incorrect API key provided"), Reply::text("Hello.")]);
        let home = Home::with(&model.config());
        let run = home.agent(["-m", "the refused question"]);
        run.exits(4).prints("").fails_with_a_hint().says("Incorrect API key provided");
        assert_eq!(model.requests().len(), 1);

        home.agent(["-m", "another question"]).exits(0).prints("Hello.\n");
        let asked = model.request(1).texts("user").join("\n");
        assert!(!asked.contains("the refused question"), "{asked}");
        assert_eq!(home.session("cli_default").roles(), ["user", "assistant"]);
    }
}

#[test]
fn a_refusal_that_quotes_the_key_is_shown_without_it() {
    let model = Model::scripted([Reply::error(401, &format!("Incorrect API key provided: {CANARY}."))]);
    let home = Home::with(&model.config());
    // The harness looks for the key in everything this run leaves behind.
    home.agent(["-v", "-m", "hi"]).exits(4).says("Incorrect API key provided");
}

#[test]
fn a_provider_that_is_down_exits_5() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let home = Home::with(&config_for(&format!("http://{nobody}/v1")));
    home.agent(["-m", "hi"]).exits(5).prints("").fails_with_a_hint().says("refused");
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user"]);
    assert_eq!(session.turns(), ["failed"]);
}

#[test]
fn an_overloaded_provider_is_asked_again() {
    let model = Model::scripted([
        Reply::error(500, "internal"),
        Reply::html(502, "<html><body>Bad Gateway</body></html>"),
        Reply::text("Here I am."),
    ]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0).prints("Here I am.\n").is_quiet();
    let session = home.session("cli_default");
    assert_eq!(session.roles(), ["user", "assistant"]);
    assert_eq!(session.turns(), ["done"]);
}

#[test]
fn an_overloaded_provider_is_given_up_after_max_retries() {
    let model = Model::scripted([503, 503, 503].map(|status| Reply::error(status, "overloaded")));
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(5).prints("").fails_with_a_hint().says("overloaded");
}

#[test]
fn retry_after_is_honoured() {
    let model = Model::scripted([Reply::error(429, "slow down").header("Retry-After", "1"), Reply::text("Now.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0).prints("Now.\n");
    let waited = model.request(1).at - model.request(0).at;
    assert!(waited >= Duration::from_secs(1), "waited only {waited:?}");
}

#[test]
fn a_wait_longer_than_the_turn_may_take_is_not_begun() {
    let model = Model::scripted([Reply::error(429, "slow down").header("Retry-After", "3600")]);
    let home = Home::with(&model.config());
    let run = home.agent(["--timeout", "20", "-m", "hi"]);
    assert!(matches!(run.code, Some(5 | 6)), "exit {:?}: {}", run.code, run.stderr);
    assert!(run.took < Duration::from_secs(15), "sat there for {:?}", run.took);
}

#[test]
fn an_empty_account_is_not_asked_again() {
    let broke = json!({ "error": { "message": "You exceeded your current quota", "type": "insufficient_quota", "code": "insufficient_quota" } });
    let model = Model::scripted([Reply::json(429, &broke)]);
    let home = Home::with(&model.config());
    let run = home.agent(["-m", "hi"]);
    run.prints("").fails_with_a_hint().says("quota");
    assert_ne!(run.code, Some(0));
}

#[test]
fn a_rate_limit_that_speaks_of_billing_is_waited_out() {
    let gemini = json!({ "error": {
        "code": 429, "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota, please check your plan and billing details.",
        "details": [ { "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "1s" } ],
    } });
    let openai = json!({ "error": {
        "message": "Rate limit reached for requests per min (RPM): Limit 3. Please try again in 200ms. You can increase \
                    your rate limit by adding a payment method to your account at https://example.com/billing.",
        "type": "requests", "code": "rate_limit_exceeded",
    } });
    for limit in [gemini, openai] {
        let model = Model::scripted([Reply::json(429, &limit), Reply::text("Now.")]);
        Home::with(&model.config()).agent(["-m", "hi"]).exits(0).prints("Now.\n");
    }
}

#[test]
fn an_address_that_can_never_work_exits_3() {
    // A server that does not speak TLS.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let plain = format!("https://{}/v1", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let asked = stream.read(&mut [0; 4096]).unwrap();
        assert!(asked > 0, "a request");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    Home::with(&config_for(&plain)).agent(["-m", "hi"]).exits(3).prints("").fails_with_a_hint().says("speak TLS");
    server.join().unwrap();
    for base in ["http://exa mple/v1", "http://:80/v1", "http://127.0.0.1:99999/v1", "127.0.0.1/v1", "ftp://h/v1"] {
        Home::with(&config_for(base)).agent(["-m", "hi"]).exits(3).prints("").fails_with_a_hint().says("api_base");
    }
}

#[test]
fn a_silent_provider_exits_5_after_request_timeout() {
    let model = Model::scripted([Reply::text("Too late.").held()]);
    let config = merged(
        model.config(),
        &json!({
            "agents": { "defaults": { "max_retries": 0 } }, "model_list": [ { "request_timeout": 1 } ]
        }),
    );
    let home = Home::with(&config);
    let run = home.agent(["-m", "hi"]);
    run.exits(5).prints("").fails_with_a_hint();
    assert!(run.took < Duration::from_secs(5), "took {:?}", run.took);
}

#[test]
fn a_provider_that_falls_silent_in_mid_sentence_exits_5_and_the_text_is_kept() {
    let model = Model::scripted([Reply::text("Once upon a time there was").held_after(3)]);
    let config = merged(
        model.config(),
        &json!({
            "agents": { "defaults": { "max_retries": 0 } }, "model_list": [ { "request_timeout": 1 } ]
        }),
    );
    let home = Home::with(&config);
    home.agent(["-m", "hi"]).exits(5).prints("").fails_with_a_hint();
    kept_in_part(&home, "Once upon a time");
}

/// The session ends in this text, marked as cut, and the turn as failed.
#[track_caller]
fn kept_in_part(home: &Home, text: &str) {
    let session = home.session("cli_default");
    let last = *session.history().last().unwrap();
    assert_eq!(last["content"].as_str().map(str::trim_end), Some(text), "{last}");
    assert_eq!(last["partial"], true, "{last}");
    assert_eq!(session.turns(), ["failed"]);
}

#[test]
fn a_cut_stream_exits_5_and_the_text_is_kept() {
    let model = Model::scripted([Reply::text("Once upon a time there was").cut_after(3)]);
    let home = once(&model);
    home.agent(["-m", "hi"]).exits(5).prints("").fails_with_a_hint();
    kept_in_part(&home, "Once upon a time");
}

#[test]
fn a_stream_that_ends_politely_without_a_finish_is_cut_all_the_same() {
    let model = Model::scripted([Reply::events([
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Once upon\"}}]}\n\n",
    ])]);
    let home = once(&model);
    home.agent(["-m", "hi"]).exits(5).prints("");
    kept_in_part(&home, "Once upon");
}

#[test]
fn an_error_in_mid_stream_is_told_and_the_text_is_kept() {
    let model = Model::scripted([Reply::events([
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Once upon\"}}]}\n\n",
        "data: {\"error\":{\"code\":502,\"message\":\"upstream fell over\"}}\n\n",
        "data: [DONE]\n\n",
    ])]);
    let home = once(&model);
    home.agent(["-m", "hi"]).exits(5).prints("").says("upstream fell over");
    kept_in_part(&home, "Once upon");
}

#[test]
fn calls_of_a_cut_stream_are_neither_run_nor_kept() {
    let call = crate::model::call("call_1", "list_dir", &json!({ "path": "." }));
    let model = Model::scripted([Reply::calls([call]).saying("Let me").cut_after(4)]);
    let home = once(&model);
    home.agent(["-m", "hi"]).exits(5).prints("");
    kept_in_part(&home, "Let me");
    home.session("cli_default").has_one_result_per_call();
}

#[test]
fn a_connection_that_closes_before_an_answer_is_tried_again() {
    let model = Model::scripted([Reply::text("lost").cut_after(0), Reply::text("Found.")]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0).prints("Found.\n");
}

/// A question whose only answer is this; nothing is tried twice.
fn answered_by(reply: Reply) -> Run {
    let model = Model::scripted([reply]);
    let home = once(&model);
    home.agent(["-m", "hi"])
}

#[test]
fn a_web_page_in_place_of_an_answer_is_a_wrong_api_base() {
    for status in [200, 404] {
        let run = answered_by(Reply::html(status, "<!doctype html><html><body><h1>It works!</h1></body></html>"));
        run.prints("").fails_with_a_hint().says("api_base").does_not_say("<h1>");
        assert!(run.code.is_some_and(|code| code != 0), "exit {:?}", run.code);
    }
}

#[test]
fn a_request_the_server_rejects_exits_1_with_its_reason() {
    answered_by(Reply::error(400, "no such model: test-model")).exits(1).prints("").says("no such model: test-model");
}

#[test]
fn an_answer_without_choices_is_an_error_and_not_an_empty_answer() {
    for body in [json!({ "choices": [] }), json!({ "choices": null }), json!({}), json!("hello")] {
        let run = answered_by(Reply::json(200, &body));
        assert!(run.code.is_some_and(|code| code != 0), "exit {:?} for {body}", run.code);
        run.prints("").says("bantam: error: ");
    }
}

#[test]
fn an_error_that_calls_itself_200_is_an_error() {
    let run = answered_by(Reply::json(200, &json!({ "error": { "code": 401, "message": "no auth credentials" } })));
    run.exits(4).prints("").says("no auth credentials");
}

#[test]
fn a_plain_answer_to_a_streaming_request_is_read() {
    let answer = json!({ "choices": [ { "index": 0, "message": { "role": "assistant", "content": "All at once." }, "finish_reason": "stop" } ] });
    answered_by(Reply::json(200, &answer)).exits(0).prints("All at once.\n");
}

#[test]
fn a_stream_of_another_dialect_is_read() {
    let run = answered_by(Reply::events([
        ": PROCESSING\r\n\r\n",
        "event: message\r\ndata:{\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"Grü\"}}]}\r\n\r\nda",
        "ta: {\"choices\":[{\"delta\":{\"content\":\"ße.\"}}],\"usage\":null}\r\n\r\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\r\n\r\n",
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\r\n\r\n",
    ]));
    run.exits(0).prints("Grüße.\n");
}

#[test]
fn a_redirect_is_not_followed_with_the_key() {
    let model = Model::never_asked();
    let run =
        answered_by(Reply::json(307, &Value::Null).header("Location", &format!("{}/chat/completions", model.base())));
    assert!(run.code.is_some_and(|code| code != 0), "exit {:?}", run.code);
}

#[test]
fn control_characters_of_a_server_do_not_reach_a_terminal() {
    let run = answered_by(Reply::error(400, "no \u{1b}]0;owned\u{7} such model"));
    run.exits(1).says("such model");
    assert!(!run.stderr.contains(['\u{1b}', '\u{7}']), "{:?}", run.stderr);
}
