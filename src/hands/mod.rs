//! The hands: whatever touches the workspace happens in a process that holds no secret.
//!
//! Each call is one process: this program again, one job on its standard input, one reply, and it ends with everything
//! it started. It confines itself before it reads the job. The caller keeps the job pipe open: its end of file tells the
//! hands that nobody waits any more.

mod edit;
mod encoding;
pub mod files;
mod grep;
mod inside;
mod look;
mod replace;
mod run;
pub mod wire;

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

pub use inside::main;

use crate::cancel::{Cancel, Why};
use crate::child;
use crate::error::{Context, Error, Kind, Result};
use wire::{Job, Reply, Setup};

/// The argument that makes this program a hands process.
pub const ROLE: &str = "hands";

/// How long a hands process may take beyond its job's own time, and to clean up when it is told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// The means to have jobs done.
pub struct Hands {
    setup: Setup,
}

impl Hands {
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self { setup }
    }

    #[must_use]
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Does one job in a process of its own and waits for its end.
    ///
    /// # Errors
    /// The process could not be started, died, or did not answer in time; [`Kind::Interrupted`] when it was told to
    /// stop and had nothing to say about it.
    pub fn call(&self, job: &Job, cancel: &Cancel) -> Result<Reply> {
        let setup = serde_json::to_string(&self.setup).map_err(|e| Error::failed(e.to_string()))?;
        let mut child = child::again(ROLE)
            .arg(setup)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .doing("starting the hands process")?;
        let result = converse(&mut child, job, cancel);
        // By now it has ended, or it has had its grace.
        let killed = child.kill().and_then(|()| child.wait());
        match (result, killed) {
            (Ok(reply), Ok(_)) => Ok(reply),
            (Err(e), Ok(status)) if e.kind == Kind::Failed => Err(e.doing(format_args!("hands process ({status})"))),
            (Err(e), _) => Err(e),
            (_, Err(e)) => Err(Error::from(e).doing("ending the hands process")),
        }
    }
}

fn converse(child: &mut Child, job: &Job, cancel: &Cancel) -> Result<Reply> {
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(Error::failed("the hands process has no pipes"));
    };
    let (woken, wake) = pipe_with(PipeFlags::CLOEXEC)?;
    let _hook = cancel.on_stop(move || drop(wake));
    let until = Instant::now() + cancel.remaining(Duration::from_secs(job.seconds()) + GRACE);
    wire::send_job(&mut input, job)?;
    let mut listener = Listener { input: Some(input), output, woken: Some(woken), until };
    let result = wire::receive_reply(&mut listener);
    let told_to_stop = listener.woken.is_none();
    listener.finish();
    match (result, cancel.why()) {
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
}

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
            let output_ready = {
                let mut fds = vec![PollFd::new(&self.output, PollFlags::IN)];
                if let Some(woken) = &self.woken {
                    fds.push(PollFd::from_borrowed_fd(woken.as_fd(), PollFlags::IN));
                }
                match poll(&mut fds, Some(&timespec(left))) {
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

/// `time` for the kernel, rounded up: a wait that ends a moment early would be begun again.
fn timespec(time: Duration) -> Timespec {
    let time = time + Duration::from_millis(1);
    Timespec { tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() }
}
