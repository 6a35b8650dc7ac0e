//! Takes a lease on a file, so that the kernel delays other processes that open it.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::harness::until;

/// Takes a lease that ends when the file is dropped.
pub fn lease(path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    // The kernel requests the lease back by a signal that would end this process.
    // SAFETY: it sets no handler.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    // A process just forked by another test has the file open until it executes.
    until("nobody else has the file open", || {
        // SAFETY: it takes integers.
        let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        let error = io::Error::last_os_error();
        assert!(
            taken == 0 || error.raw_os_error() == Some(libc::EAGAIN),
            "{error}"
        );
        taken == 0
    });
    file
}
