//! Tools made from functions, which are called only with arguments that match the schema.

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{CallContext, Change, Owner, Risk, ToolOutput, ToolSpec, arguments, plain};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::text::to_single_line;

type Changes = dyn Fn(&Value, Option<&Cancel>) -> Change + Send + Sync;
type Run = dyn Fn(&Value, &CallContext) -> Result<ToolOutput> + Send + Sync;

/// A tool: an action that the model can call, as a function. It keeps no state between turns, because the turn is an argument.
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
    pub(super) owner: Owner,
    /// Arguments shown in summaries; empty for all.
    pub(super) shown: &'static [&'static str],
    /// Whether calls may run in parallel, independent of their risk.
    pub(super) always_parallel: bool,
    pub(super) varies: bool,
    /// Whether a call with these arguments is safe.
    pub(super) is_safe: fn(&Value) -> bool,
    /// Returns what a call would change. With a `Cancel`, reads the file that it would replace.
    pub(super) changes: Box<Changes>,
    pub(super) run: Box<Run>,
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

    pub(crate) fn owned(
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
            changes: Box::new(|_, _| Change::default()),
            run: Box::new(run),
        }
    }

    /// Returns the risk of a call with these arguments, up to the tool's risk.
    pub(super) fn risk_of(&self, args: &Value) -> Risk {
        if (self.is_safe)(args) {
            Risk::Safe
        } else {
            self.spec.risk
        }
    }

    /// Summarizes the planned call in one line for a person. `args` is free of secrets.
    pub(super) fn summary(&self, args: &Value) -> String {
        if self.shown.is_empty() {
            return match args.to_string().as_str() {
                "{}" => String::new(),
                args => to_single_line(args, 120),
            };
        }
        let shown = self.shown.iter().filter_map(|name| args.get(name));
        to_single_line(&shown.map(plain).collect::<Vec<_>>().join(" "), 80)
    }
}
