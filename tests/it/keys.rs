//! Several keys for one model, and several models for one question.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{CANARY, Home, has_fields, merged};
use crate::model::{Model, Reply, Request};

fn with_keys(model: &Model, keys: &Value) -> Home {
    Home::asking(
        model,
        &json!({ "model_list": [ { "api_key": "", "api_keys": keys } ] }),
    )
}

#[track_caller]
fn asked_with(request: &Request, key: &str) {
    assert_eq!(
        request.header("authorization"),
        Some(format!("Bearer {key}").as_str())
    );
}

#[test]
fn a_refused_key_makes_room_for_the_next_and_is_told() {
    let model = Model::scripted([
        Reply::error(401, "Incorrect API key provided"),
        Reply::text("Hello."),
    ]);
    let home = with_keys(&model, &json!(["key-one", CANARY]));
    let run = home.agent(["-m", "hi"]);
    run.answers("Hello.\n")
        .says("key 1 of 2")
        .says("Incorrect API key provided");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    asked_with(&model.request(0), "key-one");
    asked_with(&model.request(1), CANARY);
}

#[test]
fn keys_without_quota_or_patience_make_room_at_once() {
    let broke = json!({ "error": { "message": "You exceeded your current quota", "code": "insufficient_quota" } });
    let model = Model::scripted([
        Reply::error(429, "slow down").header("Retry-After", "50"),
        Reply::json(429, &broke),
        Reply::text("Hello."),
    ]);
    let home = with_keys(&model, &json!(["key-one", "key-two", "key-three"]));
    let run = home.agent(["-m", "hi"]);
    run.answers("Hello.\n");
    assert!(
        run.took.as_secs() < 50,
        "waited for a key that had to rest: {:?}",
        run.took
    );
    asked_with(&model.request(2), "key-three");
}

#[test]
fn refused_keys_exit_4_with_a_hint() {
    let model = Model::scripted([Reply::error(401, "no"), Reply::error(403, "nor this")]);
    let home = with_keys(&model, &json!(["key-one", "key-two"]));
    home.agent(["-m", "hi"])
        .fails(4)
        .prints("")
        .says("`bantam status` shows where it comes from");
    assert!(
        home.session("cli_default").history().is_empty(),
        "a refused key leaves no trace"
    );
}

#[test]
fn a_key_is_looked_up_only_when_its_turn_comes() {
    let model = Model::scripted([
        Reply::text("One."),
        Reply::error(401, "no"),
        Reply::text("Two."),
    ]);
    let home = Home::empty();
    let looked = home.path("looked");
    let command = format!("cmd:/bin/sh -c 'echo >{}; echo key-two'", looked.display());
    let keys = json!({ "model_list": [ { "api_key": "", "api_keys": ["${FIRST}", command] } ] });
    home.reconfigure(&model, &keys);
    let ask = || {
        home.bantam()
            .env("FIRST", "key-one")
            .args(["agent", "-m", "hi"])
            .run()
    };
    ask().answers("One.\n");
    assert!(
        !looked.exists(),
        "the second key was looked up without need"
    );
    ask().answers("Two.\n");
    assert!(looked.exists());
    asked_with(&model.request(1), "key-one");
    asked_with(&model.request(2), "key-two");
}

#[test]
fn unavailable_keys_exit_3() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let home = with_keys(&model, &json!(["${NO_SUCH_VARIABLE}"]));
    home.agent(["-m", "hi"])
        .fails(3)
        .prints("")
        .says("NO_SUCH_VARIABLE is not set");
    assert!(
        home.session("cli_default").history().is_empty(),
        "what was never asked leaves no trace"
    );
    let home = with_keys(&model, &json!(["${NO_SUCH_VARIABLE}", CANARY]));
    home.agent(["-m", "hi"]).answers("Hello.\n");
    asked_with(&model.request(0), CANARY);
}

#[test]
fn a_key_from_a_file_is_redacted_like_any_other() {
    let model = Model::scripted([Reply::error(
        401,
        "Incorrect API key provided: the-key-from-the-file.",
    )]);
    let home = with_keys(&model, &json!(["file:provider-key"]));
    let credentials = home.write("credentials/provider-key", "the-key-from-the-file\n");
    let ask = home
        .bantam()
        .env("CREDENTIALS_DIRECTORY", credentials.parent().unwrap());
    let run = ask.args(["agent", "-m", "hi"]).run();
    run.exits(4)
        .says("Incorrect API key provided")
        .does_not_say("the-key-from-the-file");
    asked_with(&model.request(0), "the-key-from-the-file");
}

/// Returns a configuration of `first`, with `second` as its fallback.
fn two(first: &Model, second: &Model) -> Value {
    let entry = |name: &str, model: &Model| json!({ "model_name": name, "model": format!("openai/{name}"), "api_base": model.base(), "api_key": CANARY });
    json!({
        "agents": { "defaults": {
            "model_name": "one", "model_fallbacks": ["two", "one"], "max_retries": 1, "retry_initial_delay": 0.01
        } },
        "model_list": [entry("one", first), entry("two", second)]
    })
}

#[test]
fn fallback_answer_names_its_model() {
    let first = Model::scripted([
        Reply::error(503, "overloaded"),
        Reply::error(503, "overloaded"),
    ]);
    let second = Model::scripted([Reply::text("Hello.")]);
    let home = Home::with(&two(&first, &second));
    let run = home.agent(["--json", "-m", "hi"]);
    run.exits(0)
        .says("openai/one: the server answered 503")
        .says("asking openai/two");
    assert_eq!(run.stderr.lines().count(), 1, "{}", run.stderr);
    has_fields(
        &run.json(),
        &json!({ "model": "openai/two", "output": "Hello." }),
    );
    assert_eq!(second.request(0).body["model"], "two");
}

#[test]
fn failed_models_report_the_first_error() {
    let first = Model::scripted([Reply::error(401, "bad key")]);
    let second = Model::scripted([Reply::error(400, "odd request")]);
    let home = Home::with(&two(&first, &second));
    home.agent(["-m", "hi"])
        .fails(4)
        .prints("")
        .says("asking openai/one")
        .says("bad key");
}

#[test]
fn an_answer_that_breaks_off_is_not_begun_again_elsewhere() {
    let first = Model::scripted([Reply::text("Once upon a time there was").cut_after(3)]);
    let second = Model::never_asked();
    Home::with(&two(&first, &second))
        .agent(["--events", "-m", "hi"])
        .exits(5);
}

#[test]
fn an_entry_of_the_same_name_replaces_one_that_fails() {
    let second = Model::answering(|_, _| Reply::text("Two."));
    let entry = |model: &Model| json!({ "model_name": "test", "model": "openai/x", "api_base": model.base(), "api_key": CANARY });
    let down = Model::answering(|_, _| Reply::error(503, "overloaded"));
    let home = Home::asking(
        &down,
        &json!({ "model_list": null, "agents": { "defaults": { "max_retries": 0 } } }),
    );
    let defaults = json!({ "agents": { "defaults": { "model_name": "test", "max_retries": 0 } } });
    home.config(
        &merged(
            defaults,
            &json!({ "model_list": [entry(&down), entry(&second)] }),
        )
        .to_string(),
    );
    home.agent(["--no-session", "-m", "hi"]).answers("Two.\n");
}

#[test]
fn unusable_fallback_is_reported_and_skipped() {
    let model = Model::scripted([Reply::text("Hello.")]);
    let extra =
        json!({ "agents": { "defaults": { "model_fallbacks": ["groq/llama", "nonsense"] } } });
    let home = Home::asking(&model, &extra);
    let run = home.agent(["-m", "hi"]);
    run.answers("Hello.\n")
        .says("groq/llama is left out")
        .says("nonsense is left out");
}

/// Makes a configuration accessible to others, and returns the path.
type Spoil<'a> = &'a dyn Fn(&Home) -> PathBuf;

#[test]
fn key_command_in_writable_file_is_refused() {
    let model = Model::never_asked();
    let other = Home::empty();
    let ran = other.dir("ran");
    let set_mode = |path: PathBuf, mode| {
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    };
    let spoil: [(&str, Spoil); 5] = [
        ("others can write", &|home| {
            set_mode(home.path("config.json"), 0o666)
        }),
        ("others can write", &|home| set_mode(home.path(""), 0o777)),
        // Other users of the same group also count.
        ("others can write", &|home| {
            set_mode(home.path("config.json"), 0o660)
        }),
        ("others can write", &|home| set_mode(home.path(""), 0o775)),
        // The file itself is safe, but the link to it is not.
        ("others can write", &|home| {
            let shared = home.dir("shared");
            fs::rename(home.path("config.json"), home.path("safe.json")).unwrap();
            symlink(home.path("safe.json"), shared.join("config.json")).unwrap();
            symlink("shared/config.json", home.path("config.json")).unwrap();
            set_mode(shared, 0o777)
        }),
    ];
    for (says, spoil) in spoil {
        let command = format!(
            "cmd:/bin/sh -c 'echo >{}; echo key'",
            ran.join("it").display()
        );
        let home = with_keys(&model, &json!([command]));
        let place = spoil(&home);
        let run = home.agent(["-m", "hi"]);
        run.fails(3)
            .says(says)
            .says(place.to_str().unwrap().trim_end_matches('/'));
        assert!(!ran.join("it").exists(), "{says} {}", place.display());
    }
}
