//! `kill -9`, at any moment: the next turn finds a session it can go on with.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Home, merged, until};
use crate::marker::Marker;
use crate::model::{Model, Reply, call};
use crate::stored::one_result_per_call;

/// How often a turn is killed, each time a little later in its life.
const KILLS: u32 = 40;

/// A model that has two calls made in a first step, one in a second, and then answers.
fn busy() -> Model {
    Model::answering(|request, _| {
        let since_the_question = request.messages().into_iter().rev().take_while(|message| message["role"] != "user");
        match since_the_question.filter(|message| message["role"] == "tool").count() {
            0 => Reply::calls([
                call("call_a", "list_dir", &json!({ "path": "." })),
                call("call_b", "exec", &json!({ "command": "echo one; echo two" })),
            ])
            .saying("I look first."),
            2 => Reply::calls([call("call_c", "read_file", &json!({ "path": "notes.txt" }))]),
            _ => Reply::text("That is all there is."),
        }
    })
}

#[test]
fn a_turn_killed_at_any_moment_leaves_a_session_that_goes_on() {
    let model = busy();
    let home = Home::with(&merged(model.config(), &json!({ "tools": { "exec": { "sandbox": "off" } } })));
    home.write("workspace/notes.txt", "water the plants\n");
    let whole = home.agent(["-s", "whole", "-m", "look"]);
    whole.exits(0);
    let before = model.requests().len();

    let mut unfinished = 0;
    for n in 0..KILLS {
        let running = home.bantam().args(["agent", "-s", "killed", "-m", "look"]).spawn();
        // The only sleep among these tests: the moment of the kill is what is varied, over the life of a turn.
        thread::sleep(whole.took * n / KILLS);
        running.signal(Signal::KILL);
        let run = running.finish();
        unfinished += u32::from(run.killed_by.is_some());
    }
    assert!(unfinished > KILLS / 2, "only {unfinished} of {KILLS} turns were killed in time");

    // Every request of every turn, each built on what the kills before it had left.
    for request in model.requests().into_iter().skip(before) {
        one_result_per_call(&request.messages());
    }
    home.agent(["-s", "killed", "-m", "look"]).exits(0).prints("That is all there is.\n");
    let session = home.session("cli_killed");
    session.has_one_result_per_call();
    assert_eq!(session.turns().last(), Some(&"done"));
}

#[test]
fn a_turn_killed_after_its_calls_were_stored_has_their_results_made_up() {
    let marker = Marker::new();
    let model = Model::scripted([
        Reply::calls([call("call_a", "exec", &json!({ "command": format!("sleep {marker}") }))]),
        Reply::text("I do not know what happened."),
    ]);
    let home = Home::with(&merged(model.config(), &json!({ "tools": { "exec": { "sandbox": "off" } } })));
    let running = home.bantam().args(["agent", "-m", "sleep"]).spawn();
    until("the command runs", || !marker.alive().is_empty());
    running.signal(Signal::KILL);
    running.finish();

    home.agent(["-m", "what happened?"]).exits(0);
    let request = model.request(1);
    one_result_per_call(&request.messages());
    assert!(request.texts("tool")[0].contains("interrupted, outcome unknown"), "{:?}", request.texts("tool"));
}

#[test]
fn what_a_command_started_ends_with_a_killed_bantam() {
    let marker = Marker::new();
    let model = Model::scripted([Reply::call(
        "exec",
        &json!({ "command": format!("setsid sleep {marker} & sleep {marker}") }),
    )]);
    let home = Home::with(&merged(model.config(), &json!({ "tools": { "exec": { "sandbox": "off" } } })));
    let running = home.bantam().args(["agent", "-m", "sleep"]).spawn();
    until("both sleepers sleep", || marker.alive().iter().filter(|line| line.contains(" sleep ")).count() >= 2);
    running.signal(Signal::KILL);
    running.finish();
    until("both sleepers are gone", || marker.alive().is_empty());
}

#[test]
fn a_killed_turn_does_not_keep_the_session_busy() {
    let model = Model::scripted([Reply::text("never").held(), Reply::text("Here.")]);
    let home = Home::with(&model.config());
    let running = home.bantam().args(["agent", "-m", "first"]).spawn();
    model.wait_for_requests(1);
    running.signal(Signal::KILL);
    running.finish();
    let asked = Instant::now();
    home.agent(["-m", "second"]).exits(0).prints("Here.\n");
    assert!(asked.elapsed() < Duration::from_secs(10), "waited {:?} for a dead process", asked.elapsed());
}
