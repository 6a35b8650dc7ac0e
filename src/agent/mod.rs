//! The agent: a provider, tools, a store and a system prompt, and the turns they run.
//!
//! An embedding program builds one:
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

mod ask;
mod breaker;
mod builder;
mod calls;
mod compact;
mod history;
mod media;
mod outcome;
pub(crate) mod prompt;
mod task;
#[cfg(test)]
mod tests;
mod turn;
mod turn_context;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

pub use builder::Builder;
pub use calls::Called;
pub use task::Background;
pub(crate) use task::report_text;
pub(crate) use turn::WAITING;
pub use turn_context::Spending;

use crate::bus::{Origin, Response};
pub use crate::cancel::{Cancel, Hook, Why};
use crate::error::{Error, Result};
use crate::message::{Media, Message, User};
use crate::paths::Home;
use crate::provider::chain::Chain;
use crate::provider::{self, Provider, Retry, Sampling, ToolOffer};
use crate::secret::Redactor;
use crate::session::{Durability, Entry, MAX_TITLE, Session, Store};
use crate::text::{one_line, rfc3339};
use crate::tool::{Registry, Renew, Tool, ToolSpec};
use crate::usage::Ledger;
use prompt::Prompt;

/// What one turn may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests to the model. The last one offers no tools.
    pub max_steps: u32,
    /// Time from first to last, retries and tools included.
    pub timeout: Duration,
    /// Tokens of all requests together, as the provider counts them; `None` for no limit. A request whose size would exceed
    /// it is not made; its reply may.
    pub budget_tokens: Option<u64>,
    /// Requests to the model for one message, with all subagents and background tasks. The last one offers no tools.
    pub max_calls: u32,
    /// How often and how soon to ask again after a fault that may pass.
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

/// How much of a conversation the model gets.
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// The model's context window in tokens. 0 means unknown: compact only when a host finds a request too long.
    pub window: u64,
    /// The share of the window above which to compact.
    pub compact_at: f64,
    /// The most messages; 0 for all that fit.
    pub limit: usize,
    /// Start the conversation over after so long without a message.
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
    /// Compacts above so many tokens.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss
    )] // windows are small
    fn threshold(&self) -> u64 {
        if self.window == 0 {
            u64::MAX
        } else {
            (self.window as f64 * self.compact_at) as u64
        }
    }
}

/// How tools that have changed come into a turn that runs.
#[derive(Clone)]
pub(crate) struct Renewal {
    /// Of the tools that the agent was built with.
    pub generation: u64,
    /// The names of those that are asked again.
    pub servers: Vec<String>,
    pub renew: Arc<Renew>,
}

/// Runs turns; see the module's description. Clones share the store, the models and the ledger.
#[derive(Clone)]
pub struct Agent {
    chain: Arc<Chain>,
    tools: Registry,
    offers: Vec<ToolOffer>,
    /// In tokens.
    offers_weight: u64,
    store: Arc<dyn Store>,
    prompt: Arc<Prompt>,
    limits: Limits,
    history: History,
    stream: bool,
    filter: Option<Arc<Filter>>,
    redactor: Redactor,
    is_subagent: bool,
    confirm: Arc<[String]>,
    ledger: Option<Arc<Ledger>>,
    undo_in: Option<(Home, &'static str)>,
    renewal: Option<Renewal>,
}

/// Chooses or changes the messages of each request; the store keeps them as they are.
type Filter = dyn Fn(Vec<Message>) -> Vec<Message> + Send + Sync;

/// Asks the user whether a call may run, and waits for the answer.
pub type Confirm = dyn Fn(&Pending) -> Verdict + Send + Sync;

/// A call that waits for the user's word. Of the texts in it only the secrets of the configuration are gone, and characters that
/// nobody could see are written as their codes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pending {
    /// Its id, which no other call of the conversation has. A turn that is resumed asks about the same call again.
    pub id: String,
    /// The name of its tool.
    pub tool: String,
    /// What it would do, in one line, which may be cut.
    pub summary: String,
    /// Its arguments, each as `name: value` and whole, but for those that the change shows.
    pub arguments: Vec<String>,
    /// The lines that it would take away, with `-` before them, and add, with `+`.
    pub change: Vec<String>,
}

/// What the user says to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To this call.
    Yes,
    /// To this tool in this conversation from now on.
    Always,
    /// Not to this call: the model is told that the user said no.
    No,
    /// Nothing: nobody has answered in time, or the turn was stopped meanwhile.
    Unanswered,
}

/// One turn to run.
#[derive(Clone)]
pub struct Request {
    /// The user's message.
    pub input: String,
    /// What lists show of a conversation that begins with the message; empty: the message.
    pub title: String,
    /// Images, PDF files and recordings that go with the message.
    pub media: Vec<Media>,
    /// The key of the conversation to continue: `cli_default`. Empty: one that is new, whose key [`Response::session`] has. Its
    /// store may refuse a key, as [`crate::session::Files`] does one with a slash or a dot.
    pub session: String,
    /// Where the message comes from; tools and the ledger see it.
    pub origin: Origin,
    /// The channel's id of the message, or empty. A turn for the id that the conversation ends with is resumed; if it is
    /// over, its answer is returned again.
    pub id: String,
    /// For tools, as [`crate::tool::Turn::metadata`]; the model does not see it.
    pub metadata: BTreeMap<String, String>,
    /// The model to ask first, by its name (`vendor/model`); empty for the agent's first choice.
    pub model: String,
    /// What the requests of this turn want in place of the models' own settings.
    pub sampling: Sampling,
    /// Stops the turn.
    pub cancel: Cancel,
    /// What has been spent already, if it is shared with other turns.
    pub spending: Option<Arc<Spending>>,
    /// Asks the user about calls of [`Builder::confirm`] or `tools.confirm`; `None` if nobody can be asked.
    pub confirm: Option<Arc<Confirm>>,
    /// Runs tasks that tools start and do not wait for; `None` if that is not possible.
    pub background: Option<Arc<Background>>,
}

impl Request {
    /// A turn of the channel `library`, which nothing stops.
    pub fn new(input: impl Into<String>, session: impl Into<String>) -> Self {
        let session = session.into();
        let origin = Origin {
            channel: "library".to_owned(),
            chat: session.clone(),
        };
        Self {
            input: input.into(),
            title: String::new(),
            media: Vec::new(),
            session,
            origin,
            id: String::new(),
            metadata: BTreeMap::new(),
            model: String::new(),
            sampling: Sampling::default(),
            cancel: Cancel::new(None),
            spending: None,
            confirm: None,
            background: None,
        }
    }

    fn message(&self, prompt: &Prompt, now: SystemTime) -> User {
        let (content, media) = (prompt.expand_skill(&self.input), self.media.clone());
        let (time, local_time) = (rfc3339(now), prompt.local_time(now));
        let title = if self.title.is_empty() && content != self.input {
            one_line(&self.input, MAX_TITLE)
        } else {
            one_line(&self.title, MAX_TITLE)
        };
        User {
            title,
            content,
            media,
            time,
            local_time,
            id: self.id.clone(),
            notes: String::new(),
        }
    }
}

impl Agent {
    /// An agent without a provider, tools and store.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Asks in the conversation `library_default` and returns the answer.
    ///
    /// # Errors
    /// The turn failed, or was stopped by a limit.
    pub fn ask(&self, question: &str) -> Result<String> {
        let Response { output, error, .. } =
            self.run(&Request::new(question, "library_default"), &|_| ());
        error.map_or(Ok(output), Err)
    }

    /// `vendor/model` of the first choice.
    pub fn model(&self) -> &str {
        self.chain.first().map_or("", Provider::model)
    }

    /// What one turn may use.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Removes known secrets from texts.
    pub(crate) fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// The first request of a turn, as JSON for people. Sends and stores nothing.
    ///
    /// # Errors
    /// The conversation cannot be read.
    pub fn preview(&self, request: &Request) -> Result<String> {
        let mut session = self.store.peek(&request.session)?;
        session.close_turn();
        let mut messages = std::mem::take(&mut session.messages);
        let now = SystemTime::now();
        let held = self.prompt.hold_workspace();
        messages.push(Message::User(User {
            notes: self.prompt.notes(now, &held).0,
            ..request.message(&self.prompt, now)
        }));
        if self.history.limit > 0 {
            messages.drain(..history::newest(&messages, self.history.limit));
        }
        history::drop_old_images(&mut messages);
        if let Some(filter) = &self.filter {
            messages = filter(messages);
        }
        let mut prompt = self.prompt.build(&self.tools, &session, request, &held)?;
        prompt.set_summary(session.summary.as_deref());
        let Some(first) = self.chain.first() else {
            return Ok(String::new());
        };
        let body = first.preview(&provider::Request {
            system: prompt.system(),
            messages: &messages,
            tools: &self.offers,
            withheld: false,
            stream: self.stream,
            sampling: &request.sampling,
            on_thought: &|_| (),
            on_trace: &|_| (),
            cancel: &request.cancel,
        });
        Ok(self.redactor.redact(format!("{body:#}")))
    }

    /// A conversation as it is now, without locking it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn session(&self, key: &str) -> Result<Session> {
        self.store.peek(key)
    }

    /// A named value of a conversation; `None` if it has none of this name.
    ///
    /// # Errors
    /// The conversation cannot be read.
    pub fn get(&self, key: &str, name: &str) -> Result<Option<Value>> {
        Ok(self.session(key)?.values.remove(name))
    }

    /// Sets a named value of a conversation; null removes it. Waits for a turn under way; its tools use
    /// [`crate::tool::Turn::values`].
    ///
    /// # Errors
    /// Those of [`Store::load`] and [`Store::append`].
    pub fn set(&self, key: &str, name: &str, value: impl Into<Value>) -> Result<()> {
        let mut session = self.store.load(key, &Cancel::new(None), &|| ())?;
        let value = value.into();
        let entries = [Entry::Value(name, &value)];
        let now = SystemTime::now();
        self.store
            .append(&mut session, &entries, Durability::Now, now)
    }

    /// Removes a named value of a conversation.
    ///
    /// # Errors
    /// Those of [`Agent::set`].
    pub fn remove(&self, key: &str, name: &str) -> Result<()> {
        self.set(key, name, Value::Null)
    }

    /// Starts a conversation over; its model stays. Waits for a turn under way.
    ///
    /// # Errors
    /// Those of [`Store::load`] and [`Store::renew`].
    pub fn reset(&self, key: &str) -> Result<()> {
        let mut session = self.store.load(key, &Cancel::new(None), &|| ())?;
        let now = SystemTime::now();
        let old = self.store.renew(&mut session, None, Vec::new(), now);
        old.map(drop)
    }

    /// What it offers to its model, by name.
    pub fn tools(&self) -> impl Iterator<Item = &ToolSpec> {
        self.tools.specs()
    }

    /// The same agent with these tools alone.
    ///
    /// # Errors
    /// Of the kind [`crate::error::Kind::Usage`]: no tool has one of these names.
    pub fn with_only(&self, names: &[&str]) -> Result<Self> {
        let mut tools = self.tools.clone();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        tools.select(&names)?;
        let agent = Self {
            // A choice by name holds for the whole turn.
            renewal: None,
            ..self.clone()
        };
        Ok(agent.with_tools(tools))
    }

    /// The same agent with these tools besides.
    ///
    /// # Errors
    /// A tool's name or schema is not valid, or its name is taken.
    pub fn with_more(&self, tools: Vec<Box<dyn Tool>>) -> Result<Self> {
        let tools = self.tools.with(tools)?;
        Ok(self.clone().with_tools(tools))
    }

    /// How full the model's window is with a conversation: "about 3100 of 131072 tokens (2 %)".
    ///
    /// # Errors
    /// The conversation cannot be read.
    pub fn window_use(&self, session: &str) -> Result<String> {
        let used = history::estimate(self.offers_weight, &self.store.peek(session)?.messages);
        let window = self.history.window;
        let share = used.saturating_mul(100).checked_div(window);
        Ok(share.map_or(format!("about {used} tokens"), |share| {
            format!("about {used} of {window} tokens ({share} %)")
        }))
    }

    /// The same agent with conversations kept elsewhere.
    pub fn with_store(&self, store: impl Store + 'static) -> Self {
        Self {
            store: Arc::new(store),
            ..self.clone()
        }
    }

    fn with_tools(self, tools: Registry) -> Self {
        let offers = offers(&tools);
        Self {
            offers_weight: history::weight_of_offers(&offers),
            offers,
            tools,
            ..self
        }
    }
}

/// Fills a prompt template: `{{name}}` by the value of that name, and `{{name:default}}` by the default where there is none. A
/// value that looks like a place stays as it is.
///
/// ```
/// use std::collections::BTreeMap;
///
/// let values = BTreeMap::from([("city", "Bergen")]);
/// let text = bantam::agent::fill("The weather in {{city}}, in {{unit:°C}}.", &values)?;
/// assert_eq!(text, "The weather in Bergen, in °C.");
/// # Ok::<(), bantam::error::Error>(())
/// ```
///
/// # Errors
/// Of the kind [`crate::error::Kind::Usage`]: a name has neither.
pub fn fill<'t>(template: &'t str, values: &BTreeMap<&str, &'t str>) -> Result<String> {
    let filled = crate::text::fill(template, |name| values.get(name).copied());
    filled.map_err(|name| Error::usage(format!("the template needs a value for {name}")))
}

/// About as many tokens as these messages and tools have in a request: three bytes are taken for one, which is more than most
/// texts have, and only the host can count them. It is what compaction goes by.
pub fn count_tokens(messages: &[Message], tools: &[ToolSpec]) -> u64 {
    history::weight(messages)
        + history::weight_of_offers(&tools.iter().map(offer).collect::<Vec<_>>())
}

fn offer(spec: &ToolSpec) -> ToolOffer {
    ToolOffer {
        name: spec.name.clone(),
        description: spec.description.clone(),
        schema: spec.schema.clone(),
    }
}

/// What requests say of these tools.
fn offers(tools: &Registry) -> Vec<ToolOffer> {
    tools.specs().map(offer).collect()
}
