//! Runs a program in a jail for as long as its caller wants it, its standard input and output connected to the caller.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::exec::{Disk, enter};
use super::process::INNER_GRACE;
use super::processes::are_more_below;
use super::reaper::Reaper;
use crate::child;
use crate::error::{Context, Error, Result};
use crate::files::Trees;
use crate::jail::{self, MAX_PROCESSES};
use crate::sys;
use crate::wire::{self, Confinement, Header, Reply, ServeJob, Setup};

/// How often free space is measured.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often processes are counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);

/// Says that the jail holds, starts the program, and waits for its end or its caller's. Every process that it started has
/// ended when this returns.
pub(super) fn serve(trees: &Trees, setup: &Setup, job: &ServeJob, caller: BorrowedFd) -> Result<()> {
    enter(trees, &job.working_dir)?;
    let mut reaper = Reaper::new(setup.confinement)?;
    wire::send_reply(&mut std::io::stdout(), &Reply { header: Header::Text, body: Vec::new() })?;
    let mut command = child::command(Path::new(&job.program));
    jail::confine(&mut command, setup)?;
    let child = command
        .args(&job.args)
        .env("HOME", &job.home)
        .envs((setup.confinement == Confinement::Landlock).then_some(("TMPDIR", &job.home)))
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .spawn()
        .doing(format_args!("starting {}", job.program))?;
    let disks = trees.writable().filter_map(Disk::measure).collect::<Vec<_>>();
    let ended = watch(&child, caller, &disks, job);
    reaper.kill_descendants()?;
    ended
}

/// Waits until the program ends, exceeds a limit, or nobody writes to it any more and its grace is over.
fn watch(child: &Child, caller: BorrowedFd, disks: &[Disk], job: &ServeJob) -> Result<()> {
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).doing("opening a pidfd")?;
    let interval = if job.counts_processes { COUNT_INTERVAL } else { CHECK_INTERVAL };
    let _reaped = Reaper::reap(child)?;
    loop {
        // No events: the caller's messages are for the program; only the end of the pipe matters here.
        let watched = [(ended.as_fd(), PollFlags::IN), (caller, PollFlags::empty())];
        let ready = sys::poll(&watched, Some(interval))?;
        if ready[0] {
            return Ok(());
        }
        if job.counts_processes && are_more_below(std::process::id(), MAX_PROCESSES) {
            return Err(Error::failed(format!("it started more than {MAX_PROCESSES} processes")));
        }
        for disk in disks {
            if disk.is_nearly_full()? {
                return Ok(());
            }
        }
        if ready[1] {
            // The end of its input tells it to end.
            sys::poll(&watched[..1], Some(INNER_GRACE / 2))?;
            return Ok(());
        }
    }
}
