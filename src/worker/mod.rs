//! Runs each file or exec job in a process of its own that holds no secret.
//!
//! Each call is one process: this program re-executed. It confines itself, then reads one job from standard input, does
//! it, replies and ends everything it started. The caller keeps the job pipe open: its end of file means that nobody
//! waits for the reply any more.

mod denied;
mod exchange;
mod exec;
mod notes;
mod pdf;
mod poppler;
mod process;
mod processes;
pub(crate) mod protocol;
mod reaper;
mod serve;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use notes::Notes;

use crate::access::Grant;
use crate::cancel::Cancel;
use crate::child::{self, Network, Sandbox};
use crate::config;
use crate::error::{Context, Error, Kind, Result};
use crate::proxy::{Proxy, listener};
use crate::sandbox::readable;
use crate::ssrf::AddressGuard;
use crate::sys;
use crate::text::one_line;
pub(crate) use crate::worker::protocol::Confinement;
use crate::worker::protocol::{
    FileJob, Header, Job, MAX_BODY, Pieces, ReadingJob, Reply, ServeJob, Setup,
};

/// The argument that makes this program a worker process.
const ROLE: &str = "worker";
/// The argument that makes it the second process of a sandbox.
const INNER_ROLE: &str = "worker-inside";
/// The variable that holds the [`Setup`]: arguments are for every user to see.
const SETUP: &str = "BANTAM_HANDS_SETUP";

/// Whether this program can start worker processes of its own: `main` began with [`worker`], and nobody can look into it.
static BEGUN: OnceLock<Result<()>> = OnceLock::new();

/// Lets this program run the built-in tools, each call in a process of its own: **the first line of `main`**.
///
/// Such a process is this program, started again. In it this function does the call and ends the process; nothing after it
/// runs. In the program itself it returns at once, and from then on other processes of the same user cannot inspect this one
/// (`PR_SET_DUMPABLE`): it may hold keys, and the tools' commands must not read them. That leaves no core dumps, and lets a
/// debugger in only as root.
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

/// Fails unless `main` began with [`worker`].
pub(crate) fn begun() -> Result<()> {
    match BEGUN.get() {
        Some(result) => result.clone(),
        None => Err(Error::config(
            "the built-in tools run in processes of this program, which cannot start them",
        )
        .hint("write bantam::init(); as the first line of main")),
    }
}

/// The sandbox that holds this process's calls, or why there is none yet. The first call that finds one chooses it, before any
/// command has run, and nothing changes it again: no command can make the next one's sandbox weaker.
static CHOSEN: Mutex<Option<Result<Confinement, String>>> = Mutex::new(None);

fn lock_chosen() -> MutexGuard<'static, Option<Result<Confinement, String>>> {
    CHOSEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs jobs, one process each.
pub(crate) struct Workers {
    setup: Setup,
    /// Holds the keys: no sandbox may show it.
    home: PathBuf,
    sandbox: Sandbox,
    guard: AddressGuard,
    /// The user's notes, and what does the jobs that are about them.
    notes: Option<(Notes, Box<Workers>)>,
}

/// A process that has confined itself and waits for its job.
struct Confined {
    child: Child,
    confinement: Confinement,
    /// Serves as long as the process runs.
    proxy: Option<Proxy>,
}

/// Kills a process, if it has not ended.
fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    child.kill()?;
    child.wait()
}

impl Workers {
    /// Replaces `setup.confinement` by what the sandbox setting and the system allow.
    pub(crate) fn new(setup: Setup, home: &Path, sandbox: Sandbox, guard: AddressGuard) -> Self {
        Self {
            setup,
            home: home.to_owned(),
            sandbox,
            guard,
            notes: None,
        }
    }

    /// The same, with the user's notes: jobs about them run there. `kept` is the place of their copy.
    pub(crate) fn with_notes(self, notes: Grant, kept: PathBuf, is_own_workspace: bool) -> Self {
        let about_notes = Notes {
            grant: notes.clone(),
            kept,
            workspace: self.setup.workspace.clone(),
            is_own_workspace,
        };
        let setup = Setup {
            network: Network::None,
            workspace: notes,
            grants: Vec::new(),
            notes: None,
            all_except: None,
            named_sockets: false,
            ..self.setup.clone()
        };
        let guard = AddressGuard::new(false);
        let workers = Self::new(setup, &self.home, self.sandbox, guard);
        Self {
            notes: Some((about_notes, Box::new(workers))),
            ..self
        }
    }

    /// Does one job in the sandbox, and waits for the end of its process.
    pub(crate) fn call(&self, job: &Job, cancel: &Cancel) -> Result<Reply> {
        self.call_watched(job, cancel, &mut |_| ())
    }

    /// The same; `printed` sees from time to time the last line of a command that goes on.
    pub(crate) fn call_watched(
        &self,
        job: &Job,
        cancel: &Cancel,
        printed: &mut dyn FnMut(&[u8]),
    ) -> Result<Reply> {
        if let Some((notes, workers)) = &self.notes {
            if let Some(job) = notes.job(job) {
                self.check_home()?;
                notes.prepare(&job)?;
                return workers.call_watched(&job, cancel, printed);
            }
        }
        let confined = self.start(job, cancel)?;
        finish(confined, job, None, cancel, printed)
    }

    /// Starts a program in the sandbox. From then on the child's standard input and output are the program's, which ends when
    /// its input does.
    pub(crate) fn serve(&self, job: ServeJob, cancel: &Cancel) -> Result<Child> {
        let job = Job::Serve(job);
        let mut confined = self.start(&job, cancel)?;
        let begun = exchange::begin(&mut confined.child, &job, cancel).and_then(Reply::into_text);
        match begun {
            Ok(_) => Ok(confined.child),
            Err(e) => {
                drop(end(&mut confined.child));
                Err(e)
            }
        }
    }

    /// Starts a process for a job in the confinement that all calls have.
    fn start(&self, job: &Job, cancel: &Cancel) -> Result<Confined> {
        if self.sandbox == Sandbox::Off {
            return self.start_in(Confinement::Disabled, job, cancel);
        }
        let needs_none =
            self.sandbox == Sandbox::Auto && matches!(job, Job::File(_) | Job::Read(_));
        let mut chosen = lock_chosen();
        let sandbox = match chosen.clone() {
            // A command looks again where there was none: no command has run yet.
            Some(sandbox) if sandbox.is_ok() || needs_none => {
                drop(chosen);
                sandbox
            }
            _ => match self.start_in_strongest(job, cancel)? {
                Ok(confined) => {
                    *chosen = Some(Ok(confined.confinement));
                    return Ok(confined);
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

    /// Tries the sandboxes, the strongest first. The error within says why there is none.
    fn start_in_strongest(&self, job: &Job, cancel: &Cancel) -> Result<Result<Confined, String>> {
        let mut refusals = Vec::new();
        for sandbox in [Confinement::Namespaces, Confinement::Landlock] {
            match self.try_to_start(sandbox, job, cancel)? {
                Ok(confined) => return Ok(Ok(confined)),
                Err(why) => refusals.push(why),
            }
        }
        Ok(Err(refusals.join("; ")))
    }

    fn start_in(&self, confinement: Confinement, job: &Job, cancel: &Cancel) -> Result<Confined> {
        self.try_to_start(confinement, job, cancel)?
            .map_err(|why| Error::failed(why).doing("entering the sandbox"))
    }

    /// Starts a process and waits until it has confined itself. The error within says why this confinement is unavailable.
    fn try_to_start(
        &self,
        confinement: Confinement,
        job: &Job,
        cancel: &Cancel,
    ) -> Result<Result<Confined, String>> {
        self.check_home()?;
        let network = match (job, self.setup.network) {
            (Job::File(_) | Job::Read(_), _) => Network::None,
            (_, network) => network,
        };
        let is_guarded = confinement == Confinement::Namespaces && network == Network::Guarded;
        let (receiver, stderr) = if is_guarded {
            let (ours, theirs) = listener::pair()?;
            (Some(ours), Stdio::from(theirs))
        } else {
            (None, Stdio::null())
        };
        let setup = Setup {
            confinement,
            network,
            ..self.setup.clone().for_job(job)
        };
        let mut child = spawn(&setup, stderr)?;
        let proxy = receiver.map(|receiver| receiver.start_proxy(&self.guard));
        let told = exchange::confined(&mut child, cancel);
        let refusal = match (told, proxy.transpose()) {
            (Ok(Ok(())), Ok(proxy)) => {
                return Ok(Ok(Confined {
                    child,
                    confinement,
                    proxy: proxy.flatten(),
                }));
            }
            (Ok(Err(why)), _) => Ok(Err(why)),
            (Err(e), _) | (_, Err(e)) => Err(e),
        };
        drop(end(&mut child));
        refusal
    }

    /// Reads another's bytes for their content, as they come, in a process that has little time and memory for it.
    pub(crate) fn read(
        &self,
        job: ReadingJob,
        pieces: &mut Pieces,
        cancel: &Cancel,
    ) -> Result<Reply> {
        let mut lost = None;
        let mut pieces = || {
            pieces().inspect_err(|e| {
                lost = Some(e.clone());
            })
        };
        let job = Job::Read(job);
        let confined = self.start(&job, cancel)?;
        let reply = finish(confined, &job, Some(&mut pieces), cancel, &mut |_| ());
        match (reply, lost) {
            (_, Some(e)) => Err(e),
            (Ok(reply), None) => match reply.header {
                Header::Text | Header::Image => Ok(reply),
                other => Err(other.into_error()),
            },
            (Err(e), None) if e.kind == Kind::Failed => {
                Err(Error::failed("it takes too much time or memory to read"))
            }
            (Err(e), None) => Err(e),
        }
    }

    /// Gives a regular file of the workspace to `take`, part by part, at most `most` bytes in all.
    pub(crate) fn give_file(
        &self,
        path: &str,
        most: u64,
        cancel: &Cancel,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let (mut offset, mut first_stamp) = (0, String::new());
        loop {
            let job = Job::File(FileJob::GiveFile {
                path: path.to_owned(),
                offset,
                most,
            });
            let Reply { header, body } = self.call(&job, cancel)?;
            let Header::Part(stamp) = header else {
                return Err(header.into_error());
            };
            if offset == 0 {
                first_stamp.clone_from(&stamp);
            }
            offset += body.len() as u64;
            if stamp != first_stamp || offset > most {
                return Err(Error::failed(format!(
                    "{} changed while it was read: try again",
                    one_line(path, 200)
                )));
            }
            take(&body)?;
            if body.len() < MAX_BODY {
                return Ok(());
            }
        }
    }

    /// How calls are confined, once one has been made.
    pub(crate) fn confinement(&self) -> Option<Confinement> {
        match (self.sandbox, &*lock_chosen()) {
            (Sandbox::Off, _) => Some(Confinement::Disabled),
            (_, Some(Ok(sandbox))) => Some(*sandbox),
            _ => None,
        }
    }

    /// The directory that jobs work in.
    pub(crate) fn workspace(&self) -> &Grant {
        &self.setup.workspace
    }

    /// The user's notes.
    pub(crate) fn notes(&self) -> Option<&Grant> {
        self.notes.as_ref().map(|(notes, _)| &notes.grant)
    }

    /// Whether jobs work in the workspace of the home.
    pub(crate) fn is_own_workspace(&self) -> bool {
        let notes = self.notes.as_ref();
        notes.is_some_and(|(notes, _)| notes.is_own_workspace)
    }

    /// Enters one confinement in a process of its own, and says why it is unavailable. Chooses nothing for other calls.
    pub(crate) fn probe(
        &self,
        confinement: Confinement,
        cancel: &Cancel,
    ) -> Result<Result<(), String>> {
        let job = Job::File(FileJob::Passages);
        match self.try_to_start(confinement, &job, cancel)? {
            Ok(mut confined) => {
                end(&mut confined.child)?;
                Ok(Ok(()))
            }
            Err(why) => Ok(Err(why)),
        }
    }

    /// Fails where commands could read the home.
    fn check_home(&self) -> Result<()> {
        let Some(tree) = readable(&self.home).filter(|_| self.sandbox != Sandbox::Off) else {
            return Ok(());
        };
        Err(Error::config(format!(
            "{} is in {tree}, which commands can read: they could read its keys",
            self.home.display()
        ))
        .hint("move it, and set BANTAM_HOME to its new path, for example /var/lib/bantam"))
    }
}

fn spawn(setup: &Setup, stderr: Stdio) -> Result<Child> {
    let mut command = child::again(ROLE);
    command
        .env(SETUP, serde_json::to_string(setup)?)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr);
    command.spawn().doing("starting the worker process")
}

/// Has a confined process do its job, and ends it.
fn finish(
    confined: Confined,
    job: &Job,
    pieces: Option<&mut Pieces>,
    cancel: &Cancel,
    printed: &mut dyn FnMut(&[u8]),
) -> Result<Reply> {
    let Confined {
        mut child,
        confinement,
        proxy,
    } = confined;
    let count_processes = confinement.is_sandboxed()
        && matches!(
            job,
            Job::Exec(_) | Job::Read(_) | Job::File(FileJob::ReadFile { .. })
        )
        && rustix::process::geteuid().is_root();
    let result = exchange::exchange(&mut child, job, pieces, cancel, printed, count_processes);
    // It has ended by now, or used up its grace.
    let ended = end(&mut child);
    drop(proxy);
    match (result, ended) {
        (Ok(reply), Ok(_)) => Ok(reply),
        (Err(e), Ok(status)) if e.kind == Kind::Failed => {
            Err(e.doing(format_args!("worker process ({status})")))
        }
        (Err(e), _) => Err(e),
        (_, Err(e)) => Err(Error::from(e).doing("ending the worker process")),
    }
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
