//! The only unsafe code: four things the C library offers and no safe wrapper in our dependencies does.
//!
//! - glibc's allocator and name service are set up for a small static program;
//! - signals are waited for on a thread of their own, with `sigwait`;
//! - descriptors that the starter left open are closed with one call.
#![allow(unsafe_code)]

use std::io;

/// Sets up the C library. To be called first thing in `main`, before there are threads.
///
/// One malloc arena instead of one for each thread: what ten threads freed stays 228 KB instead of 1,288. And a static
/// glibc must not load name service modules: with libnss-mdns or libnss-resolve in nsswitch.conf the first look-up of a
/// host would end in SIGFPE.
pub fn set_up() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt takes two integers and touches only the allocator's settings; no thread runs yet.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    // SAFETY: both arguments are NUL-terminated strings that live for ever; no thread runs yet. It can fail only for
    // want of memory or for an unknown database, and then the defaults stand.
    unsafe {
        unsafe extern "C" {
            fn __nss_configure_lookup(database: *const libc::c_char, service: *const libc::c_char) -> libc::c_int;
        }
        __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr());
    }
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
#[must_use]
pub fn wait_for_signal() -> i32 {
    let set = ending_set();
    let mut signal = 0;
    // SAFETY: both pointers are to live values of the right type.
    while unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {}
    signal
}

/// Closes every descriptor above standard error that the starter left open.
///
/// # Errors
/// The kernel is older than 5.9 and /proc is missing too.
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
