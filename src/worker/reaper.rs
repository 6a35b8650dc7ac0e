//! Finds, counts and kills the processes that a command started.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;
use std::process::Child;
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};

use crate::access::{Dir, Links};
use crate::error::{Context, Error, Result};
use crate::sandbox;
use crate::sys;
use crate::worker::protocol::Confinement;

/// Maximum number of children to reap at a time, so that a flood of orphans cannot delay the deadline.
const MAX_REAPED: usize = 1000;
/// Maximum number of passes that stop processes before they are killed.
const MAX_PASSES: usize = 100;
/// Time for killed processes to end.
const PAUSE: Duration = Duration::from_millis(1);

/// Parent of every orphan of this process's descendants.
pub(super) struct Reaper {
    /// Whether this process can signal only its descendants.
    alone_in_reach: bool,
    /// The /proc of the root directory at this time; a new root has a different one or lacks it.
    proc: Result<Dir>,
}

impl Reaper {
    /// Prepares this process to adopt orphans; must precede the first child.
    pub(super) fn new(confinement: Confinement) -> Result<Self> {
        rustix::process::set_child_subreaper(Some(getpid())).doing("becoming a subreaper")?;
        let alone_in_reach = sandbox::keep_signals_inside(confinement)?;
        Ok(Self {
            alone_in_reach,
            proc: open_proc(),
        })
    }

    /// Reaps ended children and orphans of `command`, to free their PIDs. Returns the exit status of `command`, if it has
    /// ended.
    pub(super) fn reap(command: &Child) -> Result<Option<WaitStatus>> {
        let command = Pid::from_child(command);
        for _ in 0..MAX_REAPED {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == command => return Ok(Some(status)),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return Ok(None),
                Err(e) => return Err(Error::from(e).doing("asking how the program ended")),
            }
        }
        Ok(None)
    }

    /// Kills and reaps every descendant. Returns when none is left.
    pub(super) fn kill_descendants(&self) -> Result<()> {
        loop {
            if self.alone_in_reach {
                // Kills all at the same time, so that they cannot start others meanwhile.
                sys::kill_all_others().doing("killing what the command started")?;
            }
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) | Err(Errno::INTR) => {}
                    Ok(None) => break,
                    Err(Errno::CHILD) => return Ok(()),
                    Err(e) => return Err(e.into()),
                }
            }
            match &self.proc {
                _ if self.alone_in_reach => {}
                Ok(proc) => kill_below(proc).doing("killing what the command started")?,
                // They cannot be found here; the outer process finds and kills them.
                Err(_) => return Ok(()),
            }
            sleep(PAUSE);
        }
    }

    /// Returns the number of descendants, or of all visible processes if these are at most `max`, because reading the parent
    /// of each takes far longer. They are counted because `RLIMIT_NPROC` does not bind root.
    pub(super) fn count(&self, max: usize) -> Result<usize> {
        let proc = self.proc.as_ref().map_err(Clone::clone)?;
        let all = all(proc).len();
        Ok(if all > max { below(proc).len() } else { all })
    }
}

fn open_proc() -> Result<Dir> {
    let proc = Dir::open("/proc".as_ref())?;
    proc.dir_at(".".as_ref(), Links::Refuse)
        .doing("reading /proc")
}

/// Kills the descendants of this process. It stops them first, because a command may start processes faster than they can be
/// killed one at a time, and stopped ones start no others and give back no number.
fn kill_below(proc: &Dir) -> Result<(), Errno> {
    for pass in 0.. {
        let below = below(proc);
        let is_last = pass == MAX_PASSES || !below.iter().any(|(_, is_running)| *is_running);
        let signal = if is_last { Signal::KILL } else { Signal::STOP };
        for (pid, _) in below {
            match kill_process(pid, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(e) => return Err(e),
            }
        }
        if is_last {
            break;
        }
    }
    Ok(())
}

/// Returns all visible processes; empty if /proc cannot be read.
fn all(proc: &Dir) -> Vec<Pid> {
    let names = proc.names().unwrap_or_default();
    names
        .iter()
        .filter_map(|name| Pid::from_raw(name.to_str()?.parse().ok()?))
        .collect()
}

/// Returns the descendants of this process, and whether each runs: not if it is stopped, has ended or waits for the kernel.
fn below(proc: &Dir) -> Vec<(Pid, bool)> {
    let mut children: HashMap<Pid, Vec<(Pid, bool)>> = HashMap::new();
    for pid in all(proc) {
        if let Some((parent, is_running)) = state_of(proc, pid) {
            children.entry(parent).or_default().push((pid, is_running));
        }
    }
    let mut found = children.remove(&getpid()).unwrap_or_default();
    // A /proc that hides processes still lists the own children.
    for pid in own_children(proc).unwrap_or_default() {
        if found.iter().all(|(known, _)| *known != pid) {
            found.push((pid, true));
        }
    }
    let mut at = 0;
    while at < found.len() {
        // Removes the entry, because a reused PID could form a cycle.
        found.extend(children.remove(&found[at].0).into_iter().flatten());
        at += 1;
    }
    found
}

/// Returns the children of this process's first thread, which gets those of ended parents.
fn own_children(proc: &Dir) -> Option<Vec<Pid>> {
    let own = getpid().as_raw_nonzero();
    let path = format!("{own}/task/{own}/children");
    let (path, mut text) = (Path::new(&path), String::new());
    let mut file = proc.read(path, path, Links::Refuse).ok()?;
    file.read_to_string(&mut text).ok()?;
    let pids = text.split_whitespace();
    Some(
        pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?))
            .collect(),
    )
}

/// Reads `/proc/PID/stat`: `pid (name) state ppid …`, where the name may contain anything.
fn state_of(proc: &Dir, pid: Pid) -> Option<(Pid, bool)> {
    let path = format!("{}/stat", pid.as_raw_nonzero());
    let path = Path::new(&path);
    let mut stat = Vec::new();
    let mut file = proc.read(path, path, Links::Refuse).ok()?;
    file.read_to_end(&mut stat).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let is_running = matches!(fields.next()?, "R" | "S");
    Some((Pid::from_raw(fields.next()?.parse().ok()?)?, is_running))
}
