//! Ctrl-C: immediate exit with 130, and the text so far is stored.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Home, Running, merged, until};
use crate::marker::Marker;
use crate::model::{Model, Reply};

/// Interrupts the program, which must end soon.
#[track_caller]
fn interrupt(running: Running<'_>) -> crate::harness::Run {
    let asked = Instant::now();
    running.signal(Signal::INT);
    running.wait();
    // Otherwise the model would delay it forever.
    assert!(
        asked.elapsed() < Duration::from_secs(40),
        "took {:?} to stop",
        asked.elapsed()
    );
    let run = running.finish();
    run.exits(130).prints("");
    run
}

#[test]
fn a_polite_end_is_the_same_as_an_interrupt() {
    let model = Model::scripted([Reply::text("Too late.").held()]);
    let home = Home::with(&model.config());
    let running = home.bantam().args(["agent", "-m", "hi"]).spawn();
    model.wait_for_requests(1);
    running.signal(Signal::TERM);
    running.finish().exits(130).prints("");
    assert_eq!(home.session("cli_default").turns(), ["cancelled"]);
}

/// Whether bantam has read all data of this model. The table of TCP connections is readable for every user.
fn has_read_everything(model: &Model) -> bool {
    let address = model.address();
    let port: u16 = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let to_model = format!(":{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    // A row has a number, the local address, the remote address, the state (01: established), bytes to send and to read.
    let mut connections = rows
        .filter(|row| row[2].ends_with(&to_model) && row[3] == "01")
        .peekable();
    connections.peek().is_some() && connections.all(|row| row[4].ends_with(":00000000"))
}

#[test]
fn interrupted_text_is_stored_but_not_printed() {
    let model = Model::scripted([Reply::text("Once upon a time there was").held_after(3)]);
    let home = Home::with(&model.config());
    let running = home.bantam().args(["agent", "-m", "hi"]).spawn();
    model.wait_for_holds(1);
    until("bantam has read what was sent", || {
        has_read_everything(&model)
    });
    interrupt(running);
    let session = home.session("cli_default");
    let last = *session.history().last().unwrap();
    assert_eq!(
        last["content"].as_str().map(str::trim_end),
        Some("Once upon a time"),
        "{last}"
    );
    assert_eq!(last["partial"], true);
    assert_eq!(session.turns(), ["cancelled"]);
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
    assert_eq!(home.session("cli_default").turns(), ["cancelled"]);
}

#[test]
fn interrupted_command_call_gets_a_result() {
    let marker = Marker::new();
    let model = Model::scripted([Reply::call(
        "exec",
        &json!({ "command": format!("sleep {marker}") }),
    )]);
    let home = Home::with(&merged(
        model.config(),
        &json!({ "tools": { "exec": { "sandbox": "off" } } }),
    ));
    let running = home.bantam().args(["agent", "-m", "sleep"]).spawn();
    until("the command runs", || !marker.alive().is_empty());
    interrupt(running);
    marker.is_gone();
    let session = home.session("cli_default");
    session.has_one_result_per_call();
    assert_eq!(session.roles(), ["user", "assistant", "tool"]);
    assert_eq!(session.turns(), ["cancelled"]);
}
