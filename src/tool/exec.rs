//! The `exec` tool: runs a command in the sandbox.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{CallContext, Function, Risk, ToolOutput, ToolSpec, Workshop, arguments};
use crate::bus::Event;
use crate::child::{Network, Sandbox};
use crate::config::{Config, Env};
use crate::error::Result;
use crate::text::one_line;
use crate::worker::protocol::{ExecJob, Header, Job, MAX_LINE, Reply, Termination};

/// The longest timeout that a call may ask for, in seconds.
const MAX_TIMEOUT: u64 = 600;

#[derive(Deserialize)]
struct Args {
    command: String,
    working_dir: Option<String>,
    timeout: Option<u64>,
}

/// `exec`, whose description says what the settings decide.
pub(crate) fn exec_tool(workshop: &Arc<Workshop>) -> Function {
    let mut spec = ToolSpec::built_in(
        "exec",
        Risk::Runs,
        "Run a command with /bin/sh in the workspace. Standard input is empty; background processes end with the command.",
        concat!(
            r#"{"type":"object","properties":{"command":{"type":"string"},"#,
            r#""working_dir":{"type":"string"},"#,
            r#""timeout":{"type":"integer","minimum":1,"maximum":600,"description":"Seconds; default TIMEOUT"}},"required":["command"]}"#
        ),
    );
    let settings = &workshop.config.tools.exec;
    let network = if settings.sandbox == Sandbox::Off {
        Network::Full
    } else {
        settings.network
    };
    spec.description += match network {
        Network::None => {
            " Commands have no network: the user can set tools.exec.network in config.json."
        }
        Network::Guarded => {
            " Commands reach the network only by https://, through the proxy in https_proxy; without that variable they have none."
        }
        Network::Full => "",
    };
    let timeout = settings.timeout.to_string();
    spec.schema = spec.schema.replace("TIMEOUT", &timeout).into();
    workshop.tool(spec, &["command", "working_dir"], run)
}

/// The environment variables that every command gets: those of the local time zone and of `tools.exec.pass_env`.
pub(crate) fn passed(config: &Config, env: &Env) -> Vec<(String, String)> {
    let names = ["TZ", "TZDIR"]
        .into_iter()
        .chain(config.tools.exec.pass_env.iter().map(String::as_str));
    names
        .filter_map(|name| Some((name.to_owned(), env.get(name)?.clone())))
        .collect()
}

fn run(workshop: &Workshop, args: &Value, turn: &CallContext) -> Result<ToolOutput> {
    let args: Args = arguments(args)?;
    let timeout = workshop.config.tools.exec.timeout;
    let timeout_secs = args.timeout.unwrap_or(timeout).clamp(1, MAX_TIMEOUT);
    let working_dir = args.working_dir.unwrap_or_else(|| ".".to_owned());
    let job = Job::Exec(ExecJob {
        command: args.command,
        working_dir,
        timeout_secs,
        env: passed(&workshop.config, &workshop.env),
        input: Vec::new(),
    });
    let mut printed = |line: &[u8]| {
        let line = one_line(&String::from_utf8_lossy(line), MAX_LINE);
        (turn.events)(Event::ToolOutput(line));
    };
    let workers = &workshop.workers;
    let Reply { header, body } = workers.call_watched(&job, turn.cancel, &mut printed)?;
    let Header::Exited { end, dropped } = header else {
        return Err(header.into_error());
    };
    Ok(describe(&body, end, dropped, timeout_secs))
}

/// How a command ended, unless it succeeded.
pub(crate) fn ending(end: Termination, timeout_secs: u64) -> Option<String> {
    match end {
        Termination::Code(0) => None,
        Termination::Code(code) => Some(format!("exit code {code}")),
        Termination::Signal(signal) => Some(format!("killed by signal {signal}")),
        Termination::TimedOut => Some(format!("timed out after {timeout_secs} s")),
        Termination::DiskFull => Some("killed: the disk is nearly full".to_owned()),
        Termination::TooManyProcesses => Some("killed: it started too many processes".to_owned()),
        Termination::Cancelled => Some("killed: the user stopped it".to_owned()),
    }
}

/// The output, and how the command ended unless it succeeded.
fn describe(printed: &[u8], end: Termination, dropped: u64, timeout_secs: u64) -> ToolOutput {
    let mut text = String::from_utf8_lossy(printed).into_owned();
    if dropped > 0 {
        text.push_str(&format!("\n[{dropped} more bytes of output were dropped]"));
    }
    let note = ending(end, timeout_secs);
    if let Some(note) = &note {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("[{note}]"));
    } else if text.is_empty() {
        text.push_str("(no output)");
    }
    ToolOutput {
        failed: note.is_some(),
        ..ToolOutput::text(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_end_is_told_and_a_good_one_is_not() {
        let says = |printed: &[u8], end, dropped| describe(printed, end, dropped, 9).text;
        assert_eq!(says(b"hi\n", Termination::Code(0), 0), "hi\n");
        assert_eq!(says(b"", Termination::Code(0), 0), "(no output)");
        assert_eq!(says(b"hi", Termination::Code(3), 0), "hi\n[exit code 3]");
        assert_eq!(
            says(b"\xff", Termination::Signal(9), 5),
            "\u{fffd}\n[5 more bytes of output were dropped]\n[killed by signal 9]"
        );
        assert_eq!(says(b"", Termination::TimedOut, 0), "[timed out after 9 s]");
    }
}
