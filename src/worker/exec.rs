//! Runs a command: its output is the worker's. Watches its limits, and ends everything it started.

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

/// The kernel limits one argument to 128 KiB (`MAX_ARG_STRLEN`).
const MAX_COMMAND: usize = 120 << 10;
/// The largest file that a confined command may write, in bytes.
const MAX_FILE: u64 = 256 << 20;
/// A command must leave this many bytes free on every disk that it may write to, or half of what was free when it started.
const MIN_FREE: u64 = 200 << 20;
/// How often the free space is measured.
const DISK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the command with `/bin/sh`, and both outputs into the worker's own.
///
/// When this returns, every process that the command started has ended, or will have before the caller reads on.
pub(super) fn exec(
    grants: &OpenGrants,
    setup: &Setup,
    job: ExecJob,
    caller: BorrowedFd,
) -> Result<Termination> {
    check(&job)?;
    // A second bound beside the watched wall-clock time.
    limit(Resource::Cpu, job.timeout_secs + 1)?;
    if setup.confinement.is_sandboxed() {
        limit(Resource::Fsize, MAX_FILE)?;
    }
    let mut reaper = Reaper::new(setup.confinement)?;
    // For temporary files, where `/tmp` is the host's and closed. A name that no command knows before.
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
        // A command need not read all of it.
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
        // By the working directory, because only root may be able to pass through the directories of its path.
        rustix::process::fchdir(grants.workspace()).doing("entering the workspace")?;
        // This process is as confined as the command was, which may have made it impossible.
        drop(fs_err::remove_dir_all(name));
    }
    end
}

/// Refuses what is no command, and what would spoil a machine, or the workspace.
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

/// The shell with the command, confined, and its environment; `tmp` is for temporary files.
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
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .env("HOME", &setup.policy.workspace.path)
        .env("TERM", "dumb")
        .envs(tmp.map(|tmp| ("TMPDIR", tmp)));
    Ok(command)
}

/// Enters a working directory.
pub(super) fn enter(grants: &OpenGrants, directory: &str) -> Result<()> {
    let Target { dir, path, asked } = grants.find(directory, Access::Read)?;
    let dir = dir
        .open_at(
            path,
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
            Links::Follow,
        )
        .map_err(|e| access::explain(e, asked))?;
    rustix::process::fchdir(&dir).doing("entering the working directory")
}

fn termination(status: WaitStatus) -> Termination {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Termination::Code(code),
        (None, Some(signal)) => Termination::Signal(signal),
        (None, None) => Termination::Code(-1),
    }
}

/// What ends a program, besides itself and its caller.
pub(super) struct Limits {
    pub(super) timeout: Option<Duration>,
    pub(super) disks: Vec<Disk>,
    /// How often free space is measured.
    pub(super) interval: Duration,
    /// How long it may go on when the caller has gone.
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
        // No events: what the caller sends is for the program; only a hang-up matters here.
        let watched = [(caller, PollFlags::empty()), (ended.as_fd(), PollFlags::IN)];
        let ready = sys::poll(&watched, Some(left.min(limits.interval)))?;
        if ready[0] && !ready[1] {
            // A server ends with its input.
            sys::poll(&watched[1..], Some(limits.grace))?;
            return Ok(Termination::Cancelled);
        }
    }
}

/// A disk that a command may write to, and what it has to leave free there.
pub(super) struct Disk {
    fd: OwnedFd,
    min_bytes: u64,
    min_files: u64,
}

impl Disk {
    /// `None` for one that takes no files.
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
