//! Runs a command: collects its output, watches its limits, and ends everything it started.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, fstatvfs, mkdirat};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Resource, WaitStatus, pidfd_open};

use super::denied;
use super::process::limit;
use super::processes::are_more_below;
use super::reaper::Reaper;
use crate::access::{self, Access, Links};
use crate::child::{self, Network};
use crate::error::{Context, Error, Result};
use crate::files::{OpenGrants, Target};
use crate::proxy::listener;
use crate::sandbox::{self, MAX_PROCESSES};
use crate::sys;
use crate::worker::protocol::{
    self, Confinement, Dropped, ExecJob, Header, MAX_BODY, MAX_LINE, Reply, Setup, Termination,
};

/// The kernel limits one argument to 128 KiB (`MAX_ARG_STRLEN`).
const MAX_COMMAND: usize = 120 << 10;
/// The largest file that a confined command may write, in bytes.
const MAX_FILE: u64 = 256 << 20;
/// A command must leave this many bytes free on every disk that it may write to, or half of what was free when it started.
const MIN_FREE: u64 = 200 << 20;
/// How often the free space is measured.
const DISK_INTERVAL: Duration = Duration::from_millis(100);
/// How often the caller is told of the last line.
const TELL_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the command with `/bin/sh`, and both outputs in one.
///
/// When this returns, every process that the command started has ended, or will have before the caller reads on.
pub(super) fn exec(
    grants: &OpenGrants,
    setup: &Setup,
    job: ExecJob,
    caller: BorrowedFd,
) -> Result<Reply> {
    check(&job)?;
    // A second bound beside the watched wall-clock time.
    limit(Resource::Cpu, job.timeout_secs + 1)?;
    if setup.confinement.is_sandboxed() {
        limit(Resource::Fsize, MAX_FILE)?;
    }
    let mut reaper = Reaper::new(setup.confinement)?;
    let (output, input) = pipe_with(PipeFlags::CLOEXEC)?;
    // For temporary files, where `/tmp` is the host's and closed. No other call has this name; one that was killed may have left it.
    let scratch = (setup.confinement == Confinement::Landlock)
        .then(|| format!(".tmp-{}", std::process::id()));
    if let Some(name) = &scratch {
        drop(fs_err::remove_dir_all(name));
        mkdirat(grants.workspace(), name, Mode::RWXU)
            .doing("making a directory for temporary files")?;
    }
    enter(grants, &job.working_dir)?;
    let tmp = scratch.as_ref().map(|name| setup.workspace.real.join(name));
    let mut child = shell(setup, &job, tmp)?
        .stdin(if job.input.is_empty() {
            Stdio::null()
        } else {
            Stdio::piped()
        })
        .stdout(Stdio::from(input.try_clone()?))
        .stderr(Stdio::from(input))
        .spawn()
        .doing("starting /bin/sh")?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command need not read all of it.
        let write = move || drop(stdin.write_all(&job.input));
        Builder::new().spawn(write).doing("starting a thread")?;
    }
    let mut output = OutputBuffer::new(output, MAX_BODY / 2, MAX_BODY / 2)?;
    output.last = Some(LastLine {
        end: Vec::new(),
        is_new: false,
        told: Instant::now(),
    });
    let limits = Limits {
        timeout: Some(Duration::from_secs(job.timeout_secs)),
        disks: grants.writable().filter_map(Disk::measure).collect(),
        interval: DISK_INTERVAL,
        // The caller counts them, where they cannot reach it.
        counts_processes: false,
        grace: Duration::ZERO,
    };
    let end = watch(&child, caller, &limits, Some(&mut output));
    reaper.kill_descendants()?;
    if let Some(name) = scratch {
        // By the working directory, because only root may be able to pass through the directories of its path.
        rustix::process::fchdir(grants.workspace()).doing("entering the workspace")?;
        // This process is as confined as the command was, which may have made it impossible.
        drop(fs_err::remove_dir_all(name));
    }
    output.drain()?;
    let (body, dropped) = output.into_parts();
    Ok(Reply {
        header: Header::Exited { end: end?, dropped },
        body,
    })
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
    if let Some(what) = denied::why(&job.command) {
        return Err(Error::failed(format!(
            "{what} is refused: ask the user to do it"
        )));
    }
    Ok(())
}

/// The shell with the command, confined, and its environment; `tmp` is for temporary files.
fn shell(setup: &Setup, job: &ExecJob, tmp: Option<PathBuf>) -> Result<Command> {
    let guarded = setup.confinement == Confinement::Namespaces && setup.network == Network::Guarded;
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
        .env("HOME", &setup.workspace.path)
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
    /// How often free space is measured, and processes counted.
    pub(super) interval: Duration,
    pub(super) counts_processes: bool,
    /// How long it may go on when the caller has gone.
    pub(super) grace: Duration,
}

/// Collects output until the program ends, exceeds a limit, or the caller closes its end.
pub(super) fn watch(
    child: &Child,
    caller: BorrowedFd,
    limits: &Limits,
    mut output: Option<&mut OutputBuffer>,
) -> Result<Termination> {
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
        if limits.counts_processes && are_more_below(std::process::id(), MAX_PROCESSES) {
            return Ok(Termination::TooManyProcesses);
        }
        for disk in &limits.disks {
            if disk.is_nearly_full()? {
                return Ok(Termination::DiskFull);
            }
        }
        // No events: what the caller sends is for the program; only the end of the pipe matters here.
        let mut watched = vec![(caller, PollFlags::empty()), (ended.as_fd(), PollFlags::IN)];
        watched.extend(
            output
                .iter()
                .map(|output| (output.pipe.as_fd(), PollFlags::IN)),
        );
        let ready = sys::poll(&watched, Some(left.min(limits.interval)))?;
        if ready[0] && !ready[1] {
            // A server ends with its input.
            sys::poll(&watched[1..2], Some(limits.grace))?;
            return Ok(Termination::Cancelled);
        }
        if ready.get(2) == Some(&true)
            && !output
                .as_mut()
                .map_or(Ok(false), |output| output.read_once())?
        {
            output = None;
        }
        if let Some(output) = &mut output {
            output.tell()?;
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

/// The last line that says something. Of a long one its beginning, up to a space: half a key would not be known as one.
fn last_line(output: &[u8]) -> &[u8] {
    // A progress bar begins its line again.
    let lines = output.rsplit(|byte| matches!(byte, b'\n' | b'\r'));
    let mut lines = lines.map(<[u8]>::trim_ascii);
    let last = lines.find(|line| !line.is_empty()).unwrap_or_default();
    if last.len() <= MAX_LINE {
        return last;
    }
    let space = last[..MAX_LINE].iter().rposition(u8::is_ascii_whitespace);
    &last[..space.unwrap_or_default()]
}

/// Bytes that are read of the output at once, and the most that the kernel keeps in a pipe for a user.
const PIECE: usize = 16 << 10;
const MAX_PIPE: usize = 1 << 20;
/// How much of the end of the output is searched for the last line.
const MAX_END: usize = 64 << 10;

/// Keeps the beginning and the end of the output, and counts what was between.
pub(super) struct OutputBuffer {
    pipe: fs_err::File,
    head: Vec<u8>,
    most_head: usize,
    /// What came after the head: its end, and up to as much again before that.
    tail: Vec<u8>,
    most_tail: usize,
    dropped: u64,
    /// `None` if the caller is not told of the last line.
    last: Option<LastLine>,
}

/// What the caller is told while a command goes on.
struct LastLine {
    /// The end of the output.
    end: Vec<u8>,
    is_new: bool,
    told: Instant,
}

impl LastLine {
    fn add(&mut self, piece: &[u8]) {
        self.is_new |= !piece.is_empty();
        self.end.extend_from_slice(piece);
        let Some(old) = self.end.len().checked_sub(MAX_END) else {
            return;
        };
        // From the beginning of a line on.
        let line_end = self.end[old..].iter().position(|byte| *byte == b'\n');
        let begin = line_end.map_or(self.end.len(), |at| old + at + 1);
        self.end.drain(..begin);
    }
}

impl OutputBuffer {
    /// Keeps so many bytes of the beginning and of the end.
    pub(super) fn new(pipe: OwnedFd, most_head: usize, most_tail: usize) -> Result<Self> {
        rustix::io::ioctl_fionbio(pipe.as_fd(), true)?;
        Ok(Self {
            pipe: fs_err::File::from_parts(pipe.into(), "the command's output"),
            head: Vec::new(),
            most_head,
            tail: Vec::new(),
            most_tail,
            dropped: 0,
            last: None,
        })
    }

    /// Tells the caller the last line, if it is a new one and some time has passed.
    fn tell(&mut self) -> Result<()> {
        let Some(last) = &mut self.last else {
            return Ok(());
        };
        if !last.is_new || last.told.elapsed() < TELL_INTERVAL {
            return Ok(());
        }
        let mut stdout = io::stdout();
        // A caller that does not read must not hold up the limits. A pipe that is ready takes a line at once.
        let is_ready = sys::poll(&[(stdout.as_fd(), PollFlags::OUT)], Some(Duration::ZERO))?[0];
        if !is_ready {
            return Ok(());
        }
        (last.is_new, last.told) = (false, Instant::now());
        let body = last_line(&last.end).to_vec();
        if !body.is_empty() {
            let header = Header::Printed;
            // When the caller has gone, the next look at its pipe says so.
            drop(protocol::send_reply(&mut stdout, &Reply { header, body }));
        }
        Ok(())
    }

    /// Reads the rest: as much as the largest pipe holds, because somebody may still be writing.
    pub(super) fn drain(&mut self) -> Result<()> {
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
        if let Some(last) = &mut self.last {
            last.add(&piece[..len]);
        }
        let room = (self.most_head - self.head.len()).min(len);
        self.head.extend_from_slice(&piece[..room]);
        self.tail.extend_from_slice(&piece[room..len]);
        // Not for each piece: the rest moves.
        if self.tail.len() > 2 * self.most_tail {
            self.trim();
        }
        Ok(len > 0)
    }

    fn trim(&mut self) {
        let old = self.tail.len().saturating_sub(self.most_tail);
        self.tail.drain(..old);
        self.dropped += old as u64;
    }

    /// The beginning and the end, and what was between.
    pub(super) fn into_parts(mut self) -> (Vec<u8>, Option<Dropped>) {
        self.trim();
        let dropped = Dropped {
            at: self.head.len(),
            bytes: self.dropped,
        };
        self.head.append(&mut self.tail);
        (self.head, Some(dropped).filter(|dropped| dropped.bytes > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_newest_that_says_something() {
        for (output, line) in [
            (&b"one\ntwo\n\n"[..], &b"two"[..]),
            (b"10 %\r20 %\r", b"20 %"),
            (b"one\n tw", b"tw"),
            (b"\n", b""),
        ] {
            assert_eq!(last_line(output), line);
        }
        let long = [&b"one two "[..], &[b'x'; 5000]].concat();
        assert_eq!(last_line(&long), b"one two");
        assert_eq!(last_line(&long[8..]), b"");
    }

    #[test]
    fn the_last_line_moves_on_however_much_is_printed() {
        let mut last = LastLine {
            end: Vec::new(),
            is_new: false,
            told: Instant::now(),
        };
        for number in 0..200_000 {
            last.add(format!("line {number}\n").as_bytes());
            assert!(last.end.len() < MAX_END);
        }
        assert_eq!(last_line(&last.end), b"line 199999");
        last.add(&vec![b'x'; 2 * MAX_END]);
        last.add(b"\nat the end");
        assert_eq!(last_line(&last.end), b"at the end");
    }
}
