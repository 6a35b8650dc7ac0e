//! Tools that are functions: their arguments match the schema when they are called.

use serde_json::Value;

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn};
use crate::error::Result;
use crate::text::one_line;

type Run = dyn Fn(&Value, &Turn) -> Result<ToolOutput> + Send + Sync;

pub(crate) struct Function {
    spec: ToolSpec,
    /// The arguments that a summary shows.
    shown: &'static [&'static str],
    always_parallel: bool,
    is_safe: fn(&Value) -> bool,
    run: Box<Run>,
}

impl Function {
    pub(super) fn new(
        spec: ToolSpec,
        shown: &'static [&'static str],
        run: impl Fn(&Value, &Turn) -> Result<ToolOutput> + Send + Sync + 'static,
    ) -> Self {
        Self {
            spec,
            shown,
            always_parallel: false,
            is_safe: |_| false,
            run: Box::new(run),
        }
    }

    /// Makes calls run in parallel whatever their risk.
    pub(super) fn always_parallel(self) -> Self {
        Self {
            always_parallel: true,
            ..self
        }
    }

    /// Makes calls with such arguments safe.
    pub(super) fn safe_when(self, is_safe: fn(&Value) -> bool) -> Self {
        Self { is_safe, ..self }
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

    fn summary(&self, args: &Value) -> String {
        let shown = self.shown.iter().filter_map(|name| args.get(name));
        let words: Vec<String> = shown
            .map(|value| {
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned)
            })
            .collect();
        one_line(&words.join(" "), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        (self.run)(args, turn)
    }
}
