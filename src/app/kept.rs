//! The kept messages that a former run of the program left: which conversation is next, and when.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result};
use crate::pace::paced;

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
struct Line {
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
pub(super) struct Lines {
    lines: Mutex<Vec<Line>>,
    released: Condvar,
}

impl Lines {
    /// Returns how many conversations there are.
    pub(super) fn fill(&self, messages: impl IntoIterator<Item = Waiting>) -> usize {
        let mut lines = self.lock();
        for message in messages {
            if let Some(line) = lines.iter_mut().find(|line| line.key == message.key) {
                line.messages.push_back(message);
                continue;
            }
            lines.push(Line {
                key: message.key.clone(),
                messages: VecDeque::from([message]),
                due: Instant::now(),
                pause: paced(FIRST_PAUSE),
                is_taken: false,
            });
        }
        lines.len()
    }

    /// Takes the message whose turn is due, or tells how long to wait for one.
    pub(super) fn next(&self) -> Next {
        let mut lines = self.lock();
        let now = Instant::now();
        let free = lines.iter_mut().filter(|line| !line.is_taken);
        let Some(line) = free.min_by_key(|line| line.due) else {
            // Whoever has taken a line may put it off.
            if lines.is_empty() {
                return Next::Nothing;
            }
            return Next::Wait(paced(FIRST_PAUSE));
        };
        let left = line.due.saturating_duration_since(now);
        match line.messages.front() {
            Some(message) if left.is_zero() => {
                line.is_taken = true;
                Next::Work(message.clone())
            }
            _ => Next::Wait(left.min(paced(FIRST_PAUSE))),
        }
    }

    /// Takes the oldest message of this conversation, due or not. Waits while another has it.
    pub(super) fn take(&self, key: &str) -> Result<Option<Waiting>> {
        let is_taken =
            |lines: &mut Vec<Line>| lines.iter().any(|line| line.key == key && line.is_taken);
        let waited = self
            .released
            .wait_timeout_while(self.lock(), paced(LONGEST_WAIT), is_taken);
        let (mut lines, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            let text = "an older message of this conversation is still being answered";
            return Err(Error::new(Kind::Busy, text));
        }
        let line = lines.iter_mut().find(|line| line.key == key);
        Ok(line.and_then(|line| {
            line.is_taken = true;
            line.messages.front().cloned()
        }))
    }

    /// Gives a conversation back after an attempt at its oldest message, which has an end or is put off.
    pub(super) fn release(&self, key: &str, has_end: bool) {
        let mut lines = self.lock();
        for line in lines.iter_mut().filter(|line| line.key == key) {
            line.is_taken = false;
            line.due = Instant::now();
            if has_end {
                line.messages.pop_front();
                line.pause = paced(FIRST_PAUSE);
            } else {
                line.due += line.pause;
                line.pause = (line.pause * 2).min(paced(LONGEST_PAUSE));
            }
        }
        lines.retain(|line| !line.messages.is_empty());
        self.released.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
