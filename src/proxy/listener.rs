//! Workers the sandbox's listener to the proxy outside.
//!
//! A socket stays in the network namespace it was created in, whoever holds it. The first process of the sandbox binds a
//! listener on the sandbox's own loopback and sends it to its caller before the job is known.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::Proxy;
use crate::error::{Context, Error, Result};
use crate::ssrf::AddressGuard;

/// The proxy's port on the sandbox's loopback.
const PORT: u16 = 3128;

/// How long the sandbox may take to send its listener.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The variables by which programs find the proxy.
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

/// The caller's end of the socket pair whose other end is the sandbox's standard error.
pub(crate) struct Receiver(UnixStream);

pub(crate) fn pair() -> Result<(Receiver, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair().doing("making the sandbox's socket pair")?;
    ours.set_read_timeout(Some(TIMEOUT))?;
    Ok((Receiver(ours), theirs.into()))
}

impl Receiver {
    /// Waits for the listener and serves it. `None` when the sandbox ended without sending one: its reply says why.
    pub(crate) fn start_proxy(self, guard: &AddressGuard) -> Result<Option<Proxy>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let received = recvmsg(
            self.0.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
        .doing("waiting for the sandbox's listener")?;
        if received.bytes == 0 {
            return Ok(None);
        }
        let listener = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let listener = listener.ok_or_else(|| Error::failed("the sandbox sent no listener"))?;
        Proxy::start(TcpListener::from(listener), guard.clone()).map(Some)
    }
}

/// Binds the listener inside the sandbox and sends it to `caller`.
pub(crate) fn send(caller: BorrowedFd) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", PORT))?;
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor").into());
    }
    sendmsg(
        caller,
        &[IoSlice::new(b"l")],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    Ok(())
}
