//! Delivers what is posted to a channel of a program, at least once. The Telegram bot has a sender of its own, for pieces, files
//! and buttons.

use std::sync::atomic::{AtomicBool, Ordering};
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
        let most = if ends { Duration::ZERO } else { Duration::MAX };
        let Some(pending) = outbox.next(channel.name(), most)? else {
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
        outbox.tried(&pending.id, &tried)?;
    }
}
