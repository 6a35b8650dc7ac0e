//! Withholds features from the program: system calls, like an old kernel or a container's filter, or the privileges of root.
//! The program itself has no switch for that.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::{io, thread};

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// A system call and its error; 0 to report success without an effect.
pub type Withheld = (libc::c_long, libc::c_int);

/// Namespaces, as withheld by a container's default profile.
pub const NAMESPACES: Withheld = (libc::SYS_unshare, libc::EPERM);
/// Landlock, as in a kernel built without it.
pub const LANDLOCK: Withheld = (libc::SYS_landlock_create_ruleset, libc::ENOSYS);
/// Sending descriptors fails, as when too many of this user's descriptors are in flight, which a command can cause.
pub const DESCRIPTORS: Withheld = (libc::SYS_sendmsg, libc::ETOOMANYREFS);
/// Every step into the sandbox reports success without an effect.
pub const ANYTHING_THAT_HOLDS: &[Withheld] = &[
    NAMESPACES,
    (libc::SYS_landlock_restrict_self, 0),
    (libc::SYS_seccomp, 0),
    (libc::SYS_prctl, 0),
    (libc::SYS_capset, 0),
];

/// Starts `command` without these system calls.
pub fn withhold(command: &mut Command, withheld: &[Withheld]) {
    if withheld.is_empty() {
        return;
    }
    let filter = failing(withheld);
    // SAFETY: `install` only makes system calls and does not allocate, as required between fork and exec.
    unsafe { command.pre_exec(move || install(&filter)) };
}

/// Runs `work` on a thread where `openat2` does not exist, also for its children.
#[track_caller]
pub fn openat2<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    on_thread(|| {
        install(&failing(&[(libc::SYS_openat2, libc::ENOSYS)])).unwrap();
        let tried =
            rustix::fs::openat2(CWD, ".", OFlags::PATH, Mode::empty(), ResolveFlags::BENEATH);
        assert_eq!(tried.err(), Some(Errno::NOSYS), "the filter does not hold");
        work()
    })
}

/// Runs `work` on a thread whose children have no capabilities, so that file modes also apply to root.
#[track_caller]
pub fn privileges<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    on_thread(|| {
        for capability in 0..64 {
            // SAFETY: it takes integers. It fails without effect for a capability that is unknown or already dropped.
            unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
        }
        work()
    })
}

#[track_caller]
fn on_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn failing(withheld: &[Withheld]) -> Vec<sock_filter> {
    let action = |errno: libc::c_int| libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap();
    filter(withheld.iter().map(|(call, errno)| (*call, action(*errno))))
}

/// Returns a filter that answers each call with its action and allows all others.
pub fn filter(actions: impl IntoIterator<Item = (libc::c_long, u32)>) -> Vec<sock_filter> {
    let op = |code: u32, k: u32, jf: u8| sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf,
        k,
    };
    // The call's number is the first word. The program under test makes no calls of another architecture.
    let mut program = vec![op(BPF_LD | BPF_W | BPF_ABS, 0, 0)];
    for (call, action) in actions {
        program.push(op(
            BPF_JMP | BPF_JEQ | BPF_K,
            u32::try_from(call).unwrap(),
            1,
        ));
        program.push(op(BPF_RET | BPF_K, action, 0));
    }
    program.push(op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    program
}

/// Filters the calls of this thread and of all its children.
fn install(program: &[sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    let filter = libc::sock_fprog {
        len: length,
        filter: program.as_ptr().cast_mut(),
    };
    // SAFETY: the kernel copies the program, which lives through the calls.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const filter,
            ) != 0
    };
    if failed {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
