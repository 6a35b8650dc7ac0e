//! Delivers what is posted to a channel of a program, at least once. The Telegram bot has a sender of its own, for pieces, files
//! and buttons.

use std::time::Duration;

use crate::bus::Channel;
use crate::cancel::Cancel;
use crate::error::{Result, contained};
use crate::outbox::{Outbox, Tried};
use crate::tries::back_off;

/// Pauses of a chat after failures.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Delivers until `over` is stopped and nothing is due: a chat that fails then gets its texts from the next program.
pub(super) fn deliver(channel: &dyn Channel, outbox: &Outbox, over: &Cancel) -> Result<()> {
    loop {
        // Read before the outbox, so that what was posted before the end is delivered.
        let ends = over.reason().is_some();
        let most = || over.reason().is_none().then_some(Duration::MAX);
        let next = repeat(over, || outbox.next(channel.name(), most))?;
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
        repeat(over, || outbox.tried(&pending, &tried))?;
    }
}

/// Reads or writes the outbox, again after an error, because the disk may have room later.
fn repeat<T>(over: &Cancel, work: impl Fn() -> Result<T>) -> Result<T> {
    loop {
        match work() {
            Err(_) if over.sleep(FIRST_PAUSE).is_ok() => {}
            done => return done,
        }
    }
}
