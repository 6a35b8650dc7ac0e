//! Tells a running gateway that something on disk has changed: a job, a message to be sent.
//!
//! A datagram to a socket that has a name and no file, made from the home's path. What is in it does not matter. One that
//! nobody hears costs time: the gateway looks for jobs by itself once an hour, and for messages when it sends the next one.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::disk::crc32;
use crate::paths::Home;

fn address(home: &Home) -> io::Result<SocketAddr> {
    let root = home.root().canonicalize()?;
    let path = root.as_os_str().as_bytes();
    let turned: Vec<u8> = path.iter().rev().copied().collect();
    SocketAddr::from_abstract_name(format!("bantam-{:08x}{:08x}", crc32(path), crc32(&turned)))
}

/// Hangs up the bell of a home, to be listened to.
///
/// # Errors
/// Somebody else has, or the home is not there.
pub fn hang(home: &Home) -> io::Result<UnixDatagram> {
    UnixDatagram::bind_addr(&address(home)?)
}

/// Rings it. Nobody may be there.
pub fn ring(home: &Home) {
    let send = || -> io::Result<usize> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(b"!", &address(home)?)
    };
    drop(send());
}
