//! Builds the agents of a home, each with the model that its conversation uses.

use std::time::SystemTime;

use super::{Options, Parts, Ready, build};
use crate::cancel::Cancel;
use crate::config::{self, Config, Env, Loaded, Origin, Override};
use crate::disk::Durability;
use crate::error::{Error, Result};
use crate::message::{Message, User};
use crate::paths::Home;
use crate::session::{Entry, Files, Session, Store, archive};
use crate::text::one_line;

/// The setting that names the model.
pub(crate) const MODEL_NAME: &str = "agents.defaults.model_name";

pub(crate) struct AgentFactory {
    pub home: Home,
    pub env: Env,
    /// The text of config.json.
    pub file: Option<String>,
    pub overrides: Vec<Override>,
    pub options: Options,
}

impl AgentFactory {
    pub(crate) fn new(home: &Home, env: &Env) -> Result<Self> {
        let (file, overrides, options) = (config::read(home)?, Vec::new(), Options::default());
        Ok(Self {
            home: home.clone(),
            env: env.clone(),
            file,
            overrides,
            options,
        })
    }

    /// The configuration, with this model or the configured one.
    pub(crate) fn load(&self, model: Option<&str>) -> Result<Loaded> {
        let mut overrides = self.overrides.clone();
        overrides.extend(model.map(|model| (MODEL_NAME, model.into(), Origin::Flag("--model"))));
        config::load_for(&self.home, self.file.as_deref(), &self.env, overrides)
    }

    /// This home and environment, with a configuration that [`AgentFactory::load`] has made.
    pub(crate) fn parts<'a>(&'a self, config: &'a Config) -> Parts<'a> {
        Parts {
            home: &self.home,
            config,
            env: &self.env,
        }
    }

    pub(crate) fn build(&self, config: &Config) -> Result<Ready> {
        build(self.parts(config), &self.options)
    }

    /// The agent for a conversation, with the model that was chosen there.
    pub(crate) fn for_session(&self, session: &str) -> Result<(Loaded, Ready)> {
        self.with_chosen_model(self.chosen_model(session), self.load(None)?)
    }

    /// The agent for a conversation in which this model was chosen; the model of the configuration `loaded` answers if there
    /// is none or it fails.
    pub(crate) fn with_chosen_model(
        &self,
        chosen: Option<String>,
        loaded: Loaded,
    ) -> Result<(Loaded, Ready)> {
        let Some(chosen) = chosen.filter(|_| !self.is_model_fixed()) else {
            let ready = self.build(&loaded.config)?;
            return Ok((loaded, ready));
        };
        let with_chosen = || {
            let loaded = self.load(Some(&chosen))?;
            let ready = self.build(&loaded.config)?;
            Ok((loaded, ready))
        };
        with_chosen().or_else(|e: Error| {
            let mut ready = self.build(&loaded.config)?;
            let chosen = one_line(&chosen, 80);
            ready.notices.push(format!(
                "cannot use {chosen}, the model of this conversation: {}",
                e.message
            ));
            Ok((loaded, ready))
        })
    }

    /// Locks and loads a conversation. Calls `waiting` when another process has held it for a second.
    pub(crate) fn load_session(
        &self,
        session: &str,
        cancel: &Cancel,
        waiting: &dyn Fn(),
    ) -> Result<Session> {
        self.store().load(session, cancel, waiting)
    }

    /// Whether a flag or the environment names the model of every conversation.
    pub(crate) fn is_model_fixed(&self) -> bool {
        let variable = self.env.get("BANTAM_AGENTS_DEFAULTS_MODEL_NAME");
        variable.is_some_and(|name| !name.is_empty())
            || self.overrides.iter().any(|(path, ..)| *path == MODEL_NAME)
    }

    /// The model that was chosen in a conversation, unless it is fixed.
    pub(crate) fn chosen_model(&self, session: &str) -> Option<String> {
        if self.is_model_fixed() || self.options.memory.is_some() {
            return None;
        }
        // A session that cannot be read is reported when the turn loads it.
        Files::new(self.home.clone()).peek(session).ok()?.model
    }

    fn store(&self) -> Box<dyn Store> {
        match &self.options.memory {
            Some(memory) => Box::new(memory.clone()),
            None => Box::new(Files::new(self.home.clone())),
        }
    }

    /// A conversation, without locking it.
    pub(crate) fn peek(&self, session: &str) -> Result<Session> {
        self.store().peek(session)
    }

    pub(crate) fn last_question(&self, session: &str) -> Result<Option<User>> {
        Ok(question(&self.peek(session)?))
    }

    /// Takes back the last question of a conversation with all that follows it, and returns it.
    pub(crate) fn undo(&self, session: &str) -> Result<Option<User>> {
        let store = self.store();
        let mut session = store.load(session, &Cancel::new(None), &|| ())?;
        let question = question(&session);
        if question.is_some() {
            let undo = session.undo_turn();
            store.append(&mut session, &[undo], Durability::Now, SystemTime::now())?;
        }
        Ok(question)
    }

    /// Stores the model as the one of a conversation.
    pub(crate) fn choose_model(&self, session: &str, model: &str) -> Result<()> {
        let store = self.store();
        let mut session = store.load(session, &Cancel::new(None), &|| ())?;
        store.append(
            &mut session,
            &[Entry::Model(model)],
            Durability::Now,
            SystemTime::now(),
        )
    }

    /// Archives a conversation and starts a new one. Returns whether there was one.
    pub(crate) fn reset(&self, session: &str) -> Result<bool> {
        Ok(archive::reset(&self.home, session, &Cancel::new(None), SystemTime::now())?.is_some())
    }
}

/// The last question of a conversation.
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
