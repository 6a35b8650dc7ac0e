//! System calls that are allowed in a sandbox. All others fail as on a kernel without them.
//!
//! The calls of sh, coreutils, Python, git, curl, node, compilers, tar, rsync, Perl and `SQLite`, with the C libraries of today
//! and of ten years ago. Not allowed: mounts, namespaces, modules, tracing and the memory of other processes, keyrings, BPF,
//! `io_uring`, `userfaultfd`, message queues, handles of files, clocks, swap, quotas; `clone3`, whose flags are in memory that
//! a filter cannot read; and calls of future kernels. C libraries fall back to older calls if there are any.

// About two hundred constants are used.
#[allow(clippy::wildcard_imports)]
use libc::*;

/// Calls of all architectures.
#[rustfmt::skip]
pub(super) const EVERYWHERE: &[c_long] = &[
    // Open files.
    SYS_read, SYS_write, SYS_readv, SYS_writev, SYS_pread64, SYS_pwrite64, SYS_preadv, SYS_pwritev, SYS_preadv2, SYS_pwritev2,
    SYS_lseek, SYS_close, 436 /* close_range */, SYS_dup, SYS_dup3, SYS_fcntl, SYS_ioctl, SYS_flock, SYS_fsync, SYS_fdatasync,
    SYS_sync, SYS_syncfs, SYS_ftruncate, SYS_readahead, SYS_sendfile, SYS_splice, SYS_tee, SYS_copy_file_range,
    451 /* cachestat */, SYS_getdents64, SYS_pipe2, SYS_memfd_create,
    // Files by path, and metadata.
    SYS_openat, 437 /* openat2 */, SYS_getcwd, SYS_chdir, SYS_fchdir, SYS_mkdirat, SYS_mknodat, SYS_unlinkat, SYS_symlinkat,
    SYS_linkat, SYS_renameat2, SYS_readlinkat, SYS_truncate, SYS_fallocate, SYS_faccessat, 439 /* faccessat2 */,
    SYS_fstat, SYS_statx, SYS_statfs, SYS_fstatfs, SYS_umask, SYS_fchmod, SYS_fchmodat, 452 /* fchmodat2 */, SYS_fchown,
    SYS_fchownat, SYS_utimensat, SYS_getxattr, SYS_lgetxattr, SYS_fgetxattr, SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr,
    SYS_listxattr, SYS_llistxattr, SYS_flistxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
    // Waiting.
    SYS_ppoll, SYS_pselect6, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_pwait, 441 /* epoll_pwait2 */, SYS_eventfd2,
    SYS_signalfd4, SYS_inotify_init1, SYS_inotify_add_watch, SYS_inotify_rm_watch, SYS_timerfd_create, SYS_timerfd_settime,
    SYS_timerfd_gettime, SYS_nanosleep, SYS_clock_nanosleep, SYS_restart_syscall,
    // Memory.
    SYS_brk, SYS_munmap, SYS_mprotect, SYS_mremap, SYS_madvise, SYS_msync, SYS_mincore, SYS_mlock, SYS_mlock2, SYS_mlockall,
    SYS_munlock, SYS_munlockall, SYS_membarrier, SYS_pkey_alloc, SYS_pkey_free, SYS_pkey_mprotect, 453 /* map_shadow_stack */,
    462 /* mseal */,
    // Processes and threads.
    SYS_clone, SYS_execve, SYS_execveat, SYS_exit, SYS_exit_group, SYS_wait4, SYS_waitid, 434 /* pidfd_open */, SYS_getpid,
    SYS_getppid, SYS_gettid, SYS_getpgid, SYS_setpgid, SYS_getsid, SYS_setsid, SYS_set_tid_address, SYS_set_robust_list,
    SYS_get_robust_list, SYS_futex, 449 /* futex_waitv */, 454 /* futex_wake */, 455 /* futex_wait */,
    456 /* futex_requeue */, SYS_prctl, SYS_getcpu, SYS_sched_yield, SYS_sched_getaffinity,
    SYS_sched_setaffinity, SYS_sched_getparam, SYS_sched_setparam, SYS_sched_getscheduler, SYS_sched_setscheduler,
    SYS_sched_getattr, SYS_sched_setattr, SYS_sched_get_priority_max, SYS_sched_get_priority_min, SYS_sched_rr_get_interval,
    SYS_getpriority, SYS_setpriority, SYS_ioprio_get, SYS_ioprio_set, SYS_prlimit64, SYS_getrusage, SYS_times,
    // Signals.
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_rt_sigpending, SYS_rt_sigtimedwait, SYS_rt_sigsuspend, SYS_rt_sigreturn,
    SYS_sigaltstack, SYS_kill, SYS_tkill, SYS_tgkill, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo, 424 /* pidfd_send_signal */,
    SYS_getitimer, SYS_setitimer, SYS_timer_create, SYS_timer_settime, SYS_timer_gettime, SYS_timer_getoverrun,
    SYS_timer_delete,
    // Users, and further confinement.
    SYS_getuid, SYS_geteuid, SYS_getgid, SYS_getegid, SYS_getresuid, SYS_getresgid, SYS_getgroups, SYS_setuid, SYS_setgid,
    SYS_setreuid, SYS_setregid, SYS_setresuid, SYS_setresgid, SYS_setfsuid, SYS_setfsgid, SYS_setgroups, SYS_capget,
    SYS_capset, SYS_seccomp, 444 /* landlock_create_ruleset */, 445 /* landlock_add_rule */, 446 /* landlock_restrict_self */,
    // The machine.
    SYS_uname, SYS_sysinfo, SYS_getrandom, SYS_clock_gettime, SYS_clock_getres, SYS_gettimeofday,
    // Sockets.
    SYS_socket, SYS_socketpair, SYS_bind, SYS_listen, SYS_accept, SYS_accept4, SYS_connect, SYS_getsockname, SYS_getpeername,
    SYS_sendto, SYS_recvfrom, SYS_sendmsg, SYS_recvmsg, SYS_sendmmsg, SYS_recvmmsg, SYS_setsockopt, SYS_getsockopt,
    SYS_shutdown,
    // System V IPC, for fakeroot and Perl.
    SYS_msgctl, SYS_msgget, SYS_msgrcv, SYS_msgsnd, SYS_semctl, SYS_semget, SYS_semop, SYS_semtimedop, SYS_shmat, SYS_shmctl,
    SYS_shmdt, SYS_shmget,
];

/// Calls of x86-64: older variants of the calls above.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
pub(super) const HERE: &[c_long] = &[
    SYS_open, SYS_creat, SYS_stat, SYS_lstat, SYS_newfstatat, SYS_access,
    SYS_readlink, SYS_mkdir, SYS_rmdir, SYS_rename, SYS_renameat, SYS_link, SYS_symlink,
    SYS_unlink, SYS_mknod, SYS_chmod, SYS_chown, SYS_lchown, SYS_utime,
    SYS_utimes, SYS_futimesat, SYS_getdents, SYS_fadvise64, SYS_sync_file_range,
    SYS_dup2, SYS_pipe, SYS_poll, SYS_select, SYS_epoll_create, SYS_epoll_wait,
    SYS_eventfd, SYS_signalfd, SYS_inotify_init, SYS_mmap, SYS_fork, SYS_vfork,
    SYS_getpgrp, SYS_arch_prctl, SYS_getrlimit, SYS_setrlimit, SYS_alarm, SYS_pause,
    SYS_time, SYS_rseq,
];
#[cfg(target_arch = "aarch64")]
#[rustfmt::skip]
pub(super) const HERE: &[c_long] = &[
    SYS_renameat, SYS_newfstatat, SYS_fadvise64, SYS_sync_file_range, SYS_mmap, 163 /* getrlimit */,
    164 /* setrlimit */, SYS_rseq,
];
/// Includes two calls of the RISC-V architecture.
#[cfg(target_arch = "riscv64")]
#[rustfmt::skip]
pub(super) const HERE: &[c_long] = &[
    SYS_newfstatat, SYS_fadvise64, SYS_sync_file_range, SYS_mmap, 163 /* getrlimit */,
    164 /* setrlimit */, SYS_rseq, 258 /* riscv_hwprobe */, 259 /* riscv_flush_icache */,
];
/// Includes calls of 32-bit programs, from `arch/arm/tools/syscall.tbl`: wide ids and offsets, and 64-bit time.
#[cfg(target_arch = "arm")]
#[rustfmt::skip]
pub(super) const HERE: &[c_long] = &[
    SYS_open, SYS_creat, SYS_access, SYS_readlink, SYS_mkdir, SYS_rmdir,
    SYS_rename, SYS_renameat, SYS_link, SYS_symlink, SYS_unlink, SYS_mknod, SYS_chmod,
    SYS_chown, SYS_lchown, SYS_utimes, SYS_futimesat, SYS_getdents, SYS_dup2,
    SYS_pipe, SYS_poll, SYS_epoll_create, SYS_epoll_wait, SYS_eventfd, SYS_signalfd,
    SYS_inotify_init, SYS_fork, SYS_vfork, SYS_getpgrp, SYS_pause,
    67 /* sigaction */, 72 /* sigsuspend */, 73 /* sigpending */, 75 /* setrlimit */, 106 /* stat */,
    107 /* lstat */, 119 /* sigreturn */, 126 /* sigprocmask */, 140 /* _llseek */, 142 /* _newselect */,
    191 /* ugetrlimit */, 192 /* mmap2 */, 193 /* truncate64 */, 194 /* ftruncate64 */, 195 /* stat64 */,
    196 /* lstat64 */, 197 /* fstat64 */, 198 /* lchown32 */, 199 /* getuid32 */, 200 /* getgid32 */, 201 /* geteuid32 */,
    202 /* getegid32 */, 203 /* setreuid32 */, 204 /* setregid32 */, 205 /* getgroups32 */, 206 /* setgroups32 */,
    207 /* fchown32 */, 208 /* setresuid32 */, 209 /* getresuid32 */, 210 /* setresgid32 */, 211 /* getresgid32 */,
    212 /* chown32 */, 213 /* setuid32 */, 214 /* setgid32 */, 215 /* setfsuid32 */, 216 /* setfsgid32 */,
    221 /* fcntl64 */, 239 /* sendfile64 */, 266 /* statfs64 */, 267 /* fstatfs64 */, 270 /* fadvise64_64 */, 289 /* send */,
    291 /* recv */, 327 /* fstatat64 */, 341 /* sync_file_range2 */, 398 /* rseq */, 403 /* clock_gettime64 */, 406 /* clock_getres_time64 */,
    407 /* clock_nanosleep_time64 */, 408 /* timer_gettime64 */, 409 /* timer_settime64 */, 410 /* timerfd_gettime64 */,
    411 /* timerfd_settime64 */, 412 /* utimensat_time64 */, 413 /* pselect6_time64 */, 414 /* ppoll_time64 */,
    417 /* recvmmsg_time64 */, 420 /* semtimedop_time64 */, 421 /* rt_sigtimedwait_time64 */, 422 /* futex_time64 */,
    423 /* sched_rr_get_interval_time64 */,
    // Calls of the ARM architecture, with numbers above the table.
    0x000f_0002 /* cacheflush */, 0x000f_0005 /* set_tls */, 0x000f_0006 /* get_tls */,
];

/// Requests of `ioctl`: of pipes and sockets, of the loopback interface, and copying a file by sharing its blocks. Terminals
/// are not available in a sandbox. Other requests fail as on a file that does not support them.
#[rustfmt::skip]
pub(super) const IOCTLS: &[u32] = &[
    0x5411 /* SIOCOUTQ */, 0x541B /* FIONREAD */, 0x5421 /* FIONBIO */, 0x5450 /* FIONCLEX */, 0x5451 /* FIOCLEX */,
    0x8905 /* SIOCATMARK */, 0x8910 /* SIOCGIFNAME */, 0x8912 /* SIOCGIFCONF */, 0x8913 /* SIOCGIFFLAGS */,
    0x8915 /* SIOCGIFADDR */, 0x8919 /* SIOCGIFBRDADDR */, 0x891B /* SIOCGIFNETMASK */, 0x8921 /* SIOCGIFMTU */,
    0x8927 /* SIOCGIFHWADDR */, 0x8933 /* SIOCGIFINDEX */, 0x4004_9409 /* FICLONE */, 0x4020_940D /* FICLONERANGE */,
    0x8008_6601 /* FS_IOC_GETFLAGS */, 0x8004_6601 /* FS_IOC32_GETFLAGS */, 0xC020_660B /* FS_IOC_FIEMAP */,
];

/// Commands of `fcntl`. Excludes those that make the kernel signal a process when another process uses a file, and leases and
/// delegations, which require only read access and make other processes wait when they open the file.
#[rustfmt::skip]
pub(super) const FCNTLS: &[u32] = &[
    0 /* F_DUPFD */, 1 /* F_GETFD */, 2 /* F_SETFD */, 3 /* F_GETFL */, 4 /* F_SETFL */, 5 /* F_GETLK */, 6 /* F_SETLK */,
    7 /* F_SETLKW */, 9 /* F_GETOWN */, 12 /* F_GETLK64 */, 13 /* F_SETLK64 */, 14 /* F_SETLKW64 */, 36 /* F_OFD_GETLK */,
    37 /* F_OFD_SETLK */, 38 /* F_OFD_SETLKW */, 1025 /* F_GETLEASE */, 1027 /* F_DUPFD_QUERY */, 1028 /* F_CREATED_QUERY */,
    1030 /* F_DUPFD_CLOEXEC */, 1031 /* F_SETPIPE_SZ */, 1032 /* F_GETPIPE_SZ */, 1033 /* F_ADD_SEALS */,
    1034 /* F_GET_SEALS */, 1035 /* F_GET_RW_HINT */, 1036 /* F_SET_RW_HINT */,
];
