//! The agent: a provider, tools, a store and a system prompt, and the turns they run.
//!
//! An embedding program builds one:
//!
//! ```
//! use bantam::{Agent, Demo, Request};
//!
//! let agent = Agent::builder().provider(Demo).context("HOUSE", |_, _| "Answer in one line.".into()).build()?;
//! let response = agent.run(&Request::new("time", "a-session"), &|_event| ());
//! assert!(response.output.starts_with("It is"));
//! # Ok::<(), bantam::Error>(())
//! ```

mod builder;
mod history;
mod loop_detector;
mod media;
mod models;
pub(crate) mod prompt;
mod request;
mod resume;
mod task;
mod turn;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

pub use builder::Builder;
pub(crate) use models::{Models, TurnModels};
pub use request::{Request, Steering};
pub(crate) use task::TaskSink;
pub use task::{TaskReport, Tasks};

pub use crate::bus::Decision;
use crate::bus::Response;
pub use crate::cancel::{Cancel, CancelReason, Hook};
use crate::error::{Error, Result};
use crate::message::Message;
use crate::paths::Home;
use crate::provider::{Chain, Retry, ToolOffer};
use crate::redact::Redactor;
use crate::session::{self, OpenSession, Record, Session, SessionInfo, Store};
pub(crate) use crate::tool::PendingCall;
use crate::tool::{Registry, ToolSpec};
pub use crate::usage::Budget;
use crate::usage::Ledger;
use crate::worker::Workers;
use prompt::Prompt;

/// Limits of one turn.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of model requests; 0 counts as 1. The last one offers no tools. Default: 25.
    pub max_steps: u32,
    /// Time limit of the whole turn, including retries and tools. Default: 600 seconds.
    pub timeout: Duration,
    /// Maximum number of tokens in all requests, as counted by the provider; `None` for no limit. A request that would exceed
    /// it is not sent; a reply may exceed it. Default: `None`.
    pub budget_tokens: Option<u64>,
    /// Maximum number of model requests per message, with subagents and tasks. The last one offers no tools. Default: 500.
    pub max_calls: u32,
    /// Retries after a temporary failure. Default: three, after up to 1, 2 and 4 seconds.
    pub retry: Retry,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_steps: 25,
            timeout: Duration::from_secs(600),
            budget_tokens: None,
            max_calls: 500,
            retry: Retry {
                max: 3,
                first_wait: Duration::from_secs(1),
                partial: false,
            },
        }
    }
}

/// Maximum number of tokens that compaction keeps free for an answer.
const LONGEST_ANSWER: u64 = 8192;

/// Limits on the part of a conversation that is sent to the model.
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// Context window in tokens. 0 if unknown, which compacts only when a host refuses a request as too long. Default: 131,072.
    pub window: u64,
    /// Share of the window above which to compact, which leaves a quarter of the window, or 8,192 tokens, for the answer.
    /// Default: 0.8.
    pub compact_at: f64,
    /// Maximum number of messages, of which the question is one; 0, the default, for all that fit.
    pub limit: usize,
    /// Idle time after which a conversation starts over. Default: never.
    pub ttl: Option<Duration>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            window: 131_072,
            compact_at: 0.8,
            limit: 0,
            ttl: None,
        }
    }
}

impl History {
    /// Sets the window of these models, if it is known.
    fn with_window_of(self, chain: &Chain) -> Self {
        Self {
            window: chain.window().unwrap_or(self.window),
            ..self
        }
    }

    /// Reduces the window to the limit that a host has stated, if it did.
    fn limit_window(&mut self, limit: Option<u64>) {
        let known = Some(self.window).filter(|window| *window > 0);
        self.window = limit.into_iter().chain(known).min().unwrap_or(0);
    }

    /// Returns how many bytes of a tool's result the conversation gets: a quarter of the window.
    fn result_limit(&self) -> usize {
        let quarter = usize::try_from(self.window / 4 * history::TOKEN).unwrap_or(usize::MAX);
        if quarter == 0 { usize::MAX } else { quarter }
    }

    /// Returns the number of tokens above which to compact: a part of the window. The rest is for the answer: a quarter of the
    /// window, of which a model is asked for [`LONGEST_ANSWER`] at most.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )] // windows are small
    fn threshold(&self) -> u64 {
        if self.window == 0 {
            return u64::MAX;
        }
        let share = (self.window as f64 * self.compact_at) as u64;
        share.min(self.window - (self.window / 4).min(LONGEST_ANSWER))
    }
}

/// Runs turns; see the module's description. Clones share the store, the models and the ledger.
#[derive(Clone)]
pub struct Agent {
    pub(crate) models: Arc<dyn Models>,
    tools: Registry,
    offers: Vec<ToolOffer>,
    /// Weight of `offers`, in tokens.
    offers_weight: u64,
    store: Arc<dyn Store>,
    prompt: Arc<Prompt>,
    limits: Limits,
    history: History,
    stream: bool,
    filter: Option<Arc<Filter>>,
    /// Removes secrets from tool results and errors.
    pub(crate) redactor: Redactor,
    is_subagent: bool,
    /// Calls that need the user's approval; see [`crate::tool::Call::needs_approval`].
    pub(crate) confirm: Arc<[String]>,
    /// Checks and records each model request.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// Home for earlier versions of files, and the key prefix of conversations whose user may undo turns.
    pub(crate) undo_in: Option<(Home, &'static str)>,
    /// Workers that store the pictures of models in the workspace.
    pub(crate) workers: Option<Arc<Workers>>,
}

/// Chooses or changes the messages of each request; stored messages are unchanged.
type Filter = dyn Fn(Vec<Message>) -> Vec<Message> + Send + Sync;

/// Asks the user whether a call may run, and waits for the answer.
pub type Confirm = dyn Fn(&PendingCall) -> Decision + Send + Sync;

impl Agent {
    /// Starts an agent without a provider, tools or store.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Asks in the conversation `library_default`, which continues from call to call, and returns the answer.
    ///
    /// # Errors
    /// Returns the error of a turn that failed or reached a limit.
    pub fn ask(&self, question: &str) -> Result<String> {
        let Response { output, error, .. } =
            self.run(&Request::new(question, "library_default"), &|_| ());
        error.map_or(Ok(output), Err)
    }

    /// Returns the models for the next turn of a conversation.
    pub(crate) fn models_for(&self, session: &str) -> Result<TurnModels> {
        // An unreadable conversation is reported by its turn.
        let session = Session::peek(&*self.store, session).ok();
        let chosen = session.and_then(|session| session.model);
        self.models.choose("", chosen.as_deref())
    }

    /// Returns the limits of one turn.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Makes a budget to share between turns by [`Request::budget`]. Requests are recorded for this session and channel.
    pub fn budget(&self, session: &str, channel: &str) -> Arc<Budget> {
        let (calls, tokens) = (self.limits.max_calls, self.limits.budget_tokens);
        let budget = Budget::new(self.ledger.clone(), session, channel);
        Arc::new(budget.limited(calls, tokens))
    }

    /// Lists all conversations of the store by last use, newest first, without locking them.
    ///
    /// ```
    /// use bantam::{Agent, Demo, Request};
    ///
    /// let agent = Agent::builder().provider(Demo).build()?;
    /// agent.run(&Request::new("time", "notes"), &|_event| ());
    /// let all = agent.sessions()?;
    /// assert_eq!((all[0].key.as_str(), all[0].title.as_str(), all[0].messages), ("notes", "time", 2));
    /// assert!(agent.erase("notes")? && agent.sessions()?.is_empty());
    /// # Ok::<(), bantam::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Store::list`].
    pub fn sessions(&self) -> Result<Vec<SessionInfo>> {
        session::list(&*self.store)
    }

    /// Deletes a conversation with all its data, and returns whether it existed. Waits for a running turn.
    ///
    /// # Errors
    /// Returns [`crate::error::Kind::Busy`] if a turn still runs after 30 seconds, and errors of [`Store::write`].
    pub fn erase(&self, key: &str) -> Result<bool> {
        session::erase(&*self.store, key)
    }

    /// Returns a conversation as it is now, without locking it. A new conversation is empty, and its [`Session::created`] is
    /// `""`.
    ///
    /// # Errors
    /// Returns an error if it cannot be read.
    pub fn session(&self, key: &str) -> Result<Session> {
        Session::peek(&*self.store, key)
    }

    /// Opens a conversation, after its running turn has ended.
    fn open(&self, key: &str) -> Result<OpenSession> {
        OpenSession::open(&self.store, key, &Cancel::new(None), &|| ())
    }

    /// Returns a named value of a conversation; `None` if it is not set.
    ///
    /// # Errors
    /// Returns an error if the conversation cannot be read.
    pub fn get(&self, key: &str, name: &str) -> Result<Option<Value>> {
        Ok(self.session(key)?.values.remove(name))
    }

    /// Sets a named value of a conversation; null removes it. Waits for a running turn, whose own tools must use
    /// [`crate::tool::CallContext::values`] instead.
    ///
    /// # Errors
    /// Returns [`crate::error::Kind::Busy`] if a turn still runs after 30 seconds, and errors of [`Store::read`] and
    /// [`Store::write`].
    pub fn set(&self, key: &str, name: &str, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        self.open(key)?.store(&[Record::Value(name, &value)])
    }

    /// Removes a named value of a conversation.
    ///
    /// # Errors
    /// Returns the errors of [`Agent::set`].
    pub fn remove(&self, key: &str, name: &str) -> Result<()> {
        self.set(key, name, Value::Null)
    }

    /// Starts a conversation over, with the same model. Waits for a running turn.
    ///
    /// # Errors
    /// Returns the errors of [`Agent::set`].
    pub fn reset(&self, key: &str) -> Result<()> {
        self.open(key)?.renew(None, Vec::new(), SystemTime::now())
    }

    /// Returns the tools offered to the model.
    pub fn tools(&self) -> &Registry {
        &self.tools
    }

    /// Returns a copy of the agent with these tools instead of its own.
    pub fn with_tools(&self, tools: Registry) -> Self {
        let tools = tools.for_agent(self.redactor.clone());
        let offer = |(spec, schema): (&ToolSpec, _)| ToolOffer {
            name: spec.name.clone(),
            description: spec.description.clone(),
            schema,
        };
        let offers: Vec<ToolOffer> = tools.declared().map(offer).collect();
        Self {
            offers_weight: history::weight_of_offers(&offers),
            offers,
            tools,
            ..self.clone()
        }
    }

    /// Describes how much of the model's window a conversation fills: "about 3100 of 131072 tokens (2 %)".
    ///
    /// # Errors
    /// Returns an error if the conversation cannot be read.
    pub fn window_use(&self, session: &str) -> Result<String> {
        let session = Session::peek(&*self.store, session)?;
        let used = history::estimate(self.offers_weight, &session.messages);
        let models = self.models.choose("", session.model.as_deref())?;
        let window = self.history.with_window_of(&models.chain).window;
        let share = used.saturating_mul(100).checked_div(window);
        Ok(share.map_or(format!("about {used} tokens"), |share| {
            format!("about {used} of {window} tokens ({share} %)")
        }))
    }
}

/// Fills a prompt template: replaces `{{name}}` with the value of that name, and `{{name:default}}` with the default if the
/// value is missing. Placeholders inside a value are unchanged.
///
/// ```
/// use std::collections::BTreeMap;
///
/// let values = BTreeMap::from([("city", "Bergen")]);
/// let text = bantam::fill("The weather in {{city}}, in {{unit:°C}}.", &values)?;
/// assert_eq!(text, "The weather in Bergen, in °C.");
/// # Ok::<(), bantam::Error>(())
/// ```
///
/// # Errors
/// Returns [`crate::error::Kind::Usage`] if a name has neither a value nor a default.
pub fn fill<'t>(template: &'t str, values: &BTreeMap<&str, &'t str>) -> Result<String> {
    let filled = crate::text::fill(template, |name| values.get(name).copied());
    filled.map_err(|name| Error::usage(format!("the template needs a value for {name}")))
}
