//! Systems that offer less than this one: mechanisms are taken away by a filter of system calls that the program is born
//! with. The program itself has no switch for that.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

/// A system call, and the error it fails with; 0 to pretend that it was done.
pub type Withheld = (libc::c_long, libc::c_int);

/// Namespaces, as a container's default profile withholds them.
pub const NAMESPACES: Withheld = (libc::SYS_unshare, libc::EPERM);
/// Landlock, as a kernel that was built without it does.
pub const LANDLOCK: Withheld = (libc::SYS_landlock_create_ruleset, libc::ENOSYS);
/// A jail that is made of promises: every step into it is said to be done, and none is.
pub const ANYTHING_THAT_HOLDS: &[Withheld] = &[
    NAMESPACES,
    (libc::SYS_landlock_restrict_self, 0),
    (libc::SYS_seccomp, 0),
    (libc::SYS_prctl, 0),
    (libc::SYS_capset, 0),
];

/// Has `command` start without these.
pub fn withhold(command: &mut Command, withheld: &[Withheld]) {
    if withheld.is_empty() {
        return;
    }
    let op = |code: u32, k: u32, jf: u8| sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf, k };
    // The number of the call is the first word. The program under test makes no calls of another architecture.
    let mut program = vec![op(BPF_LD | BPF_W | BPF_ABS, 0, 0)];
    for (call, errno) in withheld {
        program.push(op(BPF_JMP | BPF_JEQ | BPF_K, u32::try_from(*call).unwrap(), 1));
        program.push(op(BPF_RET | BPF_K, libc::SECCOMP_RET_ERRNO | u32::try_from(*errno).unwrap(), 0));
    }
    program.push(op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    let length = u16::try_from(program.len()).unwrap();
    let start = move || {
        let filter = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
        // SAFETY: two system calls and no allocation, as is right between fork and exec. The kernel copies the program,
        // which lives through the call.
        unsafe {
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: as said there.
    unsafe { command.pre_exec(start) };
}
