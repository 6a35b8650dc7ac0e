//! The models of an agent, and the choice for a turn.

use std::sync::Arc;

use crate::error::Result;
use crate::provider::Chain;

/// Models of a turn.
pub(crate) struct TurnModels {
    pub chain: Arc<Chain>,
    /// Warnings to the user about the choice.
    pub warnings: Vec<String>,
}

/// All models of an agent, from which each turn chooses once.
pub(crate) trait Models: Send + Sync {
    /// Returns the models for a turn. The first is the request's model, or else the conversation's, or else the agent's first
    /// one. A conversation's model that cannot be used is left out, with a warning.
    ///
    /// # Errors
    /// Returns an error if the request's model cannot be used, or the agent has no models.
    fn choose(&self, wanted: &str, chosen: Option<&str>) -> Result<TurnModels>;
}

/// A program's models, which every turn uses.
impl Models for Arc<Chain> {
    fn choose(&self, wanted: &str, _chosen: Option<&str>) -> Result<TurnModels> {
        if !wanted.is_empty() {
            self.check(wanted)?;
        }
        Ok(TurnModels {
            chain: self.clone(),
            warnings: Vec::new(),
        })
    }
}

impl TurnModels {
    /// Returns the first model to ask, as `vendor/model`.
    pub(crate) fn first(&self) -> &str {
        self.chain.first_name()
    }
}
