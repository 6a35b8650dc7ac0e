//! The caller's side of a call: starts a process, waits until it has confined itself, sends the job, and receives the result.
//! Hangs up to cancel the job.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{ROLE, SETUP};
use crate::cancel::{Cancel, CancelReason, Hook};
use crate::child;
use crate::error::{Context, Error, Kind, Result};
use crate::proxy::{Proxy, listener};
use crate::ssrf::AddressGuard;
use crate::sys;
use crate::worker::protocol::{
    Confinement, Header, Job, Message, Pieces, Programs, Setup, receive_message, send_job,
};

/// Time that a process may exceed its job's limit, and time to clean up after a cancellation.
const GRACE: Duration = Duration::from_secs(5);
/// Time for a process to confine itself.
const CONFINING: Duration = Duration::from_secs(60);
/// Size of one read of the output, in bytes.
const PIECE: usize = 64 << 10;

/// Time for a process that starts programs to end them, after its caller has hung up. Killed, it would leave them.
const ENDING: Duration = Duration::from_secs(60);

/// A worker process; ended when dropped.
pub(crate) struct WorkerProcess {
    child: Child,
    grace: Duration,
}

impl WorkerProcess {
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills the process, if it still runs after its time.
    fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        // It is killed also if there are no descriptors to wait with.
        if let Ok(ended) = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty()) {
            drop(sys::poll(
                &[(ended.as_fd(), PollFlags::IN)],
                Some(self.grace),
            ));
        }
        self.child.kill()?;
        self.child.wait()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        drop(self.end());
    }
}

/// A confined worker that waits for its job, or runs a program, whose standard input is the socket; shutting it down ends the
/// program.
pub(crate) struct Worker {
    /// Dropped first, which hangs up.
    pub socket: UnixStream,
    pub process: WorkerProcess,
    pub output: ChildStdout,
    pub confinement: Confinement,
    /// Proxy that serves the worker until it is dropped.
    _proxy: Option<Proxy>,
}

/// Starts a process and waits until it has confined itself. The inner error is why it cannot.
///
/// The job is sent later, so its code cannot forge the reply about the sandbox.
pub(super) fn start(
    setup: &Setup,
    guard: &AddressGuard,
    cancel: &Cancel,
) -> Result<Result<Worker, String>> {
    let (socket, theirs) = UnixStream::pair().doing("making a socket pair")?;
    let mut command = child::again(ROLE);
    command
        .env(SETUP, serde_json::to_string(setup)?)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::piped());
    let mut child = command.spawn().doing("starting the worker process")?;
    // Closes this process's copy of the other end of the socket.
    drop(command);
    let output = child.stdout.take();
    let grace = match setup.programs {
        Programs::None => Duration::ZERO,
        Programs::Command | Programs::Server => ENDING,
    };
    let process = WorkerProcess { child, grace };
    // Declared last, so that an error hangs up before it waits for the process to end.
    let socket = socket;
    let Some(output) = output else {
        return Err(Error::failed("the worker process has no output"));
    };
    let mut wait = Wait::new(cancel, CONFINING)?;
    let proxy = match confined(&socket, guard, &mut wait) {
        Ok(Ok(proxy)) => proxy,
        Ok(Err(why)) => return Ok(Err(why)),
        Err(e) => return Err(explain(e, cancel)),
    };
    Ok(Ok(Worker {
        process,
        socket,
        output,
        confinement: setup.confinement,
        _proxy: proxy,
    }))
}

/// Waits for the message that a worker has confined itself, and serves the listener that precedes it.
fn confined(
    socket: &UnixStream,
    guard: &AddressGuard,
    wait: &mut Wait,
) -> Result<Result<Option<Proxy>, String>> {
    let mut proxy = None;
    loop {
        let mut from = FromWorker {
            socket,
            wait,
            listener: None,
        };
        match receive_message(&mut from)? {
            Message::Listening if proxy.is_none() => {
                let listener = from.listener.take();
                let listener =
                    listener.ok_or_else(|| Error::failed("the sandbox sent no listener"))?;
                proxy = Some(Proxy::start(listener.into(), guard.clone())?);
            }
            Message::Ready => return Ok(Ok(proxy)),
            Message::Unavailable { why } => return Ok(Err(why)),
            Message::Done(header) => return Err(header.into_error()),
            Message::Listening => return Err(Error::failed("the sandbox sent two listeners")),
        }
    }
}

impl Worker {
    /// Sends a job and its `pieces`, passes the output to `take`, and waits for the end.
    ///
    /// # Errors
    /// Returns an error if the turn has ended, the time is up, or the worker ended without a reply, and errors of `take` and
    /// `pieces`.
    pub(super) fn exchange(
        mut self,
        job: &Job,
        pieces: Option<&mut Pieces>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
        cancel: &Cancel,
    ) -> Result<Header> {
        let time = Duration::from_secs(job.seconds()) + GRACE;
        let mut wait = Wait::new(cancel, time)?;
        self.send(job, pieces, time)?;
        // The pieces come from outside and had a separate time limit.
        wait.deadline = Instant::now() + cancel.remaining(time);
        let told = self.take_all(take, &mut wait)?;
        let status = self.process.end().doing("ending the worker process")?;
        told.map_err(|e| {
            let e = explain(e, cancel);
            if e.kind == Kind::Failed && !wait.is_over {
                e.doing(format_args!("worker process ({status})"))
            } else {
                e
            }
        })
    }

    /// Sends a job and its bytes. Write errors are ignored, because a worker that ended early has already sent the reason.
    fn send(&mut self, job: &Job, pieces: Option<&mut Pieces>, time: Duration) -> Result<()> {
        self.socket.set_write_timeout(Some(time))?;
        let mut json = Vec::new();
        send_job(&mut json, job)?;
        let mut is_taken =
            self.socket.write_all(&json).is_ok() && self.socket.write_all(job.body()).is_ok();
        if let Some(pieces) = pieces {
            while let (true, Some(piece)) = (is_taken, pieces()?) {
                is_taken = self.socket.write_all(&piece).is_ok();
            }
        }
        // Fails harmlessly if the worker has ended.
        drop(self.socket.shutdown(Shutdown::Write));
        Ok(())
    }

    /// Passes the output to `take` until it ends, and returns the worker's reply. The inner
    /// error is the worker's.
    fn take_all(
        &mut self,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
        wait: &mut Wait,
    ) -> Result<Result<Header>> {
        let silence = || Err(Error::failed("it does not answer"));
        let mut told = None;
        let mut is_open = true;
        let mut piece = vec![0; PIECE];
        while is_open || told.is_none() {
            // The output first, and the socket last.
            let output = is_open.then(|| self.output.as_fd());
            let socket = told.is_none().then(|| self.socket.as_fd());
            let watched: Vec<_> = output.into_iter().chain(socket).collect();
            let ready = match wait.ready(&watched) {
                Ok(ready) => ready,
                // The job has ended, so the rest of the output is useless.
                Err(_) if told.is_some() && wait.is_late() => break,
                Err(e) if wait.is_over => return Err(e.into()),
                Err(_) => {
                    wait.end();
                    // The worker then kills what it started, and its output ends.
                    drop(self.socket.shutdown(Shutdown::Both));
                    told.get_or_insert_with(silence);
                    continue;
                }
            };
            let gives = is_open && ready[0];
            let says = told.is_none() && ready[watched.len() - 1];
            if gives {
                let len = self.output.read(&mut piece)?;
                take(&piece[..len])?;
                is_open = len > 0;
            }
            if says {
                told = Some(self.listen(wait));
                wait.deadline = Instant::now() + GRACE;
            }
        }
        Ok(told.unwrap_or_else(silence))
    }

    fn listen(&self, wait: &mut Wait) -> Result<Header> {
        let mut from = FromWorker {
            socket: &self.socket,
            wait,
            listener: None,
        };
        let message = receive_message(&mut from);
        match message.map_err(|_| Error::failed("it ended without a reply"))? {
            Message::Done(header) => Ok(header),
            _ => Err(Error::failed("unexpected reply from the worker process")),
        }
    }

    /// Starts a program in the worker and leaves it running.
    pub(super) fn serve(mut self, job: &Job, cancel: &Cancel) -> Result<Self> {
        let time = Duration::from_secs(job.seconds());
        let mut wait = Wait::new(cancel, time)?;
        self.socket.set_write_timeout(Some(time))?;
        send_job(&mut self.socket, job)?;
        match self.listen(&mut wait) {
            Ok(Header::Started) => {}
            Ok(other) => return Err(other.into_error()),
            Err(e) => return Err(explain(e, cancel)),
        }
        self.socket.set_write_timeout(None)?;
        Ok(self)
    }
}

/// Time limit of a worker, and its cancellation.
struct Wait {
    /// Pipe that reads end of file when the turn is stopped.
    stopped: OwnedFd,
    _hook: Hook,
    deadline: Instant,
    /// The worker has been asked to stop.
    is_over: bool,
}

impl Wait {
    /// Waits for up to `time`, or until the turn's deadline.
    fn new(cancel: &Cancel, time: Duration) -> Result<Self> {
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let hook = cancel.on_stop(move || drop(stop));
        Ok(Self {
            stopped,
            _hook: hook,
            deadline: Instant::now() + cancel.remaining(time),
            is_over: false,
        })
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }

    /// Ignores the turn's end from now on.
    fn end(&mut self) {
        self.is_over = true;
        self.deadline = Instant::now() + GRACE;
    }

    /// Waits until a descriptor is readable, for up to the time that is left. Returns for each whether it is.
    ///
    /// # Errors
    /// Returns an error if the time is up or the turn was stopped.
    fn ready(&self, watched: &[BorrowedFd]) -> io::Result<Vec<bool>> {
        let mut all: Vec<_> = watched.iter().map(|fd| (*fd, PollFlags::IN)).collect();
        if !self.is_over {
            all.push((self.stopped.as_fd(), PollFlags::IN));
        }
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(ErrorKind::TimedOut, "it does not answer"));
        }
        let ready = sys::poll(&all, Some(left))?;
        if ready.get(watched.len()) == Some(&true) {
            return Err(io::Error::other("stopped"));
        }
        Ok(ready)
    }
}

/// Replaces an error by the end of the turn that caused it.
fn explain(e: Error, cancel: &Cancel) -> Error {
    match cancel.reason() {
        Some(CancelReason::Deadline) => cancel.timed_out(),
        Some(CancelReason::Stopped) => Error::new(Kind::Interrupted, "stopped"),
        None => e,
    }
}

/// Reads a worker's messages, and receives the listener that comes with one of them.
struct FromWorker<'a> {
    socket: &'a UnixStream,
    wait: &'a mut Wait,
    listener: Option<OwnedFd>,
}

impl Read for FromWorker<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while !self.wait.ready(&[self.socket.as_fd()])?[0] {}
        listener::receive(self.socket, buf, &mut self.listener)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::worker::protocol::{FileAction, FileJob, send_message};

    /// Returns a worker that has sent these messages and ends when its caller hangs up.
    fn saying(messages: &[Message]) -> (Worker, UnixStream) {
        let (socket, mut theirs) = UnixStream::pair().unwrap();
        for message in messages {
            send_message(&mut theirs, message).unwrap();
        }
        let stdin = OwnedFd::from(theirs.try_clone().unwrap());
        let mut child = child::command(Path::new("/bin/cat"))
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let worker = Worker {
            process: WorkerProcess {
                child,
                grace: Duration::ZERO,
            },
            socket,
            output,
            confinement: Confinement::Disabled,
            _proxy: None,
        };
        (worker, theirs)
    }

    fn job() -> Job {
        Job::File(FileJob::new("", FileAction::Passages))
    }

    #[test]
    fn worker_with_job_cannot_report_missing_sandbox() {
        let cancel = Cancel::new(Some(Duration::from_secs(60)));
        let unavailable = Message::Unavailable { why: "so".into() };
        let guard = AddressGuard::new(false);
        let told = |messages: &[Message]| {
            let (worker, _theirs) = saying(messages);
            let mut wait = Wait::new(&cancel, CONFINING).unwrap();
            confined(&worker.socket, &guard, &mut wait).map(Result::err)
        };
        assert_eq!(
            told(std::slice::from_ref(&unavailable)).unwrap(),
            Some("so".to_owned())
        );
        assert_eq!(told(&[Message::Ready]).unwrap(), None);
        let early = told(&[Message::Done(Header::Text)]).unwrap_err();
        assert!(early.message.contains("unexpected reply"), "{early}");

        let (worker, theirs) = saying(&[unavailable]);
        drop(theirs);
        let forged = worker.exchange(&job(), None, &mut |_| Ok(()), &cancel);
        assert!(forged.unwrap_err().message.contains("unexpected reply"));
    }

    #[test]
    fn worker_output_is_read_past_its_status() {
        let cancel = Cancel::new(Some(Duration::from_secs(60)));
        let (worker, theirs) = saying(&[Message::Done(Header::Text)]);
        drop(theirs);
        let mut given = Vec::new();
        let mut take = |piece: &[u8]| {
            given.extend_from_slice(piece);
            Ok(())
        };
        let header = worker.exchange(&job(), None, &mut take, &cancel).unwrap();
        assert_eq!(header, Header::Text);
        // The process is `cat`, so its output is the job.
        assert!(given.ends_with(br#""passages"}}"#), "{given:?}");
    }
}
