//! Input in addition to the words of a question: standard input, files and pipes, read within `--timeout`.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use fs_err::File;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::text::not_found;

/// Deadline of `--timeout`, which counts from the start of the program.
pub(super) struct Deadline {
    limit: Duration,
    /// Ends the turn at the deadline.
    pub cancel: Cancel,
}

impl Deadline {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            cancel: Cancel::new(Some(limit)),
        }
    }

    pub(super) fn left(&self) -> Duration {
        self.cancel.remaining(self.limit)
    }

    /// Creates the error for input that is still open, before the model was asked.
    fn missed(&self, input: &str) -> Error {
        let seconds = self.limit.as_secs();
        Error::new(
            Kind::Limit,
            format!("{input} did not end within {seconds} s"),
        )
    }
}

/// Opens a file or a pipe, which the user knows as `shown`. With a deadline, this does not wait for a writer of the pipe.
pub(super) fn open(path: &Path, shown: &str, deadline: Option<&Deadline>) -> Result<File> {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC;
    flags.set(OFlags::NONBLOCK, deadline.is_some());
    match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => Err(no_file(shown)),
        Err(e) => Err(Error::usage(format!("{shown}: {}", io::Error::from(e)))),
        Ok(file) => {
            let file = File::from_parts(file.into(), path);
            if file.metadata()?.is_dir() {
                return Err(Error::usage(format!("{shown} is a directory")).hint("name a file"));
            }
            Ok(file)
        }
    }
}

/// Creates the error for a missing file, with the directory that was searched.
pub(super) fn no_file(path: &str) -> Error {
    let error = not_found("file", path, [], "");
    match std::env::current_dir() {
        Ok(dir) if !path.starts_with(['/', '~']) => {
            error.hint(format!("check the path, which starts in {}", dir.display()))
        }
        _ => error.hint("check the path"),
    }
}

/// Waits up to `time` until input or its end can be read. Input that cannot be polled counts as ready, and its read fails.
fn is_ready(input: &impl AsFd, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    let ready = poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&time));
    Ok(ready.unwrap_or(1) > 0)
}

/// Reads up to `most` + 1 bytes, so that the caller detects longer input.
///
/// # Errors
/// Returns [`Kind::Limit`] at the deadline, with the name `input`, and errors of reading.
pub(super) fn read(
    input: &str,
    source: &impl AsFd,
    most: usize,
    deadline: Option<&Deadline>,
) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() <= most {
        if let Some(deadline) = deadline {
            if !is_ready(source, deadline.left())? {
                return Err(deadline.missed(input));
            }
        }
        let mut piece = [0; 4 << 10];
        let room = piece.len().min(most + 1 - bytes.len());
        match rustix::io::read(source, &mut piece[..room]) {
            Ok(0) => break,
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(e) => return Err(io::Error::from(e).into()),
        }
    }
    Ok(bytes)
}
