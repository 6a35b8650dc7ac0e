//! The gateway's agent, and its replies to commands.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use super::factory::AgentFactory;
use super::{Parts, Ready, local_time, skills};
use crate::agent::Agent;
use crate::bus::Command;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::gateway::{CommandReply, Handler};
use crate::mcp::{Background, Unknown};
use crate::provider::catalog;
use crate::session::{FileStore, Session};
use crate::storage::Queue;
use crate::sync;
use crate::telegram;
use crate::text::clip;
use crate::usage;

/// Answers the gateway's messages.
pub(super) struct GatewayHandler {
    factory: AgentFactory,
    config: Arc<Config>,
    /// Rebuilt after the tools of a server have changed.
    built: Mutex<Option<Built>>,
}

struct Built {
    agent: Arc<Agent>,
    /// Generation of the servers' tools.
    generation: u64,
}

impl GatewayHandler {
    /// Makes a handler. `config` is the factory's, with the tokens of bot and endpoint resolved, so that they are redacted.
    pub(super) fn new(factory: AgentFactory, config: Arc<Config>) -> Self {
        Self {
            factory,
            config,
            built: Mutex::default(),
        }
    }

    /// Returns the text of config.json from which agents are built.
    pub(super) fn config_file(&self) -> Option<&str> {
        self.factory.file.as_deref()
    }

    /// Sets the home's queue, and lists MCP servers with unknown tools in the background, for later turns.
    pub(super) fn begin(&mut self, queue: &Arc<Queue>, listing: Background) -> Result<()> {
        self.factory.options.queue = Some(queue.clone());
        self.factory.options.servers.unknown = Unknown::List(listing);
        self.build().map(drop)
    }

    /// Builds the agent, and returns it with notices for the user.
    pub(super) fn build(&self) -> Result<(Arc<Agent>, Vec<String>)> {
        let generation = self.factory.options.servers.generation();
        let Ready { agent, notices } = self.factory.build(&self.config)?;
        let agent = Arc::new(agent);
        *self.built() = Some(Built {
            agent: agent.clone(),
            generation,
        });
        Ok((agent, notices))
    }

    fn built(&self) -> MutexGuard<'_, Option<Built>> {
        sync::lock(&self.built)
    }

    fn parts(&self) -> Parts<'_> {
        self.factory.parts(&self.config)
    }

    /// Names the current model, and lists the configured models and those that their providers offer.
    fn offer_models(&self, session: &str) -> Result<CommandReply> {
        let mut models = self.models();
        for name in catalog::names(self.parts()) {
            if !models.contains(&name) {
                models.push(name);
            }
        }
        let now = self.agent()?.models_for(session)?;
        let model = now.first();
        let text = format!(
            "`{model}` answers here. To change that, press a button, or type any other name after `/model`, such as `/model \
             PROVIDER/MODEL`."
        );
        Ok(CommandReply { text, models })
    }

    fn choose_model(&self, session: &str, name: &str) -> Result<String> {
        if self.factory.is_model_fixed() {
            return Err(Error::config(
                "the gateway's environment sets the model for every conversation",
            )
            .hint("unset BANTAM_AGENTS_DEFAULTS_MODEL_NAME"));
        }
        let name = catalog::whole_name(self.parts(), name)?;
        let models = self.agent()?.models().choose(&name, None)?;
        self.factory.choose_model(session, &name)?;
        Ok(format!("From now on `{}` answers here.", models.first()))
    }

    fn status(&self, session: &str) -> Result<String> {
        let store = FileStore::new(self.factory.home.clone());
        let messages = Session::peek(&store, session)?.messages.len();
        let agent = self.agent()?;
        Ok(format!(
            "bantam {}, `{}`\nmessages in this conversation: {messages}\ncontext: {}",
            env!("CARGO_PKG_VERSION"),
            agent.models_for(session)?.first(),
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
            self.agent()?.window_use(session)?
        ))
    }
}

/// Capitalizes the first letter.
fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + chars.as_str()
}

impl Handler for GatewayHandler {
    fn agent(&self) -> Result<Arc<Agent>> {
        let generation = self.factory.options.servers.generation();
        if let Some(built) = &*self.built() {
            if built.generation == generation {
                return Ok(built.agent.clone());
            }
        }
        Ok(self.build()?.0)
    }

    fn unknown_command(&self, message: &str) -> Option<String> {
        skills(&self.factory.home, &self.config).unknown_command(message)
    }

    fn models(&self) -> Vec<String> {
        let names = self.config.names().into_iter();
        names.map(str::to_owned).collect()
    }

    fn command(&self, command: &Command, session: &str) -> Result<CommandReply> {
        let text = match command {
            Command::New => {
                self.factory.reset(session)?;
                "This is a new conversation.".to_owned()
            }
            Command::Undo => match self.factory.undo_with_files(session)? {
                Some(undone) => sentence(&undone.lines().join("\n")),
                None => "There is nothing to take back.".to_owned(),
            },
            Command::Model(name) if name.is_empty() => return self.offer_models(session),
            Command::Model(name) => self.choose_model(session, name)?,
            Command::Status => self.status(session)?,
            Command::Usage => self.usage(session)?,
            Command::Help => telegram::help(),
            Command::Stop => String::new(),
        };
        Ok(text.into())
    }
}
