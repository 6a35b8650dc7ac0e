//! The kept messages that a former run of the program left: which conversation is next, and when.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::test_speed::paced;

/// Between two attempts at a turn whose model cannot be reached: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// How long a new message waits for the attempt at an older one, as it does for any other turn of its conversation.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// A message that waits for an attempt. Its text and media stay in the queue.
#[derive(Clone)]
pub(super) struct Waiting {
    pub id: String,
    pub key: String,
    /// How often it was started by former runs of the program.
    pub starts: u32,
    /// When it came, in seconds since 1970.
    pub since: u64,
}

/// The messages of one conversation, the oldest first.
struct Conversation {
    key: String,
    messages: VecDeque<Waiting>,
    due: Instant,
    pause: Duration,
    is_taken: bool,
}

pub(super) enum Next {
    Work(Waiting),
    Wait(Duration),
    Nothing,
}

#[derive(Default)]
pub(super) struct Backlog {
    conversations: Mutex<Vec<Conversation>>,
    released: Condvar,
}

impl Backlog {
    /// Returns how many conversations there are.
    pub(super) fn fill(&self, messages: impl IntoIterator<Item = Waiting>) -> usize {
        let mut conversations = self.lock();
        for message in messages {
            if let Some(conversation) = conversations
                .iter_mut()
                .find(|conversation| conversation.key == message.key)
            {
                conversation.messages.push_back(message);
                continue;
            }
            conversations.push(Conversation {
                key: message.key.clone(),
                messages: VecDeque::from([message]),
                due: Instant::now(),
                pause: paced(FIRST_PAUSE),
                is_taken: false,
            });
        }
        conversations.len()
    }

    /// Takes the message whose turn is due, or tells how long to wait for one.
    pub(super) fn next(&self) -> Next {
        let mut conversations = self.lock();
        let now = Instant::now();
        let free = conversations
            .iter_mut()
            .filter(|conversation| !conversation.is_taken);
        let Some(conversation) = free.min_by_key(|conversation| conversation.due) else {
            // Whoever has taken a conversation may put it off.
            if conversations.is_empty() {
                return Next::Nothing;
            }
            return Next::Wait(paced(FIRST_PAUSE));
        };
        let left = conversation.due.saturating_duration_since(now);
        match conversation.messages.front() {
            Some(message) if left.is_zero() => {
                conversation.is_taken = true;
                Next::Work(message.clone())
            }
            _ => Next::Wait(left.min(paced(FIRST_PAUSE))),
        }
    }

    /// Takes the oldest message of this conversation, due or not. Waits while another has it.
    pub(super) fn take(&self, key: &str) -> Result<Option<Waiting>> {
        let is_taken = |conversations: &mut Vec<Conversation>| {
            conversations
                .iter()
                .any(|conversation| conversation.key == key && conversation.is_taken)
        };
        let waited = self
            .released
            .wait_timeout_while(self.lock(), paced(LONGEST_WAIT), is_taken);
        let (mut conversations, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let text = "an older message of this conversation is still being answered";
            return Err(Error::new(Kind::Busy, text));
        }
        let conversation = conversations
            .iter_mut()
            .find(|conversation| conversation.key == key);
        Ok(conversation.and_then(|conversation| {
            conversation.is_taken = true;
            conversation.messages.front().cloned()
        }))
    }

    /// Gives a conversation back after an attempt at its oldest message, which has an end or is put off.
    pub(super) fn release(&self, key: &str, has_end: bool) {
        let mut conversations = self.lock();
        for conversation in conversations
            .iter_mut()
            .filter(|conversation| conversation.key == key)
        {
            conversation.is_taken = false;
            conversation.due = Instant::now();
            if has_end {
                conversation.messages.pop_front();
                conversation.pause = paced(FIRST_PAUSE);
            } else {
                conversation.due += conversation.pause;
                conversation.pause = (conversation.pause * 2).min(paced(LONGEST_PAUSE));
            }
        }
        conversations.retain(|conversation| !conversation.messages.is_empty());
        self.released.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Conversation>> {
        self.conversations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
