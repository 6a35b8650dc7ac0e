//! The worker process: confines itself, reads the job, does it, replies and ends.
//!
//! A sandbox takes two processes. The outer one makes the namespaces, starts the inner one, and kills what that leaves
//! behind; nothing in the sandbox can reach it. The inner one finishes the sandbox and does the job.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getpid, pidfd_open};

use super::processes::Processes;
use super::reaper::Reaper;
use super::{INNER_ROLE, ROLE, SETUP, exec, serve};
use crate::access::Dir;
use crate::child;
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, OpenGrants};
use crate::json::from_json;
use crate::sandbox;
use crate::sys;
use crate::text::clip;
use crate::web;
use crate::worker::protocol::{
    self, Confinement, Header, Job, Message, Programs, Reply, Setup, Termination,
};

/// How long the inner process may continue after the caller has gone; shorter than the caller waits for the outer one.
pub(super) const INNER_GRACE: Duration = Duration::from_secs(3);

/// How often the processes of a command are counted, and those of a server.
const COUNT_COMMANDS: Duration = Duration::from_millis(20);
const COUNT_SERVERS: Duration = Duration::from_millis(100);

/// What reading a page may take: bytes, and seconds of the processor; and the most bytes of what is read.
const MAX_READING_MEMORY: u64 = 256 << 20;
const MAX_READING_SECONDS: u64 = 10;
const MAX_READ: usize = 24 << 20;

/// The most bytes of why something failed.
const MAX_WHY: usize = 8 << 10;

/// Open files per process.
const MAX_OPEN_FILES: u64 = 1024;

/// Does what a worker process does, in this role, and returns whether it did it.
pub(super) fn main(role: &str, setup: &str) -> bool {
    let result = match (start(role, setup), role) {
        (Ok(setup), ROLE) if setup.confinement.is_sandboxed() => run_outer(&setup),
        (Ok(setup), _) => do_job(&setup),
        (Err(e), _) => Err(e),
    };
    match result {
        Ok(()) => true,
        // When the caller has gone, nobody needs to know.
        Err(e) => {
            drop(say(&Message::Done(refused(&e))));
            false
        }
    }
}

fn refused(e: &Error) -> Header {
    Header::Refused {
        why: clip(&e.message, MAX_WHY).to_owned(),
    }
}

/// The socket that leads to the caller. Not buffered: what follows the job may belong to the program that it starts.
fn caller() -> Result<fs_err::File> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(fs_err::File::from_parts(
        socket.into(),
        "the caller's socket",
    ))
}

/// Where a job gives what it makes. Not buffered.
pub(super) fn output() -> Result<fs_err::File> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(fs_err::File::from_parts(output.into(), "the output"))
}

/// Says something to the caller.
pub(super) fn say(message: &Message) -> Result<()> {
    protocol::send_message(&mut caller()?, message)
}

/// Says why this process cannot confine itself. A grant behind a link is no lack of the system's, so no other
/// confinement is tried for it.
fn not_confined(e: &Error) -> Result<()> {
    say(&match e.kind {
        Kind::Config => Message::Done(refused(e)),
        _ => Message::Unavailable {
            why: clip(&e.message, MAX_WHY).to_owned(),
        },
    })
}

fn start(role: &str, setup: &str) -> Result<Setup> {
    let setup: Setup = from_json(setup).doing("reading the setup")?;
    sys::close_inherited().doing("closing inherited descriptors")?;
    if role == ROLE {
        // Without a controlling terminal nothing can inject input into one. A process group leader gets EPERM.
        match rustix::process::setsid() {
            Ok(_) | Err(Errno::PERM) => {}
            Err(e) => return Err(Error::from(e).doing("starting a session")),
        }
    }
    rustix::thread::set_no_new_privs(true).doing("setting no_new_privs")?;
    Ok(setup)
}

fn run_outer(setup: &Setup) -> Result<()> {
    // The kernel's limit on processes does not bind root.
    let is_root = rustix::process::geteuid().is_root();
    // Before there is a new root.
    let processes = Processes::open();
    // Every kernel with a usable sandbox has it.
    let mut made = pidfd_open(getpid(), PidfdFlags::empty())
        .doing("opening a pidfd")
        .and_then(|_| Reaper::new(Confinement::Disabled));
    if setup.confinement == Confinement::Namespaces {
        made = made.and_then(|reaper| {
            sandbox::become_owner(setup)?;
            sandbox::make_namespaces(setup)?;
            Ok(reaper)
        });
    }
    let mut reaper = match made {
        Ok(reaper) => reaper,
        Err(e) => return not_confined(&e),
    };
    if setup.confinement == Confinement::Namespaces {
        sandbox::send_listener(setup, io::stdin().as_fd())?;
    }
    sys::deny_inspection().doing("denying inspection by other processes")?;
    let mut inner = child::again(INNER_ROLE)
        .env(SETUP, serde_json::to_string(setup)?)
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .spawn()
        .doing("starting the inner process")?;
    let counted = match setup.programs {
        Programs::Command if is_root => Some((processes?, COUNT_COMMANDS)),
        Programs::Server if is_root => Some((processes?, COUNT_SERVERS)),
        _ => None,
    };
    let is_crowded = wait_for(&mut inner, counted.as_ref())?;
    reaper.kill_descendants()?;
    if is_crowded {
        say(&Message::Done(Header::Exited(
            Termination::TooManyProcesses,
        )))?;
    }
    Ok(())
}

/// Waits for the inner process; kills it some time after the caller has gone, or when there are too many processes. Returns
/// whether there were.
fn wait_for(inner: &mut Child, counted: Option<&(Processes, Duration)>) -> Result<bool> {
    let ended = pidfd_open(Pid::from_child(inner), PidfdFlags::empty()).doing("opening a pidfd")?;
    let caller = io::stdin();
    // No events: what the caller sends is the inner process's; only a hang-up matters here.
    let watched = [
        (ended.as_fd(), PollFlags::IN),
        (caller.as_fd(), PollFlags::empty()),
    ];
    let own = std::process::id();
    let is_crowded = loop {
        let ready = sys::poll(&watched, counted.map(|(_, interval)| *interval))?;
        if counted.is_some_and(|(all, _)| all.are_more_below(own, sandbox::MAX_PROCESSES)) {
            break true;
        }
        if ready.contains(&true) {
            break false;
        }
    };
    if !is_crowded {
        sys::poll(&watched[..1], Some(INNER_GRACE))?;
    }
    inner
        .kill()
        .and_then(|()| inner.wait())
        .doing("ending the inner process")?;
    Ok(is_crowded)
}

fn do_job(setup: &Setup) -> Result<()> {
    prefer_for_the_oom_killer();
    let (max_processes, mount_points) = (
        sandbox::process_limit(setup.confinement),
        sandbox::mount_points(),
    );
    let confined = match setup.confinement {
        Confinement::Namespaces => sandbox::enter_namespaces(setup),
        Confinement::Landlock => {
            sandbox::become_owner(setup).and_then(|()| sandbox::enter_landlock(setup))
        }
        // The file tools read what the workspace's owner may.
        Confinement::Unconfined => sandbox::become_owner(setup),
        Confinement::Disabled => sandbox::enter_workspace(setup),
    };
    match confined {
        Err(e) if setup.confinement.is_sandboxed() => return not_confined(&e),
        result => result?,
    }
    sys::deny_inspection().doing("denying inspection by other processes")?;
    set_limits(setup, max_processes)?;
    // The working directory, because only root may be able to pass through the directories of its path.
    let workspace = Dir::open(".".as_ref()).doing("opening the workspace")?;
    let grants = OpenGrants::open(workspace, setup, mount_points)?;
    say(&Message::Ready)?;

    let mut from = caller()?;
    let done = match protocol::receive_job(&mut from)? {
        Job::Exec(_) | Job::Serve(_) if setup.confinement == Confinement::Unconfined => {
            Err(Error::failed("there is no sandbox for commands here"))
        }
        Job::Serve(job) => return serve::serve(&grants, setup, &job, io::stdin().as_fd()),
        Job::Exec(job) => exec::exec(&grants, setup, job, io::stdin().as_fd()).map(Header::Exited),
        Job::File(job) => {
            files::perform(&grants, &job, &mut output()?, &caller_has_gone).and_then(give)
        }
        Job::Read(job) => {
            limit(Resource::Data, MAX_READING_MEMORY)?;
            limit(Resource::Cpu, MAX_READING_SECONDS)?;
            // Whoever waits for an answer comes first.
            rustix::process::nice(10).doing("giving way to others")?;
            protocol::receive_rest(&mut from, MAX_READ)
                .and_then(|bytes| web::perform(job, bytes))
                .and_then(give)
        }
    };
    say(&Message::Done(done.unwrap_or_else(|e| refused(&e))))
}

/// Gives what a job made.
fn give(reply: Reply) -> Result<Header> {
    output()?.write_all(&reply.body)?;
    Ok(reply.header)
}

/// Whether the caller has hung up: that it has sent everything is no end.
fn caller_has_gone() -> bool {
    let caller = io::stdin();
    let watched = [(caller.as_fd(), PollFlags::empty())];
    sys::poll(&watched, Some(Duration::ZERO)).is_ok_and(|ready| ready[0])
}

/// On a small board a greedy command should be killed before the program that serves its owner.
fn prefer_for_the_oom_killer() {
    // Without /proc the kernel chooses by size, which is close.
    drop(std::fs::write("/proc/self/oom_score_adj", "500"));
}

fn set_limits(setup: &Setup, max_processes: Option<u64>) -> Result<()> {
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, MAX_OPEN_FILES)?;
    if setup.policy.memory_mb > 0 {
        // The data segment, because node and java reserve far more address space than they use.
        limit(
            Resource::Data,
            setup.policy.memory_mb.saturating_mul(1 << 20),
        )?;
    }
    max_processes.map_or(Ok(()), |most| limit(Resource::Nproc, most))
}

/// Lowers a limit, and leaves a lower hard limit alone.
pub(super) fn limit(resource: Resource, most: u64) -> Result<()> {
    let now = rustix::process::getrlimit(resource);
    let most = now.maximum.map_or(most, |hard| hard.min(most));
    rustix::process::setrlimit(
        resource,
        Rlimit {
            current: Some(most),
            maximum: Some(most),
        },
    )
    .doing(format_args!("limiting {resource:?}"))
}
