//! Runs a program in a sandbox for as long as its caller wants it, its standard input and output connected to the caller.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use super::exec::{Disk, Limits, OutputBuffer, enter, watch};
use super::process::INNER_GRACE;
use super::reaper::Reaper;
use crate::child;
use crate::error::{Context, Error, Result};
use crate::files::OpenGrants;
use crate::sandbox;
use crate::text::foreign_line;
use crate::worker::protocol::{self, Confinement, Header, Reply, ServeJob, Setup, Termination};

/// How often free space is measured.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often processes are counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(100);
/// How much is kept of the end of a program's standard error, in bytes, and how many lines are told of it.
const MAX_READ: usize = 4 << 10;
const MAX_LINES: usize = 10;
/// The longest of these lines, in characters.
const MAX_LINE: usize = 300;

/// Says that the sandbox holds, starts the program, and waits for its end or its caller's. Every process that it started has
/// ended when this returns.
pub(super) fn serve(
    grants: &OpenGrants,
    setup: &Setup,
    job: &ServeJob,
    caller: BorrowedFd,
) -> Result<()> {
    enter(grants, &job.working_dir)?;
    let mut reaper = Reaper::new(setup.confinement)?;
    protocol::send_reply(
        &mut std::io::stdout(),
        &Reply {
            header: Header::Text,
            body: Vec::new(),
        },
    )?;
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
        interval: if job.counts_processes {
            COUNT_INTERVAL
        } else {
            CHECK_INTERVAL
        },
        counts_processes: job.counts_processes,
        grace: INNER_GRACE / 2,
    };
    let pipe = child
        .stderr
        .take()
        .ok_or_else(|| Error::failed("the program has no standard error"))?;
    let mut errors = OutputBuffer::new(pipe.into(), 0, MAX_READ)?;
    let end = watch(&child, caller, &limits, Some(&mut errors));
    reaper.kill_descendants()?;
    errors.drain()?;
    let (said, _) = errors.into_parts();
    match last_lines(&String::from_utf8_lossy(&said)) {
        said if said.is_empty() || end? == Termination::Cancelled => Ok(()),
        said => Err(Error::failed(format!("it ended and said:\n{said}"))),
    }
}

/// The last lines that say something.
fn last_lines(text: &str) -> String {
    let lines: Vec<String> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| foreign_line(line, MAX_LINE))
        .collect();
    lines[lines.len().saturating_sub(MAX_LINES)..].join("\n")
}
