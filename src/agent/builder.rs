//! Builds an [`Agent`].

use std::sync::Arc;

use super::prompt::Prompt;
use super::{Agent, History, Limits, Models, Request};
use crate::error::{Error, Result};
use crate::message::Message;
use crate::provider::Provider;
use crate::provider::chain::Chain;
use crate::redact::Redactor;
use crate::session::{MemoryStore, Session, Store};
use crate::tool::subagent::subagent_tool;
use crate::tool::{Function, Registry};

/// Collects the parts of an [`Agent`].
pub struct Builder {
    /// The agent, as far as it is built.
    pub(crate) agent: Agent,
    pub(crate) chain: Chain,
    /// Models to use instead of the chain.
    pub(crate) models: Option<Arc<dyn Models>>,
    /// Files and sections of the system prompt. Default: empty.
    pub(crate) prompt: Prompt,
    tools: Registry,
    /// First error of a tool that could not be added.
    refused: Option<Error>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            agent: Agent {
                models: Arc::new(Arc::new(Chain::default())),
                tools: Registry::default(),
                offers: Vec::new(),
                offers_weight: 0,
                store: Arc::new(MemoryStore::default()),
                prompt: Arc::default(),
                limits: Limits::default(),
                history: History::default(),
                stream: true,
                filter: None,
                redactor: Redactor::default(),
                is_subagent: false,
                confirm: Arc::default(),
                ledger: None,
                undo_in: None,
                workers: None,
            },
            chain: Chain::default(),
            models: None,
            prompt: Prompt::default(),
            tools: Registry::default(),
            refused: None,
        }
    }
}

impl Builder {
    /// Adds a provider; at least one is required. Each further provider is asked when the earlier ones fail.
    pub fn provider(mut self, provider: impl Provider + 'static) -> Self {
        self.chain = self.chain.then(provider);
        self
    }

    /// Sets the models to ask, replacing those added before.
    pub fn chain(mut self, chain: Chain) -> Self {
        self.chain = chain;
        self
    }

    /// Adds a tool, which is offered to the model under the name in its spec.
    pub fn tool(mut self, tool: Function) -> Self {
        let added = self.tools.add(tool);
        self.refused = self.refused.or(added.err());
        self
    }

    /// Adds tools.
    pub fn tools(mut self, tools: Registry) -> Self {
        let added = self.tools.merge(tools);
        self.refused = self.refused.or(added.err());
        self
    }

    /// Adds `subagent`: tasks for agents like this one with their own context, which run in parallel. They have its other
    /// tools, except those that start more agents. Repeating a task without other work in between runs it once, so for several
    /// opinions, vary the task. Background tasks need [`Request::tasks`].
    pub fn subagents(self) -> Self {
        self.tool(subagent_tool())
    }

    /// Sets the calls that need the user's approval by [`Request::confirm`]: `writes`, `runs`, names of tools or `SERVER__*`.
    /// Without a user to ask, such calls are refused. Replaces earlier names; default: empty.
    pub fn confirm(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.agent.confirm = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the store of conversations. Default: in memory.
    pub fn store(mut self, store: impl Store + 'static) -> Self {
        self.agent.store = Arc::new(store);
        self
    }

    /// Adds a section to the system prompt. In each turn, `text` makes it from the conversation before the turn and its
    /// request; an empty text is left out. Hosts cache the prompt while it is unchanged.
    pub fn context(
        mut self,
        title: &str,
        text: impl Fn(&Session, &Request) -> String + Send + Sync + 'static,
    ) -> Self {
        self.prompt.add(title, text);
        self
    }

    /// Sets the limits of one turn. Default: [`Limits::default`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.agent.limits = limits;
        self
    }

    /// Sets how much of a conversation is sent to the model. Default: [`History::default`].
    pub fn history(mut self, history: History) -> Self {
        self.agent.history = history;
        self
    }

    /// Sets whether to request replies piece by piece. Default: true.
    pub fn stream(mut self, stream: bool) -> Self {
        self.agent.stream = stream;
        self
    }

    /// Sets a filter of the messages in each request; stored messages are unchanged. The model sees the time of a message in
    /// brackets before its text, unless the filter empties [`User::time`](crate::User::time) and `local_time`.
    pub fn history_filter(
        mut self,
        filter: impl Fn(Vec<Message>) -> Vec<Message> + Send + Sync + 'static,
    ) -> Self {
        self.agent.filter = Some(Arc::new(filter));
        self
    }

    /// # Errors
    /// Returns an error without a provider, and errors of [`Registry::add`] for a tool.
    pub fn build(mut self) -> Result<Agent> {
        self.agent.models = match self.models {
            Some(models) => models,
            None if self.chain.first().is_none() => {
                return Err(Error::failed("an agent needs a provider"));
            }
            None => Arc::new(Arc::new(self.chain.known_to(&self.agent.redactor))),
        };
        if let Some(e) = self.refused {
            return Err(e);
        }
        self.agent.prompt = Arc::new(self.prompt);
        Ok(self.agent.with_tools(self.tools))
    }
}
