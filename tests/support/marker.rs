//! Finds processes that a test has started.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use super::harness::{holds, unique};

/// Returns a figure of a process in KiB: `VmHWM:` is its peak memory.
pub fn kib(pid: i32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.unwrap().split_whitespace().nth(1);
    number.unwrap().parse().unwrap()
}

/// A duration for `sleep` that is unique among all processes, so that the process can be found.
pub struct Marker(String);

impl Marker {
    pub fn new() -> Self {
        Self(format!("86400.{:07}{:04}", std::process::id(), unique()))
    }

    /// Returns the processes with this marker in their command line, as `pid command`.
    pub fn alive(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if holds(&line, self.0.as_bytes()) {
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                found.push(format!("{} {line}", entry.file_name().to_string_lossy()));
            }
        }
        found
    }

    #[track_caller]
    pub fn is_gone(&self) {
        let alive = self.alive();
        assert!(alive.is_empty(), "still alive: {alive:?}");
    }
}

impl std::fmt::Display for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Kills the marked processes, so that a failed test does not leave sleepers for a day.
impl Drop for Marker {
    fn drop(&mut self) {
        for line in self.alive() {
            let pid = line
                .split(' ')
                .next()
                .and_then(|pid| pid.parse().ok())
                .and_then(Pid::from_raw);
            pid.map(|pid| kill_process(pid, Signal::KILL).ok());
        }
    }
}
