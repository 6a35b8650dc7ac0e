//! Tries of one request. A request is never repeated without a wait or a change, and each repeat is counted.

use std::time::Duration;

use crate::test_speed::paced;

/// Minimum wait if a host demands one, because many say 0; shorter in unit tests, which wait often.
pub(crate) const MIN_DEMAND: Duration = if cfg!(test) {
    Duration::from_millis(5)
} else {
    Duration::from_secs(1)
};

/// Counts the tries of one request. Each repeat is paid by a wait or by a change of the request.
#[derive(Debug)]
pub(crate) struct Tries {
    /// Number of repeats so far, and at most.
    made: u32,
    most: u32,
    first_wait: Duration,
    max_wait: Duration,
}

impl Tries {
    /// Up to `most` repeats. The wait before the first is up to `first_wait`, and doubles with each further one.
    pub(crate) fn new(most: u32, first_wait: Duration, max_wait: Duration) -> Self {
        Self {
            made: 0,
            most,
            first_wait,
            max_wait,
        }
    }

    /// Up to `most` repeats, each with a change of the request.
    pub(crate) fn with_changes(most: u32) -> Self {
        Self::new(most, Duration::ZERO, Duration::ZERO)
    }

    /// Number of repeats so far.
    pub(crate) fn made(&self) -> u32 {
        self.made
    }

    /// Counts a repeat, and returns the wait before it: our own, or the longer one that the host demands. `None` if no repeat
    /// is left.
    #[must_use]
    pub(crate) fn wait(&mut self, demanded: Option<Duration>) -> Option<Duration> {
        let own = back_off(self.made, self.first_wait, self.max_wait);
        let demanded = demanded.map_or(Duration::ZERO, |wait| wait.max(MIN_DEMAND));
        self.count().then_some(own.max(demanded))
    }

    /// Counts a repeat with a change of the request. Returns whether it is allowed.
    #[must_use]
    pub(crate) fn change(&mut self) -> bool {
        self.count()
    }

    fn count(&mut self) -> bool {
        let is_left = self.made < self.most;
        self.made = self.made.saturating_add(u32::from(is_left));
        is_left
    }
}

/// Returns the wait after `failures` consecutive failures.
pub(crate) fn back_off(failures: u32, first: Duration, most: Duration) -> Duration {
    paced(first.saturating_mul(1 << failures.min(16)).min(most))
}

/// Returns half to all of a wait, so that clients that failed together do not retry together.
pub(crate) fn jitter(most: Duration) -> Duration {
    let thousandths = u32::try_from(500 + random() % 501).unwrap_or(1000);
    most * thousandths / 1000
}

/// The standard library has no other source of randomness.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_repeat_is_counted_and_waited_for() {
        let ms = Duration::from_millis;
        for demanded in [None, Some(ms(0)), Some(ms(3)), Some(ms(50))] {
            let mut tries = Tries::new(3, ms(8), ms(20));
            let waits: Vec<Duration> = std::iter::from_fn(|| tries.wait(demanded)).collect();
            assert_eq!((waits.len(), tries.made()), (3, 3));
            let demanded = demanded.map_or(Duration::ZERO, |wait| wait.max(MIN_DEMAND));
            assert_eq!(waits, [8, 16, 20].map(|own| ms(own).max(demanded)));
        }
        let jittered = jitter(ms(8));
        assert!((ms(4)..=ms(8)).contains(&jittered), "{jittered:?}");
        let mut none = Tries::new(9, Duration::ZERO, Duration::ZERO);
        assert_eq!(none.wait(Some(Duration::ZERO)), Some(MIN_DEMAND));
        let mut changes = Tries::with_changes(2);
        assert_eq!(
            [(); 4].map(|()| changes.change()),
            [true, true, false, false]
        );
    }
}
