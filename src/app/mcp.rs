//! The MCP servers of a configuration and their tools.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::layout::{layout, setting};
use super::{Parts, http_settings, make_workspace};
use crate::access::{Access, Resolved, Tree};
use crate::child::{Network, Sandbox};
use crate::config::{Config, Env, McpServer, keys};
use crate::error::{Error, Kind, Result};
use crate::http::Client;
use crate::mcp::{
    Answer, Changeable, Connect, Http, Launch, RemoteTool, Server, Servers, Stdio, ToolList,
    Transport, missing,
};
use crate::redact::Redactor;
use crate::sandbox;
use crate::secret::Secret;
use crate::ssrf::AddressGuard;
use crate::storage;
use crate::text::{one_line, size as human_size};
use crate::tool::Tool;
use crate::tool::mcp::mcp_tools;
use crate::worker::protocol::{ServeJob, Setup};
use crate::worker::{Confinement, Workers};

/// Adds the tools of all servers whose list is known or can be had, and a notice for each that is not. What they add to each
/// request has a bound: of a server that offers too much, the first tools.
pub(super) fn add_tools(
    servers: &Servers,
    parts: Parts,
    tools: &mut Vec<Box<dyn Tool>>,
    notices: &mut Vec<String>,
) {
    let mut offers = Vec::new();
    for (name, entry, found) in lists(servers, parts) {
        let Listed { server, answer, .. } = match found {
            Ok(listed) => listed,
            Err(e) => {
                notices.push(missing(name, &e));
                continue;
            }
        };
        let Some(answer) = answer else { continue };
        let offered = answer.and_then(|(tools, change)| {
            notices.extend(change);
            tools
        });
        match offered {
            Ok(list) => {
                offers.push((server, chosen(name, entry, list, notices)));
            }
            // The user knows.
            Err(e) if e.kind == Kind::Interrupted => {}
            Err(e) => notices.push(missing(name, &e)),
        }
    }
    notices.extend(shorten(&mut offers, parts.config.tools.mcp_kb << 10));
    let mut taken = tools
        .iter()
        .map(|tool| tool.spec().name.to_string())
        .collect();
    for (server, list) in &offers {
        let functions = mcp_tools(server, list, &mut taken).into_iter();
        tools.extend(functions.map(|tool| Box::new(tool) as Box<dyn Tool>));
    }
}

/// The servers that are switched on.
fn enabled(config: &Config) -> impl Iterator<Item = (&String, &McpServer)> {
    config
        .mcp_servers
        .iter()
        .filter(|(_, entry)| entry.is_enabled())
}

/// The tools that an entry chooses.
fn chosen(
    name: &str,
    entry: &McpServer,
    list: Vec<RemoteTool>,
    notices: &mut Vec<String>,
) -> Vec<RemoteTool> {
    if entry.tools.is_empty() {
        return list;
    }
    let unknown = |wanted: &&String| !list.iter().any(|tool| tool.name == **wanted);
    let unknown = entry.tools.iter().filter(unknown);
    notices.extend(unknown.map(|wanted| {
        let wanted = one_line(wanted, 80);
        format!("mcpServers.{name}.tools names {wanted}, which the server does not offer: bantam mcp test {name}")
    }));
    list.into_iter()
        .filter(|tool| entry.tools.contains(&tool.name))
        .collect()
}

/// Leaves out what is too much for so many bytes: servers with few tools keep them all, the others share the rest.
fn shorten(offers: &mut [(Arc<Server>, Vec<RemoteTool>)], most: u64) -> Vec<String> {
    let size = |tools: &[RemoteTool]| tools.iter().map(RemoteTool::size).sum::<u64>();
    let mut by_size: Vec<_> = offers.iter_mut().collect();
    by_size.sort_by_key(|(_, tools)| size(tools));
    let mut notices = Vec::new();
    let mut left = most;
    let mut servers = by_size.len() as u64;
    for (server, tools) in by_size {
        let share = left / servers.max(1);
        let (all, whole) = (tools.len(), size(tools));
        while size(tools) > share {
            tools.pop();
        }
        left = left.saturating_sub(size(tools));
        servers -= 1;
        if tools.len() < all {
            let name = &server.name;
            notices.push(format!(
                "the MCP server {name} offers {all} tools ({}), and {} of them are offered: name those that you need in \
                 mcpServers.{name}.tools, or raise tools.mcp_kb",
                human_size(whole),
                tools.len()
            ));
        }
    }
    notices
}

/// A server that is switched on, and what is known of its tools.
struct Listed {
    server: Arc<Server>,
    /// `None` while it is asked in the background.
    answer: Option<Result<Answer>>,
    /// The server has said nothing else since.
    is_current: bool,
}

/// The servers that are switched on, each with its list on disk, or a fresh one. A failure is kept for a while, and told in
/// each run that misses the tools.
fn lists<'a>(
    servers: &Servers,
    parts: Parts<'a>,
) -> Vec<(&'a String, &'a McpServer, Result<Listed>)> {
    let now = SystemTime::now();
    let known = |(name, entry): (&'a String, &'a McpServer)| {
        let listed = server(servers, parts, name, entry).map(|server| {
            let list = ToolList::read(&server, now);
            Listed {
                is_current: list.as_ref().is_some_and(|list| !list.is_outdated),
                answer: list.map(|list| Ok((list.into_tools(), None))),
                server,
            }
        });
        (name, entry, listed)
    };
    let mut lists: Vec<_> = enabled(parts.config).map(known).collect();
    let listed = lists
        .iter_mut()
        .filter_map(|(.., listed)| listed.as_mut().ok());
    let old: Vec<&mut Listed> = listed.filter(|listed| !listed.is_current).collect();
    if old.is_empty() {
        return lists;
    }
    if let Err(e) = make_workspace(parts) {
        for listed in old {
            listed.answer = Some(Err(e.clone()));
        }
        return lists;
    }
    let to_ask: Vec<Arc<Server>> = old.iter().map(|listed| listed.server.clone()).collect();
    for (listed, answer) in old.into_iter().zip(servers.ask_for_tools(&to_ask)) {
        // Until one that is asked in the background has answered, its tools are those that it had.
        listed.answer = answer.or(listed.answer.take());
    }
    lists
}

/// The name begins those of the tools, and is a file name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.contains("__") || name.ends_with('_') {
        // The tool a__b__x would be that of a server a as well as of a server a__b.
        return Err(Error::usage(format!(
            "{}: not a name for an MCP server, because __ is between a server and its tool",
            one_line(name, 80)
        ))
        .hint("use another name, with single _ and none at the end"));
    }
    if !name.is_empty() && name.len() <= 40 && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(Error::usage(format!(
        "{}: not a valid name for an MCP server",
        one_line(name, 80)
    ))
    .hint("use letters, digits, - and _, 40 at most"))
}

/// The server of an entry, which is not started yet.
pub(crate) fn server(
    servers: &Servers,
    parts: Parts,
    name: &str,
    entry: &McpServer,
) -> Result<Arc<Server>> {
    check_name(name)?;
    match (entry.command.is_empty(), entry.url.is_empty()) {
        (true, true) => {
            return Err(Error::config(format!(
                "mcpServers.{name} has neither a command nor a url"
            )));
        }
        (false, false) => {
            return Err(Error::config(format!(
                "mcpServers.{name} has both a command and a url"
            )));
        }
        _ => {}
    }
    let connect = if entry.url.is_empty() {
        local(parts, name, entry)?
    } else {
        remote(parts.env, entry)?
    };
    let redactor = Redactor::new(parts.config.secrets(parts.env));
    let list = parts.home.mcp_tools(name);
    Ok(servers.get(name, entry, list, redactor, connect))
}

/// Speaks HTTP to a server elsewhere.
fn remote(env: &Env, entry: &McpServer) -> Result<Box<Connect>> {
    let (url, headers, settings) = (
        entry.url.clone(),
        expanded(&entry.headers, env)?,
        http_settings(&entry.url, "", env),
    );
    Ok(Box::new(move |_| {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.clone(), Secret::new(value.clone())))
            .collect();
        Ok(Box::new(Http::new(
            Client::new(settings.clone()),
            url.clone(),
            headers,
        )) as Box<dyn Transport>)
    }))
}

/// Whether a local server sees the workspace although its entry does not name it. A program may run what it finds in any file
/// that it sees, and whoever writes in the workspace must not come by the keys and the network of a server.
fn sees_workspace(entry: &McpServer) -> bool {
    entry.env.is_empty() && !entry.network
}

/// Starts a program in a sandbox of its own.
fn local(parts: Parts, name: &str, entry: &McpServer) -> Result<Box<Connect>> {
    let local = Local::of(parts, name, entry)?;
    Ok(Box::new(move |cancel| {
        make_own_directory(&local.job.home, &local.workspace)?;
        local.check()?;
        let child = local.workers.serve(local.job.clone(), cancel)?;
        Ok(Box::new(Stdio::new(child)?) as Box<dyn Transport>)
    }))
}

/// What it takes to start a program in its sandbox: it works in a directory of its own, and may change what its entry names, and
/// the workspace if [`sees_workspace`].
struct Local {
    name: String,
    entry: McpServer,
    job: ServeJob,
    workers: Workers,
    workspace: PathBuf,
    changeable: Vec<Changeable>,
    /// The trees that the sandbox shows besides the system's.
    shown: Vec<PathBuf>,
    sandbox: Sandbox,
    user_home: Option<PathBuf>,
}

impl Local {
    fn of(parts: Parts, name: &str, entry: &McpServer) -> Result<Self> {
        let read = format!("mcpServers.{name}.read");
        let write = format!("mcpServers.{name}.write");
        let layout = layout(parts)?;
        let named = [
            (setting(write, &entry.write, parts.env)?, Access::Write),
            (setting(read, &entry.read, parts.env)?, Access::Read),
        ];
        let sees_workspace = sees_workspace(entry);
        let trees = if sees_workspace {
            layout.trees(&named)?
        } else {
            layout.trees_without_workspace(&named)?
        };
        let changeable = layout.changeable_trees().map(|(setting, real)| Changeable {
            real: real.to_owned(),
            setting: setting.to_owned(),
        });
        let changeable: Vec<Changeable> = changeable.collect();
        let shown: Vec<PathBuf> = trees.iter().map(|tree| tree.real.clone()).collect();
        let workspace = changeable[0].real.clone();
        let own = Resolved::of(&parts.home.mcp_home(name)).real;
        let network = if entry.network {
            Network::Full
        } else {
            Network::None
        };
        let setup = Setup {
            confinement: Confinement::Unconfined,
            network,
            // A tree that the entry names may hold the socket of a service.
            named_sockets: entry.network || trees.len() == usize::from(sees_workspace),
            workspace: Tree::at(own.clone(), Access::Write),
            trees,
            all_except: None,
            memory_mb: entry.memory_mb,
        };
        let working_dir = own.join(&entry.cwd);
        let env = expanded(&entry.env, parts.env)?;
        let job = ServeJob {
            program: entry.command.clone(),
            args: entry.args.clone(),
            env,
            working_dir: working_dir.display().to_string(),
            home: own,
            counts_processes: rustix::process::geteuid().is_root(),
        };
        let sandbox = parts.config.tools.exec.sandbox;
        let workers = Workers::new(setup, layout.home(), sandbox, AddressGuard::new(false));
        Ok(Self {
            name: name.to_owned(),
            entry: entry.clone(),
            job,
            workers,
            workspace,
            changeable,
            shown,
            sandbox,
            user_home: parts.env.get("HOME").map(PathBuf::from),
        })
    }

    fn check(&self) -> Result<()> {
        let is_shown = |path: &Path| {
            let trees = &mut self.shown.iter().chain([&self.job.home]);
            self.sandbox == Sandbox::Off
                || sandbox::readable(path).is_some()
                || trees.any(|tree| path.starts_with(tree))
        };
        let launch = Launch {
            name: &self.name,
            entry: &self.entry,
            env: &self.job.env,
            working_dir: Path::new(&self.job.working_dir),
            changeable: &self.changeable,
            workspace: &self.workspace,
            is_shown: &is_shown,
            user_home: self.user_home.as_deref(),
        };
        launch.check()
    }
}

/// Makes the directory that a server works in. Started as root, workers run as the owner of the workspace, so this is, too.
fn make_own_directory(dir: &Path, workspace: &Path) -> Result<()> {
    storage::make_dir(dir)?;
    fs_err::set_permissions(dir, Permissions::from_mode(0o700))?;
    if rustix::process::geteuid().is_root() {
        let owner = fs_err::metadata(workspace)?;
        lchown(dir, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(())
}

/// Names and values, with variables replaced.
fn expanded(values: &BTreeMap<String, Secret>, env: &Env) -> Result<Vec<(String, String)>> {
    values
        .iter()
        .map(|(name, value)| Ok((name.clone(), keys::expand(value, env)?)))
        .collect()
}
