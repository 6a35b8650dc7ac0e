//! The `exec` tool: runs a command in the sandbox.

use std::sync::Arc;

use regex_lite::Regex;
use serde_json::Value;

use super::{CallContext, Function, Risk, ToolOutput, ToolSpec, text};
use crate::child::{Network, Sandbox};
use crate::config::{Config, Env, Loaded};
use crate::error::Result;
use crate::worker::CommandOutput;
use crate::worker::Workers;
use crate::worker::protocol::{ExecJob, Termination};

/// Maximum timeout of a call, in seconds.
const MAX_TIMEOUT: u64 = 600;
pub(crate) const EXEC: &str = "exec";

/// Makes `exec`, with a description that depends on the settings.
pub(crate) fn exec_tool(loaded: &Arc<Loaded>, workers: &Arc<Workers>) -> Function {
    let mut spec = ToolSpec::built_in(
        EXEC,
        Risk::Runs,
        "Run a command with /bin/sh in the workspace. Standard input is empty; background processes end with the command.",
        concat!(
            r#"{"type":"object","properties":{"command":{"type":"string"},"#,
            r#""working_dir":{"type":"string"},"#,
            r#""timeout":{"type":"integer","minimum":1,"maximum":600,"description":"Seconds; default TIMEOUT"}},"required":["command"]}"#
        ),
    );
    let settings = &loaded.config.tools.exec;
    let network = if settings.sandbox == Sandbox::Off {
        Network::Full
    } else {
        settings.network
    };
    spec.description += match network {
        Network::None => " Commands have no network, unless the user sets tools.exec.network.",
        Network::Guarded => {
            " Commands reach the network only by https://, through the proxy in https_proxy; without that variable they have none."
        }
        Network::Full => "",
    };
    let timeout = settings.timeout.to_string();
    spec.schema = spec.schema.replace("TIMEOUT", &timeout).into();
    let (loaded, workers) = (loaded.clone(), workers.clone());
    Function::built_in(spec, &["command", "working_dir"], move |args, turn| {
        run(&loaded, &workers, args, turn)
    })
}

/// Returns the environment variables of all commands: the local time zone, `tools.exec.pass_env`, and the user's home if it is
/// open to them; their home is the workspace otherwise.
pub(crate) fn passed(config: &Config, env: &Env) -> Vec<(String, String)> {
    let is_open = !config.agents.defaults.restrict_to_workspace;
    let names = ["TZ", "TZDIR"]
        .into_iter()
        .chain(is_open.then_some("HOME"))
        .chain(config.tools.exec.pass_env.iter().map(String::as_str));
    names
        .filter_map(|name| Some((name.to_owned(), env.get(name)?.clone())))
        .collect()
}

fn run(loaded: &Loaded, workers: &Workers, args: &Value, turn: &CallContext) -> Result<ToolOutput> {
    let timeout = loaded.config.tools.exec.timeout;
    let timeout_secs = args["timeout"].as_u64().unwrap_or(timeout);
    let timeout_secs = timeout_secs.clamp(1, MAX_TIMEOUT);
    let asked = text(args, "working_dir");
    let working_dir = if asked.is_empty() { "." } else { asked };
    let job = ExecJob {
        command: text(args, "command").to_owned(),
        working_dir: working_dir.to_owned(),
        timeout_secs,
        env: passed(&loaded.config, &loaded.env),
        input: Vec::new(),
    };
    let output = workers.run(job, turn.cancel)?;
    Ok(describe(&output, timeout_secs))
}

/// Describes how a command ended; `None` if it succeeded.
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

/// Formats the output and, after a failure, how the command ended.
fn describe(done: &CommandOutput, timeout_secs: u64) -> ToolOutput {
    let mut text = output(&done.printed);
    let note = ending(done.end, timeout_secs);
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

/// Returns the output without overwritten parts of lines, and without colors, because a secret in them would not be
/// recognized.
fn output(printed: &[u8]) -> String {
    let text = String::from_utf8_lossy(printed);
    let lines = text.split('\n').map(|line| line.trim_end_matches('\r'));
    let shown = lines.filter_map(|line| line.rsplit('\r').next());
    let text = shown.collect::<Vec<_>>().join("\n");
    // Colors and the like, and titles and links, which end with a bell or another sequence.
    let sequences = Regex::new(r"\x1b(\[[ -?]*[@-~]?|\][^\x07\x1b\n]*(\x07|\x1b\\)?|[ -/]*[0-~]?)");
    match sequences {
        Ok(sequences) if text.contains('\u{1b}') => sequences.replace_all(&text, "").into_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_end_is_told_and_a_good_one_is_not() {
        let says = |printed: &[u8], end| {
            let printed = printed.to_vec();
            describe(&CommandOutput { end, printed }, 9).text
        };
        assert_eq!(says(b"hi\n", Termination::Code(0)), "hi\n");
        assert_eq!(says(b"", Termination::Code(0)), "(no output)");
        assert_eq!(says(b"hi", Termination::Code(3)), "hi\n[exit code 3]");
        assert_eq!(
            says(b"\xff", Termination::Signal(9)),
            "\u{fffd}\n[killed by signal 9]"
        );
        assert_eq!(says(b"", Termination::TimedOut), "[timed out after 9 s]");
    }

    #[test]
    fn overwritten_text_and_colors_are_left_out() {
        for (printed, shown) in [
            ("10%\r20%\rdone\n", "done\n"),
            ("a\r\nb", "a\nb"),
            ("20 %\r", "20 %"),
            (
                "\u{1b}[1;31mred\u{1b}[0m and \u{1b}(Bplain",
                "red and plain",
            ),
            ("\u{1b}]0;a title\u{7}one\u{1b}]8;;x\u{1b}\\two", "onetwo"),
            ("\u{1b}]0;without an end\nnext\u{1b}", "\nnext"),
            ("\u{1b}é\u{1b}[é\u{1b}\u{1b}", "éé"),
        ] {
            assert_eq!(output(printed.as_bytes()), shown, "{printed:?}");
        }
    }
}
