//! The only unsafe code: system calls for which no dependency has a safe wrapper.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Waits until one of the descriptors is ready, and returns which are. A signal or the timeout returns only `false`.
pub(crate) fn poll(
    watched: &[(BorrowedFd, PollFlags)],
    timeout: Option<Duration>,
) -> io::Result<Vec<bool>> {
    let mut fds: Vec<_> = watched
        .iter()
        .map(|(fd, events)| PollFd::from_borrowed_fd(*fd, *events))
        .collect();
    // Rounds up to the next millisecond, so that a wait does not end early.
    let timeout = timeout.map(|time| {
        if time.is_zero() {
            time
        } else {
            time + Duration::from_millis(1)
        }
    });
    let timeout = timeout
        .map(Timespec::try_from)
        .transpose()
        .map_err(io::Error::other)?;
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) => Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect()),
        Err(Errno::INTR) => Ok(vec![false; watched.len()]),
        Err(e) => Err(e.into()),
    }
}

/// Closes this process's memory, environment and descriptors to other processes of its user, and prevents core dumps.
pub(crate) fn deny_inspection() -> io::Result<()> {
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
        .map_err(Into::into)
}

/// Signals that end a run.
pub(crate) const ENDING: &[libc::c_int] = &[libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    // SAFETY: sigemptyset initializes the whole set before it is read, and the numbers are valid signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}

/// Blocks these signals in this thread and the threads it starts, so that [`wait_for_signal`] gets them. The standard library
/// unblocks them in children.
pub(crate) fn block_signals(signals: &[libc::c_int]) {
    let set = set_of(signals);
    // SAFETY: the set is initialized and lives through the call; a null pointer for the old mask is allowed.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits for one of the blocked signals and returns its number.
pub(crate) fn wait_for_signal(signals: &[libc::c_int]) -> i32 {
    let set = set_of(signals);
    let mut signal = 0;
    // SAFETY: both pointers point to live values of the right type.
    while unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {}
    signal
}

/// Waits for one of the blocked signals, and leaves it pending, so that a new program in this process also gets it.
pub(crate) fn wait_until_pending(signals: &[libc::c_int]) -> io::Result<()> {
    let set = set_of(signals);
    // SAFETY: the set is live and initialized; the descriptor is new and has no other owner.
    let signalled = unsafe {
        let fd = check(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC).into())?;
        OwnedFd::from_raw_fd(fd.try_into().map_err(io::Error::other)?)
    };
    while !poll(&[(signalled.as_fd(), PollFlags::IN)], None)?[0] {}
    Ok(())
}

/// Replaces this process with a new run of this program, with its environment, blocked signals and pending signals. Returns only
/// on failure.
pub(crate) fn reexec(args: &[&CStr]) -> io::Error {
    let pointers = args.iter().map(|arg| arg.as_ptr());
    let list: Vec<_> = pointers.chain([std::ptr::null()]).collect();
    // SAFETY: the pointers point to live strings that end with a null byte, and the list ends with a null pointer.
    unsafe { libc::execv(c"/proc/self/exe".as_ptr(), list.as_ptr()) };
    io::Error::last_os_error()
}

/// Closes every inherited descriptor above standard error. Kernels without that call (before Linux 5.9) also have no sandbox.
pub(crate) fn close_inherited() -> io::Result<()> {
    // SAFETY: close_range takes three integers. The caller owns no descriptor above 2 yet.
    match check(unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) }) {
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        result => result.map(drop),
    }
}

/// Moves this process into new namespaces.
pub(crate) fn unshare(flags: rustix::thread::UnshareFlags) -> io::Result<()> {
    // SAFETY: the caller is single-threaded and shares no descriptor table that unshare could split.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Sets attributes of a mount and, if `below`, also of all mounts in it (Linux 5.12).
pub(crate) fn set_mount_attributes(
    mount: BorrowedFd,
    set: rustix::mount::MountAttrFlags,
    below: bool,
) -> io::Result<()> {
    let attr = libc::mount_attr {
        attr_set: set.bits().into(),
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    let flags = libc::AT_EMPTY_PATH | if below { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a NUL-terminated string, and the structure lives through the call and has the given size.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of_val(&attr),
        )
    })
    .map(drop)
}

/// Brings up the loopback interface of this network namespace.
pub(crate) fn raise_loopback(socket: BorrowedFd) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(*b"lo") {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = 1; // IFF_UP, which C has as a wider type than the field
    // SAFETY: the request is initialized and lives through the call, which reads it.
    check(
        unsafe {
            libc::ioctl(
                socket.as_raw_fd(),
                libc::SIOCSIFFLAGS as _,
                &raw const request,
            )
        }
        .into(),
    )
    .map(drop)
}

/// Addresses of this machine's interfaces, each with the length of its network's prefix.
pub(crate) fn interfaces() -> io::Result<Vec<(IpAddr, u32)>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: getifaddrs writes a pointer to a list, which is freed at the end.
    check(unsafe { libc::getifaddrs(&raw mut list) }.into())?;
    let (mut found, mut entry) = (Vec::new(), list);
    while !entry.is_null() {
        // SAFETY: the entry belongs to the list, and its pointers live as long as the list.
        let (address, mask, next) = unsafe {
            (
                ip((*entry).ifa_addr),
                ip((*entry).ifa_netmask),
                (*entry).ifa_next,
            )
        };
        if let Some(address) = address {
            let length = match mask {
                Some(IpAddr::V4(mask)) => mask.to_bits().leading_ones(),
                Some(IpAddr::V6(mask)) => mask.to_bits().leading_ones(),
                None => 128,
            };
            found.push((
                address,
                if address.is_ipv4() {
                    length.min(32)
                } else {
                    length
                },
            ));
        }
        entry = next;
    }
    // SAFETY: getifaddrs made the list, and the last reference to it has ended.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// Returns the IP address in a socket address.
///
/// # Safety
/// `address` is null, or points to a socket address as long as its family's.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: guaranteed by the caller. The copies need no alignment.
    unsafe {
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from_bits(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => Some(
                Ipv6Addr::from(
                    address
                        .cast::<libc::sockaddr_in6>()
                        .read_unaligned()
                        .sin6_addr
                        .s6_addr,
                )
                .into(),
            ),
            _ => None,
        }
    }
}

/// Returns the Landlock ABI version of this kernel, or an error without Landlock.
pub(crate) fn landlock_abi() -> io::Result<u32> {
    /// `LANDLOCK_CREATE_RULESET_VERSION` of `linux/landlock.h`.
    const VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the call takes no structure and makes no descriptor.
    let abi = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            VERSION,
        )
    })?;
    u32::try_from(abi).map_err(io::Error::other)
}

/// Applies a seccomp filter irrevocably to this thread and its future children.
pub(crate) fn apply_seccomp_filter(program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(io::Error::other)?;
    let filter = libc::sock_fprog {
        len,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program lives through the call, which copies it and checks it.
    check(unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            0u32,
            &raw const filter,
        )
    })
    .map(drop)
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Makes `command` start as the leader of a session, in this Landlock domain and under this filter.
pub(crate) fn start_confined(
    command: &mut Command,
    domain: Option<OwnedFd>,
    mut filter: Option<Vec<libc::sock_filter>>,
) {
    let confine = move || {
        rustix::process::setsid()?;
        if let Some(domain) = &domain {
            // SAFETY: takes a descriptor and an integer.
            check(unsafe {
                libc::syscall(libc::SYS_landlock_restrict_self, domain.as_raw_fd(), 0)
            })?;
        }
        filter
            .as_mut()
            .map_or(Ok(()), |filter| apply_seccomp_filter(filter))
    };
    // SAFETY: the closure makes system calls and allocates nothing, as required between fork and exec.
    unsafe { command.pre_exec(confine) };
}

/// Kills every other process that this one may signal. Call this only inside a sandbox; outside, it would kill all processes of
/// the user.
pub(crate) fn kill_all_others() -> io::Result<()> {
    // SAFETY: takes two integers.
    match check(unsafe { libc::kill(-1, libc::SIGKILL) }.into()) {
        // Kill found no other process.
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        result => result.map(drop),
    }
}

/// Unwinding that finds nothing, in place of the C library's. A release binary has no tables to unwind with and no symbols, so a
/// backtrace could print no frame, but the standard library would bring its reader of debug information: 248 KB. Release builds
/// for musl that abort on a panic have these, except 32-bit ARM, whose start files need the real ones. See docs/building.md.
#[cfg(all(
    target_env = "musl",
    panic = "abort",
    not(debug_assertions),
    not(target_arch = "arm")
))]
mod no_unwinding {
    macro_rules! finds_nothing {
        ($($name:ident)*) => {
            // SAFETY: nothing else defines these names, and each takes at most three words and returns at most one. All return 0:
            // "no error" of the backtrace without a frame. Only a panic that unwinds calls the others, and ours abort.
            $(#[unsafe(no_mangle)]
            extern "C" fn $name() -> usize {
                0
            })*
        };
    }
    finds_nothing! {
        _Unwind_Backtrace _Unwind_DeleteException _Unwind_FindEnclosingFunction _Unwind_GetCFA _Unwind_GetDataRelBase
        _Unwind_GetIP _Unwind_GetIPInfo _Unwind_GetLanguageSpecificData _Unwind_GetRegionStart _Unwind_GetTextRelBase
        _Unwind_RaiseException _Unwind_Resume _Unwind_SetGR _Unwind_SetIP
    }
}
