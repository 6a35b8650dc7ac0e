//! Tools of an agent, by name: finds the tool of a call, and checks the call.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::call::{Call, Checked};
use super::fit::fit_arguments;
use super::{Function, Owner, PASSES_WORDS_ON, Risk, ToolSpec, names, repair};
use crate::error::{Error, Result};
use crate::json::parse_json;
use crate::message::ToolCall;
use crate::redact::{REMOVED, Redactor};
use crate::text::{foreign, nearest, not_found_near};

/// Maximum length of a name, as limited by providers.
const MAX_NAME: usize = 64;
/// Maximum length of an error for the model, which quotes its call, in characters.
const MAX_ERROR: usize = 500;

/// Tools of an agent, by name. Clones share the tools.
#[derive(Clone, Default)]
pub struct Registry {
    tools: BTreeMap<String, Arc<Function>>,
    redactor: Redactor,
}

impl Registry {
    /// Makes an empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// Returns [`crate::ErrorKind::Usage`] if the name is taken or invalid, or the schema does not describe an object.
    pub fn add(&mut self, tool: Function) -> Result<()> {
        let name = &*tool.spec.name;
        if valid_name(name) != name {
            return Err(Error::usage(format!("invalid tool name \"{name}\"")));
        }
        if tool.owner == Owner::Program && !is_of_an_object(&tool.spec.schema) {
            return Err(Error::usage(format!(
                "the schema of {name} is not a JSON object of the type \"object\""
            )));
        }
        self.insert(Arc::new(tool))
    }

    /// Adds the tools of another registry.
    ///
    /// # Errors
    /// Returns [`crate::ErrorKind::Usage`] if a name is taken.
    pub fn merge(&mut self, other: Self) -> Result<()> {
        let mut tools = other.tools.into_values();
        tools.try_for_each(|tool| self.insert(tool))
    }

    fn insert(&mut self, tool: Arc<Function>) -> Result<()> {
        let name = tool.spec.name.to_string();
        if self.tools.insert(name.clone(), tool).is_some() {
            return Err(Error::usage(format!("two tools are called {name}")));
        }
        Ok(())
    }

    /// Returns the tools with these names.
    ///
    /// # Errors
    /// Returns [`crate::ErrorKind::Usage`] for an unknown name.
    pub fn only(&self, names: &[impl AsRef<str>]) -> Result<Self> {
        let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
        if let Some(name) = names.iter().find(|name| !self.tools.contains_key(**name)) {
            let known = self.tools.keys().map(String::as_str);
            let near = names::known_elsewhere(name).or_else(|| nearest(name, known));
            return Err(not_found_near("tool", name, near, "bantam tools"));
        }
        Ok(self.choose(|name| names.contains(&name)))
    }

    /// Returns all tools except those with these names.
    pub fn without(&self, names: &[&str]) -> Self {
        self.choose(|name| !names.contains(&name))
    }

    fn choose(&self, stays: impl Fn(&str) -> bool) -> Self {
        let mut fewer = self.clone();
        fewer.tools.retain(|name, _| stays(name));
        fewer
    }

    /// Prepares the tools of an agent, whose results are redacted.
    pub(crate) fn for_agent(self, redactor: Redactor) -> Self {
        Self { redactor, ..self }
    }

    /// Returns the descriptions of the tools, sorted by name.
    pub fn specs(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.values().map(|tool| &tool.spec)
    }

    /// Returns the tools for a request, with their schemas: built-in ones by name, then others by name. The order is stable for
    /// prompt caches. Hosts with a lower limit lose the last ones.
    pub(crate) fn declared(&self) -> impl Iterator<Item = (&ToolSpec, Cow<'static, str>)> {
        let mut tools: Vec<&Function> = self.tools.values().map(AsRef::as_ref).collect();
        tools.sort_by_key(|tool| tool.owner != Owner::BuiltIn);
        tools
            .into_iter()
            .map(|tool| (&tool.spec, sent_schema(tool)))
    }

    /// Resolves a tool's name in another style, or with text around it: a namespace (`functions.exec`), parentheses, a number, a
    /// chat template. If that matches no tool, returns the name in a form that providers accept.
    pub(crate) fn resolve(&self, name: &str) -> String {
        if self.tools.contains_key(name) {
            return name.to_owned();
        }
        let around = ['.', ':', '/', '(', '<', ' '];
        let mut parts = [name].into_iter().chain(name.rsplit(around));
        let one = |wanted: &str| {
            let known = self.tools.keys();
            let fits = known.filter(|known| names::has_same_letters(known, wanted));
            // The name of a server's tool (`read__file`) is longer than that of a built-in one.
            fits.min_by_key(|name| name.len())
        };
        (parts.find_map(one).cloned()).unwrap_or_else(|| valid_name(name))
    }

    fn unknown(&self, name: &str) -> String {
        let known: Vec<&str> = self.tools.keys().map(String::as_str).collect();
        let meant = names::known_elsewhere(name).filter(|tool| known.contains(tool));
        match meant.or_else(|| nearest(name, known.iter().copied())) {
            Some(near) => format!("no tool named \"{name}\"; did you mean {near}?"),
            None => format!(
                "no tool named \"{name}\"; the tools are: {}",
                known.join(", ")
            ),
        }
    }

    /// Finds the tool and checks the arguments, without running the call.
    pub(crate) fn prepare<'a>(&'a self, call: &'a ToolCall) -> Call<'a> {
        Call {
            raw: call,
            checked: self.check(call),
            redactor: &self.redactor,
        }
    }

    fn check(&self, call: &ToolCall) -> Result<Checked<'_>> {
        // Secrets are removed before an error is cut, because half of a secret is not recognized.
        let cut = |what: &str| self.redactor.foreign(what, MAX_ERROR);
        let invalid = |what: String| {
            let name = &call.name;
            Error::failed(format!("invalid arguments for {name}: {what}"))
        };
        let Some(tool) = self.tools.get(&call.name) else {
            return Err(Error::failed(cut(&self.unknown(&call.name))));
        };
        let owner = tool.owner;
        let schema: Value =
            parse_json(tool.spec.schema.as_bytes()).map_err(|e| invalid(format!("schema: {e}")))?;
        let json = match call.arguments.trim() {
            // Some servers write null for no arguments.
            "" | "null" => "{}",
            json => json,
        };
        let args = parse_json(json).map_err(|e| {
            Error::failed(cut(&format!(
                "the arguments are not valid JSON ({e}); send the call again. They were: {json}"
            )))
        })?;
        let args = fit_arguments(schema, args, owner).map_err(|what| {
            let what = cut(&what);
            if owner.checks_arguments() {
                // It quotes the schema, which comes from outside.
                invalid(foreign("its schema says:", &what))
            } else {
                invalid(what)
            }
        })?;
        if !args.is_object() {
            return Err(invalid("they must be a JSON object".to_owned()));
        }
        if tool.risk_of(&args) != Risk::Safe && writes_mark(&call.name, &args) {
            return Err(invalid(format!(
                "\"{REMOVED}\" stands for a secret that you were not shown, and would be written in its place: \
                 change only the text around it, or ask the user to write the secret"
            )));
        }
        Ok(Checked {
            tool,
            args,
            shown: None,
        })
    }
}

/// Returns the schema for a request. Foreign schemas are repaired, because hosts refuse a request for one odd schema.
fn sent_schema(tool: &Function) -> Cow<'static, str> {
    let schema = &tool.spec.schema;
    if tool.owner == Owner::BuiltIn {
        return schema.clone();
    }
    let schema = parse_json(schema.as_bytes()).unwrap_or_default();
    repair::repair(schema).to_string().into()
}

fn is_of_an_object(schema: &str) -> bool {
    let schema: Value = parse_json(schema.as_bytes()).unwrap_or_default();
    schema.is_object() && (schema["type"].is_null() || schema["type"] == "object")
}

/// Whether a call would write a redaction mark that was not there before.
fn writes_mark(name: &str, args: &Value) -> bool {
    let marks = |value: &Value| value.to_string().matches(REMOVED).count();
    match name {
        "edit_file" => marks(&args["new_text"]) > marks(&args["old_text"]),
        name => !PASSES_WORDS_ON.contains(&name) && marks(args) > 0,
    }
}

/// Converts a name to a form that providers accept, because models invent names, and a request that repeats an invalid one is
/// always refused.
pub(super) fn valid_name(name: &str) -> String {
    let is_valid = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let valid = name.trim().chars().take(MAX_NAME);
    let name: String = valid.map(|c| if is_valid(&c) { c } else { '_' }).collect();
    if name.is_empty() {
        "unnamed".to_owned()
    } else {
        name
    }
}
