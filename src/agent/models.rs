//! The models of an agent: which of them a turn asks.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::provider::Chain;

/// The models that a turn asks.
pub(crate) struct TurnModels {
    pub chain: Arc<Chain>,
    /// What the user should know about the choice.
    pub warnings: Vec<String>,
}

/// All models of an agent. Each turn chooses once.
pub(crate) trait Models: Send + Sync {
    /// The models for a turn: the one that its request names comes first, else the one that was chosen in its conversation, else the
    /// agent's first. A chosen one that cannot be used is left out, with a warning.
    ///
    /// # Errors
    /// The request names a model that cannot be used, or there is none at all.
    fn choose(&self, wanted: &str, chosen: Option<&str>) -> Result<TurnModels>;
}

/// The models of a program, of which every turn has all.
impl Models for Arc<Chain> {
    fn choose(&self, wanted: &str, _chosen: Option<&str>) -> Result<TurnModels> {
        if !wanted.is_empty() && !self.has(wanted) {
            return Err(Error::usage(format!(
                "this agent has no model called {wanted}"
            )));
        }
        Ok(TurnModels {
            chain: self.clone(),
            warnings: Vec::new(),
        })
    }
}

impl TurnModels {
    /// The model to be asked first, as `vendor/model`.
    pub(crate) fn first(&self) -> &str {
        self.chain.first_name()
    }
}
