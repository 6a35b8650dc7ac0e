//! Limits of one message: a model that starts everything it can is stopped, and a restart does not reset the limit.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::bot::{self, dies, ends, start};
use crate::botapi::BotApi;
use crate::harness::{Home, merged, until};
use crate::model::{Model, Reply, call};
use crate::stored::open_tasks;

const OWNER: i64 = 42;
/// The limit in these tests.
const CALLS: usize = 40;
/// Number of requests after which a model without the limit stops.
const TOO_MANY: usize = 150;

fn config(model: &Model, api: &BotApi) -> Value {
    let limits = json!({ "agents": { "defaults": { "max_calls": CALLS } } });
    merged(bot::config(model, api), &limits)
}

/// Returns a model that starts sixteen tasks for each message and report, and replies to tasks by `work`.
fn greedy(work: impl Fn() -> Reply + Send + Sync + 'static) -> Model {
    Model::answering(move |request, number| {
        let last = request
            .messages()
            .last()
            .map(|message| message["role"].clone());
        match last {
            _ if number >= TOO_MANY => Reply::text("Enough."),
            _ if request.task().is_some() => work(),
            Some(role) if role == "tool" => Reply::text("Begun."),
            _ => Reply::calls((0..16).map(|n| {
                call(
                    &format!("c{n}"),
                    "subagent",
                    &json!({ "task": format!("{n}"), "background": true }),
                )
            })),
        }
    })
}

fn used_up(api: &BotApi) -> usize {
    let said = format!("the {CALLS} model calls that one message may cause are used up");
    api.texts(OWNER)
        .iter()
        .filter(|text| text.contains(&said))
        .count()
}

fn all_tasks_end(home: &Home) {
    until("all tasks have ended", || {
        open_tasks(&home.path("")).is_empty()
    });
}

#[test]
fn calls_per_message_are_limited() {
    let (model, api) = (greedy(|| Reply::text("Done.")), BotApi::start());
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    api.text(OWNER, "go");
    api.wait_for_texts(OWNER, 1);
    all_tasks_end(&home);
    assert_eq!(
        (model.asked(), used_up(&api)),
        (CALLS, 1),
        "{:?}",
        api.texts(OWNER)
    );
    // The reports' texts are in the conversation, which continues with the next message.
    api.text(OWNER, "go");
    until("a next message has calls of its own", || {
        model.asked() > CALLS
    });
    ends(gateway);
    assert!(
        model.requests()[CALLS]
            .texts("user")
            .iter()
            .filter(|said| said.contains("background task"))
            .count()
            >= 16
    );
}

#[test]
fn endless_job_is_stopped_and_reported_once() {
    let model = Model::answering(|request, number| match number {
        TOO_MANY.. => Reply::text("Enough."),
        _ if request.task().is_some() => {
            Reply::call("list_dir", &json!({ "path": ".", "depth": number }))
        }
        _ => Reply::call("subagent", &json!({ "task": number.to_string() })),
    });
    let api = BotApi::start();
    api.chat(OWNER);
    let home = Home::with(&config(&model, &api));
    home.run("cron add -m go --at +1s --to telegram:42".split(' '))
        .exits(0);
    let gateway = start(&home);
    api.wait_for_texts(OWNER, 1);
    all_tasks_end(&home);
    ends(gateway);
    assert_eq!(
        (model.asked(), used_up(&api)),
        (CALLS, 1),
        "{:?}",
        api.texts(OWNER)
    );
    assert!(
        model
            .requests()
            .iter()
            .any(|request| request.task().is_some()),
        "it began no subagent"
    );
}

#[test]
fn restart_keeps_count_of_calls() {
    let (begun, api) = (AtomicUsize::new(0), BotApi::start());
    let model = greedy(move || match begun.fetch_add(1, Ordering::Relaxed) {
        0..4 => Reply::text("Done.").held(),
        _ => Reply::text("Done."),
    });
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    api.text(OWNER, "go");
    api.wait_for_texts(OWNER, 1);
    model.wait_for_holds(4);
    dies(gateway);
    let asked = model.asked();
    let gateway = start(&home);
    // The reports are posted, and the model is not asked to answer them.
    until("all are told", || {
        api.texts(OWNER)
            .iter()
            .filter(|text| text.contains("was interrupted"))
            .count()
            >= 4
    });
    all_tasks_end(&home);
    assert_eq!(
        (model.asked(), used_up(&api)),
        (asked, 0),
        "{:?}",
        api.texts(OWNER)
    );
    ends(gateway);
}

#[test]
fn resumed_message_keeps_its_call_count() {
    let api = BotApi::start();
    let model = Model::answering(|request, number| match number {
        TOO_MANY.. => Reply::text("Enough."),
        5 => Reply::text("lost").held(),
        // Each step of a turn waits for a subagent.
        _ if request.task().is_some() => Reply::text("Done."),
        _ => Reply::call("subagent", &json!({ "task": number.to_string() })),
    });
    let home = Home::with(&config(&model, &api));
    let gateway = start(&home);
    api.text(OWNER, "go");
    model.wait_for_holds(1);
    dies(gateway);
    let gateway = start(&home);
    api.wait_for_texts(OWNER, 1);
    ends(gateway);
    assert_eq!(
        (model.asked(), used_up(&api)),
        (CALLS + 1, 1),
        "{:?}",
        api.texts(OWNER)
    );
}

#[test]
fn the_last_call_of_a_message_gets_an_answer() {
    let model = Model::answering(|request, number| {
        let look = || Reply::call("list_dir", &json!({ "path": ".", "depth": number }));
        if request.tools().is_empty() {
            Reply::text("So far.")
        } else {
            look()
        }
    });
    let home = Home::asking(
        &model,
        &json!({ "agents": { "defaults": { "max_calls": 3 } } }),
    );
    home.agent(["-m", "go"])
        .exits(6)
        .prints("So far.\n")
        .says("the 3 model calls that one message may cause are used up");
    assert_eq!(model.asked(), 3);
}
