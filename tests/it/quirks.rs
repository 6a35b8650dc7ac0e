//! What a host refuses is found out once, and not again by the next run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, merged};
use crate::model::{Model, Reply, Request};

const NO_MAX_TOKENS: &str = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.";

/// A host that refuses each of these fields, as hosts do.
fn strict(refused: &'static [(&'static str, &'static str)]) -> Model {
    Model::answering(move |request, _| answer(request, refused))
}

fn answer(request: &Request, refused: &[(&str, &str)]) -> Reply {
    let found = refused
        .iter()
        .find(|(field, _)| request.body.get(*field).is_some());
    found.map_or_else(|| Reply::text("Here."), |(_, says)| Reply::error(400, says))
}

fn rows(home: &Home) -> Vec<Value> {
    let text = fs::read_to_string(home.path("state/quirks.json")).unwrap();
    let mut value: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(value["learned"].take()).unwrap()
}

#[test]
fn a_refusal_is_met_once_and_not_by_the_next_run() {
    let model = strict(&[
        ("max_tokens", NO_MAX_TOKENS),
        (
            "stream_options",
            "Extra inputs are not permitted: stream_options",
        ),
    ]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"])
        .exits(0)
        .prints("Here.\n")
        .is_quiet();
    assert_eq!(model.requests().len(), 3, "two refusals, and an answer");
    home.agent(["-m", "hi"])
        .exits(0)
        .prints("Here.\n")
        .is_quiet();
    home.agent(["--no-session", "-m", "hi"])
        .exits(0)
        .prints("Here.\n");
    assert_eq!(model.requests().len(), 5, "none any more");
    let body = model.request(3).body;
    assert_eq!(
        (body.get("max_tokens"), &body["max_completion_tokens"]),
        (None, &json!(8192))
    );

    let path = home.path("state/quirks.json");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(!fs::read_to_string(&path).unwrap().contains(CANARY));
    let run = home.agent(["--dry-run", "-m", "hi"]);
    assert!(
        run.stdout.contains("max_completion_tokens"),
        "it shows what would go out: {}",
        run.stdout
    );

    let host = model.base().replace("http://", "").replace("/v1", "");
    let run = home.bantam().arg("status").run();
    run.exits(0);
    let line = format!(
        "learned    test-model at {host}: takes max_completion_tokens in place of max_tokens (since 20"
    );
    assert!(
        run.stdout.contains(&line) && run.stdout.contains("quirks.json"),
        "{}",
        run.stdout
    );
    let object = home.bantam().args(["status", "--json"]).run().json();
    let told: Vec<&Value> = object["learned"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["quirk"])
        .collect();
    assert_eq!(told, ["max_completion_tokens", "no stream_options"]);

    // Whoever removes it has it found out anew.
    fs::remove_file(path).unwrap();
    home.agent(["-m", "hi"]).exits(0);
    assert_eq!(model.requests().len(), 8);
}

#[test]
fn what_was_learned_is_tried_again_when_the_entry_changes() {
    let model = strict(&[("max_tokens", NO_MAX_TOKENS)]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0);
    // Limits do not count.
    let requests = |extra: &Value| {
        home.config(&merged(model.config(), extra).to_string());
        let before = model.requests().len();
        home.agent(["-m", "hi"]).exits(0);
        model.requests().len() - before
    };
    assert_eq!(
        requests(&json!({ "model_list": [ { "max_tokens": 100 } ] })),
        1
    );
    assert_eq!(
        requests(&json!({ "model_list": [ { "extra_body": { "top_k": 5 } } ] })),
        2
    );
    assert_eq!(
        requests(&json!({ "model_list": [ { "extra_body": { "top_k": 5 } } ] })),
        1
    );
}

#[test]
fn one_model_is_not_taken_for_another() {
    let model = strict(&[("max_tokens", NO_MAX_TOKENS)]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0);
    let other = merged(
        model.config(),
        &json!({ "model_list": [ { "model": "openai/other-model" } ] }),
    );
    home.config(&other.to_string());
    home.agent(["-m", "hi"]).exits(0);
    assert_eq!(model.requests().len(), 4);
    assert_eq!(rows(&home).len(), 2);
}

#[test]
fn what_was_learned_long_ago_is_tried_again() {
    let model = strict(&[("max_tokens", NO_MAX_TOKENS)]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"]).exits(0);
    let [mut row] = rows(&home).try_into().unwrap();
    let at = row["at"].as_u64().unwrap();
    for (days, requests) in [(29, 1), (31, 2)] {
        row["at"] = json!(at - days * 86_400);
        home.write("state/quirks.json", json!({ "learned": [row] }).to_string());
        let before = model.requests().len();
        home.agent(["-m", "hi"]).exits(0);
        assert_eq!(
            model.requests().len() - before,
            requests,
            "after {days} days"
        );
    }
    assert!(
        rows(&home)[0]["at"].as_u64() >= Some(at),
        "it is learned anew"
    );
}

#[test]
fn a_host_that_changes_its_mind_is_believed() {
    let model = Model::answering(|request, n| match n {
        0 | 1 => answer(request, &[("max_tokens", NO_MAX_TOKENS)]),
        2 | 3 => answer(
            request,
            &[(
                "max_completion_tokens",
                "unknown field max_completion_tokens",
            )],
        ),
        _ => answer(request, &[("max_tokens", NO_MAX_TOKENS)]),
    });
    let home = Home::with(&model.config());
    for requests in [2, 4, 6, 7] {
        home.agent(["-m", "hi"]).exits(0).prints("Here.\n");
        assert_eq!(model.requests().len(), requests);
    }
    assert_eq!(rows(&home).len(), 1);
    // One that refuses whatever it is given is asked three times, and not for ever.
    let model = strict(&[
        ("max_tokens", NO_MAX_TOKENS),
        (
            "max_completion_tokens",
            "unknown field max_completion_tokens",
        ),
    ]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"])
        .exits(1)
        .prints("")
        .fails_with_a_hint();
    assert_eq!(model.requests().len(), 3);
}

#[test]
fn what_cannot_be_read_or_written_is_no_fault_of_the_turn() {
    let model = strict(&[("max_tokens", NO_MAX_TOKENS)]);
    for text in [
        "",
        "{",
        "[]",
        "{\"learned\": [{\"host\": 1}, 7, null]}",
        &"x".repeat(200_000),
    ] {
        let home = Home::with(&model.config());
        home.write("state/quirks.json", text);
        home.agent(["-m", "hi"])
            .exits(0)
            .prints("Here.\n")
            .is_quiet();
        assert_eq!(rows(&home).len(), 1, "it is written anew: {text:.40}");
        home.bantam().arg("status").run().exits(0).is_quiet();
    }
    let home = Home::with(&model.config());
    home.dir("state/quirks.json/in the way");
    home.agent(["-m", "hi"])
        .exits(0)
        .prints("Here.\n")
        .is_quiet();
    assert!(!home.path("state/quirks.json.new").exists());
    home.bantam().arg("status").run().exits(0);
}

/// One pixel.
const GIF: &[u8] = b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;";

fn has_image(request: &Request) -> bool {
    request.body.to_string().contains("image_url")
}

#[test]
fn a_bad_image_is_not_taken_for_a_model_without_images() {
    for says in [
        "Invalid image_url: the image could not be decoded",
        "image format image/heic is not supported",
        "You uploaded an unsupported image. Please make sure your image is below 20 MB",
    ] {
        let model = Model::answering(|request, _| {
            if has_image(request) {
                Reply::error(400, says)
            } else {
                Reply::text("Nothing to see.")
            }
        });
        let home = Home::with(&model.config());
        let pixel = home.write("pixel.gif", GIF);
        let run = home
            .bantam()
            .args(["agent", "-m", "what is this?", "-a"])
            .arg(&pixel)
            .run();
        run.exits(1).says(says);
        assert_eq!(model.requests().len(), 1, "{says}");
        assert!(!home.path("state/quirks.json").exists(), "{says}");
    }
}

#[test]
fn a_model_without_images_is_said_to_have_none_and_tested_with_each_new_one() {
    let upgraded = Arc::new(AtomicBool::new(false));
    let accepts = upgraded.clone();
    let model = Model::answering(move |request, _| {
        let refused = has_image(request) && !accepts.load(Ordering::SeqCst);
        if refused {
            Reply::error(404, "No endpoints found that support image input")
        } else {
            Reply::text("Seen.")
        }
    });
    let home = Home::with(&model.config());
    let pixel = home.write("pixel.gif", GIF);
    let look = || {
        home.bantam()
            .args(["agent", "-m", "what is this?", "-a"])
            .arg(&pixel)
            .run()
    };
    look().exits(0).prints("Seen.\n").says("takes no images");
    assert_eq!(model.requests().len(), 2);
    assert!(
        model
            .request(1)
            .last("user")
            .contains("left out: this model")
    );
    home.agent(["-m", "and now?"]).exits(0).is_quiet();
    assert_eq!(model.requests().len(), 3, "an old image is not tried again");
    look().exits(0).says("takes no images");
    assert_eq!(model.requests().len(), 5);
    assert_eq!(rows(&home).len(), 1);
    upgraded.store(true, Ordering::SeqCst);
    look().exits(0).prints("Seen.\n").is_quiet();
    assert_eq!((model.requests().len(), rows(&home).len()), (6, 0));
    home.agent(["-m", "and now?"]).exits(0);
    assert!(has_image(&model.request(6)));
}

#[test]
fn a_model_without_tools_is_asked_without_them_once_learned() {
    let model = strict(&[(
        "tools",
        "registry.ollama.ai/library/gemma2:2b does not support tools",
    )]);
    let home = Home::with(&model.config());
    home.agent(["-m", "hi"])
        .exits(0)
        .prints("Here.\n")
        .says("takes no tools");
    home.agent(["-m", "hi"])
        .exits(0)
        .prints("Here.\n")
        .says("takes no tools");
    assert_eq!(model.requests().len(), 3);
}
