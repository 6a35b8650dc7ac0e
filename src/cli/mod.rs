//! The command line: finds the command, runs it, and turns its result into an exit code.

mod agent;
mod args;
mod attach;
mod completions;
mod config;
mod cron;
mod doctor;
mod editor;
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
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use rustix::fs::FileType;
use serde_json::{Value, json};

use crate::app::{self, App};
use crate::config::{self as settings, Env};
use crate::error::{Error, Result};
use crate::paths::Home;
use crate::text::{nearest, not_found_near, to_single_line};
use crate::timezone::{self, Zone};
use crate::worker;
use args::{Args, Subcommand};
use ui::{Ui, hanging_indent, notice, print, print_json, report, say, table, terminal};

/// Makes commands from their functions and help texts.
macro_rules! commands {
    ($($run:path, $text:literal;)+) => {
        &[$(Subcommand {
            run: $run,
            text: include_str!(concat!("texts/", $text, ".txt")),
        }),+]
    };
}

/// All commands in the order of the help, with the files of their help in `texts/`.
const COMMANDS: &[Subcommand] = commands! {
    agent::run, "agent";
    gateway, "gateway";
    onboard::run, "onboard";
    doctor::run, "doctor";
    status::run, "status";
    service::run, "service";
    send::send, "send";
    tools::run, "tools";
    models::run, "models";
    config::get, "config-get";
    config::set, "config-set";
    config::unset, "config-unset";
    config::edit, "config-edit";
    sessions::list, "sessions-list";
    sessions::show, "sessions-show";
    sessions::search, "sessions-search";
    sessions::reset, "sessions-reset";
    sessions::erase, "sessions-erase";
    skills::list, "skills-list";
    skills::show, "skills-show";
    skills::install, "skills-install";
    skills::remove, "skills-remove";
    mcp::list, "mcp-list";
    mcp::test, "mcp-test";
    mcp::add, "mcp-add";
    mcp::remove, "mcp-remove";
    usage::run, "usage";
    cron::add, "cron-add";
    cron::list, "cron-list";
    cron::remove, "cron-remove";
    cron::enable, "cron-enable";
    cron::disable, "cron-disable";
    cron::run_now, "cron-run";
    cron::history, "cron-history";
    completions::completions, "completions";
    completions::man, "man";
    help::run, "help";
};

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
    match words.first().map(String::as_str) {
        None if !is_piped() => return help::overview(),
        Some("--help" | "-h") => return help::overview(),
        Some("-") => {
            return Err(Error::usage("\"-\" is not a question")
                .hint("leave out `-`; a pipe or a file on standard input is read without it"));
        }
        Some("--version" | "-V") => {
            return print(concat!("bantam ", env!("CARGO_PKG_VERSION"), "\n")).map(|()| 0);
        }
        Some("__complete") => return completions::complete(&App::open(env)?, &words[1..]),
        _ => {}
    }
    let (command, taken) = command_of(&words).ok_or_else(|| unknown_command(&words))?;
    match args::parse(command, args.iter().skip(taken).cloned())? {
        None if taken == 0 => help::show(&[command]),
        None => help::show(&find(&words[..taken].join(" "))),
        Some(args) => (command.run)(&open(command, env)?, ui, &args),
    }
}

/// Opens the home. The commands that only print texts of the program also run without one, as packagers run them.
fn open(command: &Subcommand, env: &Arc<Env>) -> Result<App> {
    match App::open(env) {
        Err(_) if matches!(command.name(), "completions" | "man" | "help") => {
            Ok(App::new(Home::new(PathBuf::new()), env.clone()))
        }
        app => app,
    }
}

/// Returns the command of the words, and how many words name it. A group alone lists. A question needs no name, if it has a
/// space or begins with a flag; a single word is one about piped input, unless it looks like a misspelt command.
fn command_of(words: &[String]) -> Option<(&'static Subcommand, usize)> {
    let first = words.first().map_or("", String::as_str);
    if first.is_empty() || first.starts_with('-') || first.contains(char::is_whitespace) {
        return Some((&COMMANDS[0], 0));
    }
    let mut found = find(first).into_iter();
    let verb = words.get(1).filter(|verb| !verb.starts_with('-'));
    match (found.as_slice().first().copied(), verb) {
        (None, _) => {
            let is_question = nearest_command(first).is_none() && is_piped();
            is_question.then_some((&COMMANDS[0], 0))
        }
        (Some(command), _) if command.name() == first => Some((command, 1)),
        (_, Some(verb)) => Some((found.find(|command| command.verb() == verb)?, 2)),
        (_, None) => {
            let list = found.find(|command| matches!(command.verb(), "list" | "get"));
            Some((list?, 1))
        }
    }
}

/// Runs Telegram, HTTP, scheduled jobs and the heartbeat until a signal ends them.
fn gateway(app: &App, _: &Ui, _: &Args) -> Result<u8> {
    crate::gateway::run(app).map(|()| 0)
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
    let is_json = |word: &String| matches!(&**word, "--json" | "--events");
    let wants_json = words.iter().any(is_json);
    match command_of(&words) {
        Some((command, _)) if wants_json && command.flags().any(|flag| flag.long == "json") => {
            let object = match command.name() {
                "agent" => ui::failure_json(e),
                _ => json!({"ok": false, "error": error_json(e)}),
            };
            // If standard output also fails, the error cannot be reported there.
            drop(print_json(&object));
        }
        _ => {}
    }
    report(e)
}

/// Returns the command with this name, or all subcommands of the group.
fn find(name: &str) -> Vec<&'static Subcommand> {
    // Reading the names of all texts would cost each question 60,000 instructions.
    let near = |command: &&Subcommand| command.text.starts_with(name);
    let is_named = |c: &&Subcommand| c.name() == name || c.group() == Some(name);
    COMMANDS.iter().filter(near).filter(is_named).collect()
}

/// Returns the command or group that is probably meant by a word, or by a group and a word.
fn nearest_command(name: &str) -> Option<&'static str> {
    let Some((group, verb)) = name.split_once(' ') else {
        return nearest(name, COMMANDS.iter().map(|c| c.group().unwrap_or(c.name())));
    };
    let members = find(group);
    let near = nearest(verb, members.iter().map(|command| command.verb()))?;
    let command = members.iter().find(|command| command.verb() == near)?;
    Some(command.name())
}

/// Lines of a word that other programs have for a command or a page, and that command.
const ELSEWHERE: &str = include_str!("texts/elsewhere.txt");

/// Creates the error for an unknown command. The words may be a question.
fn unknown_command(words: &[String]) -> Error {
    let first = &words[0];
    let is_group = !find(first).is_empty();
    let count = if is_group { 2 } else { 1 };
    let name = words[..count].join(" ");
    let mut elsewhere = ELSEWHERE.lines().filter_map(|row| row.split_once(": "));
    let near = match elsewhere.find(|(other, _)| *other == name) {
        Some((_, command)) => Some(command),
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
        let e = Error::usage("confirmation needed, but standard input is not a terminal");
        return Err(e.hint("add `--yes`"));
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
