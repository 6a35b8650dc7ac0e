//! Tests with programs that a machine with Rust may lack: independent servers and shells. `tests/run` installs them and runs
//! these tests; `cargo test` alone does not.

#![allow(clippy::unwrap_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

// Tests name them without their directory.
use support::{board, door, harness, heavy, marker, model, pdf, program, remote, tunnel};

mod clients;
mod git;
mod install;
mod mcp;
mod mcp_command;
mod mcp_trust;
mod pdfs;
mod shells;
mod skills;
mod tables;
mod tls;
mod tmux;
