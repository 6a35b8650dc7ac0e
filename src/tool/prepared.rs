//! A checked call: what is shown about it, and to whom, and how it runs.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::Value;

use super::client::CLIENT;
use super::{BUILT_IN, Risk, Tool, ToolOutput, Turn, change, pages};
use crate::cancel::Cancel;
use crate::error::{Result, contained};
use crate::message::{ToolCall, ToolResult};
use crate::redact::Redactor;
use crate::text::{clip, one_line, spelled_out};

/// How much of one argument a summary may use, in bytes.
const MAX_SUMMARIZED: usize = 16 << 10;

/// A call after its checks. Whatever happens to it, it gets exactly one result.
pub(crate) struct PreparedCall<'a> {
    pub(super) call: &'a ToolCall,
    pub(super) checked: Result<(&'a dyn Tool, Value)>,
    /// The names of arguments that were comments.
    pub(super) ignored: Vec<String>,
    pub(super) redactor: &'a Redactor,
}

/// How the result of a call that does not run begins.
const NOT_RUN: &str = "not run: ";

impl PreparedCall<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.call.name
    }

    /// One line for a person, without secrets and control characters.
    pub(crate) fn summary(&self) -> String {
        self.summarized(&|text| self.redactor.redact_output(text, ""))
    }

    /// The same for whoever is asked about it: what looks like a secret may be what it does, so only known ones are gone.
    pub(crate) fn asked_summary(&self) -> String {
        self.summarized(&|text| self.redactor.redact_known(text))
    }

    fn summarized(&self, strike: &dyn Fn(String) -> String) -> String {
        let short = |text: &str| strike(clip(text, MAX_SUMMARIZED).to_owned());
        let summary = match &self.checked {
            Ok((tool, args)) => tool.summary(&with_texts(args, &short)),
            Err(e) => self.redactor.redact(format!("cannot run: {e}")),
        };
        one_line(&format!("{} {summary}", self.call.name), 160)
    }

    /// Its arguments for whoever is asked about it, each whole, but for those that [`PreparedCall::asked_change`] shows.
    pub(crate) fn asked_arguments(&self) -> Vec<String> {
        let Ok((_, args)) = &self.checked else {
            return Vec::new();
        };
        let changed: &[&str] = if self.changed_lines().is_empty() {
            &[]
        } else {
            &["content", "old_text", "new_text"]
        };
        let named = args.as_object().into_iter().flatten();
        named
            .filter(|(name, _)| !changed.contains(&name.as_str()))
            .map(|(name, value)| match value.as_str() {
                Some(text) => format!("{name}: {text}"),
                None => format!("{name}: {value}"),
            })
            .map(|line| self.for_question(line))
            .collect()
    }

    /// The lines that it takes away and adds, for whoever is asked about it. A file that it replaces is read for that.
    pub(crate) fn asked_change(&self, cancel: &Cancel) -> Vec<String> {
        let replaced = match &self.checked {
            Ok((tool, args)) if self.is_built_in() => {
                tool.replaces(args, cancel).map(|old| match old {
                    Ok(old) => change::replacing(&old, args),
                    Err(why) => change::unseen(&why, args),
                })
            }
            _ => None,
        };
        let lines = replaced.unwrap_or_else(|| self.changed_lines()).into_iter();
        lines.map(|line| self.for_question(line)).collect()
    }

    fn for_question(&self, text: String) -> String {
        spelled_out(&self.redactor.redact_known(text))
    }

    /// The lines that it takes away and adds, without secrets, if it changes a file.
    pub(crate) fn change(&self) -> Vec<String> {
        let lines = self.changed_lines().into_iter();
        lines
            .map(|line| self.redactor.redact_output(line, ""))
            .collect()
    }

    fn changed_lines(&self) -> Vec<String> {
        match &self.checked {
            Ok((_, args)) if self.is_built_in() => change::lines(&self.call.name, args),
            _ => Vec::new(),
        }
    }

    /// Whether `names` (tools, MCP servers, `writes`, `runs`) includes this call, so that the user is asked first.
    pub(crate) fn is_among(&self, names: &[String]) -> bool {
        let server = self.call.name.split_once("__").map(|(server, _)| server);
        let does = match self.risk() {
            Risk::Safe => "",
            Risk::Writes => "writes",
            Risk::Runs => "runs",
        };
        // A client decides itself about its own tools.
        let is_clients = |tool: &dyn Tool| tool.spec().source == CLIENT;
        let is_ours = matches!(&self.checked, Ok((tool, _)) if !is_clients(*tool));
        is_ours
            && names.iter().any(|name| {
                *name == self.call.name || name == does || Some(name.as_str()) == server
            })
    }

    /// An invalid call does nothing.
    pub(crate) fn risk(&self) -> Risk {
        self.checked
            .as_ref()
            .map_or(Risk::Safe, |(tool, args)| tool.risk(args))
    }

    /// Whether it may run in parallel with others for which this holds.
    pub(crate) fn is_parallel(&self) -> bool {
        self.checked
            .as_ref()
            .map_or(true, |(tool, args)| tool.is_parallel(args))
    }

    pub(crate) fn id(&self) -> &str {
        &self.call.id
    }

    pub(crate) fn is_built_in(&self) -> bool {
        self.checked
            .as_ref()
            .is_ok_and(|(tool, _)| tool.spec().source == BUILT_IN)
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.checked.is_ok()
    }

    /// Equal for calls of the same tool with the same arguments, however they are written.
    pub(crate) fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.call.name.hash(&mut hasher);
        match &self.checked {
            // Keys are sorted and spaces gone.
            Ok((_, args)) => args.to_string().hash(&mut hasher),
            Err(_) => self.call.arguments.hash(&mut hasher),
        }
        hasher.finish()
    }

    /// Runs the call. An error becomes a result that says what went wrong.
    pub(crate) fn run(&self, turn: &Turn) -> ToolResult {
        let output = match &self.checked {
            Ok((tool, args)) => contained("the tool", || tool.call(args, turn)),
            Err(e) => Err(e.clone()),
        };
        let output = output.map(|mut output| {
            if !self.ignored.is_empty() {
                let ignored = self.ignored.join(", ");
                output.text.push_str(&format!("\n[ignored: {ignored}]"));
            }
            output
        });
        self.result(
            output.unwrap_or_else(|e| failure(format!("error: {e}"))),
            turn.said,
        )
    }

    /// The result of a call that does not run.
    pub(crate) fn not_run(&self, why: &str) -> ToolResult {
        self.result(failure(format!("{NOT_RUN}{why}")), "")
    }

    fn result(&self, output: ToolOutput, said: &str) -> ToolResult {
        let strike = |text| self.redactor.redact_output(text, said);
        let mut content = pages::bounded(output.text, strike);
        // Some servers refuse it.
        content.retain(|c| c != '\0');
        ToolResult {
            call_id: self.call.id.clone(),
            content,
            is_error: output.failed,
            images: output.images,
        }
    }
}

/// Whether this is the result of a call that did not run.
pub(crate) fn was_not_run(result: &ToolResult) -> bool {
    result.is_error && result.content.starts_with(NOT_RUN)
}

fn failure(text: String) -> ToolOutput {
    ToolOutput {
        failed: true,
        ..ToolOutput::text(text)
    }
}

/// `args` with each text changed. A summary that was cut before its secrets are gone could show half of one.
fn with_texts(args: &Value, change: &dyn Fn(&str) -> String) -> Value {
    let inner = |value: &Value| with_texts(value, change);
    match args {
        Value::String(text) => change(text).into(),
        Value::Array(list) => list.iter().map(inner).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), inner(value)))
            .collect(),
        other => other.clone(),
    }
}
