//! Ending what a command started, whatever it is and wherever it hides.

use std::io::{Read, Seek};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use super::process_count;
use crate::error::{Context, Error, Result};
use crate::sys;

/// How long the ending may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Ends descendants of this process.
///
/// This process is their reaper: an orphan becomes its child, so whoever is killed brings its own children into reach.
/// Made before a jail is entered: inside, the list of children cannot be opened any more.
pub struct Reaper {
    /// The kernel's list of this thread's children. Kernels without `CONFIG_PROC_CHILDREN` have none.
    list: Option<fs_err::File>,
}

impl Reaper {
    pub fn new() -> Result<Self> {
        rustix::process::set_child_subreaper(Some(getpid())).doing("becoming the reaper")?;
        Ok(Self { list: fs_err::File::open("/proc/thread-self/children").ok() })
    }

    /// Whether children can be found also where /proc cannot be read.
    pub fn has_list(&self) -> bool {
        self.list.is_some()
    }

    /// Ends every descendant. Those that end meanwhile are waited for, but for `kept`, whose owner wants its exit status.
    pub fn sweep(&mut self, kept: Option<Pid>) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            if getpid().is_init() {
                // Process 1 of a namespace reaches everything in it with one call, and nothing outside.
                sys::kill_everybody_else_inside().doing("ending what the command started")?;
            } else {
                for pid in self.children()? {
                    match kill_process(pid, Signal::KILL) {
                        Ok(()) | Err(Errno::SRCH) => {}
                        Err(e) => return Err(Error::from(e).doing("ending what the command started")),
                    }
                }
            }
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some((pid, _))) if Some(pid) != kept => {}
                    Ok(_) | Err(Errno::INTR) => break,
                    Err(Errno::CHILD) => return Ok(()),
                    Err(e) => return Err(e.into()),
                }
            }
            if Instant::now() > until {
                return Err(Error::failed("the command started processes faster than they could be ended"));
            }
        }
    }

    fn children(&mut self) -> Result<Vec<Pid>> {
        let numbers: Vec<i32> = match &mut self.list {
            Some(list) => {
                let mut text = String::new();
                list.rewind()?;
                list.read_to_string(&mut text)?;
                text.split_whitespace().filter_map(|n| n.parse().ok()).collect()
            }
            // Ask every process who its parent is.
            None => fs_err::read_dir("/proc")?
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
                .filter(|n| process_count::parent_of(*n) == Some(std::process::id()))
                .filter_map(|n| i32::try_from(n).ok())
                .collect(),
        };
        Ok(numbers.into_iter().filter_map(Pid::from_raw).collect())
    }
}
