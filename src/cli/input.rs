//! Input in addition to the words of a question: standard input, read within `--timeout`, and files.

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use fs_err::File;
use rustix::event::PollFlags;

use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::sys;
use crate::text::not_found;

/// Opens a file or a pipe, which the user knows as `shown`.
pub(super) fn open(path: &Path, shown: &str) -> Result<File> {
    match File::open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Err(no_file(shown)),
        Err(e) => Err(Error::usage(Error::from(e).message)),
        Ok(file) if file.metadata()?.is_dir() => {
            Err(Error::usage(format!("{shown} is a directory")).hint("name a file"))
        }
        Ok(file) => Ok(file),
    }
}

/// Creates the error for a missing file, with the directory that was searched.
fn no_file(path: &str) -> Error {
    let error = not_found("file", path, [], "");
    match std::env::current_dir() {
        Ok(dir) if !path.starts_with(['/', '~']) => {
            error.hint(format!("check the path, which starts in {}", dir.display()))
        }
        _ => error.hint("check the path"),
    }
}

/// Reads up to `most` + 1 bytes, so that the caller detects longer input.
pub(super) fn read(source: impl Read, most: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads standard input like [`read`], within the deadline of the question.
pub(super) fn read_stdin(most: usize, deadline: Option<&Cancel>) -> Result<Vec<u8>> {
    let stdin = io::stdin();
    let mut bytes = Vec::new();
    while bytes.len() <= most {
        let left = deadline.map(|deadline| deadline.remaining(Duration::MAX));
        let is_ready = sys::poll(&[(stdin.as_fd(), PollFlags::IN)], left)?[0];
        if deadline.is_some() && !is_ready {
            let error = Error::new(Kind::Limit, "standard input did not end in time");
            return Err(error.hint("use `-n` to leave it unread, or raise `--timeout`"));
        }
        let mut piece = [0; 4 << 10];
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&stdin, &mut piece));
        match read.doing("reading standard input")? {
            0 => break,
            len => bytes.extend_from_slice(&piece[..len]),
        }
    }
    Ok(bytes)
}
