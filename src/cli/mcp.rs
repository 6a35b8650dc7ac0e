//! `bantam mcp`: asks the configured MCP servers for their tools.

use std::time::SystemTime;

use super::args::{Args, Command};
use super::{load, print, table, tell};
use crate::app;
use crate::cancel::Cancel;
use crate::config::{Env, McpServer};
use crate::error::{Error, Result};
use crate::mcp::{Servers, ToolList};
use crate::text::{nearest, one_line};

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "mcp list",
        words: "",
        about: "start every MCP server, and count its tools",
        flags: &[],
        run: list,
    },
    Command {
        name: "mcp test",
        words: "NAME",
        about: "start an MCP server, and list its tools",
        flags: &[],
        run: test,
    },
];

/// Asks a server for its tools, and tells which of them describe themselves otherwise than before.
fn ask(name: &str, entry: &McpServer, env: &Env) -> Result<ToolList> {
    let (home, loaded) = load(env)?;
    app::make_workspace(&home, &loaded.config, env)?;
    let server = app::mcp::server(&Servers::default(), &home, &loaded.config, env, name, entry)?;
    let path = home.mcp_tools(name);
    let (list, changes) = crate::mcp::refresh(&server, &path, entry, SystemTime::now(), &Cancel::new(None))?;
    for change in changes {
        tell(&format!("bantam: {change}"));
    }
    Ok(list)
}

fn list(_: &Args, env: &Env) -> Result<u8> {
    let servers = load(env)?.1.config.mcp_servers;
    if servers.is_empty() {
        tell("bantam: no MCP servers; mcpServers in config.json names them");
    }
    let mut failed = false;
    let row = |(name, entry): (&String, &McpServer)| {
        let error = |list: ToolList| list.error.map_or(Ok(list.tools.len()), |e| Err(Error::failed(e)));
        let count = ask(name, entry, env).and_then(error);
        failed |= count.is_err();
        let outcome = count.map_or_else(|e| e.to_string(), |count| format!("{count} tools"));
        let what = if entry.url.is_empty() {
            format!("{} {}", entry.command, entry.args.join(" "))
        } else {
            entry.url.clone()
        };
        [name.clone(), one_line(&outcome, 200), one_line(&what, 80)]
    };
    let rows: Vec<_> = servers.iter().map(row).collect();
    print(&table(&rows)).map(|()| u8::from(failed))
}

fn test(args: &Args, env: &Env) -> Result<u8> {
    let name = &args.words[0];
    let servers = load(env)?.1.config.mcp_servers;
    let Some(entry) = servers.get(name) else {
        let near = nearest(name, servers.keys().map(String::as_str));
        let hint = near.map_or("bantam mcp list".to_owned(), |near| format!("bantam mcp test {near}"));
        return Err(Error::usage(format!("no MCP server is called {}", one_line(name, 80))).hint(hint));
    };
    let list = ask(name, entry, env)?;
    if let Some(e) = list.error {
        return Err(Error::failed(e));
    }
    let rows = list.tools.iter().map(|tool| [tool.name.clone(), one_line(&tool.description, 120)]);
    print(&table(&rows.collect::<Vec<_>>())).map(|()| 0)
}
