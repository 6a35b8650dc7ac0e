//! A checked call: how people see it, and its result.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde_json::{Map, Value};

use super::limit::limited;
use super::{CallContext, Function, Owner, Risk, ToolOutput, plain};
use crate::cancel::Cancel;
use crate::error::{Result, contained};
use crate::json::parse_json;
use crate::message::{Reply, ToolCall, ToolResult};
use crate::redact::{Redactor, change_texts};
use crate::text::{spelled_out, to_single_line};

/// Arguments that the diff of an approval already shows.
const IN_DIFF: [&str; 3] = ["content", "old_text", "new_text"];

/// A call after its checks. It gets exactly one result.
pub(crate) struct Call<'a> {
    pub(super) raw: &'a ToolCall,
    /// The checked call, or an error for the model.
    pub(super) checked: Result<Checked<'a>>,
    pub(super) redactor: &'a Redactor,
}

/// The tool of a call and arguments that fit its schema.
pub(super) struct Checked<'a> {
    pub tool: &'a Function,
    pub args: Value,
    /// State of the file that an approver saw; only this file may be replaced.
    pub shown: Option<String>,
}

/// A call that waits for the user's decision. Its texts are complete, except that configured secrets are removed and invisible
/// characters are written as their codes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PendingCall {
    /// Id of the call, unique in the conversation. A resumed turn asks about the same call again.
    pub id: String,
    /// Name of the tool.
    pub tool: String,
    /// Summary of the call in one line, which may be cut.
    pub summary: String,
    /// Arguments, each complete as `name: value`, except those shown in `change`.
    pub arguments: Vec<String>,
    /// Lines that the call would remove, prefixed with `-`, and add, prefixed with `+`.
    pub change: Vec<String>,
}

impl Call<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.raw.name
    }

    pub(crate) fn id(&self) -> &str {
        &self.raw.id
    }

    /// Returns the risk of the call. An invalid call is safe, because it does not run.
    pub(crate) fn risk(&self) -> Risk {
        let checked = self.checked.as_ref();
        checked.map_or(Risk::Safe, |call| call.tool.risk_of(&call.args))
    }

    /// Whether the call may run in parallel with other parallel calls.
    pub(crate) fn is_parallel(&self) -> bool {
        let checked = self.checked.as_ref();
        checked.is_ok_and(|call| call.tool.always_parallel) || self.risk() == Risk::Safe
    }

    /// Returns how many times the same call may be made while nothing new comes. A command may wait for something.
    pub(crate) fn most_times(&self) -> u32 {
        let varies = self.checked.as_ref().is_ok_and(|call| call.tool.varies);
        let may_wait = varies || self.risk() == Risk::Runs;
        if may_wait { 10 } else { 2 }
    }

    /// Hash of the tool and its arguments, independent of the order of keys and of spaces.
    pub(crate) fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.raw.name.hash(&mut hasher);
        match &self.checked {
            // Serializing sorts the keys and drops spaces.
            Ok(call) => call.args.to_string().hash(&mut hasher),
            Err(_) => self.raw.arguments.hash(&mut hasher),
        }
        hasher.finish()
    }

    /// Whether `confirm` (tools, MCP servers, `writes`, `runs`) includes this call, so that the user is asked first. Clients
    /// decide about their own tools.
    pub(crate) fn needs_approval(&self, confirm: &[String]) -> bool {
        let checked = self.checked.as_ref();
        if !checked.is_ok_and(|call| call.tool.owner != Owner::Client) {
            return false;
        }
        let tool = self.raw.name.as_str();
        let server = tool.split_once("__").map(|(server, _)| server);
        let risk = self.risk().name();
        let mut names = confirm.iter().map(String::as_str);
        names.any(|name| [Some(tool), Some(risk), server].contains(&Some(name)))
    }

    /// Returns the entry that allows every call of the tool in a conversation. It includes a checksum of the description and
    /// the schema of a server's tool, because the server can change what the tool does.
    pub(crate) fn allowed_as(&self) -> String {
        match &self.checked {
            Ok(call) if call.tool.owner == Owner::Server => {
                let spec = &call.tool.spec;
                let text = format!("{}\n{}", spec.description, spec.schema);
                format!("{} {:08x}", spec.name, crc32fast::hash(text.as_bytes()))
            }
            _ => self.raw.name.clone(),
        }
    }

    /// Summarizes the call for those who see it happen.
    pub(crate) fn summary(&self) -> String {
        self.summarize(&|text| self.shown(text))
    }

    /// Returns the lines that the call removes from a file and adds to it, as far as its arguments tell.
    pub(crate) fn diff(&self) -> Vec<String> {
        let Ok(call) = &self.checked else {
            return Vec::new();
        };
        let lines = (call.tool.changes)(&call.args, None).lines.into_iter();
        lines.map(|line| spelled_out(&self.shown(line))).collect()
    }

    /// Removes everything that looks like a secret.
    fn shown(&self, text: String) -> String {
        self.redactor.redact_output(text, "")
    }

    /// Returns the call for the person who decides about it. Only known secrets are removed, because text that looks like a
    /// secret may matter. Reads the file that the call would replace, until cancelled.
    pub(crate) fn pending(&mut self, cancel: &Cancel) -> PendingCall {
        let redactor = self.redactor;
        let known = |text| redactor.redact_known(text);
        let whole = |text| spelled_out(&known(text));
        let mut pending = PendingCall {
            id: self.raw.id.clone(),
            tool: self.raw.name.clone(),
            summary: self.summarize(&known),
            arguments: Vec::new(),
            change: Vec::new(),
        };
        if let Ok(call) = &mut self.checked {
            let change = (call.tool.changes)(&call.args, Some(cancel));
            call.shown = change.shown;
            let has_diff = !change.lines.is_empty();
            let args = call.args.as_object().into_iter().flatten();
            let args = args.filter(|(name, _)| !has_diff || !IN_DIFF.contains(&name.as_str()));
            let args = args.map(|(name, value)| whole(format!("{name}: {}", plain(value))));
            pending.arguments = args.collect();
            pending.change = change.lines.into_iter().map(whole).collect();
        }
        pending
    }

    /// Summarizes the call. Secrets are removed before cutting, because half of a secret is not recognized.
    fn summarize(&self, strike: &dyn Fn(String) -> String) -> String {
        let short = |text: &str| strike(text.to_owned());
        let summary = match &self.checked {
            Ok(call) => call.tool.summary(&change_texts(&call.args, &short)),
            Err(e) => self.redactor.redact(format!("cannot run: {e}")),
        };
        to_single_line(&format!("{} {summary}", short(&self.raw.name)), 160)
    }

    /// Runs the call. Errors become results.
    pub(crate) fn run(&self, turn: &CallContext) -> ToolResult {
        let output = match &self.checked {
            Ok(call) => contained("the tool", || call.run(turn)),
            Err(e) => Err(e.clone()),
        };
        let output = output.unwrap_or_else(|e| fail(format!("error: {e}")));
        self.result(output, turn.said, turn.room)
    }

    /// Returns the result of a call that does not run.
    pub(crate) fn not_run(&self, why: &str) -> ToolResult {
        self.result(fail(format!("not run: {why}")), "", usize::MAX)
    }

    fn result(&self, output: ToolOutput, said: &str, room: usize) -> ToolResult {
        let strike = |text| self.redactor.redact_output(text, said);
        let content = limited(&self.raw.name, output.text, room, strike);
        // Some servers refuse NUL. It is replaced, because removing it after fencing and redaction could join the parts of a
        // delimiter or a key.
        let content = content.replace('\0', "\u{fffd}");
        ToolResult {
            call_id: self.raw.id.clone(),
            content,
            is_error: output.failed,
            images: output.images,
        }
    }
}

impl Checked<'_> {
    fn run(&self, turn: &CallContext) -> Result<ToolOutput> {
        let mut args = self.args.clone();
        if let Some(shown) = &self.shown {
            args["shown"] = shown.as_str().into();
        }
        (self.tool.run)(&args, turn)
    }
}

/// Removes the keys of the configuration from a reply, before anything stores or shows it: a model that knows one could write it
/// into a file, a job or another chat.
pub(crate) fn without_keys(redactor: &Redactor, reply: Reply) -> Reply {
    let plain = |text| redactor.redact_known(text);
    let changed = |value: &Value| change_texts(value, &|text| plain(text.to_owned()));
    let fields = |fields: Map<String, Value>| {
        let fields = changed(&fields.into()).as_object().cloned();
        fields.unwrap_or_default()
    };
    let call = |call: ToolCall| ToolCall {
        id: plain(call.id),
        name: plain(call.name),
        // JSON may escape letters.
        arguments: match parse_json(&call.arguments) {
            Ok(args) if changed(&args) != args => changed(&args).to_string(),
            _ => plain(call.arguments),
        },
        extra: fields(call.extra),
    };
    Reply {
        text: plain(reply.text),
        reasoning: plain(reply.reasoning),
        refused: plain(reply.refused),
        calls: reply.calls.into_iter().map(call).collect(),
        extra: fields(reply.extra),
        ..reply
    }
}

fn fail(text: String) -> ToolOutput {
    ToolOutput {
        failed: true,
        ..ToolOutput::text(text)
    }
}
