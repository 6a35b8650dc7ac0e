//! MCP servers of a configuration, and their tools.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::grants::{grants, paths_of_setting};
use super::{http_settings, make_workspace};
use crate::access::{Access, Grant, Resolved};
use crate::child::Network;
use crate::config::{Env, Loaded, McpServer, keys};
use crate::error::{Context, Error, Result};
use crate::mcp::{Definition, Program, Remote, Server, ServerKind, Servers, checksum, missing};
use crate::secret::Secret;
use crate::ssrf::AddressGuard;
use crate::text::to_single_line;
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
    let entries = loaded.config.mcp_servers.iter();
    for (name, entry) in entries.filter(|(_, entry)| entry.is_enabled()) {
        match server(servers, loaded, name, entry) {
            Ok(server) => enabled.push(server),
            Err(e) => notices.push(missing(name, &e)),
        }
    }
    // Programs may have access to the workspace.
    notices.extend(make_workspace(loaded).err().map(|e| e.message));
    let mut left = loaded.config.tools.mcp_kb << 10;
    notices.extend(servers.list_unknown(&enabled));
    for server in enabled {
        let name = &server.definition.name;
        let Some(mut chosen) = server.tools() else {
            continue;
        };
        let wanted = &loaded.config.mcp_servers[name].tools;
        chosen.retain(|tool| wanted.is_empty() || wanted.contains(&tool.name));
        if chosen.len() < wanted.len() {
            notices.push(format!(
                "mcpServers.{name}.tools names tools that the server does not offer: bantam mcp test {name}"
            ));
        }
        let count = chosen.len();
        chosen.retain(|tool| {
            let rest = left.checked_sub(tool.size());
            left = rest.unwrap_or(left);
            rest.is_some()
        });
        if chosen.len() < count {
            notices.push(format!(
                "the MCP server {name} offers {count} tools, and {} of them are offered: name those that you need in \
                 mcpServers.{name}.tools, or raise tools.mcp_kb",
                chosen.len()
            ));
        }
        for tool in mcp_tools(&server, &chosen) {
            let added = tools.add(tool);
            notices.extend(added.err().map(|e| e.message));
        }
    }
}

/// # Errors
/// Returns an error if a server's name cannot be the prefix of tool names and a file name.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    // Otherwise a__b__x could be a tool of server a or of server a__b.
    let is_prefix = !name.contains("__") && !name.ends_with('_');
    if is_prefix && (1..=40).contains(&name.len()) && name.chars().all(is_plain) {
        return Ok(());
    }
    let shown = to_single_line(name, 80);
    Err(
        Error::usage(format!("{shown}: not a valid name for an MCP server"))
            .hint("use letters, digits, - and single _ between them, 40 at most"),
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
    let kind = match (entry.command.is_empty(), entry.url.is_empty()) {
        (false, true) => ServerKind::Program(Box::new(program(loaded, name, &expanded)?)),
        (true, false) => {
            let headers = expand_all(&entry.headers, &loaded.env)?.into_iter();
            let headers = headers.map(|(name, value)| (name, Secret::new(value)));
            ServerKind::Remote(Box::new(Remote {
                settings: http_settings(&expanded.url, "", &loaded.env),
                url: expanded.url,
                headers: headers.collect(),
            }))
        }
        _ => {
            return Err(Error::config(format!(
                "mcpServers.{name} needs either a command or a url"
            )));
        }
    };
    Ok(servers.get(Definition {
        name: name.to_owned(),
        checksum: checksum(entry),
        kind,
        list: loaded.home.mcp_tools(name),
        redactor: loaded.redactor(),
    }))
}

/// Prepares a program with its own sandbox and directory. It may change the directories of its entry.
fn program(loaded: &Loaded, name: &str, entry: &McpServer) -> Result<Program> {
    let grants = grants(loaded)?;
    let home = Resolved::follow(&loaded.home.mcp_home(name)).real;
    let paths = |part: &str, paths: &[String], access| {
        let setting = format!("mcpServers.{name}.{part}");
        paths_of_setting(&setting, paths, access, &loaded.env)
    };
    let mut named = paths("write", &entry.write, Access::Write)?;
    named.extend(paths("read", &entry.read, Access::Read)?);
    // A program may run any file that it sees, so writers in the workspace could get the keys and the network of a server.
    let sees_workspace = entry.env.is_empty() && !entry.network;
    let opened = if sees_workspace {
        let mut opened = grants.beside_workspace(&named)?;
        opened.push(grants.workspace());
        opened
    } else {
        grants.without_workspace(&named)?
    };
    let policy = Policy {
        network: if entry.network {
            Network::Full
        } else {
            Network::None
        },
        // A directory of the entry may contain the socket of a service.
        named_sockets: entry.network || named.is_empty(),
        workspace: Grant::at(home.clone(), Access::Write),
        grants: opened,
        notes: None,
        all_except: None,
        user_home: None,
        memory_mb: entry.memory_mb,
    };
    let sandbox = loaded.config.tools.exec.sandbox;
    let workers = Workers::new(policy, grants.home(), sandbox, AddressGuard::new(false));
    let job = ServeJob {
        program: entry.command.clone(),
        args: entry.args.clone(),
        env: expand_all(&entry.env, &loaded.env)?,
        working_dir: home.join(&entry.cwd).display().to_string(),
        home,
    };
    Ok(Program {
        workers,
        job,
        grants,
    })
}

/// Expands the variables in values.
fn expand_all(values: &BTreeMap<String, Secret>, env: &Env) -> Result<Vec<(String, String)>> {
    let expand = |(name, value): (&String, _)| Ok((name.clone(), keys::expand(value, env)?));
    values.iter().map(expand).collect()
}
