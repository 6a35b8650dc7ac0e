//! The agent: a provider, tools, a store and a prompt, and turns run with them.
//!
//! This is what an embedding program builds:
//!
//! ```
//! use bantam::agent::{Agent, Request};
//! use bantam::provider::demo::Demo;
//!
//! let agent = Agent::builder().provider(Demo).context("HOUSE", || "Answer in one line.".into()).build()?;
//! let response = agent.run(&Request::new("time", "a-session"), &|_event| ());
//! assert!(response.output.starts_with("It is"));
//! # Ok::<(), bantam::error::Error>(())
//! ```

mod breaker;
mod calls;
mod compact;
pub mod context;
mod history;
mod task;
#[cfg(test)]
mod tests;
mod turn;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::bus::Origin;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::{Image, Message, User};
use crate::provider::chain::{ModelChain, Retry};
use crate::provider::{self, Provider, System, ToolOffer};
use crate::secret::Redactor;
use crate::session::{Memory, Store};
use crate::text::rfc3339;
use crate::tool::{Registry, Tool, ToolSpec};
use crate::usage::Ledger;
use context::Prompt;
pub use task::{Background, TaskResult, Tokens};

/// What one turn may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests to the model. The last is asked without tools, so at least two are made when it wants tools.
    pub max_steps: u32,
    /// From first to last, all tries and tools included.
    pub timeout: Duration,
    /// Tokens of all requests together, as the provider counts them. No request is made once they are spent, so the
    /// last one may go beyond.
    pub budget_tokens: Option<u64>,
    pub retry: Retry,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_steps: 25,
            timeout: Duration::from_secs(600),
            budget_tokens: None,
            retry: Retry { max: 3, first_wait: Duration::from_secs(1) },
        }
    }
}

/// How much of a conversation goes to the model.
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// What the model can read at once, in tokens. 0: nobody knows; then a conversation is shortened only when a host says
    /// that it is too long.
    pub window: u64,
    /// The share of the window at which a conversation is shortened.
    pub compact_at: f64,
    /// Messages, at most. 0: all that fit.
    pub limit: usize,
    /// A conversation that was idle for longer begins anew.
    pub ttl: Option<Duration>,
}

impl Default for History {
    fn default() -> Self {
        Self { window: 131_072, compact_at: 0.8, limit: 0, ttl: None }
    }
}

impl History {
    /// The tokens of a request from which on the conversation is shortened.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)] // windows are small
    fn threshold(&self) -> u64 {
        if self.window == 0 { u64::MAX } else { (self.window as f64 * self.compact_at) as u64 }
    }
}

/// See the module's description.
pub struct Agent {
    chain: Arc<ModelChain>,
    tools: Registry,
    offers: Vec<ToolOffer>,
    /// In tokens.
    offers_weight: u64,
    store: Arc<dyn Store>,
    prompt: Arc<Prompt>,
    limits: Limits,
    history: History,
    stream: bool,
    filter: Option<Filter>,
    redactor: Redactor,
    /// It does a task for another agent.
    is_subagent: bool,
    ledger: Option<Arc<dyn Ledger>>,
}

/// Changes what of the history is sent, at each request; what is stored stays as it is.
pub type Filter = Box<dyn Fn(Vec<Message>) -> Vec<Message> + Send + Sync>;

/// One turn to run.
#[derive(Clone)]
pub struct Request {
    pub input: String,
    /// What goes with it.
    pub images: Vec<Image>,
    /// The conversation it continues, as a file name: `cli_default`.
    pub session: String,
    pub origin: Origin,
    /// What its channel calls the message, if anything. A turn for a message that the conversation has already is taken up
    /// where it was, and one that is over is not run again: its answer is given once more.
    pub id: String,
    pub cancel: Cancel,
    /// What it may use of [`Limits::budget_tokens`], where it shares them with others; `None` for all of them.
    pub tokens: Option<Arc<Tokens>>,
    /// Who takes tasks that its tools start and do not wait for; `None`: nobody does.
    pub background: Option<Arc<dyn Background>>,
}

impl Request {
    /// A turn that nobody can stop.
    pub fn new(input: impl Into<String>, session: impl Into<String>) -> Self {
        let session = session.into();
        let origin = Origin { channel: "library".to_owned(), chat: session.clone() };
        Self {
            input: input.into(),
            images: Vec::new(),
            session,
            origin,
            id: String::new(),
            cancel: Cancel::new(None),
            tokens: None,
            background: None,
        }
    }

    /// What the user says in this turn.
    fn message(&self, prompt: &Prompt, now: SystemTime) -> User {
        let (content, images) = (prompt.expand_skill(&self.input), self.images.clone());
        User { content, images, time: rfc3339(now), id: self.id.clone(), notes: String::new() }
    }
}

impl Agent {
    pub fn builder() -> Builder {
        Builder {
            chain: ModelChain::default(),
            tools: Vec::new(),
            only: None,
            store: None,
            prompt: Prompt::default(),
            limits: Limits::default(),
            history: History::default(),
            stream: true,
            redactor: Redactor::default(),
            filter: None,
            ledger: None,
        }
    }

    /// `vendor/model` of the first choice, as it is shown.
    pub fn model(&self) -> &str {
        self.chain.first().map_or("", Provider::model)
    }

    /// What one turn may use.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What the first request of a turn would be, as JSON for people. Nothing is sent, and nothing is stored.
    ///
    /// # Errors
    /// The conversation cannot be read.
    pub fn preview(&self, request: &Request) -> Result<String> {
        let session = self.store.peek(&request.session)?;
        let mut messages = session.messages;
        let now = SystemTime::now();
        messages.push(Message::User(User { notes: self.prompt.notes(now).0, ..request.message(&self.prompt, now) }));
        if self.history.limit > 0 {
            messages.drain(..history::newest(&messages, self.history.limit));
        }
        if let Some(filter) = &self.filter {
            messages = filter(messages);
        }
        let mut built = self.prompt.build(&self.tools, &request.origin);
        built.recall(session.summary.as_deref());
        let Some(first) = self.chain.first() else { return Ok(String::new()) };
        let body = first.preview(&provider::Request {
            system: System::marked(&built.text, built.mark),
            messages: &messages,
            tools: &self.offers,
            stream: self.stream,
            cancel: &request.cancel,
        });
        Ok(self.redactor.redact(format!("{body:#}")))
    }
}

/// The tools as the model is told of them.
fn offers(tools: &Registry) -> Vec<ToolOffer> {
    let offer = |spec: &ToolSpec| ToolOffer {
        name: spec.name.clone(),
        description: spec.description.clone(),
        schema: spec.schema.clone(),
    };
    tools.specs().map(offer).collect()
}

/// Puts an [`Agent`] together.
pub struct Builder {
    chain: ModelChain,
    tools: Vec<Box<dyn Tool>>,
    only: Option<Vec<String>>,
    store: Option<Arc<dyn Store>>,
    prompt: Prompt,
    limits: Limits,
    history: History,
    stream: bool,
    redactor: Redactor,
    filter: Option<Filter>,
    ledger: Option<Box<dyn Ledger>>,
}

impl Builder {
    /// Who answers; there is no default. A further one is asked when those before it fail.
    pub fn provider(mut self, provider: impl Provider + 'static) -> Self {
        self.chain.push(vec![Box::new(provider)]);
        self
    }

    /// All who may answer, when who they are was decided at run time.
    pub(crate) fn chain(mut self, chain: ModelChain) -> Self {
        self.chain = chain;
        self
    }

    pub fn tool(mut self, tool: impl Tool + 'static) -> Self {
        self.tools.push(Box::new(tool));
        self
    }

    /// Offers the tools of these names and no others; of an empty list, none.
    pub fn only(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.only = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Several, when which they are was decided at run time.
    pub fn tools(mut self, tools: Vec<Box<dyn Tool>>) -> Self {
        self.tools.extend(tools);
        self
    }

    /// Where conversations are kept. Default: in memory.
    pub fn store(mut self, store: impl Store + 'static) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// The files that the prompt is made from. Default: none.
    pub fn prompt(mut self, prompt: Prompt) -> Self {
        self.prompt = prompt;
        self
    }

    /// One more part of the prompt, asked for at each turn. An empty text is left out.
    pub fn context(mut self, title: &str, text: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.prompt.add(title, text);
        self
    }

    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How much of a conversation is sent, and when it is shortened.
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Whether answers are asked for piece by piece.
    pub fn stream(mut self, stream: bool) -> Self {
        self.stream = stream;
        self
    }

    /// Strikes secrets from what tools say.
    pub fn redactor(mut self, redactor: Redactor) -> Self {
        self.redactor = redactor;
        self
    }

    /// Chooses what of the history is sent.
    pub fn history_filter(mut self, filter: impl Fn(Vec<Message>) -> Vec<Message> + Send + Sync + 'static) -> Self {
        self.filter = Some(Box::new(filter));
        self
    }

    /// Who allows each call of a model and writes it down. Default: nobody.
    pub fn ledger(mut self, ledger: impl Ledger + 'static) -> Self {
        self.ledger = Some(Box::new(ledger));
        self
    }

    /// # Errors
    /// There is no provider, two tools share a name, or [`Builder::only`] names one that is not there (which is
    /// [`crate::error::Kind::Usage`]).
    pub fn build(self) -> Result<Agent> {
        if self.chain.first().is_none() {
            return Err(Error::failed("an agent needs a provider"));
        }
        let mut tools = Registry::new(self.tools, self.redactor.clone())?;
        if let Some(names) = &self.only {
            tools.choose(names)?;
        }
        let offers = offers(&tools);
        Ok(Agent {
            chain: Arc::new(self.chain),
            offers_weight: history::weight_of_offers(&offers),
            offers,
            tools,
            store: self.store.unwrap_or_else(|| Arc::new(Memory::default())),
            prompt: Arc::new(self.prompt),
            limits: self.limits,
            history: self.history,
            stream: self.stream,
            filter: self.filter,
            redactor: self.redactor,
            is_subagent: false,
            ledger: self.ledger.map(Arc::from),
        })
    }
}
