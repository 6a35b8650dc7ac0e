//! Holds a lease on a file, so that the kernel makes whoever opens it wait.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

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
    // SAFETY: it takes integers.
    let taken = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    assert_eq!(taken, 0, "{}", io::Error::last_os_error());
    file
}
