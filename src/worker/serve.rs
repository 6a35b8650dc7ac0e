//! Runs a program in a sandbox until its caller hangs up, with its standard input and output connected to the caller.

use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread::Builder;
use std::time::Duration;

use super::exec::{Disk, Limits, enter, watch};
use super::output::OutputBuffer;
use super::process::{INNER_GRACE, say};
use super::reaper::Reaper;
use crate::child;
use crate::error::{Context, Error, Result};
use crate::files::OpenGrants;
use crate::sandbox;
use crate::text::foreign_line;
use crate::worker::protocol::{Confinement, Header, Message, ServeJob, Setup, Termination};

/// Interval between measurements of the free space.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time to wait for the rest of an ended program's standard error.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// Standard error that is retained, in bytes from its end, and the number of lines that are reported.
const MAX_READ: usize = 4 << 10;
const MAX_LINES: usize = 10;
/// Maximum length of a reported line, in characters.
const MAX_LINE: usize = 300;

/// Reports that the sandbox is ready, starts the program, and waits until it ends or the caller hangs up. Returns after every
/// process it started has ended.
pub(super) fn serve(
    grants: &OpenGrants,
    setup: &Setup,
    job: &ServeJob,
    caller: BorrowedFd,
) -> Result<()> {
    enter(grants, &job.working_dir)?;
    let reaper = Reaper::new(setup.confinement)?;
    say(&Message::Done(Header::Started))?;
    let mut command = child::command(Path::new(&job.program));
    sandbox::confine(&mut command, setup)?;
    let mut child = command
        .args(&job.args)
        .env("HOME", &job.home)
        .envs((setup.confinement == Confinement::Landlock).then_some(("TMPDIR", &job.home)))
        .envs(job.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .stderr(Stdio::piped())
        .spawn()
        .doing(format_args!("starting {}", job.program))?;
    let limits = Limits {
        timeout: None,
        disks: grants.writable().filter_map(Disk::measure).collect(),
        interval: CHECK_INTERVAL,
        grace: INNER_GRACE / 2,
    };
    let pipe = child
        .stderr
        .take()
        .ok_or_else(|| Error::failed("the program has no standard error"))?;
    let errors = collect(pipe)?;
    let end = watch(&child, caller, &limits);
    reaper.kill_descendants()?;
    // Nothing, if a process that cannot be found here still has the pipe open.
    let said = errors.recv_timeout(LAST_WORDS).unwrap_or_default();
    match last_lines(&String::from_utf8_lossy(&said)) {
        said if said.is_empty() || end? == Termination::Cancelled => Ok(()),
        said => Err(Error::failed(format!("it ended and said:\n{said}"))),
    }
}

/// Reads a program's standard error in a separate thread, which sends its end.
fn collect(mut pipe: impl Read + Send + 'static) -> Result<mpsc::Receiver<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    let collect = move || {
        let mut kept = OutputBuffer::new(0, MAX_READ);
        let mut piece = [0; MAX_READ];
        while let Ok(len @ 1..) = pipe.read(&mut piece) {
            kept.push(&piece[..len]);
        }
        // The receiver may have been dropped.
        sender.send(kept.into_bytes()).ok();
    };
    Builder::new().spawn(collect).doing("starting a thread")?;
    Ok(receiver)
}

/// Returns the last lines that are not blank.
fn last_lines(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| foreign_line(line, MAX_LINE))
        .collect();
    lines[lines.len().saturating_sub(MAX_LINES)..].join("\n")
}
