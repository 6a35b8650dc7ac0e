//! How often a program waits for the disk.

use super::seccomp_trace::{Verdict, trace};

/// Every system call that waits until something is on the disk.
const CALLS: [libc::c_long; 6] = [
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    #[cfg(not(target_arch = "arm"))]
    libc::SYS_sync_file_range,
    #[cfg(target_arch = "arm")]
    libc::SYS_arm_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_sync,
    libc::SYS_msync,
];

/// Does `work`, and tells what came of it and how many such calls it and every process that it started made.
pub fn counted<T: Send>(work: impl FnOnce() -> T + Send) -> (T, usize) {
    let mut count = 0;
    let done = trace(&CALLS, work, |_| {
        count += 1;
        Verdict::GoOn
    });
    (done, count)
}
