//! Runs the real program over real sockets: every test starts `bantam` with a separate home and a scripted model ([`model`]).
//! Tests that need programs beyond Rust and a basic Linux are in `tests/programs`.

#![allow(clippy::unwrap_used)]

#[path = "../support/mod.rs"]
mod support;

// Tests name them without their directory.
use support::{
    addresses, board, bot, botapi, door, fixtures, harness, heavy, marker, model, pdf, program,
    remote, rng, sites, smuggling, stored, tunnel, without_syscall,
};

mod agent;
mod answer_schema;
mod answers;
mod anthropic;
mod asked;
mod attach;
mod botschema;
mod bytes;
mod calls;
mod cancel;
mod compaction;
mod config;
mod confirm;
mod contract;
mod cron;
mod deliveries;
mod demo;
mod discipline;
mod doctor;
mod edits;
mod endpoint;
mod examples;
mod exec;
mod files;
mod flags;
mod fresh;
mod full;
mod gateway;
mod grep;
mod help;
mod hostile;
mod hosts;
mod incoming;
mod injections;
mod keys;
mod kills;
mod life;
mod mcp_remote;
mod media;
mod memory;
mod mistakes;
mod models;
mod network;
mod onboard;
mod prompt;
mod proxy;
mod quirks;
mod race;
mod recipes;
mod repl;
mod responses;
mod secrets;
mod service;
mod session;
mod sessions;
mod skills;
mod spending;
mod status;
mod stores;
mod talk;
mod tasks;
mod terminal;
mod tries;
mod undo;
mod unrestricted;
mod usage;
mod web;
mod week;
mod without_telegram;
