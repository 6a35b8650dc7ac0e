//! Builds agents from a home. Only this module names concrete types.

pub(crate) mod bot;
mod conversation;
pub(crate) mod facts;
mod grants;
pub(crate) mod mcp;
pub(crate) mod media;
mod models;
pub(crate) mod status;
#[cfg(test)]
mod tests;
mod tools;
mod workspace;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use serde_json::Value;

use crate::agent::prompt::PromptFiles;
use crate::agent::{Agent, Builder, History, Limits};
use crate::config::proxy::http_settings;
use crate::config::vendors::VENDORS;
use crate::config::{self, Config, Env, Loaded, Override};
use crate::cron::schedule;
use crate::error::{Error, Result};
use crate::mcp::Servers;
use crate::paths;
use crate::provider::{Chain, Retry};
use crate::redact::Redactor;
use crate::session::{self, FileStore};
use crate::skills::Skills;
use crate::text::LocalTime;
use crate::timezone::Zone;
use crate::usage::Ledger;
use crate::worker::Workers;
pub(crate) use conversation::{StoredConversation, chat_status};
pub(crate) use grants::{grants, tools_write, workspace};
pub(crate) use models::chain;
pub(crate) use tools::{must_confirm_exec, unconfirmed};
pub(crate) use workspace::{make_workspace, misplaced, workers};

/// Setting of the workspace.
const WORKSPACE: &str = "agents.defaults.workspace";
/// Setting of the model.
pub(crate) const MODEL_NAME: &str = "agents.defaults.model_name";

/// Directory and settings of an agent's home, which provides the built-in tools and conversation stores.
///
/// Tools work in `workspace/` of the directory, or in `agents.defaults.workspace`, and cannot access the rest of it:
/// conversations, keys and instructions (`agent/`). Each call of a file tool or a command runs in a separate process of the
/// embedding program, so `main` must begin with [`init`](crate::init). Homes are independent, except for the choice of the
/// sandbox, which is made once per process.
///
/// ```no_run
/// use bantam::{Agent, Home, OpenAi};
/// use serde_json::json;
///
/// fn main() -> bantam::Result<()> {
///     bantam::init();
///     let home = Home::at("/var/lib/helper", &json!({"tools": {"exec": {"timeout": 20}}}))?;
///     let agent = Agent::builder()
///         .provider(OpenAi::new("http://localhost:11434/v1", "", "qwen3:4b"))
///         .tools(home.files()?)
///         .tools(home.exec()?)
///         .build()?;
///     println!("{}", agent.ask("How much space is left on this disk?")?);
///     Ok(())
/// }
/// ```
pub struct App {
    pub(crate) home: paths::Home,
    pub(crate) env: Arc<Env>,
    /// Text of config.json, or `None` without one. Read once, when it is first needed.
    text: OnceLock<Result<Option<String>>>,
    /// Settings that flags override.
    overrides: Vec<Override>,
    /// Whether a program gives the settings, and may supply models.
    is_in_code: bool,
    loaded: OnceLock<Result<Arc<Loaded>>>,
    workers: OnceLock<Result<Arc<Workers>>>,
    redactor: OnceLock<Redactor>,
    /// Reads the time zone at its first use, once for all.
    local_time: LocalTime,
    /// MCP servers, shared by all agents of the home.
    pub(crate) servers: Servers,
    /// Models by the name of the first; the name is empty for the configured model. Turns share them, and thus the state of
    /// their keys.
    chains: Mutex<HashMap<String, Arc<Chain>>>,
}

/// How a command or a channel uses an agent.
#[derive(Default)]
pub(crate) struct Flags {
    /// Store of conversations in memory; `None` stores them in the home.
    pub memory: Option<session::MemoryStore>,
    pub whole_replies: bool,
    /// Whether the text of a reply is hidden until its end.
    pub unseen: bool,
    /// Names of the tools to offer; `None` offers all.
    pub tools: Option<Vec<String>>,
    /// Token budget of one turn.
    pub budget_tokens: Option<u64>,
    /// Key prefix of conversations whose user may undo turns.
    pub undo_of: Option<&'static str>,
    /// Additional section of the system prompt.
    pub system: Option<String>,
}

impl App {
    /// Opens the home of this environment. Errors in config.json are returned by [`App::loaded`], because some commands mend
    /// it.
    pub(crate) fn open(env: &Arc<Env>) -> Result<Self> {
        Ok(Self::new(config::home(env)?, env.clone()))
    }

    pub(crate) fn new(home: paths::Home, env: Arc<Env>) -> Self {
        Self {
            local_time: local_time(&env),
            home,
            env,
            text: OnceLock::new(),
            overrides: Vec::new(),
            is_in_code: false,
            loaded: OnceLock::new(),
            workers: OnceLock::new(),
            redactor: OnceLock::new(),
            servers: Servers::default(),
            chains: Mutex::default(),
        }
    }

    /// Returns the same home with settings that flags override.
    pub(crate) fn with_overrides(&self, overrides: Vec<Override>) -> Self {
        Self {
            text: self.text.clone(),
            overrides,
            ..Self::new(self.home.clone(), self.env.clone())
        }
    }

    /// Returns the same home for a request that is not sent, with a placeholder for each missing key.
    pub(crate) fn without_keys(mut self) -> Result<Self> {
        let config = &self.loaded()?.config;
        if config.agents.defaults.model_name.is_empty() && config.model_list.is_empty() {
            return Ok(self);
        }
        let env = Arc::make_mut(&mut self.env);
        for name in VENDORS.iter().flat_map(|vendor| vendor.keys) {
            let value = env.entry((*name).to_owned()).or_default();
            if value.is_empty() {
                "not-sent".clone_into(value);
            }
        }
        self.loaded = OnceLock::new();
        Ok(self)
    }

    /// Opens the home `dir` with settings in the format of config.json (see docs/settings.md), instead of that file and of
    /// variables with the prefix `BANTAM_`. Creates a missing workspace from the template.
    ///
    /// # Errors
    /// Returns [`crate::ErrorKind::Config`] for an unknown setting or a wrong type, or if the workspace would contain the home.
    pub fn at(dir: impl AsRef<Path>, settings: &Value) -> Result<Self> {
        if !settings.is_object() {
            return Err(Error::config("the settings are not a JSON object"));
        }
        let home = paths::Home::new(std::path::absolute(dir.as_ref())?);
        let mut env = config::environment();
        env.retain(|name, _| !name.starts_with("BANTAM_"));
        let (env, text) = (Arc::new(env), settings.to_string());
        let loaded = Loaded::read(&home, &env, Some((config::IN_CODE, &text)), Vec::new())?;
        // A user's file may be of another version, but an unknown setting in code is a mistake.
        if !loaded.warnings.is_empty() {
            return Err(Error::config(loaded.warnings.join("; ")));
        }
        let app = Self {
            is_in_code: true,
            loaded: Ok(Arc::new(loaded)).into(),
            ..Self::new(home, env)
        };
        app.prepared()
    }

    /// Opens the home of `bantam` on this machine, `$BANTAM_HOME` with its config.json. Ignores unknown settings.
    ///
    /// # Errors
    /// Returns the errors of [`Home::at`](App::at).
    pub fn user() -> Result<Self> {
        Self::open(&Arc::new(config::environment()))?.prepared()
    }

    /// Returns the home with a workspace.
    fn prepared(self) -> Result<Self> {
        make_workspace(self.loaded()?)?;
        self.workers()?;
        Ok(self)
    }

    /// Returns the settings.
    ///
    /// # Errors
    /// Returns [`crate::ErrorKind::Config`] if config.json is invalid or cannot be read.
    pub(crate) fn loaded(&self) -> Result<&Arc<Loaded>> {
        let load = || {
            let overrides = self.overrides.clone();
            config::load_for(&self.home, self.text()?, &self.env, overrides).map(Arc::new)
        };
        self.loaded.get_or_init(load).as_ref().map_err(Clone::clone)
    }

    /// Returns the text of config.json, or `None` without one.
    pub(crate) fn text(&self) -> Result<Option<&str>> {
        let text = self.text.get_or_init(|| config::read(&self.home));
        Ok(text.as_ref().map_err(Clone::clone)?.as_deref())
    }

    /// Returns the workers for the file and exec jobs of all tools.
    pub(crate) fn workers(&self) -> Result<Arc<Workers>> {
        let start = || workers(self.loaded()?).map(Arc::new);
        self.workers.get_or_init(start).clone()
    }

    /// Returns the redactor of all agents of the home, which also learns the keys that are resolved later.
    pub(crate) fn redactor(&self) -> Result<&Redactor> {
        let loaded = self.loaded()?;
        Ok(self.redactor.get_or_init(|| loaded.redactor()))
    }

    /// Builds an agent for all conversations, without writing files or contacting models, and returns it with notices for the
    /// user.
    pub(crate) fn build(self: &Arc<Self>, flags: &Flags) -> Result<(Agent, Vec<String>)> {
        let mut builder = self.builder(flags)?;
        builder.models = Some(self.clone());
        builder.agent.workers = Some(self.workers()?);
        let unknown = unconfirmed(&self.loaded()?.config).into_iter();
        let line = |e: Error| format!("{}; {}", e.message, e.hint.unwrap_or_default());
        let mut notices: Vec<String> = unknown.map(line).collect();
        let (mut tools, missing) = self.tools()?;
        notices.extend(missing);
        if let Some(names) = &flags.tools {
            tools = tools.only(names)?;
        }
        Ok((builder.tools(tools).build()?, notices))
    }

    /// Returns a builder for everything except models and tools.
    fn builder(&self, flags: &Flags) -> Result<Builder> {
        let loaded = self.loaded()?;
        let (workers, defaults) = (self.workers()?, &loaded.config.agents.defaults);
        let limits = Limits {
            max_steps: defaults.max_tool_iterations,
            timeout: Duration::from_secs(defaults.timeout),
            budget_tokens: flags.budget_tokens,
            max_calls: defaults.max_calls,
            retry: Retry {
                max: defaults.max_retries,
                first_wait: Duration::try_from_secs_f64(defaults.retry_initial_delay)
                    .unwrap_or(Duration::from_secs(1)),
                partial: flags.unseen,
            },
        };
        let mut builder = Agent::builder()
            .stream(!flags.whole_replies)
            .history(history(&loaded.config))
            .limits(limits);
        builder.agent.redactor = self.redactor()?.clone();
        builder.agent.confirm = loaded.config.tools.confirm.clone().into();
        if flags.memory.is_none() {
            builder.agent.undo_in = flags.undo_of.map(|kind| (self.home.clone(), kind));
        }
        builder.prompt.files = Some(PromptFiles {
            agent_dir: self.home.agent(),
            workspace: workers.workspace().clone(),
            notes: workers.notes().cloned(),
            is_own_workspace: workers.is_own_workspace(),
            unrestricted: !defaults.restrict_to_workspace,
            // Errors were reported by the workers.
            open: grants::tools_grants(loaded).unwrap_or_default(),
            skills: skills(loaded),
            local_time: self.local_time.clone(),
        });
        builder.agent.ledger = Some(Arc::new(ledger(loaded, self.local_time.clone())));
        if let Some(text) = flags.system.clone() {
            builder = builder.context("INSTRUCTIONS", move |_, _| text.clone());
        }
        Ok(match &flags.memory {
            Some(memory) => builder.store(memory.clone()),
            None => builder.store(self.store()),
        })
    }

    /// Returns the directory in which the tools work.
    ///
    /// # Errors
    /// Returns an error if the path of the workspace cannot be made absolute.
    pub fn workspace(&self) -> Result<PathBuf> {
        workspace(self.loaded()?)
    }

    /// Returns the store of this home's conversations, on disk.
    pub fn store(&self) -> FileStore {
        FileStore::new(self.home.clone())
    }

    /// Returns an agent builder as `bantam` configures it, without tools: models, limits, instructions, memory, conversations
    /// on disk, usage and budget. If the settings of [`Home::at`](App::at) name no model, add one by [`Builder::provider`]. Otherwise,
    /// that adds a fallback.
    ///
    /// # Errors
    /// Returns [`crate::ErrorKind::Config`] if the home of [`Home::user`](App::user) has no model, or for invalid settings. The demo is
    /// used only if the settings name it (`demo/demo`).
    pub fn agent(&self) -> Result<Builder> {
        let (loaded, builder) = (self.loaded()?, self.builder(&Flags::default())?);
        let config = &loaded.config;
        let names_model = !config.agents.defaults.model_name.trim().is_empty();
        if self.is_in_code && !names_model && config.model_list.is_empty() {
            return Ok(builder);
        }
        if config.choose_model(&self.env)?.is_none() {
            return Err(Error::config("no model is configured").hint("run `bantam onboard`"));
        }
        let chain = chain(loaded, "", &builder.agent.redactor, &mut Vec::new())?;
        Ok(builder.chain(chain))
    }
}

/// Returns a ledger for all requests with a cost. All ledgers share the same files.
fn ledger(loaded: &Loaded, local_time: LocalTime) -> Ledger {
    Ledger::new(loaded.home.usage(), loaded.config.budget, local_time)
}

/// Returns the limits on the part of a conversation sent to the model.
fn history(config: &Config) -> History {
    let session = &config.session;
    let ttl = Duration::try_from_secs_f64(session.ttl_hours * 3600.0).ok();
    History {
        window: config.agents.defaults.context_window,
        compact_at: session.compact_at,
        limit: session.history_limit,
        ttl: ttl.filter(|ttl| !ttl.is_zero()),
    }
}

/// Returns the skills of a home.
pub(crate) fn skills(loaded: &Loaded) -> Skills {
    let variables = loaded.config.tools.exec.pass_env.clone();
    Skills::new(loaded.home.agent(), variables)
}

/// Returns local time, which decides when the days of notes and usage begin.
pub(crate) fn local_time(env: &Arc<Env>) -> LocalTime {
    // The zone is read at the first use. Errors are reported where times are shown.
    let (env, zone) = (env.clone(), OnceLock::new());
    Arc::new(move |time| {
        let zone = zone.get_or_init(|| Zone::local(&env).unwrap_or_else(|_| Zone::utc()));
        zone.clock(schedule::millis(time) / 1000)
    })
}
