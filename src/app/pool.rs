//! The gateway's agents, and its answers to control messages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::{Keep, build, local_time};
use crate::agent::Agent;
use crate::bus::Kind;
use crate::cancel::Cancel;
use crate::config::{self, Env, Loaded};
use crate::cron::Jobs;
use crate::disk::Durability;
use crate::error::Result;
use crate::gateway::{Busy, Handler};
use crate::paths::Home;
use crate::secret::Secret;
use crate::session::{self, Entry, Files, Store, archive};
use crate::text::clip;
use crate::usage;

/// One agent for each model in use, made on demand.
pub struct AgentPool {
    home: Home,
    file: Option<String>,
    env: Env,
    /// The bot's token, resolved: it is redacted wherever it appears.
    token: Secret,
    /// By the name of the model; `None` is the configured one.
    agents: Mutex<HashMap<Option<String>, Arc<Agent>>>,
}

impl AgentPool {
    pub fn new(home: &Home, file: Option<String>, env: &Env, token: Secret) -> Self {
        Self { home: home.clone(), file, env: env.clone(), token, agents: Mutex::default() }
    }

    fn load(&self) -> Result<Loaded> {
        config::load_for(&self.home, self.file.as_deref(), &self.env, Vec::new())
    }

    /// The agent for a model, and notices about a new one.
    pub fn get(&self, model: Option<&str>) -> Result<(Arc<Agent>, Vec<String>)> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let key = model.map(str::to_owned);
        if let Some(agent) = agents.get(&key) {
            return Ok((agent.clone(), Vec::new()));
        }
        let mut loaded = self.load()?;
        loaded.config.channels.telegram.token = self.token.clone();
        if let Some(model) = model {
            loaded.config.agents.defaults.model_name = model.to_owned();
        }
        let ready = build(&super::Parts {
            home: &self.home,
            config: &loaded.config,
            env: &self.env,
            configured: self.file.is_some(),
            keep: Keep::OnDisk,
            stream: true,
            tools: None,
            jobs: Some(Jobs::new(self.home.clone(), &self.env)),
            budget_tokens: None,
        })?;
        let agent = Arc::new(ready.agent);
        agents.insert(key, agent.clone());
        Ok((agent, ready.notices))
    }

    /// Tells which model answers and which others there are.
    fn models(&self, session: &str) -> Result<String> {
        let loaded = self.load()?;
        let names = loaded.config.model_list.iter().map(|entry| entry.model_name.as_str());
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        let others = if names.is_empty() { "VENDOR/MODEL".to_owned() } else { names.join(", ") };
        Ok(format!("`{}` answers. To change it: `/model NAME`, with one of: {others}", self.agent(session)?.model()))
    }

    fn choose_model(&self, session: &str, name: &str) -> Result<String> {
        let (agent, _) = self.get(Some(name))?;
        let store = Files::new(self.home.clone());
        let mut session = store.load(session, &Cancel::new(None))?;
        store.append(&mut session, &[Entry::State(session::MODEL, name)], Durability::Now, SystemTime::now())?;
        Ok(format!("From now on `{}` answers here.", agent.model()))
    }

    fn status(&self, session: &str, busy: Busy) -> Result<String> {
        let messages = Files::new(self.home.clone()).peek(session)?.messages.len();
        Ok(format!(
            "bantam {}, `{}`\nmessages in this conversation: {messages}\nturns under way: {}\nbackground tasks: {}",
            env!("CARGO_PKG_VERSION"),
            self.agent(session)?.model(),
            busy.turns,
            busy.tasks
        ))
    }

    fn usage(&self) -> Result<String> {
        let today = local_time(&self.env)(SystemTime::now());
        let total = usage::report(&self.home.usage(), clip(&today, 10))?.total;
        let cost = total.cost.map_or(String::new(), |cost| format!(", cost {cost}"));
        let (calls, usage) = (total.calls, total.usage);
        Ok(format!(
            "Today: {calls} calls, {} tokens read and {} written{cost}.",
            usage.prompt_tokens, usage.completion_tokens
        ))
    }
}

impl Handler for AgentPool {
    fn agent(&self, session: &str) -> Result<Arc<Agent>> {
        // A damaged session is reported when the turn loads it.
        let chosen = session::stored_state(&self.home, session).unwrap_or_default().remove(session::MODEL);
        // Falls back to the configured model if the chosen one is gone.
        Ok(self.get(chosen.as_deref()).or_else(|_| self.get(None))?.0)
    }

    fn control(&self, kind: &Kind, session: &str, busy: Busy) -> Result<String> {
        match kind {
            Kind::New => {
                archive::reset(&self.home, session, &Cancel::new(None), SystemTime::now())?;
                Ok("A new conversation begins.".to_owned())
            }
            Kind::Model(name) if name.is_empty() => self.models(session),
            Kind::Model(name) => self.choose_model(session, name),
            Kind::Status => self.status(session, busy),
            Kind::Usage => self.usage(),
            Kind::Message | Kind::Report | Kind::Task | Kind::Stop => Ok(String::new()),
        }
    }
}
