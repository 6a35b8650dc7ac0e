//! Events of turns, an [`EventLog`] for those who read them later, and channels: where messages come from, and where answers are
//! shown.

mod events;
mod inbox;
mod pair;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind as ErrorKind, Result};
pub use crate::message::TurnStop;
use crate::message::{Media, Message, Usage, add_cost};
use crate::paths::session_name;

pub use events::{EventLog, Status};
pub use inbox::Inbox;
pub(crate) use inbox::{MessageStore, message_id};
pub use pair::channel;

/// Where a message came from and where its answer goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Origin {
    /// The channel's name: `cli`, `telegram`, `cron`.
    pub channel: String,
    /// The conversation within the channel.
    pub chat: String,
}

/// A message that needs an answer: what somebody wrote, a run of a job, or the report of a background task.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Inbound {
    /// Tells it from all others of its channel; a known one is not answered again. [`Inbox::add`] makes one if it is empty.
    #[serde(skip)]
    pub id: String,
    /// Where it comes from, and where its answer goes.
    pub origin: Origin,
    /// The key of its conversation: `cli_default`.
    pub session: String,
    /// What the user wrote.
    pub text: String,
    /// What came with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Media>,
    /// What to do instead of asking the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// The chat that its answer is sent to, `telegram:CHAT`. `None`: the answer is only an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reply_to: Option<String>,
    /// The model that answers; empty for the one of the conversation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) model: String,
    pub(crate) source: Source,
    /// Turns of it that never ended.
    #[serde(skip)]
    pub(crate) starts: u32,
    /// A turn of it has begun at some time, so its conversation may have it.
    #[serde(skip)]
    pub(crate) has_begun: bool,
}

impl Inbound {
    /// A message for the model.
    pub fn message(origin: Origin, session: String, text: String) -> Self {
        Self {
            origin,
            session,
            text,
            ..Self::default()
        }
    }

    /// A line that somebody wrote in a chat of a channel: `/stop`, `/new` and `/status` are commands, all else is for the model.
    /// The key of its conversation is made from both names, escaped so that no two chats share one.
    ///
    /// ```
    /// use bantam::{Command, Inbound};
    ///
    /// let message = Inbound::line("tcp", "ada", "/stop")?;
    /// assert_eq!((message.session.as_str(), message.command), ("tcp_ada", Some(Command::Stop)));
    /// assert_eq!(Inbound::line("tcp", "../ada", "Hello!")?.session, "tcp_%2E%2E%2Fada");
    /// # Ok::<(), bantam::Error>(())
    /// ```
    ///
    /// # Errors
    /// Of the kind [`crate::error::Kind::Usage`]: `channel` is empty or has other characters than letters, digits and `-`;
    /// `chat` is empty, or too long for a key.
    pub fn line(channel: &str, chat: &str, text: impl Into<String>) -> Result<Self> {
        // The key joins both by `_`: one within the channel could make two chats one.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if channel.is_empty() || !channel.chars().all(is_plain) {
            return Err(Error::usage(format!(
                "a channel is named by letters, digits and `-`, and not {channel:?}"
            )));
        }
        let (session, text) = (session_name(channel, chat)?, text.into());
        let origin = Origin {
            channel: channel.to_owned(),
            chat: chat.to_owned(),
        };
        let command = match text.trim() {
            "/stop" => Some(Command::Stop),
            "/new" => Some(Command::New),
            "/status" => Some(Command::Status),
            _ => None,
        };
        Ok(Self {
            command,
            ..Self::message(origin, session, text)
        })
    }

    /// Whether a turn can answer it together with others of its chat.
    pub(crate) fn is_plain(&self) -> bool {
        let is_of_user = matches!(self.source, Source::Channel | Source::Telegram { .. });
        is_of_user && self.command.is_none() && !self.has_begun
    }

    /// The files to fetch before its turn.
    pub(crate) fn files(&self) -> &[RemoteFile] {
        match &self.source {
            Source::Telegram { files, .. } => files,
            _ => &[],
        }
    }
}

/// Who added a message.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// A channel of a program.
    #[default]
    Channel,
    Telegram {
        /// The numbers of the bot, of the user who wrote, and of the message in its chat.
        bot: i64,
        user: i64,
        message: i64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        files: Vec<RemoteFile>,
        /// It belongs to an album, or is a text that the client has split.
        more_follows: bool,
    },
    Job(JobRun),
    /// A background task, whose report the text is.
    Task,
}

/// A run of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct JobRun {
    /// The id of the job.
    pub job: String,
    /// Its name, for when it is gone.
    pub name: String,
    /// When the run began, in milliseconds since 1970; with the job's id, its name in the record.
    pub at: i64,
    /// The conversation is emptied before it.
    pub is_fresh: bool,
}

/// A file that Telegram keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RemoteFile {
    pub id: String,
    pub name: String,
    /// Its kind and duration.
    pub about: String,
    /// In bytes; 0 when Telegram does not say.
    pub size: u64,
    /// Audio or video, never text.
    #[serde(rename = "media")]
    pub is_media: bool,
}

/// What a message wants that is not for the model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Command {
    /// Ends the running turn at once.
    Stop,
    /// Ends the running turn and starts a new conversation.
    New,
    /// Shows the status.
    Status,
    /// Takes back the last question, its answer, and the files that its file tools changed. Only `bantam` has it, not
    /// [`serve`](crate::serve()), nor those below.
    Undo,
    /// Changes the model of this conversation, or shows it if empty.
    Model(String),
    /// Shows token usage.
    Usage,
    /// Lists the commands.
    Help,
}

/// An event for a channel to show.
#[derive(Clone, Debug)]
pub struct Outbound {
    /// The conversation that it is for.
    pub origin: Origin,
    /// What to show.
    pub event: Event,
}

impl Outbound {
    /// The text to show in a channel that shows only texts: an answer, or why there is none, and what the user should know.
    pub fn text(&self) -> Option<String> {
        match &self.event {
            Event::Done(response) => Some(match &response.error {
                None => response.output.clone(),
                Some(e) if response.output.is_empty() => e.message.clone(),
                Some(e) => format!("{}\n[{}]", response.output, e.message),
            }),
            Event::Notice(text) | Event::Warning(text) => Some(text.clone()),
            _ => None,
        }
    }
}

/// What happens during a turn. Events show; they never decide: dropping every one changes nothing that is stored.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The turn of a message begins that [`serve`](crate::serve()) keeps. [`Agent::run`](crate::agent::Agent::run) never sends it.
    TurnStarted,
    /// The next piece of the answer's text.
    Delta(String),
    /// The next piece of the model's thoughts, if its host sends them.
    Thought(String),
    /// The text so far is not the answer: the model said this beside tool calls.
    Progress(String),
    /// A tool call begins; one line for a person.
    ToolStarted {
        /// The tool's name, and what the call is about.
        summary: String,
    },
    /// The last line that a running command has printed, from time to time.
    ToolOutput(String),
    /// A tool call is over.
    ToolFinished {
        /// The tool's name.
        name: String,
        /// It succeeded.
        ok: bool,
        /// Milliseconds from dispatch to result.
        ms: u64,
    },
    /// A call has changed a file: the lines that it removed, prefixed with `-`, and those that it added, prefixed with `+`.
    FileDiff(Vec<String>),
    /// Something the user should know that is not part of the answer.
    Notice(String),
    /// Something is broken, and the user should fix it. Shown in a pipe, too.
    Warning(String),
    /// What `-v` shows: retries, timings.
    Trace(String),
    /// How many background tasks of the conversation are not answered yet.
    Background(usize),
    /// The turn is over and stored, whether it succeeded or not. [`serve`](crate::serve()) and [`EventLog::end`] send it;
    /// [`Agent::run`](crate::agent::Agent::run) returns its response instead.
    Done(Box<Response>),
}

/// One tool call of a turn, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallReport {
    /// The tool's name.
    pub name: String,
    /// It succeeded.
    pub ok: bool,
    /// Milliseconds from dispatch to result.
    pub ms: u64,
}

/// The result of a turn. A failed one has an `error`, and still its output so far.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The answer, or as much of it as arrived.
    pub output: String,
    /// The output broke off: the session stores it, marked as partial, and it is not an answer.
    pub partial: bool,
    /// The key of its conversation.
    pub session: String,
    /// The messages of the turn, as the next one will see them: the question, replies and results. Empty if the turn could not
    /// begin, left no trace, or was over already.
    pub stored: Vec<Message>,
    /// The ids of the messages that it answers, as far as its conversation has them.
    pub(crate) answered: Vec<String>,
    /// The metadata of its request.
    pub metadata: BTreeMap<String, String>,
    /// `vendor/model`.
    pub model: String,
    /// How it ended.
    pub stop: TurnStop,
    /// Requests answered by the model.
    pub steps: u32,
    /// The tool calls, in the order of their results.
    pub tool_calls: Vec<CallReport>,
    /// Of all its requests, including those of its subagents, as hosts count them: most count at the end of a reply, so one that
    /// was stopped or broke off is not in it.
    pub usage: Usage,
    /// The cost in dollars of the calls whose price and usage are known; `None` if there are none.
    pub cost: Option<f64>,
    /// Milliseconds from request to end.
    pub ms: u64,
    /// What its conversation has lost since the last turn, in sentences: it was damaged on disk, or too large and began anew.
    pub lost: Vec<String>,
    /// What went wrong, if something did.
    pub error: Option<Error>,
}

impl Response {
    /// Of a turn that could not begin.
    pub(crate) fn failed(session: &str, e: Error) -> Self {
        let stop = match e.kind {
            ErrorKind::Interrupted => TurnStop::Cancelled,
            ErrorKind::Limit => TurnStop::Limit,
            _ => TurnStop::Error,
        };
        Self {
            session: session.to_owned(),
            stop,
            error: Some(e),
            ..Self::default()
        }
    }

    /// The answer as a chat shows it: one that was cut says so.
    pub(crate) fn answer_for_chat(&self) -> String {
        let answer = self.output.trim();
        if self.stop == TurnStop::Length && !answer.is_empty() {
            return format!("{answer}\n\n⚠️ The answer was cut at max_tokens.");
        }
        answer.to_owned()
    }

    /// Adds `next`, which followed from this one. The time is that of `next`.
    pub(crate) fn join(&mut self, next: Self) {
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
        self.stored.splice(..0, before.stored);
        self.lost.splice(..0, before.lost);
        self.usage.add(before.usage);
        add_cost(&mut self.cost, before.cost);
    }
}

/// Brings messages in and shows events: the terminal, Telegram.
///
/// Contract: `start` returns at once. The channel adds messages to `inbox`, and drops it when no more can come. The sender that
/// it returns gets the events of all channels; it shows those of its own, and ends when all clones of it are dropped.
/// [`channel`] makes one from two functions.
pub trait Channel: Send {
    /// # Errors
    /// It cannot start, for example because no thread can be created.
    fn start(self: Box<Self>, inbox: Inbox) -> Result<Sender<Outbound>>;

    /// What [`serve`](crate::serve()) waits for before it returns: the channel drops the other end after it has shown the last
    /// event. An error sent through it ends serving, because then it is unknown what was shown or read. Called before `start`.
    /// Default: `None`, so the last events may be lost.
    fn drained(&mut self) -> Option<Receiver<Error>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_chats_of_channels_have_the_same_conversation() {
        let key = |channel, chat| Inbound::line(channel, chat, "Hello!").map(|line| line.session);
        assert_eq!(key("a", "b_c").unwrap(), "a_b_c");
        assert_eq!(key("tcp-2", "c").unwrap(), "tcp-2_c");
        for channel in ["", "a_b", "../x", "tcp.v1", "a b"] {
            let e = key(channel, "c").unwrap_err();
            assert_eq!(e.kind, ErrorKind::Usage, "{channel}");
        }
    }
}
