//! The command line: finds the command, runs it, and turns its result into an exit code.

mod agent;
mod args;
mod attach;
mod completions;
mod config;
mod cron;
mod doctor;
mod editor;
mod gateway;
mod gateway_status;
mod help;
mod input;
mod mcp;
mod models;
mod onboard;
mod question;
mod repl;
mod schema;
mod send;
mod service;
mod sessions;
mod skills;
mod slash;
mod status;
mod tools;
mod topics;
mod ui;
mod usage;

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::fs::FileType;
use serde_json::{Value, json};

use crate::app::{self, App};
use crate::config::{self as settings, Env};
use crate::error::{Error, Result};
use crate::storage::{self, Durability};
use crate::sys;
use crate::text::{nearest, not_found_near, to_single_line};
use crate::timezone::{self, Zone};
use crate::worker;
use args::{Args, Command, Run};
use ui::{Ui, hanging_indent, notice, print, print_json, report, say, table, terminal};

const COMMANDS: &[&[Command]] = &[
    &[
        agent::COMMAND,
        gateway::COMMAND,
        onboard::COMMAND,
        doctor::COMMAND,
        status::COMMAND,
        service::COMMAND,
        send::COMMAND,
    ],
    &[tools::COMMAND, models::COMMAND],
    config::COMMANDS,
    sessions::COMMANDS,
    skills::COMMANDS,
    mcp::COMMANDS,
    &[usage::COMMAND],
    cron::COMMANDS,
    completions::COMMANDS,
    &[help::COMMAND],
];

fn commands() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().copied().flatten()
}

/// Runs the program as a worker process or a command, depending on the first argument.
pub fn main() -> ExitCode {
    worker::init();
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let env = Arc::new(settings::environment());
    ExitCode::from(run(args.iter().cloned(), &env).unwrap_or_else(|e| fail(&args, &e)))
}

fn run(args: impl Iterator<Item = OsString>, env: &Arc<Env>) -> Result<u8> {
    worker::begun()?;
    let ui = &Ui::new(env);
    let mut args = args.peekable();
    let Some(first) = args.next() else {
        if is_piped() {
            return agent::ask(&App::open(env)?, ui, std::iter::empty());
        }
        return help::overview();
    };
    if is_question(&first, args.peek().is_none()) {
        return agent::ask(&App::open(env)?, ui, std::iter::once(first).chain(args));
    }
    let name = match first.to_string_lossy().as_ref() {
        "--version" | "-V" | "-v" => {
            return print(concat!("bantam ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| 0);
        }
        "--help" | "-h" => "help".to_owned(),
        name => name.to_owned(),
    };
    let mut found = match find(&name) {
        Ok(found) => found,
        // A single word is a question about piped input, unless it looks like a misspelt command.
        Err(_) if is_piped() && nearest_command(&name).is_none() && !name.trim().is_empty() => {
            return agent::ask(&App::open(env)?, ui, std::iter::once(first).chain(args));
        }
        Err(_) => {
            let rest = args.map(|word| word.to_string_lossy().into_owned());
            return Err(unknown_command(&name, &rest.collect::<Vec<_>>()));
        }
    };
    if found[0].name != name {
        match args.peek().map(|word| word.to_string_lossy().into_owned()) {
            Some(word) if matches!(word.as_str(), "--help" | "-h") => return help::show(&found),
            Some(word) if !word.starts_with('-') => {
                found = find(&format!("{name} {word}"))?;
                args.next();
            }
            // A group without a subcommand lists.
            _ => found = find(&format!("{name} list"))?,
        }
    }
    let args = args.filter(|arg| !sys::is_inherited(arg));
    match args::parse(found[0], args)? {
        None => help::show(&found),
        Some(args) => match found[0].run {
            Run::Anywhere(run) => run(ui, &args),
            Run::InHome(run) => run(&App::open(env)?, ui, &args),
        },
    }
}

/// Whether the first argument begins a question without `agent`.
fn is_question(first: &OsStr, is_alone: bool) -> bool {
    let shown = first.to_string_lossy();
    // An unknown flag is a mistake in a question. A single -v asks for the version.
    let is_own = matches!(shown.as_ref(), "--version" | "-V" | "--help" | "-h");
    let is_flag = shown.starts_with('-') && !is_own && (shown != "-v" || !is_alone);
    shown.contains(char::is_whitespace) || is_flag
}

/// Whether standard input is a pipe or a file.
fn is_piped() -> bool {
    let kind = rustix::fs::fstat(io::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(
        kind,
        Ok(FileType::Fifo | FileType::Socket | FileType::RegularFile)
    )
}

/// Prints an error, and its object for `--json`. The arguments may be invalid, so they are not parsed.
fn fail(args: &[OsString], e: &Error) -> u8 {
    let has = |flag: &str| {
        args.iter()
            .take_while(|arg| *arg != "--")
            .any(|arg| arg == flag)
    };
    if !has("--json") && !has("--events") {
        return report(e);
    }
    let is_question = args
        .first()
        .is_some_and(|first| is_question(first, args.len() == 1));
    let is_named = |command: &&Command| {
        let mut names = command.name.split(' ').zip(args);
        names.all(|(name, arg)| arg == name) || is_question && command.name == "agent"
    };
    let command = commands()
        .filter(is_named)
        .find(|command| command.flags().any(|flag| flag.long == "json"));
    if let Some(command) = command {
        let object = match command.name {
            "agent" => ui::failure_json(e),
            _ => json!({"ok": false, "error": error_json(e)}),
        };
        // If standard output also fails, the error cannot be reported there.
        drop(print_json(&object));
    }
    report(e)
}

/// Words of other programs for subcommands, and the intended subcommands.
const SYNONYMS: [(&[&str], &[&str]); 2] = [
    (
        &[
            "rm",
            "delete",
            "del",
            "remove",
            "erase",
            "uninstall",
            "unset",
        ],
        &["remove", "erase", "unset"],
    ),
    (
        &["ls", "list", "show", "get", "view"],
        &["list", "show", "get"],
    ),
];

/// Returns the command with this name, or all subcommands of the group. Never empty.
fn find(name: &str) -> Result<Vec<&'static Command>> {
    let named = |name: &str| -> Vec<&Command> {
        commands()
            .filter(|command| command.name == name || command.group() == Some(name))
            .collect()
    };
    let mut found = named(name);
    if let (true, Some((group, verb))) = (found.is_empty(), name.split_once(' ')) {
        let synonyms = SYNONYMS.iter().filter(|(words, _)| words.contains(&verb));
        let mut meant = synonyms.flat_map(|(_, commands)| commands.iter());
        found = meant
            .find_map(|meant| Some(named(&format!("{group} {meant}"))).filter(|c| !c.is_empty()))
            .unwrap_or_default();
    }
    if found.is_empty() {
        return Err(unknown_command(name, &[]));
    }
    Ok(found)
}

fn nearest_command(name: &str) -> Option<&'static str> {
    let names = commands().flat_map(|c| [Some(c.name), c.group()]).flatten();
    nearest(name, names)
}

/// Creates the error for an unknown command. The following words may belong to a question.
fn unknown_command(name: &str, rest: &[String]) -> Error {
    if name.trim().is_empty() {
        return Error::usage("the question is empty").hint("run `bantam help`");
    }
    let near = nearest_command(name).map(|near| format!("bantam {near}"));
    let group = name.split_once(' ').map(|(group, _)| group);
    let question = to_single_line(&format!("{name} {}", rest.join(" ")), 60);
    let list = match group {
        Some(group) if find(group).is_ok() => format!("bantam help {group}"),
        None if !rest.is_empty() => format!("bantam {}", shell_words::quote(question.trim())),
        _ => "bantam help".to_owned(),
    };
    not_found_near("command", name, near.as_deref(), &list)
}

/// Asks for permission, unless `--yes` is given.
fn confirm(args: &Args, ui: &Ui, question: &str) -> Result<bool> {
    if args.has("yes") {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(Error::usage(
            "this needs a confirmation, and standard input is not a terminal",
        )
        .hint("add `--yes`"));
    }
    ui.agrees(question, false)
}

/// Formats the error for `--json`.
fn error_json(e: &Error) -> Value {
    json!({"kind": e.kind.name(), "message": e.message, "hint": e.hint})
}

/// Shows warnings before a turn. Warnings about config.json are shown once per change of it, because a job in a crontab would
/// repeat them forever.
fn warn_once(ui: &Ui, app: &App, notices: &[String]) -> Result<()> {
    let loaded = app.loaded()?;
    let misplaced = app::misplaced(loaded);
    let is_wrong = !loaded.warnings.is_empty() || misplaced.is_some();
    if is_wrong && !ui.is_quiet() {
        let told = app.home.state().join("warned");
        let file = app.text()?.unwrap_or_default();
        let files = misplaced.as_deref().unwrap_or_default();
        let change = format!(
            "{:08x}",
            crc32fast::hash(format!("{file}{files}").as_bytes())
        );
        if fs_err::read_to_string(&told).map_or(true, |told| told != change) {
            ui.warn(loaded.warnings.iter().chain(&misplaced));
            // If the mark cannot be written, each run warns.
            drop(storage::replace(
                &told,
                change.as_bytes(),
                Durability::Later,
            ));
        }
    }
    ui.warn(notices);
    Ok(())
}

/// Returns the local zone, or UTC with a warning if it cannot be read.
fn zone(env: &Env) -> Zone {
    Zone::local(env).unwrap_or_else(|e| {
        notice(&format!("{e}; times are UTC"));
        Zone::utc()
    })
}

/// Formats a stored time in local time: `2026-11-21 22:44:35`. Other text is unchanged.
fn local_time(rfc3339: &str, zone: &Zone) -> String {
    match timezone::parse_time(rfc3339) {
        Some((seconds, offset)) => zone.stamp(seconds - i64::from(offset.unwrap_or(0))),
        None => to_single_line(rfc3339, 19),
    }
}
