//! Counts a process's descendants.
//!
//! `RLIMIT_NPROC` does not bind root, and under Landlock nothing inside the jail can count, so the caller does.

use std::collections::{HashMap, HashSet};

/// Processes that descend from `root`, itself included; 0 when /proc cannot be read.
pub(super) fn count(root: u32) -> usize {
    let Ok(entries) = fs_err::read_dir("/proc") else { return 0 };
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in entries.filter_map(Result::ok) {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut seen, mut next) = (HashSet::from([root]), vec![root]);
    while let Some(pid) = next.pop() {
        next.extend(children.get(&pid).into_iter().flatten().filter(|child| seen.insert(**child)));
    }
    seen.len()
}

/// From `/proc/PID/stat`: `pid (name) state ppid …`, where the name may contain anything.
pub(super) fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs_err::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
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
        while count(shell.id()) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(count(shell.id()), 2);
        assert!(count(me) >= 3);
        let sleeper = fs_err::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
        let sleeper = rustix::process::Pid::from_raw(sleeper.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
