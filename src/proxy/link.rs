//! The way out of a jail with a guarded network: the jail's listener, handed over to a proxy outside.
//!
//! A socket stays in the network it was made in, whoever holds it. So the first process of the jail makes a listener on
//! the jail's own loopback and sends it to its caller, who serves it with its own connections to the world. It does so
//! before the job is known.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::Proxy;
use crate::error::{Context, Error, Result};
use crate::guard::Guard;

/// The port of the proxy on the jail's own loopback.
pub const PORT: u16 = 3128;

/// The variables by which programs find a proxy.
pub fn variables() -> Vec<(&'static str, String)> {
    let proxy = format!("http://127.0.0.1:{PORT}");
    let names = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let local = "localhost,127.0.0.1,::1".to_owned();
    let mut out: Vec<_> = names.into_iter().map(|name| (name, proxy.clone())).collect();
    out.extend([("no_proxy", local.clone()), ("NO_PROXY", local)]);
    out
}

/// How long the jail may take to hand its listener over: it does so before anything else.
const PATIENCE: Duration = Duration::from_secs(5);

/// The caller's end: made before the jail is started, whose standard error is the other end.
pub struct Caller(UnixStream);

pub fn pair() -> Result<(Caller, OwnedFd)> {
    let (ours, theirs) = UnixStream::pair().doing("making the jail's link")?;
    ours.set_read_timeout(Some(PATIENCE))?;
    Ok((Caller(ours), theirs.into()))
}

impl Caller {
    /// Waits for the jail's listener and serves it. `None` when the jail ended without sending one: its reply says why.
    pub fn serve(self, guard: &Guard) -> Result<Option<Proxy>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let received =
            recvmsg(self.0.as_fd(), &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
                .doing("waiting for the jail's listener")?;
        if received.bytes == 0 {
            return Ok(None);
        }
        let listener = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let listener = listener.ok_or_else(|| Error::failed("the jail sent no listener"))?;
        Proxy::start(TcpListener::from(listener), guard.clone()).map(Some)
    }
}

/// The jail's end: makes the listener and sends it to `caller`.
pub fn hand_over(caller: BorrowedFd) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", PORT))?;
    let fds = [listener.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor").into());
    }
    sendmsg(caller, &[IoSlice::new(b"l")], &mut ancillary, SendFlags::empty())?;
    Ok(())
}
