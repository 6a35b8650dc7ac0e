//! Ctrl-C: immediate exit with 130, and the text so far is stored.

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Home, until};
use crate::marker::Marker;
use crate::model::{Model, Reply, call};

#[test]
fn a_polite_end_is_the_same_as_an_interrupt() {
    let (model, home) = Home::of(Model::scripted([Reply::text("Too late.").held()]));
    let running = home.bantam().args(["agent", "-m", "hi"]).spawn();
    model.wait_for_requests(1);
    running.signal(Signal::TERM);
    running.finish().exits(130).prints("");
    assert_eq!(home.session("cli_default").turns(), ["cancelled"]);
}

#[test]
fn a_terminal_that_types_ctrl_c_interrupts() {
    let model = Model::scripted([Reply::text("Once upon a time there was").held_after(3)]);
    let home = Home::with(&model.config());
    let mut running = home
        .bantam()
        .args(["agent", "-n", "-m", "hi"])
        .silent_stdin()
        .on_a_terminal()
        .spawn();
    running.wait_for_stdout("Once upon a time");
    running.types("\x03");
    running.finish().exits(130);
    let session = home.session("cli_default");
    let last = *session.history().last().unwrap();
    let said = last["content"].as_str().unwrap();
    assert!(said.starts_with("Once upon a time"), "{last}");
    assert_eq!(last["partial"], true);
    assert_eq!(session.turns(), ["cancelled"]);
}

#[test]
fn interrupted_command_call_gets_a_result() {
    let marker = Marker::new();
    let sleep = json!({ "command": format!("sleep {marker}") });
    let model = Model::scripted([Reply::calls([
        call("a", "exec", &sleep),
        call("b", "exec", &json!({ "command": "echo ran" })),
    ])]);
    let home = Home::asking(
        &model,
        &json!({ "tools": { "exec": { "sandbox": "off" } } }),
    );
    let running = home.bantam().args(["agent", "-m", "sleep"]).spawn();
    until("the command runs", || !marker.alive().is_empty());
    running.signal(Signal::INT);
    running.finish().exits(130).prints("");
    marker.is_gone();
    let session = home.session("cli_default");
    session.has_one_result_per_call();
    let results = session.texts("tool");
    assert_eq!(
        (results.len(), results[1]),
        (2, "not run: the user stopped the turn")
    );
    assert_eq!(session.turns(), ["cancelled"]);
}
