//! `bantam mcp`: lists the tools of the configured MCP servers, adds servers, and removes them.

use std::panic::resume_unwind;
use std::path::Path;
use std::thread::{self, ScopedJoinHandle};

use serde_json::{Value, json};

use super::args::Args;
use super::ui::Ui;
use super::{confirm, notice, print, table};
use crate::app::{self, App};
use crate::cancel::Cancel;
use crate::config::edit;
use crate::config::{Config, Loaded, McpServer, path, proxy};
use crate::doctor::{Check, Outcome, has_program};
use crate::error::{Context, Error, Kind, Result};
use crate::mcp::{RemoteTool, Servers, brief};
use crate::storage;
use crate::text::{counted, not_found, not_found_near, to_single_line};

/// Starts a server, and returns its tools.
fn list_server(loaded: &Loaded, name: &str, entry: &McpServer) -> Result<Vec<RemoteTool>> {
    let server = app::mcp::server(&Servers::default(), loaded, name, entry)?;
    let warning = server.list(&Cancel::new(None))?;
    warning.iter().map(String::as_str).for_each(notice);
    Ok(server.tools().unwrap_or_default())
}

/// Starts a server unless it is disabled, and returns how it answers.
fn answer(loaded: &Loaded, name: &str, entry: &McpServer) -> Check {
    const NAME: &str = "mcp";
    if !entry.is_enabled() {
        return Check::info(NAME, "disabled");
    }
    match list_server(loaded, name, entry) {
        Ok(tools) => Check::ok(NAME, counted(tools.len(), "tool")),
        Err(e) => {
            let check = Check::fail(NAME, brief(&e.message));
            check.fix(e.hint.unwrap_or_else(|| format!("bantam mcp test {name}")))
        }
    }
}

/// Starts the servers in parallel, because each may take a minute, and returns how they answer.
fn answers(loaded: &Loaded) -> Vec<(&String, &McpServer, Check)> {
    thread::scope(|scope| {
        let mut threads = Vec::new();
        for (name, entry) in &loaded.config.mcp_servers {
            threads.push(scope.spawn(move || (name, entry, answer(loaded, name, entry))));
        }
        let answers = threads.into_iter().map(ScopedJoinHandle::join);
        let answers = answers.map(|answer| answer.unwrap_or_else(|e| resume_unwind(e)));
        answers.collect()
    })
}

/// Checks each server, for `bantam doctor`.
pub(super) fn checks(loaded: &Loaded) -> impl Iterator<Item = Check> {
    answers(loaded).into_iter().map(|(name, _, check)| Check {
        found: format!("{name}: {}", check.found),
        ..check
    })
}

pub(super) fn list(app: &App, _ui: &Ui, _: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    if loaded.config.mcp_servers.is_empty() {
        notice("no MCP servers; `bantam mcp add NAME -- COMMAND` adds one");
    }
    app::make_workspace(loaded)?;
    let redactor = loaded.redactor();
    let (mut code, mut rows) = (0, Vec::new());
    for (name, entry, check) in answers(loaded) {
        code |= u8::from(check.outcome == Outcome::Fail);
        let (place, network) = match entry.url.as_str() {
            "" if entry.network => (entry.shown_command(), "full"),
            "" => (entry.shown_command(), "none"),
            url => (proxy::redact_url(url), "remote"),
        };
        rows.push([
            name.clone(),
            network.to_owned(),
            to_single_line(&redactor.redact_output(place, ""), 80),
            to_single_line(&check.found, 200),
        ]);
    }
    // The terminal clips the answer, which `mcp test` shows whole.
    let head = ["server", "network", "started by or at", "answer"];
    print(&table(&head, &rows)).map(|()| code)
}

pub(super) fn test(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let name = &args.words[0];
    let loaded = app.loaded()?;
    let entry = known(&loaded.config, name)?;
    app::make_workspace(loaded)?;
    let row = |tool: &RemoteTool| [tool.name.clone(), to_single_line(&tool.description, 120)];
    let tools = list_server(loaded, name, entry)?;
    let rows: Vec<_> = tools.iter().map(row).collect();
    print(&table(&["tool", "purpose"], &rows)).map(|()| 0)
}

/// Returns the entry with that name.
fn known<'a>(config: &'a Config, name: &str) -> Result<&'a McpServer> {
    let servers = &config.mcp_servers;
    let known = || servers.keys().map(String::as_str);
    let found = servers.get(name);
    found.ok_or_else(|| not_found("MCP server", name, known(), "bantam mcp list"))
}

pub(super) fn remove(app: &App, ui: &Ui, args: &Args) -> Result<u8> {
    let name = &args.words[0];
    let (home, loaded) = (&app.home, app.loaded()?);
    known(&loaded.config, name)?;
    let question = format!("Remove the MCP server {name} and its directory?");
    if !confirm(args, ui, &question)? {
        return print("Nothing removed\n").map(|()| 0);
    }
    edit::edit(home, &app.env, &|_| Vec::new(), |file| {
        path::remove(file, &["mcpServers", name])
    })?;
    storage::remove(&home.mcp_home(name))?;
    storage::remove(&home.mcp_tools(name))?;
    print(&format!("Removed {name}\n")).map(|()| 0)
}

/// Adds a server that starts.
pub(super) fn add(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let (name, words) = (&args.words[0], &args.words[1..]);
    app::mcp::check_name(name)?;
    let value = entry(args, words)?;
    let (home, loaded) = (&app.home, app.loaded()?);
    if loaded.config.mcp_servers.contains_key(name) {
        let hint = format!("choose another name, or run `bantam mcp remove {name}`");
        return Err(Error::usage(format!("config.json has a server {name} already")).hint(hint));
    }
    let entry: McpServer = serde_json::from_value(value.clone()).doing("reading the arguments")?;
    // It may be invisible in the sandbox, which cannot tell that from a missing one.
    let is_known = entry.env.contains_key("PATH") || has_program(&entry.command, &app.env);
    if entry.url.is_empty() && !is_known {
        let hint = match &*entry.command {
            json if json.starts_with('{') => "run `bantam config set mcpServers.NAME JSON`",
            url if url.contains("://") => "write one address, with http:// or https://",
            line if line.contains(' ') => "remove the quotes around the command",
            _ => "install it, or name it by its whole path",
        };
        return Err(not_found_near("program", &entry.command, None, "").hint(hint));
    }
    let mut config = Config::clone(&loaded.config);
    config.mcp_servers.insert(name.clone(), entry.clone());
    let with_it = loaded.with(config);
    let has_files = home.mcp_home(name).exists();
    let asked = app::make_workspace(&with_it).and_then(|()| list_server(&with_it, name, &entry));
    if asked.is_err() {
        // The file may have been created for the attempt.
        storage::remove(&home.mcp_tools(name))?;
        if !has_files {
            storage::remove(&home.mcp_home(name))?;
        }
    }
    let tools = asked.map_err(|e| explain_failed_add(e, name, &entry))?;
    edit::set(home, &app.env, &["mcpServers", name], &value)?;
    print(&format!("Added {name}: {}\n", counted(tools.len(), "tool")))?;
    if entry.url.is_empty() && entry.network {
        let reach = "the internet, this machine's ports and your local network";
        notice(&format!("{name} reaches {reach}"));
    }
    Ok(0)
}

/// Explains why a server is not added.
fn explain_failed_add(e: Error, name: &str, entry: &McpServer) -> Error {
    let e = e.doing(format_args!("{name} is not added"));
    if entry.url.is_empty() && e.kind == Kind::Failed {
        let words = std::iter::once(&entry.command).chain(&entry.args);
        let command = shell_words::join(words);
        let again = format!("bantam mcp add {name} --read DIR -- {command}");
        return e.hint(format!("run `{again}` if it needs more files"));
    }
    let hint = e.hint.clone();
    e.hint(hint.unwrap_or_else(|| "correct the address".to_owned()))
}

/// Creates the entry described by the arguments.
fn entry(args: &Args, words: &[String]) -> Result<Value> {
    let wrong = |what: String| Error::usage(what).hint("run `bantam help mcp add`");
    let (mut command, mut scripts) = (Vec::new(), Vec::new());
    for (n, word) in words.iter().enumerate() {
        // A server starts in another directory, and may read a script on its command line.
        if Path::new(word).is_file() && (n > 0 || word.contains('/')) {
            let file = std::path::absolute(word)?.display().to_string();
            scripts.extend((n > 0).then(|| file.clone()));
            command.push(file);
        } else {
            command.push(word.clone());
        }
    }
    let (mut entry, of_other) = match &command[..] {
        [url] if url.starts_with("http://") || url.starts_with("https://") => (
            json!({"url": url}),
            &["env", "read", "write", "no-network"][..],
        ),
        _ => (
            json!({"command": command[0], "args": command[1..]}),
            &["header"][..],
        ),
    };
    if let Some(flag) = of_other.iter().find(|flag| args.has(flag)) {
        return Err(wrong(format!("--{flag} is not for this kind of server")));
    }
    for (flag, field, separator) in [("header", "headers", ':'), ("env", "env", '=')] {
        for pair in args.values(flag) {
            // The value may be a secret, so it is not shown.
            let missing = || wrong(format!("--{flag} needs a {separator} in its value"));
            let (name, value) = pair.split_once(separator).ok_or_else(missing)?;
            entry[field][name.trim()] = value.trim().into();
        }
    }
    for flag in ["write", "read"] {
        let mut trees = Vec::new();
        for path in args.values(flag) {
            let tree = std::path::absolute(path)?;
            scripts.retain(|script| !Path::new(script).starts_with(&tree));
            trees.push(tree.display().to_string());
        }
        if flag == "read" {
            trees.append(&mut scripts);
        }
        if !trees.is_empty() {
            entry[flag] = trees.into();
        }
    }
    if args.has("no-network") {
        entry["network"] = false.into();
    }
    Ok(entry)
}
