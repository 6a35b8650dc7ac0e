//! Stops chosen system calls of the program before the kernel makes them; a test then allows each call, makes it fail, or kills
//! the program.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, kill_process};

use super::support::program::program;
use super::support::without_syscall::filter;

/// A system call that waits for a verdict.
pub struct Stop {
    pub call: libc::c_long,
    pub args: [u64; 6],
    /// Calling thread.
    thread: i32,
}

/// Verdict on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    GoOn,
    /// Skips the call, which fails with this error.
    Fail(i32),
    /// Skips the call and kills its process.
    Kill,
}

impl Stop {
    /// Returns the calling process, if it already executes bantam.
    pub fn program(&self) -> Option<i32> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.thread)).ok()?;
        let process = status
            .lines()
            .find_map(|line| line.strip_prefix("Tgid:"))?
            .trim()
            .parse()
            .ok()?;
        let runs = fs::read_link(format!("/proc/{}/exe", self.thread)).ok()?;
        (runs == Path::new(program())).then_some(process)
    }

    /// Returns the target of the descriptor in this argument: a path, `socket:[N]`, `pipe:[N]`.
    pub fn target(&self, argument: usize) -> PathBuf {
        // A descriptor is an int; the upper bits of the register are undefined.
        let fd = self.args[argument] & u64::from(u32::MAX);
        fs::read_link(format!("/proc/{}/fd/{fd}", self.thread)).unwrap_or_default()
    }

    /// Returns the path at the address in this argument.
    pub fn path(&self, argument: usize) -> PathBuf {
        let mut bytes = self.bytes(self.args[argument], 4096);
        bytes.truncate(
            bytes
                .iter()
                .position(|byte| *byte == 0)
                .unwrap_or(bytes.len()),
        );
        OsString::from_vec(bytes).into()
    }

    /// Returns the program's memory at this address, as far as it can be read.
    pub fn bytes(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let memory = File::open(format!("/proc/{}/mem", self.thread));
        let read = memory
            .and_then(|memory| memory.read_at(&mut bytes, address))
            .unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    fn end(&self) {
        let process = self.program().and_then(Pid::from_raw);
        kill_process(process.unwrap(), Signal::KILL).unwrap();
    }
}

/// Runs `work`, and calls `judge` for each of these calls made by it and its processes.
pub fn trace<T: Send>(
    calls: &[libc::c_long],
    work: impl FnOnce() -> T + Send,
    mut judge: impl FnMut(&Stop) -> Verdict,
) -> T {
    thread::scope(|scope| {
        let (tell, told) = channel();
        // The filter applies to one thread and its children, and ends with it.
        let working = scope.spawn(move || {
            tell.send(stop_at(calls).unwrap()).unwrap();
            work()
        });
        if let Ok(stops) = told.recv() {
            while let Some((id, stop)) = next(&stops) {
                answer(&stops, id, &stop, judge(&stop));
            }
        }
        working
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Stops these calls of the calling thread and its children, and reports them at the descriptor.
fn stop_at(calls: &[libc::c_long]) -> io::Result<OwnedFd> {
    let mut program = filter(
        calls
            .iter()
            .map(|call| (*call, libc::SECCOMP_RET_USER_NOTIF)),
    );
    let length = u16::try_from(program.len()).unwrap();
    let filter = libc::sock_fprog {
        len: length,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: the program lives through the call, which copies it, and the descriptor is new and has no other owner.
    unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        let fd = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const filter,
        );
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(i32::try_from(fd).unwrap()))
    }
}

/// Waits until a call stops; `None` when all processes have ended.
fn next(stops: &OwnedFd) -> Option<(u64, Stop)> {
    /// `SECCOMP_IOCTL_NOTIF_RECV` of `linux/seccomp.h`.
    const RECEIVE: libc::c_ulong = 0xc050_2100;
    loop {
        let mut ready = [PollFd::new(stops, PollFlags::IN)];
        match poll(&mut ready, None) {
            Err(rustix::io::Errno::INTR) => continue,
            result => result.unwrap(),
        };
        if !ready[0].revents().contains(PollFlags::IN) {
            return None;
        }
        // SAFETY: the struct is the kernel's, zeroed as required and alive through the call. If the caller has died meanwhile,
        // the result is an error instead of a stop.
        unsafe {
            let mut stop: libc::seccomp_notif = mem::zeroed();
            if libc::ioctl(stops.as_raw_fd(), RECEIVE as _, &raw mut stop) == 0 {
                let thread = i32::try_from(stop.pid).unwrap();
                return Some((
                    stop.id,
                    Stop {
                        call: stop.data.nr.into(),
                        args: stop.data.args,
                        thread,
                    },
                ));
            }
        }
    }
}

fn answer(stops: &OwnedFd, id: u64, stop: &Stop, verdict: Verdict) {
    /// `SECCOMP_IOCTL_NOTIF_SEND` of `linux/seccomp.h`.
    const SEND: libc::c_ulong = 0xc018_2101;
    // SAFETY: the struct is the kernel's; all zero is a valid one.
    let mut answer: libc::seccomp_notif_resp = unsafe { mem::zeroed() };
    answer.id = id;
    match verdict {
        Verdict::GoOn => answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE.try_into().unwrap(),
        Verdict::Fail(errno) => answer.error = -errno,
        Verdict::Kill => return stop.end(),
    }
    // SAFETY: it is alive through the call. If the caller has died meanwhile, the result is an error, which is ignored.
    unsafe { libc::ioctl(stops.as_raw_fd(), SEND as _, &raw mut answer) };
}
