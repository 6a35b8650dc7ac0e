//! Kills the processes that a command left running.

use std::io::{Read, Seek};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, wait};

use super::processes::Processes;
use crate::error::{Context, Error, Result};
use crate::sandbox;
use crate::sys;
use crate::worker::protocol::Confinement;

const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of children to reap at a time, so that a flood of orphans cannot delay the deadline.
const MAX_REAPED: usize = 1000;

/// Kills this process's descendants. It is the parent of every orphan, so killing a child makes its children reachable.
pub(super) struct Reaper {
    confinement: Confinement,
    /// Whether this process can signal only its descendants.
    alone_in_reach: bool,
    /// The kernel's list of this thread's children; missing without `CONFIG_PROC_CHILDREN`.
    list: Option<fs_err::File>,
    processes: Option<Processes>,
}

impl Reaper {
    /// Prepares this process to adopt orphans; must precede the first child.
    pub(super) fn new(confinement: Confinement) -> Result<Self> {
        rustix::process::set_child_subreaper(Some(getpid())).doing("becoming a subreaper")?;
        let alone_in_reach = sandbox::signals_stay_inside(confinement)?;
        Ok(Self {
            confinement,
            alone_in_reach,
            list: fs_err::File::open("/proc/thread-self/children").ok(),
            processes: Processes::open().ok(),
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

    /// Kills and reaps every descendant.
    pub(super) fn kill_descendants(&mut self) -> Result<()> {
        if self.confinement == Confinement::Landlock && !self.alone_in_reach {
            // Without /proc, they cannot be found; the outer process finds and kills them.
            return Ok(());
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if self.alone_in_reach {
                // Kills all at the same time, so that they cannot start others meanwhile.
                sys::kill_all_others().doing("killing what the command started")?;
            } else {
                for pid in self.children()? {
                    match kill_process(pid, Signal::KILL) {
                        Ok(()) | Err(Errno::SRCH) => {}
                        Err(e) => {
                            return Err(Error::from(e).doing("killing what the command started"));
                        }
                    }
                }
            }
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) => {}
                    Ok(None) | Err(Errno::INTR) => break,
                    Err(Errno::CHILD) => return Ok(()),
                    Err(e) => return Err(e.into()),
                }
            }
            if Instant::now() > deadline {
                return Err(Error::failed(
                    "the command starts processes faster than they can be killed",
                ));
            }
        }
    }

    fn children(&mut self) -> Result<Vec<Pid>> {
        let numbers: Vec<u32> = match &mut self.list {
            Some(list) => {
                let mut text = String::new();
                list.rewind()?;
                list.read_to_string(&mut text)?;
                text.split_whitespace()
                    .filter_map(|n| n.parse().ok())
                    .collect()
            }
            None => {
                let processes = self.processes.iter();
                let own = std::process::id();
                processes.flat_map(|all| all.children_of(own)).collect()
            }
        };
        Ok(numbers
            .into_iter()
            .filter_map(|n| Pid::from_raw(n.try_into().ok()?))
            .collect())
    }
}
