//! Tools made from functions, which are called only with arguments that match the schema.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{CallContext, Owner, Replaced, Risk, Tool, ToolOutput, ToolSpec, arguments};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::text::to_single_line;

pub(super) type Replaces = dyn Fn(&Value, &Cancel) -> Replaced + Send + Sync;
pub(super) type Run = dyn Fn(&Value, &CallContext) -> Result<ToolOutput> + Send + Sync;

/// A tool made from a function.
///
/// ```
/// use bantam::{Function, Risk};
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct City {
///     city: String,
/// }
///
/// let schema = r#"{"type":"object","properties":{"city":{"type":"string"}},"required":["city"]}"#;
/// let weather = Function::new("weather", "The weather in a city.", schema, |args: City, _turn| {
///     Ok(format!("In {} it rains.", args.city))
/// });
/// let weather = weather.risk(Risk::Safe);
/// ```
pub struct Function {
    pub(super) spec: ToolSpec,
    owner: Owner,
    /// Arguments shown in summaries; empty for all.
    shown: &'static [&'static str],
    always_parallel: bool,
    varies: bool,
    is_safe: fn(&Value) -> bool,
    /// See [`Tool::replaces`].
    replaces: Option<Box<Replaces>>,
    run: Box<Run>,
}

impl Function {
    /// Makes a tool with this name, description and JSON Schema of its arguments, which must be an object. `run` gets the
    /// arguments as its own type, or as a [`serde_json::Value`], and returns a text or a [`ToolOutput`]. Its errors are shown
    /// to the model. Its risk is [`Risk::Writes`], so calls run one at a time. [`ToolSpec::schema`] lists the checks.
    pub fn new<A: DeserializeOwned, O: Into<ToolOutput>>(
        name: impl Into<Cow<'static, str>>,
        description: impl Into<Cow<'static, str>>,
        schema: impl Into<Cow<'static, str>>,
        run: impl Fn(A, &CallContext) -> Result<O> + Send + Sync + 'static,
    ) -> Self {
        let spec = ToolSpec {
            name: name.into(),
            description: description.into(),
            schema: schema.into(),
            risk: Risk::Writes,
            source: "this program".into(),
        };
        Self::owned(Owner::Program, spec, &[], move |args, turn| {
            run(arguments(args)?, turn).map(Into::into)
        })
    }

    /// Sets the risk of calls. Calls of a safe tool run in parallel.
    pub fn risk(mut self, risk: Risk) -> Self {
        self.spec.risk = risk;
        self
    }

    /// Allows identical calls to be repeated, because their results vary, such as the time of a clock.
    pub fn varying(mut self) -> Self {
        self.varies = true;
        self
    }

    pub(super) fn built_in(
        spec: ToolSpec,
        shown: &'static [&'static str],
        run: impl Fn(&Value, &CallContext) -> Result<ToolOutput> + Send + Sync + 'static,
    ) -> Self {
        Self::owned(Owner::BuiltIn, spec, shown, run)
    }

    pub(super) fn owned(
        owner: Owner,
        spec: ToolSpec,
        shown: &'static [&'static str],
        run: impl Fn(&Value, &CallContext) -> Result<ToolOutput> + Send + Sync + 'static,
    ) -> Self {
        Self {
            spec,
            owner,
            shown,
            always_parallel: false,
            varies: false,
            is_safe: |_| false,
            replaces: None,
            run: Box::new(run),
        }
    }

    /// Allows calls to run in parallel, independent of their risk.
    pub(super) fn parallel(mut self) -> Self {
        self.always_parallel = true;
        self
    }

    /// Makes calls with some arguments safe.
    pub(super) fn safe_if(mut self, is_safe: fn(&Value) -> bool) -> Self {
        self.is_safe = is_safe;
        self
    }

    /// Sets a function that reads the file which a call would replace.
    pub(super) fn replacing(mut self, replaces: Box<Replaces>) -> Self {
        self.replaces = Some(replaces);
        self
    }
}

impl Tool for Function {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn risk(&self, args: &Value) -> Risk {
        if (self.is_safe)(args) {
            Risk::Safe
        } else {
            self.spec.risk
        }
    }

    fn is_parallel(&self, args: &Value) -> bool {
        self.always_parallel || self.risk(args) == Risk::Safe
    }

    fn varies(&self) -> bool {
        self.varies
    }

    fn owner(&self) -> Owner {
        self.owner
    }

    fn summary(&self, args: &Value) -> String {
        if self.shown.is_empty() {
            let is_bare = args.as_object().is_some_and(Map::is_empty);
            return if is_bare {
                String::new()
            } else {
                to_single_line(&args.to_string(), 120)
            };
        }
        let shown = self.shown.iter().filter_map(|name| args.get(name));
        let words: Vec<String> = shown
            .map(|value| {
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned)
            })
            .collect();
        to_single_line(&words.join(" "), 80)
    }

    fn replaces(&self, args: &Value, cancel: &Cancel) -> Option<Replaced> {
        let read = self.replaces.as_ref()?;
        Some(read(args, cancel))
    }

    fn call(&self, args: &Value, turn: &CallContext) -> Result<ToolOutput> {
        (self.run)(args, turn)
    }
}
