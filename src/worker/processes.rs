//! Looks at processes through /proc.

use std::collections::HashMap;

/// The processes that this one may see; none when /proc cannot be read.
fn all() -> Vec<u32> {
    let entries = fs_err::read_dir("/proc").into_iter().flatten();
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// From `/proc/PID/stat`: `pid (name) state ppid …`, where the name may contain anything.
fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

/// The processes that `parent` has started or adopted.
pub(super) fn children_of(parent: u32) -> Vec<u32> {
    all()
        .into_iter()
        .filter(|pid| parent_of(*pid) == Some(parent))
        .collect()
}

/// Whether `root` and its descendants are more than `max`: `RLIMIT_NPROC` does not bind root, so the caller counts.
pub(super) fn are_more_below(root: u32, max: usize) -> bool {
    let all = all();
    // Reading the parent of each takes far longer.
    all.len() > max && below(root, &all) > max
}

fn below(root: u32, all: &[u32]) -> usize {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for pid in all {
        if let Some(parent) = parent_of(*pid) {
            children.entry(parent).or_default().push(*pid);
        }
    }
    let mut found = vec![root];
    let mut at = 0;
    while at < found.len() {
        // Removed, because a number may be used again meanwhile and close a circle.
        found.extend(children.remove(&found[at]).into_iter().flatten());
        at += 1;
    }
    found.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_counted_and_others_are_not() {
        let me = std::process::id();
        let mut shell = crate::child::command("/bin/sh".as_ref())
            .args(["-c", "sleep 600 & read line"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        while below(shell.id(), &all()) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(below(shell.id(), &all()), 2);
        assert!(below(me, &all()) >= 3);
        let sleeper =
            fs_err::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
        let sleeper = rustix::process::Pid::from_raw(sleeper.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
