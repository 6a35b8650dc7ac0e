//! The request for a turn.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use super::prompt::Prompt;
use super::{Budget, Cancel, Confirm, Tasks};
use crate::bus::{Inbound, Origin};
use crate::error::{Error, Result};
use crate::message::{Media, Message, User, UserKind};
use crate::provider::Sampling;
use crate::session::{LIBRARY, MAX_TITLE, fresh_key};
use crate::text::{rfc3339, to_single_line};

/// One turn to run.
#[derive(Clone, Default)]
pub struct Request {
    /// The user's message.
    pub input: String,
    /// Title of a conversation that begins with this message, for lists; if empty, the message.
    pub title: String,
    /// Images, PDF files and recordings that go with the message.
    pub media: Vec<Media>,
    /// Key of the conversation to continue, such as `ada`. If empty, a new one, whose key is in [`crate::Response::session`]. A
    /// store may refuse a key: [`crate::FileStore`] refuses a slash or a dot. [`crate::session_key`] makes a key from any text.
    pub session: String,
    /// Messages before this one, if the caller stores the conversation. The turn is not stored then; `session` is only a name.
    pub history: Option<Vec<Message>>,
    /// Source of the message, for tools and the ledger.
    pub origin: Origin,
    /// Your id of the message, or several if it joins several messages. If the last turn of the conversation contains one of
    /// them, it is resumed, or its answer is returned again. Older ids are not recognized, so their turn would run again.
    pub ids: Vec<String>,
    /// Passed to tools as [`crate::tool::CallContext::metadata`]; invisible to the model.
    pub metadata: BTreeMap<String, String>,
    /// Name of the model to ask first (`vendor/model`); if empty, the conversation's model, or else the agent's first one.
    pub model: String,
    /// Overrides the models' own settings for the requests of this turn.
    pub sampling: Sampling,
    /// Stops the turn.
    pub cancel: Cancel,
    /// Budget shared with other turns; if `None`, the turn has its own.
    pub budget: Option<Arc<Budget>>,
    /// Asks the user about calls in [`crate::agent::Builder::confirm`] or `tools.confirm`; `None` if this is not possible.
    pub confirm: Option<Arc<Confirm>>,
    /// Runs background tasks that tools start; `None` if this is not possible.
    pub tasks: Option<Tasks>,
    /// Returns messages that have arrived since its last call. The turn adds them before its next request, except in the second
    /// half of its steps.
    pub steering: Option<Arc<Steering>>,
}

/// Returns the messages that have arrived since its last call. Its argument stops the request that comes next: the turn then
/// gets the messages that arrived, and asks again with them.
pub type Steering = dyn Fn(&Cancel) -> Vec<Inbound> + Send + Sync;

impl Request {
    /// Creates a turn of the channel `library` that cannot be stopped.
    pub fn new(input: impl Into<String>, session: impl Into<String>) -> Self {
        let session = session.into();
        let origin = Origin {
            channel: "library".to_owned(),
            chat: session.clone(),
        };
        Self {
            input: input.into(),
            session,
            origin,
            ..Self::default()
        }
    }

    /// Returns the request, with a fresh session key if it has none.
    pub(super) fn with_key(&self) -> Cow<'_, Self> {
        let mut request = Cow::Borrowed(self);
        if request.session.is_empty() {
            request.to_mut().session = format!("{LIBRARY}_{}", fresh_key(SystemTime::now()));
        }
        request
    }

    /// Returns an error if a turn cannot begin with this request.
    pub(super) fn check(&self) -> Result<()> {
        if self.input.trim().is_empty() && self.media.is_empty() && self.ids.is_empty() {
            return Err(Error::usage("the message is empty"));
        }
        Ok(())
    }

    /// Returns the user's message as stored.
    pub(super) fn message(&self, prompt: &Prompt, now: SystemTime) -> User {
        let (content, media) = (prompt.expand_skill(&self.input), self.media.clone());
        let (time, local_time) = (rfc3339(now), prompt.local_time(now));
        let is_expanded = self.title.is_empty() && content != self.input;
        let title = if is_expanded {
            &self.input
        } else {
            &self.title
        };
        User {
            title: to_single_line(title, MAX_TITLE),
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
