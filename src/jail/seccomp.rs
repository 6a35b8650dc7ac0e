//! The filter of system calls.
//!
//! A deny list, because what a shell's children need changes with every C library; what they must not have changes with
//! the kernel, slowly. It is written for the architecture that this program was built for and ends a process that calls
//! in the manner of another one (a 32-bit program on a 64-bit kernel would have other numbers for the same calls).

use std::io;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO,
    SECCOMP_RET_KILL_PROCESS, c_long, sock_filter,
};

use crate::sys;

/// What else holds the process, which decides what the filter must forbid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// No namespaces: paths are guarded when files are opened, and by nothing else.
    pub landlock_alone: bool,
    /// The host's network is allowed.
    pub host_network: bool,
    /// Something else keeps signals inside.
    pub signals_held: bool,
}

/// Puts this process and what it starts under the filter.
pub fn enter(beside: Beside) -> io::Result<()> {
    sys::filter_system_calls(&mut program(&rules(beside)))
}

/// Forbids, on top of the filter, what the hands have needed so far and a command does not get: `openat2`, whose mode of a
/// new file the filter cannot see. Callers fall back to `openat`.
pub fn seal() -> io::Result<()> {
    let rule = Rule { call: libc::SYS_openat2, when: When::Always, errno: libc::ENOSYS };
    sys::filter_system_calls(&mut program(&[rule]))
}

/// `AUDIT_ARCH_*` of `linux/audit.h`.
#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xC000_00B7;
#[cfg(target_arch = "arm")]
const ARCH: u32 = 0x4000_0028;

/// A system call and when it is refused.
struct Rule {
    call: c_long,
    when: When,
    /// What the caller is told.
    errno: i32,
}

#[derive(Clone, Copy)]
enum When {
    Always,
    /// Argument N has any of these bits.
    Bits(u32, u32),
    /// Argument N has any of these bits, and argument M any of those.
    Both(u32, u32, u32, u32),
    /// Argument N is anything but zero.
    NotZero(u32),
    /// Argument N, under the mask, is one of these.
    OneOf(u32, u32, &'static [u32]),
    /// Argument N, under the mask, is none of these.
    NoneOf(u32, u32, &'static [u32]),
}

const EPERM: i32 = libc::EPERM;

/// Refused whatever else holds the process.
const ALWAYS: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_name_to_handle_at,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

#[cfg(target_arch = "x86_64")]
const ALWAYS_HERE: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
    libc::SYS_kexec_file_load,
    libc::SYS_migrate_pages,
];
#[cfg(target_arch = "aarch64")]
const ALWAYS_HERE: &[c_long] = &[294, libc::SYS_migrate_pages]; // 294 is kexec_file_load, which libc lacks for musl
// Numbers of `arch/arm/tools/syscall.tbl` that libc has no names for: migrate_pages, kexec_file_load, and the clocks of
// 64-bit time.
#[cfg(target_arch = "arm")]
const ALWAYS_HERE: &[c_long] = &[400, 401, 404, 405];

/// Calls that change a file by its path. Landlock does not look at them.
const BY_PATH: &[c_long] = &[
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    // fchmodat2 (Linux 6.6), which has the same number everywhere and no name in libc yet.
    452,
    // setxattrat and removexattrat (Linux 6.13).
    463,
    466,
];
#[cfg(target_arch = "aarch64")]
const BY_PATH_HERE: &[c_long] = &[];
#[cfg(target_arch = "arm")]
const BY_PATH_HERE: &[c_long] =
    &[libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utimes, libc::SYS_futimesat];
#[cfg(target_arch = "x86_64")]
const BY_PATH_HERE: &[c_long] =
    &[libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes, libc::SYS_futimesat];

/// The bits of a mode that let a program run with its owner's rights.
const SET_ID: u32 = 0o6000;
/// `O_CREAT` and `O_TMPFILE` (without `O_DIRECTORY`, which is a part of it): otherwise the mode is not looked at.
const MAKES_FILE: u32 = bits(libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY));
/// Calls that set a mode, and which argument that is. 452 is fchmodat2.
const MODES: &[(c_long, u32)] = &[(libc::SYS_fchmod, 1), (libc::SYS_fchmodat, 2), (452, 2), (libc::SYS_mknodat, 2)];
#[cfg(target_arch = "aarch64")]
const MODES_HERE: &[(c_long, u32)] = &[];
#[cfg(not(target_arch = "aarch64"))]
const MODES_HERE: &[(c_long, u32)] = &[(libc::SYS_chmod, 1), (libc::SYS_creat, 1), (libc::SYS_mknod, 1)];

/// Memory, messages and semaphores that all processes of a system share by a number.
const SHARED_BY_NUMBER: &[c_long] = &[
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

/// Calls that tell of a file by its path. Programs take it that there is nothing to tell.
const TELL_BY_PATH: &[c_long] = &[libc::SYS_getxattr, libc::SYS_lgetxattr, libc::SYS_listxattr, libc::SYS_llistxattr];

/// Calls that signal a process by its number, or could be made to.
const SIGNALS: &[c_long] = &[
    libc::SYS_tkill,
    libc::SYS_tgkill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
];
/// `F_SETOWN`, `F_SETSIG` and `F_SETOWN_EX` of fcntl: signals by way of a descriptor.
const SIGNALS_BY_FCNTL: &[u32] = &[8, 10, 15];

/// Every flag of `clone` that makes a namespace.
const NEW_NAMESPACES: u32 = bits(
    libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET,
);

const MSG_FASTOPEN: u32 = bits(libc::MSG_FASTOPEN);
const DEVICES: &[u32] = &[libc::S_IFCHR, libc::S_IFBLK];
/// Types of sockets without the flags that may be added to them.
const PLAIN: &[u32] = &[bits(libc::SOCK_STREAM), bits(libc::SOCK_DGRAM)];
const TYPE_MASK: u32 = 0xF;

const UNIX: u32 = bits(libc::AF_UNIX);
const INET: u32 = bits(libc::AF_INET);
const INET6: u32 = bits(libc::AF_INET6);
const NETLINK: u32 = bits(libc::AF_NETLINK);

/// The same bits: C has these constants as signed, the filter compares them as unsigned.
const fn bits(n: libc::c_int) -> u32 {
    u32::from_ne_bytes(n.to_ne_bytes())
}

fn rules(beside: Beside) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut refuse = |call: c_long, when: When, errno: i32| rules.push(Rule { call, when, errno });
    for call in ALWAYS.iter().chain(ALWAYS_HERE) {
        refuse(*call, When::Always, EPERM);
    }
    // clone3 hides its flags behind a pointer; C libraries fall back to clone when it is missing.
    refuse(libc::SYS_clone3, When::Always, libc::ENOSYS);
    refuse(libc::SYS_clone, When::Bits(0, NEW_NAMESPACES), EPERM);
    // Keys pushed into a terminal's input, and the console's paste.
    refuse(libc::SYS_ioctl, When::OneOf(1, u32::MAX, &[0x5412, 0x541C]), EPERM);
    refuse(libc::SYS_mknodat, When::OneOf(2, libc::S_IFMT, DEVICES), EPERM);
    #[cfg(not(target_arch = "aarch64"))]
    refuse(libc::SYS_mknod, When::OneOf(1, libc::S_IFMT, DEVICES), EPERM);
    // A program that gives its starter's rights away, left behind for somebody outside to start.
    for (call, mode) in MODES.iter().chain(MODES_HERE) {
        refuse(*call, When::Bits(*mode, SET_ID), EPERM);
    }
    refuse(libc::SYS_openat, When::Both(2, MAKES_FILE, 3, SET_ID), EPERM);
    #[cfg(not(target_arch = "aarch64"))]
    refuse(libc::SYS_open, When::Both(1, MAKES_FILE, 2, SET_ID), EPERM);
    // Limits, priorities and processors of others.
    refuse(libc::SYS_prlimit64, When::NotZero(0), EPERM);
    refuse(libc::SYS_setpriority, When::NotZero(1), EPERM);
    refuse(libc::SYS_ioprio_set, When::NotZero(1), EPERM);
    for call in
        [libc::SYS_sched_setaffinity, libc::SYS_sched_setattr, libc::SYS_sched_setparam, libc::SYS_sched_setscheduler]
    {
        refuse(call, When::NotZero(0), EPERM);
    }
    // TCP Fast Open connects without connect.
    refuse(libc::SYS_sendto, When::Bits(3, MSG_FASTOPEN), EPERM);
    refuse(libc::SYS_sendmsg, When::Bits(2, MSG_FASTOPEN), EPERM);
    refuse(libc::SYS_sendmmsg, When::Bits(3, MSG_FASTOPEN), EPERM);

    let families: &[u32] = match (beside.landlock_alone, beside.host_network) {
        (false, _) => &[UNIX, INET, INET6, NETLINK],
        // A path to a socket is a way out that Landlock does not close before Linux 7.1.
        (true, true) => &[INET, INET6, NETLINK],
        (true, false) => &[],
    };
    refuse(libc::SYS_socket, When::NoneOf(0, u32::MAX, families), libc::EAFNOSUPPORT);
    // SOCK_RAW serves netlink as well as packets; look-ups of names make netlink sockets of that type.
    let types: &[u32] = if families.is_empty() { &[] } else { &[1, 2, 3, 5] };
    refuse(libc::SYS_socket, When::NoneOf(1, TYPE_MASK, types), libc::EAFNOSUPPORT);
    // TCP, UDP, and whatever is the default; not MPTCP, SCTP, ICMP, or raw IP. Netlink's 0 is routes.
    refuse(libc::SYS_socket, When::NoneOf(2, u32::MAX, &[0, 6, 17]), libc::EPROTONOSUPPORT);
    refuse(libc::SYS_socketpair, When::NoneOf(0, u32::MAX, &[UNIX]), libc::EAFNOSUPPORT);
    if beside.landlock_alone {
        for call in BY_PATH.iter().chain(BY_PATH_HERE) {
            refuse(*call, When::Always, EPERM);
        }
        // By descriptor it needs a file that could be opened; by path it needs nothing.
        refuse(libc::SYS_utimensat, When::NotZero(1), EPERM);
        // utimensat of 64-bit time, as in that table.
        #[cfg(target_arch = "arm")]
        refuse(412, When::NotZero(1), EPERM);
        refuse(libc::SYS_socketpair, When::NoneOf(1, TYPE_MASK, PLAIN), libc::EAFNOSUPPORT);
        for call in SHARED_BY_NUMBER {
            refuse(*call, When::Always, EPERM);
        }
        for call in TELL_BY_PATH {
            refuse(*call, When::Always, libc::EOPNOTSUPP);
        }
        refuse(libc::SYS_inotify_add_watch, When::Always, libc::ENOSYS);
    }
    if !beside.signals_held {
        for call in SIGNALS {
            refuse(*call, When::Always, EPERM);
        }
        // To its own process group a process may send one: that is inside.
        refuse(libc::SYS_kill, When::NotZero(0), EPERM);
        refuse(libc::SYS_fcntl, When::OneOf(1, u32::MAX, SIGNALS_BY_FCNTL), EPERM);
        #[cfg(target_arch = "arm")]
        refuse(libc::SYS_fcntl64, When::OneOf(1, u32::MAX, SIGNALS_BY_FCNTL), EPERM);
    }
    rules
}

/// Offsets into `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn low_half(argument: u32) -> u32 {
    // All our architectures are little-endian.
    16 + 8 * argument
}

fn statement(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

/// The codes of classic BPF fit in 16 bits by definition.
fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k }
}

fn refusal(errno: i32) -> sock_filter {
    statement(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | bits(errno))
}

/// The filter as the kernel takes it: for each rule a block that either refuses or falls through to the next one.
fn program(rules: &[Rule]) -> Vec<sock_filter> {
    let load = |offset| statement(BPF_LD | BPF_W | BPF_ABS, offset);
    let mut out = vec![
        load(ARCHITECTURE),
        jump(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        statement(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        load(NUMBER),
    ];
    // x32 calls come with the architecture of x86-64 and numbers of their own.
    #[cfg(target_arch = "x86_64")]
    out.extend([jump(BPF_JMP | libc::BPF_JGE | BPF_K, 0x4000_0000, 0, 1), refusal(libc::ENOSYS)]);
    for rule in rules {
        let block = block(rule);
        let skip = u8::try_from(block.len()).unwrap_or(u8::MAX);
        let number = u32::try_from(rule.call).unwrap_or(u32::MAX);
        out.push(jump(BPF_JMP | BPF_JEQ | BPF_K, number, 0, skip));
        out.extend(block);
    }
    out.push(statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    out
}

/// What follows the match of a number. Blocks that look at an argument load the number again before they fall through.
fn block(rule: &Rule) -> Vec<sock_filter> {
    let load = |offset| statement(BPF_LD | BPF_W | BPF_ABS, offset);
    let and = |mask| statement(BPF_ALU | BPF_AND | BPF_K, mask);
    let equal = |k, jt, jf| jump(BPF_JMP | BPF_JEQ | BPF_K, k, jt, jf);
    let (refuse, again) = (refusal(rule.errno), load(NUMBER));
    match rule.when {
        When::Always => vec![refuse],
        When::Bits(n, bits) => vec![load(low_half(n)), and(bits), equal(0, 1, 0), refuse, again],
        When::Both(n, bits, m, others) => vec![
            load(low_half(n)),
            and(bits),
            equal(0, 4, 0),
            load(low_half(m)),
            and(others),
            equal(0, 1, 0),
            refuse,
            again,
        ],
        When::NotZero(n) => {
            vec![load(low_half(n)), equal(0, 0, 2), load(low_half(n) + 4), equal(0, 1, 0), refuse, again]
        }
        When::OneOf(n, mask, values) | When::NoneOf(n, mask, values) => {
            let mut out = vec![load(low_half(n)), and(mask)];
            let is_one = matches!(rule.when, When::OneOf(..));
            let count = u8::try_from(values.len()).unwrap_or(u8::MAX);
            for (at, value) in (0..count).zip(values) {
                // To the refusal, which stands behind the remaining comparisons and one jump, or past it.
                let left = count - at - 1;
                out.push(equal(*value, if is_one { left + 1 } else { left + 2 }, 0));
            }
            // No value matched.
            out.push(jump(BPF_JMP | libc::BPF_JA, u32::from(is_one), 0, 0));
            out.extend([refuse, again]);
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a filter as the kernel would.
    fn judge(program: &[sock_filter], arch: u32, number: c_long, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(u32::try_from(number).unwrap().to_le_bytes());
        data.extend(arch.to_le_bytes());
        data.extend(0u64.to_le_bytes());
        data.extend(args.iter().flat_map(|a| a.to_le_bytes()));
        let (mut a, mut pc) = (0u32, 0usize);
        loop {
            let i = program[pc];
            pc += 1;
            let code = u32::from(i.code);
            let branch = |yes: bool| usize::from(if yes { i.jt } else { i.jf });
            if code == BPF_LD | BPF_W | BPF_ABS {
                let at = i.k as usize;
                a = u32::from_le_bytes(data[at..at + 4].try_into().unwrap());
            } else if code == BPF_ALU | BPF_AND | BPF_K {
                a &= i.k;
            } else if code == BPF_JMP | BPF_JEQ | BPF_K {
                pc += branch(a == i.k);
            } else if code == BPF_JMP | libc::BPF_JGE | BPF_K {
                pc += branch(a >= i.k);
            } else if code == BPF_JMP | libc::BPF_JA {
                pc += i.k as usize;
            } else if code == BPF_RET | BPF_K {
                return i.k;
            } else {
                panic!("unknown instruction {code:#x}");
            }
        }
    }

    fn allowed(beside: Beside, number: c_long, args: &[u64]) -> bool {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        judge(&program(&rules(beside)), ARCH, number, all) == SECCOMP_RET_ALLOW
    }

    const NAMESPACES: Beside = Beside { landlock_alone: false, host_network: false, signals_held: true };
    const LANDLOCK: Beside = Beside { landlock_alone: true, ..NAMESPACES };
    const ALL: [Beside; 4] = [
        NAMESPACES,
        Beside { host_network: true, ..NAMESPACES },
        LANDLOCK,
        Beside { host_network: true, signals_held: false, ..LANDLOCK },
    ];

    #[test]
    fn ordinary_work_is_allowed_and_what_leads_out_is_not() {
        let device = u64::from(libc::S_IFBLK | 0o600);
        let fifo = u64::from(libc::S_IFIFO | 0o600);
        for beside in ALL {
            for (call, args, want) in [
                (libc::SYS_openat, &[0u64; 0][..], true),
                (libc::SYS_execve, &[], true),
                (libc::SYS_clone, &[17], true),
                (libc::SYS_clone, &[u64::from(NEW_NAMESPACES)], false),
                (libc::SYS_clone, &[0x1000_0011], false),
                (libc::SYS_clone3, &[], false),
                (libc::SYS_ioctl, &[0, 0x5401], true),
                (libc::SYS_ioctl, &[0, 0x5412], false),
                // The kernel looks at the low half alone.
                (libc::SYS_ioctl, &[0, 0xDEAD_0000_5412], false),
                (libc::SYS_mknodat, &[0, 0, device], false),
                (libc::SYS_mknodat, &[0, 0, fifo], true),
                (libc::SYS_prlimit64, &[0], true),
                (libc::SYS_prlimit64, &[1], false),
                (libc::SYS_prlimit64, &[1 << 32], false),
                (libc::SYS_setpriority, &[0, 0, 5], true),
                (libc::SYS_setpriority, &[0, 7, 5], false),
                (libc::SYS_sendto, &[0, 0, 0, 0x2000_0000], false),
                (libc::SYS_sendto, &[0, 0, 0, 0x4000], true),
                (libc::SYS_unshare, &[], false),
                (libc::SYS_ptrace, &[], false),
                (libc::SYS_socket, &[40, 1, 0], false),
                (libc::SYS_socket, &[17, 3, 0], false),
                (libc::SYS_socket, &[2, 1, 262], false),
                (libc::SYS_socketpair, &[1, 1, 0], true),
                (libc::SYS_fchmod, &[3, 0o777], true),
                (libc::SYS_fchmod, &[3, 0o4755], false),
                (libc::SYS_openat, &[3, 1, 0o100, 0o644], true),
                (libc::SYS_openat, &[3, 1, 0o100, 0o4644], false),
                // Without making a file the mode is whatever was in the register.
                (libc::SYS_openat, &[3, 1, 0, 0o4644], true),
            ] {
                assert_eq!(allowed(beside, call, args), want, "{beside:?} {call} {args:x?}");
            }
        }
    }

    #[test]
    fn landlock_alone_forbids_sockets_and_changes_by_path() {
        let kinds = [(true, true, true), (true, true, true), (false, false, false), (false, true, false)];
        for (beside, (unix, tcp, chmod)) in ALL.into_iter().zip(kinds) {
            let cloexec = 0x8_0001;
            assert_eq!(allowed(beside, libc::SYS_socket, &[1, cloexec, 0]), unix, "{beside:?}");
            assert_eq!(allowed(beside, libc::SYS_socket, &[2, cloexec, 6]), tcp, "{beside:?}");
            assert_eq!(allowed(beside, libc::SYS_fchmodat, &[3, 1, 2]), chmod, "{beside:?}");
            assert_eq!(allowed(beside, libc::SYS_utimensat, &[3, 0x7fff_0000_0000]), chmod, "{beside:?}");
            assert!(allowed(beside, libc::SYS_utimensat, &[3, 0]), "{beside:?}");
        }
    }

    #[test]
    fn signals_stay_inside_where_nothing_else_keeps_them() {
        for beside in ALL {
            assert_eq!(allowed(beside, libc::SYS_kill, &[77, 9]), beside.signals_held);
            assert_eq!(allowed(beside, libc::SYS_fcntl, &[1, 8, 77]), beside.signals_held);
            assert!(allowed(beside, libc::SYS_kill, &[0, 9]));
            assert!(allowed(beside, libc::SYS_fcntl, &[1, 3]));
        }
    }

    #[test]
    fn calls_in_the_manner_of_another_architecture_end_the_process() {
        let program = program(&rules(NAMESPACES));
        for arch in [0x4000_0003, 0x4000_0028, 0xC000_00B7, 0xC000_003E] {
            let verdict = judge(&program, arch, libc::SYS_getpid, [0; 6]);
            assert_eq!(verdict, if arch == ARCH { SECCOMP_RET_ALLOW } else { SECCOMP_RET_KILL_PROCESS });
        }
    }
}
