//! As process 1, in a container: this program runs itself below, hands on what it is told, and takes in who is left behind.
//!
//! The kernel makes process 1 the parent of every orphan in there, and one that has ended stays in the list of processes until
//! its parent has asked how. A gateway that asked for all would take the answer away from those of its threads that wait for
//! their own children, and the list would be full one day if it did not.

use std::thread::Builder;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use crate::error::{Context, Result};
use crate::{child, sys};

/// Whether this is process 1.
pub fn is_called_for() -> bool {
    getpid().is_init()
}

/// Runs this program with `args`, and ends as it does.
pub fn run(args: &[&str]) -> Result<u8> {
    sys::block_signals();
    let child = child::same(args).spawn().doing("starting the gateway")?;
    let gateway = Pid::from_child(&child);
    let pass_on = move || {
        loop {
            let _which = sys::wait_for_signal();
            if kill_process(gateway, Signal::TERM).is_err() {
                // It has ended.
                return;
            }
        }
    };
    Builder::new().spawn(pass_on).doing("starting a thread")?;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == gateway => {
                // What a shell says of a signal.
                let signal = status.terminating_signal().map(|signal| signal + 128);
                return Ok(status.exit_status().or(signal).and_then(|code| u8::try_from(code).ok()).unwrap_or(1));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
