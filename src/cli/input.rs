//! What the user hands over beside the words of a question: standard input, files and pipes, read within `--timeout`.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use fs_err::File;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};

/// The end of `--timeout`, which counts from the start of the program.
pub(super) struct Deadline {
    limit: Duration,
    /// Ends the turn at the same time.
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

    /// The error of an input that is still open: nobody has asked the model yet.
    fn missed(&self, input: &str) -> Error {
        let seconds = self.limit.as_secs();
        Error::new(
            Kind::Limit,
            format!("{input} did not end within {seconds} s"),
        )
    }
}

/// Opens a file or a pipe. Where there is a deadline, this does not wait until somebody opens the pipe to write.
pub(super) fn open(path: &Path, deadline: Option<&Deadline>) -> io::Result<File> {
    let mut flags = OFlags::RDONLY | OFlags::CLOEXEC;
    flags.set(OFlags::NONBLOCK, deadline.is_some());
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    let file = File::from_parts(file.into(), path);
    if file.metadata()?.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    Ok(file)
}

/// Whether there is something to read, or the end, within a time. An input that cannot be polled fails when it is read.
pub(super) fn is_ready(input: &impl AsFd, time: Duration) -> io::Result<bool> {
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    let ready = poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&time));
    Ok(ready.unwrap_or(1) > 0)
}

/// Reads up to `most` bytes and one more.
///
/// # Errors
/// [`Kind::Limit`] at the deadline: `input` names what did not end. Else those of reading.
pub(super) fn read(
    input: &str,
    source: &mut (impl Read + AsFd),
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
        let left = (most + 1 - bytes.len()) as u64;
        let mut piece = [0; 4 << 10];
        match source.take(left).read(&mut piece) {
            Ok(0) => break,
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(bytes)
}
