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

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::fs::FileType;
use serde_json::{Value, json};

use crate::app::{self, App};
use crate::config::{self as settings, Env};
use crate::error::{Error, Result};
use crate::text::{nearest, not_found_near, to_single_line};
use crate::timezone::{self, Zone};
use crate::worker;
use args::{Args, Needs, Subcommand};
use ui::{Ui, hanging_indent, notice, print, print_json, report, say, table, terminal};

const COMMANDS: [&[Subcommand]; 17] = [
    agent::COMMANDS,
    gateway::COMMANDS,
    onboard::COMMANDS,
    doctor::COMMANDS,
    status::COMMANDS,
    service::COMMANDS,
    send::COMMANDS,
    tools::COMMANDS,
    models::COMMANDS,
    config::COMMANDS,
    sessions::COMMANDS,
    skills::COMMANDS,
    mcp::COMMANDS,
    usage::COMMANDS,
    cron::COMMANDS,
    completions::COMMANDS,
    help::COMMANDS,
];

fn commands() -> impl Iterator<Item = &'static Subcommand> {
    COMMANDS.into_iter().flatten()
}

/// Runs the program as a worker process or a command, depending on the first argument.
pub fn main() -> ExitCode {
    worker::init();
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let env = Arc::new(settings::environment());
    ExitCode::from(run(&args, &env).unwrap_or_else(|e| fail(&args, &e)))
}

fn run(args: &[OsString], env: &Arc<Env>) -> Result<u8> {
    worker::begun()?;
    let ui = &Ui::new(env);
    let words: Vec<String> = args
        .iter()
        .map(|arg| arg.to_string_lossy().into())
        .collect();
    let ask = || agent::ask(&App::open(env)?, ui, args.iter().cloned());
    let Some(first) = words.first() else {
        return if is_piped() { ask() } else { help::overview() };
    };
    match first.as_str() {
        "__complete" => return completions::complete(&App::open(env)?, &words[1..]),
        "-" => {
            return Err(Error::usage("\"-\" is not a question")
                .hint("leave out `-`; a pipe or a file on standard input is read without it"));
        }
        "--help" | "-h" => return help::overview(),
        first if is_question(first) => return ask(),
        "--version" | "-V" => {
            return print(concat!("bantam ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| 0);
        }
        _ => {}
    }
    let Some((command, taken)) = command_of(&words) else {
        // A single word is a question about piped input, unless it looks like a misspelt command.
        let is_word = nearest_command(first).is_none() && !first.trim().is_empty();
        if is_word && find(first).is_empty() && is_piped() {
            return ask();
        }
        return Err(unknown_command(&words));
    };
    match args::parse(command, args.iter().skip(taken).cloned())? {
        None => help::show(&find(&words[..taken].join(" "))),
        Some(args) => match command.run {
            Needs::Anywhere(run) => run(ui, &args),
            Needs::InHome(run) => run(&App::open(env)?, ui, &args),
        },
    }
}

/// Returns the command that begins the words, and how many words name it. A group alone lists.
fn command_of(words: &[String]) -> Option<(&'static Subcommand, usize)> {
    let first = words.first()?;
    let mut found = find(first).into_iter();
    match words.get(1).filter(|verb| !verb.starts_with('-')) {
        _ if found.as_slice().first()?.name() == first => Some((found.next()?, 1)),
        Some(verb) => Some((found.find(|command| is_meant(command.verb(), verb))?, 2)),
        None => {
            let list = found.find(|command| matches!(command.verb(), "list" | "get"))?;
            Some((list, 1))
        }
    }
}

/// Whether a word names this subcommand, also one that other programs have for it.
fn is_meant(verb: &str, word: &str) -> bool {
    word == verb
        || match verb {
            "remove" | "erase" | "unset" => matches!(word, "rm" | "delete" | "remove"),
            "list" => word == "ls",
            "get" => word == "show",
            _ => false,
        }
}

/// Whether the first argument begins a question without `agent`. An unknown flag is a mistake in one.
fn is_question(first: &str) -> bool {
    let is_own = matches!(first, "--version" | "-V" | "--help" | "-h");
    first.contains(char::is_whitespace) || first.starts_with('-') && !is_own
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
    let words = args.iter().map(|arg| arg.to_string_lossy().into_owned());
    let words: Vec<String> = words.take_while(|word| word != "--").collect();
    let command = match words.first() {
        Some(first) if is_question(first) => Some(&agent::COMMANDS[0]),
        _ => command_of(&words).map(|(command, _)| command),
    };
    let wants_json = words
        .iter()
        .any(|word| matches!(word.as_str(), "--json" | "--events"));
    let has_json = |command: &&Subcommand| {
        let mut flags = command.flags();
        flags.any(|flag| flag.long == "json" && flag.value.is_empty())
    };
    if let (true, Some(command)) = (wants_json, command.filter(has_json)) {
        let object = match command.name() {
            "agent" => ui::failure_json(e),
            _ => json!({"ok": false, "error": error_json(e)}),
        };
        // If standard output also fails, the error cannot be reported there.
        drop(print_json(&object));
    }
    report(e)
}

/// Returns the command with this name, or all subcommands of the group.
fn find(name: &str) -> Vec<&'static Subcommand> {
    // Reading the names of all texts would cost each question 60,000 instructions.
    let near = commands().filter(|command| command.text.starts_with(name));
    near.filter(|command| command.name() == name || command.group() == Some(name))
        .collect()
}

/// Returns the command or group that is probably meant by a word, or by a group and a word.
fn nearest_command(name: &str) -> Option<&'static str> {
    let Some((group, verb)) = name.split_once(' ') else {
        return nearest(name, commands().map(|c| c.group().unwrap_or(c.name())));
    };
    let members = find(group);
    let near = nearest(verb, members.iter().map(|command| command.verb()))?;
    let command = members.iter().find(|command| command.verb() == near)?;
    Some(command.name())
}

/// Words that other programs have for a command.
const ELSEWHERE: [(&str, &str); 3] = [
    ("chat", "agent"),
    ("logs", "sessions"),
    ("version", "--version"),
];

/// Creates the error for an unknown command. The words may be a question.
fn unknown_command(words: &[String]) -> Error {
    let first = words[0].trim();
    if first.is_empty() {
        return Error::usage("the question is empty").hint("run `bantam help`");
    }
    let is_group = !find(first).is_empty();
    let name = if is_group {
        words[..2].join(" ")
    } else {
        first.to_owned()
    };
    let near = match ELSEWHERE.iter().find(|(other, _)| *other == name) {
        Some((_, command)) => Some(*command),
        None => nearest_command(&name),
    };
    let near = match near {
        None if topics::names().any(|topic| topic == name) => Some(format!("bantam help {name}")),
        near => near.map(|near| format!("bantam {near}")),
    };
    let error = not_found_near("command", &name, near.as_deref(), "");
    if near.is_some() {
        return error;
    }
    let question = to_single_line(&words.join(" "), 60);
    let question = shell_words::quote(&question);
    error.hint(match words {
        _ if is_group => format!("run `bantam help {first}`"),
        [_] => format!("to ask it, run `bantam agent {question}`"),
        _ => format!("to ask it, run `bantam {question}`"),
    })
}

/// Asks for permission, unless `--yes` is given.
fn confirm(args: &Args, ui: &Ui, question: &str) -> Result<bool> {
    if args.has("yes") {
        return Ok(true);
    }
    if !io::stdin().is_terminal() {
        return Err(
            Error::usage("confirmation needed, but standard input is not a terminal")
                .hint("add `--yes`"),
        );
    }
    ui.agrees(question, false)
}

/// Formats the error for `--json`.
fn error_json(e: &Error) -> Value {
    json!({"kind": e.kind.name(), "message": e.message, "hint": e.hint})
}

/// Shows warnings before a turn.
fn warn_before(ui: &Ui, app: &App, notices: &[String]) -> Result<()> {
    let loaded = app.loaded()?;
    let misplaced = app::misplaced(loaded);
    ui.warn(loaded.warnings.iter().chain(&misplaced).chain(notices));
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
