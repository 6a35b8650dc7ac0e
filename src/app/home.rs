//! A home for programs: a directory and settings, with the built-in tools and their sandbox.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::checks::must_confirm_exec;
use super::factory::AgentFactory;
use super::{
    Options, Parts, builder, chain, local_time, make_workspace, mcp, media, workers, workspace,
};
use crate::agent::Builder;
use crate::child;
use crate::config::{self, Config, Env};
use crate::error::{Error, Result};
use crate::mcp::{Servers, missing_prefix};
use crate::paths;
use crate::session::FileStore;
use crate::tool::cron::cron_tool;
use crate::tool::exec::exec_tool;
use crate::tool::files::file_tools;
use crate::tool::meaning::Meaning;
use crate::tool::memory::memory_tool;
use crate::tool::message::message_tool;
use crate::tool::skill::skill_tool;
use crate::tool::subagent::subagent_tool;
use crate::tool::think::think_tool;
use crate::tool::web::{web_fetch_tool, web_search_tool};
use crate::tool::{Function, Registry, Workshop};
use crate::worker::{Workers, begun};

/// A directory and settings, from which built-in tools, stores and agents are made.
///
/// Tools work in `workspace/` of the directory, or where `agents.defaults.workspace` says, and reach nothing else of it, so
/// conversations, keys and instructions (`agent/`) are safe there. Each call of a file tool or a command is a process of the program
/// that embeds bantam, so its `main` begins with [`init`](crate::init). Two homes share nothing but the choice of the sandbox, which is
/// made once in a process.
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
pub struct Home {
    factory: AgentFactory,
    config: Arc<Config>,
    workers: Arc<Workers>,
}

impl Home {
    /// The home `dir` with settings in the form of config.json (docs/settings.md lists them), in place of that file and of the
    /// variables that begin with `BANTAM_`. Makes the workspace from the template, if it is missing.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`]: a setting is unknown or of another type, or the workspace would hold the home.
    pub fn at(dir: impl AsRef<Path>, settings: &Value) -> Result<Self> {
        if !settings.is_object() {
            return Err(Error::config("the settings are not a JSON object"));
        }
        let home = paths::Home::new(std::path::absolute(dir.as_ref())?);
        let mut env = config::environment();
        env.retain(|name, _| !name.starts_with("BANTAM_"));
        Self::load(AgentFactory {
            home,
            env,
            file: Some(settings.to_string()),
            overrides: Vec::new(),
            options: Options {
                models_in_code: true,
                ..Options::default()
            },
        })
    }

    /// The home and the settings of `bantam` on this machine: `$BANTAM_HOME` with its config.json. Unknown settings are ignored.
    ///
    /// # Errors
    /// Those of [`Home::at`].
    pub fn user() -> Result<Self> {
        let env = config::environment();
        Self::of_user(&config::home(&env)?, &env)
    }

    pub(super) fn of_user(home: &paths::Home, env: &Env) -> Result<Self> {
        Self::load(AgentFactory::new(home, env)?)
    }

    fn load(factory: AgentFactory) -> Result<Self> {
        let loaded = factory.load()?;
        // The file of a user may be that of another version; an unknown setting in code is a mistake.
        if !loaded.warnings.is_empty() && factory.options.models_in_code {
            return Err(Error::config(loaded.warnings.join("; ")));
        }
        let config = loaded.config;
        make_workspace(factory.parts(&config))?;
        let workers = Arc::new(workers(factory.parts(&config))?);
        Ok(Self {
            factory,
            config,
            workers,
        })
    }

    fn parts(&self) -> Parts<'_> {
        self.factory.parts(&self.config)
    }

    /// What tools share. Tools that run in the sandbox need [`init`](crate::init) at the beginning of `main`.
    fn workshop(&self) -> Result<Workshop> {
        begun()?;
        Ok(workshop(&self.workers, self.parts()))
    }

    /// Where the tools work.
    ///
    /// # Errors
    /// The path of the workspace cannot be made absolute.
    pub fn workspace(&self) -> Result<PathBuf> {
        workspace(self.parts())
    }

    /// The conversations of this home, on disk.
    pub fn store(&self) -> FileStore {
        FileStore::new(self.factory.home.clone())
    }

    /// An agent as `bantam` would build it from these settings, without tools: models, limits, instructions and memory, conversations
    /// on disk, usage and budget. If the settings of [`Home::at`] name no model, it has none before [`Builder::provider`];
    /// otherwise that adds one to be asked when those of the settings fail.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Config`]: the home of [`Home::user`] has no model, or settings cannot be used. The demo answers only if
    /// the settings name it (`demo/demo`).
    pub fn agent(&self) -> Result<Builder> {
        let (parts, options, config) = (self.parts(), &self.factory.options, &self.config);
        let builder = builder(parts, options, &self.workers);
        let names_model = !config.agents.defaults.model_name.trim().is_empty();
        if options.models_in_code && !names_model && config.model_list.is_empty() {
            return Ok(builder);
        }
        let chain = chain(parts, true, &builder.redactor, &mut Vec::new())?;
        Ok(builder.chain(chain))
    }

    /// `read_file`, `write_file`, `edit_file`, `append_file`, `list_dir` and `grep`, in the workspace and in the directories of
    /// `tools.read_paths` and `tools.write_paths`.
    ///
    /// # Errors
    /// `main` does not begin with [`init`](crate::init), or the model that transcribes recordings (`tools.transcribe.model`) cannot
    /// be used.
    pub fn files(&self) -> Result<Registry> {
        let mut workshop = self.workshop()?;
        workshop.transcribe = media::transcriber(self.parts())?;
        register(file_tools(&Arc::new(workshop)))
    }

    /// `exec`: a command in the sandbox, as `tools.exec` says; `tools.exec.enabled` counts for [`Home::all`] only.
    ///
    /// # Errors
    /// `main` does not begin with [`init`](crate::init).
    pub fn exec(&self) -> Result<Registry> {
        register(vec![exec_tool(&Arc::new(self.workshop()?))])
    }

    /// `web_fetch` and `web_search`, as `tools.web` says. They connect from this process; pages are read in the sandbox.
    ///
    /// # Errors
    /// Those of [`Home::exec`].
    pub fn web(&self) -> Result<Registry> {
        let workshop = Arc::new(self.workshop()?);
        register(vec![web_fetch_tool(&workshop), web_search_tool(&workshop)])
    }

    /// `memory`: notes of this home, wherever tools work. An agent of [`Home::agent`] shows them to the model.
    ///
    /// # Errors
    /// Those of [`Home::exec`], or `memory.embedding_model` cannot be used.
    pub fn memory(&self) -> Result<Registry> {
        let mut workshop = self.workshop()?;
        workshop.meaning = meaning(self.parts())?;
        register(vec![memory_tool(&Arc::new(workshop))])
    }

    /// `skill`, for the skills in `agent/skills/` of the home. An agent of [`Home::agent`] shows the model their list.
    ///
    /// # Errors
    /// Those of [`Home::exec`].
    pub fn skills(&self) -> Result<Registry> {
        register(vec![skill_tool(&Arc::new(self.workshop()?))])
    }

    /// The tools of an MCP server, called `NAME__TOOL`, whose texts are fenced as data; and notices for the user: that their
    /// descriptions have changed, or that some are left out. `entry` has the form of an entry of `mcpServers` in config.json. A program
    /// runs in its own sandbox; it starts with the first call, or now if its tools are not known yet.
    ///
    /// ```no_run
    /// use bantam::Home;
    /// use serde_json::json;
    ///
    /// # fn main() -> bantam::Result<()> {
    /// # bantam::init();
    /// let home = Home::at("agent-home", &json!({}))?;
    /// // It starts in a private directory, so paths are absolute; it reads these and those of the system.
    /// let bricks = std::env::current_dir()?.join("bricks");
    /// let local = json!({
    ///     "command": "python3", "args": [bricks.join("server.py")],
    ///     "read": [bricks], "network": false,
    /// });
    /// let (tools, notices) = home.mcp("bricks", &local)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The entry is wrong, is disabled, or lets the server read what must stay closed (the home), or the server does not list its
    /// tools.
    pub fn mcp(&self, name: &str, entry: &Value) -> Result<(Registry, Vec<String>)> {
        let unusable =
            |why: &str| Error::config(format!("the MCP server {name} cannot be used: {why}"));
        begun()?;
        let text = json!({"mcpServers": {name: entry}}).to_string();
        let loaded = Config::load(Some((config::IN_CODE, &text)), &Env::new(), Vec::new())?;
        if !loaded.warnings.is_empty() {
            return Err(unusable(&loaded.warnings.join("; ")));
        }
        let mut config = Config::clone(&self.config);
        config.mcp_servers.clone_from(&loaded.config.mcp_servers);
        let (mut tools, mut notices) = (Registry::new(), Vec::new());
        let config = Arc::new(config);
        let parts = self.factory.parts(&config);
        mcp::add_tools(
            &self.factory.options.servers,
            parts,
            &mut tools,
            &mut notices,
        );
        if tools.specs().next().is_some() {
            return Ok((tools, notices));
        }
        if config.mcp_servers.values().any(|entry| !entry.is_enabled()) {
            notices.push("it is disabled (enabled in its entry)".to_owned());
        }
        let why = notices.join("; ");
        if why.is_empty() {
            return Err(unusable("it offers no tools"));
        }
        // The server is named once.
        let why = why.strip_prefix(&missing_prefix(name)).unwrap_or(&why);
        let start = format!("starting MCP server {name}: ");
        Err(unusable(why.strip_prefix(&start).unwrap_or(why)))
    }

    /// All tools that the settings allow, as `bantam` has them, but `cron`, whose jobs the gateway of `bantam` runs; and a notice for
    /// each that is missing or incomplete, for the person who wrote the settings.
    ///
    /// # Errors
    /// Those of [`Home::exec`].
    pub fn all(&self) -> Result<(Registry, Vec<String>)> {
        begun()?;
        let servers = &self.factory.options.servers;
        let (tools, notices) = configured(&self.workers, self.parts(), servers)?;
        Ok((tools.without(&["cron"]), notices))
    }
}

fn register(tools: Vec<Function>) -> Result<Registry> {
    let mut registry = Registry::new();
    tools.into_iter().try_for_each(|tool| registry.add(tool))?;
    Ok(registry)
}

/// All tools that the configuration allows, and a notice for each server whose tools are missing. Needs no model and no key.
pub(crate) fn configured(
    workers: &Arc<Workers>,
    parts: Parts,
    servers: &Servers,
) -> Result<(Registry, Vec<String>)> {
    let config = parts.config;
    let mut notices = Vec::new();
    let mut workshop = workshop(workers, parts);
    if !config.memory.embedding_model.is_empty() {
        match meaning(parts) {
            Ok(meaning) => workshop.meaning = meaning,
            Err(e) => notices.push(e.message),
        }
    }
    if !config.tools.transcribe.model.is_empty() {
        match media::transcriber(parts) {
            Ok(transcribe) => workshop.transcribe = transcribe,
            Err(e) => notices.push(e.message),
        }
    }
    let workshop = Arc::new(workshop);
    let mut built_in = file_tools(&workshop);
    built_in.extend([
        skill_tool(&workshop),
        subagent_tool(&workshop),
        think_tool(),
        web_fetch_tool(&workshop),
        web_search_tool(&workshop),
        memory_tool(&workshop),
    ]);
    let has_exec = config.tools.exec.enabled && child::has_shell();
    if has_exec {
        built_in.push(exec_tool(&workshop));
    }
    if !config.channels.telegram.token.is_empty() {
        built_in.push(message_tool(&workshop));
    }
    if config.cron.enabled {
        let may_check = has_exec && !must_confirm_exec(config);
        built_in.push(cron_tool(&workshop, may_check));
    }
    let mut tools = register(built_in)?;
    if !config.mcp_servers.is_empty() {
        mcp::add_tools(servers, parts, &mut tools, &mut notices);
    }
    Ok((tools, notices))
}

fn workshop(workers: &Arc<Workers>, parts: Parts) -> Workshop {
    Workshop {
        home: parts.home.clone(),
        config: parts.config.clone(),
        env: parts.env.clone(),
        workers: workers.clone(),
        local_time: local_time(parts.env),
        transcribe: None,
        meaning: None,
    }
}

/// Compares meanings, if the configuration names a model for it.
fn meaning(parts: Parts) -> Result<Option<Meaning>> {
    let (home, model) = (parts.home, &parts.config.memory.embedding_model);
    let endpoint = media::endpoint("memory.embedding_model", model, parts)?;
    Ok(endpoint.map(|endpoint| Meaning {
        model: format!("{} {}", endpoint.host.model.base, endpoint.host.model.id),
        embed: Box::new(move |texts, cancel, budget| endpoint.embed(texts, cancel, budget)),
        file: home.state().join("vectors.json"),
        lock: home.lock("vectors"),
    }))
}
