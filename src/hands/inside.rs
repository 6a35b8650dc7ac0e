//! The inside of a hands process: confine, read the job, do it, reply, end.

use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open};

use super::reap::Reaper;
use super::{INNER_ROLE, ROLE, run};
use crate::beneath::Dir;
use crate::child;
use crate::error::{Context, Error, Result};
use crate::files::{self, Trees};
use crate::jail;
use crate::sys;
use crate::sys::timespec;
use crate::wire::Confinement;
use crate::wire::{self, Header, Job, Reply, Setup};

/// Runs `bantam ROLE SETUP`. The exit code means little: the reply says what happened.
pub fn main(role: &str, setup: Option<&str>) -> ExitCode {
    let result = match (start(role, setup), role) {
        (Ok(setup), ROLE) if setup.way.is_sandboxed() => outer(&setup),
        (Ok(setup), _) => work(&setup),
        (Err(e), _) => Err(e),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody may be listening any more; then there is nobody to tell either.
        Err(e) => match wire::send_reply(&mut io::stdout(), &refused(&e)) {
            Ok(()) | Err(_) => ExitCode::FAILURE,
        },
    }
}

fn refused(e: &Error) -> Reply {
    Reply { header: Header::Refused { why: e.message.clone() }, body: Vec::new() }
}

/// What comes first in every role: nothing is inherited, and nothing can be gained.
fn start(role: &str, setup: Option<&str>) -> Result<Setup> {
    let setup = setup.ok_or_else(|| Error::failed("the hands are not for calling by hand"))?;
    let setup: Setup =
        serde_json::from_str(setup).map_err(|e| Error::failed(e.to_string())).doing("reading the setup")?;
    sys::close_inherited().doing("closing what was left open")?;
    if role == ROLE {
        // A session of its own: no controlling terminal to inject keys into. Started by hand it may lead a group already.
        match rustix::process::setsid() {
            Ok(_) | Err(rustix::io::Errno::PERM) => {}
            Err(e) => return Err(Error::from(e).doing("starting a session")),
        }
    }
    rustix::thread::set_no_new_privs(true).doing("giving up new privileges")?;
    Ok(setup)
}

/// The first process of a jail: starts the second one, which is held, and sees to its end and to the end of all it leaves.
/// Nothing held can reach this one.
fn outer(setup: &Setup) -> Result<()> {
    if setup.way == Confinement::Namespaces {
        let made = jail::become_owner(setup).and_then(|()| jail::make_namespaces(setup, io::stderr().as_fd()));
        if let Err(e) = made {
            return unavailable(&e);
        }
    }
    sys::close_to_others().doing("closing itself to others")?;
    let mut reaper = Reaper::new()?;
    let json = serde_json::to_string(setup).map_err(|e| Error::failed(e.to_string()))?;
    let mut inner = child::again(INNER_ROLE)
        .arg(json)
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .spawn()
        .doing("starting the process inside")?;
    wait_for(&mut inner)?;
    reaper.sweep(None)
}

/// How long the process inside may go on when its caller has gone: less than the caller waits for this one.
const INNER_GRACE: Duration = Duration::from_secs(3);

/// Waits for the process inside to end by itself, or ends it when nobody waits for it any more.
fn wait_for(inner: &mut Child) -> Result<()> {
    let pid = i32::try_from(inner.id()).ok().and_then(Pid::from_raw);
    let ended = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let caller = io::stdin();
    let mut until: Option<Instant> = None;
    loop {
        if inner.try_wait()?.is_some() {
            return Ok(());
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return inner.kill().and_then(|()| inner.wait()).map(drop).doing("ending the process inside");
        }
        // Without pidfd (before Linux 5.3) look now and then. The caller's end is of interest, not what it sends.
        let pause = Duration::from_millis(20);
        let most = if ended.is_some() { left } else { Some(left.map_or(pause, |left| left.min(pause))) };
        let mut fds: Vec<PollFd> = ended.iter().map(|ended| PollFd::new(ended, PollFlags::IN)).collect();
        if until.is_none() {
            fds.push(PollFd::new(&caller, PollFlags::empty()));
        }
        match poll(&mut fds, most.map(timespec).as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let hung_up = until.is_none() && fds.last().is_some_and(|caller| !caller.revents().is_empty());
        if hung_up {
            until = Some(Instant::now() + INNER_GRACE);
        }
    }
}

/// Tells the caller that this way is not to be had here.
fn unavailable(e: &Error) -> Result<()> {
    let header = Header::Unavailable { why: e.message.clone() };
    wire::send_reply(&mut io::stdout(), &Reply { header, body: Vec::new() })
}

fn work(setup: &Setup) -> Result<()> {
    prefer_for_the_oom_killer();
    let processes = jail::processes_allowed(setup.way);
    let mut reaper = Reaper::new()?;
    let held = match setup.way {
        Confinement::Namespaces => jail::settle_in(setup),
        Confinement::Landlock if !reaper.has_list() => {
            Err(Error::failed("the kernel lists no children (CONFIG_PROC_CHILDREN)"))
        }
        Confinement::Landlock => jail::become_owner(setup).and_then(|()| jail::shut_in(setup)),
        Confinement::Unconfined | Confinement::Disabled => std::env::set_current_dir(&setup.workspace)
            .doing(format_args!("entering the workspace {}", setup.workspace.display())),
    };
    if let Err(e) = held {
        return if setup.way.is_sandboxed() { unavailable(&e) } else { Err(e) };
    }
    sys::close_to_others().doing("closing itself to others")?;
    limit_all(setup, processes)?;
    // Where this process stands: the path may lead through directories that only root can pass.
    let workspace = Dir::open(".".as_ref()).doing("opening the workspace")?;
    let trees = Trees::open(workspace, setup);

    let job = wire::receive_job(&mut io::stdin())?;
    let reply = match job {
        Job::File(job) => files::perform(&trees, &job, &hung_up),
        Job::Exec { .. } if setup.way == Confinement::Unconfined => {
            Err(Error::failed("there is no jail for commands here"))
        }
        Job::Exec { command, working_dir, timeout_secs, env } => {
            let order = run::Order { command: &command, working_dir: &working_dir, timeout_secs, env };
            run::exec(&trees, setup, order, &mut reaper, io::stdin().as_fd())
        }
        Job::Layers => Ok(Reply { header: Header::Text, body: jail::layers(setup).into_bytes() }),
    };
    wire::send_reply(&mut io::stdout(), &reply.unwrap_or_else(|e| refused(&e)))
}

/// Whether the caller has closed its end. It sends nothing after the job.
fn hung_up() -> bool {
    let input = io::stdin();
    let mut fds = [PollFd::new(&input, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

/// On a small board a greedy command should be ended before the program that serves its owner.
fn prefer_for_the_oom_killer() {
    // Without /proc the kernel chooses by size alone, which is nearly the same.
    drop(std::fs::write("/proc/self/oom_score_adj", "500"));
}

/// The most files that a process may have open.
const MOST_OPEN: u64 = 1024;

fn limit_all(setup: &Setup, processes: Option<u64>) -> Result<()> {
    limit(Resource::Core, 0)?;
    limit(Resource::Nofile, MOST_OPEN)?;
    if setup.memory_mb > 0 {
        // The data segment, not the address space: node and java reserve far more address space than they use.
        limit(Resource::Data, setup.memory_mb.saturating_mul(1 << 20))?;
    }
    processes.map_or(Ok(()), |most| limit(Resource::Nproc, most))
}

/// Lowers a limit. A hard limit that is lower already stays.
pub(super) fn limit(resource: Resource, most: u64) -> Result<()> {
    let now = rustix::process::getrlimit(resource);
    let most = now.maximum.map_or(most, |hard| hard.min(most));
    rustix::process::setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })
        .doing(format_args!("limiting {resource:?}"))
}
