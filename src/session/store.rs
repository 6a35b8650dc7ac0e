//! Where conversations are kept.

use std::any::Any;
use std::sync::Arc;

use super::lock::Locks;
use super::{Durability, Line};
use crate::error::Result;

/// Frees a conversation when it is dropped.
pub type Guard = Box<dyn Any + Send + Sync>;

/// What a store has of a conversation.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Its lines in their order; none if it is new.
    pub lines: Vec<Line>,
    /// One sentence for each damage that was found, for the user.
    pub warnings: Vec<String>,
}

impl From<Vec<Line>> for Loaded {
    fn from(lines: Vec<Line>) -> Self {
        Self {
            lines,
            warnings: Vec::new(),
        }
    }
}

/// Where conversations are kept: the lines of each, and a lock for each. A store need not know what is in a line, and a key is one
/// plain file name of at most 200 bytes. `docs/examples/store.rs` and `sqlite.rs` are stores of 30 lines.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Mutex;
///
/// use bantam::{Durability, Line, Loaded, Store};
/// use bantam::{Agent, Demo, Request, Result};
///
/// #[derive(Default)]
/// struct Map(Mutex<BTreeMap<String, Vec<Line>>>);
///
/// impl Store for Map {
///     fn read(&self, key: &str) -> Result<Loaded> {
///         Ok(self.0.lock().unwrap().get(key).cloned().unwrap_or_default().into())
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
    /// The lines of a conversation. Takes no lock.
    ///
    /// # Errors
    /// Errors of the storage; [`Kind::Config`](crate::error::Kind::Config) when a newer program wrote it.
    fn read(&self, key: &str) -> Result<Loaded>;

    /// Drops the lines from number `from` on, counted from 0, and appends these: usually `from` is the number of lines, and 0
    /// replaces all. From 0 without lines erases the conversation. The caller has locked it.
    ///
    /// # Errors
    /// Errors of the storage; then nothing has changed.
    fn write(&self, key: &str, from: usize, lines: &[Line], durability: Durability) -> Result<()>;

    /// The keys of all conversations, in any order. One without lines may be among them.
    ///
    /// # Errors
    /// Errors of the storage.
    fn list(&self) -> Result<Vec<String>>;

    /// Locks a conversation until the returned value is dropped; `None` if somebody else holds it. The default holds within the
    /// process, for all that use this very value: share it by an [`Arc`].
    ///
    /// # Errors
    /// Errors of the storage.
    fn lock(&self, key: &str) -> Result<Option<Guard>> {
        let place = std::ptr::from_ref(self).cast::<()>() as usize;
        Ok(Locks::of_process().lock(&format!("{place} {key}")))
    }
}

/// A store that several agents share.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn read(&self, key: &str) -> Result<Loaded> {
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
