//! The built-in tools, for this program and for others that embed it.
//!
//! File tools and commands work in a jail: each call is a process of the program that embeds them, so its `main` begins with
//! [`hands`](crate::hands). What they may reach is a [`Policy`].
//!
//! ```no_run
//! use bantam::agent::Agent;
//! use bantam::provider::OpenAi;
//! use bantam::tools::{self, Policy};
//! use serde_json::json;
//!
//! fn main() -> bantam::error::Result<()> {
//!     bantam::hands();
//!     let policy = Policy::with("/var/lib/helper", &json!({"tools": {"exec": {"timeout": 20}}}))?;
//!     let agent = Agent::builder()
//!         .provider(OpenAi::new("http://localhost:11434/v1", "", "qwen3:4b"))
//!         .tools(tools::files(&policy))
//!         .tools(tools::exec(&policy))
//!         .build()?;
//!     println!("{}", agent.ask("How much space is left on this disk?")?);
//!     Ok(())
//! }
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::factory::AgentFactory;
use super::{
    Options, Parts, builder, hands, http_settings, layout, local_time, make_workspace, mcp, media,
    own_workspace, passed, skills as skills_of, workspace,
};
use crate::agent::{Agent, Builder};
use crate::child::{Network, Sandbox};
use crate::config::{self, Config, Env, keys};
use crate::cron::Jobs;
use crate::error::{Context, Error, Result};
use crate::guard::AddressGuard;
use crate::hands::{Confinement, Hands, begun};
use crate::http::{self, Client};
use crate::mcp::Servers;
use crate::paths::Home;
use crate::template;
use crate::tool::cron::cron;
use crate::tool::exec as exec_tool;
use crate::tool::files::file_tools;
use crate::tool::meaning::Meaning;
use crate::tool::memory::{self as memory_tool, NotesHands};
use crate::tool::message::{Sender, message};
use crate::tool::skill::{read_skill, run_skill};
use crate::tool::subagent::{spawn, subagent};
use crate::tool::think::think as think_tool;
use crate::tool::web::{web_fetch, web_search};
use crate::tool::{Function, Tool};
use crate::web::{self as pages, Search};
use crate::wire::Setup;

/// What the built-in tools may reach and do: a home, and settings.
///
/// The home is a folder of your program. Tools work in `workspace/` below it, or where `agents.defaults.workspace` says, and
/// reach nothing else of it; conversations ([`crate::session::Files::at`]), keys and what the agent obeys (`agent/`) are safe
/// there. Two policies with two homes share nothing but the choice of the jail, which is made once in a process.
pub struct Policy {
    factory: AgentFactory,
    config: Config,
    hands: Arc<Hands>,
}

impl Policy {
    /// The home `dir` with settings in the form of config.json (docs/settings.md lists them), in place of that file and of the
    /// variables that begin with `BANTAM_`. Makes the workspace from the template, if it is missing.
    ///
    /// # Errors
    /// Of the kind [`crate::error::Kind::Config`]: `main` does not begin with [`hands`](crate::hands), a setting is unknown or
    /// of another type, or the workspace would hold the home.
    pub fn with(dir: impl AsRef<Path>, settings: &Value) -> Result<Self> {
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
        Self::of(AgentFactory::new(&config::home(&env)?, &env)?)
    }

    fn of(factory: AgentFactory) -> Result<Self> {
        begun()?;
        let loaded = factory.load(None)?;
        // The file of a user may be that of another version; what stands in code is a mistake there.
        if loaded.has_unknown && factory.options.models_in_code {
            return Err(Error::config(loaded.warnings().join("; ")));
        }
        let config = loaded.config;
        make_workspace(factory.parts(&config))?;
        let hands = Arc::new(hands(factory.parts(&config))?);
        Ok(Self {
            factory,
            config,
            hands,
        })
    }

    fn parts(&self) -> Parts<'_> {
        self.factory.parts(&self.config)
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
        let mut built = builder(self.parts(), options, &self.hands, &mut Vec::new())?;
        built.renewal = mcp::renewal(&options.servers, self.parts());
        Ok(built)
    }
}

type Tools = Vec<Box<dyn Tool>>;

fn boxed(tools: impl IntoIterator<Item = Function>) -> Tools {
    let boxed = tools
        .into_iter()
        .map(|tool| Box::new(tool) as Box<dyn Tool>);
    boxed.collect()
}

/// `read_file`, `write_file`, `edit_file`, `append_file`, `list_dir` and `grep`, in the workspace and in the trees of
/// `tools.read_paths` and `tools.write_paths`.
pub fn files(policy: &Policy) -> Tools {
    // What cannot make words of recordings is told when a recording is read.
    let transcribe = media::transcriber(policy.parts()).ok().flatten();
    boxed(file_tools(&policy.hands, transcribe))
}

/// `exec`: a command in the jail, as `tools.exec` says. Who calls this wants it, so `tools.exec.enabled` counts for [`all`] only.
pub fn exec(policy: &Policy) -> Tools {
    boxed([exec_of(&policy.hands, policy.parts())])
}

/// `web_fetch` and `web_search`, as `tools.web` says. They connect from this process; what comes is read in the jail.
pub fn web(policy: &Policy) -> Tools {
    boxed(web_of(&policy.hands, &policy.config, &policy.factory.env))
}

/// `memory`: notes in `workspace/` of the home, wherever tools work. [`Policy::builder`] shows them to the model.
///
/// # Errors
/// `memory.embedding_model` cannot be used.
pub fn memory(policy: &Policy) -> Result<Tools> {
    let meaning = meaning(policy.parts())?;
    let memory = memory_of(&policy.hands, policy.parts(), meaning)?;
    Ok(boxed([memory]))
}

/// `skill` and `run_skill`, for the skills in `agent/skills/` of the home. [`Policy::builder`] shows the model their list.
pub fn skills(policy: &Policy) -> Tools {
    let skills = skills_of(&policy.factory.home, &policy.config);
    boxed([read_skill(skills.clone()), run_skill(skills)])
}

/// `subagent` and `spawn`: tasks for agents like this one with a context of their own. `spawn` does not wait, and works only for
/// requests that have a [`background`](crate::agent::Request::background): leave it out elsewhere ([`Builder::only`]).
pub fn subagents() -> Tools {
    boxed([subagent(), spawn()])
}

/// `think`: room for a thought.
pub fn think() -> Tools {
    boxed([think_tool()])
}

/// The tools of an MCP server, called `NAME__TOOL`, and what the user should know of them: that their descriptions have changed,
/// say, or that some are left out. `entry` is what stands under its name in `mcpServers` of config.json. A
/// program runs in a jail of its own; it starts with the first call, or now if its tools are not known yet.
///
/// # Errors
/// The entry is wrong or switched off, or the server does not say what its tools are.
pub fn mcp(policy: &Policy, name: &str, entry: &Value) -> Result<(Tools, Vec<String>)> {
    let unusable =
        |why: &str| Error::config(format!("the MCP server {name} cannot be used: {why}"));
    let text = json!({"mcpServers": {name: entry}}).to_string();
    let loaded = Config::load(Some((name, &text)), &Env::new(), Vec::new())?;
    let mut config = policy.config.clone();
    if loaded.has_unknown {
        return Err(unusable(&loaded.warnings().join("; ")));
    }
    let (mut tools, mut notices) = (Vec::new(), loaded.warnings());
    config.mcp_servers = loaded.config.mcp_servers;
    let parts = policy.factory.parts(&config);
    let servers = &policy.factory.options.servers;
    mcp::add_tools(servers, parts, &mut tools, &mut notices);
    if tools.is_empty() {
        if config.mcp_servers.values().any(|entry| !entry.enabled) {
            notices.push("its entry switches it off (enabled)".to_owned());
        }
        let why = notices.join("; ");
        return Err(unusable(if why.is_empty() {
            "it offers no tools"
        } else {
            &why
        }));
    }
    Ok((boxed(tools), notices))
}

/// All tools that the settings allow, as `bantam` has them, and a notice for each that is missing. Without `cron`, whose jobs
/// the gateway of `bantam` runs, and without `spawn`, which [`subagents`] has.
pub fn all(policy: &Policy) -> (Tools, Vec<String>) {
    let servers = &policy.factory.options.servers;
    let (mut tools, notices) = configured(&policy.hands, policy.parts(), servers);
    tools.retain(|tool| !matches!(&*tool.spec().name, "cron" | "spawn"));
    (tools, notices)
}

/// All tools that the configuration allows, and a notice for each server whose tools are missing. Needs no model and no key.
pub(crate) fn configured(
    hands: &Arc<Hands>,
    parts: Parts,
    servers: &Servers,
) -> (Tools, Vec<String>) {
    let Parts { home, config, env } = parts;
    let mut notices = Vec::new();
    let meaning = meaning(parts).unwrap_or_else(|e| {
        notices.push(e.message);
        None
    });
    let skills = skills_of(home, config);
    let transcribe = media::transcriber(parts).unwrap_or_else(|e| {
        notices.push(e.message);
        None
    });
    let mut tools: Vec<Function> = file_tools(hands, transcribe).collect();
    tools.extend([
        think_tool(),
        read_skill(skills.clone()),
        run_skill(skills),
        subagent(),
        spawn(),
    ]);
    match memory_of(hands, parts, meaning) {
        Ok(memory) => tools.push(memory),
        Err(e) => notices.push(e.message),
    }
    if config.tools.exec.enabled {
        tools.push(exec_of(hands, parts));
    }
    let telegram = &config.channels.telegram;
    if !telegram.token.is_empty() {
        tools.push(message(Sender {
            hands: hands.clone(),
            home: home.clone(),
            jobs: Jobs::new(home.clone(), env),
            allowed: telegram.ids(),
            heartbeat: config.heartbeat.to.clone(),
        }));
    }
    if config.cron.enabled {
        tools.push(cron(Jobs::new(home.clone(), env)));
    }
    tools.extend(web_of(hands, config, env));
    mcp::add_tools(servers, parts, &mut tools, &mut notices);
    (boxed(tools), notices)
}

fn exec_of(hands: &Arc<Hands>, parts: Parts) -> Function {
    let settings = &parts.config.tools.exec;
    let network = if settings.sandbox == Sandbox::Off {
        Network::Full
    } else {
        settings.network
    };
    let passed = passed(parts.config, parts.env);
    exec_tool::exec(hands.clone(), settings.timeout, passed, network)
}

fn memory_of(hands: &Arc<Hands>, parts: Parts, meaning: Option<Meaning>) -> Result<Function> {
    let hands = notes_hands(hands, parts)?;
    Ok(memory_tool::memory(hands, local_time(parts.env), meaning))
}

/// What the memory tool works with: the notes are in the home's own workspace, which is made for the first call.
fn notes_hands(hands: &Arc<Hands>, parts: Parts) -> Result<Box<NotesHands>> {
    let own = own_workspace(parts)?.filter(|own| own.real != hands.workspace().real);
    let Some(own) = own else {
        let hands = hands.clone();
        return Ok(Box::new(move || Ok(hands.clone())));
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
    let own = Hands::new(setup, home.home(), sandbox, AddressGuard::new(false));
    let own = Arc::new(own.keeping_notes(parts.home.previous()));
    let dir = parts.home.workspace();
    Ok(Box::new(move || {
        if !dir.is_dir() {
            template::write("workspace", &dir).doing("creating the workspace")?;
        }
        Ok(own.clone())
    }))
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

/// The tools that reach the web. They make no connection before they are called.
fn web_of(hands: &Arc<Hands>, config: &Config, env: &Env) -> [Function; 2] {
    let (fetch, search) = (&config.tools.web.fetch, &config.tools.web.search);
    let keys = pages::keys_in(env);
    let key = keys::known(&search.api_key, env).unwrap_or_default();
    let is_network_variable =
        |name: &str| name == "SSL_CERT_FILE" || name.to_ascii_uppercase().ends_with("_PROXY");
    let env: Env = env
        .iter()
        .filter(|(name, _)| is_network_variable(name))
        .map(|(n, v)| (n.clone(), v.clone()))
        .collect();
    let connect = |guard: Option<AddressGuard>| -> Box<pages::Connect> {
        let env = env.clone();
        Box::new(move |url| {
            Client::new(http::Settings {
                guard: guard.clone(),
                ..http_settings(url, "", &env)
            })
        })
    };
    let read = || -> Box<pages::Read> {
        let hands = Arc::clone(hands);
        Box::new(move |job, pieces, cancel| hands.read(job, pieces, cancel))
    };
    let timeout = Duration::from_secs(fetch.timeout);
    let engines = Search {
        connect: connect(None),
        read: read(),
        provider: search.provider.clone(),
        key,
        keys,
        base_url: search.base_url.clone(),
        timeout,
    };
    let guarded = connect(Some(AddressGuard::new(fetch.allow_private)));
    [
        web_fetch(guarded, read(), timeout, fetch.max_chars),
        web_search(engines, search.max_results),
    ]
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
    /// conversations and its budget. It has no tools; [`Policy::from_home`] gives those, too.
    ///
    /// # Errors
    /// Of the kind [`crate::error::Kind::Config`]: no model, or a configuration that cannot be used.
    pub fn from_home() -> Result<Self> {
        let env = config::environment();
        of_home(&config::home(&env)?, &env)
    }
}

pub(super) fn of_home(home: &Home, env: &Env) -> Result<Builder> {
    let factory = AgentFactory::new(home, env)?;
    let config = factory.load(None)?.config;
    let parts = factory.parts(&config);
    make_workspace(parts)?;
    builder(parts, &factory.options, &hands(parts)?, &mut Vec::new())
}
