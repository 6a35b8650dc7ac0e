//! A conversation of a home, changed by commands that its user types.

use std::sync::Arc;
use std::time::SystemTime;

use super::App;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::{Message, User};
use crate::provider::catalog;
use crate::session::versions::{self, Before, Version, Versions};
use crate::session::{MemoryStore, OpenSession, Record, Session, Store, archive};
use crate::text::to_single_line;
use crate::worker::protocol::{FileJob, OldFile};

/// A conversation of a home.
pub(crate) struct StoredConversation<'a> {
    pub app: &'a App,
    pub key: &'a str,
    /// Store of conversations in memory; `None` is the home's.
    pub memory: Option<&'a MemoryStore>,
}

impl StoredConversation<'_> {
    fn store(&self) -> Arc<dyn Store> {
        match self.memory {
            Some(memory) => Arc::new(memory.clone()),
            None => Arc::new(self.app.store()),
        }
    }

    /// Opens a conversation, after its running turn has ended.
    fn open(&self) -> Result<OpenSession> {
        OpenSession::open(&self.store(), self.key, &Cancel::new(None), &|| ())
    }

    pub(crate) fn last_question(&self) -> Result<Option<User>> {
        Ok(question(&Session::peek(&*self.store(), self.key)?))
    }

    /// Undoes the last question of a conversation and everything after it, and restores the files that its file tools changed.
    /// `None` without a question, or if the last change was an undo.
    pub(crate) fn undo_with_files(&self) -> Result<Option<Undone>> {
        // Remains locked to the end, because otherwise a new turn could be undone instead.
        let mut open = self.open()?;
        let question = match question(&open.session) {
            Some(question) if !open.session.is_undone => question,
            _ => return Ok(None),
        };
        // Versions of files are stored only on disk.
        let files = match self.memory {
            Some(_) => Vec::new(),
            None => self.put_back(&Versions::new(
                self.app.home.undo(self.key),
                open.session.asked,
            ))?,
        };
        take_back(&mut open)?;
        versions::forget(&self.app.home, self.key)?;
        Ok(Some(Undone { question, files }))
    }

    /// Restores files to their state before a turn, and returns the outcome for each.
    fn put_back(&self, versions: &Versions) -> Result<Vec<(String, Result<PutBack, String>)>> {
        let changed = match versions.read() {
            Ok(changed) => changed,
            Err(e) => return Ok(vec![("what file tools changed".to_owned(), Err(e.message))]),
        };
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        let workers = self.app.workers()?;
        let cancel = Cancel::new(None);
        let put_back = |version: Version| {
            let path = version.path.clone();
            let done = (|| {
                let content = match version.before {
                    Before::Lost => return Err(Error::failed("its earlier content was not kept")),
                    Before::Absent => None,
                    Before::Kept(number) => Some(versions.content(number)?),
                };
                let was_there = content.is_some();
                let file = OldFile {
                    path: path.clone(),
                    state: version.state,
                    was_there,
                    content: content.unwrap_or_default(),
                };
                workers.call(FileJob::PutBack(file), &cancel)?.into_text()?;
                Ok(if was_there {
                    PutBack::Restored
                } else {
                    PutBack::Removed
                })
            })();
            (path, done.map_err(|e: Error| e.message))
        };
        Ok(changed.into_iter().rev().map(put_back).collect())
    }

    /// Undoes the last question of a conversation and everything after it, and returns the question.
    pub(crate) fn undo(&self) -> Result<Option<User>> {
        let mut open = self.open()?;
        let question = question(&open.session);
        if question.is_some() {
            take_back(&mut open)?;
        }
        Ok(question)
    }

    /// Stores the model that a user has typed for this conversation. `default` goes back to the settings' model. Returns the whole
    /// name, and the name of the model that answers.
    pub(crate) fn use_model(&self, typed: &str) -> Result<(String, String)> {
        let loaded = self.app.loaded()?;
        let is_default = typed == "default" && !loaded.config.names().contains(&typed);
        let name = if is_default {
            self.app.model("")?.first().to_owned()
        } else {
            catalog::whole_name(loaded, typed)?
        };
        let first = self.app.model(&name)?.first().to_owned();
        self.open()?.store(&[Record::Model(&name)])?;
        Ok((name, first))
    }

    /// Archives a conversation and starts a new one. Returns whether there was one.
    pub(crate) fn reset(&self) -> Result<bool> {
        Ok(archive::reset(
            &self.app.home,
            self.key,
            &Cancel::new(None),
            SystemTime::now(),
        )?
        .is_some())
    }
}

/// An undone question and its effects.
pub(crate) struct Undone {
    question: User,
    /// Outcome for each file, or why it is unchanged.
    files: Vec<(String, Result<PutBack, String>)>,
}

impl Undone {
    /// Describes the undo, one line for the question and for each file.
    pub(crate) fn lines(&self) -> Vec<String> {
        // The title is the typed text, without a skill or a template.
        let typed = Some(&self.question.title).filter(|title| !title.is_empty());
        let question = to_single_line(typed.unwrap_or(&self.question.content), 60);
        let mut lines = vec![format!("undone: {question}")];
        for (path, done) in &self.files {
            let path = to_single_line(path, 200);
            lines.push(match done {
                Ok(PutBack::Restored) => format!("restored {path}"),
                Ok(PutBack::Removed) => format!("removed {path}, which was new"),
                Err(why) => format!("{path} is unchanged: {}", to_single_line(why, 200)),
            });
        }
        lines
    }
}

enum PutBack {
    Restored,
    Removed,
}

/// Undoes the last question of a conversation and everything after it.
fn take_back(open: &mut OpenSession) -> Result<()> {
    let undo = open.undo_turn();
    open.store(&[undo])
}

/// Returns the last question of a conversation.
fn question(session: &Session) -> Option<User> {
    session
        .messages
        .iter()
        .rev()
        .find_map(|message| match message {
            Message::User(user) if message.is_question() => Some(user.clone()),
            _ => None,
        })
}
