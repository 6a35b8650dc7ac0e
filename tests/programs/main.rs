//! What needs programs that a machine with Rust may lack: servers and shells that nobody here wrote. `tests/run` installs them
//! and runs this; `cargo test` alone does not.

#![allow(clippy::unwrap_used)]

// The other tests use the rest of it.
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

// Every test names them without their folder.
use support::{board, door, harness, model, pdf, program, remote, tunnel};

mod aimock;
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
