//! Kernel features for which there is no safe wrapper: namespaces for a thread, filters that remove a mechanism, and a few
//! unusual sockets and handles as targets.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fmt::Write;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags};

fn done(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives the calling thread new namespaces of the kinds in `flags`.
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes an integer and changes only the calling thread's view of the system.
    done(unsafe { libc::unshare(flags) })
}

/// Makes mounts private to the calling thread's namespace.
pub fn keep_mounts_private() -> io::Result<()> {
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: the paths are NUL-terminated and the unused arguments are null, as mount(2) requires.
    done(unsafe {
        libc::mount(
            c"none".as_ptr(),
            c"/".as_ptr(),
            std::ptr::null(),
            flags,
            std::ptr::null(),
        )
    })
}

/// Mounts a file system without a device.
pub fn mount(kind: &str, at: &Path, options: &str) -> io::Result<()> {
    let [kind, options] = [kind, options].map(|text| CString::new(text).unwrap());
    let at = CString::new(at.as_os_str().as_bytes()).unwrap();
    // SAFETY: every pointer is to a NUL-terminated string that lives through the call.
    done(unsafe {
        libc::mount(
            kind.as_ptr(),
            at.as_ptr(),
            kind.as_ptr(),
            0,
            options.as_ptr().cast(),
        )
    })
}

/// Unmounts the last file system mounted at a path, once it is unused.
pub fn unmount(at: &Path) -> io::Result<()> {
    let at = CString::new(at.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is NUL-terminated and lives through the call.
    done(unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) })
}

/// Address of the loopback interface in addition to 127.0.0.1.
pub const ALIAS: [u8; 4] = [127, 77, 66, 55];

/// Turns on loopback in the calling thread's network, with [`ALIAS`] as a second address.
pub fn loopback_up() -> io::Result<()> {
    // SAFETY: the socket call takes integers and returns a new descriptor without another owner.
    let socket = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let ask = |name: &[u8], call: libc::c_ulong, fill: &dyn Fn(&mut libc::ifreq)| {
        // SAFETY: all zeroes is a valid ifreq; the name is shorter than its array; the kernel only reads the struct.
        unsafe {
            let mut request: libc::ifreq = mem::zeroed();
            for (to, from) in request.ifr_name.iter_mut().zip(name) {
                *to = libc::c_char::from_ne_bytes([*from]);
            }
            fill(&mut request);
            // The type of a request differs between C libraries.
            done(libc::ioctl(
                socket.as_raw_fd(),
                call as _,
                &raw const request,
            ))
        }
    };
    ask(b"lo", libc::SIOCSIFFLAGS as libc::c_ulong, &|request| {
        request.ifr_ifru.ifru_flags = i16::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap();
    })?;
    ask(b"lo:1", libc::SIOCSIFADDR as libc::c_ulong, &|request| {
        request.ifr_ifru.ifru_addr.sa_family = libc::sa_family_t::try_from(libc::AF_INET).unwrap();
        for (to, from) in request.ifr_ifru.ifru_addr_bytes().iter_mut().zip(ALIAS) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
    })
}

/// The four bytes of an IPv4 address within the generic socket address.
trait AddressBytes {
    fn ifru_addr_bytes(&mut self) -> &mut [libc::c_char];
}

impl AddressBytes for libc::__c_anonymous_ifr_ifru {
    fn ifru_addr_bytes(&mut self) -> &mut [libc::c_char] {
        // SAFETY: the address is the variant in use, and its data begin with a port of two bytes.
        unsafe { &mut self.ifru_addr.sa_data[2..6] }
    }
}

/// Opens a socket that receives every ping to this network. Needs root.
pub fn ping_socket() -> io::Result<std::fs::File> {
    // SAFETY: the socket call takes integers and returns a new descriptor without another owner, which is only read.
    unsafe {
        let fd = libc::socket(
            libc::AF_INET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            libc::IPPROTO_ICMP,
        );
        if fd < 0 {
            Err(io::Error::last_os_error())
        } else {
            Ok(std::fs::File::from_raw_fd(fd))
        }
    }
}

/// Makes a device that reads as endless zeros.
pub fn make_zero_device(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the path is NUL-terminated and lives through the call.
    done(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 5)) })
}

/// Returns the handle by which a file can be opened without its path: its type, and its bytes in hexadecimal.
pub fn file_handle(path: &Path) -> io::Result<(i32, String)> {
    const ROOM: u32 = 128;
    #[repr(C)]
    struct Handle {
        length: u32,
        kind: i32,
        bytes: [u8; ROOM as usize],
    }
    let mut handle = Handle {
        length: ROOM,
        kind: 0,
        bytes: [0; ROOM as usize],
    };
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut mount: libc::c_int = 0;
    let (at, call) = (libc::AT_FDCWD, libc::SYS_name_to_handle_at);
    // SAFETY: `handle` is laid out as struct file_handle with the announced space, and all pointers outlive the call.
    let result =
        unsafe { libc::syscall(call, at, path.as_ptr(), &raw mut handle, &raw mut mount, 0) };
    done(libc::c_int::try_from(result).unwrap())?;
    let mut text = String::new();
    handle.bytes[..handle.length as usize]
        .iter()
        .for_each(|byte| write!(text, "{byte:02x}").unwrap());
    Ok((handle.kind, text))
}

/// Returns the I/O priority of a process.
pub fn io_priority(pid: u32) -> i64 {
    // SAFETY: the call takes integers and changes nothing.
    unsafe { libc::syscall(libc::SYS_ioprio_get, 1, pid) }
}

/// Returns the version of Landlock that the kernel supports; 0 without Landlock.
pub fn landlock_version() -> i64 {
    // SAFETY: with a null attribute, size 0 and flag 1, the call only returns the version.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<u8>(),
            0,
            1,
        )
    };
    version.max(0)
}

/// Filter action for a query of the Landlock version that is answered by another process.
const ASK_OUTSIDE: u32 = libc::SECCOMP_RET_USER_NOTIF;

/// Condition of a rule: always, when an argument has a value, or when it has any bit of a mask.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum When {
    Always,
    Is(u32, u32),
    Has(u32, u32),
}

/// A system call, and its result instead of an effect: an errno, or 0 to pretend success.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rule(pub libc::c_long, pub When, pub libc::c_int);

#[cfg(target_arch = "x86_64")]
const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCH: u32 = 0xc000_00b7;
#[cfg(target_arch = "arm")]
const ARCH: u32 = 0x4000_0028;

/// Compiles the rules to a program for the kernel.
fn compiled(rules: &[Rule], ask_for_landlock: bool) -> Vec<libc::sock_filter> {
    let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt,
        jf,
        k,
    };
    let load = |offset: u32| op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0);
    let jump = |kind: u32, value: u32, jt: u8, jf: u8| {
        op(libc::BPF_JMP | kind | libc::BPF_K, value, jt, jf)
    };
    let say = |what: u32| op(libc::BPF_RET | libc::BPF_K, what, 0, 0);
    // Low half of argument n; arguments are 64 bits wide and begin at byte 16.
    let argument = |n: u32| load(16 + 8 * n);
    let mut program = vec![
        load(4),
        jump(libc::BPF_JEQ, ARCH, 1, 0),
        say(libc::SECCOMP_RET_ALLOW),
    ];
    if ask_for_landlock {
        // Flag 1 in the third argument queries the version.
        let call = u32::try_from(libc::SYS_landlock_create_ruleset).unwrap();
        program.extend([
            load(0),
            jump(libc::BPF_JEQ, call, 0, 3),
            argument(2),
            jump(libc::BPF_JEQ, 1, 0, 1),
        ]);
        program.push(say(ASK_OUTSIDE));
    }
    for Rule(call, when, errno) in rules {
        let call = u32::try_from(*call).unwrap();
        let answer = say(libc::SECCOMP_RET_ERRNO | u32::try_from(*errno).unwrap());
        program.push(load(0));
        match *when {
            When::Always => program.push(jump(libc::BPF_JEQ, call, 0, 1)),
            When::Is(n, value) => {
                program.extend([
                    jump(libc::BPF_JEQ, call, 0, 3),
                    argument(n),
                    jump(libc::BPF_JEQ, value, 0, 1),
                ]);
            }
            When::Has(n, mask) => {
                program.extend([
                    jump(libc::BPF_JEQ, call, 0, 3),
                    argument(n),
                    jump(libc::BPF_JSET, mask, 0, 1),
                ]);
            }
        }
        program.push(answer);
    }
    program.push(say(libc::SECCOMP_RET_ALLOW));
    program
}

/// User of a process, and the features that the kernel withholds from its start.
#[derive(Clone, Copy)]
pub struct Birth {
    pub uid: u32,
    pub rules: &'static [&'static [Rule]],
    /// Descriptor that it has open as number 9.
    pub ninth: Option<i32>,
    /// Whether [`Questions`] answer for the version of Landlock.
    pub asks_for_landlock: bool,
}

impl Birth {
    /// Returns a process of `uid` with all features.
    pub fn of(uid: u32) -> Self {
        Self {
            uid,
            rules: &[],
            ninth: None,
            asks_for_landlock: false,
        }
    }
}

/// Starts `command` as described by `birth`.
pub fn born(command: &mut Command, birth: Birth) {
    let rules: Vec<Rule> = birth.rules.iter().copied().flatten().copied().collect();
    let program = compiled(&rules, birth.asks_for_landlock);
    let length = u16::try_from(program.len()).unwrap();
    let start = move || {
        let program = libc::sock_fprog {
            len: length,
            filter: program.as_ptr().cast_mut(),
        };
        // SAFETY: makes only system calls and does not allocate, because this runs between fork and exec. The filter's program
        // lives through the call, and the kernel copies it. It is installed first, because only root can do so without also
        // giving up new privileges.
        unsafe {
            if let Some(fd) = birth.ninth {
                kept(fd, 9)?;
            }
            let flags = if birth.asks_for_landlock {
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER
            } else {
                0
            };
            let listener = libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            );
            if listener < 0 {
                return Err(io::Error::last_os_error());
            }
            if birth.asks_for_landlock {
                kept(
                    i32::try_from(listener)
                        .map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?,
                    LISTENER,
                )?;
            }
            if birth.uid != 0 {
                done(libc::setgroups(0, std::ptr::null()))?;
                done(libc::setresgid(birth.uid, birth.uid, birth.uid))?;
                done(libc::setresuid(birth.uid, birth.uid, birth.uid))?;
            }
        }
        Ok(())
    };
    // SAFETY: the closure does nothing that is not allowed between fork and exec.
    unsafe { command.pre_exec(start) };
}

/// Makes `command` join the groups with these `cgroup.procs`. Without a group, limits the processes of its user, which does not
/// apply to root. To be called before [`born`].
pub fn bounded(command: &mut Command, groups: Vec<std::fs::File>, most: libc::rlim_t) {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    let start = move || {
        for group in &groups {
            // "0" is the process that writes it.
            rustix::io::write(group, b"0")?;
        }
        if groups.is_empty() {
            // SAFETY: the limit lives through the call.
            done(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) })?;
        }
        Ok(())
    };
    // SAFETY: the closure makes only system calls, which are allowed between fork and exec.
    unsafe { command.pre_exec(start) };
}

/// Duplicates `fd` to this number in a process about to start, also after its exec. If they are equal, dup2 has no effect and
/// the descriptor would be closed.
fn kept(fd: i32, number: i32) -> io::Result<()> {
    // SAFETY: makes system calls on numbers; a descriptor open under this number belongs to this process.
    unsafe {
        done(libc::dup2(fd, number).min(0))?;
        done(libc::fcntl(number, libc::F_SETFD, 0))
    }
}

/// Number of the descriptor with the other end of a process's questions, until [`Questions::of`] has taken it. It is unused at
/// that time.
const LISTENER: i32 = 900;

/// Queries of the Landlock version by a process and its descendants.
pub struct Questions(OwnedFd);

impl Questions {
    /// `None` for a process that has ended.
    pub fn of(child: &Child) -> Option<Self> {
        let child =
            rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty()).unwrap();
        // SAFETY: the call takes integers and gives a descriptor that nobody else owns.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_getfd, child.as_raw_fd(), LISTENER, 0) };
        let error = io::Error::last_os_error();
        if fd < 0 && error.raw_os_error() == Some(libc::ESRCH) {
            return None;
        }
        assert!(fd >= 0, "taking the questions: {error}");
        // SAFETY: as above.
        Some(Self(unsafe {
            OwnedFd::from_raw_fd(i32::try_from(fd).unwrap())
        }))
    }

    /// Answers with this version until all such processes have ended.
    pub fn answer(&self, version: i64) {
        const RECEIVE: libc::c_ulong = 0xc050_2100;
        const SEND: libc::c_ulong = 0xc018_2101;
        loop {
            let mut ready = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut ready, None) {
                Err(rustix::io::Errno::INTR) => continue,
                result => result.unwrap(),
            };
            if !ready[0].revents().contains(PollFlags::IN) {
                return;
            }
            // SAFETY: both structs are the kernel's, zeroed as required and alive through the calls. A query whose process has
            // died meanwhile is an error, and is not answered.
            unsafe {
                let mut question: libc::seccomp_notif = mem::zeroed();
                if libc::ioctl(self.0.as_raw_fd(), RECEIVE as _, &raw mut question) == 0 {
                    let mut answer: libc::seccomp_notif_resp = mem::zeroed();
                    (answer.id, answer.val) = (question.id, version);
                    libc::ioctl(self.0.as_raw_fd(), SEND as _, &raw mut answer);
                }
            }
        }
    }
}
