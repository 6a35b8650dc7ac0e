//! The gateway's agents, and its answers to control messages.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::factory::AgentFactory;
use super::{local_time, skills};
use crate::agent::Agent;
use crate::bus::Kind;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::gateway::{ControlReply, Handler};
use crate::log::Log;
use crate::mcp::Unknown;
use crate::provider::catalog;
use crate::secret::Secret;
use crate::session::{FileStore, Session};
use crate::text::clip;
use crate::usage;

/// One agent for each model in use, made on demand.
pub(super) struct AgentPool {
    factory: AgentFactory,
    /// The tokens of the bot and of the endpoint, resolved, if there are such: they are redacted wherever they appear.
    bot_token: Option<Secret>,
    http_token: Option<Secret>,
    /// By the name of the model; `None` is the configured one.
    agents: Mutex<HashMap<Option<String>, Arc<Agent>>>,
    /// Of the servers whose tools these agents have.
    generation: AtomicU64,
}

impl AgentPool {
    pub(super) fn new(
        factory: AgentFactory,
        bot_token: Option<Secret>,
        http_token: Option<Secret>,
    ) -> Self {
        Self {
            factory,
            bot_token,
            http_token,
            agents: Mutex::default(),
            generation: AtomicU64::new(0),
        }
    }

    /// The text of config.json that the agents are built from.
    pub(super) fn config_file(&self) -> Option<&str> {
        self.factory.file.as_deref()
    }

    /// Lists MCP servers whose tools are not known; the next turns have them.
    pub(super) fn list_servers(&mut self, cancel: &Cancel, log: Log) -> Result<()> {
        self.factory.options.servers.unknown = Unknown::List(cancel.clone(), log);
        self.lock().clear();
        self.get(None).map(drop)
    }

    /// The agent for a model, and notices about a new one.
    pub(super) fn get(&self, model: Option<&str>) -> Result<(Arc<Agent>, Vec<String>)> {
        let key = model.map(str::to_owned);
        let generation = self.factory.options.servers.generation();
        {
            let mut agents = self.lock();
            if self.generation.swap(generation, Ordering::SeqCst) != generation {
                agents.clear();
            }
            if let Some(agent) = agents.get(&key) {
                return Ok((agent.clone(), Vec::new()));
            }
        }
        let mut loaded = self.factory.load(model)?;
        if let Some(token) = &self.bot_token {
            Arc::make_mut(&mut loaded.config).channels.telegram.token = token.clone();
        }
        if let Some(token) = &self.http_token {
            Arc::make_mut(&mut loaded.config).channels.http.token = token.clone();
        }
        let ready = self.factory.build(&loaded.config)?;
        let agent = Arc::new(ready.agent);
        if self.generation.load(Ordering::SeqCst) == generation {
            self.lock().insert(key, agent.clone());
        }
        Ok((agent, ready.notices))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<String>, Arc<Agent>>> {
        self.agents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names the model in use and those to choose from: the configured ones, and what their hosts offer.
    fn offer_models(&self, session: &str) -> Result<ControlReply> {
        let loaded = self.factory.load(None)?;
        let mut models = loaded.config.whole_names();
        let mut names = models.clone();
        let hosts = loaded.config.host_names().into_iter();
        names.extend(hosts.map(|host| format!("a model of {host} as {host}/NAME")));
        let names = names.join(", ");
        for name in catalog::names(self.factory.parts(&loaded.config)) {
            if !models.contains(&name) {
                models.push(name);
            }
        }
        let or = if names.is_empty() { "" } else { ", or " };
        let model = self.agent(session)?.model().to_owned();
        let text = format!(
            "`{model}` answers. To change it: `/model NAME`, with one of: {names}{or}VENDOR/MODEL"
        );
        Ok(ControlReply { text, models })
    }

    fn choose_model(&self, session: &str, name: &str) -> Result<String> {
        if self.factory.is_model_fixed() {
            return Err(Error::config(
                "the gateway's environment sets the model for every conversation",
            )
            .hint("unset BANTAM_AGENTS_DEFAULTS_MODEL_NAME"));
        }
        let (agent, name) = match self.get(Some(name)) {
            Ok((agent, _)) => (agent, name.to_owned()),
            Err(e) => {
                // A name without its host will do if one host alone has it.
                let whole = self.whole_name(name)?.ok_or(e)?;
                (self.get(Some(&whole))?.0, whole)
            }
        };
        self.factory.choose_model(session, &name)?;
        Ok(format!("From now on `{}` answers here.", agent.model()))
    }

    /// `HOST/NAME` for a name that exactly one host has.
    fn whole_name(&self, name: &str) -> Result<Option<String>> {
        let loaded = self.factory.load(None)?;
        let mut found = catalog::names(self.factory.parts(&loaded.config));
        found.retain(|whole| whole.split_once('/').is_some_and(|(_, bare)| bare == name));
        Ok(found.pop().filter(|_| found.is_empty()))
    }

    fn status(&self, session: &str) -> Result<String> {
        let store = FileStore::new(self.factory.home.clone());
        let messages = Session::peek(&store, session)?.messages.len();
        let agent = self.agent(session)?;
        Ok(format!(
            "bantam {}, `{}`\nmessages in this conversation: {messages}\ncontext: {}",
            env!("CARGO_PKG_VERSION"),
            agent.model(),
            agent.window_use(session)?
        ))
    }

    fn usage(&self, session: &str) -> Result<String> {
        let today = local_time(&self.factory.env)(SystemTime::now());
        let total = usage::report(&self.factory.home.usage(), clip(&today, 10))?.total;
        let cost = total
            .cost
            .map_or(String::new(), |cost| format!(", cost {cost}"));
        let (calls, usage) = (total.calls, total.usage);
        Ok(format!(
            "Today: {calls} calls, {} tokens read and {} written{cost}.\nContext of this conversation: {}.",
            usage.prompt_tokens,
            usage.completion_tokens,
            self.agent(session)?.window_use(session)?
        ))
    }
}

/// The text with a capital letter.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

impl Handler for AgentPool {
    /// With the model chosen in this conversation, or the configured one if that is gone.
    fn agent(&self, session: &str) -> Result<Arc<Agent>> {
        let chosen = self.factory.chosen_model(session);
        Ok(self.get(chosen.as_deref()).or_else(|_| self.get(None))?.0)
    }

    fn agent_with(&self, model: Option<&str>) -> Result<Arc<Agent>> {
        Ok(self.get(model)?.0)
    }

    fn unknown_command(&self, message: &str) -> Option<String> {
        let loaded = self.factory.load(None).ok()?;
        skills(&self.factory.home, &loaded.config).unknown_command(message)
    }

    fn models(&self) -> Vec<String> {
        let loaded = self.factory.load(None);
        loaded.map_or_else(|_| Vec::new(), |loaded| loaded.config.whole_names())
    }

    fn control(&self, kind: &Kind, session: &str) -> Result<ControlReply> {
        let text = match kind {
            Kind::New => {
                self.factory.reset(session)?;
                "This is a new conversation.".to_owned()
            }
            Kind::Undo => match self.factory.undo_with_files(session)? {
                Some(undone) => sentence(&undone.lines().join("\n")),
                None => "There is nothing to take back.".to_owned(),
            },
            Kind::Model(name) if name.is_empty() => return self.offer_models(session),
            Kind::Model(name) => self.choose_model(session, name)?,
            Kind::Status => self.status(session)?,
            Kind::Usage => self.usage(session)?,
            Kind::Message | Kind::Report | Kind::Stop => String::new(),
        };
        Ok(text.into())
    }
}
