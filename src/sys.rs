//! The only unsafe code: what the kernel and the C library offer and no safe wrapper in our dependencies does.
//!
//! - signals are waited for on a thread of their own, with `sigwait`;
//! - descriptors that the starter left open are closed with one call;
//! - the system calls that a jail is made of: namespaces, mount attributes, Landlock, seccomp.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use rustix::event::Timespec;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// `time` as poll takes it, rounded up so that a wait does not end early.
pub fn timespec(time: Duration) -> Timespec {
    let time = time + Duration::from_millis(1);
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}

/// Closes this process's memory and environment to other processes of the same user, and keeps it from leaving a core.
pub fn close_to_others() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).map_err(Into::into)
}

/// The signals that end a run.
const ENDING: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

fn ending_set() -> libc::sigset_t {
    // SAFETY: sigemptyset initialises the whole set before it is read, and the numbers are valid signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in ENDING {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Holds SIGINT, SIGTERM and SIGHUP back from every thread started after this, so that [`wait_for_signal`] gets them.
/// Children start with nothing held back: the standard library sees to that.
pub fn hold_signals() {
    let set = ending_set();
    // SAFETY: the set is initialised and lives through the call; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Blocks until one of the held signals comes, and tells its number.
pub fn wait_for_signal() -> i32 {
    let set = ending_set();
    let mut signal = 0;
    // SAFETY: both pointers are to live values of the right type.
    while unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {}
    signal
}

/// Whether something keeps this machine's clock right, NTP as a rule. `false` where the kernel does not tell.
pub fn clock_is_kept() -> bool {
    // SAFETY: all-zero bytes are a valid timex; with modes 0 the call changes nothing, and fills it in.
    let (state, clock) = unsafe {
        let mut clock: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut clock), clock)
    };
    state >= 0 && state != libc::TIME_ERROR && clock.status & libc::STA_UNSYNC == 0
}

/// Closes every descriptor above standard error that the starter left open.
pub fn close_inherited() -> io::Result<()> {
    // SAFETY: close_range takes three integers. The caller owns no descriptor above 2 yet.
    if unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) } == 0 {
        return Ok(());
    }
    let open: Vec<i32> = fs_err::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // SAFETY: nobody in this process owns it; one that the listing itself used is closed already, which is harmless.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Takes this process into new namespaces.
pub fn unshare(flags: rustix::thread::UnshareFlags) -> io::Result<()> {
    // SAFETY: the caller is single-threaded and shares no descriptor table, which is what unshare could pull apart.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Sets attributes of a mount and of all mounts below it. Linux 5.12.
pub fn set_mount_attributes(mount: BorrowedFd, set: rustix::mount::MountAttrFlags, below: bool) -> io::Result<()> {
    /// `struct mount_attr` of `linux/mount.h`.
    #[repr(C)]
    struct MountAttr {
        set: u64,
        clear: u64,
        propagation: u64,
        user_namespace: u64,
    }
    let attr = MountAttr { set: set.bits().into(), clear: 0, propagation: 0, user_namespace: 0 };
    let flags = libc::AT_EMPTY_PATH | if below { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a NUL-terminated string, and the structure lives through the call and has the size told.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Brings the loopback interface of this network namespace up.
pub fn raise_loopback(socket: BorrowedFd) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = 1; // IFF_UP, which C has as a wider type than the field
    // SAFETY: the request is initialised and lives through the call, which reads it.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) }.into()).map(drop)
}

/// The version of Landlock that this kernel offers; an error where there is none.
pub fn landlock_abi() -> io::Result<u32> {
    /// `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call takes no structure and makes no descriptor.
    let abi = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0usize, VERSION)
    })?;
    u32::try_from(abi).map_err(io::Error::other)
}

/// Makes a Landlock ruleset that handles these rights: on files, on TCP, and the scopes. What is handled and not allowed
/// by a rule is forbidden. `size` is how much of the structure the kernel knows, in bytes.
pub fn landlock_ruleset(files: u64, net: u64, scopes: u64, size: usize) -> io::Result<OwnedFd> {
    let attr: [u64; 3] = [files, net, scopes];
    // SAFETY: the structure is three u64 (`struct landlock_ruleset_attr`), and `size` is at most theirs.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, attr.as_ptr(), size.min(size_of_val(&attr)), 0u32)
    })?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Allows rights below a file or directory.
pub fn landlock_allow(ruleset: BorrowedFd, below: BorrowedFd, rights: u64) -> io::Result<()> {
    /// `struct landlock_path_beneath_attr`, which is packed.
    #[repr(C, packed)]
    struct PathBeneath {
        rights: u64,
        parent: i32,
    }
    const PATH_BENEATH: libc::c_uint = 1;
    let rule = PathBeneath { rights, parent: below.as_raw_fd() };
    // SAFETY: the structure lives through the call, which reads it.
    check(unsafe {
        libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), PATH_BENEATH, &raw const rule, 0u32)
    })
    .map(drop)
}

/// Puts this thread and what it starts under a ruleset, for good.
pub fn landlock_enforce(ruleset: BorrowedFd) -> io::Result<()> {
    // SAFETY: takes two integers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) }).map(drop)
}

/// Puts this thread and what it starts under a filter of system calls, for good.
pub fn filter_system_calls(program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: the program lives through the call, which copies it and checks it.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0u32, &raw const filter) }).map(drop)
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Kills every other process of the namespace that this is process 1 of. Refused to any other process: it would reach the
/// whole system.
pub fn kill_everybody_else_inside() -> io::Result<()> {
    if !rustix::process::getpid().is_init() {
        return Err(io::Error::other("not process 1 of a namespace"));
    }
    // SAFETY: takes two integers.
    match check(unsafe { libc::kill(-1, libc::SIGKILL) }.into()) {
        // Nobody else is there.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result.map(drop),
    }
}
