//! Tests that need root: they stop the program at system calls (bantam denies its own user inspection), give files to other
//! users, and write outside their home. `tests/run` runs them; `cargo test` alone does not.

#![allow(clippy::unwrap_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

// Tests name them without their directory.
use support::{bot, botapi, harness, marker, model, stored};

mod busy;
mod crash;
mod deliveries;
mod faults;
mod owners;
mod power;
mod seccomp_trace;
mod skills;
mod syncs;
mod waits;
