//! Drives the real program over real sockets: every test here starts `bantam`, with a home of its own and a model
//! that is either scripted ([`model`]) or a server we did not write ([`aimock`]).

#![allow(clippy::unwrap_used)]

mod botapi;
mod desk;
mod entities;
mod harness;
mod lacking;
mod marker;
mod model;
mod network;
mod stops;
mod stored;
mod syncs;
mod system;

mod agent;
mod aimock;
mod anthropic;
mod attach;
mod botrules;
mod botschema;
mod bytes;
mod cancel;
mod compaction;
mod config;
mod contract;
mod crash;
mod cron;
mod demo;
mod discipline;
mod doctor;
mod edits;
mod everything;
mod exec;
mod faults;
mod files;
mod flags;
mod foreign;
mod full;
mod gateway;
mod grep;
mod help;
mod keys;
mod memory;
mod onboard;
mod power;
mod provider;
mod proxy;
mod quirks;
mod race;
mod recipes;
mod repl;
mod secrets;
mod session;
mod sessions;
mod skills;
mod status;
mod tasks;
mod templates;
mod terminal;
mod unrestricted;
mod usage;
mod waits;
mod zones;
