//! The built-in tools, for this program and for others that embed it.
//!
//! File tools and commands work in a sandbox: each call is a process of the program that embeds them, so its `main` begins with
//! [`init`](crate::init). What they may reach is a [`Policy`].
//!
//! ```no_run
//! use bantam::agent::Agent;
//! use bantam::provider::OpenAi;
//! use bantam::tools::{self, Policy};
//! use serde_json::json;
//!
//! fn main() -> bantam::error::Result<()> {
//!     bantam::init();
//!     let policy = Policy::with("/var/lib/helper", &json!({"tools": {"exec": {"timeout": 20}}}))?;
//!     let agent = Agent::builder()
//!         .provider(OpenAi::new("http://localhost:11434/v1", "", "qwen3:4b"))
//!         .tools(tools::files(&policy)?)
//!         .tools(tools::exec(&policy))
//!         .build()?;
//!     println!("{}", agent.ask("How much space is left on this disk?")?);
//!     Ok(())
//! }
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::factory::AgentFactory;
use super::{
    Options, Parts, builder, layout, local_time, make_workspace, mcp, media, own_workspace,
    workers, workspace,
};
use crate::agent::{Agent, Builder};
use crate::child::{self, Network};
use crate::config::{self, Config, Env};
use crate::error::{Error, Result};
use crate::mcp::{Servers, missing_prefix};
use crate::paths::Home;
use crate::ssrf::AddressGuard;
use crate::tool::cron::cron_tool;
use crate::tool::exec::exec_tool;
use crate::tool::files::file_tools;
use crate::tool::meaning::Meaning;
use crate::tool::memory::memory_tool;
use crate::tool::message::message_tool;
use crate::tool::skill::skill_tool;
use crate::tool::subagent::{subagent_tool, subagent_tool_without_skills};
use crate::tool::think::think_tool;
use crate::tool::web::{web_fetch_tool, web_search_tool};
use crate::tool::{Function, Tool, Workshop};
use crate::worker::protocol::Setup;
use crate::worker::{Confinement, Workers, begun};

/// What the built-in tools may reach and do: a home, and settings.
///
/// The home is a folder of your program. Tools work in `workspace/` below it, or where `agents.defaults.workspace` says, and
/// reach nothing else of it; conversations ([`crate::session::Files::at`]), keys and what the agent obeys (`agent/`) are safe
/// there. Two policies with two homes share nothing but the choice of the sandbox, which is made once in a process.
pub struct Policy {
    factory: AgentFactory,
    config: Arc<Config>,
    workers: Arc<Workers>,
}

impl Policy {
    /// The home `dir` with settings in the form of config.json (docs/settings.md lists them), in place of that file and of the
    /// variables that begin with `BANTAM_`. Makes the workspace from the template, if it is missing.
    ///
    /// # Errors
    /// Of the kind [`crate::error::Kind::Config`]: `main` does not begin with [`init`](crate::init), a setting is unknown or
    /// of another type, or the workspace would hold the home.
    pub fn with(dir: impl AsRef<Path>, settings: &Value) -> Result<Self> {
        if !settings.is_object() {
            return Err(Error::config("the settings are not a JSON object"));
        }
        let home = Home::new(std::path::absolute(dir.as_ref())?);
        let mut env = config::environment();
        env.retain(|name, _| !name.starts_with("BANTAM_"));
        Self::of(AgentFactory {
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

    /// The home and the settings of `bantam` on this machine: `$BANTAM_HOME` with its config.json.
    ///
    /// # Errors
    /// Those of [`Policy::with`], but for an unknown setting: as in `bantam`, it counts for nothing.
    pub fn from_home() -> Result<Self> {
        let env = config::environment();
        Self::of(factory_of_home(&config::home(&env)?, &env)?)
    }

    fn of(factory: AgentFactory) -> Result<Self> {
        begun()?;
        Self::without_sandbox(factory)
    }

    /// For an agent without tools that need the sandbox.
    fn without_sandbox(factory: AgentFactory) -> Result<Self> {
        let loaded = factory.load(None)?;
        // The file of a user may be that of another version; what stands in code is a mistake there.
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

    fn workshop(&self) -> Workshop {
        workshop(&self.workers, self.parts())
    }

    /// Where the tools work.
    ///
    /// # Errors
    /// The path of the workspace cannot be made absolute.
    pub fn workspace(&self) -> Result<PathBuf> {
        workspace(self.parts())
    }

    /// An agent as `bantam` would build it from these settings, without tools: models, limits, what it obeys and remembers,
    /// conversations on disk, usage and budget. If the settings of [`Policy::with`] name no model, it has none before
    /// [`Builder::provider`]; otherwise that adds one to be asked when those of the settings fail.
    ///
    /// # Errors
    /// Of the kind [`crate::error::Kind::Config`]: the home of [`Policy::from_home`] has no model, or settings cannot be used.
    pub fn builder(&self) -> Result<Builder> {
        let options = &self.factory.options;
        builder(self.parts(), options, &self.workers, &mut Vec::new())
    }
}

type Tools = Vec<Box<dyn Tool>>;

fn boxed(tools: Vec<Function>) -> Tools {
    let tools = tools.into_iter();
    tools.map(|tool| Box::new(tool) as Box<dyn Tool>).collect()
}

/// `read_file`, `write_file`, `edit_file`, `append_file`, `list_dir` and `grep`, in the workspace and in the trees of
/// `tools.read_paths` and `tools.write_paths`.
///
/// # Errors
/// The model that makes words of recordings (`tools.transcribe.model`) cannot be used.
pub fn files(policy: &Policy) -> Result<Tools> {
    let transcribe = media::transcriber(policy.parts())?;
    let workshop = Workshop {
        transcribe,
        ..policy.workshop()
    };
    Ok(boxed(file_tools(&Arc::new(workshop))))
}

/// `exec`: a command in the sandbox, as `tools.exec` says. Who calls this wants it, so `tools.exec.enabled` counts for [`all`] only.
pub fn exec(policy: &Policy) -> Tools {
    boxed(vec![exec_tool(&Arc::new(policy.workshop()))])
}

/// `web_fetch` and `web_search`, as `tools.web` says. They connect from this process; what comes is read in the sandbox.
pub fn web(policy: &Policy) -> Tools {
    let workshop = Arc::new(policy.workshop());
    boxed(vec![web_fetch_tool(&workshop), web_search_tool(&workshop)])
}

/// `memory`: notes in `workspace/` of the home, wherever tools work. [`Policy::builder`] shows them to the model.
///
/// # Errors
/// `memory.embedding_model` cannot be used.
pub fn memory(policy: &Policy) -> Result<Tools> {
    let workshop = Workshop {
        meaning: meaning(policy.parts())?,
        notes: note_workers(&policy.workers, policy.parts())?,
        ..policy.workshop()
    };
    Ok(boxed(vec![memory_tool(&Arc::new(workshop))]))
}

/// `skill`, for the skills in `agent/skills/` of the home. [`Policy::builder`] shows the model their list.
pub fn skills(policy: &Policy) -> Tools {
    boxed(vec![skill_tool(&Arc::new(policy.workshop()))])
}

/// `subagent`: tasks for agents like this one with a context of their own, side by side. They have its other tools, but for those
/// that start more. The same task given twice, with nothing done in between, runs once: for several opinions, tasks differ. A task
/// that the model does not wait for needs the [`background`](crate::agent::Request::background) of the request, which runs it by
/// [`Agent::perform`]; the model is told so where there is none.
pub fn subagents() -> Tools {
    boxed(vec![subagent_tool_without_skills()])
}

/// `think`: room for a thought.
pub fn think() -> Tools {
    boxed(vec![think_tool()])
}

/// The tools of an MCP server, called `NAME__TOOL`, whose texts come within a fence of backticks, as data; and what the user should know of them: that their descriptions have changed,
/// say, or that some are left out. `entry` is what stands under its name in `mcpServers` of config.json. A
/// program runs in a sandbox of its own; it starts with the first call, or now if its tools are not known yet.
///
/// ```no_run
/// use bantam::tools::{self, Policy};
/// use serde_json::json;
///
/// # fn main() -> bantam::error::Result<()> {
/// # bantam::init();
/// let policy = Policy::with("agent-home", &json!({}))?;
/// // It starts in a directory of its own, so paths are whole; it reads these and those of the system.
/// let bricks = std::env::current_dir()?.join("bricks");
/// let local = json!({
///     "command": "python3", "args": [bricks.join("server.py")],
///     "read": [bricks], "network": false,
/// });
/// let remote = json!({"url": "https://mcp.example.com/mcp", "headers": {"authorization": "Bearer ..."}});
/// let (mut tools, notices) = tools::mcp(&policy, "bricks", &local)?;
/// tools.extend(tools::mcp(&policy, "example", &remote)?.0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The entry is wrong, is switched off, or lets the server read what must stay closed (the folder of `policy`), or the server does
/// not say what its tools are.
pub fn mcp(policy: &Policy, name: &str, entry: &Value) -> Result<(Tools, Vec<String>)> {
    let unusable =
        |why: &str| Error::config(format!("the MCP server {name} cannot be used: {why}"));
    let text = json!({"mcpServers": {name: entry}}).to_string();
    let loaded = Config::load(Some((config::IN_CODE, &text)), &Env::new(), Vec::new())?;
    let mut config = Config::clone(&policy.config);
    if !loaded.warnings.is_empty() {
        return Err(unusable(&loaded.warnings.join("; ")));
    }
    let (mut tools, mut notices) = (Vec::new(), Vec::new());
    config.mcp_servers.clone_from(&loaded.config.mcp_servers);
    let config = Arc::new(config);
    let parts = policy.factory.parts(&config);
    let servers = &policy.factory.options.servers;
    mcp::add_tools(servers, parts, &mut tools, &mut notices);
    if tools.is_empty() {
        if config.mcp_servers.values().any(|entry| !entry.is_enabled()) {
            notices.push("it is disabled (enabled in its entry)".to_owned());
        }
        let why = notices.join("; ");
        return Err(unusable(if why.is_empty() {
            "it offers no tools"
        } else {
            // What cannot be used is named once.
            let why = why.strip_prefix(&missing_prefix(name)).unwrap_or(&why);
            why.strip_prefix(&format!("starting MCP server {name}: "))
                .unwrap_or(why)
        }));
    }
    Ok((tools, notices))
}

/// All tools that the settings allow, as `bantam` has them, and a notice for each that is missing or lacks a part: show them to
/// whoever wrote the settings. Without `cron`, whose jobs the gateway of `bantam` runs.
pub fn all(policy: &Policy) -> (Tools, Vec<String>) {
    let servers = &policy.factory.options.servers;
    let (mut tools, notices) = configured(&policy.workers, policy.parts(), servers);
    tools.retain(|tool| tool.spec().name != "cron");
    (tools, notices)
}

/// All tools that the configuration allows, and a notice for each server whose tools are missing. Needs no model and no key.
pub(crate) fn configured(
    workers: &Arc<Workers>,
    parts: Parts,
    servers: &Servers,
) -> (Tools, Vec<String>) {
    let config = parts.config;
    let mut notices = Vec::new();
    let mut workshop = workshop(workers, parts);
    let mut has_notes = false;
    match note_workers(workers, parts) {
        Ok(notes) => (workshop.notes, has_notes) = (notes, true),
        Err(e) => notices.push(e.message),
    }
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
    ]);
    if has_notes {
        built_in.push(memory_tool(&workshop));
    }
    if config.tools.exec.enabled && child::has_shell() {
        built_in.push(exec_tool(&workshop));
    }
    if !config.channels.telegram.token.is_empty() {
        built_in.push(message_tool(&workshop));
    }
    if config.cron.enabled {
        built_in.push(cron_tool(&workshop));
    }
    let mut tools = boxed(built_in);
    if !config.mcp_servers.is_empty() {
        mcp::add_tools(servers, parts, &mut tools, &mut notices);
    }
    (tools, notices)
}

fn workshop(workers: &Arc<Workers>, parts: Parts) -> Workshop {
    Workshop {
        home: parts.home.clone(),
        config: parts.config.clone(),
        env: parts.env.clone(),
        workers: workers.clone(),
        notes: None,
        local_time: local_time(parts.env),
        transcribe: None,
        meaning: None,
    }
}

/// What works in the home's own workspace, if tools work elsewhere: the notes are there.
fn note_workers(workers: &Workers, parts: Parts) -> Result<Option<Arc<Workers>>> {
    let Some(own) = own_workspace(parts, workers.workspace())? else {
        return Ok(None);
    };
    let setup = Setup {
        confinement: Confinement::Unconfined,
        network: Network::None,
        workspace: own,
        trees: Vec::new(),
        all_except: None,
        named_sockets: false,
        memory_mb: parts.config.tools.exec.memory_mb,
    };
    let sandbox = parts.config.tools.exec.sandbox;
    let home = layout(parts)?;
    let own = Workers::new(setup, home.home(), sandbox, AddressGuard::new(false));
    Ok(Some(Arc::new(own.keeping_notes(parts.home.previous()))))
}

/// Compares meanings, if the configuration names a model for it.
fn meaning(parts: Parts) -> Result<Option<Meaning>> {
    let (home, model) = (parts.home, &parts.config.memory.embedding_model);
    let endpoint = media::endpoint("memory.embedding_model", model, parts)?;
    Ok(endpoint.map(|endpoint| Meaning {
        model: format!("{} {}", endpoint.host.model.base, endpoint.host.model.id),
        embed: Box::new(move |texts, cancel, account| endpoint.embed(texts, cancel, account)),
        file: home.state().join("vectors.json"),
        lock: home.lock("vectors"),
    }))
}

impl Agent {
    /// The agent of [`Builder::from_home`].
    ///
    /// # Errors
    /// Those of [`Builder::from_home`].
    pub fn from_home() -> Result<Self> {
        Builder::from_home()?.build()
    }
}

impl Builder {
    /// An agent with the configuration of `$BANTAM_HOME`: its models and limits, what the agent obeys and remembers, its
    /// conversations and its budget. It has no tools; [`Policy::from_home`] gives those, too. Where nothing is configured and no
    /// key is set, it asks an Ollama of this machine. The demo answers only if the settings name it (`demo/demo`).
    ///
    /// # Errors
    /// Of the kind [`crate::error::Kind::Config`]: no model, or a configuration that cannot be used.
    pub fn from_home() -> Result<Self> {
        let env = config::environment();
        of_home(&config::home(&env)?, &env)
    }
}

pub(super) fn of_home(home: &Home, env: &Env) -> Result<Builder> {
    Policy::without_sandbox(factory_of_home(home, env)?)?.builder()
}

fn factory_of_home(home: &Home, env: &Env) -> Result<AgentFactory> {
    let mut factory = AgentFactory::new(home, env)?;
    factory.options.no_demo = true;
    Ok(factory)
}
