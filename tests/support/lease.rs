//! Holds a lease on a file, so that the kernel makes whoever opens it wait.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use super::harness::until;

/// The lease ends when this is dropped.
pub fn lease(path: &Path) -> File {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    // The kernel asks for the lease by a signal that would end this process.
    // SAFETY: it sets no handler.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    // A process that another test has just forked has the file open until it becomes a program.
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
