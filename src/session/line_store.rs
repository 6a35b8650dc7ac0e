//! A store built from a place for lines, with locks that hold within a process.

use std::any::Any;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::archive::newest_first;
use super::{Durability, Line, Session, Store, Summary, lock_when_free, unlisted};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::paths::check_session;

/// Locks of conversations that hold within a process. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Locks(Arc<Mutex<BTreeSet<String>>>);

/// Frees a conversation when it is dropped.
pub(super) struct Held(Locks, String);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held().remove(&self.1);
    }
}

impl Locks {
    fn held(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks a conversation if nobody has.
    pub(super) fn lock(&self, name: &str) -> Option<Held> {
        let is_free = self.held().insert(name.to_owned());
        is_free.then(|| Held(self.clone(), name.to_owned()))
    }
}

/// Storage for the lines of conversations: all that a store needs ([`LineStore`]).
pub trait Lines: Send + Sync {
    /// The lines of a conversation in their order; none if it is new. The key is one plain file name, at most 200 bytes long.
    ///
    /// # Errors
    /// Errors of the storage.
    fn read(&self, key: &str) -> Result<Vec<Line>>;

    /// Replaces all lines from number `from` on, counted from 0, by `lines`: usually this appends, sometimes it replaces
    /// everything; with no lines, it erases the conversation. Only one thread at a time writes a conversation.
    ///
    /// # Errors
    /// Errors of the storage; then nothing has changed.
    fn write(&self, key: &str, from: usize, lines: &[Line]) -> Result<()>;

    /// The keys of all conversations, for [`Agent::sessions`](crate::agent::Agent::sessions), in any order. One without lines may
    /// be among them. The default is an error.
    ///
    /// # Errors
    /// Errors of the storage.
    fn keys(&self) -> Result<Vec<String>> {
        Err(unlisted())
    }

    /// Locks a conversation against other processes until the returned value is dropped; `None` if another process holds it. It
    /// is already locked against other threads. The default assumes that only one process uses these lines.
    ///
    /// # Errors
    /// Errors of the storage.
    fn lock(&self, _key: &str) -> Result<Option<Box<dyn Any + Send + Sync>>> {
        Ok(Some(Box::new(())))
    }
}

/// A store made from [`Lines`]. Clones share the locks of its conversations. It refuses a key that is not a plain file name
/// with an error of the kind [`Kind::Usage`](crate::error::Kind::Usage), as [`Files`](super::Files) does.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::{Arc, Mutex};
///
/// use bantam::Result;
/// use bantam::session::{Line, LineStore, Lines, check_store};
///
/// #[derive(Clone, Default)]
/// struct Map(Arc<Mutex<BTreeMap<String, Vec<Line>>>>);
///
/// impl Lines for Map {
///     fn read(&self, key: &str) -> Result<Vec<Line>> {
///         Ok(self.0.lock().unwrap().get(key).cloned().unwrap_or_default())
///     }
///
///     fn write(&self, key: &str, from: usize, lines: &[Line]) -> Result<()> {
///         let mut all = self.0.lock().unwrap();
///         all.entry(key.to_owned()).or_default().splice(from.., lines.iter().cloned());
///         Ok(())
///     }
///
///     fn keys(&self) -> Result<Vec<String>> {
///         Ok(self.0.lock().unwrap().keys().cloned().collect())
///     }
/// }
///
/// let store = LineStore::new(Map::default());
/// check_store(|| store.clone());
/// ```
#[derive(Clone)]
pub struct LineStore<L> {
    lines: L,
    locks: Locks,
}

impl<L: Lines> LineStore<L> {
    /// A store of these lines.
    pub fn new(lines: L) -> Self {
        Self {
            lines,
            locks: Locks::default(),
        }
    }
}

impl<L: Lines> Store for LineStore<L> {
    fn load(&self, name: &str, cancel: &Cancel, waiting: &dyn Fn()) -> Result<Session> {
        check_session(name)?;
        let lock = lock_when_free(name, cancel, waiting, || {
            let Some(held) = self.locks.lock(name) else {
                return Ok(None);
            };
            let lock = self.lines.lock(name)?;
            Ok(lock.map(|lock| (lock, held)))
        })?;
        Ok(self.peek(name)?.locked_by(lock))
    }

    fn peek(&self, name: &str) -> Result<Session> {
        check_session(name)?;
        Session::read(name, self.lines.read(name)?)
    }

    fn write(&self, session: &mut Session, lines: &[Line], _: Durability) -> Result<()> {
        let from = usize::try_from(session.next()).unwrap_or(usize::MAX);
        self.lines.write(&session.name, from, lines)
    }

    fn replace(&self, session: &mut Session, lines: Vec<Line>) -> Result<Option<PathBuf>> {
        self.lines.write(&session.name, 0, &lines)?;
        Ok(None)
    }

    fn list(&self) -> Result<Vec<Summary>> {
        let mut list = Vec::new();
        for key in self.lines.keys()? {
            let session = self.peek(&key).ok();
            let is_erased = session.as_ref().is_some_and(|session| session.next == 0);
            if !is_erased {
                list.push(Summary::of(&key, session));
            }
        }
        Ok(newest_first(list))
    }
}
