//! The seccomp filter of system calls.
//!
//! Consists of a list of allowed calls, for all confinements, and rules about their arguments. All other calls, including those
//! of future kernels, fail as if they did not exist. The filter is for the architecture of this build, and kills a process that
//! uses the calls of another architecture, whose numbers differ.
//!
//! The crate seccompiler is not used, because it would save only 40 lines and has one errno per filter instead of five.

mod allowed;
mod program;
#[cfg(test)]
pub(super) mod tests;

use std::io;

use libc::{c_long, sock_filter};

use crate::sys;
use program::{Condition, Rule, bits, has_any, is, is_not, low_half, program};

/// Properties of the other layers, which determine the calls that the filter must reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterContext {
    /// No namespaces: files are only protected when they are opened.
    pub landlock_alone: bool,
    /// Allowed socket families: [`ALL_FAMILIES`] or fewer.
    pub families: &'static [u32],
    /// UID that the command runs as. Root owns the system's files.
    pub user: u32,
    /// Whether Landlock or a pid namespace confines signals.
    pub signals_confined: bool,
}

/// Applies the filter to this process and its children.
pub(super) fn enter(context: FilterContext) -> io::Result<()> {
    sys::apply_seccomp_filter(&mut filter(context))
}

fn filter(context: FilterContext) -> Vec<sock_filter> {
    let mut allowed = [allowed::EVERYWHERE, allowed::HERE].concat();
    program(&Rules::new(context).0, Some(&mut allowed))
}

/// Returns an additional filter for commands, for calls that only this program may use: `openat2`, because a filter cannot read
/// the mode of the created file; `fallocate`, which fills a disk faster than it can be monitored; and signals, unless another
/// layer confines them. Programs fall back to `openat` and to writing.
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
    // fchmodat2 (Linux 6.6), which libc does not define.
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
/// Calls that set a mode, and the number of the mode argument. 452 is fchmodat2.
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

/// Calls that can signal a process by its id.
const SIGNALS: &[c_long] = &[
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
];
/// Flags of `clone` that create a namespace.
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
/// Mask for the type of a socket, without its flags.
const TYPE_MASK: u32 = 0xF;
const ALL_BITS: u32 = u32::MAX;

const UNIX: u32 = bits(libc::AF_UNIX);
const INET: u32 = bits(libc::AF_INET);
const INET6: u32 = bits(libc::AF_INET6);
const NETLINK: u32 = bits(libc::AF_NETLINK);

pub(super) const ALL_FAMILIES: &[u32] = &[UNIX, INET, INET6, NETLINK];
/// Families without socket paths. Only this filter prevents a command from connecting to services with reachable sockets.
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

    /// Rejects the call unless the argument is one of the values.
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
        // A program that a command leaves behind must not give its user's rights to other users who start it outside.
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
        // Zero means the calling process, but with another kind it means all processes of the user.
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
        // TCP Fast Open connects without `connect`.
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
        // SOCK_RAW (3) is used for netlink, which name look-ups need, but also for raw packets.
        self.require(
            libc::SYS_socket,
            1,
            TYPE_MASK,
            &[1, 2, 3, 5],
            libc::EAFNOSUPPORT,
        );
        // Default protocol, TCP and UDP; not MPTCP, SCTP, ICMP or raw IP. Of netlink only routes, its protocol 0.
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
            // A datagram pair can send to any path; a sequenced-packet pair cannot, and Rust starts programs with it.
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
        // With a path it changes any file; without one it needs a descriptor, which Landlock had to allow.
        self.require_zero(libc::SYS_utimensat, 1);
        // utimensat with 64-bit time, from the ARM table.
        #[cfg(target_arch = "arm")]
        self.require_zero(412, 1);
        self.refuse_all(SYSTEM_V_IPC, libc::ENOSYS);
        // Programs interpret this error as "no attributes".
        self.refuse_all(ATTRIBUTES_BY_PATH, libc::EOPNOTSUPP);
        self.refuse(libc::SYS_inotify_add_watch, &[], libc::ENOSYS);
    }

    /// Rejects changes of read-only files by descriptor, which ownership alone would allow. Modes and times of a user's files
    /// may change, because many programs need this, except the owner's right to read; those of root's files may not.
    fn changes_of_what_is_only_readable(&mut self, is_root: bool) {
        if is_root {
            self.refuse(libc::SYS_fchmod, &[], EPERM);
            // Without explicit times the current time is set, as writing does.
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
        // Zero is the caller's own process group, which is in the sandbox.
        self.require_zero(libc::SYS_kill, 0);
    }
}
