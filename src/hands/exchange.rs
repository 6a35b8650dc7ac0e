//! The caller's side of one call: sends the job, reads the reply, and passes on a stop, a deadline or a fork bomb.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::processes;
use crate::cancel::{Cancel, Hook, Why};
use crate::error::{Error, Kind, Result};
use crate::jail::MAX_PROCESSES;
use crate::sys;
use crate::wire::{Header, Job, Reply, Termination, encode_job, receive_reply};

/// How long a process may take beyond its job's own time, and to clean up when told to stop.
const GRACE: Duration = Duration::from_secs(5);
/// How often descendants are counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);

/// Has `child` do `job`, and waits until it has closed its output. `count_processes` ends a command that has too many.
pub(super) fn exchange(
    child: &mut Child,
    job: &Job,
    cancel: &Cancel,
    count_processes: bool,
) -> Result<Reply> {
    let mut reader = ReplyReader::send(
        child,
        job,
        cancel,
        Duration::from_secs(job.seconds()) + GRACE,
    )?;
    reader.counted = count_processes.then(|| child.id());
    let result = receive_reply(&mut reader);
    let told_to_stop = reader.stopped.is_none();
    // The process closes its output by ending. After the grace the caller kills it.
    reader.tell_to_stop();
    io::copy(&mut reader, &mut io::sink()).ok();
    match (result, cancel.why()) {
        (
            Ok(Reply {
                header: Header::Exited { dropped, .. },
                body,
            }),
            _,
        ) if reader.too_many => Ok(Reply {
            header: Header::Exited {
                end: Termination::TooManyProcesses,
                dropped,
            },
            body,
        }),
        (Ok(reply), _) => Ok(reply),
        (Err(_), Some(Why::Deadline)) => Err(Error::new(Kind::Limit, "the turn timed out")),
        (Err(_), Some(Why::Stopped)) if told_to_stop => {
            Err(Error::new(Kind::Interrupted, "stopped"))
        }
        (Err(e), _) => Err(e),
    }
}

/// Sends `job` to a process that keeps running, and waits for its first reply. Its pipes are `child`'s again afterwards.
pub(super) fn begin(child: &mut Child, job: &Job, cancel: &Cancel) -> Result<Reply> {
    let mut reader = ReplyReader::send(child, job, cancel, Duration::from_secs(job.seconds()))?;
    let reply = receive_reply(&mut reader);
    (child.stdin, child.stdout) = (reader.input, Some(reader.output));
    reply
}

/// Reads the process's output, and closes its input when it has to stop.
struct ReplyReader {
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// Reads end of file when the turn is stopped; `None` once the process has been told.
    stopped: Option<OwnedFd>,
    _hook: Hook,
    deadline: Instant,
    /// The process whose descendants are counted.
    counted: Option<u32>,
    too_many: bool,
}

impl ReplyReader {
    /// Sends a job, whose reply has this much time, and no more than the turn.
    fn send(child: &mut Child, job: &Job, cancel: &Cancel, time: Duration) -> Result<Self> {
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("the hands process has no pipes"));
        };
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let hook = cancel.on_stop(move || drop(stop));
        let deadline = Instant::now() + cancel.remaining(time);
        // A process that cannot confine itself replies without reading the job.
        let header = encode_job(job)?;
        let sent = input
            .write_all(&header)
            .and_then(|()| input.write_all(job.body()));
        let input = sent.is_ok().then_some(input);
        Ok(Self {
            input,
            output,
            stopped: Some(stopped),
            _hook: hook,
            deadline,
            counted: None,
            too_many: false,
        })
    }

    fn tell_to_stop(&mut self) {
        self.input = None;
        self.stopped = None;
        self.deadline = Instant::now() + GRACE;
    }
}

impl Read for ReplyReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut wait = self.deadline.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                if self.input.is_none() {
                    return Err(io::Error::new(ErrorKind::TimedOut, "it does not answer"));
                }
                self.tell_to_stop();
                continue;
            }
            if let (Some(root), Some(_)) = (self.counted, &self.input) {
                if processes::are_more_below(root, MAX_PROCESSES) {
                    self.too_many = true;
                    self.tell_to_stop();
                    continue;
                }
                wait = wait.min(COUNT_INTERVAL);
            }
            let mut watched = vec![(self.output.as_fd(), PollFlags::IN)];
            watched.extend(
                self.stopped
                    .iter()
                    .map(|stopped| (stopped.as_fd(), PollFlags::IN)),
            );
            let ready = sys::poll(&watched, Some(wait))?;
            if ready.get(1) == Some(&true) {
                self.tell_to_stop();
            } else if ready[0] {
                return self.output.read(buf);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Stdio;

    use super::*;
    use crate::child;
    use crate::wire::FileJob;

    #[test]
    fn a_job_too_large_to_be_sent_is_refused_at_once() {
        // It would wait for the job for ever.
        let mut waiting = child::command(Path::new("/bin/cat"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let job = Job::File(FileJob::WriteFile {
            path: "x".into(),
            content: "x".repeat(65 << 20),
        });
        let cancel = Cancel::new(Some(Duration::from_secs(2)));
        let error = exchange(&mut waiting, &job, &cancel, false).unwrap_err();
        waiting.kill().and_then(|()| waiting.wait()).unwrap();
        assert!(error.message.contains("too large"), "{error}");
    }
}
