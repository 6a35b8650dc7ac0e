//! Runs a command: collects its output, watches its limits, and ends everything it started.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::Builder;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, fstatvfs, mkdirat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Resource, WaitStatus, pidfd_open};

use super::denied;
use super::process::limit;
use super::reaper::Reaper;
use crate::beneath::{self, Dir, Links};
use crate::child::{self, Network};
use crate::error::{Context, Error, Result};
use crate::files::{Target, Trees};
use crate::jail;
use crate::proxy::listener;
use crate::sys;
use crate::tree::Access;
use crate::wire::{Confinement, ExecJob, Header, MAX_BODY, Reply, Setup, Termination};

/// The kernel limits one argument to 128 KiB (`MAX_ARG_STRLEN`).
const MAX_COMMAND: usize = 120 << 10;
/// The largest file that a confined command may write, in bytes.
const MAX_FILE: u64 = 256 << 20;
/// A command must leave this many bytes free on every disk that it may write to, or half of what was free when it started.
const MIN_FREE: u64 = 200 << 20;
/// How often the free space is measured.
const DISK_INTERVAL: Duration = Duration::from_millis(100);

/// Runs the command with `/bin/sh`, and both outputs in one.
///
/// When this returns, every process that the command started has ended, or will have before the caller reads on.
pub(super) fn exec(trees: &Trees, setup: &Setup, job: &ExecJob, caller: BorrowedFd) -> Result<Reply> {
    check(&job.command)?;
    if let (Confinement::Disabled, Some(what)) = (setup.confinement, denied::why(&job.command, &setup.workspace.path)) {
        return Err(Error::failed(format!("{what} is refused while the sandbox is off: ask the user to do it")));
    }
    // A second bound beside the watched wall-clock time.
    limit(Resource::Cpu, job.timeout_secs + 1)?;
    if setup.confinement.is_sandboxed() {
        limit(Resource::Fsize, MAX_FILE)?;
    }
    let guarded = setup.confinement == Confinement::Namespaces && setup.network == Network::Guarded;
    let mut reaper = Reaper::new(setup.confinement)?;
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    let input_bytes = STANDARD.decode(&job.input).map_err(|_| Error::failed("the input is not base64"))?;
    let scratch = (setup.confinement == Confinement::Landlock).then(|| Scratch::make(trees.workspace())).transpose()?;
    enter(trees, &job.working_dir)?;
    let mut command = child::command(Path::new("/bin/sh"));
    jail::confine(&mut command, setup)?;
    let mut child = command
        .args(["-c", &job.command])
        .envs(if guarded { listener::environment() } else { Vec::new() })
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .env("HOME", &setup.workspace.path)
        .env("TERM", "dumb")
        .envs(scratch.iter().map(|scratch| ("TMPDIR", setup.workspace.real.join(&scratch.name))))
        .stdin(if input_bytes.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::from(input.try_clone()?))
        .stderr(Stdio::from(input))
        .spawn()
        .doing("starting /bin/sh")?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read all of it.
        let write = move || drop(stdin.write_all(&input_bytes));
        Builder::new().spawn(write).doing("starting a thread")?;
    }
    let mut output = OutputBuffer::new(output)?;
    let disks = trees.writable().filter_map(Disk::measure).collect::<Vec<_>>();
    let end = watch(&child, &mut output, Duration::from_secs(job.timeout_secs), caller, &disks);
    reaper.kill_descendants()?;
    if let Some(scratch) = scratch {
        scratch.remove()?;
    }
    output.drain()?;
    Ok(Reply { header: Header::Exited { end: end?, dropped: output.dropped }, body: output.kept })
}

/// A directory for temporary files in the workspace, where `/tmp` is the host's and closed.
struct Scratch<'a> {
    workspace: &'a Dir,
    name: String,
}

impl<'a> Scratch<'a> {
    fn make(workspace: &'a Dir) -> Result<Self> {
        // Its process gives it a name that no other call has. One that was killed may have left it.
        let scratch = Self { workspace, name: format!(".tmp-{}", std::process::id()) };
        scratch.remove()?;
        mkdirat(workspace, &scratch.name, Mode::RWXU).doing("making a directory for temporary files")?;
        Ok(scratch)
    }

    fn remove(&self) -> Result<()> {
        // By the working directory, because only root may be able to pass through the directories of its path.
        rustix::process::fchdir(self.workspace).doing("entering the workspace")?;
        // This process is as confined as the command was, which may have made it impossible.
        drop(fs_err::remove_dir_all(&self.name));
        Ok(())
    }
}

/// Enters a working directory.
pub(super) fn enter(trees: &Trees, directory: &str) -> Result<()> {
    let Target { tree, path, asked } = trees.find(directory, Access::Read)?;
    let dir = tree
        .open_at(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Links::Follow)
        .map_err(|e| beneath::explain(e, asked))?;
    rustix::process::fchdir(&dir).doing("entering the working directory")
}

fn check(command: &str) -> Result<()> {
    if command.trim().is_empty() {
        return Err(Error::failed("the command is empty"));
    }
    if command.len() > MAX_COMMAND {
        let len = command.len();
        return Err(Error::failed(format!("the command is too long ({len} bytes): write it to a file and run that")));
    }
    Ok(())
}

fn termination(status: WaitStatus) -> Termination {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Termination::Code(code),
        (None, Some(signal)) => Termination::Signal(signal),
        (None, None) => Termination::Code(-1),
    }
}

/// Collects output until the command ends, exceeds a limit, or the caller closes its end.
fn watch(
    child: &Child,
    output: &mut OutputBuffer,
    timeout: Duration,
    caller: BorrowedFd,
    disks: &[Disk],
) -> Result<Termination> {
    let deadline = Instant::now() + timeout;
    let ended = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).doing("opening a pidfd")?;
    let reaped = Reaper::reap(child)?;
    let mut output_open = true;
    loop {
        let wait = deadline.saturating_duration_since(Instant::now()).min(DISK_INTERVAL);
        if wait.is_zero() {
            return Ok(Termination::TimedOut);
        }
        for disk in disks {
            if disk.is_nearly_full()? {
                return Ok(Termination::DiskFull);
            }
        }
        let mut watched = vec![(caller, PollFlags::IN), (ended.as_fd(), PollFlags::IN)];
        if output_open {
            watched.push((output.pipe.as_fd(), PollFlags::IN));
        }
        let ready = sys::poll(&watched, Some(wait))?;
        if ready[0] {
            return Ok(Termination::Cancelled);
        }
        if ready[1] {
            let status = reaped.join().ok().flatten();
            return status.map(termination).ok_or_else(|| Error::failed("nobody knows how the command ended"));
        }
        if output_open && ready[2] {
            output_open = output.read_once()?;
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
        takes_files.then(|| Self { fd, min_bytes, min_files: 1000.min(free.f_favail / 2) })
    }

    pub(super) fn is_nearly_full(&self) -> Result<bool> {
        let free = fstatvfs(&self.fd)?;
        Ok(free.f_bavail.saturating_mul(free.f_frsize) < self.min_bytes || free.f_favail < self.min_files)
    }
}

/// Bytes that are read of the output at once, and the most that the kernel keeps in a pipe for a user.
const PIECE: usize = 16 << 10;
const MAX_PIPE: usize = 1 << 20;

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

    /// Reads the rest: as much as the largest pipe holds, because somebody may still be writing.
    fn drain(&mut self) -> Result<()> {
        for _ in 0..MAX_PIPE / PIECE {
            if !self.read_once()? {
                break;
            }
        }
        Ok(())
    }

    /// Reads what is there, up to a limit. `false` when there is nothing.
    fn read_once(&mut self) -> Result<bool> {
        let mut piece = [0; PIECE];
        let len = match self.pipe.read(&mut piece) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
            result => result?,
        };
        let room = (MAX_BODY - self.kept.len()).min(len);
        self.kept.extend_from_slice(&piece[..room]);
        self.dropped += (len - room) as u64;
        Ok(len > 0)
    }
}
