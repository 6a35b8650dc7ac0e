//! Checks of jobs: a command in the sandbox decides whether the model is asked.

use std::sync::Arc;

use super::run::CheckCommand;
use crate::app::{make_workspace, must_confirm_exec, workers};
use crate::cancel::Cancel;
use crate::child::Network;
use crate::config::{Config, Loaded};
use crate::cron::JobCheck;
use crate::error::{Error, Result};
use crate::text::to_single_line;
use crate::tool::exec::{ending, passed};
use crate::worker::protocol::{ExecJob, Termination};

/// Returns a function that runs checks like commands of `exec`. A check made by a model has no network.
///
/// # Errors
/// Returns an error if `exec` is disabled, or the configuration opens a directory that must stay closed.
pub(crate) fn check_command(loaded: &Loaded) -> Result<Arc<CheckCommand>> {
    let exec = &loaded.config.tools.exec;
    if !exec.enabled {
        return Err(Error::config("a check needs tools.exec, which is disabled")
            .hint("run `bantam config set tools.exec.enabled true`"));
    }
    make_workspace(loaded)?;
    let of_user = workers(loaded)?;
    let mut closed = Config::clone(&loaded.config);
    closed.tools.exec.network = Network::None;
    let of_model = workers(&loaded.with(closed))?;
    let must_confirm = must_confirm_exec(&loaded.config);
    let env = passed(&loaded.config, &loaded.env);
    let timeout_secs = exec.timeout;
    let redactor = loaded.redactor();
    Ok(Arc::new(move |check: &JobCheck, cancel: &Cancel| {
        let workers = match check {
            JobCheck::OfUser(_) => &of_user,
            JobCheck::OfModel(_) if must_confirm => {
                let why = "`tools.confirm` has exec by now, and a check can ask nobody";
                return Ok(Err(why.to_owned()));
            }
            JobCheck::OfModel(_) => &of_model,
        };
        let job = ExecJob {
            command: check.command().to_owned(),
            working_dir: ".".to_owned(),
            timeout_secs,
            env: env.clone(),
            input: Vec::new(),
        };
        let done = workers.run(job, cancel)?;
        let printed = String::from_utf8_lossy(&done.printed);
        let output = redactor.redact_output(printed.into_owned(), "");
        let last = output.trim().lines().last().unwrap_or_default();
        let why = match ending(done.end, timeout_secs) {
            Some(ending) if last.is_empty() => ending,
            Some(ending) => format!("{ending}: {}", to_single_line(last, 200)),
            None if last.is_empty() => "the command printed nothing".to_owned(),
            None => return Ok(Ok(output)),
        };
        match done.end {
            // With 126 and 127, the shell reports that it cannot run a command.
            Termination::Code(code) if !matches!(code, 126 | 127) => Ok(Err(why)),
            _ => Err(Error::failed(format!("the check could not run: {why}"))),
        }
    }))
}
