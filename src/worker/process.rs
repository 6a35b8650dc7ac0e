//! The worker process: confines itself, reads the job, does it, replies and ends.
//!
//! A sandbox takes two processes. The outer one makes the namespaces, starts the inner one, and kills what that leaves
//! behind; nothing in the sandbox can reach it. The inner one finishes the sandbox and does the job.

use std::io;
use std::os::fd::AsFd;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getpid, pidfd_open};

use super::reaper::Reaper;
use super::{INNER_ROLE, ROLE, SETUP, exec, poppler, serve};
use crate::access::Dir;
use crate::child;
use crate::error::{Context, Error, Kind, Result};
use crate::files::{self, OpenGrants};
use crate::json::from_json;
use crate::sandbox;
use crate::sys;
use crate::text::one_line;
use crate::web;
use crate::worker::protocol::{self, Confinement, FileJob, Header, Job, Reply, Setup};

/// How long the inner process may continue after the caller has gone; shorter than the caller waits for the outer one.
pub(super) const INNER_GRACE: Duration = Duration::from_secs(3);

/// What reading a page may take: bytes, and seconds of the processor.
const MAX_READING_MEMORY: u64 = 256 << 20;
const MAX_READING_SECONDS: u64 = 10;

/// The most bytes of a PDF's text in one result: what stays one page of it.
const MAX_PDF_TEXT: usize = 28_000;

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
            drop(send(refused(&e)));
            false
        }
    }
}

fn refused(e: &Error) -> Header {
    Header::Refused {
        why: e.message.clone(),
    }
}

/// Sends a header without a body.
fn send(header: Header) -> Result<()> {
    let reply = Reply {
        header,
        body: Vec::new(),
    };
    protocol::send_reply(&mut io::stdout(), &reply)
}

/// Says why this process cannot confine itself. A grant behind a link is no lack of the system's, so no other
/// confinement is tried for it.
fn not_confined(e: &Error) -> Result<()> {
    send(match e.kind {
        Kind::Config => refused(e),
        _ => Header::Unavailable {
            why: e.message.clone(),
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
    // Every kernel with a usable sandbox has it.
    let mut made = pidfd_open(getpid(), PidfdFlags::empty())
        .doing("opening a pidfd")
        .and_then(|_| Reaper::new(Confinement::Disabled));
    if setup.confinement == Confinement::Namespaces {
        made = made.and_then(|reaper| {
            sandbox::become_owner(setup)?;
            sandbox::make_namespaces(setup, io::stderr().as_fd())?;
            Ok(reaper)
        });
    }
    let mut reaper = match made {
        Ok(reaper) => reaper,
        Err(e) => return not_confined(&e),
    };
    sys::deny_inspection().doing("denying inspection by other processes")?;
    let mut inner = child::again(INNER_ROLE)
        .env(SETUP, serde_json::to_string(setup)?)
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .spawn()
        .doing("starting the inner process")?;
    wait_for(&mut inner)?;
    reaper.kill_descendants()
}

/// Waits for the inner process, or kills it some time after the caller has gone.
fn wait_for(inner: &mut Child) -> Result<()> {
    let ended = pidfd_open(Pid::from_child(inner), PidfdFlags::empty()).doing("opening a pidfd")?;
    let caller = io::stdin();
    // No events: only the end of the pipe matters here, not what the caller sends.
    sys::poll(
        &[
            (ended.as_fd(), PollFlags::IN),
            (caller.as_fd(), PollFlags::empty()),
        ],
        None,
    )?;
    sys::poll(&[(ended.as_fd(), PollFlags::IN)], Some(INNER_GRACE))?;
    inner
        .kill()
        .and_then(|()| inner.wait())
        .map(drop)
        .doing("ending the inner process")
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
    send(Header::Ready)?;

    // Not buffered: what follows the job belongs to the program that it starts.
    let mut input = fs_err::File::from_parts(
        io::stdin().as_fd().try_clone_to_owned()?.into(),
        "the job's pipe",
    );
    let reply = match protocol::receive_job(&mut input)? {
        Job::Exec(_) | Job::Serve(_) if setup.confinement == Confinement::Unconfined => {
            Err(Error::failed("there is no sandbox for commands here"))
        }
        Job::Serve(job) => return serve::serve(&grants, setup, &job, input.as_fd()),
        Job::File(job) => files::perform(&grants, &job, &caller_has_gone)
            .and_then(|reply| read_pdf(&grants, setup, &job, reply)),
        Job::Read(job) => {
            limit(Resource::Data, MAX_READING_MEMORY)?;
            limit(Resource::Cpu, MAX_READING_SECONDS)?;
            // Whoever waits for an answer comes first.
            rustix::process::nice(10).doing("giving way to others")?;
            web::perform(job, &mut |pdf, pages, most| {
                poppler::read(&grants, setup, pdf, pages, most)
            })
        }
        Job::Exec(job) => exec::exec(&grants, setup, job, io::stdin().as_fd()),
    };
    match reply {
        Ok(reply) => protocol::send_reply(&mut io::stdout(), &reply),
        Err(e) => send(refused(&e)),
    }
}

/// The text of a file that is a PDF; any other reply as it is.
fn read_pdf(grants: &OpenGrants, setup: &Setup, job: &FileJob, reply: Reply) -> Result<Reply> {
    let (Header::Pdf, FileJob::ReadFile { path, pages, .. }) = (&reply.header, job) else {
        return Ok(reply);
    };
    let pages = pages.as_deref().unwrap_or_default();
    let (part, text) =
        poppler::read(grants, setup, reply.body, pages, MAX_PDF_TEXT).doing(one_line(path, 200))?;
    Ok(Reply {
        header: Header::Text,
        body: (text + &poppler::continued(&part)).into_bytes(),
    })
}

/// The caller sends nothing after the job, so readable input is its end.
fn caller_has_gone() -> bool {
    sys::poll(
        &[(io::stdin().as_fd(), PollFlags::IN)],
        Some(Duration::ZERO),
    )
    .is_ok_and(|ready| ready[0])
}

/// On a small board a greedy command should be killed before the program that serves its owner.
fn prefer_for_the_oom_killer() {
    // Without /proc the kernel chooses by size, which is close.
    drop(std::fs::write("/proc/self/oom_score_adj", "500"));
}

fn set_limits(setup: &Setup, max_processes: Option<u64>) -> Result<()> {
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, MAX_OPEN_FILES)?;
    if setup.memory_mb > 0 {
        // The data segment, because node and java reserve far more address space than they use.
        limit(Resource::Data, setup.memory_mb.saturating_mul(1 << 20))?;
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
