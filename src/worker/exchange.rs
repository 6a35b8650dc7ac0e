//! The caller's side of one call: waits until the process has confined itself, sends the job, reads the reply, and passes on a
//! stop, a deadline or a fork bomb.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::processes;
use crate::cancel::{Cancel, CancelReason, Hook};
use crate::error::{Error, Kind, Result};
use crate::sandbox::MAX_PROCESSES;
use crate::sys;
use crate::worker::protocol::{
    END_OF_PIECES, Header, Job, Pieces, Reply, Termination, encode_job, encode_piece, receive_reply,
};

/// How long a process may take beyond its job's own time, and to clean up when told to stop.
const GRACE: Duration = Duration::from_secs(5);
/// How long it may take to confine itself.
const CONFINING: Duration = Duration::from_secs(60);
/// How often descendants are counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until `child` has confined itself. The error within is why it cannot.
///
/// Nothing of the job has reached the process by then, so what it says of the sandbox is nobody else's word.
pub(super) fn confined(child: &mut Child, cancel: &Cancel) -> Result<Result<(), String>> {
    let mut reader = ReplyReader::new(child, cancel, CONFINING)?;
    let greeting = receive_reply(&mut reader);
    let told_to_stop = reader.stopped.is_none();
    reader.give_back(child);
    match greeting.map(|reply| reply.header) {
        Ok(Header::Ready) => Ok(Ok(())),
        Ok(Header::Unavailable { why }) => Ok(Err(why)),
        Ok(other) => Err(other.into_error()),
        Err(e) => Err(of_turn(e, cancel, told_to_stop)),
    }
}

/// Has `child`, which is confined, do `job`, and waits until it has closed its output. `pieces` follow a job that reads.
/// `printed` sees the last line of a command that goes on. `count_processes` ends one that has too many.
pub(super) fn exchange(
    child: &mut Child,
    job: &Job,
    pieces: Option<&mut Pieces>,
    cancel: &Cancel,
    printed: &mut dyn FnMut(&[u8]),
    count_processes: bool,
) -> Result<Reply> {
    let time = Duration::from_secs(job.seconds()) + GRACE;
    let mut reader = ReplyReader::new(child, cancel, time)?;
    reader.send(job)?;
    if let Some(pieces) = pieces {
        reader.send_pieces(pieces)?;
        // What comes from elsewhere has a time of its own.
        reader.deadline = Instant::now() + cancel.remaining(time);
    }
    reader.counted = count_processes.then(|| child.id());
    let result = loop {
        match receive_reply(&mut reader) {
            Ok(Reply {
                header: Header::Printed,
                body,
            }) => printed(&body),
            result => break result,
        }
    };
    let told_to_stop = reader.stopped.is_none();
    // The process closes its output by ending. After the grace the caller kills it.
    reader.tell_to_stop();
    io::copy(&mut reader, &mut io::sink()).ok();
    match result {
        Ok(Reply {
            header: Header::Exited { dropped, .. },
            body,
        }) if reader.too_many => Ok(Reply {
            header: Header::Exited {
                end: Termination::TooManyProcesses,
                dropped,
            },
            body,
        }),
        Ok(reply) => Ok(reply),
        Err(e) => Err(of_turn(e, cancel, told_to_stop)),
    }
}

/// What an error means for the turn, if that has been stopped.
fn of_turn(e: Error, cancel: &Cancel, told_to_stop: bool) -> Error {
    match cancel.reason() {
        Some(CancelReason::Deadline) => cancel.timed_out(),
        Some(CancelReason::Stopped) if told_to_stop => Error::new(Kind::Interrupted, "stopped"),
        _ => e,
    }
}

/// Sends `job` to a confined process that keeps running, and waits for its first reply. Its pipes are `child`'s again
/// afterwards.
pub(super) fn begin(child: &mut Child, job: &Job, cancel: &Cancel) -> Result<Reply> {
    let mut reader = ReplyReader::new(child, cancel, Duration::from_secs(job.seconds()))?;
    reader.send(job)?;
    let reply = receive_reply(&mut reader);
    reader.give_back(child);
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
    /// Takes the pipes of a process that has this much time, and no more than the turn.
    fn new(child: &mut Child, cancel: &Cancel, time: Duration) -> Result<Self> {
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("the worker process has no pipes"));
        };
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let hook = cancel.on_stop(move || drop(stop));
        Ok(Self {
            input: Some(input),
            output,
            stopped: Some(stopped),
            _hook: hook,
            deadline: Instant::now() + cancel.remaining(time),
            counted: None,
            too_many: false,
        })
    }

    fn send(&mut self, job: &Job) -> Result<()> {
        let header = encode_job(job)?;
        let Some(input) = &mut self.input else {
            return Ok(());
        };
        let sent = input
            .write_all(&header)
            .and_then(|()| input.write_all(job.body()));
        // One that has ended has said why.
        if sent.is_err() {
            self.input = None;
        }
        Ok(())
    }

    /// Sends the pieces as they come.
    fn send_pieces(&mut self, pieces: &mut Pieces) -> Result<()> {
        while let Some(input) = &mut self.input {
            let piece = pieces()?;
            let sent = match &piece {
                Some(piece) => input.write_all(&encode_piece(piece)),
                None => input.write_all(&END_OF_PIECES),
            };
            if sent.is_err() {
                self.input = None;
            }
            if piece.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn give_back(self, child: &mut Child) {
        child.stdin = self.input;
        child.stdout = Some(self.output);
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
    use crate::worker::protocol::{FileJob, send_reply};

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
            shown: None,
        });
        let cancel = Cancel::new(Some(Duration::from_secs(2)));
        let error = exchange(&mut waiting, &job, None, &cancel, &mut |_| (), false).unwrap_err();
        waiting.kill().and_then(|()| waiting.wait()).unwrap();
        assert!(error.message.contains("too large"), "{error}");
    }

    /// A process that says these things, one before and one after it has read a line.
    fn saying(first: Header, then: Header) -> Child {
        let told = [first, then].map(|header| {
            let mut bytes = Vec::new();
            let body = Vec::new();
            send_reply(&mut bytes, &Reply { header, body }).unwrap();
            let octal = bytes.iter().map(|b| format!("\\{b:03o}"));
            octal.collect::<Vec<_>>().concat()
        });
        let script = format!(
            "printf '{}'; head -c 8 >/dev/null; printf '{}'",
            told[0], told[1]
        );
        child::command(Path::new(child::SHELL))
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    #[test]
    fn a_process_that_has_its_job_cannot_say_that_there_is_no_sandbox() {
        let unavailable = || Header::Unavailable { why: "so".into() };
        let cancel = Cancel::new(Some(Duration::from_secs(60)));
        let mut lacking = saying(unavailable(), Header::Text);
        assert_eq!(confined(&mut lacking, &cancel).unwrap(), Err("so".into()));
        lacking.kill().and_then(|()| lacking.wait()).unwrap();

        let mut forging = saying(Header::Ready, unavailable());
        assert_eq!(confined(&mut forging, &cancel).unwrap(), Ok(()));
        let job = Job::File(FileJob::Passages);
        let reply = exchange(&mut forging, &job, None, &cancel, &mut |_| (), false).unwrap();
        forging.wait().unwrap();
        let error = reply.into_text().unwrap_err();
        assert!(error.message.contains("unexpected reply"), "{error}");

        let mut early = saying(Header::Text, Header::Text);
        let error = confined(&mut early, &cancel).unwrap_err();
        early.kill().and_then(|()| early.wait()).unwrap();
        assert!(error.message.contains("unexpected reply"), "{error}");
    }
}
