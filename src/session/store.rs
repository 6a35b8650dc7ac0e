//! The trait of conversation stores, and conversations in memory, for `--no-session` and for embedding.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::lock::lock_in_process;
use super::{Durability, Line};
use crate::error::Result;
use crate::sync;

/// Unlocks a conversation when it is dropped.
pub type Guard = Box<dyn Any + Send + Sync>;

/// Stores conversations: the lines of each, and a lock for each. A store need not understand the lines. A key is one plain file
/// name, up to 200 bytes long. `docs/examples/store.rs` and `sqlite.rs` are stores of 30 lines.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Mutex;
///
/// use bantam::{Durability, Line, Store};
/// use bantam::{Agent, Demo, Request, Result};
///
/// #[derive(Default)]
/// struct Map(Mutex<BTreeMap<String, Vec<Line>>>);
///
/// impl Store for Map {
///     fn read(&self, key: &str) -> Result<Vec<Line>> {
///         Ok(self.0.lock().unwrap().get(key).cloned().unwrap_or_default())
///     }
///
///     fn write(&self, key: &str, from: usize, lines: &[Line], _: Durability) -> Result<()> {
///         let mut all = self.0.lock().unwrap();
///         all.entry(key.to_owned()).or_default().splice(from.., lines.iter().cloned());
///         Ok(())
///     }
///
///     fn list(&self) -> Result<Vec<String>> {
///         Ok(self.0.lock().unwrap().keys().cloned().collect())
///     }
/// }
///
/// let agent = Agent::builder().provider(Demo).store(Map::default()).build()?;
/// agent.run(&Request::new("time", "notes"), &|_event| ());
/// assert_eq!(agent.session("notes")?.messages.len(), 2);
/// # Ok::<(), bantam::Error>(())
/// ```
pub trait Store: Send + Sync {
    /// Returns the lines of a conversation in order; none for a new conversation. Takes no lock. Lines `{"damage":TEXT}` at the
    /// end are shown to the user; they have no number and are never written.
    ///
    /// # Errors
    /// Returns errors of the storage, and [`Kind::Config`](crate::error::Kind::Config) if a newer program wrote it.
    fn read(&self, key: &str) -> Result<Vec<Line>>;

    /// Drops the lines from number `from` on, counted from 0, and appends these. Usually `from` is the number of lines; 0
    /// replaces all lines, and without new lines erases the conversation. The caller has locked it.
    ///
    /// # Errors
    /// Returns errors of the storage; then the conversation is unchanged.
    fn write(&self, key: &str, from: usize, lines: &[Line], durability: Durability) -> Result<()>;

    /// Returns the keys of all conversations, in any order. Conversations without lines may be included.
    ///
    /// # Errors
    /// Returns errors of the storage.
    fn list(&self) -> Result<Vec<String>>;

    /// Locks a conversation until the returned value is dropped; `None` if it is already locked. The default lock works within
    /// the process, for all users of this value, which is shared by an [`Arc`].
    ///
    /// # Errors
    /// Returns errors of the storage.
    fn lock(&self, key: &str) -> Result<Option<Guard>> {
        let place = std::ptr::from_ref(self).cast::<()>() as usize;
        Ok(lock_in_process(place, key))
    }
}

/// Allows several agents to share a store.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        (**self).read(key)
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], durability: Durability) -> Result<()> {
        (**self).write(key, from, lines, durability)
    }

    fn list(&self) -> Result<Vec<String>> {
        (**self).list()
    }

    fn lock(&self, key: &str) -> Result<Option<Guard>> {
        (**self).lock(key)
    }
}

/// Stores conversations in memory, as the same lines that a file would have. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Mutex<HashMap<String, Vec<Line>>>>);

impl MemoryStore {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Vec<Line>>> {
        sync::lock(&self.0)
    }
}

impl Store for MemoryStore {
    fn read(&self, key: &str) -> Result<Vec<Line>> {
        Ok(self.all().get(key).cloned().unwrap_or_default())
    }

    fn write(&self, key: &str, from: usize, lines: &[Line], _: Durability) -> Result<()> {
        let mut all = self.all();
        let stored = all.entry(key.to_owned()).or_default();
        stored.truncate(from);
        stored.extend_from_slice(lines);
        if stored.is_empty() {
            all.remove(key);
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.all().keys().cloned().collect())
    }

    fn lock(&self, key: &str) -> Result<Option<Guard>> {
        Ok(lock_in_process(Arc::as_ptr(&self.0) as usize, key))
    }
}
