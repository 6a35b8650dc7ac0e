//! What a turn is asked to do.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::prompt::Prompt;
use super::{Budget, Cancel, Confirm, Tasks};
use crate::bus::Origin;
use crate::error::{Error, Result};
use crate::message::{Media, Message, User, UserKind};
use crate::provider::Sampling;
use crate::session::{LIBRARY, MAX_TITLE, fresh_key};
use crate::text::{one_line, rfc3339};

/// One turn to run.
#[derive(Clone)]
pub struct Request {
    /// The user's message.
    pub input: String,
    /// The title that lists show for a conversation that begins with this message; empty: the message.
    pub title: String,
    /// Images, PDF files and recordings that go with the message.
    pub media: Vec<Media>,
    /// The key of the conversation to continue, for example `ada`. Empty: a new one, whose key is in [`crate::Response::session`]. A
    /// store may refuse a key: [`crate::FileStore`] refuses one with a slash or a dot; [`crate::session_key`] makes one
    /// of any text.
    pub session: String,
    /// The messages before this one, if the caller keeps the conversation: then nothing is stored, and `session` is only a name.
    pub history: Option<Vec<Message>>,
    /// Where the message comes from; tools and the ledger see it.
    pub origin: Origin,
    /// Your id of the message; several if it joins several. If the last turn of the conversation has one of them, it is resumed; if
    /// it is over, its answer is returned again. An older id is not looked for: its turn would run again.
    pub ids: Vec<String>,
    /// Passed to tools as [`crate::tool::CallContext::metadata`]; the model does not see it.
    pub metadata: BTreeMap<String, String>,
    /// The model to ask first, by its name (`vendor/model`); empty for the one of the conversation, else the agent's first.
    pub model: String,
    /// Overrides the models' own settings for the requests of this turn.
    pub sampling: Sampling,
    /// Stops the turn.
    pub cancel: Cancel,
    /// The budget, if other turns share it; without one, the turn has its own.
    pub budget: Option<Arc<Budget>>,
    /// Asks the user about the calls that [`crate::agent::Builder::confirm`] or `tools.confirm` names; `None` if nobody can be asked.
    pub confirm: Option<Arc<Confirm>>,
    /// Runs tasks that tools start without waiting for them; `None` if there can be none.
    pub tasks: Option<Tasks>,
    /// Gives the messages that have arrived since its last call. The turn takes them in before its next request, behind the
    /// results of its calls. It does not ask before the last request, which has no tools.
    pub steering: Option<Arc<Steering>>,
}

/// A user's message for a turn that runs.
#[derive(Clone, Debug)]
pub struct ReceivedMessage {
    /// Your id of the message.
    pub id: String,
    /// What the user wrote.
    pub text: String,
}

/// Gives the messages that have arrived since its last call.
pub type Steering = dyn Fn() -> Vec<ReceivedMessage> + Send + Sync;

impl Request {
    /// A turn of the channel `library`, with no way to stop it.
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
            history: None,
            origin,
            ids: Vec::new(),
            metadata: BTreeMap::new(),
            model: String::new(),
            sampling: Sampling::default(),
            cancel: Cancel::new(None),
            budget: None,
            confirm: None,
            tasks: None,
            steering: None,
        }
    }

    /// The same; a new conversation where it names none.
    pub(super) fn with_key(&self) -> Cow<'_, Self> {
        let mut request = Cow::Borrowed(self);
        if request.session.is_empty() {
            request.to_mut().session = format!("{LIBRARY}_{}", fresh_key(SystemTime::now()));
        }
        request
    }

    /// Refuses a request that no turn can begin with.
    pub(super) fn check(&self) -> Result<()> {
        if self.input.trim().is_empty() && self.media.is_empty() && self.ids.is_empty() {
            return Err(Error::usage("the message is empty"));
        }
        Ok(())
    }

    /// The user's message as it is stored.
    pub(super) fn message(&self, prompt: &Prompt, now: SystemTime) -> User {
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
            ids: self.ids.clone(),
            kind: UserKind::Question,
            notes: String::new(),
        }
    }
}
