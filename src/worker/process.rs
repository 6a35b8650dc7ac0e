//! The worker process, which confines itself, reads the job, does it, replies and exits.
//!
//! A sandbox takes two processes. The outer one makes the namespaces, starts the inner one, and kills its leftovers; the
//! sandbox cannot reach the outer process. The inner one finishes the sandbox and does the job.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getpid, pidfd_open};

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

/// Time for the inner process to end after a hang-up; shorter than the caller waits for the outer one.
pub(super) const INNER_GRACE: Duration = Duration::from_secs(3);

/// Longest intervals between counts of the processes of a command and of a server, and the shortest one.
const COUNT_COMMANDS: Duration = Duration::from_millis(20);
const COUNT_SERVERS: Duration = Duration::from_millis(100);
const SHORTEST_COUNT: Duration = Duration::from_millis(1);

/// Limits of reading a page: memory in bytes, CPU time in seconds, and input size in bytes.
const MAX_READING_MEMORY: u64 = 256 << 20;
const MAX_READING_SECONDS: u64 = 10;
const MAX_READ: usize = 24 << 20;

/// Maximum length of an error message, in bytes.
const MAX_WHY: usize = 8 << 10;

/// Maximum number of open files per process.
const MAX_OPEN_FILES: u64 = 1024;

/// Runs a worker process in this role, and returns whether it succeeded.
pub(super) fn main(role: &str, setup: &str) -> bool {
    let result = match (start(role, setup), role) {
        (Ok(setup), ROLE) if setup.confinement.is_sandboxed() => run_outer(&setup),
        (Ok(setup), _) => do_job(&setup),
        (Err(e), _) => Err(e),
    };
    match result {
        Ok(()) => true,
        // Ignores the error of a caller that has hung up.
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

/// Returns the socket to the caller. It is unbuffered, because bytes after the job may be input of the program it starts.
fn caller() -> Result<fs_err::File> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(fs_err::File::from_parts(
        socket.into(),
        "the caller's socket",
    ))
}

/// Returns the unbuffered output for the result of a job.
pub(super) fn output() -> Result<fs_err::File> {
    let output = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(fs_err::File::from_parts(output.into(), "the output"))
}

/// Sends a message to the caller.
pub(super) fn say(message: &Message) -> Result<()> {
    protocol::send_message(&mut caller()?, message)
}

/// Reports that this process cannot confine itself. A grant with a new link is an error of configuration, so no weaker
/// confinement is tried.
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
        // Starts a session without a terminal, so that commands cannot inject input into it. A process group leader gets EPERM.
        match rustix::process::setsid() {
            Ok(_) | Err(Errno::PERM) => {}
            Err(e) => return Err(Error::from(e).doing("starting a session")),
        }
    }
    rustix::thread::set_no_new_privs(true).doing("setting no_new_privs")?;
    Ok(setup)
}

fn run_outer(setup: &Setup) -> Result<()> {
    // The kernel's process limit does not apply to root.
    let is_root = rustix::process::geteuid().is_root();
    let make = || {
        // Every kernel with a usable sandbox supports pidfds.
        pidfd_open(getpid(), PidfdFlags::empty()).doing("opening a pidfd")?;
        // Opens `/proc` before the root changes.
        let reaper = Reaper::new(setup.confinement)?;
        if setup.confinement == Confinement::Namespaces {
            sandbox::become_owner(setup)?;
            sandbox::make_namespaces(setup)?;
        }
        Ok(reaper)
    };
    let reaper = match make() {
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
        Programs::Command if is_root => Some((&reaper, COUNT_COMMANDS)),
        Programs::Server if is_root => Some((&reaper, COUNT_SERVERS)),
        _ => None,
    };
    let grace = match setup.programs {
        // A job that starts nothing has nothing to end.
        Programs::None => Duration::ZERO,
        _ => INNER_GRACE,
    };
    let is_crowded = wait_for(&mut inner, counted, grace)?;
    reaper.kill_descendants()?;
    if is_crowded {
        say(&Message::Done(Header::Exited(
            Termination::TooManyProcesses,
        )))?;
    }
    Ok(())
}

/// Waits for the inner process. Kills it `grace` after the caller has hung up, or if there are too many processes. Returns
/// whether there were too many.
fn wait_for(
    inner: &mut Child,
    counted: Option<(&Reaper, Duration)>,
    grace: Duration,
) -> Result<bool> {
    let ended = pidfd_open(Pid::from_child(inner), PidfdFlags::empty()).doing("opening a pidfd")?;
    let caller = io::stdin();
    // Polls the caller only for a hang-up, because its data is the inner process's input.
    let watched = [
        (ended.as_fd(), PollFlags::IN),
        (caller.as_fd(), PollFlags::empty()),
    ];
    let is_crowded = loop {
        let mut interval = None;
        if let Some((reaper, longest)) = counted {
            let most = sandbox::MAX_PROCESSES;
            let Some(left) = most.checked_sub(reaper.count(most)?) else {
                break true;
            };
            let often = u32::try_from(most / (left + 1)).unwrap_or(u32::MAX);
            interval = Some(SHORTEST_COUNT.max(longest / often.max(1)));
        }
        if sys::poll(&watched, interval)?.contains(&true) {
            break false;
        }
    };
    if !is_crowded {
        sys::poll(&watched[..1], Some(grace))?;
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
        // File tools get the rights of the workspace's owner.
        Confinement::Unconfined => sandbox::become_owner(setup),
        Confinement::Disabled => sandbox::enter_workspace(setup),
    };
    match confined {
        Err(e) if setup.confinement.is_sandboxed() => return not_confined(&e),
        result => result?,
    }
    sys::deny_inspection().doing("denying inspection by other processes")?;
    set_limits(setup, max_processes)?;
    // Uses the working directory, because only root may be able to pass through the directories of its path.
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
        Job::File(job) => files::perform(&grants, &job, &mut output()?).and_then(give),
        Job::Read(job) => {
            limit(Resource::Data, MAX_READING_MEMORY)?;
            limit(Resource::Cpu, MAX_READING_SECONDS)?;
            // Processes that answer users run first.
            rustix::process::nice(10).doing("giving way to others")?;
            protocol::receive_rest(&mut from, MAX_READ)
                .and_then(|bytes| web::perform(job, bytes))
                .and_then(give)
        }
    };
    say(&Message::Done(done.unwrap_or_else(|e| refused(&e))))
}

/// Writes the result of a job to the output.
fn give(reply: Reply) -> Result<Header> {
    output()?.write_all(&reply.body)?;
    Ok(reply.header)
}

/// Makes the kernel kill a greedy command first on a small board, instead of the program that serves the owner.
fn prefer_for_the_oom_killer() {
    // Without /proc, the kernel chooses by size, which is usually right.
    drop(std::fs::write("/proc/self/oom_score_adj", "500"));
}

fn set_limits(setup: &Setup, max_processes: Option<u64>) -> Result<()> {
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, MAX_OPEN_FILES)?;
    if setup.policy.memory_mb > 0 {
        // Limits the data segment, because node and java reserve far more address space than they use.
        limit(
            Resource::Data,
            setup.policy.memory_mb.saturating_mul(1 << 20),
        )?;
    }
    max_processes.map_or(Ok(()), |most| limit(Resource::Nproc, most))
}

/// Lowers a limit, unless the hard limit is already lower.
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
