//! How a turn ends: its last reply, its error, and what of it is stored.

use crate::bus::TurnStop;
use crate::error::{Error, Kind};
use crate::message::{Reply, Stop};
use crate::provider::ProviderError;
use crate::session::TurnEnd;
use crate::text::{clip, has_text};

/// The most bytes that are kept of a reply that broke off: an endless one would fill the window for ever.
const MOST_PARTIAL: usize = 64 << 10;

pub(super) struct Outcome {
    /// The last reply, not stored yet.
    pub reply: Option<Reply>,
    pub error: Option<Error>,
    /// The turn leaves no trace.
    pub undo: bool,
}

impl Outcome {
    /// A reply without calls. `limit` says why no further step is possible, if so.
    pub(super) fn of_reply(reply: Reply, limit: Option<Error>) -> Self {
        if !has_text(&reply.text) {
            return Self::of_error(match limit {
                Some(limit) => Error {
                    message: format!("{}, and the model gave no answer", limit.message),
                    ..limit
                },
                None => Error::failed("the model gave an empty answer")
                    .hint("ask again, or use another model (--model, /model)"),
            });
        }
        let error = limit.filter(|_| reply.stop != Stop::Length);
        Self {
            reply: Some(reply),
            error,
            undo: false,
        }
    }

    pub(super) fn of_error(error: Error) -> Self {
        Self {
            reply: None,
            error: Some(error),
            undo: false,
        }
    }

    /// A request that failed after the text `arrived`, of which the beginning is kept. The turn is undone if it is `unanswered` and was not asked, or was
    /// refused for good: sent again, it would be refused again.
    pub(super) fn of_failure(
        error: ProviderError,
        arrived: &str,
        model: &str,
        unanswered: bool,
    ) -> Self {
        use ProviderError::{Auth, BadRequest, Unasked};
        let undo = unanswered && matches!(error, Auth(_) | Unasked(_) | BadRequest(_));
        let is_refused = undo && matches!(error, BadRequest(_));
        let mut error = error.into_error(model);
        if is_refused {
            error
                .message
                .push_str("; the message is left out of the conversation from now on");
        }
        let text = clip(arrived, MOST_PARTIAL).to_owned();
        let reply = (!text.is_empty()).then(|| Reply {
            text,
            partial: true,
            ..Reply::default()
        });
        Self {
            reply,
            undo,
            error: Some(error),
        }
    }

    pub(super) fn stop(&self) -> TurnStop {
        match &self.error {
            None if self
                .reply
                .as_ref()
                .is_some_and(|reply| reply.stop == Stop::Length) =>
            {
                TurnStop::Length
            }
            None => TurnStop::Done,
            Some(e) if e.kind == Kind::Interrupted => TurnStop::Cancelled,
            Some(e) if e.kind == Kind::Limit => TurnStop::Limit,
            Some(_) => TurnStop::Error,
        }
    }

    pub(super) fn turn_end(&self) -> TurnEnd {
        match self.stop() {
            TurnStop::Done | TurnStop::Length => TurnEnd::Done,
            TurnStop::Limit if self.reply.as_ref().is_some_and(|r| !r.partial) => TurnEnd::Done,
            TurnStop::Cancelled => TurnEnd::Cancelled,
            TurnStop::Limit | TurnStop::Error => TurnEnd::Failed,
        }
    }
}
