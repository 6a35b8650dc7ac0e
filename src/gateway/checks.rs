//! Checks of jobs: a command in the sandbox decides whether the model is asked.

use crate::app::{make_workspace, must_confirm_exec, workers};
use crate::cancel::Cancel;
use crate::child::Network;
use crate::config::{Config, Loaded};
use crate::cron::JobCheck;
use crate::error::{Error, Result};
use crate::text::to_single_line;
use crate::tool::exec::{ending, passed};
use crate::worker::protocol::{ExecJob, Termination};

/// # Errors
/// Returns an error if checks cannot run because `exec` is disabled.
pub(crate) fn need_exec(config: &Config) -> Result<()> {
    if config.tools.exec.enabled {
        return Ok(());
    }
    Err(Error::config("a check needs tools.exec, which is disabled")
        .hint("run `bantam config set tools.exec.enabled true`"))
}

/// Runs the command of a check like a command of `exec`, until it ends or is cancelled. Returns what it printed, or the reason for
/// not asking the model. A check made by a model has no network.
///
/// # Errors
/// Returns an error if the command could not run or did not end.
pub(crate) fn run_check(
    loaded: &Loaded,
    check: &JobCheck,
    cancel: &Cancel,
) -> Result<Result<String, String>> {
    need_exec(&loaded.config)?;
    make_workspace(loaded)?;
    let mut config = Config::clone(&loaded.config);
    if let JobCheck::OfModel(_) = check {
        if must_confirm_exec(&config) {
            let why = "`tools.confirm` has exec by now, and a check can ask nobody";
            return Ok(Err(why.to_owned()));
        }
        config.tools.exec.network = Network::None;
    }
    let timeout_secs = config.tools.exec.timeout;
    let job = ExecJob {
        command: check.command().to_owned(),
        working_dir: ".".to_owned(),
        timeout_secs,
        env: passed(&config, &loaded.env),
        input: Vec::new(),
    };
    let done = workers(&loaded.with(config))?.run(job, cancel)?;
    let printed = String::from_utf8_lossy(&done.printed);
    let output = loaded.redactor().redact_output(printed.into_owned(), "");
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
}
