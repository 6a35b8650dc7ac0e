//! Bytes from one socket to another and back, on one thread, until they end, rest too long or are stopped.
//!
//! Both sockets are non-blocking and every wait is one `poll` that the stop ends too. So a peer that reads nothing, or
//! sends nothing, holds up nobody but itself.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// Why a wait, and with it the connection, is over.
#[derive(Debug)]
pub enum Over {
    /// The proxy ends.
    Stopped,
    /// Nothing happened in time.
    Late,
    Broken(io::Error),
}

impl From<io::Error> for Over {
    fn from(e: io::Error) -> Self {
        Self::Broken(e)
    }
}

/// Waits until something of `watched` is ready. The end of `stop`, a pipe, ends every wait.
pub fn wait(stop: &OwnedFd, watched: &[(BorrowedFd<'_>, PollFlags)], until: Option<Instant>) -> Result<(), Over> {
    let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
    fds.extend(watched.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)));
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match poll(&mut fds, left.map(crate::sys::timespec).as_ref()) {
            Ok(_) if !fds[0].revents().is_empty() => return Err(Over::Stopped),
            Ok(0) if left.is_some_and(|left| left.is_zero()) => return Err(Over::Late),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(e) => return Err(Over::Broken(e.into())),
        }
    }
}

/// Whether an error of a non-blocking socket only means: not now.
pub fn is_not_now(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Where a flow of bytes ends.
#[derive(Debug)]
pub enum Framing {
    /// With the connection; the other side is told by closing its half.
    UntilClosed,
    /// After so many more bytes.
    Length(u64),
    /// Where its own marks say so.
    Chunked(Chunks),
}

impl Framing {
    pub fn chunked() -> Self {
        Self::Chunked(Chunks { place: Place::Size { digits: 0, size: 0 }, extra: 0 })
    }

    /// How many of `bytes` still belong to it. What follows is nobody's business.
    pub fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::UntilClosed => Ok(bytes.len()),
            Self::Length(left) => {
                let n = usize::try_from(*left).map_or(bytes.len(), |left| left.min(bytes.len()));
                *left -= n as u64;
                Ok(n)
            }
            Self::Chunked(chunks) => chunks.take(bytes),
        }
    }

    fn is_complete(&self) -> bool {
        match self {
            Self::UntilClosed => false,
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => matches!(chunks.place, Place::End),
        }
    }
}

/// A chunked body (RFC 9112, section 7.1) on its way through, byte by byte.
#[derive(Debug)]
pub struct Chunks {
    place: Place,
    /// Bytes of extensions and trailers so far: nobody needs many.
    extra: usize,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Size { digits: u8, size: u64 },
    Extension { size: u64 },
    SizeLineFeed { size: u64 },
    Data { left: u64 },
    DataReturn,
    DataLineFeed,
    TrailerStart,
    Trailer,
    TrailerLineFeed,
    LastLineFeed,
    End,
}

impl Chunks {
    const MOST_EXTRA: usize = 16 << 10;

    fn take(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut at = 0;
        while let (Some(&byte), false) = (bytes.get(at), matches!(self.place, Place::End)) {
            if let Place::Data { left } = self.place {
                let rest = bytes.len() - at;
                let n = usize::try_from(left).map_or(rest, |left| left.min(rest));
                let left = left - n as u64;
                self.place = if left == 0 { Place::DataReturn } else { Place::Data { left } };
                at += n;
                continue;
            }
            self.place = self.after(byte).ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "a bad chunk"))?;
            at += 1;
        }
        Ok(at)
    }

    fn after(&mut self, byte: u8) -> Option<Place> {
        let is_text = byte == b'\t' || !byte.is_ascii_control();
        if matches!(self.place, Place::Extension { .. } | Place::TrailerStart | Place::Trailer) {
            self.extra += 1;
        }
        if self.extra > Self::MOST_EXTRA {
            return None;
        }
        match (self.place, byte) {
            // Fifteen digits are a million terabytes, and cannot overflow.
            (Place::Size { digits, size }, b) if b.is_ascii_hexdigit() && digits < 15 => {
                let digit = char::from(b).to_digit(16)?;
                Some(Place::Size { digits: digits + 1, size: size * 16 + u64::from(digit) })
            }
            (Place::Size { digits: 1.., size }, b';') => Some(Place::Extension { size }),
            (Place::Extension { size }, _) if is_text => Some(Place::Extension { size }),
            (Place::Size { digits: 1.., size } | Place::Extension { size }, b'\r') => {
                Some(Place::SizeLineFeed { size })
            }
            (Place::SizeLineFeed { size: 0 }, b'\n') => Some(Place::TrailerStart),
            (Place::SizeLineFeed { size }, b'\n') => Some(Place::Data { left: size }),
            (Place::DataReturn, b'\r') => Some(Place::DataLineFeed),
            (Place::DataLineFeed, b'\n') => Some(Place::Size { digits: 0, size: 0 }),
            (Place::TrailerStart, b'\r') => Some(Place::LastLineFeed),
            (Place::Trailer, b'\r') => Some(Place::TrailerLineFeed),
            (Place::TrailerStart | Place::Trailer, _) if is_text => Some(Place::Trailer),
            (Place::TrailerLineFeed, b'\n') => Some(Place::TrailerStart),
            (Place::LastLineFeed, b'\n') => Some(Place::End),
            _ => None,
        }
    }
}

/// The most bytes one direction holds between its two sockets.
const HELD: usize = 16 << 10;

/// One direction.
pub struct Lane<'a> {
    from: &'a TcpStream,
    to: &'a TcpStream,
    framing: Framing,
    /// Read and not yet written, from `at` on.
    held: Vec<u8>,
    at: usize,
    /// Nothing more will be read.
    ended: bool,
    /// Bytes that were read and passed on.
    pub passed: u64,
}

impl<'a> Lane<'a> {
    /// A direction in which `first` goes ahead of what is read.
    pub fn new(from: &'a TcpStream, to: &'a TcpStream, framing: Framing, first: Vec<u8>) -> Self {
        Self { from, to, ended: framing.is_complete(), framing, held: first, at: 0, passed: 0 }
    }

    fn is_flushed(&self) -> bool {
        self.at == self.held.len()
    }

    fn is_done(&self) -> bool {
        self.ended && self.is_flushed()
    }

    /// Gives up: nothing more is read or written.
    fn abandon(&mut self) {
        self.ended = true;
        self.at = self.held.len();
    }

    /// What to wait for. A socket with nothing to wait for must not be polled: once closed it would be ready for ever.
    fn interest(&self) -> Option<(BorrowedFd<'a>, PollFlags)> {
        if !self.is_flushed() {
            return Some((self.to.as_fd(), PollFlags::OUT));
        }
        (!self.ended).then(|| (self.from.as_fd(), PollFlags::IN))
    }

    /// Moves what can be moved at once.
    fn step(&mut self) -> io::Result<()> {
        if self.is_flushed() && !self.ended {
            self.fill()?;
        }
        while !self.is_flushed() {
            match (&mut &*self.to).write(&self.held[self.at..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.at += n,
                Err(e) if is_not_now(&e) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn fill(&mut self) -> io::Result<()> {
        self.held.resize(HELD, 0);
        let read = (&mut &*self.from).read(&mut self.held);
        // Until it is known what was read there is nothing to write.
        self.at = self.held.len();
        match read {
            Ok(0) if matches!(self.framing, Framing::UntilClosed) => {
                self.ended = true;
                Ok(())
            }
            Ok(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the body broke off")),
            Ok(n) => {
                let n = self.framing.take(&self.held[..n])?;
                self.held.truncate(n);
                self.at = 0;
                self.passed += n as u64;
                self.ended = self.framing.is_complete();
                Ok(())
            }
            Err(e) if is_not_now(&e) => Ok(()),
            Err(e) => Err(e),
        }
    }
}

/// Carries bytes both ways until both directions have ended. The end of one is passed on as the end of that half.
pub fn tunnel<'a>(stop: &OwnedFd, up: &mut Lane<'a>, down: &mut Lane<'a>, idle: Duration) -> Result<(), Over> {
    let mut told = [false; 2];
    loop {
        for (lane, told) in [&mut *up, &mut *down].into_iter().zip(&mut told) {
            lane.step()?;
            if lane.is_done() && !*told {
                *told = true;
                lane.to.shutdown(Shutdown::Write)?;
            }
        }
        if up.is_done() && down.is_done() {
            return Ok(());
        }
        rest(stop, up, down, idle)?;
    }
}

/// Carries one request up and its answer down, until the answer has ended: a server may answer, and close, before it has
/// read the whole body.
pub fn exchange(stop: &OwnedFd, up: &mut Lane<'_>, down: &mut Lane<'_>, idle: Duration) -> Result<(), Over> {
    loop {
        match up.step() {
            Err(e) if matches!(e.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => return Err(e.into()),
            Err(_) => up.abandon(),
            Ok(()) => {}
        }
        down.step()?;
        if down.is_done() {
            return Ok(());
        }
        rest(stop, up, down, idle)?;
    }
}

fn rest(stop: &OwnedFd, up: &Lane<'_>, down: &Lane<'_>, idle: Duration) -> Result<(), Over> {
    let watched: Vec<_> = up.interest().into_iter().chain(down.interest()).collect();
    wait(stop, &watched, Instant::now().checked_add(idle))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What of `text` is body, when it arrives in pieces of `size`.
    fn body(text: &str, size: usize) -> io::Result<usize> {
        let mut framing = Framing::chunked();
        let mut taken = 0;
        for piece in text.as_bytes().chunks(size) {
            taken += framing.take(piece)?;
            if framing.is_complete() {
                return Ok(taken);
            }
        }
        Err(ErrorKind::UnexpectedEof.into())
    }

    #[test]
    fn a_chunked_body_ends_where_it_says_however_it_arrives() {
        let bodies = [
            "0\r\n\r\n",
            "000\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "A\r\n0\r\n\r\n0\r\n\r\n\r\n1;x=\"y\"\r\nz\r\n0\r\nTrailer: a\r\nOther: b\r\n\r\n",
        ];
        for text in bodies {
            let sent = format!("{text}GET http://other/ HTTP/1.1\r\n");
            for size in 1..sent.len() {
                assert_eq!(body(&sent, size).unwrap(), text.len(), "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_bad_chunk_is_seen_however_it_arrives() {
        let bad = [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\nab",
            "0x1\r\na\r\n0\r\n\r\n",
            " 1\r\na\r\n0\r\n\r\n",
            "1 \r\na\r\n0\r\n\r\n",
            ";x\r\n\r\n",
            "1\na\n0\n\n",
            "1\r\na\n0\r\n\r\n",
            "1\r\nab\r\n0\r\n\r\n",
            "1;a\nb\r\na\r\n0\r\n\r\n",
            "1;\0\r\na\r\n0\r\n\r\n",
            "1\rX",
            "0\r\nA: b\n\r\n",
            "0\r\nA: b\rX",
            "0\r\n\rX",
            "1000000000000000\r\n",
            "ffffffffffffffffff\r\n",
        ];
        for text in bad {
            for size in 1..=text.len() {
                assert_eq!(
                    body(text, size).unwrap_err().kind(),
                    ErrorKind::InvalidData,
                    "{text:?} in pieces of {size}"
                );
            }
        }
        let long = "a".repeat(Chunks::MOST_EXTRA);
        assert!(body(&format!("0\r\nA: {long}\r\n\r\n"), 1000).is_err());
        assert!(body(&format!("0;{long}a\r\n\r\n"), 1000).is_err());
    }

    #[test]
    fn a_body_of_known_length_ends_with_its_last_byte() {
        let mut framing = Framing::Length(5);
        assert_eq!((framing.take(b"abc").unwrap(), framing.is_complete()), (3, false));
        assert_eq!((framing.take(b"defg").unwrap(), framing.is_complete()), (2, true));
        assert_eq!(framing.take(b"more").unwrap(), 0);
    }
}
