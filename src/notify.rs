//! Signals a running gateway that a file has changed, such as a new job or a message to send.
//!
//! The signal is a datagram to the socket `state/notify`, which only the owner of the home can access; its content does not
//! matter. A lost signal causes a delay: the gateway looks for changes at least every two minutes.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;

use crate::error::{Context, Kind, Result};
use crate::paths::Home;
use crate::storage::{self, Lock};

const NAME: &str = "notify";
/// Size of `sun_path` in `unix(7)`, including the byte that ends the path.
const MAX_PATH: usize = 108;

/// Calls `action` with the socket's path, through its directory's descriptor if the path is too long for an address.
fn with_path<T>(home: &Home, action: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    let path = home.state().join(NAME);
    if path.as_os_str().len() < MAX_PATH {
        return action(&path);
    }
    let state = fs_err::File::open(home.state())?;
    action(Path::new(&format!(
        "/proc/self/fd/{}/{NAME}",
        state.as_raw_fd()
    )))
}

/// Creates the socket, replacing the socket of a killed gateway. The caller must hold the gateway's lock.
pub(crate) fn bind(home: &Home) -> Result<UnixDatagram> {
    storage::make_dir(&home.state())?;
    close(home)?;
    with_path(home, |path| UnixDatagram::bind(path)).doing("creating state/notify")
}

/// Waits for a signal, or until the time is over.
pub(crate) fn wait(socket: &UnixDatagram, most: Duration) -> io::Result<()> {
    socket.set_read_timeout(Some(most))?;
    // The only errors are the end of the time, and an interruption.
    let _waited = socket.recv(&mut [0; 1]);
    Ok(())
}

/// Removes the socket.
pub(crate) fn close(home: &Home) -> Result<()> {
    storage::remove(&home.state().join(NAME))
}

/// Whether a gateway of this home is running, judging by its lock. Does not create files.
pub(crate) fn is_running(home: &Home) -> bool {
    let lock = home.lock("gateway");
    let held = || Lock::acquire(&lock, Duration::ZERO);
    lock.exists() && held().is_err_and(|e| e.kind == Kind::Busy)
}

/// Signals the gateway, if one is running.
pub(crate) fn signal(home: &Home) {
    let send = || -> io::Result<usize> {
        let socket = UnixDatagram::unbound()?;
        // If the socket is full, signals are already pending.
        socket.set_nonblocking(true)?;
        with_path(home, |path| socket.send_to(b"!", path))
    };
    drop(send());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use std::time::Instant;

    #[test]
    fn a_signal_arrives_also_after_a_killed_gateway_and_never_blocks() {
        for below in ["home".to_owned(), "a-long-name-".repeat(12)] {
            let dir = TestDir::new();
            let home = Home::new(dir.join(below));
            signal(&home);
            let killed = bind(&home).unwrap();
            let listener = bind(&home).unwrap();
            for _ in 0..5000 {
                signal(&home);
            }
            let begun = Instant::now();
            wait(&listener, Duration::from_secs(60)).unwrap();
            assert!(begun.elapsed() < Duration::from_secs(30));
            close(&home).unwrap();
            drop((killed, listener));
            assert!(!home.state().join(NAME).exists());
            signal(&home);
        }
    }
}
