//! Unknown users who wrote to the bot, stored in the home's queue to notify the owner once of each.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::storage::{Entry, Queue};

/// Maximum number of unknown users. Further users are ignored, because accounts can be created in bulk.
const MAX_STRANGERS: usize = 200;
/// Kind of the queue's items that are unknown users.
const KIND: &str = "stranger";

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct KnownStranger {
    bot: i64,
    user: i64,
}

#[derive(Clone)]
pub(crate) struct Strangers {
    queue: Arc<Queue>,
    bot: i64,
}

impl Strangers {
    /// Returns the unknown users of the bot with this id.
    pub(crate) fn new(queue: Arc<Queue>, bot: i64) -> Self {
        Self { queue, bot }
    }

    /// Whether an unknown user has written to the bot.
    pub(super) fn is_known(&self, user: i64) -> Result<bool> {
        Ok(self.known()?.contains(&user))
    }

    fn known(&self) -> Result<Vec<i64>> {
        let known = self.queue.select(KIND, &mut |_| true)?.into_iter();
        let known = known.map(|entry| entry.read::<KnownStranger>());
        let own = known.filter(|known| known.bot == self.bot);
        Ok(own.map(|known| known.user).collect())
    }

    /// Records unknown users up to the limit, and returns the new ones.
    pub(super) fn keep(&self, mut users: Vec<i64>) -> Result<Vec<i64>> {
        let known = self.known()?;
        users.retain(|user| !known.contains(user));
        users.truncate(MAX_STRANGERS.saturating_sub(known.len()));
        let entry = |user: &i64| {
            let (bot, user) = (self.bot, *user);
            let id = format!("{KIND}:{bot}:{user}");
            Entry::new(&id, KIND, &KnownStranger { bot, user })
        };
        let entries: Vec<Entry> = users.iter().map(entry).collect();
        self.queue.add(&entries, &[])?;
        Ok(users)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn strangers_are_reported_once_each() {
        let dir = TestDir::new();
        // Opens the queue as a restarted program would.
        let open = |bot| Strangers::new(Arc::new(Queue::of_home(&dir.home())), bot);
        let strangers = open(7);
        let told: Vec<usize> = (0..50)
            .map(|poll| {
                strangers
                    .keep((poll * 7..poll * 7 + 7).collect())
                    .unwrap()
                    .len()
            })
            .collect();
        assert_eq!((told[0], told.iter().sum()), (7, MAX_STRANGERS));
        assert!(open(7).keep(vec![999]).unwrap().is_empty(), "a new count");
        assert_eq!(open(8).keep(vec![3, -4]).unwrap(), [3, -4]);
        assert_eq!(
            strangers.queue.select(KIND, &mut |_| true).unwrap().len(),
            MAX_STRANGERS + 2
        );
    }
}
