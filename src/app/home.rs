//! A home for programs: a directory and settings, with sandboxed built-in tools.

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
pub struct Home {
    factory: AgentFactory,
    config: Arc<Config>,
    workers: Arc<Workers>,
}

impl Home {
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

    /// Opens the home of `bantam` on this machine, `$BANTAM_HOME` with its config.json. Ignores unknown settings.
    ///
    /// # Errors
    /// Returns the errors of [`Home::at`].
    pub fn user() -> Result<Self> {
        let env = config::environment();
        Self::of_user(&config::home(&env)?, &env)
    }

    pub(super) fn of_user(home: &paths::Home, env: &Env) -> Result<Self> {
        Self::load(AgentFactory::new(home, env)?)
    }

    fn load(factory: AgentFactory) -> Result<Self> {
        let loaded = factory.load()?;
        // A user's file may be of another version, but an unknown setting in code is a mistake.
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

    /// Returns resources for tools. Sandboxed tools need [`init`](crate::init) at the start of `main`.
    fn workshop(&self) -> Result<Workshop> {
        begun()?;
        Ok(workshop(&self.workers, self.parts()))
    }

    /// Returns the directory in which the tools work.
    ///
    /// # Errors
    /// Returns an error if the path of the workspace cannot be made absolute.
    pub fn workspace(&self) -> Result<PathBuf> {
        workspace(self.parts())
    }

    /// Returns the store of this home's conversations, on disk.
    pub fn store(&self) -> FileStore {
        FileStore::new(self.factory.home.clone())
    }

    /// Returns an agent builder as `bantam` configures it, without tools: models, limits, instructions, memory, conversations
    /// on disk, usage and budget. If the settings of [`Home::at`] name no model, add one by [`Builder::provider`]. Otherwise,
    /// that adds a fallback.
    ///
    /// # Errors
    /// Returns [`crate::ErrorKind::Config`] if the home of [`Home::user`] has no model, or for invalid settings. The demo is
    /// used only if the settings name it (`demo/demo`).
    pub fn agent(&self) -> Result<Builder> {
        let (parts, options, config) = (self.parts(), &self.factory.options, &self.config);
        let builder = builder(parts, options, &self.workers);
        let names_model = !config.agents.defaults.model_name.trim().is_empty();
        if options.models_in_code && !names_model && config.model_list.is_empty() {
            return Ok(builder);
        }
        if config.choose_model(parts.env)?.is_none() {
            return Err(Error::config("no model is configured").hint("run `bantam onboard`"));
        }
        let chain = chain(parts, &builder.redactor, &mut Vec::new())?;
        Ok(builder.chain(chain))
    }

    /// Returns `read_file`, `write_file`, `edit_file`, `append_file`, `list_dir` and `grep`, for the workspace and the
    /// directories of `tools.read_paths` and `tools.write_paths`.
    ///
    /// # Errors
    /// Returns an error if `main` does not begin with [`init`](crate::init), or the model for transcription
    /// (`tools.transcribe.model`) cannot be used.
    pub fn files(&self) -> Result<Registry> {
        let mut workshop = self.workshop()?;
        workshop.transcribe = media::transcriber(self.parts())?;
        register(file_tools(&Arc::new(workshop)))
    }

    /// Returns `exec`, which runs commands in the sandbox, as set by `tools.exec`, even if `tools.exec.enabled` is false.
    ///
    /// # Errors
    /// Returns an error if `main` does not begin with [`init`](crate::init).
    pub fn exec(&self) -> Result<Registry> {
        register(vec![exec_tool(&Arc::new(self.workshop()?))])
    }

    /// Returns `web_fetch` and `web_search`, as set by `tools.web`. They connect from this process; pages are read in the
    /// sandbox.
    ///
    /// # Errors
    /// Returns the errors of [`Home::exec`].
    pub fn web(&self) -> Result<Registry> {
        let workshop = Arc::new(self.workshop()?);
        register(vec![web_fetch_tool(&workshop), web_search_tool(&workshop)])
    }

    /// Returns `memory`, for notes of this home. Agents of [`Home::agent`] show the notes to the model.
    ///
    /// # Errors
    /// Returns the errors of [`Home::exec`], and an error if `memory.embedding_model` cannot be used.
    pub fn memory(&self) -> Result<Registry> {
        let mut workshop = self.workshop()?;
        workshop.meaning = meaning(self.parts())?;
        register(vec![memory_tool(&Arc::new(workshop))])
    }

    /// Returns `skill`, for the skills in `agent/skills/` of the home. Agents of [`Home::agent`] list them for the model.
    ///
    /// # Errors
    /// Returns the errors of [`Home::exec`].
    pub fn skills(&self) -> Result<Registry> {
        register(vec![skill_tool(&Arc::new(self.workshop()?))])
    }

    /// Returns the tools of an MCP server, named `NAME__TOOL`, whose texts are fenced as data, and notices for the user about
    /// changed descriptions or omitted tools. `entry` has the format of `mcpServers` in config.json. A program runs in its own
    /// sandbox, and starts with the first call, or now if its tools are unknown.
    ///
    /// ```no_run
    /// use bantam::Home;
    /// use serde_json::json;
    ///
    /// # fn main() -> bantam::Result<()> {
    /// # bantam::init();
    /// let home = Home::at("agent-home", &json!({}))?;
    /// // The server starts in a private directory, so paths are absolute. It can read these and the system's.
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
    /// Returns an error if the entry is invalid or disabled, lets the server read a closed directory (the home), or the server
    /// does not list its tools.
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
        // Removes a repeated name of the server.
        let why = why.strip_prefix(&missing_prefix(name)).unwrap_or(&why);
        let start = format!("starting MCP server {name}: ");
        Err(unusable(why.strip_prefix(&start).unwrap_or(why)))
    }

    /// Returns all tools that the settings allow, except `cron`, whose jobs need bantam's gateway. Also returns a notice for
    /// each missing or incomplete one, for the author of the settings.
    ///
    /// # Errors
    /// Returns the errors of [`Home::exec`].
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

/// Returns all tools of the configuration, and a notice for each server without its tools. Needs no model and no key.
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

/// Returns the search by meaning, if the configuration names a model for it.
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
