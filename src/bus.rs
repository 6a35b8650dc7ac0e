//! The bus: what goes in to the dispatcher, what comes out of a turn, and the channels at both ends.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::{Image, Usage, add_cost};

/// Where a message came from and where its answer goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The channel's name: `cli`, `telegram`, `cron`.
    pub channel: String,
    /// The conversation within the channel.
    pub chat: String,
}

/// A thing for the dispatcher to act on.
#[derive(Clone)]
pub struct Inbound {
    pub origin: Origin,
    /// The conversation it belongs to, as its file is called: `cli_default`.
    pub session: String,
    pub text: String,
    pub attachments: Vec<Image>,
    pub kind: Kind,
    /// What its channel calls it, when it is kept there until it is answered; several when it was put together.
    pub ids: Vec<String>,
    pub ack: Option<Arc<dyn Ack>>,
    /// More of it is on its way.
    pub is_part: bool,
    /// The program ended while it was being answered: it is not answered beside others of that sort.
    pub is_alone: bool,
}

impl Inbound {
    /// A message that nobody keeps.
    pub fn message(origin: Origin, session: String, text: String) -> Self {
        Self {
            origin,
            session,
            text,
            attachments: Vec::new(),
            kind: Kind::Message,
            ids: Vec::new(),
            ack: None,
            is_part: false,
            is_alone: false,
        }
    }
}

/// What the dispatcher does with an [`Inbound`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message for the model.
    Message,
    /// What a background task came to, for the model.
    Report,
    /// Ends the turn that is under way, at once.
    Stop,
    /// Ends it, and begins a new conversation.
    New,
    /// Has another model answer in this conversation; empty to ask which one does.
    Model(String),
    /// How things are.
    Status,
    /// What was used.
    Usage,
}

/// A channel that keeps messages until they are answered, so that no crash loses one.
pub trait Ack: Send + Sync {
    /// Whether something that goes with these is to be fetched, which may take minutes.
    fn has_files(&self, _ids: &[String]) -> bool {
        false
    }

    /// A turn for these begins, which `cancel` stops. What goes with them is fetched: the text as it stands now, and images.
    /// `false`: it is not to begin, because the program is ending; they stay open.
    fn begin(
        &self,
        ids: &[String],
        origin: &Origin,
        text: &mut String,
        images: &mut Vec<Image>,
        cancel: &Cancel,
    ) -> bool;

    /// The turn is over and stored. Its answer is kept for delivery when this returns, and the messages are closed. `false`:
    /// it could not be kept, and they stay open.
    fn end(&self, ids: &[String], origin: &Origin, response: &Response) -> bool;

    /// The same for what needs no turn. An empty text says nothing.
    fn reply(&self, ids: &[String], origin: &Origin, text: &str) -> bool;
}

/// A thing for a channel to show.
#[derive(Clone, Debug)]
pub struct Outbound {
    pub origin: Origin,
    pub event: Event,
}

/// What happens during a turn. Events show; they never decide: dropping every one changes nothing that is stored.
#[derive(Clone, Debug)]
pub enum Event {
    /// The next piece of the answer's text.
    Delta(String),
    /// The text so far belonged to a step with tool calls, or to a try that is made again: it was not the answer.
    DeltasDiscarded,
    /// A tool call begins; one line for a person.
    ToolStarted {
        summary: String,
    },
    ToolFinished {
        name: String,
        ok: bool,
        ms: u64,
    },
    /// Something the user should know that is not part of the answer.
    Notice(String),
    /// What `-v` shows: retries, timings.
    Trace(String),
    /// So many background tasks have been begun in the conversation, and their reports not been answered yet.
    Background(usize),
    /// The turn is over and stored, for better or worse.
    Done(Box<Response>),
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TurnStop {
    Done,
    /// The reply ran into its token limit; what there is was given.
    Length,
    /// Steps or time ran out.
    Limit,
    Cancelled,
    #[default]
    Error,
}

impl TurnStop {
    /// The word for it in `--json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Length => "length",
            Self::Limit => "limit",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }
}

/// One tool call of a turn, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReport {
    pub name: String,
    pub ok: bool,
    /// Milliseconds from dispatch to result.
    pub ms: u64,
}

/// What a turn came to. Good and bad ends share it: a failed turn has an `error`, and still its output so far.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub output: String,
    /// The output broke off: it is in the session, marked so, and is no answer.
    pub partial: bool,
    pub session: String,
    /// `vendor/model`.
    pub model: String,
    pub stop: TurnStop,
    /// Requests answered by the model.
    pub steps: u32,
    pub tool_calls: Vec<CallReport>,
    pub usage: Usage,
    /// Of the calls whose price is known; `None` when there are none.
    pub cost: Option<f64>,
    /// Milliseconds from request to end.
    pub ms: u64,
    pub error: Option<Error>,
}

impl Response {
    /// This one and `next`, which came of it, as one; but for the time, which is that of `next`.
    pub fn join(&mut self, next: Self) {
        let before = std::mem::replace(self, next);
        if !before.output.is_empty() {
            let gap = if self.output.is_empty() { "" } else { "\n\n" };
            self.output = format!("{}{gap}{}", before.output.trim_end(), self.output);
        }
        if self.error.is_none() && before.error.is_some() {
            (self.error, self.stop) = (before.error, before.stop);
        }
        self.steps += before.steps;
        self.tool_calls.splice(..0, before.tool_calls);
        self.usage.add(before.usage);
        add_cost(&mut self.cost, before.cost);
    }
}

/// A way in and out: the terminal, Telegram.
///
/// Contract: `start` returns at once. The channel sends incoming messages to `inbound` and drops that when no more can come.
/// The sender it returns gets the events of all channels; it shows those of its own, and ends when that sender's clones are
/// gone.
pub trait Channel {
    /// # Errors
    /// It could not be started: there is no thread to be had, say.
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>>;
}
