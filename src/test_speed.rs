//! How long the longest waits are. `BANTAM_TEST_SPEED=20` makes them twenty times shorter, so that tests need not sit through
//! them; nobody else has a use for it.

use std::time::Duration;

/// What is waited in place of `whole`.
pub(crate) fn paced(whole: Duration) -> Duration {
    let speed = std::env::var("BANTAM_TEST_SPEED").ok();
    let speed = speed.and_then(|speed| speed.parse().ok());
    whole / speed.unwrap_or(1).max(1)
}
