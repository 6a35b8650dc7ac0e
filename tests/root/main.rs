//! What only root can show: it stops the program at system calls (bantam forbids its own user to look into it), gives files
//! to other users, and writes outside of its home. `tests/run` runs this; `cargo test` alone does not.

#![allow(clippy::unwrap_used)]

// The other tests use the rest of it.
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

// Every test names them without their folder.
use support::{bot, botapi, harness, marker, model, stored};

mod crash;
mod deliveries;
mod faults;
mod owners;
mod power;
mod seccomp_trace;
mod skills;
mod syncs;
mod waits;
