//! Connects the sandbox's listener with the proxy outside.
//!
//! A socket remains in the network namespace that created it, even in another process. The sandbox's first process binds a
//! listener on the sandbox's loopback and sends it to its caller, along with a message, before it receives the job.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::error::Result;

/// Port of the proxy on the sandbox's loopback.
const PORT: u16 = 3128;

/// Returns the environment variables that programs read the proxy from.
pub(crate) fn environment() -> Vec<(&'static str, String)> {
    let proxy = format!("http://127.0.0.1:{PORT}");
    let names = [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ];
    let local = "localhost,127.0.0.1,::1".to_owned();
    let mut variables: Vec<_> = names
        .into_iter()
        .map(|name| (name, proxy.clone()))
        .collect();
    variables.extend([("no_proxy", local.clone()), ("NO_PROXY", local)]);
    variables
}

/// Reads from a worker's socket, and takes a descriptor that was sent along.
pub(crate) fn receive(
    socket: &UnixStream,
    buf: &mut [u8],
    found: &mut Option<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(buf)];
    let received = recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            *found = fds.next();
        }
    }
    Ok(received.bytes)
}

/// Binds the listener in the sandbox and sends it to `caller` with this message.
pub(crate) fn send(caller: BorrowedFd, message: &[u8]) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", PORT))?;
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor").into());
    }
    let sent = sendmsg(
        caller,
        &[IoSlice::new(message)],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    if sent < message.len() {
        return Err(io::Error::other("no room for a message").into());
    }
    Ok(())
}
