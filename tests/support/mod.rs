//! Code shared by the tests in `tests/it`, `root`, `programs` and `jail` and the benchmarks in `tests/bench`: homes and runs of
//! the real program, scripted models and Telegram servers, and ways to watch or hinder the program from outside.

pub mod addresses;
pub mod board;
pub mod bot;
pub mod botapi;
pub mod bothttp;
pub mod botmethods;
pub mod door;
pub mod entities;
pub mod fixtures;
pub mod harness;
pub mod heavy;
pub mod marker;
pub mod model;
pub mod pdf;
pub mod program;
pub mod race;
pub mod remote;
#[allow(dead_code)] // unit tests use the rest of it
pub mod rng;
pub mod sites;
pub mod smuggling;
pub mod store_check;
pub mod stored;
pub mod tunnel;
pub mod without_syscall;
