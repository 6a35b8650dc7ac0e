//! Tests of the filter in a BPF interpreter.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_KILL_PROCESS, sock_filter,
};

use super::program::ARCH;
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
        } else if code == BPF_JMP | libc::BPF_JGT | BPF_K {
            pc += branch(a > i.k);
        } else if code == BPF_JMP | libc::BPF_JA {
            pc += i.k as usize;
        } else if code == BPF_RET | BPF_K {
            return i.k;
        } else {
            panic!("unknown instruction {code:#x}");
        }
    }
}

fn allowed(context: FilterContext, number: c_long, args: &[u64]) -> bool {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    judge(&filter(context), ARCH, number, all) == SECCOMP_RET_ALLOW
}

const NAMESPACES: FilterContext = FilterContext {
    landlock_alone: false,
    families: ALL_FAMILIES,
    user: 1000,
    signals_confined: true,
};
const LANDLOCK: FilterContext = FilterContext {
    landlock_alone: true,
    families: &[],
    ..NAMESPACES
};
const ALL: [FilterContext; 4] = [
    NAMESPACES,
    FilterContext {
        families: INTERNET,
        ..NAMESPACES
    },
    LANDLOCK,
    FilterContext {
        families: INTERNET,
        signals_confined: false,
        ..LANDLOCK
    },
];

#[test]
fn ordinary_work_is_allowed_and_what_leads_out_is_not() {
    let device = u64::from(libc::S_IFBLK | 0o600);
    let fifo = u64::from(libc::S_IFIFO | 0o600);
    for context in ALL {
        for (call, args, want) in [
            (libc::SYS_openat, &[0u64; 0][..], true),
            (libc::SYS_execve, &[], true),
            (libc::SYS_clone, &[17], true),
            (libc::SYS_clone, &[u64::from(NEW_NAMESPACES)], false),
            (libc::SYS_clone, &[0x1000_0011], false),
            (libc::SYS_clone3, &[], false),
            (libc::SYS_ioctl, &[0, 0x541B], true),
            // Terminal settings, file flags, and disk space.
            (libc::SYS_ioctl, &[0, 0x5402], false),
            (libc::SYS_ioctl, &[0, 0x4008_6602], false),
            (libc::SYS_ioctl, &[0, 0x4030_582A], false),
            (libc::SYS_ioctl, &[0, 0x5412], false),
            // The kernel ignores the high half.
            (libc::SYS_ioctl, &[0, 0xDEAD_0000_5412], false),
            (libc::SYS_mknodat, &[0, 0, device], false),
            (libc::SYS_mknodat, &[0, 0, fifo], true),
            (libc::SYS_prlimit64, &[0], true),
            (libc::SYS_prlimit64, &[1], false),
            (libc::SYS_prlimit64, &[1 << 32], false),
            (libc::SYS_setpriority, &[0, 0, 5], true),
            (libc::SYS_setpriority, &[0, 7, 5], false),
            // All processes of the user.
            (libc::SYS_setpriority, &[2, 0, 5], false),
            (libc::SYS_ioprio_set, &[1, 0, 5], true),
            (libc::SYS_ioprio_set, &[3, 0, 5], false),
            (libc::SYS_sendto, &[0, 0, 0, 0x2000_0000], false),
            (libc::SYS_sendto, &[0, 0, 0, 0x4000], true),
            (libc::SYS_unshare, &[], false),
            (libc::SYS_openat2, &[], true),
            (libc::SYS_pidfd_open, &[], true),
            (libc::SYS_faccessat2, &[], true),
            (libc::SYS_io_uring_setup, &[], false),
            (libc::SYS_move_mount, &[], false),
            (libc::SYS_pidfd_getfd, &[], false),
            // mseal, the last known call, and the next number.
            (462, &[], true),
            (463, &[], false),
            // file_setattr and similar calls, and message queues.
            (466, &[], false),
            (469, &[], false),
            (libc::SYS_mq_open, &[], false),
            (libc::SYS_mq_unlink, &[], false),
            (libc::SYS_mount, &[], false),
            (libc::SYS_reboot, &[], false),
            (libc::SYS_vmsplice, &[], false),
            (999, &[], false),
            (libc::SYS_ptrace, &[], false),
            (libc::SYS_socket, &[40, 1, 0], false),
            (libc::SYS_socket, &[17, 3, 0], false),
            (libc::SYS_socket, &[2, 1, 262], false),
            (libc::SYS_socketpair, &[1, 1, 0], true),
            (libc::SYS_fchmod, &[3, 0o777], true),
            (libc::SYS_fchmod, &[3, 0o4755], false),
            (libc::SYS_openat, &[3, 1, 0o100, 0o644], true),
            (libc::SYS_openat, &[3, 1, 0o100, 0o4644], false),
            // If the call creates no file, the mode is an arbitrary register value.
            (libc::SYS_openat, &[3, 1, 0, 0o4644], true),
        ] {
            assert_eq!(
                allowed(context, call, args),
                want,
                "{context:?} {call} {args:x?}"
            );
        }
    }
}

#[test]
fn landlock_alone_forbids_sockets_and_changes_by_path() {
    let kinds = [
        (true, true, true),
        (false, true, true),
        (false, false, false),
        (false, true, false),
    ];
    for (context, (unix, tcp, chmod)) in ALL.into_iter().zip(kinds) {
        let cloexec = 0x8_0001;
        assert_eq!(
            allowed(context, libc::SYS_socket, &[1, cloexec, 0]),
            unix,
            "{context:?}"
        );
        assert_eq!(
            allowed(context, libc::SYS_socket, &[2, cloexec, 6]),
            tcp,
            "{context:?}"
        );
        assert_eq!(
            allowed(context, libc::SYS_fchmodat, &[3, 1, 2]),
            chmod,
            "{context:?}"
        );
        assert_eq!(
            allowed(context, libc::SYS_utimensat, &[3, 0x7fff_0000_0000]),
            chmod,
            "{context:?}"
        );
        assert!(
            allowed(context, libc::SYS_utimensat, &[3, 0]),
            "{context:?}"
        );
    }
}

#[test]
fn without_named_sockets_there_are_others_and_pairs_that_stay_pairs() {
    let context = FilterContext {
        families: INTERNET,
        ..NAMESPACES
    };
    for (call, args, want) in [
        (libc::SYS_socket, [1, 0x8_0001, 0], false),
        (libc::SYS_socket, [1, 2, 0], false),
        (libc::SYS_socket, [2, 1, 6], true),
        (libc::SYS_socket, [16, 3, 0], true),
        (libc::SYS_socketpair, [1, 0x8_0001, 0], true),
        (libc::SYS_socketpair, [1, 2, 0], false),
    ] {
        assert_eq!(allowed(context, call, &args), want, "{args:?}");
    }
}

#[test]
fn signals_stay_inside_where_no_other_layer_confines_them() {
    for context in ALL {
        let kill = |pid| {
            judge(
                &for_command(context),
                ARCH,
                libc::SYS_kill,
                [pid, 9, 0, 0, 0, 0],
            ) == SECCOMP_RET_ALLOW
        };
        assert_eq!(kill(77), context.signals_confined);
        assert!(kill(0));
        assert!(!allowed(context, libc::SYS_fcntl, &[1, 8, 77]));
        assert!(!allowed(context, libc::SYS_fcntl, &[1, 1024, 1]));
        // F_SETDELEG, which is newer than the list.
        assert!(!allowed(context, libc::SYS_fcntl, &[1, 1040, 1]));
        assert!(!allowed(context, libc::SYS_ioctl, &[1, 0x8901]));
        assert!(allowed(context, libc::SYS_fcntl, &[1, 3]));
    }
}

#[test]
fn a_descriptor_of_what_is_only_readable_changes_little() {
    for (context, fchmods) in [
        (NAMESPACES, [true, true]),
        (LANDLOCK, [true, false]),
        (
            FilterContext {
                user: 0,
                ..LANDLOCK
            },
            [false, false],
        ),
    ] {
        let allows = |call, args: [u64; 6]| {
            judge(&for_command(context), ARCH, call, args) == SECCOMP_RET_ALLOW
        };
        assert_eq!(
            [0o644, 0o004].map(|mode| allows(libc::SYS_fchmod, [3, mode, 0, 0, 0, 0])),
            fchmods,
            "{context:?}"
        );
        assert_eq!(allows(libc::SYS_fsetxattr, [3; 6]), !context.landlock_alone);
        assert!(allows(libc::SYS_utimensat, [3, 0, 0, 0, 0, 0]));
        assert_eq!(
            allows(libc::SYS_utimensat, [3, 0, 7, 0, 0, 0]),
            !(context.landlock_alone && context.user == 0)
        );
        assert!(!allows(libc::SYS_openat2, [0; 6]) && !allows(libc::SYS_fallocate, [0; 6]));
    }
}

#[test]
fn calls_of_another_architecture_kill_the_process() {
    let program = filter(NAMESPACES);
    for arch in [
        0x4000_0003,
        0x4000_0028,
        0xC000_00B7,
        0xC000_003E,
        0xC000_00F3,
    ] {
        let verdict = judge(&program, arch, libc::SYS_getpid, [0; 6]);
        assert_eq!(
            verdict,
            if arch == ARCH {
                SECCOMP_RET_ALLOW
            } else {
                SECCOMP_RET_KILL_PROCESS
            }
        );
    }
}

#[test]
fn the_list_of_allowed_calls_has_each_once() {
    let all = [super::allowed::EVERYWHERE, super::allowed::HERE].concat();
    let once: std::collections::BTreeSet<&c_long> = all.iter().collect();
    assert_eq!(once.len(), all.len());
    // Every number must get the verdict of the list, including numbers between the compiled ranges.
    for call in 0..1000 {
        let verdict = judge(&filter(NAMESPACES), ARCH, call, [1 << 32; 6]);
        let is_known = verdict != libc::SECCOMP_RET_ERRNO | bits(libc::ENOSYS);
        assert_eq!(is_known, once.contains(&call), "{call}");
    }
    eprintln!(
        "{} calls are allowed here, {} of them everywhere",
        all.len(),
        super::allowed::EVERYWHERE.len()
    );
}
