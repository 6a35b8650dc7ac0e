//! Finds processes through /proc.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use crate::access::{Dir, Links};
use crate::error::Result;

/// The /proc of the root directory at this time; a new root has a different one or lacks it.
pub(super) struct Processes(Dir);

impl Processes {
    pub(super) fn open() -> Result<Self> {
        Dir::open("/proc".as_ref()).map(Self)
    }

    /// Returns all visible processes; empty if /proc cannot be read.
    fn all(&self) -> Vec<u32> {
        let dir = self.0.dir_at(Path::new("."), Links::Refuse).ok();
        let names = dir.and_then(|dir| dir.names().ok()).unwrap_or_default();
        names
            .iter()
            .filter_map(|name| name.to_str().ok()?.parse().ok())
            .collect()
    }

    /// Reads `/proc/PID/stat`: `pid (name) state ppid …`, where the name may contain anything.
    fn parent_of(&self, pid: u32) -> Option<u32> {
        let path = format!("{pid}/stat");
        let path = Path::new(&path);
        let mut stat = Vec::new();
        let mut file = self.0.read(path, path, Links::Refuse).ok()?;
        file.read_to_end(&mut stat).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        stat.rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()
    }

    /// Returns the processes that `parent` has started or adopted.
    pub(super) fn children_of(&self, parent: u32) -> Vec<u32> {
        let mut all = self.all();
        all.retain(|pid| self.parent_of(*pid) == Some(parent));
        all
    }

    /// Whether `root` and its descendants are more than `max`. They are counted because `RLIMIT_NPROC` does not bind root.
    pub(super) fn are_more_below(&self, root: u32, max: usize) -> bool {
        let all = self.all();
        // Counts all processes first, because reading each parent takes far longer.
        all.len() > max && self.count_below(root, &all) > max
    }

    fn count_below(&self, root: u32, all: &[u32]) -> usize {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for pid in all {
            if let Some(parent) = self.parent_of(*pid) {
                children.entry(parent).or_default().push(*pid);
            }
        }
        let mut found = vec![root];
        let mut at = 0;
        while at < found.len() {
            // Removes the entry, because a reused PID could form a cycle.
            found.extend(children.remove(&found[at]).into_iter().flatten());
            at += 1;
        }
        found.len()
    }
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
        let processes = Processes::open().unwrap();
        let count = |root: u32| processes.count_below(root, &processes.all());
        while count(shell.id()) < 2 {
            std::thread::yield_now();
        }
        assert_eq!(count(shell.id()), 2);
        assert!(count(me) >= 3);
        let sleeper =
            fs_err::read_to_string(format!("/proc/{0}/task/{0}/children", shell.id())).unwrap();
        let sleeper = rustix::process::Pid::from_raw(sleeper.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(sleeper, rustix::process::Signal::KILL).unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
    }
}
