//! MCP servers of a configuration, and their tools.

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::grants::{grants, paths_of_setting};
use super::{http_settings, make_workspace};
use crate::access::{Access, Grant, Resolved};
use crate::child::Network;
use crate::config::{Env, Loaded, McpServer, keys};
use crate::error::{Context, Error, Kind, Result};
use crate::http::Client;
use crate::mcp::{
    Connect, Definition, Http, Launch, RemoteTool, Server, Servers, Stdio, Transport, missing,
    refuse_writable_parts,
};
use crate::secret::Secret;
use crate::ssrf::AddressGuard;
use crate::storage;
use crate::text::{size as human_size, to_single_line};
use crate::tool::Registry;
use crate::tool::mcp::mcp_tools;
use crate::worker::Workers;
use crate::worker::protocol::{Policy, ServeJob};

/// Adds the tools of all servers to `tools`, and a notice for each missing or omitted one. `tools.mcp_kb` limits their total
/// size per request.
pub(super) fn add_tools(
    servers: &Servers,
    loaded: &Loaded,
    tools: &mut Registry,
    notices: &mut Vec<String>,
) {
    let mut enabled = Vec::new();
    for (name, entry) in &loaded.config.mcp_servers {
        if !entry.is_enabled() {
            continue;
        }
        match server(servers, loaded, name, entry) {
            Ok(server) => enabled.push(server),
            Err(e) => notices.push(missing(name, &e)),
        }
    }
    // Programs may have access to the workspace.
    if let Err(e) = make_workspace(loaded) {
        notices.push(e.message);
        return;
    }
    let mut offers = Vec::new();
    for listed in servers.tools_of(enabled) {
        notices.extend(listed.warnings);
        let name = &listed.server.definition.name;
        match listed.found {
            Some(Ok(found)) => {
                let wanted = &loaded.config.mcp_servers[name].tools;
                let chosen = choose(name, wanted, found, notices);
                offers.push((listed.server, chosen));
            }
            // The user interrupted the wait.
            Some(Err(e)) if e.kind == Kind::Interrupted => {}
            Some(Err(e)) => notices.push(missing(name, &e)),
            None => {}
        }
    }
    notices.extend(shorten(&mut offers, loaded.config.tools.mcp_kb << 10));
    let mut taken = tools.specs().map(|spec| spec.name.to_string()).collect();
    for (server, list) in &offers {
        for tool in mcp_tools(server, list, &mut taken) {
            let added = tools.add(tool);
            notices.extend(added.err().map(|e| e.message));
        }
    }
}

/// Selects the tools that an entry lists in `tools`.
fn choose(
    name: &str,
    wanted: &[String],
    mut found: Vec<RemoteTool>,
    notices: &mut Vec<String>,
) -> Vec<RemoteTool> {
    if wanted.is_empty() {
        return found;
    }
    for tool in wanted {
        if found.iter().all(|offered| offered.name != *tool) {
            let tool = to_single_line(tool, 80);
            notices.push(format!(
                "mcpServers.{name}.tools names {tool}, which the server does not offer: bantam mcp test {name}"
            ));
        }
    }
    found.retain(|tool| wanted.contains(&tool.name));
    found
}

/// Omits tools beyond `limit` bytes in total, of the largest servers. Returns a notice for each server with omitted tools.
fn shorten(offers: &mut [(Arc<Server>, Vec<RemoteTool>)], limit: u64) -> Vec<String> {
    let size = |tools: &[RemoteTool]| tools.iter().map(RemoteTool::size).sum::<u64>();
    let mut by_size: Vec<_> = offers.iter_mut().collect();
    by_size.sort_by_key(|(_, tools)| size(tools));
    let (mut left, mut notices) = (limit, Vec::new());
    for (server, tools) in by_size {
        let (count, whole) = (tools.len(), size(tools));
        tools.retain(|tool| {
            let rest = left.checked_sub(tool.size());
            left = rest.unwrap_or_default();
            rest.is_some()
        });
        if tools.len() < count {
            let name = &server.definition.name;
            notices.push(format!(
                "the MCP server {name} offers {count} tools ({}), and {} of them are offered: name those that you need in \
                 mcpServers.{name}.tools, or raise tools.mcp_kb",
                human_size(whole),
                tools.len()
            ));
        }
    }
    notices
}

/// # Errors
/// Returns an error if a server's name cannot be the prefix of tool names and a file name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    let shown = to_single_line(name, 80);
    if name.contains("__") || name.ends_with('_') {
        // Otherwise a__b__x could be a tool of server a or of server a__b.
        return Err(Error::usage(format!(
            "{shown}: not a name for an MCP server, because __ is between a server and its tool"
        ))
        .hint("use another name, with single _ and none at the end"));
    }
    if !name.is_empty() && name.len() <= 40 && name.chars().all(is_plain) {
        return Ok(());
    }
    Err(
        Error::usage(format!("{shown}: not a valid name for an MCP server"))
            .hint("use letters, digits, - and _, 40 at most"),
    )
}

/// Returns the server of an entry, not yet started.
pub(crate) fn server(
    servers: &Servers,
    loaded: &Loaded,
    name: &str,
    entry: &McpServer,
) -> Result<Arc<Server>> {
    check_name(name)?;
    let expand = |text: &String| {
        let expanded = keys::expand(&Secret::new(text), &loaded.env);
        expanded.doing(format_args!("mcpServers.{name}"))
    };
    let expanded = McpServer {
        command: expand(&entry.command)?,
        args: entry.args.iter().map(expand).collect::<Result<_>>()?,
        url: expand(&entry.url)?,
        ..entry.clone()
    };
    let connect = match (entry.command.is_empty(), entry.url.is_empty()) {
        (false, true) => start_program(loaded, name, &expanded)?,
        (true, false) => connect_to_url(&loaded.env, &expanded)?,
        (is_without, _) => {
            let has = if is_without {
                "neither a command nor a url"
            } else {
                "both a command and a url"
            };
            return Err(Error::config(format!("mcpServers.{name} has {has}")));
        }
    };
    let list = loaded.home.mcp_tools(name);
    Ok(servers.get(Definition {
        redactor: loaded.redactor(),
        ..Definition::new(name, entry, list, connect)
    }))
}

fn connect_to_url(env: &Env, entry: &McpServer) -> Result<Box<Connect>> {
    let url = entry.url.clone();
    let headers: Vec<(String, Secret)> = expand_all(&entry.headers, env)?
        .into_iter()
        .map(|(name, value)| (name, Secret::new(value)))
        .collect();
    let settings = http_settings(&url, "", env);
    Ok(Box::new(move |list, _| {
        let client = Client::new(settings.clone());
        let http = Http::new(client, url.clone(), headers.clone(), list.clone());
        Ok(Box::new(http) as Box<dyn Transport>)
    }))
}

/// Prepares a program with its own sandbox and directory. It may change the directories of its entry.
fn start_program(loaded: &Loaded, name: &str, entry: &McpServer) -> Result<Box<Connect>> {
    let grants = grants(loaded)?;
    let workspace = grants.workspace().real;
    let home = Resolved::follow(&loaded.home.mcp_home(name)).real;
    let env = expand_all(&entry.env, &loaded.env)?;
    let job = ServeJob {
        program: entry.command.clone(),
        args: entry.args.clone(),
        env,
        working_dir: home.join(&entry.cwd).display().to_string(),
        home: home.clone(),
    };
    let setting = |part: &str| format!("mcpServers.{name}.{part}");
    let mut named = paths_of_setting(&setting("write"), &entry.write, Access::Write, &loaded.env)?;
    named.extend(paths_of_setting(
        &setting("read"),
        &entry.read,
        Access::Read,
        &loaded.env,
    )?);
    // A program may run any file that it sees, so writers in the workspace could get the keys and the network of a server.
    let sees_workspace = entry.env.is_empty() && !entry.network;
    let mut opened = if sees_workspace {
        grants.beside_workspace(&named)?
    } else {
        grants.without_workspace(&named)?
    };
    // A directory of the entry may contain the socket of a service.
    let named_sockets = entry.network || opened.is_empty();
    if sees_workspace {
        opened.push(grants.workspace());
    }
    let policy = Policy {
        network: if entry.network {
            Network::Full
        } else {
            Network::None
        },
        named_sockets,
        workspace: Grant::at(home, Access::Write),
        grants: opened,
        notes: None,
        all_except: None,
        memory_mb: entry.memory_mb,
    };
    let sandbox = loaded.config.tools.exec.sandbox;
    let workers = Workers::new(policy, grants.home(), sandbox, AddressGuard::new(false));
    let name = name.to_owned();
    Ok(Box::new(move |list, cancel| {
        make_own_directory(&job.home, &workspace)?;
        refuse_writable_parts(&launch_of(&name, &job), &grants)?;
        let served = workers.serve(job.clone(), cancel)?;
        Ok(Box::new(Stdio::new(served, list.clone())?) as Box<dyn Transport>)
    }))
}

fn launch_of<'a>(name: &'a str, job: &'a ServeJob) -> Launch<'a> {
    let path = job.env.iter().find(|(name, _)| name == "PATH");
    Launch {
        name,
        command: &job.program,
        args: &job.args,
        path: path.map(|(_, value)| value.as_str()),
        working_dir: Path::new(&job.working_dir),
    }
}

/// Creates a server's working directory. As root, gives it to the owner of the workspace, because workers run as that user.
fn make_own_directory(dir: &PathBuf, workspace: &Path) -> Result<()> {
    storage::make_dir(dir)?;
    fs_err::set_permissions(dir, Permissions::from_mode(0o700))?;
    if rustix::process::geteuid().is_root() {
        let owner = fs_err::metadata(workspace)?;
        lchown(dir, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(())
}

/// Expands the variables in values.
fn expand_all(values: &BTreeMap<String, Secret>, env: &Env) -> Result<Vec<(String, String)>> {
    let mut expanded = Vec::new();
    for (name, value) in values {
        expanded.push((name.clone(), keys::expand(value, env)?));
    }
    Ok(expanded)
}
