//! The proof that the sandbox holds: attacks run through the real program and its real `exec`, on the kernel as it is and
//! with mechanisms taken away.
//!
//! Every attack is judged by its effect, and has to succeed bare in the same run; one that does not proves nothing and
//! fails the test. See [`attack`] for what an attack is, [`netns`] for where it runs, [`matrix`] for the outcome.

#![allow(clippy::unwrap_used)]

// The other tests use the rest of it.
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
