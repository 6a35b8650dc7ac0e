//! Tools: the seam, the registry, and the one place where a call is dispatched and its outcome becomes text.

pub mod cron;
pub mod exec;
pub mod files;
pub mod memory;
pub mod message;
pub mod pages;
mod schema;
pub mod skill;
pub mod spawn;
pub mod subagent;
pub mod think;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::bus::{Event, Origin};
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::message::{Image, ToolCall, ToolResult};
use crate::secret::Redactor;
use crate::text::{clip, nearest, one_line};
use pages::{Pages, ReadMore};
use schema::Fitted;

/// What a tool may do to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Risk {
    /// It only looks.
    Safe,
    /// It changes files or sends something.
    Writes,
    /// It runs programs.
    Runs,
}

impl Risk {
    pub fn name(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Writes => "writes",
            Self::Runs => "runs",
        }
    }
}

/// What a tool is, for the model and for people.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// As providers take it: letters, digits, `_` and `-`, at most 64.
    pub name: Cow<'static, str>,
    pub description: Cow<'static, str>,
    /// JSON Schema of its arguments, an object, as JSON. Every request carries it as it is; it is read when a call is
    /// checked, which is rarer.
    pub schema: Cow<'static, str>,
    pub risk: Risk,
    /// Where it comes from: `built in`, or a server's name.
    pub source: Cow<'static, str>,
}

impl ToolSpec {
    /// The first sentence of its description.
    pub fn purpose(&self) -> &str {
        let first = self.description.split_once(". ").map_or(&*self.description, |(first, _)| first);
        first.trim_end_matches('.')
    }
}

/// What the tool gives the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    pub text: String,
    /// It ran, and what it did failed: a command's exit code, say.
    pub failed: bool,
    pub images: Vec<Image>,
}

impl ToolOutput {
    /// A good end, with this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// The turn that a call belongs to.
pub struct Turn<'a> {
    pub origin: &'a Origin,
    pub cancel: &'a Cancel,
    /// What was too long to give at once.
    pub pages: &'a Pages,
    /// Shows something to the user.
    pub events: &'a (dyn Fn(Event) + Sync),
    /// Has another agent do something, and waits: how a tool reaches the agent without knowing it. An error is in words
    /// for the model.
    pub run_task: &'a (dyn Fn(&Task) -> Result<ToolOutput> + Sync),
    /// The same without waiting: what becomes of it comes back as a message. It is told of by the label.
    pub start_task: &'a (dyn Fn(&str, Task) -> Result<()> + Sync),
}

/// What a subagent is to do.
pub struct Task {
    /// All that it is told.
    pub text: String,
}

/// Tools that a subagent does not have: it answers to its caller alone, and has none below it.
pub const NOT_FOR_SUBAGENTS: [&str; 5] = ["subagent", "run_skill", "spawn", "message", "cron"];

/// Something that the model can call. It keeps nothing of a turn: the turn is an argument.
pub trait Tool: Send + Sync {
    fn spec(&self) -> &ToolSpec;

    /// What a call with these arguments may do: what the tool may, or less.
    fn risk(&self, _args: &Value) -> Risk {
        self.spec().risk
    }

    /// Whether such a call may be run side by side with others of that kind.
    fn is_parallel(&self, args: &Value) -> bool {
        self.risk(args) == Risk::Safe
    }

    /// One line for a person who watches: what this call is about to do. Secrets are struck from `args` before.
    fn summary(&self, args: &Value) -> String {
        one_line(&args.to_string(), 80)
    }

    /// # Errors
    /// In words for the model: what went wrong and, where it helps, what to do instead.
    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput>;
}

/// The tools of an agent.
#[derive(Clone, Default)]
pub struct Registry {
    tools: BTreeMap<String, Arc<dyn Tool>>,
    redactor: Redactor,
}

/// What of arguments that cannot be used is quoted back to the model, in bytes.
const MOST_QUOTED: usize = 500;
/// What of one argument is looked at for its summary, in bytes.
const MOST_SUMMARIZED: usize = 16 << 10;

impl Registry {
    /// Where there are tools there is [`ReadMore`], too.
    ///
    /// # Errors
    /// Two tools have the same name, or one has none that providers take.
    pub fn new(mut tools: Vec<Box<dyn Tool>>, redactor: Redactor) -> Result<Self> {
        if !tools.is_empty() {
            tools.push(Box::new(ReadMore::new()));
        }
        let mut by_name: BTreeMap<String, Arc<dyn Tool>> = BTreeMap::new();
        for tool in tools {
            let name = tool.spec().name.clone();
            if name.is_empty() || name.len() > MOST_NAME || !name.chars().all(fits_a_name) {
                return Err(Error::failed(format!("\"{name}\" cannot be a tool's name")));
            }
            if by_name.insert(name.to_string(), tool.into()).is_some() {
                return Err(Error::failed(format!("there are two tools called {name}")));
            }
        }
        Ok(Self { tools: by_name, redactor })
    }

    /// Keeps the tools of these names and no others; without names, none at all.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a name that no tool has, with the nearest one.
    pub fn choose(&mut self, names: &[String]) -> Result<()> {
        for name in names {
            if !self.tools.contains_key(name) {
                let known: Vec<&str> = self.tools.keys().map(String::as_str).collect();
                let near = nearest(name, known.iter().copied());
                let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
                let hint = if known.is_empty() { "there are none".into() } else { known.join(", ") };
                return Err(Error::new(
                    Kind::Usage,
                    format!("there is no tool called \"{}\"{near}", one_line(name, 64)),
                )
                .hint(format!("the tools are: {hint}")));
            }
        }
        // Whatever can be long must be readable to its end.
        self.tools.retain(|name, _| names.contains(name) || (!names.is_empty() && name == ReadMore::NAME));
        Ok(())
    }

    /// The same without the tools of these names.
    pub fn without(&self, names: &[&str]) -> Self {
        let mut fewer = self.clone();
        fewer.tools.retain(|name, _| !names.contains(&name.as_str()));
        fewer
    }

    /// In the order of their names: the same every time, so that prompt caches hit.
    pub fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.values().map(|t| t.spec())
    }

    /// Reads a call: which tool it is for, and whether its arguments will do. Runs nothing.
    pub fn read<'a>(&'a self, call: &'a ToolCall) -> Ready<'a> {
        Ready { call, fitted: self.fit(call), redactor: &self.redactor }
    }

    fn fit(&self, call: &ToolCall) -> Result<(&dyn Tool, Fitted)> {
        let Some(tool) = self.tools.get(&call.name) else {
            let near = nearest(&call.name, self.tools.keys().map(String::as_str));
            let near = near.map_or("the".to_owned(), |near| format!("did you mean {near}? The"));
            let names = self.tools.keys().cloned().collect::<Vec<_>>().join(", ");
            let name = one_line(&call.name, MOST_NAME);
            return Err(Error::failed(format!("there is no tool called \"{name}\"; {near} tools are: {names}")));
        };
        let written = if call.arguments.trim().is_empty() { "{}" } else { call.arguments.as_str() };
        let quoted = || clip(written, MOST_QUOTED);
        let args: Value = serde_json::from_str(written).map_err(|e| {
            let quoted = quoted();
            Error::failed(format!("the arguments are not valid JSON ({e}); send the call again. They were: {quoted}"))
        })?;
        // Some servers write it for no arguments.
        let args = if args.is_null() { Value::Object(Map::new()) } else { args };
        let schema = serde_json::from_str(&tool.spec().schema)
            .map_err(|e| Error::failed(format!("the schema of {} is not JSON: {e}", call.name)))?;
        let fitted = schema::fit(&schema, args)
            .map_err(|fault| Error::failed(format!("the arguments of {} do not fit: {fault}", call.name)))?;
        if !fitted.args.is_object() {
            return Err(Error::failed(format!("the arguments must be a JSON object; they were: {}", quoted())));
        }
        Ok((tool.as_ref(), fitted))
    }
}

/// Providers take no longer name of a tool.
const MOST_NAME: usize = 64;

fn fits_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

/// A name that a model made up, as providers take it back: one that they refuse would end the conversation.
pub fn fitting_name(name: &str) -> String {
    let name: String = name.trim().chars().map(|c| if fits_a_name(c) { c } else { '_' }).take(MOST_NAME).collect();
    if name.is_empty() { "unnamed".to_owned() } else { name }
}

/// A call that has been read. Whatever becomes of it, it has one result.
pub struct Ready<'a> {
    call: &'a ToolCall,
    fitted: Result<(&'a dyn Tool, Fitted)>,
    redactor: &'a Redactor,
}

impl Ready<'_> {
    pub fn name(&self) -> &str {
        &self.call.name
    }

    /// One line for a person who watches, without secrets and control characters.
    pub fn summary(&self) -> String {
        let summary = match &self.fitted {
            Ok((tool, fitted)) => tool.summary(&struck(self.redactor, &fitted.args)),
            Err(e) => self.redactor.redact(format!("cannot be run: {e}")),
        };
        one_line(&format!("{} {summary}", self.call.name), 160)
    }

    /// What the call may do to the world. One that cannot be run does nothing.
    pub fn risk(&self) -> Risk {
        self.fitted.as_ref().map_or(Risk::Safe, |(tool, fitted)| tool.risk(&fitted.args))
    }

    /// Whether the call may be run side by side with others of that kind.
    pub fn is_parallel(&self) -> bool {
        self.fitted.as_ref().map_or(true, |(tool, fitted)| tool.is_parallel(&fitted.args))
    }

    /// It names a tool, and its arguments fit.
    pub fn fits(&self) -> bool {
        self.fitted.is_ok()
    }

    /// The same for calls of the same tool with the same arguments, however they are written.
    pub fn identity(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.call.name.hash(&mut hasher);
        match &self.fitted {
            // Keys are in order, spaces are gone.
            Ok((_, fitted)) => fitted.args.to_string().hash(&mut hasher),
            Err(_) => self.call.arguments.hash(&mut hasher),
        }
        hasher.finish()
    }

    /// Runs it. Faults are told to the model in a sentence.
    pub fn run(&self, turn: &Turn) -> ToolResult {
        let outcome = match &self.fitted {
            Ok((tool, fitted)) => tool.call(&fitted.args, turn).map(|mut output| {
                // In front, so that they are on the first page.
                for note in fitted.notes.iter().rev() {
                    output.text.insert_str(0, &format!("[{note}]\n"));
                }
                output
            }),
            Err(e) => Err(e.clone()),
        };
        self.result(outcome.unwrap_or_else(|e| ToolOutput { failed: true, ..ToolOutput::text(format!("error: {e}")) }))
    }

    /// Its result when it is not run.
    pub fn not_run(&self, why: &str) -> ToolResult {
        self.result(ToolOutput { failed: true, ..ToolOutput::text(format!("not run: {why}")) })
    }

    fn result(&self, output: ToolOutput) -> ToolResult {
        let mut content = self.redactor.redact(output.text);
        // A NUL is no text, and some servers refuse it.
        content.retain(|c| c != '\0');
        ToolResult { call_id: self.call.id.clone(), content, is_error: output.failed, images: output.images }
    }
}

/// `args` without secrets. They are struck before anything is cut: half a secret is not recognized as one.
fn struck(redactor: &Redactor, args: &Value) -> Value {
    match args {
        Value::String(text) => redactor.redact(clip(text, MOST_SUMMARIZED).to_owned()).into(),
        Value::Array(list) => list.iter().map(|v| struck(redactor, v)).collect(),
        Value::Object(map) => {
            let mut safe = Map::new();
            safe.extend(map.iter().map(|(k, v)| (k.clone(), struck(redactor, v))));
            safe.into()
        }
        other => other.clone(),
    }
}

/// A tool's arguments in its own type.
///
/// # Errors
/// In words for the model: what is missing or of the wrong type.
pub fn arguments<T: DeserializeOwned>(args: &Value) -> Result<T> {
    T::deserialize(args).map_err(|e| Error::failed(format!("the arguments are wrong: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    struct Echo(ToolSpec);

    impl Echo {
        fn named(name: &str) -> Box<dyn Tool> {
            let schema = r#"{"type":"object","properties":{"text":{"type":"string"},"times":{"type":"integer"}},"required":["text"]}"#;
            let (name, risk) = (name.to_owned().into(), Risk::Writes);
            Box::new(Self(ToolSpec { name, description: "".into(), schema: schema.into(), risk, source: "".into() }))
        }
    }

    impl Tool for Echo {
        fn spec(&self) -> &ToolSpec {
            &self.0
        }
        fn call(&self, args: &Value, _: &Turn) -> Result<ToolOutput> {
            Ok(ToolOutput::text(args["text"].as_str().unwrap()))
        }
    }

    fn registry(names: &[&str]) -> Result<Registry> {
        let redactor = Redactor::new([crate::secret::Secret::new("hunter2-hunter2")]);
        Registry::new(names.iter().map(|n| Echo::named(n)).collect(), redactor)
    }

    fn call(name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: "1".into(), name: name.into(), arguments: arguments.into(), ..ToolCall::default() }
    }

    fn dispatch(name: &str, arguments: &str) -> ToolResult {
        let (registry, call) = (registry(&["echo"]).unwrap(), call(name, arguments));
        let origin = Origin { channel: "test".into(), chat: "x".into() };
        let (cancel, pages) = (Cancel::new(None), Pages::default());
        let run_task = &|_: &Task| Ok(ToolOutput::default());
        let start_task = &|_: &str, _| Ok(());
        let (origin, cancel, pages) = (&origin, &cancel, &pages);
        registry.read(&call).run(&Turn { origin, cancel, pages, events: &|_| (), run_task, start_task })
    }

    #[test]
    fn names_are_unique_and_such_as_providers_take() {
        assert!(registry(&["a", "b"]).is_ok());
        for bad in [&["a", "a"][..], &[""], &["with space"], &["read_more"]] {
            assert!(registry(bad).is_err(), "{bad:?}");
        }
        assert_eq!(fitting_name("functions/exec now"), "functions_exec_now");
        assert_eq!(fitting_name(" "), "unnamed");
        assert_eq!(fitting_name(&"é".repeat(100)).len(), MOST_NAME);
    }

    #[test]
    fn what_the_model_did_wrong_is_told_to_it() {
        for (name, arguments, says) in [
            ("ecko", "{}", "did you mean echo?"),
            ("echo", "{\"text\":", "not valid JSON"),
            ("echo", "[1]", "the whole was a list ([1]) and should be an object"),
            ("echo", "\"words\"", "the whole was \"words\" and should be an object"),
            ("echo", "null", "\"text\" is missing and should be a string"),
            ("echo", "", "\"text\" is missing and should be a string"),
            ("echo", "{\"text\":\"x\",\"times\":\"often\"}", "\"times\" was \"often\" and should be an integer"),
        ] {
            let result = dispatch(name, arguments);
            assert!(result.is_error && result.content.contains(says), "{}", result.content);
        }
        let endless = dispatch("echo", &format!("{{\"text\": \"{}", "é".repeat(5000)));
        assert!(endless.content.len() < 700, "{}", endless.content);
    }

    #[test]
    fn what_it_plainly_meant_is_done() {
        for (arguments, says) in [
            ("{\"text\": 5}", "5"),
            ("\"{\\\"text\\\": \\\"x\\\"}\"", "x"),
            ("{\"text\": \"x\", \"reason\": \"y\"}", "x"),
            (
                "{\"text\": \"x\", \"tims\": 2}",
                "[\"tims\" is no parameter and was ignored; did you mean \"times\"?]\nx",
            ),
            ("{\"text\": \"a\\u0000b hunter2-hunter2\"}", "ab [secret removed]"),
        ] {
            let result = dispatch("echo", arguments);
            assert_eq!((result.content.as_str(), result.is_error), (says, false));
        }
    }

    #[test]
    fn the_same_call_is_the_same_however_it_is_written() {
        let registry = registry(&["echo", "other"]).unwrap();
        let identity = |name: &str, arguments: &str| registry.read(&call(name, arguments)).identity();
        let one = identity("echo", "{\"text\":\"a\",\"times\":2}");
        assert_eq!(one, identity("echo", " { \"times\": \"2\", \"text\" : \"\\u0061\" }"));
        assert_ne!(one, identity("echo", "{\"text\":\"a\"}"));
        assert_ne!(one, identity("other", "{\"text\":\"a\",\"times\":2}"));
        assert_ne!(identity("echo", "{oops"), identity("echo", "{oop"));
    }

    #[test]
    fn a_summary_shows_no_secret_and_no_control_character() {
        let registry = registry(&["echo"]).unwrap();
        let summary = |name: &str, arguments: &Value| registry.read(&call(name, &arguments.to_string())).summary();
        // It would be cut in the middle of the secret.
        let shown = summary("echo", &json!({"text": format!("{}hunter2-hunter2", " x".repeat(30))}));
        assert!(shown.starts_with("echo {") && !shown.contains("hunter"), "{shown}");
        let shown = summary("echo", &json!({"text": "a\u{1b}[31m\r\nb\u{202e}c"}));
        assert!(!shown.contains(|c: char| c.is_control() || c == '\u{202e}'), "{shown:?}");
        assert!(summary("a\u{7}\nb", &json!({})).starts_with("a b cannot be run: there is no tool called"));
        let shown = summary("echo", &json!({"times": "hunter2-hunter2"}));
        assert!(shown.contains("\"times\" was") && !shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn tools_are_chosen_by_name_and_long_results_stay_readable() {
        let chosen = |names: &[&str]| {
            let mut registry = registry(&["echo", "exec", "grep"]).unwrap();
            registry.choose(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())?;
            Ok::<_, Error>(registry.specs().map(|spec| spec.name.clone()).collect::<Vec<_>>())
        };
        assert_eq!(chosen(&["grep", "echo"]).unwrap(), ["echo", "grep", "read_more"]);
        assert_eq!(chosen(&[]).unwrap(), [""; 0]);
        let e = chosen(&["echo", "exce"]).unwrap_err();
        assert_eq!((e.kind, e.message.as_str()), (Kind::Usage, "there is no tool called \"exce\"; did you mean exec?"));
        assert_eq!(e.hint.as_deref(), Some("the tools are: echo, exec, grep, read_more"));
    }
}
