//! A gateway with a Telegram bot: its configuration, its start and its end.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::botapi::{BotApi, TOKEN};
use super::harness::{Home, Running, merged};
use super::model::Model;

/// The first of the two users who may write to the bot; the other one is 43.
const OWNER: i64 = 42;

/// Returns a configuration of a bot with two users, this model and this server.
pub fn config(model: &Model, api: &BotApi) -> Value {
    let bot = json!({ "enabled": true, "token": TOKEN, "allow_from": [OWNER, 43], "api_base": api.base() });
    merged(
        model.config(),
        &json!({ "channels": { "telegram": bot }, "tools": { "exec": { "sandbox": "off" } } }),
    )
}

/// Returns a server of the Bot API, and a home with this configuration.
pub fn home(model: &Model) -> (BotApi, Home) {
    let api = BotApi::start();
    let home = Home::with(&config(model, &api));
    (api, home)
}

pub fn start(home: &Home) -> Running<'_> {
    home.bantam().arg("gateway").spawn()
}

/// Starts a gateway, and waits until it serves.
pub fn serving(home: &Home) -> Running<'_> {
    let gateway = start(home);
    gateway.wait_for_stderr("serving as");
    gateway
}

/// Kills the gateway.
pub fn dies(gateway: Running) {
    gateway.signal(Signal::KILL);
    drop(gateway.finish());
}

/// Stops the gateway, and checks that it exits soon and successfully.
#[track_caller]
pub fn ends(gateway: Running) {
    gateway.signal(Signal::TERM);
    let started = Instant::now();
    gateway.wait();
    let took = started.elapsed();
    gateway.finish().exits(0);
    // A poll may last 50 s.
    assert!(took < Duration::from_secs(40), "it took {took:?} to end");
}
