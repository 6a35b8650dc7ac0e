//! Messages, events of turns, and channels, which receive messages and show answers.

mod inbox;
mod waiting;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cancel::Cancel;
use crate::error::{Error, Kind as ErrorKind, Result};
pub use crate::message::TurnStop;
use crate::message::{Media, Message, Usage, add_cost};
use crate::paths::session_name;

pub use inbox::Inbox;
pub(crate) use inbox::Work;

/// Source of a message, and destination of its answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct Origin {
    /// The channel's name: `cli`, `telegram`, `cron`.
    pub channel: String,
    /// The conversation within the channel.
    pub chat: String,
}

impl Origin {
    /// Returns the destination of an answer, `CHANNEL:CHAT`.
    fn address(&self) -> String {
        format!("{}:{}", self.channel, self.chat)
    }
}

/// A message that needs an answer: a user's message, a run of a job, or the report of a background task.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Inbound {
    /// Unique within its channel; a known id is not answered again. [`Inbox::add`] fills in an empty one.
    #[serde(skip)]
    pub id: String,
    /// Source of the message, and destination of its answer.
    pub origin: Origin,
    /// Key of its conversation, such as `cli_default`.
    pub session: String,
    /// Text of the user.
    pub text: String,
    /// Attached media.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub media: Vec<Media>,
    /// Command to run instead of asking the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
    /// Destination of the answer, `CHANNEL:CHAT`. `None` reports the answer only as an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reply_to: Option<String>,
    /// Model that answers; empty for the conversation's model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) model: String,
    pub(crate) source: Source,
    /// Open question to the owner about a call of its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) question: Option<Question>,
    /// Turns of it that never ended, because the program died.
    #[serde(skip)]
    pub(crate) starts: u32,
    /// A turn of it has begun at some time, so its conversation may contain it.
    #[serde(skip)]
    pub(crate) has_begun: bool,
    /// It is a `/stop` that has stopped a turn.
    #[serde(skip)]
    pub(crate) has_stopped: bool,
}

impl Inbound {
    /// Creates a message for the model.
    pub fn message(origin: Origin, session: String, text: String) -> Self {
        Self {
            reply_to: Some(origin.address()),
            origin,
            session,
            text,
            ..Self::default()
        }
    }

    /// Creates a message from a line typed in a chat of a channel. `/stop`, `/new` and `/status` are commands; other text is
    /// for the model. The key of its conversation is made from both names, escaped so that different chats have different keys.
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
    /// Returns an error of the kind [`crate::error::Kind::Usage`] if `channel` is empty or has characters other than letters,
    /// digits and `-`, or if `chat` is empty or too long for a key.
    pub fn line(channel: &str, chat: &str, text: impl Into<String>) -> Result<Self> {
        // The key joins both names by `_`; an underscore in `channel` could make two chats share a key.
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

    /// Whether one turn can answer it together with other messages of its chat.
    fn is_plain(&self) -> bool {
        let is_of_user = matches!(self.source, Source::Channel | Source::Telegram(_));
        // Without a command of this name, it is refused.
        let is_command = self.command.is_some() || self.text.starts_with('/');
        is_of_user && !is_command && !self.has_begun
    }

    /// Returns the data of a message from Telegram.
    pub(crate) fn written(&self) -> Option<&TelegramMessage> {
        match &self.source {
            Source::Telegram(written) => Some(written),
            _ => None,
        }
    }

    /// Returns the number of a message from Telegram in its chat.
    fn number(&self) -> Option<i64> {
        self.written().map(|written| written.message)
    }

    /// Whether there is a sign that more of it follows.
    fn more_follows(&self) -> bool {
        self.written().is_some_and(|written| written.more_follows)
    }

    /// Returns the files to fetch before its turn.
    pub(crate) fn files(&self) -> &[RemoteFile] {
        self.written().map_or(&[], |written| &written.files)
    }
}

/// Origin of a message.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    /// A channel that a program implements.
    #[default]
    Channel,
    Telegram(TelegramMessage),
    Job(JobRun),
    /// A background task; the text is its report.
    Task,
}

/// A message that a user wrote in Telegram.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct TelegramMessage {
    /// Ids of the user who wrote it, and of the message in its chat.
    pub user: i64,
    pub message: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<RemoteFile>,
    /// It belongs to an album, is part of a text that the client has split, or is a forwarded message, which its comment may
    /// follow.
    pub more_follows: bool,
}

/// A question whether a turn may make a call. It survives a restart with its message.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Question {
    /// Part of the data of its buttons.
    pub id: String,
    /// Id of the call.
    pub call: String,
    /// Markdown.
    pub text: String,
    /// Id of the user who may answer, and of their private chat.
    pub owner: i64,
    /// Whether "No" is the only answer, because the question does not show the whole call.
    pub only_no: bool,
    /// Time of the question, in milliseconds since 1970.
    pub asked: u64,
    /// Number of the message with the buttons; 0 until it is sent.
    pub message: i64,
    pub answer: Option<Decision>,
}

/// The user's decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// Allow this call.
    Yes,
    /// Allow this tool in this conversation from now on.
    Always,
    /// Refuse this call. The model gets a result that the user declined.
    No,
    /// No decision, because the user did not answer in time or could not be asked, or the turn was stopped.
    Unanswered,
}

/// A run of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct JobRun {
    /// Id of the job.
    pub job: String,
    /// Name of the job, for display after the job is deleted.
    pub name: String,
    /// When the run was due, in milliseconds since 1970.
    pub due: i64,
    /// When it was started, in milliseconds since 1970; together with the job's id, the key of its record.
    pub at: i64,
}

/// A file on Telegram's servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RemoteFile {
    pub id: String,
    pub name: String,
    /// Kind and duration of the file.
    pub about: String,
    /// Size in bytes; 0 if unknown.
    pub size: u64,
    /// Audio or video, which is never read as text.
    #[serde(rename = "media")]
    pub is_media: bool,
}

/// An action that needs no model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Command {
    /// Ends the running turn immediately.
    Stop,
    /// Ends the running turn and starts a new conversation.
    New,
    /// Shows the status.
    Status,
    /// Undoes the last question, its answer, and the changes of its file tools. Only `bantam` supports this command and the
    /// following ones, [`serve`](crate::serve()) does not.
    Undo,
    /// Changes the model of this conversation, or shows it if empty.
    Model(String),
    /// Shows token usage.
    Usage,
    /// Lists the commands.
    Help,
}

/// Progress of a turn. Events are only for display, so dropping them all changes no stored data.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The turn of a message begins. Only [`serve`](crate::serve()) sends it, not [`Agent::run`](crate::agent::Agent::run).
    TurnStarted,
    /// The next piece of the answer's text.
    Delta(String),
    /// The next piece of the model's reasoning, if its host sends it.
    Thought(String),
    /// The text so far is not the answer, but came with tool calls.
    Progress(String),
    /// A tool call begins; one line for a person.
    ToolStarted {
        /// The tool's name and the subject of the call.
        summary: String,
    },
    /// A tool call has ended.
    ToolFinished {
        /// The tool's name.
        name: String,
        /// Whether the call succeeded.
        ok: bool,
        /// Milliseconds from dispatch to result.
        ms: u64,
    },
    /// A call has changed a file: the removed lines, prefixed with `-`, and the added lines, prefixed with `+`.
    FileDiff(Vec<String>),
    /// Information for the user that is not part of the answer.
    Notice(String),
    /// A problem that the user should fix. Also shown in a pipe.
    Warning(String),
    /// Details for `-v`: retries, timings.
    Trace(String),
    /// Number of unanswered background tasks of the conversation.
    Background(usize),
    /// The turn has ended and is stored, whether it succeeded or not. Only [`serve`](crate::serve()) sends it;
    /// [`Agent::run`](crate::agent::Agent::run) returns its response instead.
    Done(Box<Response>),
}

/// One tool call of a turn, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallReport {
    /// The tool's name.
    pub name: String,
    /// Whether the call succeeded.
    pub ok: bool,
    /// Milliseconds from dispatch to result.
    pub ms: u64,
}

/// The result of a turn. A failed turn has an `error`, and also its output so far.
#[derive(Clone, Debug, Default)]
pub struct Response {
    /// The answer, or the part of it that arrived.
    pub output: String,
    /// The output broke off. The session stores it, marked as partial, but it is not an answer.
    pub partial: bool,
    /// Key of its conversation.
    pub session: String,
    /// Messages of the turn, as the next turn will see them: the question, replies and results. Empty if the turn could not
    /// begin, left no trace, or had ended earlier.
    pub stored: Vec<Message>,
    /// Ids of the messages that it answers, as far as its conversation contains them.
    pub(crate) answered: Vec<String>,
    /// Metadata of its request.
    pub metadata: BTreeMap<String, String>,
    /// `vendor/model`.
    pub model: String,
    /// How the turn ended.
    pub stop: TurnStop,
    /// Number of requests that the model answered.
    pub steps: u32,
    /// Tool calls, in the order of their results.
    pub tool_calls: Vec<CallReport>,
    /// Usage of all requests, including subagents, as counted by hosts. Most hosts count at the end of a reply, so stopped and
    /// interrupted replies are missing.
    pub usage: Usage,
    /// Cost in dollars of the calls with a known price and usage; `None` without such calls.
    pub cost: Option<f64>,
    /// Milliseconds from request to end.
    pub ms: u64,
    /// Sentences about data that the conversation has lost since the last turn, because it was damaged on disk or too large.
    pub lost: Vec<String>,
    /// The reason for a failure.
    pub error: Option<Error>,
}

impl Response {
    /// Creates the response of a turn that could not begin.
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

    /// Returns the answer for a chat, with a note if it was cut.
    pub(crate) fn answer_for_chat(&self) -> String {
        let answer = self.output.trim();
        if self.stop == TurnStop::Length && !answer.is_empty() {
            return format!("{answer}\n\n⚠️ The answer was cut.");
        }
        answer.to_owned()
    }

    /// Adds `next`, a turn that followed from this one. The time is that of `next`.
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

/// A source of messages and destination of answers, such as Telegram.
///
/// Its messages have [`Origin::channel`] set to its name ([`Inbound::line`]). An answer is on disk from the end of its turn until
/// [`Channel::deliver`] returns `Ok`, also over a crash, so each is delivered at least once.
pub trait Channel: Send + Sync {
    /// Returns the channel's name, of letters, digits and `-`.
    fn name(&self) -> &str;

    /// Adds messages to `inbox`, on a separate thread. Returns after the last message, or soon after `cancel` is stopped.
    ///
    /// # Errors
    /// An error stops all channels, and [`serve`](crate::serve()) returns it.
    fn poll(&self, inbox: &Inbox, cancel: &Cancel) -> Result<()>;

    /// Delivers an answer, a reply to a command or a notice, in Markdown, to a chat. The texts of a chat come in order.
    ///
    /// # Errors
    /// After an error, the same text is delivered again later.
    fn deliver(&self, chat: &str, text: &str) -> Result<()>;

    /// Shows the progress of a chat's turn. Must return soon.
    fn show(&self, _chat: &str, _event: &Event) {}
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
