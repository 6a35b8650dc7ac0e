//! What the kernel tells of a running process.

use std::fs;

/// A process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Memory that is there, and the part of it that is in no file, in KiB.
    pub rss: u64,
    pub anonymous: u64,
    /// The most memory there ever was, in KiB.
    pub peak: u64,
    /// Open descriptors.
    pub descriptors: usize,
    pub threads: u64,
    pub children: usize,
    /// Children that have ended and were not waited for.
    pub zombies: usize,
}

/// A number of a file of the form `NAME: NUMBER`.
pub fn field(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let line = text
        .lines()
        .find(|line| line.starts_with(name))
        .unwrap_or_else(|| panic!("{name} in {file}"));
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

pub fn sample(pid: u32) -> Sample {
    let status = format!("/proc/{pid}/status");
    let of = |name: &str| field(&status, name);
    let children = children(pid);
    // After the name, which may hold anything, comes the state.
    let is_zombie = |pid: &&u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('Z'))
    };
    Sample {
        rss: of("VmRSS:"),
        anonymous: of("RssAnon:"),
        peak: of("VmHWM:"),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
        threads: of("Threads:"),
        children: children.len(),
        zombies: children.iter().filter(is_zombie).count(),
    }
}

/// The threads of a process that are there now.
pub fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    tasks
        .filter_map(|task| task.file_name().to_str()?.parse().ok())
        .collect()
}

/// Whichever thread started them.
fn children(pid: u32) -> Vec<u32> {
    let lists = threads(pid)
        .into_iter()
        .map(|thread| format!("/proc/{pid}/task/{thread}/children"));
    let lists: Vec<String> = lists
        .filter_map(|list| fs::read_to_string(list).ok())
        .collect();
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|pid| pid.parse().ok())
        .collect()
}
