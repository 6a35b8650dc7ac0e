//! How often a program waits for the disk: each call of the fsync kind stops at a filter that the program is born with, is
//! counted, and goes on.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::thread;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};
use rustix::event::{PollFd, PollFlags, poll};

/// Every system call that waits until something is on the disk.
const CALLS: [libc::c_long; 6] = [
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    #[cfg(not(target_arch = "arm"))]
    libc::SYS_sync_file_range,
    #[cfg(target_arch = "arm")]
    libc::SYS_arm_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_sync,
    libc::SYS_msync,
];

/// Does `work`, and tells what came of it and how many such calls it and every process that it started made.
pub fn counted<T: Send>(work: impl FnOnce() -> T + Send) -> (T, usize) {
    thread::scope(|scope| {
        let (tell, told) = channel();
        // The filter is for one thread and what it starts, and ends with it.
        let working = scope.spawn(move || {
            tell.send(stop_at(&CALLS).unwrap()).unwrap();
            work()
        });
        let count = told.recv().map_or(0, |stops| let_go_on(&stops));
        let done = working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (done, count)
    })
}

/// Has these calls of the calling thread, and of all that it starts, stop and be told at the descriptor.
fn stop_at(calls: &[libc::c_long]) -> io::Result<OwnedFd> {
    let op = |code: u32, k: u32, jf: u8| sock_filter { code: u16::try_from(code).unwrap(), jt: 0, jf, k };
    let mut program = vec![op(BPF_LD | BPF_W | BPF_ABS, 0, 0)];
    for call in calls {
        program.push(op(BPF_JMP | BPF_JEQ | BPF_K, u32::try_from(*call).unwrap(), 1));
        program.push(op(BPF_RET | BPF_K, libc::SECCOMP_RET_USER_NOTIF, 0));
    }
    program.push(op(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW, 0));
    let length = u16::try_from(program.len()).unwrap();
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the program lives through the call, which copies it, and the descriptor is new and nobody else's.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let fd = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const filter);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()))
    }
}

/// Lets every call that stops go on, until nobody is left to make one, and counts them.
fn let_go_on(stops: &OwnedFd) -> usize {
    /// `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND` of `linux/seccomp.h`.
    const RECEIVE: libc::c_ulong = 0xc050_2100;
    const SEND: libc::c_ulong = 0xc018_2101;
    let mut count = 0;
    loop {
        let mut ready = [PollFd::new(stops, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result.unwrap(),
        };
        if !ready[0].revents().contains(PollFlags::IN) {
            return count;
        }
        // SAFETY: both structs are the kernel's, zeroed as it asks and alive through the calls. One whose caller has died
        // meanwhile is an error, and is not answered.
        unsafe {
            let mut stop: libc::seccomp_notif = mem::zeroed();
            if libc::ioctl(stops.as_raw_fd(), RECEIVE as _, &raw mut stop) == 0 {
                let mut answer: libc::seccomp_notif_resp = mem::zeroed();
                answer.id = stop.id;
                answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE.try_into().unwrap();
                libc::ioctl(stops.as_raw_fd(), SEND as _, &raw mut answer);
                count += 1;
            }
        }
    }
}
