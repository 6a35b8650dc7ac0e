//! Private namespaces of a test, so that a successful attack harms nothing else.
//!
//! Attacks without a sandbox run here as root. The processes, mounts, network and host name that they can reach belong to the
//! netns; the files, sockets and processes that they target belong to the test. The netns is not under test: in it, processes
//! have the rights that they would have outside.
//!
//! The kernel limits the processes of the netns from outside: see [`Bound`].

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{BOMB, new_name};
use crate::harness::until;
use crate::kernel::{self, Birth, born, bounded};
use crate::matrix::Starter;

/// A system directory that is private to the netns.
pub const SYSTEM_DIR: &str = "/usr/local/src";

type Task = Box<dyn FnOnce() + Send>;

/// Limit on the processes of a netns: three times the size of the fork bomb, so that the bomb is detected but harmless.
pub struct Bound {
    most: usize,
    /// Control group of the pids controller; `None` if unavailable, and then the limit is on the user.
    group: Option<Group>,
    /// Control group with one core, if there is one.
    core: Option<Group>,
}

impl Bound {
    pub fn new(most: usize) -> Self {
        // Version 1 of control groups, then version 2.
        let group = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"]
            .into_iter()
            .find_map(|root| Group::below(root, "pids.max", &most.to_string()));
        let core = None;
        Self { most, group, core }
    }

    /// Leaves the other cores to the rest of the machine.
    pub fn on_one_core(self) -> Self {
        let core = Group::below("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "100000");
        if let (None, Some(group)) = (&core, &self.group) {
            fs::write(group.0.join("cpu.max"), "100000 100000").ok();
        }
        Self { core, ..self }
    }

    /// Whether it also limits root.
    pub fn holds_root(&self) -> bool {
        self.group.is_some()
    }

    fn hold(&self, command: &mut Command) {
        let joined = |group: &Group| {
            File::options()
                .write(true)
                .open(group.0.join("cgroup.procs"))
                .unwrap()
        };
        let groups = self.group.iter().chain(&self.core).map(joined).collect();
        bounded(command, groups, self.most.try_into().unwrap());
    }
}

/// A control group, removed when dropped.
struct Group(PathBuf);

impl Group {
    fn below(root: &str, limit: &str, most: &str) -> Option<Self> {
        let path = Path::new(root).join(format!("bantam-{}", new_name()));
        fs::create_dir(&path).ok()?;
        let group = Self(path);
        let is_group = group.0.join("cgroup.procs").exists();
        (is_group && fs::write(group.0.join(limit), most).is_ok()).then_some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its processes take a moment to end.
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::park_timeout(Duration::from_millis(10));
        }
    }
}

/// The namespaces, as seen by the thread of [`enter`].
pub struct Netns {
    /// Starts processes in the netns, because a thread whose children are born into its pid namespace cannot start threads.
    tasks: Sender<Task>,
    /// `/proc` from outside, with the outer process numbers.
    outside: File,
    init: Pid,
    bound: Bound,
}

/// Runs `body` in a new netns, whose first process belongs to `uid` and has `secret` in its environment.
pub fn enter<T: Send>(uid: u32, secret: &str, body: impl FnOnce(&Netns) -> T + Send) -> T {
    enter_bounded(uid, secret, Bound::new(3 * BOMB), body)
}

pub fn enter_bounded<T: Send>(
    uid: u32,
    secret: &str,
    bound: Bound,
    body: impl FnOnce(&Netns) -> T + Send,
) -> T {
    let work = || {
        let outside = File::open("/proc").unwrap();
        let flags =
            libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWUTS | libc::CLONE_NEWIPC;
        if let Err(error) = kernel::unshare(flags) {
            panic!(
                "these tests need root and the right to make namespaces (try sudo, or a privileged container): {error}"
            );
        }
        kernel::keep_mounts_private().unwrap();
        kernel::loopback_up().unwrap();
        // A world-writable system directory, to be written by commands that must see a read-only system.
        kernel::mount("tmpfs", Path::new(SYSTEM_DIR), "mode=0777,size=1m").unwrap();
        let (tasks, to_do) = channel::<Task>();
        thread::spawn(move || {
            kernel::unshare(libc::CLONE_NEWPID).unwrap();
            for task in to_do {
                task();
            }
        });
        let script = "mount -t proc proc /proc && exec setpriv --reuid $0 --regid $0 --clear-groups \
            perl -e '$SIG{CHLD} = \"IGNORE\"; sleep 3600 while 1'";
        let mut init = Command::new("/bin/sh");
        init.args(["-c", script, &uid.to_string()])
            .env("SECRET", secret);
        bound.hold(&mut init);
        let mut init = spawn_by(&tasks, init);
        let pid = Pid::from_child(&init);
        // The end of this process ends every process in the netns.
        thread::spawn(move || init.wait());
        until("the netns has its own /proc", || {
            std::fs::read("/proc/1/comm").is_ok_and(|name| name.starts_with(b"perl"))
        });
        let netns = Netns {
            tasks,
            outside,
            init: pid,
            bound,
        };
        body(&netns)
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

fn spawn_by(tasks: &Sender<Task>, mut command: Command) -> Child {
    let (sender, started) = channel();
    tasks
        .send(Box::new(move || sender.send(command.spawn()).unwrap()))
        .unwrap();
    started.recv().unwrap().unwrap()
}

impl Netns {
    /// Starts a process in the netns.
    pub fn spawn(&self, mut command: Command, birth: Birth) -> Child {
        self.bound.hold(&mut command);
        born(&mut command, birth);
        spawn_by(&self.tasks, command)
    }

    /// Runs a process of `uid` in the netns. It must succeed; returns its output.
    pub fn output(&self, uid: u32, mut command: Command) -> String {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let shown = format!("{command:?}");
        let output = self
            .spawn(command, Birth::of(uid))
            .wait_with_output()
            .unwrap();
        assert!(output.status.success(), "{shown}: {}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the number of this process in the netns.
    pub fn number(&self, child: u32) -> u32 {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let status = openat(
            self.outside.as_fd(),
            format!("{child}/status"),
            flags,
            Mode::empty(),
        )
        .unwrap();
        let mut text = String::new();
        File::from(status).read_to_string(&mut text).unwrap();
        let numbers = text
            .lines()
            .find_map(|line| line.strip_prefix("NSpid:"))
            .unwrap();
        numbers
            .split_whitespace()
            .nth(1)
            .unwrap_or_else(|| panic!("{child} is not in the netns"))
            .parse()
            .unwrap()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        kill_process(self.init, Signal::KILL).ok();
    }
}

/// Starts up to 60 processes, and prints their number.
const BOMBLET: &str = "
import os, time
n = 0
for _ in range(60):
    try:
        if os.fork() == 0:
            os.close(1)
            time.sleep(60)
            os._exit(0)
        n += 1
    except OSError:
        break
print(n)";

#[test]
fn no_netns_has_more_processes_than_its_bound() {
    let most = 20;
    let started = |uid: u32, bound: Bound| -> usize {
        enter_bounded(uid, "nothing", bound, |netns| {
            let mut bomb = Command::new("/usr/bin/python3");
            bomb.args(["-c", BOMBLET]).current_dir("/");
            netns.output(uid, bomb).trim().parse().unwrap()
        })
    };
    let user = Starter::User.ground(&[]).uid;
    for uid in [0, user] {
        match Bound::new(most) {
            Bound { group: None, .. } => eprintln!("this machine gives no pids group"),
            // Includes the first process and the bomblet.
            bound => assert_eq!(started(uid, bound), most - 2, "user {uid} in a group"),
        }
    }
    assert_eq!(
        started(
            user,
            Bound {
                most,
                group: None,
                core: None
            }
        ),
        most - 2,
        "user {user} with a limit"
    );
}
