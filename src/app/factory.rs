//! Builds the agents of a home, and changes its conversations for commands that users type.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::models::ConfiguredModels;
use super::{Options, Parts, Ready, builder, configured, unconfirmed_lines, workers};
use crate::cancel::Cancel;
use crate::config::{self, Config, Env, Loaded, Override};
use crate::error::{Error, Result};
use crate::message::{Message, ToolCall, User};
use crate::paths::{Home, of_user};
use crate::session::versions::{self, Before, Version, Versions};
use crate::session::{FileStore, OpenSession, Record, Session, Store, archive};
use crate::storage::Durability;
use crate::text::to_single_line;
use crate::tool::was_not_run;
use crate::worker::protocol::{FileJob, OldFile};

/// Setting of the workspace.
const WORKSPACE: &str = "agents.defaults.workspace";
/// Setting of the model.
pub(crate) const MODEL_NAME: &str = "agents.defaults.model_name";

pub(crate) struct AgentFactory {
    pub home: Home,
    pub env: Env,
    /// Text of config.json.
    pub file: Option<String>,
    pub overrides: Vec<Override>,
    pub options: Options,
}

impl AgentFactory {
    pub(crate) fn new(home: &Home, env: &Env) -> Result<Self> {
        Ok(Self::with_file(home, env, config::read(home)?))
    }

    /// Makes a factory with this text instead of config.json.
    pub(crate) fn with_file(home: &Home, env: &Env, file: Option<String>) -> Self {
        Self {
            home: home.clone(),
            env: env.clone(),
            file,
            overrides: Vec::new(),
            options: Options::default(),
        }
    }

    pub(crate) fn load(&self) -> Result<Loaded> {
        let overrides = self.overrides.clone();
        let file = self.file.as_deref();
        if self.options.models_in_code {
            let settings = file.map(|text| (config::IN_CODE, text));
            return Config::load(settings, &self.env, overrides);
        }
        let mut loaded = config::load_for(&self.home, file, &self.env, overrides)?;
        self.let_workspace_win(&mut loaded.config);
        Ok(loaded)
    }

    /// Removes configured directories that overlap the workspace of `--workspace`, which takes precedence in this run.
    fn let_workspace_win(&self, config: &mut Arc<Config>) {
        let is_typed = |set: &Override| set.path.join(".") == WORKSPACE;
        let Some(typed) = self.overrides.iter().find(|set| is_typed(set)) else {
            return;
        };
        let Some(workspace) = typed.value.as_str().map(PathBuf::from) else {
            return;
        };
        let is_apart = |written: &String| {
            let path = of_user(written, &self.env);
            !path.starts_with(&workspace) && !workspace.starts_with(&path)
        };
        let tools = &mut Arc::make_mut(config).tools;
        tools.read_paths.retain(is_apart);
        tools.write_paths.retain(is_apart);
    }

    /// Combines this home and environment with a configuration from [`AgentFactory::load`].
    pub(crate) fn parts<'a>(&'a self, config: &'a Arc<Config>) -> Parts<'a> {
        Parts {
            home: &self.home,
            config,
            env: &self.env,
        }
    }

    /// Builds an agent for all conversations, without writing files or contacting models.
    pub(crate) fn build(&self, config: &Arc<Config>) -> Result<Ready> {
        let (parts, options) = (self.parts(config), &self.options);
        let workers = Arc::new(workers(parts)?);
        let mut builder = builder(parts, options, &workers);
        let (redactor, is_fixed) = (builder.redactor.clone(), self.is_model_fixed());
        let models = ConfiguredModels::new(parts, redactor, is_fixed);
        builder.models = Some(Arc::new(models));
        builder.workers = Some(workers.clone());
        let mut notices: Vec<String> = unconfirmed_lines(config).collect();
        let (mut tools, missing) = configured(&workers, parts, &options.servers)?;
        notices.extend(missing);
        if let Some(names) = &options.tools {
            tools = tools.only(names)?;
        }
        Ok(Ready {
            agent: builder.tools(tools).build()?,
            notices,
        })
    }

    /// Whether a flag or the environment sets the model of every conversation.
    pub(crate) fn is_model_fixed(&self) -> bool {
        let variable = self.env.get("BANTAM_AGENTS_DEFAULTS_MODEL_NAME");
        variable.is_some_and(|name| !name.is_empty())
            || self
                .overrides
                .iter()
                .any(|set| set.path.join(".") == MODEL_NAME)
    }

    fn store(&self) -> Arc<dyn Store> {
        match &self.options.memory {
            Some(memory) => Arc::new(memory.clone()),
            None => Arc::new(FileStore::new(self.home.clone())),
        }
    }

    /// Opens a conversation, after its running turn has ended.
    fn open(&self, session: &str) -> Result<OpenSession> {
        OpenSession::open(&self.store(), session, &Cancel::new(None), &|| ())
    }

    pub(crate) fn last_question(&self, session: &str) -> Result<Option<User>> {
        Ok(question(&Session::peek(&*self.store(), session)?))
    }

    /// Undoes the last question of a conversation and everything after it, and restores the files that its file tools changed.
    /// `None` without a question, or if the last change was an undo.
    pub(crate) fn undo_with_files(&self, session: &str) -> Result<Option<Undone>> {
        // Remains locked to the end, because otherwise a new turn could be undone instead.
        let mut open = self.open(session)?;
        let question = match question(&open.session) {
            Some(question) if !open.is_undone() => question,
            _ => return Ok(None),
        };
        // Versions of files are stored only on disk.
        let files = match self.options.memory {
            Some(_) => Vec::new(),
            None => self.put_back(&Versions::new(self.home.undo(session), open.asked_at()))?,
        };
        let ran = commands_since(&open.session);
        take_back(&mut open)?;
        versions::forget(&self.home, session)?;
        Ok(Some(Undone {
            question,
            files,
            ran,
        }))
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
        let config = self.load()?.config;
        let workers = super::workers(self.parts(&config))?;
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
    pub(crate) fn undo(&self, session: &str) -> Result<Option<User>> {
        let mut open = self.open(session)?;
        let question = question(&open.session);
        if question.is_some() {
            take_back(&mut open)?;
        }
        Ok(question)
    }

    /// Stores the model of a conversation.
    pub(crate) fn choose_model(&self, session: &str, model: &str) -> Result<()> {
        let record = [Record::Model(model)];
        self.open(session)?
            .append(&record, Durability::Now, SystemTime::now())
    }

    /// Archives a conversation and starts a new one. Returns whether there was one.
    pub(crate) fn reset(&self, session: &str) -> Result<bool> {
        Ok(archive::reset(&self.home, session, &Cancel::new(None), SystemTime::now())?.is_some())
    }
}

/// An undone question and its effects.
pub(crate) struct Undone {
    pub question: User,
    /// Outcome for each file, or why it is unchanged.
    pub files: Vec<(String, Result<PutBack, String>)>,
    /// Whether commands have run; their effects remain.
    pub ran: bool,
}

impl Undone {
    /// Describes the undo, one line for the question and for each file.
    pub(crate) fn lines(&self) -> Vec<String> {
        let question = to_single_line(&self.question.content, 60);
        let mut lines = vec![format!("took back: {question}")];
        for (path, done) in &self.files {
            let path = to_single_line(path, 200);
            lines.push(match done {
                Ok(PutBack::Restored) => format!("restored {path}"),
                Ok(PutBack::Removed) => format!("removed {path}, which was new"),
                Err(why) => format!("{path} stays as it is: {}", to_single_line(why, 200)),
            });
        }
        if self.ran {
            lines.push("what commands changed stays as it is".to_owned());
        }
        lines
    }
}

pub(crate) enum PutBack {
    Restored,
    Removed,
}

/// Whether commands have run since the last question.
fn commands_since(session: &Session) -> bool {
    let mut not_run = BTreeSet::new();
    for message in session.messages.iter().rev() {
        match message {
            Message::ToolResult(result) if was_not_run(result) => {
                not_run.insert(&result.call_id);
            }
            Message::Assistant(reply) => {
                let has_run = |call: &ToolCall| call.name == "exec" && !not_run.contains(&call.id);
                if reply.calls.iter().any(has_run) {
                    return true;
                }
            }
            message if message.is_question() => break,
            _ => {}
        }
    }
    false
}

/// Undoes the last question of a conversation and everything after it.
fn take_back(open: &mut OpenSession) -> Result<()> {
    let undo = open.undo_turn();
    open.append(&[undo], Durability::Now, SystemTime::now())
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
