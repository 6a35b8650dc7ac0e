//! The seccomp filter of system calls.
//!
//! A list of what is allowed, for all modes, and rules about the arguments of some of it. Whatever else there is, and
//! whatever kernels are yet to add, does not exist in a sandbox. It is written for the architecture of this build, and kills a
//! process that calls in the manner of another one, which has other numbers for the same calls.
//!
//! The crate seccompiler was weighed and left: it saves about 40 lines, and has one errno for each filter where five are
//! needed.

mod allowed;
mod program;
#[cfg(test)]
pub(super) mod tests;

use std::io;

use libc::{c_long, sock_filter};

use crate::sys;
use program::{Condition, Rule, bits, has_any, is, is_not, low_half, program};

/// The layers beside the filter, which decide what it must refuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterContext {
    /// No namespaces: files are protected when they are opened, and in no other way.
    pub landlock_alone: bool,
    /// The families of sockets: [`ALL_FAMILIES`] or fewer.
    pub families: &'static [u32],
    /// As whom the command runs: root owns the system's files.
    pub user: u32,
    /// Landlock or a pid namespace confines signals.
    pub signals_confined: bool,
}

/// Applies the filter to this process and what it starts.
pub(super) fn enter(context: FilterContext) -> io::Result<()> {
    sys::apply_seccomp_filter(&mut filter(context))
}

fn filter(context: FilterContext) -> Vec<sock_filter> {
    let mut allowed = [allowed::EVERYWHERE, allowed::HERE].concat();
    program(&Rules::new(context).0, Some(&mut allowed))
}

/// What only this program may use, refused to a command on top: `openat2`, because a filter cannot see the mode of the file
/// it creates; `fallocate`, which takes a disk's space faster than anybody looks; and signals to others where nothing else
/// confines them. Programs fall back to `openat` and to writing.
pub(super) fn for_command(context: FilterContext) -> Vec<sock_filter> {
    let mut rules = Rules(Vec::new());
    rules.refuse(libc::SYS_openat2, &[], libc::ENOSYS);
    rules.refuse(libc::SYS_fallocate, &[], libc::EOPNOTSUPP);
    if !context.signals_confined {
        rules.signals();
    }
    if context.landlock_alone {
        rules.changes_of_what_is_only_readable(context.user == 0);
    }
    program(&rules.0, None)
}

const EPERM: i32 = libc::EPERM;

/// Calls that change a file by its path, which Landlock does not restrict.
const BY_PATH: &[c_long] = &[
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    // fchmodat2 (Linux 6.6), without a name in libc.
    452,
];
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
const BY_PATH_HERE: &[c_long] = &[];
#[cfg(target_arch = "arm")]
const BY_PATH_HERE: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    198,
    212,
    libc::SYS_utimes,
    libc::SYS_futimesat,
]; // lchown32, chown32
#[cfg(target_arch = "x86_64")]
const BY_PATH_HERE: &[c_long] = &[
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
];

/// The set-user-ID and set-group-ID bits.
const SET_ID: u32 = 0o6000;
/// `O_CREAT` and `O_TMPFILE` (without its `O_DIRECTORY` bit). Without these flags the kernel ignores the mode.
const MAKES_FILE: u32 = bits(libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY));
/// Calls that set a mode, and its argument. 452 is fchmodat2.
const MODES: &[(c_long, u32)] = &[
    (libc::SYS_fchmod, 1),
    (libc::SYS_fchmodat, 2),
    (452, 2),
    (libc::SYS_mknodat, 2),
];
#[cfg(any(target_arch = "aarch64", target_arch = "riscv64"))]
const MODES_HERE: &[(c_long, u32)] = &[];
#[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
const MODES_HERE: &[(c_long, u32)] = &[
    (libc::SYS_chmod, 1),
    (libc::SYS_creat, 1),
    (libc::SYS_mknod, 1),
];

/// System V IPC, which all processes of the host share.
const SYSTEM_V_IPC: &[c_long] = &[
    libc::SYS_msgctl,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_semctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_shmget,
];

/// Calls that read attributes of a file by its path.
const ATTRIBUTES_BY_PATH: &[c_long] = &[
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
];

/// Calls that can signal a process by its number.
const SIGNALS: &[c_long] = &[
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
];
/// The flags of `clone` that make a namespace.
const NEW_NAMESPACES: u32 = bits(
    libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET,
);

const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;
const MSG_FASTOPEN: u32 = bits(libc::MSG_FASTOPEN);
const DEVICES: [u32; 2] = [libc::S_IFCHR, libc::S_IFBLK];
/// The type of a socket, without its flags.
const TYPE_MASK: u32 = 0xF;
const ALL_BITS: u32 = u32::MAX;

const UNIX: u32 = bits(libc::AF_UNIX);
const INET: u32 = bits(libc::AF_INET);
const INET6: u32 = bits(libc::AF_INET6);
const NETLINK: u32 = bits(libc::AF_NETLINK);

pub(super) const ALL_FAMILIES: &[u32] = &[UNIX, INET, INET6, NETLINK];
/// Without those that have a path: no layer but this one keeps a command from what listens where it can look.
pub(super) const INTERNET: &[u32] = &[INET, INET6, NETLINK];

struct Rules(Vec<Rule>);

impl Rules {
    fn new(context: FilterContext) -> Self {
        let mut rules = Self(Vec::new());
        rules.common();
        rules.sockets(context);
        if context.landlock_alone {
            rules.unrestricted_by_landlock();
        }
        rules
    }

    fn refuse(&mut self, call: c_long, conditions: &[Condition], errno: i32) {
        self.0.push(Rule {
            call,
            conditions: conditions.to_vec(),
            errno,
        });
    }

    fn refuse_all<'a>(&mut self, calls: impl IntoIterator<Item = &'a c_long>, errno: i32) {
        for call in calls {
            self.refuse(*call, &[], errno);
        }
    }

    /// Refuses the call unless the argument is one of the values.
    fn require(&mut self, call: c_long, argument: u32, mask: u32, values: &[u32], errno: i32) {
        let conditions: Vec<_> = values
            .iter()
            .map(|value| is_not(argument, mask, *value))
            .collect();
        self.refuse(call, &conditions, errno);
    }

    fn require_zero(&mut self, call: c_long, argument: u32) {
        for offset in [low_half(argument), low_half(argument) + 4] {
            self.refuse(
                call,
                &[Condition {
                    offset,
                    mask: ALL_BITS,
                    value: 0,
                    is_equal: false,
                }],
                EPERM,
            );
        }
    }

    fn common(&mut self) {
        self.refuse(libc::SYS_clone, &[has_any(0, NEW_NAMESPACES)], EPERM);
        self.require(libc::SYS_ioctl, 1, ALL_BITS, allowed::IOCTLS, libc::ENOTTY);
        self.require(libc::SYS_fcntl, 1, ALL_BITS, allowed::FCNTLS, libc::EINVAL);
        #[cfg(target_arch = "arm")]
        self.require(
            libc::SYS_fcntl64,
            1,
            ALL_BITS,
            allowed::FCNTLS,
            libc::EINVAL,
        );
        for device in DEVICES {
            self.refuse(libc::SYS_mknodat, &[is(2, libc::S_IFMT, device)], EPERM);
            #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
            self.refuse(libc::SYS_mknod, &[is(1, libc::S_IFMT, device)], EPERM);
        }
        // A program left behind must not give its user's rights to whoever starts it outside.
        for (call, mode) in MODES.iter().chain(MODES_HERE) {
            self.refuse(*call, &[has_any(*mode, SET_ID)], EPERM);
        }
        self.refuse(
            libc::SYS_openat,
            &[has_any(2, MAKES_FILE), has_any(3, SET_ID)],
            EPERM,
        );
        #[cfg(any(target_arch = "x86_64", target_arch = "arm"))]
        self.refuse(
            libc::SYS_open,
            &[has_any(1, MAKES_FILE), has_any(2, SET_ID)],
            EPERM,
        );
        // Limits and priorities of other processes.
        self.require_zero(libc::SYS_prlimit64, 0);
        self.require_zero(libc::SYS_setpriority, 1);
        self.require_zero(libc::SYS_ioprio_set, 1);
        // Zero is the caller as a process, and as a user everything that is the user's.
        self.require(libc::SYS_setpriority, 0, ALL_BITS, &[PRIO_PROCESS], EPERM);
        self.require(
            libc::SYS_ioprio_set,
            0,
            ALL_BITS,
            &[IOPRIO_WHO_PROCESS],
            EPERM,
        );
        self.require_zero(libc::SYS_sched_setaffinity, 0);
        self.require_zero(libc::SYS_sched_setattr, 0);
        self.require_zero(libc::SYS_sched_setparam, 0);
        self.require_zero(libc::SYS_sched_setscheduler, 0);
    }

    fn sockets(&mut self, context: FilterContext) {
        // TCP Fast Open connects without connect.
        self.refuse(libc::SYS_sendto, &[has_any(3, MSG_FASTOPEN)], EPERM);
        self.refuse(libc::SYS_sendmsg, &[has_any(2, MSG_FASTOPEN)], EPERM);
        self.refuse(libc::SYS_sendmmsg, &[has_any(3, MSG_FASTOPEN)], EPERM);
        self.require(
            libc::SYS_socket,
            0,
            ALL_BITS,
            context.families,
            libc::EAFNOSUPPORT,
        );
        // SOCK_RAW (3) serves netlink, which name look-ups use, as well as packets.
        self.require(
            libc::SYS_socket,
            1,
            TYPE_MASK,
            &[1, 2, 3, 5],
            libc::EAFNOSUPPORT,
        );
        // The default, TCP and UDP; not MPTCP, SCTP, ICMP or raw IP. Of netlink only routes, its protocol 0.
        self.require(
            libc::SYS_socket,
            2,
            ALL_BITS,
            &[0, 6, 17],
            libc::EPROTONOSUPPORT,
        );
        self.require(
            libc::SYS_socketpair,
            0,
            ALL_BITS,
            &[UNIX],
            libc::EAFNOSUPPORT,
        );
        if !context.families.contains(&UNIX) {
            // A datagram socket of a pair can send to any path; one of packets in sequence cannot, and Rust starts programs by it.
            let types = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(bits);
            self.require(
                libc::SYS_socketpair,
                1,
                TYPE_MASK,
                &types,
                libc::EAFNOSUPPORT,
            );
        }
    }

    fn unrestricted_by_landlock(&mut self) {
        self.refuse_all(BY_PATH.iter().chain(BY_PATH_HERE), EPERM);
        // With a path it changes any file; without one it takes a descriptor, which Landlock had to allow.
        self.require_zero(libc::SYS_utimensat, 1);
        // utimensat of 64-bit time, from the table above.
        #[cfg(target_arch = "arm")]
        self.require_zero(412, 1);
        self.refuse_all(SYSTEM_V_IPC, libc::ENOSYS);
        // Programs take this error for "no attributes".
        self.refuse_all(ATTRIBUTES_BY_PATH, libc::EOPNOTSUPP);
        self.refuse(libc::SYS_inotify_add_watch, &[], libc::ENOSYS);
    }

    /// What may be read can be opened, and to its owner a descriptor is enough for these. A user's modes and times may
    /// change, because much depends on that, but the owner keeps the right to read; those of root's files may not.
    fn changes_of_what_is_only_readable(&mut self, is_root: bool) {
        if is_root {
            self.refuse(libc::SYS_fchmod, &[], EPERM);
            // Without times it is the present, which writing sets, too.
            self.require_zero(libc::SYS_utimensat, 2);
            #[cfg(target_arch = "arm")]
            self.require_zero(412, 2);
        }
        self.refuse(libc::SYS_fchmod, &[is(1, libc::S_IRUSR, 0)], EPERM);
        self.refuse(libc::SYS_fchown, &[], EPERM);
        #[cfg(target_arch = "arm")]
        self.refuse(libc::SYS_fchown32, &[], EPERM);
        self.refuse_all(
            &[libc::SYS_fsetxattr, libc::SYS_fremovexattr],
            libc::EOPNOTSUPP,
        );
    }

    fn signals(&mut self) {
        self.refuse_all(SIGNALS, EPERM);
        // Its own process group is inside.
        self.require_zero(libc::SYS_kill, 0);
    }
}
