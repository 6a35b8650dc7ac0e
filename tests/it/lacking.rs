//! Takes something away that the program would otherwise have: a system call, as an old kernel or a container's filter
//! does, or the privileges of root.
#![allow(unsafe_code)]

use std::thread;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Runs `work` on a thread, and with children, for which there is no `openat2`.
#[track_caller]
pub fn openat2<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let run = || {
        forbid(libc::SYS_openat2);
        let tried = rustix::fs::openat2(CWD, ".", OFlags::PATH, Mode::empty(), ResolveFlags::BENEATH);
        assert_eq!(tried.err(), Some(Errno::NOSYS), "the filter does not hold");
        work()
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs `work` on a thread whose children have no capabilities, so that root, too, is held by the modes of files.
#[track_caller]
pub fn privileges<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let run = || {
        for capability in 0..64 {
            // SAFETY: it takes integers. Who has nothing to lose is told EPERM, and of what does not exist EINVAL.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        work()
    };
    thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// From now on the call fails with ENOSYS, for this thread and what it starts.
fn forbid(number: libc::c_long) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf: 0, k };
    let answer = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::ENOSYS).unwrap();
    let number = u32::try_from(number).unwrap();
    let mut program = [
        // The number is the first field of what a filter is shown.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number) },
        statement(libc::BPF_RET | libc::BPF_K, answer),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: u16::try_from(program.len()).unwrap(), filter: program.as_mut_ptr() };
    // SAFETY: the program outlives the calls, and the kernel copies it.
    let (privileges, filter) = unsafe {
        (
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0),
        )
    };
    assert_eq!((privileges, filter), (0, 0), "{}", std::io::Error::last_os_error());
}
