//! Kills what a command left running.

use std::io::{Read, Seek};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use super::processes;
use crate::error::{Context, Error, Result};
use crate::sys;

const TIMEOUT: Duration = Duration::from_secs(5);

/// Kills this process's descendants. Being the parent of every orphan, it brings the grandchildren within reach by killing
/// a child.
pub(super) struct Reaper {
    /// The kernel's list of this thread's children. Kernels without `CONFIG_PROC_CHILDREN` have none.
    list: Option<fs_err::File>,
}

impl Reaper {
    /// To be called before anything is started.
    pub(super) fn new() -> Result<Self> {
        rustix::process::set_child_subreaper(Some(getpid())).doing("becoming a subreaper")?;
        Ok(Self { list: fs_err::File::open("/proc/thread-self/children").ok() })
    }

    /// Kills and reaps every descendant.
    pub(super) fn kill_descendants(&mut self) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if getpid().is_init() {
                // Reaches everything in this pid namespace, and nothing outside.
                sys::kill_all_others().doing("killing what the command started")?;
            } else {
                for pid in self.children()? {
                    match kill_process(pid, Signal::KILL) {
                        Ok(()) | Err(Errno::SRCH) => {}
                        Err(e) => return Err(Error::from(e).doing("killing what the command started")),
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
                return Err(Error::failed("the command starts processes faster than they can be killed"));
            }
        }
    }

    fn children(&mut self) -> Result<Vec<Pid>> {
        let numbers: Vec<u32> = match &mut self.list {
            Some(list) => {
                let mut text = String::new();
                list.rewind()?;
                list.read_to_string(&mut text)?;
                text.split_whitespace().filter_map(|n| n.parse().ok()).collect()
            }
            None => processes::children_of(std::process::id()),
        };
        Ok(numbers.into_iter().filter_map(|n| Pid::from_raw(n.try_into().ok()?)).collect())
    }
}
