//! Runs each file or exec job in a process of its own that holds no secret.
//!
//! Each call is one process: this program re-executed. It confines itself, then reads one job from standard input, does
//! it, replies and ends everything it started. The caller keeps the job pipe open: its end of file means that nobody
//! waits for the reply any more.

mod denied;
mod exchange;
mod exec;
mod pdf;
mod process;
mod processes;
mod reaper;
mod serve;

use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use process::main;

use crate::cancel::Cancel;
use crate::child::{self, Network, Sandbox};
use crate::error::{Context, Error, Kind, Result};
use crate::guard::AddressGuard;
pub(crate) use crate::jail::readable;
use crate::proxy::listener;
use crate::text::one_line;
use crate::tree::Tree;
pub(crate) use crate::wire::Confinement;
use crate::wire::{FileJob, Header, Job, MAX_BODY, Reply, ServeJob, Setup};

/// The argument that makes this program a hands process.
pub(crate) const ROLE: &str = "hands";
/// The argument that makes it the second process of a jail.
pub(crate) const INNER_ROLE: &str = "hands-inside";
/// The variable that holds the [`Setup`]: arguments are for every user to see.
pub(crate) const SETUP: &str = "BANTAM_HANDS_SETUP";

/// How long calls settle for a confinement before stronger ones are tried again: what kept one away may have passed.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Runs jobs, one process each.
pub(crate) struct Hands {
    setup: Setup,
    /// The setup of the turn that made the last call: its trees are found once.
    turn: Mutex<Option<(Cancel, Setup)>>,
    sandbox: Sandbox,
    guard: AddressGuard,
    /// What confined the last call, and when a stronger one was last tried.
    selected: Mutex<Option<(Confinement, Instant)>>,
}

impl Hands {
    /// Replaces `setup.confinement` by what the sandbox setting and the system allow.
    pub(crate) fn new(setup: Setup, sandbox: Sandbox, guard: AddressGuard) -> Self {
        Self {
            setup,
            turn: Mutex::default(),
            sandbox,
            guard,
            selected: Mutex::default(),
        }
    }

    /// Does one job in the strongest confinement available, and waits for the end of its process.
    pub(crate) fn call(&self, job: &Job, cancel: &Cancel) -> Result<Reply> {
        self.in_strongest(job, &mut |confinement| self.run(confinement, job, cancel))
    }

    /// Starts a program in the strongest jail available. From then on the child's standard input and output are the
    /// program's, which ends when its input does.
    pub(crate) fn serve(&self, job: ServeJob, cancel: &Cancel) -> Result<Child> {
        let (job, mut started) = (Job::Serve(job), None);
        let reply = self.in_strongest(&job, &mut |confinement| {
            let child = started.insert(self.spawn(confinement, Stdio::null(), cancel)?);
            let reply = exchange::begin(child, &job, cancel);
            if !matches!(
                reply,
                Ok(Reply {
                    header: Header::Text,
                    ..
                })
            ) {
                drop(child.kill().and_then(|()| child.wait()));
            }
            reply
        })?;
        let child = started.ok_or_else(|| Error::failed("nothing was started"))?;
        reply.into_text().map(|_| child)
    }

    /// Tries the confinements that will do for a job, strongest first, until one is available.
    fn in_strongest(
        &self,
        job: &Job,
        attempt: &mut dyn FnMut(Confinement) -> Result<Reply>,
    ) -> Result<Reply> {
        let candidates = self.candidates(job);
        let known = *self.lock_selected();
        let settled = known.filter(|(known, tried)| {
            tried.elapsed() < RETRY_INTERVAL && candidates.contains(known)
        });
        let mut refusals = Vec::new();
        for &confinement in candidates {
            // Never a weaker one than before: no process can talk the next one into that.
            if settled.is_some_and(|(known, _)| confinement < known)
                || known.is_some_and(|(known, _)| confinement > known)
            {
                continue;
            }
            match attempt(confinement)? {
                Reply {
                    header: Header::Unavailable { why },
                    ..
                } => refusals.push(why),
                reply => {
                    if settled.is_none() {
                        *self.lock_selected() = Some((confinement, Instant::now()));
                    }
                    return Ok(reply);
                }
            }
        }
        if known.is_some_and(|(known, _)| known.is_sandboxed()) {
            return Err(Error::failed(refusals.join("; ")).doing("entering the jail"));
        }
        let what = match job {
            Job::Serve(_) => "servers are",
            _ if self.sandbox == Sandbox::Require => "tools are",
            _ => "commands are",
        };
        Err(Error::failed(format!(
            "{what} refused: this system offers no jail ({}). `bantam doctor` says what would help. To run commands with \
             all the user's rights, the user can put \"tools\": {{\"exec\": {{\"sandbox\": \"off\"}}}} into config.json",
            refusals.join("; ")
        )))
    }

    /// The confinements that will do for a job, strongest first.
    fn candidates(&self, job: &Job) -> &'static [Confinement] {
        match (self.sandbox, job) {
            (Sandbox::Off, _) => &[Confinement::Disabled],
            (Sandbox::Auto, Job::File(_) | Job::Layers) => &[
                Confinement::Namespaces,
                Confinement::Landlock,
                Confinement::Unconfined,
            ],
            (Sandbox::Auto | Sandbox::Require, _) => {
                &[Confinement::Namespaces, Confinement::Landlock]
            }
        }
    }

    fn lock_selected(&self) -> MutexGuard<'_, Option<(Confinement, Instant)>> {
        self.selected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a regular file of the workspace to `take`, part by part, at most `most` bytes in all.
    pub(crate) fn give_file(
        &self,
        path: &str,
        most: u64,
        cancel: &Cancel,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<u64> {
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
                return Ok(offset);
            }
        }
    }

    /// How calls are confined, once one has been made.
    pub(crate) fn confinement(&self) -> Option<Confinement> {
        self.lock_selected().map(|(confinement, _)| confinement)
    }

    /// The tree that jobs work in.
    pub(crate) fn workspace(&self) -> &Tree {
        &self.setup.workspace
    }

    /// Enters one confinement in a process of its own and returns a line for each of its layers, or why it is
    /// unavailable. Selects nothing for other calls.
    pub(crate) fn try_confinement(
        &self,
        confinement: Confinement,
        cancel: &Cancel,
    ) -> Result<Result<String, String>> {
        match self.run(confinement, &Job::Layers, cancel)? {
            Reply {
                header: Header::Unavailable { why },
                ..
            } => Ok(Err(why)),
            reply => Ok(Ok(reply.into_text()?.trim_end().to_owned())),
        }
    }

    fn run(&self, confinement: Confinement, job: &Job, cancel: &Cancel) -> Result<Reply> {
        let guarded =
            confinement == Confinement::Namespaces && self.setup.network == Network::Guarded;
        let (receiver, stderr) = if guarded {
            let (ours, theirs) = listener::pair()?;
            (Some(ours), Stdio::from(theirs))
        } else {
            (None, Stdio::null())
        };
        let mut child = self.spawn(confinement, stderr, cancel)?;
        let proxy = receiver
            .map(|receiver| receiver.start_proxy(&self.guard))
            .transpose();
        let count_processes = confinement.is_sandboxed()
            && matches!(job, Job::Exec { .. })
            && rustix::process::geteuid().is_root();
        let result = exchange::exchange(&mut child, job, cancel, count_processes);
        // It has ended by now, or used up its grace.
        let ended = child.kill().and_then(|()| child.wait());
        match (proxy.and(result), ended) {
            (Ok(reply), Ok(_)) => Ok(reply),
            (Err(e), Ok(status)) if e.kind == Kind::Failed => {
                Err(e.doing(format_args!("hands process ({status})")))
            }
            (Err(e), _) => Err(e),
            (_, Err(e)) => Err(Error::from(e).doing("ending the hands process")),
        }
    }

    /// The setup with the trees as they were when this turn first used them.
    fn setup_of(&self, turn: &Cancel) -> Result<Setup> {
        let mut known = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some((of, setup)) if of.is_same_turn(turn) => Ok(setup.clone()),
            _ => Ok(known
                .insert((turn.clone(), self.setup.identified()?))
                .1
                .clone()),
        }
    }

    fn spawn(&self, confinement: Confinement, stderr: Stdio, turn: &Cancel) -> Result<Child> {
        let setup = serde_json::to_string(&Setup {
            confinement,
            ..self.setup_of(turn)?
        })?;
        let mut command = child::again(ROLE);
        command
            .env(SETUP, setup)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr);
        command.spawn().doing("starting the hands process")
    }
}
