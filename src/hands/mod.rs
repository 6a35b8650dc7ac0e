//! The hands: whatever touches the workspace happens in a process that holds no secret.
//!
//! Each call is one process: this program again, one job on its standard input, one reply, and it ends with everything
//! it started. It confines itself, or in a jail a second one that does the work, before the job is read. The caller keeps the job pipe open: its end of file tells the
//! hands that nobody waits any more.

mod inside;
mod process_count;
mod reap;
mod run;

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

pub use inside::main;

use crate::cancel::{Cancel, Why};
use crate::child::{self, Network, Sandbox};
use crate::error::{Context, Error, Kind, Result};
use crate::guard::AddressGuard;
pub use crate::jail::readable;
use crate::text::one_line;
pub use crate::wire::Confinement;
use crate::wire::{End, FileJob, Header, Incoming, Job, MAX_BODY, Reply, Setup};

/// The argument that makes this program a hands process.
pub const ROLE: &str = "hands";
/// The argument that makes it the second process of a jail of namespaces.
pub const INNER_ROLE: &str = "hands-inside";

/// How long a hands process may take beyond its job's own time, and to clean up when it is told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// The means to have jobs done.
pub struct Hands {
    setup: Setup,
    sandbox: Sandbox,
    /// What a guarded network lets through.
    guard: AddressGuard,
    /// Found out by the first call: what one hands process could do, the next one can.
    settled: Mutex<Option<Settled>>,
}

/// How calls are held on this system, and why not in a better way.
#[derive(Clone, Debug)]
pub struct Settled {
    pub way: Confinement,
    /// One sentence for each better way.
    pub refusals: Vec<String>,
}

impl Hands {
    /// `setup.way` is of no consequence: the sandbox and the system decide it.
    pub fn new(setup: Setup, sandbox: Sandbox, guard: AddressGuard) -> Self {
        Self { setup, sandbox, guard, settled: Mutex::default() }
    }

    /// Does one job in a process of its own and waits for its end.
    pub fn call(&self, job: &Job, cancel: &Cancel) -> Result<Reply> {
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(settled) = settled {
            if settled.way == Confinement::Unconfined && matches!(job, Job::Exec { .. }) {
                return Err(no_jail("commands are", &settled.refusals));
            }
            let reply = self.once(settled.way, job, cancel)?;
            return match reply.header {
                // It was there a moment ago. Whoever is on the other side does not get to choose a weaker one.
                Header::Unavailable { why } => Err(Error::failed(why).doing("entering the jail")),
                _ => Ok(reply),
            };
        }
        let ways: &[Confinement] = match self.sandbox {
            Sandbox::Off => &[Confinement::Disabled],
            Sandbox::Require => &[Confinement::Namespaces, Confinement::Landlock],
            Sandbox::Auto if matches!(job, Job::Exec { .. }) => &[Confinement::Namespaces, Confinement::Landlock],
            Sandbox::Auto => &[Confinement::Namespaces, Confinement::Landlock, Confinement::Unconfined],
        };
        let mut refusals = Vec::new();
        for way in ways {
            let reply = self.once(*way, job, cancel)?;
            if let Header::Unavailable { why } = reply.header {
                refusals.push(why);
                continue;
            }
            let settled = Settled { way: *way, refusals };
            *self.settled.lock().unwrap_or_else(PoisonError::into_inner) = Some(settled);
            return Ok(reply);
        }
        let what = if self.sandbox == Sandbox::Require { "tools are" } else { "commands are" };
        Err(no_jail(what, &refusals))
    }

    /// Gives a regular file of the workspace to `take`, part by part, at most `most` bytes in all.
    pub fn give_file(
        &self,
        path: &str,
        most: u64,
        cancel: &Cancel,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
        let (mut offset, mut seen) = (0, String::new());
        loop {
            let job = Job::File(FileJob::GiveFile { path: path.to_owned(), offset, most });
            let Reply { header, body } = self.call(&job, cancel)?;
            let Header::Part(stamp) = header else { return Err(header.refusal()) };
            if offset == 0 {
                seen.clone_from(&stamp);
            }
            offset += body.len() as u64;
            if stamp != seen || offset > most {
                return Err(Error::failed(format!("{} changed while it was read: try again", one_line(path, 200))));
            }
            take(&body)?;
            if body.len() < MAX_BODY {
                return Ok(offset);
            }
        }
    }

    /// Keeps a part of a file that came from outside. With the last one, where it is.
    pub fn take_file(&self, part: Incoming, cancel: &Cancel) -> Result<String> {
        let Reply { header, body } = self.call(&Job::File(FileJob::TakeFile(part)), cancel)?;
        let Header::Text = header else { return Err(header.refusal()) };
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// How calls are held, if one has been made.
    pub fn settled(&self) -> Option<Settled> {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The tree that jobs are done in; absolute.
    pub fn workspace(&self) -> &Path {
        &self.setup.workspace
    }

    /// Really enters one way of being held, in a process of its own, and tells its layers, a line for each; or why it is
    /// not to be had here. Decides nothing for other calls.
    pub fn attempt(&self, way: Confinement, cancel: &Cancel) -> Result<Result<String, String>> {
        let reply = self.once(way, &Job::Layers, cancel)?;
        match reply.header {
            Header::Text => Ok(Ok(String::from_utf8_lossy(&reply.body).trim_end().to_owned())),
            Header::Unavailable { why } => Ok(Err(why)),
            other => Err(other.refusal()),
        }
    }

    fn once(&self, way: Confinement, job: &Job, cancel: &Cancel) -> Result<Reply> {
        let setup = Setup { way, ..self.setup.clone() };
        let setup = serde_json::to_string(&setup).map_err(|e| Error::failed(e.to_string()))?;
        let guarded = way == Confinement::Namespaces && self.setup.network == Network::Guarded;
        let (link, errors) = if guarded {
            let (ours, theirs) = crate::proxy::listener::pair()?;
            (Some(ours), Stdio::from(theirs))
        } else {
            (None, Stdio::null())
        };
        let mut child = child::again(ROLE)
            .arg(setup)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .doing("starting the hands process")?;
        // Lives as long as the call.
        let proxy = link.map(|link| link.start_proxy(&self.guard)).transpose();
        let counted =
            way == Confinement::Landlock && rustix::process::geteuid().is_root() && matches!(job, Job::Exec { .. });
        let result = converse(&mut child, job, cancel, counted);
        // By now it has ended, or it has had its grace.
        let killed = child.kill().and_then(|()| child.wait());
        let result = proxy.and_then(|proxy| {
            drop(proxy);
            result
        });
        match (result, killed) {
            (Ok(reply), Ok(_)) => Ok(reply),
            (Err(e), Ok(status)) if e.kind == Kind::Failed => Err(e.doing(format_args!("hands process ({status})"))),
            (Err(e), _) => Err(e),
            (_, Err(e)) => Err(Error::from(e).doing("ending the hands process")),
        }
    }
}

fn no_jail(what: &str, refusals: &[String]) -> Error {
    Error::failed(format!(
        "{what} refused: this system offers no jail ({}). `bantam doctor` tells what would help. To run commands with all \
         the user's rights, the user can put \"tools\": {{\"exec\": {{\"sandbox\": \"off\"}}}} into config.json",
        refusals.join("; ")
    ))
}

/// `counted`: whether somebody has to count the process's descendants.
fn converse(child: &mut Child, job: &Job, cancel: &Cancel, counted: bool) -> Result<Reply> {
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Error::failed("the hands process has no pipes"));
    };
    let (woken, wake) = pipe_with(PipeFlags::CLOEXEC)?;
    let _hook = cancel.on_stop(move || drop(wake));
    let until = Instant::now() + cancel.remaining(Duration::from_secs(job.seconds()) + GRACE);
    // One that will not read the job says why, and then the pipe is closed: only what cannot be a job ends it here. One
    // that got a part of the job is told that there is no more of it.
    let job = crate::wire::encode_job(job)?;
    let input = input.write_all(&job).is_ok().then_some(input);
    let crowd = counted.then(|| child.id());
    let mut listener = Listener { input, output, woken: Some(woken), until, crowd, crowded: false };
    let result = crate::wire::receive_reply(&mut listener);
    let crowded = listener.crowded;
    let told_to_stop = listener.woken.is_none();
    listener.finish();
    match (result, cancel.why()) {
        (Ok(Reply { header: Header::Exited { dropped, .. }, body }), _) if crowded => {
            Ok(Reply { header: Header::Exited { end: End::TooManyProcesses, dropped }, body })
        }
        (Ok(reply), _) => Ok(reply),
        (Err(_), Some(Why::Deadline)) => Err(Error::new(Kind::Limit, "the turn's time was up")),
        (Err(_), Some(Why::Stopped)) if told_to_stop => Err(Error::new(Kind::Interrupted, "stopped")),
        (Err(e), _) => Err(e),
    }
}

/// Reads a reply, and meanwhile passes on a stop or a passed deadline by closing the process's input.
struct Listener {
    input: Option<ChildStdin>,
    output: ChildStdout,
    /// Reads end of file when the turn is stopped; `None` once the process has been told.
    woken: Option<OwnedFd>,
    until: Instant,
    /// Whose descendants are counted.
    crowd: Option<u32>,
    /// There were too many of them.
    crowded: bool,
}

/// How often descendants are counted.
const COUNT_EVERY: Duration = Duration::from_millis(50);

impl Listener {
    fn tell_to_stop(&mut self) {
        self.input = None;
        self.woken = None;
        self.until = Instant::now() + GRACE;
    }

    /// Waits for the process to end, which closes its output. Past the grace the caller kills it.
    fn finish(mut self) {
        self.tell_to_stop();
        let mut rest = [0; 4096];
        while matches!(self.read(&mut rest), Ok(n) if n > 0) {}
    }
}

impl Read for Listener {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                if self.input.is_none() {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer"));
                }
                self.tell_to_stop();
                continue;
            }
            let mut wait = left;
            if let (Some(root), Some(_)) = (self.crowd, &self.input) {
                if process_count::count(root) as u64 > crate::jail::MOST_PROCESSES {
                    self.crowded = true;
                    self.tell_to_stop();
                    continue;
                }
                wait = wait.min(COUNT_EVERY);
            }
            let output_ready = {
                let mut fds = vec![PollFd::new(&self.output, PollFlags::IN)];
                if let Some(woken) = &self.woken {
                    fds.push(PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN));
                }
                match poll(&mut fds, Some(&crate::sys::timespec(wait))) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(e) => return Err(e.into()),
                }
                if fds.get(1).is_some_and(|fd| !fd.revents().is_empty()) {
                    None
                } else {
                    Some(!fds[0].revents().is_empty())
                }
            };
            match output_ready {
                None => self.tell_to_stop(),
                Some(true) => return self.output.read(buf),
                Some(false) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_too_large_to_be_sent_is_refused_at_once() {
        // Anything that would wait for a job: it must not be left waiting for one that never comes.
        let mut waiting =
            child::command(Path::new("/bin/cat")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let job = Job::File(FileJob::WriteFile { path: "x".into(), content: "x".repeat(65 << 20) });
        let cancel = Cancel::new(Some(Duration::from_secs(2)));
        let error = converse(&mut waiting, &job, &cancel, false).unwrap_err();
        waiting.kill().and_then(|()| waiting.wait()).unwrap();
        assert!(error.message.contains("too large"), "{error}");
    }
}
