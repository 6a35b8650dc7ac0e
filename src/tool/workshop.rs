//! What the built-in tools work with.

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

/// What the built-in tools of an agent share. A call creates only what it needs, so tools that are not called cost nothing.
pub(crate) struct Workshop {
    pub home: Home,
    pub config: Arc<Config>,
    pub env: Env,
    pub workers: Arc<Workers>,
    pub local_time: LocalTime,
    /// Transcribes recordings, if there is a model for it.
    pub transcribe: Option<Arc<Transcribe>>,
    /// Finds notes by their meaning, if there is a model for it.
    pub meaning: Option<Meaning>,
}

impl Workshop {
    /// A built-in tool that works with this workshop. `shown` names the arguments that a summary of a call shows.
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
