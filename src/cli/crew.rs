//! Who does what comes in at the gateway: agents for conversations, and answers to what is no turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use crate::agent::Agent;
use crate::app;
use crate::bus::Kind;
use crate::cancel::Cancel;
use crate::config::{self, Env};
use crate::cron::Jobs;
use crate::disk::Durability;
use crate::error::Result;
use crate::gateway::{Busy, Dispatcher, Handler};
use crate::paths::Home;
use crate::secret::Secret;
use crate::session::{self, Entry, Files, Store, archive};
use crate::text::clip;
use crate::usage;

/// Makes agents for conversations, and does what is no turn.
pub struct AgentPool {
    home: Home,
    file: Option<String>,
    env: Env,
    /// The bot's, as it was found: it is struck wherever it turns up.
    token: Secret,
    /// By the model's name; none for the one of the configuration.
    agents: Mutex<HashMap<Option<String>, Arc<Agent>>>,
    /// Where it works, once that is open.
    floor: OnceLock<Weak<Dispatcher>>,
}

impl AgentPool {
    pub fn new(home: &Home, file: Option<String>, env: &Env, token: Secret) -> Self {
        Self { home: home.clone(), file, env: env.clone(), token, agents: Mutex::default(), floor: OnceLock::new() }
    }

    /// Whether nothing is under way where it works.
    pub fn is_idle(&self) -> bool {
        self.floor.get().and_then(Weak::upgrade).is_none_or(|floor| floor.is_idle())
    }

    /// The agent that answers with this model, or with the one of the configuration; and what there is to say about it.
    pub fn make(&self, model: Option<&str>) -> Result<(Arc<Agent>, Vec<String>)> {
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let key = model.map(str::to_owned);
        if let Some(agent) = agents.get(&key) {
            return Ok((agent.clone(), Vec::new()));
        }
        let mut loaded = config::load_for(&self.home, self.file.as_deref(), &self.env, Vec::new())?;
        loaded.config.channels.telegram.token = self.token.clone();
        if let Some(model) = model {
            loaded.config.agents.defaults.model_name = model.to_owned();
        }
        let ready = app::build(&app::Parts {
            home: &self.home,
            config: &loaded.config,
            env: &self.env,
            configured: self.file.is_some(),
            keep: app::Keep::OnDisk,
            stream: true,
            tools: None,
            jobs: Some(Jobs::new(self.home.clone(), &self.env)),
            budget_tokens: None,
        })?;
        let agent = Arc::new(ready.agent);
        agents.insert(key, agent.clone());
        Ok((agent, ready.notices))
    }

    /// The model that was chosen in a conversation.
    fn chosen(&self, session: &str) -> Option<String> {
        // A file that cannot be read is told of when it is loaded.
        session::stored_state(&self.home, session).unwrap_or_default().remove(session::MODEL)
    }
}

impl Handler for AgentPool {
    fn opens(&self, floor: &Arc<Dispatcher>) {
        // There is one of them in a program.
        let _again = self.floor.set(Arc::downgrade(floor));
    }

    fn agent(&self, session: &str) -> Result<Arc<Agent>> {
        let chosen = self.chosen(session);
        // One that is not to be had any more makes room for the usual one.
        let (agent, _) = self.make(chosen.as_deref()).or_else(|_| self.make(None))?;
        Ok(agent)
    }

    fn handle(&self, kind: &Kind, session: &str, busy: Busy) -> Result<String> {
        let cancel = Cancel::new(None);
        match kind {
            Kind::New => {
                archive::reset(&self.home, session, &cancel, SystemTime::now())?;
                Ok("A new conversation begins.".to_owned())
            }
            Kind::Model(name) if name.is_empty() => {
                let loaded = config::load_for(&self.home, self.file.as_deref(), &self.env, Vec::new())?;
                let names = loaded.config.model_list.iter().map(|entry| entry.model_name.as_str());
                let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
                let now = self.agent(session)?.model().to_owned();
                let others = if names.is_empty() { "VENDOR/MODEL".to_owned() } else { names.join(", ") };
                Ok(format!("`{now}` answers. `/model NAME` takes another: {others}"))
            }
            Kind::Model(name) => {
                let (agent, _) = self.make(Some(name))?;
                let store = Files::new(self.home.clone());
                let mut session = store.load(session, &cancel)?;
                let entry = [Entry::State(session::MODEL, name)];
                store.append(&mut session, &entry, Durability::Now, SystemTime::now())?;
                Ok(format!("From now on `{}` answers here.", agent.model()))
            }
            Kind::Status => {
                let agent = self.agent(session)?;
                let messages = Files::new(self.home.clone()).peek(session)?.messages.len();
                Ok(format!(
                    "bantam {}, `{}`\nmessages in this conversation: {messages}\nturns under way: {}\nbackground tasks: {}",
                    env!("CARGO_PKG_VERSION"),
                    agent.model(),
                    busy.turns,
                    busy.tasks
                ))
            }
            Kind::Usage => {
                let today = app::local_time(&self.env)(SystemTime::now());
                let total = usage::report(&self.home.usage(), clip(&today, 10))?.total;
                let read = total.usage.prompt_tokens;
                let cost = total.cost.map_or(String::new(), |cost| format!(", which cost {cost}"));
                let (calls, wrote) = (total.calls, total.usage.completion_tokens);
                Ok(format!("Today: {calls} calls, {read} tokens read and {wrote} written{cost}."))
            }
            Kind::Message | Kind::Report | Kind::Task | Kind::Stop => Ok(String::new()),
        }
    }
}
