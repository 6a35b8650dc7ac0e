//! Scheduled jobs.

pub mod schedule;
