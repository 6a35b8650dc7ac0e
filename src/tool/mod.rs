//! Tools: the seam, the registry, and the one place where a call is dispatched and its outcome becomes text.

pub mod edit;
pub mod exec;
pub mod files;

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::bus::{Event, Origin};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::{Image, ToolCall, ToolResult};
use crate::secret::Redactor;
use crate::text::{clip, nearest, one_line};

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

/// What a tool is, for the model and for people.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// As providers take it: letters, digits, `_` and `-`, at most 64.
    pub name: String,
    pub description: String,
    /// JSON Schema of its arguments: an object.
    pub schema: Value,
    pub risk: Risk,
    /// Where it comes from: `built in`, or a server's name.
    pub source: String,
}

/// What the tool gives the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    pub text: String,
    /// It ran, and what it did failed: a command's exit code, say.
    pub failed: bool,
    pub images: Vec<Image>,
}

/// The turn that a call belongs to.
pub struct Turn<'a> {
    pub origin: &'a Origin,
    pub cancel: &'a Cancel,
    /// Shows something to the user.
    pub events: &'a (dyn Fn(Event) + Sync),
}

/// Something that the model can call. It keeps nothing of a turn: the turn is an argument.
pub trait Tool: Send + Sync {
    fn spec(&self) -> &ToolSpec;

    /// One line for a person who watches: what this call is about to do.
    fn summary(&self, args: &Value) -> String {
        one_line(&args.to_string(), 80)
    }

    /// # Errors
    /// In words for the model: what went wrong and, where it helps, what to do instead.
    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput>;
}

/// The tools of an agent.
pub struct Registry {
    tools: BTreeMap<String, Box<dyn Tool>>,
    redactor: Redactor,
}

/// What a call may put into the conversation.
const MOST_OUTPUT: usize = 30_000;

impl Registry {
    /// # Errors
    /// Two tools have the same name, or one has none that providers take.
    pub fn new(tools: Vec<Box<dyn Tool>>, redactor: Redactor) -> Result<Self> {
        let mut by_name: BTreeMap<String, Box<dyn Tool>> = BTreeMap::new();
        for tool in tools {
            let name = tool.spec().name.clone();
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
            if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
                return Err(Error::failed(format!("\"{name}\" cannot be a tool's name")));
            }
            if by_name.insert(name.clone(), tool).is_some() {
                return Err(Error::failed(format!("there are two tools called {name}")));
            }
        }
        Ok(Self { tools: by_name, redactor })
    }

    /// In the order of their names: the same every time, so that prompt caches hit.
    pub fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.values().map(|t| t.spec())
    }

    /// One line for a person who watches.
    #[must_use]
    pub fn summary(&self, call: &ToolCall) -> String {
        let args = serde_json::from_str(&call.arguments).unwrap_or(Value::Null);
        match self.tools.get(&call.name) {
            Some(tool) => format!("{} {}", call.name, tool.summary(&args)),
            None => format!("{} (unknown)", one_line(&call.name, 40)),
        }
    }

    /// What calling the tool may do; an unknown one does nothing.
    #[must_use]
    pub fn risk(&self, call: &ToolCall) -> Risk {
        self.tools.get(&call.name).map_or(Risk::Safe, |t| t.spec().risk)
    }

    /// Runs a call. Whatever happens becomes its one result: faults are told to the model in a sentence.
    #[must_use]
    pub fn dispatch(&self, call: &ToolCall, turn: &Turn) -> ToolResult {
        let output = self.run(call, turn).unwrap_or_else(|e| ToolOutput {
            text: format!("error: {}", e.message),
            failed: true,
            images: Vec::new(),
        });
        let mut content = self.redactor.strike(output.text);
        if content.len() > MOST_OUTPUT {
            let total = content.len();
            let kept = clip(&content, MOST_OUTPUT).len();
            content.truncate(kept);
            content.push_str(&format!("\n[cut here: {kept} of {total} bytes shown]"));
        }
        // A NUL is no text, and some servers refuse it.
        content.retain(|c| c != '\0');
        ToolResult { call_id: call.id.clone(), content, is_error: output.failed, images: output.images }
    }

    fn run(&self, call: &ToolCall, turn: &Turn) -> Result<ToolOutput> {
        let Some(tool) = self.tools.get(&call.name) else {
            let near = nearest(&call.name, self.tools.keys().map(String::as_str));
            let names = self.tools.keys().cloned().collect::<Vec<_>>().join(", ");
            let near = near.map_or(String::new(), |near| format!("; did you mean {near}?"));
            return Err(Error::failed(format!(
                "there is no tool called \"{}\"{near} The tools are: {names}",
                one_line(&call.name, 64)
            )));
        };
        let args: Value = serde_json::from_str(&call.arguments).map_err(|e| {
            let quoted = clip(&call.arguments, 500);
            Error::failed(format!("the arguments are not valid JSON ({e}); send the call again. They were: {quoted}"))
        })?;
        if !args.is_object() {
            let quoted = clip(&call.arguments, 500);
            return Err(Error::failed(format!("the arguments must be a JSON object; they were: {quoted}")));
        }
        tool.call(&args, turn)
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
            let schema = json!({"type": "object"});
            let (risk, source) = (Risk::Safe, String::new());
            Box::new(Self(ToolSpec { name: name.into(), description: String::new(), schema, risk, source }))
        }
    }

    impl Tool for Echo {
        fn spec(&self) -> &ToolSpec {
            &self.0
        }
        fn call(&self, args: &Value, _: &Turn) -> Result<ToolOutput> {
            let text = args["text"].as_str().unwrap_or_default().repeat(10);
            Ok(ToolOutput { text, ..ToolOutput::default() })
        }
    }

    fn dispatch(name: &str, arguments: &str) -> ToolResult {
        let registry = Registry::new(vec![Echo::named("echo")], Redactor::default()).unwrap();
        let origin = Origin { channel: "test".into(), chat: "x".into() };
        let cancel = Cancel::new(None);
        let turn = Turn { origin: &origin, cancel: &cancel, events: &|_| () };
        let call = ToolCall { id: "1".into(), name: name.into(), arguments: arguments.into(), ..ToolCall::default() };
        registry.dispatch(&call, &turn)
    }

    #[test]
    fn names_are_unique_and_such_as_providers_take() {
        let build = |names: &[&str]| Registry::new(names.iter().map(|n| Echo::named(n)).collect(), Redactor::default());
        assert!(build(&["a", "b"]).is_ok());
        assert!(build(&["a", "a"]).is_err());
        assert!(build(&[""]).is_err());
        assert!(build(&["with space"]).is_err());
    }

    #[test]
    fn what_the_model_did_wrong_is_told_to_it() {
        for (name, arguments, says) in [
            ("ecko", "{}", "did you mean echo?"),
            ("echo", "{\"text\":", "not valid JSON"),
            ("echo", "[1]", "must be a JSON object"),
            ("echo", "\"{}\"", "must be a JSON object"),
        ] {
            let result = dispatch(name, arguments);
            assert!(result.is_error && result.content.contains(says), "{}", result.content);
        }
    }

    #[test]
    fn long_output_is_cut_and_says_so() {
        let long = "é".repeat(3000);
        let result = dispatch("echo", &json!({"text": long}).to_string());
        assert!(result.content.ends_with("[cut here: 30000 of 60000 bytes shown]"), "{}", &result.content[29_990..]);
    }
}
