//! Running a command: its output, its time, and the end of everything it started.

use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Resource, pidfd_open};

use super::inside::limit;
use super::reap::Reaper;
use crate::beneath::{self, Dir, Links};
use crate::child::{self, Network};
use crate::error::{Context, Error, Result};
use crate::files::{Access, Target, Trees};
use crate::jail;
use crate::proxy::listener;
use crate::sys::timespec;
use crate::wire::Confinement;
use crate::wire::{End, Header, MAX_BODY, Reply, Setup};

/// The kernel's limit on one argument is 128 KiB (`MAX_ARG_STRLEN`).
const LONGEST_COMMAND: usize = 120 << 10;

/// The largest file that a command may write, in bytes.
const LARGEST_FILE: u64 = 256 << 20;

/// What to run, and how.
pub struct Order<'a> {
    pub command: &'a str,
    pub working_dir: &'a str,
    pub timeout_secs: u64,
    pub env: Vec<(String, String)>,
}

/// Runs `command` by `/bin/sh` in `working_dir`, with nothing on its standard input and its two outputs in one.
///
/// When this returns, every process that the command started has ended.
pub fn exec(trees: &Trees, setup: &Setup, order: Order, reaper: &mut Reaper, caller: BorrowedFd) -> Result<Reply> {
    let Order { command, working_dir, timeout_secs, env } = order;
    if command.trim().is_empty() {
        return Err(Error::failed("the command is empty"));
    }
    if command.len() > LONGEST_COMMAND {
        let len = command.len();
        return Err(Error::failed(format!("the command is too long ({len} bytes): write it to a file and run that")));
    }
    if command.contains('\0') {
        return Err(Error::failed("the command contains a NUL byte"));
    }
    let Target { tree, path, asked } = trees.find(working_dir, Access::Read)?;
    let dir = tree
        .open_at(path, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Links::Follow)
        .map_err(|e| beneath::explain(e, asked))?;
    rustix::process::fchdir(&dir).doing("entering the working directory")?;
    // Wall time is watched; this is for what spins while nobody watches.
    limit(Resource::Cpu, timeout_secs + 1)?;
    if setup.way.is_sandboxed() {
        limit(Resource::Fsize, LARGEST_FILE)?;
    }
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    let guarded = setup.way == Confinement::Namespaces && setup.network == Network::Guarded;
    let proxy = if guarded { listener::environment() } else { Vec::new() };
    if setup.way.is_sandboxed() {
        jail::seal()?;
    }
    let mut child = child::command(Path::new("/bin/sh"))
        .args(["-c", command])
        .envs(proxy)
        .envs(env)
        .env("HOME", &setup.workspace)
        .env("TERM", "dumb")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::from(input.try_clone()?))
        .stderr(Stdio::from(input))
        .spawn()
        .doing("starting /bin/sh")?;
    let mut collected = Collected::new(output)?;
    let mut guard = Guard::new(trees.workspace(), setup.way)?;
    let end = watch(&mut child, &mut collected, Duration::from_secs(timeout_secs), caller, &mut guard);
    if child.try_wait()?.is_none() {
        child.kill().and_then(|()| child.wait()).doing("ending the command")?;
    }
    reaper.sweep(None)?;
    // What was printed before the end is in the pipe; nobody is left to add to it.
    collected.drain()?;
    let end = match end? {
        Some(end) => end,
        None => exit_of(child.wait()?),
    };
    Ok(Reply { header: Header::Exited { end, dropped: collected.dropped }, body: collected.kept })
}

fn exit_of(status: ExitStatus) -> End {
    match (status.code(), status.signal()) {
        (Some(code), _) => End::Code(code),
        (None, Some(signal)) => End::Signal(signal),
        (None, None) => End::Code(-1),
    }
}

/// Collects output until the command ends (`None`), its time is up, or the caller closes its end.
fn watch(
    child: &mut Child,
    collected: &mut Collected,
    timeout: Duration,
    caller: BorrowedFd,
    guard: &mut Guard,
) -> Result<Option<End>> {
    let until = Instant::now().checked_add(timeout);
    // Without pidfd (before Linux 5.3) look for the end of the command now and then.
    let ended = pidfd_open(pid(child)?, PidfdFlags::empty()).ok();
    let mut output_open = true;
    loop {
        let mut left = until.map_or(timeout, |u| u.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Ok(Some(End::TimedOut));
        }
        if ended.is_none() {
            if child.try_wait()?.is_some() {
                return Ok(None);
            }
            left = left.min(Duration::from_millis(20));
        }
        if let Some(end) = guard.look()? {
            return Ok(Some(end));
        }
        left = left.min(guard.pause);
        let mut fds = vec![PollFd::from_borrowed_fd(caller, PollFlags::IN)];
        if let Some(ended) = &ended {
            fds.push(PollFd::new(ended, PollFlags::IN));
        }
        if output_open {
            fds.push(PollFd::new(&collected.pipe, PollFlags::IN));
        }
        match poll(&mut fds, Some(&timespec(left))) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return Ok(Some(End::Cancelled));
        }
        if ended.is_some() && ready[1] {
            return Ok(None);
        }
        if output_open && ready[ready.len() - 1] {
            output_open = collected.take()?;
        }
    }
}

fn pid(child: &Child) -> Result<Pid> {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| Error::failed("the command has no pid"))
}

/// Looks now and then whether the command takes more of the machine than it may.
struct Guard {
    disk: OwnedFd,
    /// Below this many free bytes or files the command is ended.
    least_bytes: u64,
    least_files: u64,
    /// Root is not held to a number of processes by the kernel: they are counted.
    counts_processes: bool,
    pause: Duration,
}

/// A command may not leave less free than this, in bytes, or than half of what it found.
const LEAST_FREE: u64 = 200 << 20;

impl Guard {
    fn new(workspace: &Dir, way: Confinement) -> Result<Self> {
        let disk = workspace.as_fd().try_clone_to_owned()?;
        let free = rustix::fs::fstatvfs(&disk).doing("asking for free space")?;
        // Inside the namespaces it has an ordinary id even where it is root outside: who that is, the map tells.
        let outside = fs_err::read_to_string("/proc/self/uid_map").unwrap_or_default();
        let root_outside = outside.split_whitespace().nth(1) == Some("0");
        let counts_processes = way == Confinement::Namespaces && root_outside;
        Ok(Self {
            disk,
            least_bytes: LEAST_FREE.min(free.f_bavail.saturating_mul(free.f_frsize) / 2),
            least_files: 1000.min(free.f_favail / 2),
            counts_processes,
            pause: Duration::from_millis(if counts_processes { 20 } else { 100 }),
        })
    }

    fn look(&mut self) -> Result<Option<End>> {
        let free = rustix::fs::fstatvfs(&self.disk)?;
        if free.f_bavail.saturating_mul(free.f_frsize) < self.least_bytes || free.f_favail < self.least_files {
            return Ok(Some(End::DiskFull));
        }
        if self.counts_processes {
            let processes = fs_err::read_dir("/proc")?
                .filter(|entry| entry.as_ref().is_ok_and(|e| e.file_name().as_encoded_bytes()[0].is_ascii_digit()));
            if processes.count() as u64 > jail::MOST_PROCESSES {
                return Ok(Some(End::TooManyProcesses));
            }
        }
        Ok(None)
    }
}

/// Output so far: the beginning is kept, the rest is counted.
struct Collected {
    pipe: fs_err::File,
    kept: Vec<u8>,
    dropped: u64,
}

impl Collected {
    fn new(pipe: OwnedFd) -> Result<Self> {
        rustix::io::ioctl_fionbio(pipe.as_fd(), true)?;
        Ok(Self { pipe: fs_err::File::from_parts(pipe.into(), "the command's output"), kept: Vec::new(), dropped: 0 })
    }

    /// Reads once. `false` at the end of the output.
    fn take(&mut self) -> Result<bool> {
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
            if !self.take()? || before == (self.kept.len(), self.dropped) {
                return Ok(());
            }
        }
    }
}
