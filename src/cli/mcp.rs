//! `bantam mcp`: asks the configured MCP servers for their tools, and adds servers to the configuration.

use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::args::{Args, Command};
use super::{load, notice, print};
use crate::app::{self, Parts};
use crate::cancel::Cancel;
use crate::config::{Env, McpServer, edit};
use crate::error::{Context, Error, Result};
use crate::mcp::{RemoteTool, Servers};
use crate::text::{counted, nearest, one_line};

pub(super) const COMMANDS: &[Command] = &[
    Command::row(
        "mcp list",
        "",
        list,
        "start every MCP server, and count its tools",
    ),
    Command::row(
        "mcp test",
        "NAME",
        test,
        "start an MCP server, and list its tools",
    )
    .with_examples(&["bantam mcp test time"]),
    Command::row(
        "mcp add",
        "NAME URL|COMMAND...",
        add,
        "add an MCP server to config.json, and test it; put -- before a command",
    )
    .with_flags(&[
        (
            "--header NAME:VALUE",
            "send this header, for example \"Authorization: Bearer ${KEY}\" (repeatable)",
        ),
        (
            "--env NAME=VALUE",
            "set this variable for the command (repeatable)",
        ),
        ("--read DIR", "let the command read DIR (repeatable)"),
        ("--write DIR", "let the command change DIR (repeatable)"),
        ("--no-network", "keep the command off the network"),
    ])
    .with_examples(&[
        "bantam mcp add time -- uvx mcp-server-time",
        "bantam mcp add docs https://mcp.example.org/mcp",
    ]),
];

/// Asks a server for its tools, and tells which of them describe themselves otherwise than before.
fn ask(name: &str, entry: &McpServer, env: &Env) -> Result<Vec<RemoteTool>> {
    let (home, loaded) = load(env)?;
    let parts = Parts {
        home: &home,
        config: &loaded.config,
        env,
    };
    app::make_workspace(parts)?;
    let server = app::mcp::server(&Servers::default(), parts, name, entry)?;
    let (list, changes) = crate::mcp::refresh(&server, SystemTime::now(), &Cancel::new(None))?;
    for change in changes {
        notice(&change);
    }
    list.into_tools()
}

fn list(_: &Args, env: &Env) -> Result<u8> {
    let servers = load(env)?.1.config.mcp_servers;
    if servers.is_empty() {
        notice("no MCP servers; mcpServers in config.json names them");
    }
    let mut failed = false;
    let row = |(name, entry): (&String, &McpServer)| {
        let tools = ask(name, entry, env);
        failed |= tools.is_err();
        let outcome = tools.map_or_else(|e| e.to_string(), |tools| counted(tools.len(), "tool"));
        let what = if entry.url.is_empty() {
            format!("{} {}", entry.command, entry.args.join(" "))
        } else {
            entry.url.clone()
        };
        [
            name.clone(),
            one_line(&outcome, 200),
            one_line(&what, 80),
            network(entry).0.to_owned(),
        ]
    };
    let rows: Vec<_> = servers.iter().map(row).collect();
    print(&super::list(
        ["server", "answer", "started by or at", "network"],
        rows,
    ))?;
    if let Some(open) = servers.values().find(|entry| reaches_network(entry)) {
        let (word, meaning) = network(open);
        notice(&format!(
            "network \"{word}\": {meaning}; such a server is trusted with its keys and with all of that"
        ));
    }
    Ok(u8::from(failed))
}

fn reaches_network(entry: &McpServer) -> bool {
    entry.url.is_empty() && entry.network
}

/// What the network of a server is, in a word and in a sentence.
fn network(entry: &McpServer) -> (&'static str, &'static str) {
    if !entry.url.is_empty() {
        ("remote", "it runs elsewhere")
    } else if entry.network {
        (
            "yours",
            "its network is yours: the internet, this machine's ports and your local network",
        )
    } else {
        ("none", "it has no network")
    }
}

fn test(args: &Args, env: &Env) -> Result<u8> {
    let name = &args.words[0];
    let servers = load(env)?.1.config.mcp_servers;
    let Some(entry) = servers.get(name) else {
        let near = nearest(name, servers.keys().map(String::as_str));
        let hint = near.map_or("bantam mcp list".to_owned(), |near| {
            format!("bantam mcp test {near}")
        });
        return Err(
            Error::usage(format!("no MCP server is called {}", one_line(name, 80))).hint(hint),
        );
    };
    let tools = ask(name, entry, env)?;
    let rows = tools
        .iter()
        .map(|tool| [tool.name.clone(), one_line(&tool.description, 120)]);
    print(&super::list(["tool", "purpose"], rows.collect())).map(|()| 0)
}

fn add(args: &Args, env: &Env) -> Result<u8> {
    let (name, words) = args
        .words
        .split_first()
        .ok_or_else(|| Error::usage("bantam mcp add needs NAME"))?;
    app::mcp::check_name(name)?;
    let (home, loaded) = load(env)?;
    if loaded.config.mcp_servers.contains_key(name) {
        return Err(
            Error::usage(format!("config.json has a server {name} already"))
                .hint("choose another name, or change mcpServers in config.json"),
        );
    }
    let entry = entry(args, words)?;
    let loaded = edit::set(&home, env, &["mcpServers", name], &entry)?;
    let Some(entry) = loaded.config.mcp_servers.get(name) else {
        return Err(
            Error::config("BANTAM_MCPSERVERS replaces mcpServers of config.json")
                .hint("unset BANTAM_MCPSERVERS"),
        );
    };
    let tools = ask(name, entry, env)
        .doing(format_args!("added {name}, but it cannot be used"))
        .map_err(|e| {
            e.hint(format!(
                "correct mcpServers.{name} in config.json, then: bantam mcp test {name}"
            ))
        })?;
    print(&format!("Added {name}: {}\n", counted(tools.len(), "tool")))?;
    if entry.url.is_empty() {
        notice(&format!("{name}: {}", network(entry).1));
    }
    Ok(0)
}

/// The entry that the arguments describe.
fn entry(args: &Args, words: &[String]) -> Result<Value> {
    let is_url = words.len() == 1
        && ["http://", "https://"]
            .iter()
            .any(|scheme| words[0].starts_with(scheme));
    let (of_other, what) = if is_url {
        (&["env", "read", "write", "no-network"][..], "a URL")
    } else {
        (&["header"][..], "a command")
    };
    if let Some(flag) = of_other.iter().find(|flag| args.has(flag)) {
        return Err(Error::usage(format!("--{flag} is not for {what}")).hint("bantam help mcp add"));
    }
    let mut entry = if is_url {
        json!({"url": words[0]})
    } else {
        json!({"command": words[0], "args": words[1..]})
    };
    for (flag, field, separator) in [("header", "headers", ':'), ("env", "env", '=')] {
        let pair = |text: &str| {
            let (name, value) = text
                .split_once(separator)
                .filter(|(name, _)| !name.trim().is_empty())?;
            Some((name.trim().to_owned(), Value::from(value.trim())))
        };
        let pairs: Option<Map<String, Value>> = args.values(flag).map(pair).collect();
        match pairs {
            // It may be a secret.
            None => {
                return Err(Error::usage(format!("--{flag}: no {separator} in it"))
                    .hint("bantam help mcp add"));
            }
            Some(pairs) if pairs.is_empty() => {}
            Some(pairs) => entry[field] = pairs.into(),
        }
    }
    for flag in ["read", "write"].into_iter().filter(|flag| args.has(flag)) {
        let trees = args
            .values(flag)
            .map(|path| Ok(std::path::absolute(path)?.display().to_string()));
        entry[flag] = trees.collect::<Result<Vec<_>>>()?.into();
    }
    if args.has("no-network") {
        entry["network"] = false.into();
    }
    Ok(entry)
}
