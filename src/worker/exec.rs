//! Runs a command, whose output is the worker's output, enforces its limits, and kills everything it started.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, fstatvfs, mkdirat};
use rustix::process::{Pid, PidfdFlags, Resource, WaitStatus, pidfd_open};

use super::denylist;
use super::process::{limit, output};
use super::reaper::Reaper;
use crate::access::{self, Access, Links};
use crate::child::{self, Network};
use crate::error::{Context, Error, Result};
use crate::files::{OpenGrants, Target, random_name};
use crate::proxy::listener;
use crate::sandbox;
use crate::sys;
use crate::worker::protocol::{Confinement, ExecJob, Setup, Termination};

/// Maximum length of a command; the kernel limits an argument to 128 KiB (`MAX_ARG_STRLEN`).
const MAX_COMMAND: usize = 120 << 10;
/// Maximum size of a file that a confined command may write, in bytes.
const MAX_FILE: u64 = 256 << 20;
/// Free bytes that a command must leave on every writable disk, or half of the free space at its start, if that is less.
const MIN_FREE: u64 = 200 << 20;
/// Interval between measurements of the free space.
const DISK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the command with `/bin/sh`; both outputs go to the worker's standard output.
///
/// Every process that the command started has ended before the caller continues.
pub(super) fn exec(
    grants: &OpenGrants,
    setup: &Setup,
    job: ExecJob,
    caller: BorrowedFd,
) -> Result<Termination> {
    check(&job)?;
    // Bounds CPU time in addition to the wall-clock time.
    limit(Resource::Cpu, job.timeout_secs + 1)?;
    if setup.confinement.is_sandboxed() {
        limit(Resource::Fsize, MAX_FILE)?;
    }
    let mut reaper = Reaper::new(setup.confinement)?;
    // Provides a directory for temporary files, because the host's `/tmp` is closed. Earlier commands cannot predict its name.
    let scratch =
        (setup.confinement == Confinement::Landlock).then(|| format!(".tmp{}", random_name()));
    if let Some(name) = &scratch {
        mkdirat(grants.workspace(), name, Mode::RWXU)
            .doing("making a directory for temporary files")?;
    }
    enter(grants, &job.working_dir)?;
    let tmp = scratch
        .as_ref()
        .map(|name| setup.policy.workspace.real.join(name));
    let mut child = shell(setup, &job, tmp)?
        .stdin(if job.input.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        })
        .stdout(Stdio::from(output()?.into_file()))
        .stderr(Stdio::from(output()?.into_file()))
        .spawn()
        .doing("starting /bin/sh")?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command may leave input unread.
        let write = move || drop(stdin.write_all(&job.input));
        Builder::new().spawn(write).doing("starting a thread")?;
    }
    let limits = Limits {
        timeout: Some(Duration::from_secs(job.timeout_secs)),
        disks: grants.writable().filter_map(Disk::measure).collect(),
        interval: DISK_INTERVAL,
        grace: Duration::ZERO,
    };
    let end = watch(&child, caller, &limits);
    reaper.kill_descendants()?;
    if let Some(name) = scratch {
        // Uses the working directory, because only root may be able to pass through the directories of its path.
        rustix::process::fchdir(grants.workspace()).doing("entering the workspace")?;
        // Removal may fail, because the command may have changed permissions, and this process is equally confined.
        drop(fs_err::remove_dir_all(name));
    }
    end
}

/// Refuses empty and overlong commands, and dangerous ones.
fn check(job: &ExecJob) -> Result<()> {
    match job.command.len() {
        _ if job.command.trim().is_empty() => return Err(Error::failed("the command is empty")),
        len if len > MAX_COMMAND => {
            let why =
                format!("the command is too long ({len} bytes): write it to a file and run that");
            return Err(Error::failed(why));
        }
        _ => {}
    }
    if let Some(what) = denylist::refusal_of(&job.command) {
        return Err(Error::failed(format!(
            "{what} is refused: ask the user to do it"
        )));
    }
    Ok(())
}

/// Returns the confined shell with the command and its environment; `tmp` is for temporary files.
fn shell(setup: &Setup, job: &ExecJob, tmp: Option<PathBuf>) -> Result<Command> {
    let guarded =
        setup.confinement == Confinement::Namespaces && setup.policy.network == Network::Guarded;
    let mut command = child::command(Path::new(child::SHELL));
    sandbox::confine(&mut command, setup)?;
    command
        .args(["-c", &job.command])
        .envs(if guarded {
            listener::environment()
        } else {
            Vec::new()
        })
        .env("HOME", &setup.policy.workspace.path)
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .env("TERM", "dumb")
        .envs(tmp.map(|tmp| ("TMPDIR", tmp)));
    Ok(command)
}

/// Enters a working directory.
pub(super) fn enter(grants: &OpenGrants, directory: &str) -> Result<()> {
    let Target { dir, path, asked } = grants.find(directory, Access::Read)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let opened = dir.open_at(&path, flags, Mode::empty(), Links::Follow);
    let dir = opened.map_err(|e| access::explain(e, asked))?;
    rustix::process::fchdir(&dir).doing("entering the working directory")
}

fn termination(status: WaitStatus) -> Termination {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Termination::Code(code),
        (None, Some(signal)) => Termination::Signal(signal),
        (None, None) => Termination::Code(-1),
    }
}

/// Limits of a running program.
pub(super) struct Limits {
    pub(super) timeout: Option<Duration>,
    pub(super) disks: Vec<Disk>,
    /// Interval between measurements of the free space.
    pub(super) interval: Duration,
    /// Time to end after the caller has hung up.
    pub(super) grace: Duration,
}

/// Waits until the program ends, exceeds a limit, or the caller hangs up.
pub(super) fn watch(child: &Child, caller: BorrowedFd, limits: &Limits) -> Result<Termination> {
    let deadline = limits.timeout.map(|timeout| Instant::now() + timeout);
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).doing("opening a pidfd")?;
    loop {
        if let Some(status) = Reaper::reap(child)? {
            return Ok(termination(status));
        }
        let left = deadline.map_or(limits.interval, |deadline| {
            deadline.saturating_duration_since(Instant::now())
        });
        if left.is_zero() {
            return Ok(Termination::TimedOut);
        }
        for disk in &limits.disks {
            if disk.is_nearly_full()? {
                return Ok(Termination::DiskFull);
            }
        }
        // Polls only for a hang-up, because the data from the caller is the program's input.
        let watched = [(caller, PollFlags::empty()), (ended.as_fd(), PollFlags::IN)];
        let ready = sys::poll(&watched, Some(left.min(limits.interval)))?;
        if ready[0] && !ready[1] {
            // A server ends at the end of its input.
            sys::poll(&watched[1..], Some(limits.grace))?;
            return Ok(Termination::Cancelled);
        }
    }
}

/// A disk that a command may write to, and the space it must leave free.
pub(super) struct Disk {
    fd: OwnedFd,
    min_bytes: u64,
    min_files: u64,
}

impl Disk {
    /// Measures the free space; `None` for a read-only disk.
    pub(super) fn measure(fd: OwnedFd) -> Option<Self> {
        let free = fstatvfs(&fd).ok()?;
        let min_bytes = MIN_FREE.min(free.f_bavail.saturating_mul(free.f_frsize) / 2);
        let takes_files = !free.f_flag.contains(StatVfsMountFlags::RDONLY);
        takes_files.then(|| Self {
            fd,
            min_bytes,
            min_files: 1000.min(free.f_favail / 2),
        })
    }

    fn is_nearly_full(&self) -> Result<bool> {
        let free = fstatvfs(&self.fd)?;
        Ok(free.f_bavail.saturating_mul(free.f_frsize) < self.min_bytes
            || free.f_favail < self.min_files)
    }
}
