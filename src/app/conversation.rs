//! A conversation of a home, changed by commands that its user types.

use std::sync::Arc;

use super::App;
use crate::agent::Agent;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::{Message, User};
use crate::provider::catalog;
use crate::session::versions::{self, Before, Version, Versions};
use crate::session::{MemoryStore, OpenSession, Record, Session, Store};
use crate::text::to_single_line;
use crate::worker::protocol::{FileAction, FileJob};

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
    /// Returns a line about the question and about each file; `None` without a question, or if the last change was an undo.
    pub(crate) fn undo_with_files(&self) -> Result<Option<Vec<String>>> {
        // Remains locked to the end, because otherwise a new turn could be undone instead.
        let mut open = self.open()?;
        let question = match question(&open.session) {
            Some(question) if !open.session.is_undone => question,
            _ => return Ok(None),
        };
        // The title is the typed text, without a skill or a template.
        let typed = Some(question.title).filter(|title| !title.is_empty());
        let typed = to_single_line(&typed.unwrap_or(question.content), 60);
        let mut lines = vec![format!("undone: {typed}")];
        // Versions of files are stored only on disk.
        if self.memory.is_none() {
            let versions = Versions::new(self.app.home.undo(self.key), open.session.asked);
            lines.extend(self.put_back(&versions)?);
        }
        let undo = open.undo_turn();
        open.store(&[undo])?;
        versions::forget(&self.app.home, self.key)?;
        Ok(Some(lines))
    }

    /// Restores files to their state before a turn, and returns a line about each.
    fn put_back(&self, versions: &Versions) -> Result<Vec<String>> {
        let unchanged =
            |what: &str, why: &str| format!("{what} is unchanged: {}", to_single_line(why, 200));
        let changed = match versions.read() {
            Ok(changed) => changed,
            Err(e) => return Ok(vec![unchanged("what file tools changed", &e.message)]),
        };
        if changed.is_empty() {
            return Ok(Vec::new());
        }
        let workers = self.app.workers()?;
        let restore = |version: Version| {
            let content = match version.before {
                Before::Lost => return Err(Error::failed("its earlier content was not kept")),
                Before::Absent => None,
                Before::Kept(number) => Some(versions.content(number)?),
            };
            let was_there = content.is_some();
            let state = version.state;
            let job = FileJob {
                path: version.path,
                action: FileAction::PutBack { state, was_there },
                content: content.unwrap_or_default(),
            };
            workers.call(job, &Cancel::new(None))?.into_text()?;
            Ok(was_there)
        };
        let line = |version: Version| {
            let path = to_single_line(&version.path, 200);
            match restore(version) {
                Ok(true) => format!("restored {path}"),
                Ok(false) => format!("removed {path}, which was new"),
                Err(e) => unchanged(&path, &e.message),
            }
        };
        Ok(changed.into_iter().rev().map(line).collect())
    }

    /// Undoes the last question of a conversation and everything after it, and returns the question.
    pub(crate) fn undo(&self) -> Result<Option<User>> {
        let mut open = self.open()?;
        let question = question(&open.session);
        if question.is_some() {
            let undo = open.undo_turn();
            open.store(&[undo])?;
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
}

/// Describes a conversation in lines: the model that answers, and the use of the context.
pub(crate) fn chat_status(agent: &Agent, key: &str, model: &str) -> Result<String> {
    let version = env!("CARGO_PKG_VERSION");
    let context = agent.window_use(key)?;
    Ok(format!("bantam {version}, `{model}`\ncontext: {context}"))
}

/// Returns the last question of a conversation.
fn question(session: &Session) -> Option<User> {
    let mut messages = session.messages.iter().rev();
    messages.find_map(|message| match message {
        Message::User(user) if message.is_question() => Some(user.clone()),
        _ => None,
    })
}
