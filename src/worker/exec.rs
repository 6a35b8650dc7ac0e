//! Runs a command, whose output is the worker's output, enforces its limits, and kills everything it started.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, StatVfs, StatVfsMountFlags, fstatvfs, mkdirat};
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
/// Sizes in bytes between which the free space limits each file that a confined command may write. The scratch space takes the
/// smaller one.
const MAX_FILE: u64 = 256 << 20;
const MIN_FILE: u64 = 32 << 20;
/// Bytes and files that a command must leave free on every writable disk, or half of those at its start, if that is less.
const MIN_FREE: [u64; 2] = [200 << 20, 20_000];
/// Bytes and files that several writers at once take in a millisecond, on a disk in memory.
const FASTEST: [u64; 2] = [4 << 20, 500];
/// Interval between measurements of the free space, and the shortest one.
const DISK_INTERVAL: Duration = Duration::from_millis(100);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(5);

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
    let limits = Limits {
        timeout: Some(Duration::from_secs(job.timeout_secs)),
        disks: grants.writable().filter_map(Disk::measure).collect(),
        interval: DISK_INTERVAL,
        grace: Duration::ZERO,
    };
    if setup.confinement.is_sandboxed() {
        let usable = limits.disks.iter().map(|disk| disk.usable).max();
        limit(
            Resource::Fsize,
            usable.unwrap_or(0).clamp(MIN_FILE, MAX_FILE),
        )?;
    }
    let reaper = Reaper::new(setup.confinement)?;
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
    let end = watch(&child, caller, &limits);
    reaper.kill_descendants()?;
    let is_full = limits
        .disks
        .iter()
        .any(|disk| matches!(disk.next_check(), Ok(None)));
    if let Some(name) = scratch {
        // Uses the working directory, because only root may be able to pass through the directories of its path.
        rustix::process::fchdir(grants.workspace()).doing("entering the workspace")?;
        // Removal may fail, because the command may have changed permissions, and this process is equally confined.
        drop(fs_err::remove_dir_all(name));
    }
    match end {
        Ok(Termination::Code(_) | Termination::Signal(_)) if is_full => Ok(Termination::DiskFull),
        end => end,
    }
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
        let mut interval = left.min(limits.interval);
        for disk in &limits.disks {
            match disk.next_check()? {
                Some(next) => interval = interval.min(next),
                None => return Ok(Termination::DiskFull),
            }
        }
        // Polls only for a hang-up, because the data from the caller is the program's input.
        let watched = [(caller, PollFlags::empty()), (ended.as_fd(), PollFlags::IN)];
        let ready = sys::poll(&watched, Some(interval))?;
        if ready[0] && !ready[1] {
            // A server ends at the end of its input.
            sys::poll(&watched[1..], Some(limits.grace))?;
            return Ok(Termination::Cancelled);
        }
    }
}

/// A disk that a command may write to.
pub(super) struct Disk {
    fd: OwnedFd,
    /// Bytes that the command may use.
    usable: u64,
    /// Bytes and files that must stay free.
    min: [u64; 2],
}

impl Disk {
    /// Measures the free space; `None` for a read-only disk.
    pub(super) fn measure(fd: OwnedFd) -> Option<Self> {
        let stat = fstatvfs(&fd).ok()?;
        let free = free(&stat);
        let min = [0, 1].map(|n| MIN_FREE[n].min(free[n] / 2));
        let takes_files = !stat.f_flag.contains(StatVfsMountFlags::RDONLY);
        takes_files.then(|| Self {
            fd,
            usable: free[0] - min[0],
            min,
        })
    }

    /// Returns when to measure again: before half of what is left can be used. `None` if too little is left.
    fn next_check(&self) -> Result<Option<Duration>> {
        let free = free(&fstatvfs(&self.fd)?);
        if free[0] < self.min[0] || free[1] < self.min[1] {
            return Ok(None);
        }
        // Some disks do not count files.
        let counted = (0..2).filter(|n| self.min[*n] > 0);
        let times = counted.map(|n| Duration::from_millis(free[n] / 2 / FASTEST[n]));
        let next = times.min().unwrap_or(DISK_INTERVAL);
        Ok(Some(next.max(SHORTEST_INTERVAL)))
    }
}

/// Returns the free bytes and files.
fn free(stat: &StatVfs) -> [u64; 2] {
    [stat.f_bavail.saturating_mul(stat.f_frsize), stat.f_favail]
}
