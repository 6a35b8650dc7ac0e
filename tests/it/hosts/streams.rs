//! Streams, in all observed formats.

use serde_json::json;

use super::{case, delta, done, end, stream};
use crate::harness::{Home, has_all};
use crate::model::Model;

fn text(text: &str) -> String {
    delta(&json!({ "content": text }))
}

#[test]
fn broken_stream_is_retried_if_unseen() {
    let broken = || stream([text("Once upon")]);
    let seen = case(
        27,
        "the end of the connection without an end of the reply",
        [broken(), done()],
    )
    .answers("Done.")
    .run();
    assert_eq!(seen.requests.len(), 2);
    let seen = case(
        27,
        "the same, twice, and then never again",
        [broken(), broken(), broken()],
    )
    .fails(5, "broke off")
    .run();
    let session = seen.home.session("cli_default");
    let last = *session.history().last().unwrap();
    assert_eq!(
        (&last["content"], &last["partial"]),
        (&json!("Once upon"), &json!(true)),
        "only the last of them"
    );
    // On a terminal, it was displayed.
    let (_model, home) = Home::of(Model::scripted([broken()]));
    let run = home
        .bantam()
        .args(["agent", "-m", "hi"])
        .on_a_clever_terminal(80)
        .run();
    assert!(run.code == Some(5), "{:?}: {}", run.code, run.stdout);
    has_all(&run.stdout, ["Once upon"]);
    let error =
        "data: {\"error\":{\"code\":502,\"message\":\"upstream fell over\"}}\n\ndata: [DONE]\n\n"
            .to_owned();
    let seen = case(
        28,
        "an error in mid stream",
        [stream([text("Once upon"), error.clone()])],
    )
    .once()
    .fails(5, "upstream fell over")
    .run();
    assert_eq!(
        seen.home.session("cli_default").history().last().unwrap()["partial"],
        true
    );
    case(
        28,
        "the same, tried again",
        [stream([text("Once upon"), error]), done()],
    )
    .answers("Done.")
    .run();
}

#[test]
fn a_slow_stream_may_take_longer_than_the_limit_on_silence() {
    let base = super::server(|stream| {
        use std::io::Write;
        super::answering(
            &stream,
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n",
        );
        let mut stream = stream;
        for n in 0..5 {
            // The host is slow; this is not a wait for an event.
            std::thread::sleep(std::time::Duration::from_millis(600));
            stream.write_all(text(&format!("{n}")).as_bytes()).ok();
        }
        stream.write_all(end("stop").as_bytes()).ok();
    });
    let (_, run) = super::asked_at(
        &format!("http://{base}/v1"),
        &json!({ "model_list": [ { "request_timeout": 2 } ] }),
    );
    run.answers("01234\n");
}
