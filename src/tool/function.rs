//! Tools that are functions: their arguments match the schema when they are called.

use serde_json::{Map, Value};

use super::{Risk, Tool, ToolOutput, ToolSpec, Turn};
use crate::error::Result;
use crate::text::one_line;

type Run = dyn Fn(&Value, &Turn) -> Result<ToolOutput> + Send + Sync;

pub(crate) struct Function {
    spec: ToolSpec,
    /// The arguments that a summary shows; empty: all of them.
    shown: &'static [&'static str],
    always_parallel: bool,
    takes_any: bool,
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
            takes_any: false,
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

    /// Passes arguments on that the schema does not name.
    pub(super) fn takes_any(self) -> Self {
        Self {
            takes_any: true,
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

    fn takes_any(&self) -> bool {
        self.takes_any
    }

    fn summary(&self, args: &Value) -> String {
        if self.shown.is_empty() {
            let is_bare = args.as_object().is_some_and(Map::is_empty);
            return if is_bare {
                String::new()
            } else {
                one_line(&args.to_string(), 120)
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
        one_line(&words.join(" "), 80)
    }

    fn call(&self, args: &Value, turn: &Turn) -> Result<ToolOutput> {
        (self.run)(args, turn)
    }
}
