//! `bantam mcp`: asks the configured MCP servers for their tools, and adds, removes, enables and disables servers.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use super::args::{Args, Command};
use super::{confirm, load, notice, print};
use crate::app::{self, Parts};
use crate::cancel::Cancel;
use crate::child;
use crate::config::edit::{self, Change};
use crate::config::{self, Config, Env, McpServer, proxy};
use crate::doctor::Check;
use crate::error::{Error, Result};
use crate::mcp::{MOVE_IT, RemoteTool, Servers, brief, is_wide};
use crate::paths::Home;
use crate::secret::Redactor;
use crate::storage;
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
        ("--keep", "add it even if it does not start"),
    ])
    .with_examples(&[
        "bantam mcp add time -- uvx mcp-server-time",
        "bantam mcp add docs https://mcp.example.org/mcp",
    ]),
    Command::row(
        "mcp remove",
        "NAME",
        remove,
        "remove an MCP server from config.json, and delete its directory",
    )
    .with_flags(&[("-y, --yes", "do not ask for confirmation")])
    .with_examples(&["bantam mcp remove time"]),
    Command::row("mcp enable", "NAME", enable, "offer its tools again")
        .with_examples(&["bantam mcp enable time"]),
    Command::row(
        "mcp disable",
        "NAME",
        disable,
        "stop offering its tools, but keep its entry",
    )
    .with_examples(&["bantam mcp disable time"]),
];

/// Asks a server for its tools, and tells whose description has changed.
fn ask(parts: Parts, name: &str, entry: &McpServer) -> Result<Vec<RemoteTool>> {
    let server = app::mcp::server(&Servers::default(), parts, name, entry)?;
    let (tools, change) = crate::mcp::refresh(&server, SystemTime::now(), &Cancel::new(None))?;
    if let Some(change) = change {
        notice(&change);
    }
    tools
}

/// Asks all servers that are switched on, side by side: one that does not answer keeps the others waiting for a minute.
fn ask_all(parts: Parts) -> Vec<Option<Result<Vec<RemoteTool>>>> {
    let servers = &parts.config.mcp_servers;
    thread::scope(|scope| {
        let mut asked = Vec::new();
        for (name, entry) in servers {
            let work = move || ask(parts, name, entry);
            asked.push(entry.enabled.then(|| scope.spawn(work)));
        }
        let panicked = |_| Err(Error::failed("asking it panicked"));
        let answer = |thread: ScopedJoinHandle<_>| thread.join().unwrap_or_else(panicked);
        asked.into_iter().map(|thread| thread.map(answer)).collect()
    })
}

/// Shows the last lines that a server said, and leaves the first of the error.
fn shown(e: Error) -> Error {
    let (first, said) = e.message.split_once('\n').unwrap_or((&e.message, ""));
    for line in said.lines() {
        notice(&format!("  | {}", one_line(line, 300)));
    }
    let message = if said.is_empty() {
        first.to_owned()
    } else {
        first.trim_end_matches(" and said:").to_owned()
    };
    Error { message, ..e }
}

fn list(_: &Args, env: &Env) -> Result<u8> {
    let (home, loaded) = load(env)?;
    let parts = parts(&home, &loaded.config, env);
    let servers = &loaded.config.mcp_servers;
    let redactor = Redactor::new(loaded.config.secrets(env));
    if servers.is_empty() {
        notice("no MCP servers; bantam mcp add NAME -- COMMAND adds one");
    }
    app::make_workspace(parts)?;
    let mut failed = false;
    let row =
        |((name, entry), answer): ((&String, &McpServer), Option<Result<Vec<RemoteTool>>>)| {
            failed |= matches!(answer, Some(Err(_)));
            let outcome = match answer {
                Some(Ok(tools)) => counted(tools.len(), "tool"),
                Some(Err(e)) => brief(&e.message),
                None => "disabled".to_owned(),
            };
            let what = if entry.url.is_empty() {
                entry.shown_command()
            } else {
                proxy::shown(&entry.url)
            };
            [
                name.clone(),
                one_line(&outcome, 200),
                one_line(&redactor.strike(what, ""), 80),
                network(entry).0.to_owned(),
            ]
        };
    let rows: Vec<_> = servers.iter().zip(ask_all(parts)).map(row).collect();
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

fn parts<'a>(home: &'a Home, config: &'a Arc<Config>, env: &'a Env) -> Parts<'a> {
    Parts { home, config, env }
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
            "it reaches the internet, this machine's ports and your local network",
        )
    } else {
        ("none", "it has no network")
    }
}

fn test(args: &Args, env: &Env) -> Result<u8> {
    let name = &args.words[0];
    let (home, loaded) = load(env)?;
    let entry = known(&loaded.config, name, "test")?;
    let parts = parts(&home, &loaded.config, env);
    app::make_workspace(parts)?;
    let tools = ask(parts, name, entry).map_err(shown)?;
    let rows = tools
        .iter()
        .map(|tool| [tool.name.clone(), one_line(&tool.description, 120)]);
    print(&super::list(["tool", "purpose"], rows.collect())).map(|()| 0)
}

/// The entry of that name, which `bantam mcp COMMAND` was given.
fn known<'a>(config: &'a Config, name: &str, command: &str) -> Result<&'a McpServer> {
    let servers = &config.mcp_servers;
    servers.get(name).ok_or_else(|| {
        let near = nearest(name, servers.keys().map(String::as_str));
        let hint = near.map_or("bantam mcp list".to_owned(), |near| {
            format!("bantam mcp {command} {near}")
        });
        Error::usage(format!("no MCP server is called {}", one_line(name, 80))).hint(hint)
    })
}

fn remove(args: &Args, env: &Env) -> Result<u8> {
    let name = &args.words[0];
    let (home, loaded) = load(env)?;
    known(&loaded.config, name, "remove")?;
    let question = format!("Remove the MCP server {name} and its directory?");
    if !confirm(args, &question)? {
        return print("Nothing removed\n").map(|()| 0);
    }
    edit::change(&home, env, &["mcpServers", name], &Change::Unset, &|_| {
        Vec::new()
    })?;
    storage::remove(&home.mcp_home(name))?;
    storage::remove(&home.mcp_tools(name))?;
    print(&format!("Removed {name}\n")).map(|()| 0)
}

fn enable(args: &Args, env: &Env) -> Result<u8> {
    switch(&args.words[0], "enable", &Change::Unset, "Enabled", env)
}

fn disable(args: &Args, env: &Env) -> Result<u8> {
    let off = Value::from(false);
    switch(
        &args.words[0],
        "disable",
        &Change::Set(&off),
        "Disabled",
        env,
    )
}

/// Changes `enabled` of an entry; its default is that it is.
fn switch(name: &str, command: &str, change: &Change, done: &str, env: &Env) -> Result<u8> {
    let (home, loaded) = load(env)?;
    let entry = known(&loaded.config, name, command)?;
    if entry.enabled != (command == "enable") {
        let path = ["mcpServers", name, "enabled"];
        edit::change(&home, env, &path, change, &|_| Vec::new())?;
    }
    print(&format!("{done} {name}\n")).map(|()| 0)
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
                .hint(format!("bantam mcp remove {name}, or choose another name")),
        );
    }
    let words = &typed_here(words);
    let value = entry(args, words)?;
    // As it would be read from the file.
    let text = json!({"mcpServers": {name: value}}).to_string();
    let alone = config::load_for(&home, Some(&text), env, Vec::new())?.config;
    let Some(entry) = alone.mcp_servers.get(name) else {
        return Err(
            Error::config("BANTAM_MCPSERVERS replaces mcpServers of config.json")
                .hint("unset BANTAM_MCPSERVERS"),
        );
    };
    let mut config = loaded.config;
    Arc::make_mut(&mut config)
        .mcp_servers
        .insert(name.clone(), entry.clone());
    let parts = parts(&home, &config, env);
    let has_files = home.mcp_home(name).exists();
    let asked = app::make_workspace(parts).and_then(|()| ask(parts, name, entry));
    if asked.is_ok() || args.has("keep") {
        edit::set(&home, env, &["mcpServers", name], &value)?;
    } else {
        // It may have been made for the attempt.
        storage::remove(&home.mcp_tools(name))?;
        if !has_files {
            storage::remove(&home.mcp_home(name))?;
        }
    }
    let tools = asked.map_err(|e| {
        let hint = next_attempt(args, words, parts, name, entry, &e);
        let e = shown(e);
        let prefix = format!("starting MCP server {name}: ");
        let why = e.message.strip_prefix(&prefix).unwrap_or(&e.message);
        let e = Error {
            message: why.to_owned(),
            ..e
        };
        let done = if entry.url.is_empty() {
            "start"
        } else {
            "answer"
        };
        if args.has("keep") {
            e.doing(format_args!("added {name}, but it did not {done}"))
                .hint(hint.unwrap_or_else(|| {
                    format!(
                        "correct mcpServers.{name} in config.json, then: bantam mcp test {name}"
                    )
                }))
        } else {
            let e = e.doing(format_args!("{name} did not {done}, and is not added"));
            let what = if entry.url.is_empty() {
                "command"
            } else {
                "address"
            };
            match (hint, &e.hint) {
                (Some(hint), _) => e.hint(hint),
                (None, Some(_)) => e,
                (None, None) => e.hint(format!(
                    "correct the {what}, or add it as it is with --keep"
                )),
            }
        }
    })?;
    print(&format!("Added {name}: {}\n", counted(tools.len(), "tool")))?;
    if entry.url.is_empty() {
        notice(&format!("{name}: {}", network(entry).1));
    }
    Ok(0)
}

/// What to do about a server that did not start: as far as can be seen, the command that the hint types can be run.
fn next_attempt(
    args: &Args,
    words: &[String],
    parts: Parts,
    name: &str,
    entry: &McpServer,
    e: &Error,
) -> Option<String> {
    let (words, trees) = if let Some((program, trees)) = unseen(parts, name, entry) {
        let trees = trees.into_iter().map(|tree| ("read", tree)).collect();
        ([&[program], &words[1..]].concat(), trees)
    } else {
        let tree = refused(parts, name, entry, &e.message)?;
        (words.to_vec(), vec![tree])
    };
    let user_home = parts.env.get("HOME").map(Path::new);
    let is_for_its_program = |(flag, _): &&(&str, PathBuf)| *flag == "read";
    let mut shown = trees.iter().filter(is_for_its_program);
    if shown.any(|(_, tree)| is_wide(tree, user_home)) {
        return Some(MOVE_IT.to_owned());
    }
    let mut next = entry.clone();
    next.command.clone_from(&words[0]);
    for (flag, tree) in &trees {
        let named = if *flag == "read" {
            &mut next.read
        } else {
            &mut next.write
        };
        named.push(tree.to_string_lossy().into_owned());
    }
    match app::mcp::check(parts, name, &next) {
        Ok(()) => Some(try_next(args, &words, name, &trees)),
        // What is wrong is told already, with what to do.
        Err(why) if e.message.ends_with(&why.message) => why.hint,
        Err(_) => Some(MOVE_IT.to_owned()),
    }
}

/// The command with these flags more.
fn try_next(args: &Args, words: &[String], name: &str, more: &[(&str, PathBuf)]) -> String {
    let mut typed = vec!["bantam mcp add".to_owned(), name.to_owned()];
    for known in ["env", "read", "write"] {
        for value in args.values(known) {
            // The value of a variable may be a secret.
            let is_shown = |value: &str| value.starts_with('/') || value.starts_with("${");
            let value = match value.split_once('=') {
                Some((variable, value)) if known == "env" && !is_shown(value) => {
                    format!("{variable}=...")
                }
                _ => value.to_owned(),
            };
            typed.push(format!("--{known} {}", shell_words::quote(&value)));
        }
    }
    if args.has("no-network") {
        typed.push("--no-network".to_owned());
    }
    for (flag, path) in more {
        let path = path.to_string_lossy();
        typed.push(format!("--{flag} {}", shell_words::quote(&path)));
    }
    typed.push("--".to_owned());
    typed.extend(
        words
            .iter()
            .map(|word| shell_words::quote(word).into_owned()),
    );
    format!("try {}", typed.join(" "))
}

/// What the sandbox of a server does not show of its program, as it has to be typed: the user's own search path leads to programs
/// that servers, which have a fixed one, find by their whole path alone.
fn unseen(parts: Parts, name: &str, entry: &McpServer) -> Option<(String, Vec<PathBuf>)> {
    let command = &entry.command;
    let find = |path: &str| {
        let files = path.split(':').map(|dir| Path::new(dir).join(command));
        files
            .filter(|file| file.is_absolute())
            .find(|file| file.is_file())
    };
    let own = || find(parts.env.get("PATH")?);
    let (typed, program) = if command.contains('/') || command.is_empty() {
        (command.clone(), PathBuf::from(command))
    } else if let Some(program) = find(child::PATH) {
        (command.clone(), program)
    } else {
        let program = own()?;
        (program.to_string_lossy().into_owned(), program)
    };
    let trees = crate::mcp::hidden(program, &|path| app::mcp::shows(parts, name, entry, path));
    (!trees.is_empty() || typed != *command).then_some((typed, trees))
}

/// What a server's last words say that it may not reach, although it is there: the flag and the directory that open it.
fn refused(
    parts: Parts,
    name: &str,
    entry: &McpServer,
    said: &str,
) -> Option<(&'static str, PathBuf)> {
    const REFUSALS: [&str; 7] = [
        "permission denied",
        "no such file",
        "read-only file system",
        "eacces",
        "enoent",
        "erofs",
        "cannot open",
    ];
    const WRITES: [&str; 6] = ["mkdir", "erofs", "read-only", "writ", "unlink", "rename"];
    for line in said.lines().rev() {
        let lower = line.to_ascii_lowercase();
        if !REFUSALS.iter().any(|word| lower.contains(word)) {
            continue;
        }
        let paths = line
            .split(|c: char| c.is_whitespace() || "'\"`,;()[]".contains(c))
            .map(|word| word.trim_end_matches([':', '.']))
            .filter(|word| word.starts_with('/'))
            .map(Path::new);
        for path in paths {
            let there = path.ancestors().find(|path| path.exists())?;
            let dir = if there.is_dir() {
                there
            } else {
                there.parent()?
            };
            let is_broad = dir.components().count() < 3
                || parts.home.root().starts_with(dir)
                || dir.starts_with(parts.home.root())
                || parts
                    .env
                    .get("HOME")
                    .is_some_and(|home| dir == Path::new(home));
            let writes = WRITES.iter().any(|word| lower.contains(word));
            if !is_broad && writes {
                return Some(("write", dir.to_owned()));
            }
            // Of a folder that is too much to show, the file alone.
            let shown = match is_broad {
                true if !path.is_file() || path.starts_with(parts.home.root()) => continue,
                true => path,
                false => dir,
            };
            if path.exists() && !app::mcp::shows(parts, name, entry, path) {
                return Some(("read", shown.to_owned()));
            }
        }
    }
    None
}

/// A line of `bantam doctor` for each server.
pub(super) fn checks(parts: Parts) -> Vec<Check> {
    let check = |(name, entry): (&String, &McpServer)| {
        if !entry.enabled {
            return Check::info("mcp", format!("{name}: disabled"));
        }
        match ask(parts, name, entry) {
            Ok(tools) => Check::ok("mcp", format!("{name}: {}", counted(tools.len(), "tool"))),
            Err(e) => {
                let message = format!("{name}: {}", brief(&e.message));
                let hint = e.hint.unwrap_or_else(|| format!("bantam mcp test {name}"));
                Check::fail("mcp", message).fix(hint)
            }
        }
    };
    parts.config.mcp_servers.iter().map(check).collect()
}

/// The words of a command with the whole paths of files: a server starts in a directory of its own, and not where the user is.
fn typed_here(words: &[String]) -> Vec<String> {
    let whole = |(n, word): (usize, &String)| {
        let path = Path::new(word);
        let is_meant = path.is_relative() && path.is_file() && (n > 0 || word.contains('/'));
        let whole = is_meant.then(|| std::path::absolute(path).ok()).flatten();
        whole.map_or_else(
            || word.clone(),
            |path| {
                let path = path.to_string_lossy().into_owned();
                if n > 0 {
                    notice(&format!("{word} is taken as {path}"));
                }
                path
            },
        )
    };
    words.iter().enumerate().map(whole).collect()
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
                return Err(
                    Error::usage(format!("--{flag} needs a {separator} in its value"))
                        .hint("bantam help mcp add"),
                );
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
