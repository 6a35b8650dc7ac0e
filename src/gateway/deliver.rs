//! Delivers what is posted to the channels of a program, at least once. The Telegram bot has a sender of its own, for pieces,
//! files and buttons.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::bus::Channel;
use crate::error::contained;
use crate::log::{Level, Logger};
use crate::outbox::{Outbox, Pending};
use crate::sync;
use crate::tries::Tries;

/// Pauses after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Wakes the threads that deliver.
#[derive(Clone, Default)]
pub(crate) struct Deliveries(Arc<(Mutex<State>, Condvar)>);

#[derive(Default)]
struct State {
    /// Counts the messages that were posted.
    posted: u64,
    /// Whether nothing more will be posted.
    is_over: bool,
}

impl Deliveries {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut sync::lock(&self.0.0));
        self.0.1.notify_all();
    }

    /// Tells that a message was posted.
    pub(super) fn wake(&self) {
        self.change(|state| state.posted += 1);
    }

    /// Tells that nothing more will be posted: each chat gets one more try.
    pub(super) fn end(&self) {
        self.change(|state| state.is_over = true);
    }

    /// Delivers the messages of a channel until the end: the oldest one of each chat, then the next.
    pub(super) fn run(&self, channel: &dyn Channel, outbox: &Outbox, log: &Logger) {
        let mut failing: BTreeMap<String, (Instant, Tries)> = BTreeMap::new();
        loop {
            let (posted, is_over) = {
                let state = sync::lock(&self.0.0);
                (state.posted, state.is_over)
            };
            let mut next: Option<Instant> = None;
            let mut has_delivered = false;
            for Pending { id, item, .. } in oldest(outbox, channel.name()) {
                let now = Instant::now();
                if let Some((at, _)) = failing.get(&item.to) {
                    if *at > now && !is_over {
                        next = Some(next.map_or(*at, |next| next.min(*at)));
                        continue;
                    }
                }
                let chat = item.to.split_once(':').unwrap_or_default().1;
                let delivered = contained("the channel", || channel.deliver(chat, &item.text))
                    .and_then(|()| outbox.done(&id));
                match delivered {
                    Ok(()) => {
                        failing.remove(&item.to);
                        has_delivered = true;
                    }
                    Err(e) => {
                        log(
                            Level::Warn,
                            &format!("delivering to {}, will retry: {e}", item.to),
                        );
                        let known = failing.remove(&item.to).map(|(_, tries)| tries);
                        let mut tries = known
                            .unwrap_or_else(|| Tries::new(u32::MAX, FIRST_PAUSE, LONGEST_PAUSE));
                        let at = now + tries.wait(None).unwrap_or(LONGEST_PAUSE);
                        next = Some(next.map_or(at, |next| next.min(at)));
                        failing.insert(item.to, (at, tries));
                    }
                }
            }
            if has_delivered {
                continue;
            }
            if is_over {
                return;
            }
            let left = next.map_or(Duration::MAX, |next| {
                next.saturating_duration_since(Instant::now())
            });
            let state = sync::lock(&self.0.0);
            let is_same = |state: &mut State| state.posted == posted && !state.is_over;
            drop(self.0.1.wait_timeout_while(state, left, is_same));
        }
    }
}

/// Returns the oldest message of each chat of a channel.
fn oldest(outbox: &Outbox, channel: &str) -> Vec<Pending> {
    let mut seen = Vec::new();
    let mut pending = outbox.pending().unwrap_or_default();
    pending.retain(|pending| {
        let is_of_channel = pending
            .item
            .to
            .split_once(':')
            .is_some_and(|(of, _)| of == channel);
        let is_first = is_of_channel && !seen.contains(&pending.item.to);
        if is_first {
            seen.push(pending.item.to.clone());
        }
        is_first
    });
    pending
}
