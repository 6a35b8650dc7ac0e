//! A place to fight in: namespaces of the test's own, so that an attack that succeeds hurts nobody else.
//!
//! Bare attacks run here as root. What they can reach (processes, mounts, network, the host's name) is the netns's; the
//! files, sockets and processes they are aimed at are the test's own. The netns is no part of what is tested: in it,
//! the rights of a process are those it would have outside.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::until;
use crate::kernel::{self, Birth, born};

/// A directory of the system that is the netns's own.
pub const SYSTEM_DIR: &str = "/usr/local/src";

type Task = Box<dyn FnOnce() + Send>;

/// The namespaces, as the thread that [`enter`] made sees them.
pub struct Netns {
    /// Starts processes in the netns: a thread whose children are born into its pid namespace can start no threads.
    tasks: Sender<Task>,
    /// `/proc` from outside, where the test's own numbers of processes are known.
    outside: File,
    init: Pid,
}

/// Runs `body` in a new netns, whose first process belongs to `uid` and holds `secret` in its environment.
pub fn enter<T: Send>(uid: u32, secret: &str, body: impl FnOnce(&Netns) -> T + Send) -> T {
    let fight = || {
        let outside = File::open("/proc").unwrap();
        let flags = libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;
        if let Err(error) = kernel::unshare(flags) {
            panic!(
                "these tests need root and the right to make namespaces (try sudo, or a privileged container): {error}"
            );
        }
        kernel::keep_mounts_private().unwrap();
        kernel::loopback_up().unwrap();
        // A part of the system that everybody may write, to be written by whom the system is read-only for.
        kernel::mount("tmpfs", Path::new(SYSTEM_DIR), "mode=0777,size=1m").unwrap();
        let (tasks, to_do) = channel::<Task>();
        thread::spawn(move || {
            kernel::unshare(libc::CLONE_NEWPID).unwrap();
            for task in to_do {
                task();
            }
        });
        let script = "mount -t proc proc /proc && exec setpriv --reuid $0 --regid $0 --clear-groups sleep infinity";
        let mut init = Command::new("/bin/sh");
        init.args(["-c", script, &uid.to_string()]).env("SECRET", secret);
        let mut init = spawn_by(&tasks, init);
        let pid = Pid::from_child(&init);
        // Its end is the end of every process in the netns.
        thread::spawn(move || init.wait());
        until("the netns has its own /proc", || {
            std::fs::read("/proc/1/comm").is_ok_and(|name| name.starts_with(b"sleep"))
        });
        let netns = Netns { tasks, outside, init: pid };
        body(&netns)
    };
    thread::scope(|scope| scope.spawn(fight).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

fn spawn_by(tasks: &Sender<Task>, mut command: Command) -> Child {
    let (sender, started) = channel();
    tasks.send(Box::new(move || sender.send(command.spawn()).unwrap())).unwrap();
    started.recv().unwrap().unwrap()
}

impl Netns {
    /// Starts a process here.
    pub fn spawn(&self, command: Command) -> Child {
        spawn_by(&self.tasks, command)
    }

    /// Starts a process of `uid` here and waits for its end. It must succeed; what it printed is returned.
    pub fn output(&self, uid: u32, mut command: Command) -> String {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        born(&mut command, Birth::of(uid));
        let shown = format!("{command:?}");
        let output = self.spawn(command).wait_with_output().unwrap();
        assert!(output.status.success(), "{shown}: {}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The number that processes in the netns know this one by.
    pub fn number(&self, child: u32) -> u32 {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let status = openat(self.outside.as_fd(), format!("{child}/status"), flags, Mode::empty()).unwrap();
        let mut text = String::new();
        File::from(status).read_to_string(&mut text).unwrap();
        let numbers = text.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
        numbers.split_whitespace().nth(1).unwrap_or_else(|| panic!("{child} is not in the netns")).parse().unwrap()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        kill_process(self.init, Signal::KILL).ok();
    }
}
