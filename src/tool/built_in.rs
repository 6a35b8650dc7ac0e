//! Built-in tools are constants: what the model is told of one, and the function that runs it.

use std::sync::Arc;

use serde_json::Value;

use super::files::Transcribe;
use super::function::{Function, Run};
use super::meaning::Meaning;
use super::{ToolOutput, ToolSpec, Turn};
use crate::cancel::Cancel;
use crate::config::{Config, Env};
use crate::error::Result;
use crate::paths::Home;
use crate::text::LocalTime;
use crate::worker::Workers;

/// A tool of this program, which runs in a workshop or without one.
pub(crate) struct BuiltIn<R = InWorkshop> {
    pub spec: ToolSpec,
    /// Makes the spec say what the settings decide.
    pub adapt: Option<fn(&mut ToolSpec, &Config)>,
    /// See [`Function`].
    pub shown: &'static [&'static str],
    /// Whether calls run in parallel whatever their risk.
    pub always_parallel: bool,
    /// Whether a call with such arguments is safe.
    pub is_safe: fn(&Value) -> bool,
    /// See [`super::Tool::replaces`].
    pub replaces: Option<ReplacesIn>,
    pub run: R,
}

pub(crate) type ReplacesIn = fn(&Workshop, &Value, &Cancel) -> Option<Result<Vec<u8>, String>>;
pub(crate) type InWorkshop = fn(&Workshop, &Value, &Turn) -> Result<ToolOutput>;
pub(crate) type Alone = fn(&Value, &Turn) -> Result<ToolOutput>;

/// What the built-in tools of an agent work with. A call creates only what it needs, so tools that are not called cost nothing.
pub(crate) struct Workshop {
    pub home: Home,
    pub config: Arc<Config>,
    pub env: Env,
    pub workers: Arc<Workers>,
    /// Those of the home's own workspace, where notes are, if tools work elsewhere.
    pub notes: Option<Arc<Workers>>,
    pub local_time: LocalTime,
    /// Transcribes recordings, if there is a model for it.
    pub transcribe: Option<Arc<Transcribe>>,
    /// Finds notes by their meaning, if there is a model for it.
    pub meaning: Option<Meaning>,
}

impl<R> BuiltIn<R> {
    pub(super) const fn new(spec: ToolSpec, shown: &'static [&'static str], run: R) -> Self {
        Self {
            spec,
            adapt: None,
            shown,
            always_parallel: false,
            is_safe: |_| false,
            replaces: None,
            run,
        }
    }

    pub(super) const fn replacing(mut self, replaces: ReplacesIn) -> Self {
        self.replaces = Some(replaces);
        self
    }

    pub(super) const fn parallel(mut self) -> Self {
        self.always_parallel = true;
        self
    }

    fn function(&self, run: Box<Run>) -> Function {
        Function {
            spec: self.spec.clone(),
            shown: self.shown,
            always_parallel: self.always_parallel,
            takes_any: false,
            is_safe: self.is_safe,
            replaces: None,
            run,
        }
    }
}

impl BuiltIn {
    pub(crate) fn at_work(&self, workshop: &Arc<Workshop>) -> Function {
        let (own, run) = (workshop.clone(), self.run);
        let mut function = self.function(Box::new(move |args, turn| run(&own, args, turn)));
        if let Some(adapt) = self.adapt {
            adapt(&mut function.spec, &workshop.config);
        }
        if let Some(replaces) = self.replaces {
            let own = workshop.clone();
            function.replaces = Some(Box::new(move |args, cancel| replaces(&own, args, cancel)));
        }
        function
    }
}

impl BuiltIn<Alone> {
    pub(crate) fn at_work_alone(&self) -> Function {
        self.function(Box::new(self.run))
    }
}
