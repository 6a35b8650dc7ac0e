//! Runs a command: collects its output, watches its limits, and ends everything it started.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, fstatvfs};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Resource, pidfd_open};

use super::process::limit;
use super::reaper::Reaper;
use crate::beneath::{self, Dir, Links};
use crate::child::{self, Network};
use crate::error::{Context, Error, Result};
use crate::files::{Access, Target, Trees};
use crate::jail;
use crate::proxy::listener;
use crate::sys;
use crate::wire::{Confinement, ExecJob, Header, MAX_BODY, Reply, Setup, Termination};

/// The kernel limits one argument to 128 KiB (`MAX_ARG_STRLEN`).
const MAX_COMMAND: usize = 120 << 10;
/// The largest file that a confined command may write, in bytes.
const MAX_FILE: u64 = 256 << 20;
/// A command must leave this many bytes free on the workspace's disk, or half of what was free when it started.
const MIN_FREE: u64 = 200 << 20;

/// Runs the command with `/bin/sh`, nothing on standard input, and both outputs in one.
///
/// When this returns, every process that the command started has ended.
pub(super) fn exec(
    trees: &Trees,
    setup: &Setup,
    job: &ExecJob,
    reaper: &mut Reaper,
    caller: BorrowedFd,
) -> Result<Reply> {
    check(&job.command)?;
    let Target { tree, path, asked } = trees.find(&job.working_dir, Access::Read)?;
    let dir = tree
        .open_at(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Links::Follow)
        .map_err(|e| beneath::explain(e, asked))?;
    rustix::process::fchdir(&dir).doing("entering the working directory")?;
    // A second bound beside the watched wall-clock time.
    limit(Resource::Cpu, job.timeout_secs + 1)?;
    if setup.confinement.is_sandboxed() {
        limit(Resource::Fsize, MAX_FILE)?;
        jail::forbid_openat2()?;
    }
    let guarded = setup.confinement == Confinement::Namespaces && setup.network == Network::Guarded;
    reaper.adopt_orphans()?;
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut child = child::command(Path::new("/bin/sh"))
        .args(["-c", &job.command])
        .envs(if guarded { listener::environment() } else { Vec::new() })
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .env("HOME", &setup.workspace)
        .env("TERM", "dumb")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::from(input.try_clone()?))
        .stderr(Stdio::from(input))
        .spawn()
        .doing("starting /bin/sh")?;
    let mut output = OutputBuffer::new(output)?;
    let limits = ResourceLimits::new(trees.workspace(), setup.confinement)?;
    let end = watch(&mut child, &mut output, Duration::from_secs(job.timeout_secs), caller, &limits);
    if child.try_wait()?.is_none() {
        child.kill().and_then(|()| child.wait()).doing("killing the command")?;
    }
    reaper.kill_descendants()?;
    // All writers are dead, so this is the rest.
    output.drain()?;
    let end = match end? {
        Some(end) => end,
        None => termination(child.wait()?),
    };
    Ok(Reply { header: Header::Exited { end, dropped: output.dropped }, body: output.kept })
}

fn check(command: &str) -> Result<()> {
    if command.trim().is_empty() {
        return Err(Error::failed("the command is empty"));
    }
    if command.len() > MAX_COMMAND {
        let len = command.len();
        return Err(Error::failed(format!("the command is too long ({len} bytes): write it to a file and run that")));
    }
    if command.contains('\0') {
        return Err(Error::failed("the command contains a NUL byte"));
    }
    Ok(())
}

fn termination(status: ExitStatus) -> Termination {
    match (status.code(), status.signal()) {
        (Some(code), _) => Termination::Code(code),
        (None, Some(signal)) => Termination::Signal(signal),
        (None, None) => Termination::Code(-1),
    }
}

/// Collects output until the command ends (`None`), exceeds a limit, or the caller closes its end.
fn watch(
    child: &mut Child,
    output: &mut OutputBuffer,
    timeout: Duration,
    caller: BorrowedFd,
    limits: &ResourceLimits,
) -> Result<Option<Termination>> {
    let deadline = Instant::now() + timeout;
    // Before Linux 5.3, which has no pidfd, the loop polls for the command's end.
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok();
    let mut output_open = true;
    loop {
        let mut wait = deadline.saturating_duration_since(Instant::now()).min(limits.interval);
        if wait.is_zero() {
            return Ok(Some(Termination::TimedOut));
        }
        if ended.is_none() {
            if child.try_wait()?.is_some() {
                return Ok(None);
            }
            wait = wait.min(Duration::from_millis(20));
        }
        if let Some(end) = limits.exceeded()? {
            return Ok(Some(end));
        }
        let mut watched = vec![(caller, PollFlags::IN)];
        if output_open {
            watched.push((output.pipe.as_fd(), PollFlags::IN));
        }
        watched.extend(ended.iter().map(|ended| (ended.as_fd(), PollFlags::IN)));
        let ready = sys::poll(&watched, Some(wait))?;
        if ready[0] {
            return Ok(Some(Termination::Cancelled));
        }
        if ended.is_some() && ready[ready.len() - 1] {
            return Ok(None);
        }
        if output_open && ready[1] {
            output_open = output.read_once()?;
        }
    }
}

/// Limits that the kernel does not enforce, checked at an interval.
struct ResourceLimits {
    disk: OwnedFd,
    min_free_bytes: u64,
    min_free_files: u64,
    /// `RLIMIT_NPROC` does not bind root, which the jail's user may be outside of its namespace.
    counts_processes: bool,
    interval: Duration,
}

impl ResourceLimits {
    fn new(workspace: &Dir, confinement: Confinement) -> Result<Self> {
        let disk = workspace.as_fd().try_clone_to_owned()?;
        let free = fstatvfs(&disk).doing("measuring free space")?;
        // The second number is the id outside.
        let uid_map = fs_err::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let is_root_outside = uid_map.split_whitespace().nth(1) == Some("0");
        let counts_processes = confinement == Confinement::Namespaces && is_root_outside;
        Ok(Self {
            disk,
            min_free_bytes: MIN_FREE.min(free.f_bavail.saturating_mul(free.f_frsize) / 2),
            min_free_files: 1000.min(free.f_favail / 2),
            counts_processes,
            interval: Duration::from_millis(if counts_processes { 20 } else { 100 }),
        })
    }

    fn exceeded(&self) -> Result<Option<Termination>> {
        let free = fstatvfs(&self.disk)?;
        if free.f_bavail.saturating_mul(free.f_frsize) < self.min_free_bytes || free.f_favail < self.min_free_files {
            return Ok(Some(Termination::DiskFull));
        }
        if self.counts_processes {
            let processes = fs_err::read_dir("/proc")?
                .filter(|entry| entry.as_ref().is_ok_and(|e| e.file_name().as_encoded_bytes()[0].is_ascii_digit()));
            if processes.count() as u64 > jail::MAX_PROCESSES {
                return Ok(Some(Termination::TooManyProcesses));
            }
        }
        Ok(None)
    }
}

/// Keeps the beginning of the output and counts the rest.
struct OutputBuffer {
    pipe: fs_err::File,
    kept: Vec<u8>,
    dropped: u64,
}

impl OutputBuffer {
    fn new(pipe: OwnedFd) -> Result<Self> {
        rustix::io::ioctl_fionbio(pipe.as_fd(), true)?;
        Ok(Self { pipe: fs_err::File::from_parts(pipe.into(), "the command's output"), kept: Vec::new(), dropped: 0 })
    }

    /// Reads once. `false` at the end of the output.
    fn read_once(&mut self) -> Result<bool> {
        let mut piece = [0; 16 << 10];
        match self.pipe.read(&mut piece) {
            Ok(0) => Ok(false),
            Ok(n) => {
                let room = (MAX_BODY - self.kept.len()).min(n);
                self.kept.extend_from_slice(&piece[..room]);
                self.dropped += (n - room) as u64;
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads what is there without waiting.
    fn drain(&mut self) -> Result<()> {
        loop {
            let before = (self.kept.len(), self.dropped);
            if !self.read_once()? || before == (self.kept.len(), self.dropped) {
                return Ok(());
            }
        }
    }
}
