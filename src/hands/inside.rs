//! The inside of a hands process: confine, read the job, do it, reply, end.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, Resource, Rlimit};

use super::files::{self, Trees};
use super::run;
use super::wire::{self, Header, Job, Reply, Setup};
use crate::beneath::Dir;
use crate::error::{Context, Error, Result};
use crate::sys;

/// Runs `bantam hands SETUP`. The exit code means little: the reply says what happened.
#[must_use]
pub fn main(setup: Option<&str>) -> ExitCode {
    match hands(setup) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Nobody may be listening any more; then there is nobody to tell either.
            match wire::send_reply(&mut io::stdout(), &refused(&e)) {
                Ok(()) | Err(_) => ExitCode::FAILURE,
            }
        }
    }
}

fn refused(e: &Error) -> Reply {
    Reply { header: Header::Refused { why: e.message.clone() }, body: Vec::new() }
}

fn hands(setup: Option<&str>) -> Result<()> {
    let setup = setup.ok_or_else(|| Error::failed("the hands are not for calling by hand"))?;
    let setup: Setup =
        serde_json::from_str(setup).map_err(|e| Error::failed(e.to_string())).doing("reading the setup")?;
    confine(&setup)?;
    let trees = Trees::open(&setup)?;
    let workspace = Dir::open(&setup.workspace)?;
    let job = wire::receive_job(&mut io::stdin())?;
    let reply = match job {
        Job::File(job) => files::perform(&trees, &job, &hung_up),
        Job::Exec { command, working_dir, timeout_secs, env } => {
            let order = run::Order { command: &command, working_dir: &working_dir, timeout_secs, env };
            run::exec(&workspace, &setup, order, io::stdin().as_fd())
        }
    };
    wire::send_reply(&mut io::stdout(), &reply.unwrap_or_else(|e| refused(&e)))
}

/// Whether the caller has closed its end. It sends nothing after the job.
fn hung_up() -> bool {
    let input = io::stdin();
    let mut fds = [PollFd::new(&input, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// Gives up what the job must not have, before the job is known.
fn confine(setup: &Setup) -> Result<()> {
    sys::close_inherited().doing("closing what was left open")?;
    // A session of its own: no controlling terminal to inject keys into. Started by hand it may lead a group already.
    match rustix::process::setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => {}
        Err(e) => return Err(Error::from(e).doing("starting a session")),
    }
    rustix::thread::set_no_new_privs(true).doing("giving up new privileges")?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).doing("closing itself to debuggers")?;
    // Whatever a command leaves behind becomes a child of this process, which ends it.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).doing("becoming the reaper")?;
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, 1024)?;
    if setup.memory_mb > 0 {
        // The data segment, not the address space: node and java reserve far more address space than they use.
        limit(Resource::Data, setup.memory_mb.saturating_mul(1 << 20))?;
    }
    std::env::set_current_dir(existing(&setup.workspace)?).doing("entering the workspace")
}

fn existing(dir: &Path) -> Result<&Path> {
    if dir.is_dir() { Ok(dir) } else { Err(Error::failed(format!("the workspace {} is missing", dir.display()))) }
}

/// Lowers a limit. A hard limit that is lower already stays.
fn limit(resource: Resource, most: u64) -> Result<()> {
    let now = rustix::process::getrlimit(resource);
    let most = now.maximum.map_or(most, |hard| hard.min(most));
    rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
        .doing(format_args!("limiting {resource:?}"))
}
