//! Tells a running gateway that something on disk has changed: a job, a message to be sent.
//!
//! A datagram to the socket `state/bell`, which nobody but the home's owner can reach. What is in it does not matter. One that
//! nobody hears costs time: the gateway looks for jobs by itself once an hour, and for messages when it sends the next one.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use crate::disk;
use crate::error::{Context, Result};
use crate::paths::Home;

const NAME: &str = "bell";
/// The bytes of `sun_path` in `unix(7)`, of which one ends the path.
const LONGEST_PATH: usize = 108;
/// Rings that are taken at once. More than wait in a socket, and not without end.
const MOST_RINGS: usize = 1000;

/// The bell of a home.
pub struct Listener(UnixDatagram);

/// Does something with the socket's path, by way of its directory when it is too long for an address.
fn at<T>(home: &Home, what: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let path = home.state().join(NAME);
    if path.as_os_str().len() < LONGEST_PATH {
        return what(&path);
    }
    let state = fs_err::File::open(home.state())?;
    what(Path::new(&format!("/proc/self/fd/{}/{NAME}", state.as_raw_fd())))
}

/// Hangs up the bell of a home, to be listened to. Only the gateway does, under its lock: one that was killed has left its
/// own, and that is replaced.
pub fn bind(home: &Home) -> Result<Listener> {
    let path = home.state().join(NAME);
    disk::make_dir(&home.state())?;
    disk::remove(&path)?;
    let socket = at(home, |path| UnixDatagram::bind(path)).doing("making state/bell")?;
    Ok(Listener(socket))
}

impl Listener {
    /// Waits until it has been rung since the last time, however often.
    pub fn wait(&self) -> io::Result<()> {
        let take = || self.0.recv(&mut [0; 1]);
        take()?;
        self.0.set_nonblocking(true)?;
        let mut rings = 1;
        while rings < MOST_RINGS && take().is_ok() {
            rings += 1;
        }
        self.0.set_nonblocking(false)
    }
}

/// Takes it down. It may be gone, and what is left is replaced by the next one.
pub fn close(home: &Home) {
    drop(disk::remove(&home.state().join(NAME)));
}

/// Rings it. Nobody may be there.
pub fn signal(home: &Home) {
    let send = || -> io::Result<usize> {
        let socket = UnixDatagram::unbound()?;
        // Where so many rings wait that there is no room for one more, it will be heard.
        socket.set_nonblocking(true)?;
        at(home, |path| socket.send_to(b"!", path))
    };
    drop(send());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_is_heard_once_for_many_rings_and_replaces_what_a_killed_gateway_left() {
        for name in ["bell".to_owned(), "a-long-name-".repeat(12)] {
            let root = std::env::temp_dir().join(format!("bantam-{name}-{}", std::process::id()));
            let home = Home::new(root.clone());
            signal(&home);
            let left = bind(&home).unwrap();
            let bell = bind(&home).unwrap();
            bell.0.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            for _ in 0..5000 {
                signal(&home);
            }
            bell.wait().unwrap();
            bell.0.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            assert_eq!(bell.wait().unwrap_err().kind(), io::ErrorKind::WouldBlock);
            bell.0.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            signal(&home);
            bell.wait().unwrap();
            close(&home);
            drop((left, bell));
            assert!(!home.state().join(NAME).exists());
            signal(&home);
            fs_err::remove_dir_all(root).unwrap();
        }
    }
}
