//! `bantam mcp`: lists the tools of the configured MCP servers, adds servers, and removes them.

use std::io;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::args::{Args, Subcommand, commands};
use super::ui::Ui;
use super::{confirm, notice, print, report, table};
use crate::app::{self, App};
use crate::cancel::Cancel;
use crate::config::edit;
use crate::config::{self, Config, Env, Loaded, McpServer, path, proxy};
use crate::doctor::Check;
use crate::error::{Context, Error, Kind, Result};
use crate::json::{explain, parse_json};
use crate::mcp::{self, RemoteTool, Servers, brief};
use crate::storage;
use crate::text::{counted, not_found, not_found_near, to_single_line};

pub(super) const COMMANDS: &[Subcommand] = commands! {
    InHome(list) "mcp list
        start each MCP server and show how many tools it has"
    InHome(test) "mcp test  NAME
        start an MCP server and list its tools
        $ bantam mcp test time"
    InHome(add) r#"mcp add  [NAME] [URL|COMMAND...]
        add an MCP server to config.json and test it. Put -- before a COMMAND
        $ bantam mcp add time -- uvx mcp-server-time
        $ bantam mcp add docs https://mcp.example.org/mcp
            --header NAME:VALUE  send this header, such as "Authorization: Bearer ${KEY}" (repeatable)
            --env NAME=VALUE     set this variable for COMMAND (repeatable)
            --read DIR           let COMMAND read DIR (repeatable)
            --write DIR          let COMMAND change DIR (repeatable)
            --no-network         block network access of COMMAND
            --keep               add it even if it does not start
            --json FILE          add the servers in another client's mcpServers JSON (- is standard input)"#
    InHome(remove) "mcp remove  NAME
        remove an MCP server from config.json and delete its directory
        $ bantam mcp remove time
        -y, --yes                do not ask for confirmation"
};

/// Lists servers in parallel, and shows changes.
fn list_servers(
    loaded: &Loaded,
    entries: &[(&String, &McpServer)],
) -> Vec<Result<Vec<RemoteTool>>> {
    let servers = Servers::default();
    let servers: Vec<_> = entries
        .iter()
        .map(|(name, entry)| app::mcp::server(&servers, loaded, name, entry))
        .collect();
    let valid: Vec<_> = servers.iter().flatten().cloned().collect();
    let mut listed = mcp::list_all(&valid, &Cancel::new(None)).into_iter();
    let mut lists = Vec::new();
    for server in servers {
        lists.push(server.and_then(|_| {
            let Some(listed) = listed.next() else {
                return Ok(Vec::new());
            };
            if let Some(warning) = listed.warning {
                notice(&warning);
            }
            listed.tools
        }));
    }
    lists
}

fn list_server(loaded: &Loaded, name: &String, entry: &McpServer) -> Result<Vec<RemoteTool>> {
    let mut lists = list_servers(loaded, &[(name, entry)]);
    lists.pop().unwrap_or_else(|| Ok(Vec::new()))
}

/// Shows the last output lines of a server, and returns the error without them.
fn show_last_words(e: Error) -> Error {
    let Some((first, said)) = e.message.split_once('\n') else {
        return e;
    };
    for line in said.lines() {
        notice(&format!("  | {}", to_single_line(line, 300)));
    }
    let message = first.trim_end_matches(" and said:").to_owned();
    Error { message, ..e }
}

fn list(app: &App, _ui: &Ui, _: &Args) -> Result<u8> {
    let loaded = app.loaded()?;
    let servers = &loaded.config.mcp_servers;
    if servers.is_empty() {
        notice("no MCP servers; `bantam mcp add NAME -- COMMAND` adds one");
    }
    app::make_workspace(loaded)?;
    let enabled: Vec<_> = servers
        .iter()
        .filter(|(_, entry)| entry.is_enabled())
        .collect();
    let mut lists = list_servers(loaded, &enabled).into_iter();
    let redactor = loaded.redactor();
    let mut failed = false;
    let mut rows = Vec::new();
    for (name, entry) in servers {
        let list = if entry.is_enabled() {
            lists.next()
        } else {
            None
        };
        let outcome = match list {
            Some(Ok(tools)) => counted(tools.len(), "tool"),
            Some(Err(e)) => {
                failed = true;
                brief(&e.message)
            }
            None => "disabled".to_owned(),
        };
        let place = if entry.url.is_empty() {
            entry.shown_command()
        } else {
            proxy::redact_url(&entry.url)
        };
        rows.push([
            name.clone(),
            to_single_line(&outcome, 200),
            to_single_line(&redactor.redact_output(place, ""), 80),
            network(entry).0.to_owned(),
        ]);
    }
    print(&table(
        &["server", "answer", "started by or at", "network"],
        &rows,
    ))?;
    if let Some(open) = servers
        .values()
        .find(|entry| entry.url.is_empty() && entry.network)
    {
        let (word, meaning) = network(open);
        notice(&format!(
            "network \"{word}\": {meaning}; such a server is trusted with its keys and with all of that"
        ));
    }
    Ok(u8::from(failed))
}

/// Describes the network of a server in a word and in a sentence.
fn network(entry: &McpServer) -> (&'static str, &'static str) {
    if !entry.url.is_empty() {
        ("remote", "runs on another machine")
    } else if entry.network {
        (
            "yours",
            "reaches the internet, this machine's ports and your local network",
        )
    } else {
        ("none", "no network access")
    }
}

fn test(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    let name = &args.words[0];
    let loaded = app.loaded()?;
    let entry = known(&loaded.config, name)?;
    app::make_workspace(loaded)?;
    let tools = list_server(loaded, name, entry).map_err(show_last_words)?;
    let rows = tools
        .iter()
        .map(|tool| [tool.name.clone(), to_single_line(&tool.description, 120)]);
    print(&table(&["tool", "purpose"], &rows.collect::<Vec<_>>())).map(|()| 0)
}

/// Returns the entry with that name.
fn known<'a>(config: &'a Config, name: &str) -> Result<&'a McpServer> {
    let servers = &config.mcp_servers;
    let known = || servers.keys().map(String::as_str);
    servers
        .get(name)
        .ok_or_else(|| not_found("MCP server", name, known(), "bantam mcp list"))
}

fn remove(app: &App, ui: &Ui, args: &Args) -> Result<u8> {
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

fn add(app: &App, _ui: &Ui, args: &Args) -> Result<u8> {
    if let Some(file) = args.value("json") {
        return add_all(app, file, args.has("keep"));
    }
    let (name, words) = match args.words.as_slice() {
        [name, words @ ..] if !words.is_empty() => (name, words),
        given => {
            let missing = if given.is_empty() {
                "NAME"
            } else {
                "URL or COMMAND"
            };
            return Err(Error::usage(format!("missing {missing}"))
                .hint("run `bantam mcp add time -- uvx mcp-server-time`, or give a URL"));
        }
    };
    let value = entry(args, words)?;
    add_server(app, name, &value, args.has("keep")).map(|()| 0)
}

/// Adds the servers of another client's JSON, `{"mcpServers": {...}}` or the inner object, and continues after failures.
fn add_all(app: &App, file: &str, keep: bool) -> Result<u8> {
    let text = match file {
        "-" => io::read_to_string(io::stdin()).doing("reading standard input")?,
        file if !Path::new(file).exists() => {
            return Err(not_found_near("file", file, None, "ls -l"));
        }
        file => config::read_json(Path::new(file)).doing(format_args!("reading {file}"))?,
    };
    let json = parse_json(&text).map_err(|e| {
        Error::usage(format!("{file} is not JSON: {}", explain(&e)))
            .hint("paste what another client has in `mcpServers`")
    })?;
    let servers = json.get("mcpServers").unwrap_or(&json).as_object();
    let is_entry = |entry: &Value| entry["command"].is_string() || entry["url"].is_string();
    let servers = servers
        .filter(|servers| !servers.is_empty() && servers.values().all(is_entry))
        .ok_or_else(|| {
            Error::usage(format!("{file} has no MCP servers"))
                .hint("paste what another client has in `mcpServers`")
        })?;
    let mut failed = Ok(0);
    for (name, entry) in servers {
        let mut entry = entry.clone();
        if let Some(fields) = entry.as_object_mut() {
            fields.remove("type");
            let is_known = |field: &String| path::resolve(&format!("mcpServers.x.{field}")).is_ok();
            for field in fields.keys().filter(|field| !is_known(field)) {
                let field = to_single_line(field, 40);
                notice(&format!(
                    "{name}: bantam has no \"{field}\", which is left out"
                ));
            }
            fields.retain(|field, _| is_known(field));
        }
        if let Err(e) = add_server(&app.reread(), name, &entry, keep) {
            report(&e);
            failed = Ok(e.kind.exit_code());
        }
    }
    failed
}

/// Adds a server and tests it.
fn add_server(app: &App, name: &str, value: &Value, keep: bool) -> Result<()> {
    app::mcp::check_name(name)?;
    let (home, loaded) = (&app.home, app.loaded()?);
    if loaded.config.mcp_servers.contains_key(name) {
        return Err(
            Error::usage(format!("config.json has a server {name} already")).hint(format!(
                "choose another name, or run `bantam mcp remove {name}`"
            )),
        );
    }
    // Parsed as if it were in the file.
    let text = json!({"mcpServers": {name: value}}).to_string();
    let alone = config::load_for(home, Some(&text), &app.env, Vec::new())?.config;
    let Some(entry) = alone.mcp_servers.get(name) else {
        return Err(
            Error::config("BANTAM_MCPSERVERS replaces mcpServers of config.json")
                .hint("unset BANTAM_MCPSERVERS"),
        );
    };
    let is_known = entry.env.contains_key("PATH") || is_program(&entry.command, &app.env);
    if entry.url.is_empty() && !keep && !is_known {
        return Err(not_found_near("program", &entry.command, None, "")
            .hint("install it, or name it by its whole path"));
    }
    let mut config = Config::clone(&loaded.config);
    config.mcp_servers.insert(name.to_owned(), entry.clone());
    let with_it = loaded.with(config);
    let has_files = home.mcp_home(name).exists();
    let asked =
        app::make_workspace(&with_it).and_then(|()| list_server(&with_it, &name.to_owned(), entry));
    if asked.is_ok() || keep {
        edit::set(home, &app.env, &["mcpServers", name], value)?;
    } else {
        // The file may have been created for the attempt.
        storage::remove(&home.mcp_tools(name))?;
        if !has_files {
            storage::remove(&home.mcp_home(name))?;
        }
    }
    let tools = asked.map_err(|e| explain_failed_add(e, name, entry, keep))?;
    print(&format!("Added {name}: {}\n", counted(tools.len(), "tool")))?;
    if entry.url.is_empty() {
        notice(&format!("{name}: {}", network(entry).1));
    }
    Ok(())
}

/// Whether the user can run the program, which may be invisible in the sandbox.
fn is_program(command: &str, env: &Env) -> bool {
    if command.contains('/') {
        return Path::new(command).exists();
    }
    let path = env.get("PATH").map_or("", String::as_str);
    path.split(':')
        .any(|dir| Path::new(dir).join(command).exists())
}

/// Explains the error of a server that was added or tested.
fn explain_failed_add(e: Error, name: &str, entry: &McpServer, is_kept: bool) -> Error {
    let mut e = show_last_words(e);
    let prefix = format!("starting MCP server {name}: ");
    if let Some(why) = e.message.strip_prefix(&prefix) {
        e.message = why.to_owned();
    }
    let done = if entry.url.is_empty() {
        "start"
    } else {
        "answer"
    };
    if is_kept {
        return e
            .doing(format_args!("added {name}, but it did not {done}"))
            .hint(format!(
                "correct mcpServers.{name} in config.json, then run `bantam mcp test {name}`"
            ));
    }
    let is_of_program = entry.url.is_empty() && e.kind == Kind::Failed;
    let e = e.doing(format_args!("{name} did not {done}, and is not added"));
    if is_of_program {
        let words = std::iter::once(&entry.command).chain(&entry.args);
        let command = shell_words::join(words);
        return e.hint(format!(
            "run `bantam mcp add {name} --read DIR -- {command}` if it needs more files"
        ));
    }
    if e.hint.is_some() {
        return e;
    }
    e.hint("correct the address, or add it as it is with --keep")
}

/// Checks each server, for `bantam doctor`.
pub(super) fn checks(loaded: &Loaded) -> Vec<Check> {
    let mut checks = Vec::new();
    for (name, entry) in &loaded.config.mcp_servers {
        if !entry.is_enabled() {
            checks.push(Check::info("mcp", format!("{name}: disabled")));
            continue;
        }
        checks.push(match list_server(loaded, name, entry) {
            Ok(tools) => Check::ok("mcp", format!("{name}: {}", counted(tools.len(), "tool"))),
            Err(e) => {
                let hint = e.hint.unwrap_or_else(|| format!("bantam mcp test {name}"));
                Check::fail("mcp", format!("{name}: {}", brief(&e.message))).fix(hint)
            }
        });
    }
    checks
}

/// Makes the paths of existing files in a command absolute, because a server starts in another directory. Returns also the
/// files among the arguments.
fn typed_here(words: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut whole, mut files) = (Vec::new(), Vec::new());
    for (n, word) in words.iter().enumerate() {
        let path = Path::new(word);
        let is_file = path.is_file() && (n > 0 || word.contains('/'));
        let file = is_file.then(|| std::path::absolute(path).ok()).flatten();
        let Some(file) = file.map(|file| file.to_string_lossy().into_owned()) else {
            whole.push(word.clone());
            continue;
        };
        if n > 0 {
            if file != *word {
                notice(&format!("{word} is taken as {file}"));
            }
            files.push(file.clone());
        }
        whole.push(file);
    }
    (whole, files)
}

/// Creates the entry described by the arguments.
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
        return Err(
            Error::usage(format!("--{flag} is not for {what}")).hint("run `bantam help mcp add`")
        );
    }
    let (words, files) = typed_here(words);
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
            // The value may be a secret, so it is not shown.
            None => {
                return Err(
                    Error::usage(format!("--{flag} needs a {separator} in its value"))
                        .hint("run `bantam help mcp add`"),
                );
            }
            Some(pairs) if pairs.is_empty() => {}
            Some(pairs) => entry[field] = pairs.into(),
        }
    }
    for (flag, files) in [("read", files), ("write", Vec::new())] {
        let trees = args
            .values(flag)
            .map(|path| Ok(std::path::absolute(path)?.display().to_string()));
        let mut trees = trees.collect::<Result<Vec<_>>>()?;
        // A script on the command line is meant to be read.
        trees.extend(files);
        if !trees.is_empty() {
            entry[flag] = trees.into();
        }
    }
    if args.has("no-network") {
        entry["network"] = false.into();
    }
    Ok(entry)
}
