//! Unknown users who wrote to the bot, so that its owner is told of each once. They are items of the home's queue.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::storage::{Entry, Queue};

/// Unknown users to remember and tell of. Further ones are ignored: anybody can make accounts and write from them.
const MAX_STRANGERS: usize = 200;
/// Which items of the queue are unknown users.
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
    /// Those of the bot with this number.
    pub(crate) fn new(queue: Arc<Queue>, bot: i64) -> Self {
        Self { queue, bot }
    }

    /// Records unknown users while there is room, and returns those that are new.
    pub(super) fn keep(&self, mut users: Vec<i64>) -> Result<Vec<i64>> {
        let mut known = Vec::new();
        for entry in self.queue.entries(KIND)? {
            let stranger: KnownStranger = entry.read();
            if stranger.bot == self.bot {
                known.push(stranger.user);
            }
        }
        users.retain(|user| !known.contains(user));
        users.truncate(MAX_STRANGERS.saturating_sub(known.len()));
        let entry = |user: &i64| {
            let (bot, user) = (self.bot, *user);
            let id = format!("{KIND}:{bot}:{user}");
            Entry::new(&id, KIND, &KnownStranger { bot, user })
        };
        let entries: Vec<Entry> = users.iter().map(entry).collect();
        self.queue.add_later(&entries)?;
        Ok(users)
    }
}

/// The unknown users of all bots. Changes nothing.
pub(crate) fn all(queue: &Queue) -> Result<Vec<i64>> {
    let entries = queue.entries(KIND)?;
    let user = |entry: &Entry| entry.read::<KnownStranger>().user;
    Ok(entries.iter().map(user).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::Home;

    #[test]
    fn the_owner_is_told_of_each_stranger_once_and_not_without_end() {
        let root = std::env::temp_dir().join(format!("bantam-strangers-{}", std::process::id()));
        drop(fs_err::remove_dir_all(&root));
        // As the next program opens it.
        let open = |bot| Strangers::new(Arc::new(Queue::of_home(&Home::new(root.clone()))), bot);
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
        assert!(open(7).keep(vec![-1]).unwrap().is_empty(), "a new count");
        assert_eq!(open(8).keep(vec![3]).unwrap(), [3]);
        assert_eq!(all(&strangers.queue).unwrap().len(), MAX_STRANGERS + 1);
        fs_err::remove_dir_all(root).unwrap();
    }
}
