//! Process 1 of a container: runs the gateway as a child, forwards signals to it and reaps orphans.
//!
//! The kernel makes process 1 the parent of every orphan, and a dead one keeps its entry in the process table until that
//! parent waits for it. The gateway cannot wait for all: it would take the results away from its threads, which wait for
//! children of their own.

use std::thread::Builder;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use crate::error::{Context, Result};
use crate::{child, sys};

/// Whether this is process 1.
pub(crate) fn is_needed() -> bool {
    getpid().is_init()
}

/// Runs this program with `args` and returns its exit code.
pub(crate) fn run(args: &[&str]) -> Result<u8> {
    sys::block_signals(sys::ENDING);
    let child = child::same(args).spawn().doing("starting the gateway")?;
    let gateway = Pid::from_child(&child);
    let forward = move || {
        loop {
            sys::wait_for_signal(sys::ENDING);
            if kill_process(gateway, Signal::TERM).is_err() {
                return;
            }
        }
    };
    Builder::new().spawn(forward).doing("starting a thread")?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == gateway => {
                // The code that a shell gives a signal.
                let signal = status.terminating_signal().map(|signal| signal + 128);
                return Ok(status
                    .exit_status()
                    .or(signal)
                    .and_then(|code| u8::try_from(code).ok())
                    .unwrap_or(1));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
