//! Builds agents from a configuration. Only this module names concrete types.

pub(crate) mod bot;
mod checks;
pub(crate) mod factory;
pub(crate) mod gateway;
mod grants;
mod handler;
mod home;
pub(crate) mod mcp;
pub(crate) mod media;
mod models;
mod serving;
#[cfg(test)]
mod tests;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use crate::access::Access;
use crate::agent::prompt::PromptFiles;
use crate::agent::{Agent, Builder, History, Limits};
use crate::child::Network;
pub(crate) use crate::config::Parts;
use crate::config::proxy::http_settings;
use crate::config::{Config, Env};
use crate::error::{Context, Error, Result};
use crate::mcp::Servers;
use crate::paths;
use crate::provider::Retry;
use crate::redact::Redactor;
use crate::session::{self, FileStore};
use crate::skills::Skills;
use crate::ssrf::AddressGuard;
use crate::storage::Queue;
use crate::template;
use crate::text::{LocalTime, nearest, to_single_line};
use crate::timezone::Zone;
use crate::tool::names;
use crate::usage::Ledger;
use crate::worker::Workers;
use crate::worker::protocol::Policy;
pub(crate) use checks::check_command;
pub(crate) use grants::{grants, workspace, write_paths};
pub use home::Home;
pub(crate) use home::configured;
pub(crate) use models::chain;
pub use serving::serve;

/// Options of an agent, chosen by the command that builds it.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // independent choices
pub(crate) struct Options {
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
    /// Whether the program supplies models if the settings name none.
    pub models_in_code: bool,
    /// Additional section of the system prompt.
    pub system: Option<String>,
    /// Queue of the home, if the program has opened it.
    pub queue: Option<Arc<Queue>>,
    /// MCP servers, shared by all agents of a program.
    pub servers: Servers,
}

/// An agent, and notices for its user.
pub(crate) struct Ready {
    pub agent: Agent,
    pub notices: Vec<String>,
}

/// Reports files in the workspace that look like bantam's instructions or notes, but are ignored there.
pub(crate) fn misplaced(parts: Parts) -> Option<String> {
    let workspace = workspace(parts).ok()?;
    let mut names = vec!["IDENTITY.md", "AGENT.md", "SOUL.md"];
    if workspace == parts.home.workspace() {
        names.extend(["AGENTS.md", "HEARTBEAT.md", "USER.md", "memory/MEMORY.md"]);
    }
    names.retain(|name| workspace.join(name).is_file());
    (!names.is_empty()).then(|| {
        format!(
            "not used: {} in {}; bantam's instructions are in {}, and its notes in {}",
            names.join(", "),
            workspace.display(),
            parts.home.agent().display(),
            parts.home.notes().display()
        )
    })
}

/// Valid names in `tools.confirm`, besides MCP servers and their tools.
const CONFIRMED: &[&str] = &[
    "writes",
    "runs",
    "append_file",
    "cron",
    "edit_file",
    "exec",
    "grep",
    "list_dir",
    "memory",
    "message",
    "read_file",
    "read_more",
    "skill",
    "subagent",
    "think",
    "web_fetch",
    "web_search",
    "write_file",
];

/// Returns an error for each unknown name in `tools.confirm`. Names of disabled tools are valid.
pub(crate) fn unconfirmed(config: &Config) -> Vec<Error> {
    let is_known = |name: &str| {
        // The server itself stands for all its tools, so patterns are not names.
        let server = match name.split_once("__") {
            Some((_, "" | "*")) => return false,
            Some((server, _)) => server,
            None => name,
        };
        CONFIRMED.contains(&name) || config.mcp_servers.contains_key(server)
    };
    let servers = config.mcp_servers.keys().map(String::as_str);
    let error = |name: &String| {
        let bare = name.split_once("__").map_or(&**name, |(server, _)| server);
        let near = names::known_elsewhere(bare)
            .or_else(|| nearest(bare, CONFIRMED.iter().copied().chain(servers.clone())));
        let hint = near.map_or(
            "it may name tools, MCP servers, writes and runs; bantam tools lists the tools"
                .to_owned(),
            |near| format!("did you mean {near}?"),
        );
        let shown = to_single_line(name, 40);
        Error::config(format!("tools.confirm: nothing is called \"{shown}\"")).hint(hint)
    };
    let unknown = config.tools.confirm.iter().filter(|name| !is_known(name));
    unknown.map(error).collect()
}

/// Formats these errors, one sentence each.
pub(crate) fn unconfirmed_lines(config: &Config) -> impl Iterator<Item = String> {
    let line = |e: Error| format!("{}; {}", e.message, e.hint.unwrap_or_default());
    unconfirmed(config).into_iter().map(line)
}

/// Creates the workspace from the template if it is missing.
pub(crate) fn make_workspace(parts: Parts) -> Result<()> {
    make(parts, &workspace(parts)?)
}

fn make(parts: Parts, workspace: &Path) -> Result<()> {
    if workspace.is_dir() {
        return Ok(());
    } else if workspace.exists() {
        return Err(Error::config(format!(
            "the workspace {} is a file, not a directory",
            workspace.display()
        ))
        .hint("move it away, or set `agents.defaults.workspace`"));
    }
    let setting = if workspace == parts.home.workspace() {
        "BANTAM_HOME"
    } else {
        "agents.defaults.workspace"
    };
    let created = if workspace == parts.home.workspace() {
        template::write("workspace", workspace).map(drop)
    } else {
        fs_err::create_dir_all(workspace).map_err(Error::from)
    };
    let created = created.doing("creating the workspace");
    created.map_err(|e| {
        if e.hint.is_some() {
            e
        } else {
            e.hint(format!("set {setting} to a directory that you can write"))
        }
    })
}

/// Returns a builder for everything except models and tools.
fn builder(parts: Parts, options: &Options, workers: &Workers) -> Builder {
    let Parts { home, config, env } = parts;
    let redactor = Redactor::new(config.secrets(env)).at(config.tools.redact);
    let defaults = &config.agents.defaults;
    let local_time = local_time(env);
    let limits = Limits {
        max_steps: defaults.max_tool_iterations,
        timeout: Duration::from_secs(defaults.timeout),
        budget_tokens: options.budget_tokens,
        max_calls: defaults.max_calls,
        retry: Retry {
            max: defaults.max_retries,
            first_wait: Duration::try_from_secs_f64(defaults.retry_initial_delay)
                .unwrap_or(Duration::from_secs(1)),
            partial: options.unseen,
        },
    };
    let mut builder = Agent::builder()
        .stream(!options.whole_replies)
        .history(history(config))
        .limits(limits);
    builder.redactor = redactor;
    builder.confirm.clone_from(&config.tools.confirm);
    if options.memory.is_none() {
        builder.undo_in = options.undo_of.map(|kind| (home.clone(), kind));
    }
    builder.prompt.files = Some(PromptFiles {
        agent_dir: home.agent(),
        workspace: workers.workspace().clone(),
        notes: workers.notes().cloned(),
        is_own_workspace: workers.is_own_workspace(),
        unrestricted: !defaults.restrict_to_workspace,
        // Errors were reported by the workers.
        open: grants::tools_grants(parts).unwrap_or_default(),
        skills: skills(home, config),
        local_time: local_time.clone(),
    });
    builder.ledger = Some(Arc::new(ledger(parts, local_time)));
    if let Some(text) = options.system.clone() {
        builder = builder.context("INSTRUCTIONS", move |_, _| text.clone());
    }
    match (&options.memory, &options.queue) {
        (Some(memory), _) => builder.store(memory.clone()),
        (None, Some(queue)) => builder.store(FileStore::with_queue(home.clone(), queue.clone())),
        (None, None) => builder.store(FileStore::new(home.clone())),
    }
}

/// Returns a ledger for all requests with a cost. All ledgers share the same files.
fn ledger(parts: Parts, local_time: LocalTime) -> Ledger {
    Ledger::new(parts.home.usage(), parts.config.budget, local_time)
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

/// Returns the workers for the file and exec jobs of all tools.
pub(crate) fn workers(parts: Parts) -> Result<Workers> {
    let config = parts.config;
    // Under Landlock alone, a command may have removed the permissions needed to find files in them.
    make_searchable(&parts.home.agent());
    make_searchable(&parts.home.notes());
    let (grants, exec) = (grants(parts)?, &config.tools.exec);
    let mut opened = grants.beside_workspace(&grants::tools_grants(parts)?)?;
    let restricted = config.agents.defaults.restrict_to_workspace;
    let named_sockets = exec.network == Network::Full || restricted && opened.is_empty();
    opened.extend(grants.always_readable(grants::zones(parts.env)));
    let policy = Policy {
        network: exec.network,
        workspace: grants.workspace(),
        grants: opened,
        notes: Some(grants.notes(Access::Read)),
        all_except: (!restricted).then(|| grants.home().to_owned()),
        named_sockets,
        memory_mb: exec.memory_mb,
    };
    let guard = AddressGuard::new(config.tools.web.fetch.allow_private);
    let workers = Workers::new(policy, grants.home(), exec.sandbox, guard);
    let is_own_workspace = workspace(parts)? == parts.home.workspace();
    let kept = parts.home.notes_copy();
    Ok(workers.with_notes(grants.notes(Access::Write), kept, is_own_workspace))
}

/// Lets the owner find files in a directory. Errors are reported later, when it is used.
fn make_searchable(dir: &Path) {
    let Ok(meta) = std::fs::symlink_metadata(dir) else {
        return;
    };
    let mode = meta.permissions().mode();
    if meta.is_dir() && mode & 0o500 != 0o500 {
        drop(std::fs::set_permissions(
            dir,
            std::fs::Permissions::from_mode(mode | 0o700),
        ));
    }
}

/// Returns the skills of a home.
pub(crate) fn skills(home: &paths::Home, config: &Config) -> Skills {
    Skills::new(home.agent(), config.tools.exec.pass_env.clone())
}

/// Returns local time, which decides when the days of notes and usage begin.
pub(crate) fn local_time(env: &Env) -> LocalTime {
    // The zone is read at the first use. Errors are reported where times are shown.
    let (env, zone) = (env.clone(), OnceLock::new());
    Arc::new(move |time| {
        let zone = zone.get_or_init(|| Zone::local(&env).unwrap_or_else(|_| Zone::utc()));
        let unix = time
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        zone.clock(unix.try_into().unwrap_or_default())
    })
}
