//! Shared resources of the built-in tools.

use std::sync::Arc;

use serde_json::Value;

use super::files::Transcribe;
use super::function::Function;
use super::meaning::Meaning;
use super::{CallContext, Owner, ToolOutput, ToolSpec};
use crate::config::{Config, Env};
use crate::error::Result;
use crate::paths::Home;
use crate::text::LocalTime;
use crate::worker::Workers;

/// Resources that the built-in tools of an agent share. Calls create what they need, so unused tools cost nothing.
pub(crate) struct Workshop {
    pub home: Home,
    pub config: Arc<Config>,
    pub env: Arc<Env>,
    pub workers: Arc<Workers>,
    pub local_time: LocalTime,
    /// Transcribes recordings, if a model is configured for it.
    pub transcribe: Option<Arc<Transcribe>>,
    /// Finds notes by meaning, if a model is configured for it.
    pub meaning: Option<Meaning>,
}

impl Workshop {
    /// Makes a built-in tool that uses this workshop. `shown` lists the arguments shown in summaries.
    pub(super) fn tool(
        self: &Arc<Self>,
        spec: ToolSpec,
        shown: &'static [&'static str],
        run: fn(&Self, &Value, &CallContext) -> Result<ToolOutput>,
    ) -> Function {
        let own = self.clone();
        Function::owned(Owner::BuiltIn, spec, shown, move |args, turn| {
            run(&own, args, turn)
        })
    }
}
