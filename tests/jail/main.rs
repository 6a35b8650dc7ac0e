//! Proves that the sandbox works: attacks run through the real program and its real `exec`, on the real kernel and with
//! mechanisms removed.
//!
//! Every attack is judged by its effect, and must succeed without a sandbox in the same run; otherwise it proves nothing and
//! fails the test. [`attack`] defines attacks, [`netns`] their environment, and [`matrix`] the results.

#![allow(clippy::unwrap_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

use support::{addresses, harness, model, program};

mod attack;
mod ends;
mod escapes;
mod files;
mod fixture;
mod fuzz;
mod kernel;
mod layers;
mod matrix;
mod netns;
mod opened;
mod programs;
mod refusal;
mod runner;
mod ssrf;
mod terminal;
mod trees;
