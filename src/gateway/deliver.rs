//! Delivers what is posted to a channel of a program, at least once. The Telegram bot has a sender of its own, for pieces, files
//! and buttons.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::bus::Channel;
use crate::error::{Result, contained};
use crate::outbox::{Outbox, Tried};
use crate::tries::back_off;

/// Pauses of a chat after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Delivers until `is_over` and nothing is due: a chat that fails then gets its texts from the next program.
pub(super) fn deliver(channel: &dyn Channel, outbox: &Outbox, is_over: &AtomicBool) -> Result<()> {
    loop {
        // Read before the outbox, so that what was posted before the end is delivered.
        let ends = is_over.load(Ordering::SeqCst);
        let most = || (!is_over.load(Ordering::SeqCst)).then_some(Duration::MAX);
        let next = repeat(is_over, || outbox.next(channel.name(), most))?;
        let Some(pending) = next else {
            if ends {
                return Ok(());
            }
            continue;
        };
        let chat = pending.item.to.split_once(':').unwrap_or_default().1;
        let deliver = || channel.deliver(chat, &pending.item.text);
        let tried = match contained("the channel", deliver) {
            Ok(()) => Tried::Sent,
            Err(_) => Tried::PutOff {
                time: back_off(pending.failures, FIRST_PAUSE, LONGEST_PAUSE),
                failures: pending.failures + 1,
            },
        };
        repeat(is_over, || outbox.tried(&pending, &tried))?;
    }
}

/// Reads or writes the outbox, again after an error, because the disk may have room later.
fn repeat<T>(is_over: &AtomicBool, work: impl Fn() -> Result<T>) -> Result<T> {
    loop {
        match work() {
            Err(_) if !is_over.load(Ordering::SeqCst) => thread::sleep(FIRST_PAUSE),
            done => return done,
        }
    }
}
