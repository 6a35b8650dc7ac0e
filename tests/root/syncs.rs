//! Counts how often a program waits for the disk.

use super::seccomp_trace::{Verdict, trace};

/// All system calls that wait until data is on the disk.
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

/// Runs `work`, and returns its result and the number of such calls by it and its processes.
pub fn counted<T: Send>(work: impl FnOnce() -> T + Send) -> (T, usize) {
    let mut count = 0;
    let done = trace(&CALLS, work, |_| {
        count += 1;
        Verdict::GoOn
    });
    (done, count)
}
