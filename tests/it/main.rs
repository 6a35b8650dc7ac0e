//! Drives the real program over real sockets: every test here starts `bantam`, with a home of its own and a model
//! that is either scripted ([`model`]) or a server we did not write ([`aimock`]).

#![allow(clippy::unwrap_used)]

mod harness;
mod marker;
mod model;
mod stored;

mod agent;
mod aimock;
mod cancel;
mod config;
mod crash;
mod demo;
mod exec;
mod files;
mod foreign;
mod provider;
mod secrets;
mod session;
