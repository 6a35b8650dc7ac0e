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
use crate::storage::{self, Durability};
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
        first if is_question(first, words.len() == 1) => return ask(),
        "--version" | "-V" | "-v" => {
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
    let found = find(first);
    if found.first()?.name() == first {
        return Some((found[0], 1));
    }
    match words.get(1).filter(|verb| !verb.starts_with('-')) {
        Some(verb) => Some((find(&format!("{first} {verb}")).first()?, 2)),
        None => Some((find(&format!("{first} list")).first()?, 1)),
    }
}

/// Whether the first argument begins a question without `agent`.
fn is_question(first: &str, is_alone: bool) -> bool {
    // An unknown flag is a mistake in a question. A single -v asks for the version.
    let is_own = matches!(first, "--version" | "-V" | "--help" | "-h") || first == "-v" && is_alone;
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
        Some(first) if is_question(first, words.len() == 1) => Some(&agent::COMMANDS[0]),
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

/// Words of other programs for subcommands, and the intended subcommands.
const SYNONYMS: [(&str, &[&str]); 3] = [
    (
        "rm delete del remove erase uninstall unset",
        &["remove", "erase", "unset"],
    ),
    ("ls list", &["list", "get"]),
    ("show get view", &["show", "get", "history", "test", "list"]),
];

/// Returns the command with this name, or all subcommands of the group.
fn find(name: &str) -> Vec<&'static Subcommand> {
    let named = |name: &str| -> Vec<&Subcommand> {
        // Reading the names of all texts would cost each question 60,000 instructions.
        let near = commands().filter(|command| command.text.starts_with(name));
        let is_named = |c: &&Subcommand| c.name() == name || c.group() == Some(name);
        near.filter(is_named).collect()
    };
    let found = named(name);
    let (true, Some((group, verb))) = (found.is_empty(), name.split_once(' ')) else {
        return found;
    };
    let synonyms = SYNONYMS
        .iter()
        .filter(|(words, _)| words.split(' ').any(|word| word == verb));
    let meant = synonyms.flat_map(|(_, meant)| *meant);
    let found = meant.map(|verb| named(&format!("{group} {verb}")));
    found
        .into_iter()
        .find(|found| !found.is_empty())
        .unwrap_or_default()
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
