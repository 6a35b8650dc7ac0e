//! Builds an [`Agent`].

use std::sync::Arc;

use super::prompt::Prompt;
use super::{Agent, Filter, History, Limits, Models, Request};
use crate::error::{Error, Result};
use crate::message::{Message, User};
use crate::paths::Home;
use crate::provider::Provider;
use crate::provider::chain::Chain;
use crate::redact::Redactor;
use crate::session::{MemoryStore, Session, Store};
use crate::tool::subagent::subagent_tool;
use crate::tool::{Function, Registry};
use crate::usage::Ledger;
use crate::worker::Workers;

/// Collects the parts of an [`Agent`].
#[derive(Default)]
pub struct Builder {
    pub(crate) chain: Chain,
    /// Models to use instead of the chain.
    pub(crate) models: Option<Arc<dyn Models>>,
    /// Files and sections of the system prompt. Default: empty.
    pub(crate) prompt: Prompt,
    /// Removes secrets from tool results and errors.
    pub(crate) redactor: Redactor,
    /// Calls that need the user's approval; see [`crate::tool::Call::needs_approval`].
    pub(crate) confirm: Vec<String>,
    /// Checks and records each model request.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// Workers that store the pictures of models in the workspace.
    pub(crate) workers: Option<Arc<Workers>>,
    /// Home for earlier versions of files, and the key prefix of conversations whose user may undo turns.
    pub(crate) undo_in: Option<(Home, &'static str)>,
    tools: Registry,
    /// Error of a tool that could not be added.
    refused: Option<Error>,
    store: Option<Arc<dyn Store>>,
    limits: Limits,
    history: History,
    whole_replies: bool,
    filter: Option<Arc<Filter>>,
    without_times: bool,
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
        self.note_refusal(added)
    }

    /// Adds tools.
    pub fn tools(mut self, tools: Registry) -> Self {
        let added = self.tools.merge(tools);
        self.note_refusal(added)
    }

    /// Adds `subagent`: tasks for agents like this one with their own context, which run in parallel. They have its other
    /// tools, except those that start more agents. Repeating a task without other work in between runs it once, so for several
    /// opinions, vary the task. Background tasks need [`Request::tasks`].
    pub fn subagents(self) -> Self {
        self.tool(subagent_tool(None))
    }

    /// Stores the first error for [`Builder::build`].
    fn note_refusal(mut self, added: Result<()>) -> Self {
        self.refused = self.refused.or(added.err());
        self
    }

    /// Sets the calls that need the user's approval by [`Request::confirm`]: `writes`, `runs`, names of tools or `SERVER__*`.
    /// Without a user to ask, such calls are refused. Replaces earlier names; default: empty.
    pub fn confirm(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.confirm = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the store of conversations. Default: in memory.
    pub fn store(mut self, store: impl Store + 'static) -> Self {
        self.store = Some(Arc::new(store));
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
        self.limits = limits;
        self
    }

    /// Sets how much of a conversation is sent to the model. Default: [`History::default`].
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Sets whether to request replies piece by piece. Default: true.
    pub fn stream(mut self, stream: bool) -> Self {
        self.whole_replies = !stream;
        self
    }

    /// Sets whether the model sees the time of the user's messages, which is prepended to each text in brackets, as in
    /// [`User::time`] or `local_time`. It is unchanged in later requests, so that hosts can cache them. Default: true.
    pub fn times(mut self, shown: bool) -> Self {
        self.without_times = !shown;
        self
    }

    /// Sets a filter of the messages in each request; stored messages are unchanged.
    pub fn history_filter(
        mut self,
        filter: impl Fn(Vec<Message>) -> Vec<Message> + Send + Sync + 'static,
    ) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// # Errors
    /// Returns an error without a provider, and errors of [`Registry::add`] for a tool.
    pub fn build(self) -> Result<Agent> {
        let models = match self.models {
            Some(models) => models,
            None if self.chain.first().is_none() => {
                return Err(Error::failed("an agent needs a provider"));
            }
            None => Arc::new(Arc::new(self.chain.known_to(&self.redactor))),
        };
        if let Some(e) = self.refused {
            return Err(e);
        }
        let filter = if self.without_times {
            Some(without_times(self.filter))
        } else {
            self.filter
        };
        let agent = Agent {
            models,
            tools: Registry::default(),
            offers: Vec::new(),
            offers_weight: 0,
            store: self
                .store
                .unwrap_or_else(|| Arc::new(MemoryStore::default())),
            prompt: Arc::new(self.prompt),
            limits: self.limits,
            history: self.history,
            stream: !self.whole_replies,
            filter,
            redactor: self.redactor,
            is_subagent: false,
            confirm: self.confirm.into(),
            ledger: self.ledger,
            undo_in: self.undo_in,
            workers: self.workers,
        };
        Ok(agent.with_tools(self.tools))
    }
}

/// Extends a filter to remove the times of messages.
fn without_times(filter: Option<Arc<Filter>>) -> Arc<Filter> {
    let untimed = |message| match message {
        Message::User(user) => Message::User(User {
            time: String::new(),
            local_time: String::new(),
            ..user
        }),
        message => message,
    };
    Arc::new(move |messages| {
        let messages = match &filter {
            Some(filter) => filter(messages),
            None => messages,
        };
        messages.into_iter().map(untimed).collect()
    })
}
