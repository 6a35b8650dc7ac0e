//! Runs each job in a separate process without secrets.
//!
//! The process is this program, executed again. It confines itself, reads one job from a socket, does it, writes the result to
//! its standard output and the outcome to the socket, and kills everything it started. The caller hangs up to cancel the job.

mod client;
mod denylist;
mod exec;
mod notes;
mod output;
mod pdf;
mod process;
pub(crate) mod protocol;
mod reaper;
mod serve;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock};

pub(crate) use client::{Worker, WorkerProcess};
use notes::Notes;
use output::OutputBuffer;

use crate::access::Grant;
use crate::cancel::Cancel;
use crate::child::{Network, Sandbox};
use crate::config;
use crate::error::{Context, Error, Kind, Result};
use crate::message::MAX_FILE;
use crate::sandbox::readable;
use crate::ssrf::AddressGuard;
use crate::sync;
use crate::sys;
pub(crate) use crate::worker::protocol::Confinement;
use crate::worker::protocol::{
    ExecJob, FileAction, FileJob, Header, Job, MAX_BODY, Pieces, Policy, ReadingJob, Reply,
    ServeJob, Setup, Termination,
};

/// Argument that makes this program a worker process.
const ROLE: &str = "worker";
/// Argument of the second process of a sandbox.
const INNER_ROLE: &str = "worker-inside";
/// Environment variable with the [`Setup`], because every user can see arguments.
const SETUP: &str = "BANTAM_WORKER_SETUP";

/// Whether this program can start workers; set by [`init`], which also denies inspection by other processes.
static BEGUN: OnceLock<Result<()>> = OnceLock::new();

/// Lets this program run the built-in tools in separate processes. Call it in **the first line of `main`**.
///
/// Each tool call runs this program again. In that process, this function does the call and exits. In the program itself, it
/// returns immediately, and other processes of the same user can no longer inspect it (`PR_SET_DUMPABLE`), because it may have
/// keys that the tools' commands must not read. This disables core dumps, and only root can attach a debugger.
pub fn init() {
    let role = std::env::args_os().nth(1);
    if let Some(role @ (ROLE | INNER_ROLE)) = role.as_deref().and_then(OsStr::to_str) {
        if let Some(setup) = config::environment().get(SETUP) {
            let is_done = process::main(role, setup);
            std::process::exit(i32::from(!is_done));
        }
    }
    BEGUN.get_or_init(|| sys::deny_inspection().doing("closing itself to other processes"));
}

/// Fails unless `main` began with [`init`].
pub(crate) fn begun() -> Result<()> {
    match BEGUN.get() {
        Some(result) => result.clone(),
        None => Err(Error::config(
            "the built-in tools run in processes of this program, which cannot start them",
        )
        .hint("write bantam::init(); as the first line of main")),
    }
}

/// Sandbox of this process's calls, or the reason why it is unavailable. The first successful call chooses it before any
/// command has run, and later calls must use it, so that a command cannot weaken the next sandbox.
static CHOSEN: Mutex<Option<Result<Confinement, String>>> = Mutex::new(None);

fn lock_chosen() -> MutexGuard<'static, Option<Result<Confinement, String>>> {
    sync::lock(&CHOSEN)
}

/// Runs each job in a separate process.
pub(crate) struct Workers {
    policy: Policy,
    /// Directory with the keys, which every sandbox hides.
    home: PathBuf,
    sandbox: Sandbox,
    guard: AddressGuard,
    /// The user's notes, and the workers for jobs about them.
    notes: Option<(Notes, Box<Workers>)>,
}

/// Outcome and output of a command.
pub(crate) struct CommandOutput {
    pub end: Termination,
    /// Output, without its middle if it is too long.
    pub printed: Vec<u8>,
}

impl Workers {
    /// Makes workers with the access of `policy`, confined as the sandbox setting and the system allow.
    pub(crate) fn new(policy: Policy, home: &Path, sandbox: Sandbox, guard: AddressGuard) -> Self {
        Self {
            policy,
            home: home.to_owned(),
            sandbox,
            guard,
            notes: None,
        }
    }

    /// Adds the user's notes, and workers for jobs about them. `kept` is the path of the backup copy.
    pub(crate) fn with_notes(self, notes: Grant, kept: PathBuf, is_own_workspace: bool) -> Self {
        let about_notes = Notes {
            grant: notes.clone(),
            kept,
            workspace: self.policy.workspace.clone(),
            is_own_workspace,
        };
        let policy = Policy {
            network: Network::None,
            workspace: notes,
            grants: Vec::new(),
            notes: None,
            all_except: None,
            named_sockets: false,
            ..self.policy.clone()
        };
        let guard = AddressGuard::new(false);
        let workers = Self::new(policy, &self.home, self.sandbox, guard);
        Self {
            notes: Some((about_notes, Box::new(workers))),
            ..self
        }
    }

    /// Does a job with files, and waits for the end of its process.
    pub(crate) fn call(&self, job: FileJob, cancel: &Cancel) -> Result<Reply> {
        let (workers, job) = self.of_job(job)?;
        let mut body = Vec::new();
        let worker = workers.start(&job, cancel)?;
        let header = worker.exchange(&job, None, &mut |piece| gather(&mut body, piece), cancel)?;
        Reply::new(header, body)
    }

    /// Chooses the workers for a job. For a job about notes, also makes its path relative to the notes.
    fn of_job(&self, mut job: FileJob) -> Result<(&Self, Job)> {
        let notes = self.notes.as_ref();
        let found = notes.and_then(|notes| Some((notes, notes.0.path_of(&job)?)));
        let Some(((notes, workers), path)) = found else {
            return Ok((self, Job::File(job)));
        };
        job.path = path;
        self.check_home()?;
        notes.prepare(&job)?;
        Ok((workers, Job::File(job)))
    }

    /// Runs a command.
    ///
    /// # Errors
    /// Returns an error if the command could not be run. A failed or cancelled command is a normal result.
    pub(crate) fn run(&self, job: ExecJob, cancel: &Cancel) -> Result<CommandOutput> {
        let job = Job::Exec(job);
        let worker = self.start(&job, cancel)?;
        let mut output = OutputBuffer::new(MAX_BODY / 2, MAX_BODY / 2);
        let mut take = |piece: &[u8]| {
            output.push(piece);
            Ok(())
        };
        let end = match worker.exchange(&job, None, &mut take, cancel) {
            Ok(Header::Exited(end)) => end,
            Ok(other) => return Err(other.into_error()),
            Err(_) if cancel.reason().is_some() => Termination::Cancelled,
            Err(e) => return Err(e),
        };
        let printed = output.into_bytes();
        Ok(CommandOutput { end, printed })
    }

    /// Starts a program in the sandbox. It ends at the end of its input.
    pub(crate) fn serve(&self, job: ServeJob, cancel: &Cancel) -> Result<Worker> {
        let job = Job::Serve(job);
        self.start(&job, cancel)?.serve(&job, cancel)
    }

    /// Starts a process for a job, in the confinement of all calls.
    fn start(&self, job: &Job, cancel: &Cancel) -> Result<Worker> {
        if self.sandbox == Sandbox::Off {
            return self.start_in(Confinement::Disabled, job, cancel);
        }
        let needs_none =
            self.sandbox == Sandbox::Auto && matches!(job, Job::File(_) | Job::Read(_));
        let mut chosen = lock_chosen();
        let sandbox = match chosen.clone() {
            // A command tries again after a failure, because commands have not run yet.
            Some(sandbox) if sandbox.is_ok() || needs_none => {
                drop(chosen);
                sandbox
            }
            _ => match self.start_in_strongest(job, cancel)? {
                Ok(worker) => {
                    *chosen = Some(Ok(worker.confinement));
                    return Ok(worker);
                }
                Err(refusals) => chosen.insert(Err(refusals)).clone(),
            },
        };
        match sandbox {
            Ok(confinement) => self.start_in(confinement, job, cancel),
            Err(_) if needs_none => self.start_in(Confinement::Unconfined, job, cancel),
            Err(refusals) => Err(no_sandbox(self.sandbox, job, &refusals)),
        }
    }

    /// Tries the sandboxes, strongest first. The inner error lists why they are unavailable.
    fn start_in_strongest(&self, job: &Job, cancel: &Cancel) -> Result<Result<Worker, String>> {
        let mut refusals = Vec::new();
        for sandbox in [Confinement::Namespaces, Confinement::Landlock] {
            match self.try_to_start(sandbox, job, cancel)? {
                Ok(worker) => return Ok(Ok(worker)),
                Err(why) => refusals.push(why),
            }
        }
        Ok(Err(refusals.join("; ")))
    }

    fn start_in(&self, confinement: Confinement, job: &Job, cancel: &Cancel) -> Result<Worker> {
        self.try_to_start(confinement, job, cancel)?
            .map_err(|why| Error::failed(why).doing("entering the sandbox"))
    }

    /// Starts a process and waits until it has confined itself. The inner error is why this confinement is unavailable.
    fn try_to_start(
        &self,
        confinement: Confinement,
        job: &Job,
        cancel: &Cancel,
    ) -> Result<Result<Worker, String>> {
        self.check_home()?;
        let setup = Setup::new(&self.policy, confinement, job);
        client::start(&setup, &self.guard, cancel)
    }

    /// Parses untrusted bytes while they arrive, in a process with little time and memory.
    pub(crate) fn read(
        &self,
        job: ReadingJob,
        pieces: &mut Pieces,
        cancel: &Cancel,
    ) -> Result<Reply> {
        let mut lost = None;
        let mut pieces = || pieces().inspect_err(|e| lost = Some(e.clone()));
        let job = Job::Read(job);
        let mut body = Vec::new();
        let worker = self.start(&job, cancel)?;
        let mut take = |piece: &[u8]| gather(&mut body, piece);
        let reply = worker
            .exchange(&job, Some(&mut pieces), &mut take, cancel)
            .and_then(|header| Reply::new(header, body));
        match (reply, lost) {
            (_, Some(e)) => Err(e),
            (Ok(reply), None) => match reply.header {
                Header::Text | Header::Image | Header::Pdf => Ok(reply),
                other => Err(other.into_error()),
            },
            (Err(e), None) if e.kind == Kind::Failed => {
                Err(Error::failed("it takes too much time or memory to read"))
            }
            (Err(e), None) => Err(e),
        }
    }

    /// Passes a regular file to `take` in pieces, up to `most` bytes in total, and returns its state.
    pub(crate) fn send_file(
        &self,
        path: &str,
        most: u64,
        cancel: &Cancel,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<String> {
        let job = FileJob::new(path, FileAction::SendFile { most });
        let (workers, job) = self.of_job(job)?;
        let worker = workers.start(&job, cancel)?;
        let mut given = 0;
        let mut take = |piece: &[u8]| {
            given += piece.len() as u64;
            if given > most {
                return Err(Error::failed("the worker process gave too much"));
            }
            take(piece)
        };
        match worker.exchange(&job, None, &mut take, cancel)? {
            Header::Sent { state } => Ok(state),
            other => Err(other.into_error()),
        }
    }

    /// Returns the confinement of calls; `None` before the first one.
    pub(crate) fn confinement(&self) -> Option<Confinement> {
        match (self.sandbox, &*lock_chosen()) {
            (Sandbox::Off, _) => Some(Confinement::Disabled),
            (_, Some(Ok(sandbox))) => Some(*sandbox),
            _ => None,
        }
    }

    /// Returns the working directory of jobs.
    pub(crate) fn workspace(&self) -> &Grant {
        &self.policy.workspace
    }

    /// Returns the directory of the user's notes.
    pub(crate) fn notes(&self) -> Option<&Grant> {
        self.notes.as_ref().map(|(notes, _)| &notes.grant)
    }

    /// Returns whether jobs work in the workspace of the home.
    pub(crate) fn is_own_workspace(&self) -> bool {
        let notes = self.notes.as_ref();
        notes.is_some_and(|(notes, _)| notes.is_own_workspace)
    }

    /// Fails if commands could read the home.
    fn check_home(&self) -> Result<()> {
        if self.sandbox == Sandbox::Off {
            return Ok(());
        }
        let Some(tree) = readable(&self.home) else {
            return Ok(());
        };
        Err(Error::config(format!(
            "{} is in {tree}, which commands can read: they could read its keys",
            self.home.display()
        ))
        .hint("move it, and set BANTAM_HOME to its new path, such as /var/lib/bantam"))
    }
}

/// Adds a piece to the result of a job, up to the limit of all jobs.
fn gather(body: &mut Vec<u8>, piece: &[u8]) -> Result<()> {
    if body.len() + piece.len() > MAX_FILE {
        return Err(Error::failed("the worker process gave too much"));
    }
    body.extend_from_slice(piece);
    Ok(())
}

fn no_sandbox(sandbox: Sandbox, job: &Job, refusals: &str) -> Error {
    let what = match job {
        Job::Serve(_) => "servers are",
        _ if sandbox == Sandbox::Require => "tools are",
        _ => "commands are",
    };
    Error::failed(format!(
        "{what} refused: this system offers no sandbox ({refusals}). `bantam doctor` says what would help. To run commands with \
         all the user's rights, the user can put \"tools\": {{\"exec\": {{\"sandbox\": \"off\"}}}} into config.json"
    ))
}
