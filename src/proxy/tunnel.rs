//! Copies bytes both ways between two sockets on one thread, until both halves close, go idle or the proxy stops.
//!
//! Both sockets are non-blocking, and every wait is one `poll` that the proxy's end wakes too.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use crate::sys;

/// Bytes that one direction buffers.
const BUFFER: usize = 16 << 10;

/// Waits until one of `watched` is ready. Fails with `TimedOut` at the deadline and with another error once the writing
/// end of `stop` is closed.
pub(super) fn wait(
    stop: &OwnedFd,
    watched: &[(BorrowedFd<'_>, PollFlags)],
    deadline: Option<Instant>,
) -> io::Result<()> {
    let mut all = vec![(stop.as_fd(), PollFlags::IN)];
    all.extend(watched);
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let ready = sys::poll(&all, left)?;
        if ready[0] {
            return Err(io::Error::other("the proxy has ended"));
        }
        if ready.contains(&true) {
            return Ok(());
        }
        if left.is_some_and(|left| left.is_zero()) {
            return Err(ErrorKind::TimedOut.into());
        }
    }
}

/// Whether a non-blocking call should simply be tried again.
pub(super) fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Runs a tunnel. `early` is what the client sent before the tunnel stood.
pub(super) fn run(
    stop: &OwnedFd,
    client: &TcpStream,
    remote: &TcpStream,
    early: Vec<u8>,
    idle_timeout: Duration,
) -> io::Result<()> {
    let mut directions = [Direction::new(client, remote, early), Direction::new(remote, client, Vec::new())];
    loop {
        for direction in &mut directions {
            direction.advance()?;
        }
        let watched: Vec<_> = directions.iter().filter_map(Direction::interest).collect();
        if watched.is_empty() {
            return Ok(());
        }
        wait(stop, &watched, Some(Instant::now() + idle_timeout))?;
    }
}

struct Direction<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    /// Bytes read; those before `written` have been passed on.
    buffer: Vec<u8>,
    written: usize,
    /// The source has closed its half, and the destination has been told.
    closed: bool,
}

impl<'a> Direction<'a> {
    fn new(from: &'a TcpStream, to: &'a TcpStream, buffer: Vec<u8>) -> Self {
        Self { from, to, buffer, written: 0, closed: false }
    }

    fn has_pending(&self) -> bool {
        self.written < self.buffer.len()
    }

    /// What to wait for. Nothing once it is closed: a closed socket would always be ready.
    fn interest(&self) -> Option<(BorrowedFd<'a>, PollFlags)> {
        if self.has_pending() {
            return Some((self.to.as_fd(), PollFlags::OUT));
        }
        (!self.closed).then(|| (self.from.as_fd(), PollFlags::IN))
    }

    /// Moves what can be moved without blocking.
    fn advance(&mut self) -> io::Result<()> {
        if !self.has_pending() && !self.closed {
            self.buffer.resize(BUFFER, 0);
            let read = (&mut &*self.from).read(&mut self.buffer);
            self.buffer.truncate(*read.as_ref().unwrap_or(&0));
            self.written = 0;
            match read {
                Ok(0) => {
                    self.closed = true;
                    self.to.shutdown(Shutdown::Write)?;
                }
                Err(e) if !would_block(&e) => return Err(e),
                _ => {}
            }
        }
        while self.has_pending() {
            match (&mut &*self.to).write(&self.buffer[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(e) if would_block(&e) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
