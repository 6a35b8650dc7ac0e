//! The command line: from arguments to a command, and from its end to an exit code.

mod agent;
mod args;
mod attach;
mod crew;
mod cron;
mod deliver;
mod doctor;
mod echo;
mod gateway;
mod gateway_status;
mod help;
mod import;
mod init;
mod markdown;
mod onboard;
mod question;
mod repl;
mod screen;
mod service;
mod sessions;
mod skills;
mod status;
mod terminal;
mod tools;
mod usage;
mod watch;

use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use crate::config::Env;
use crate::error::{Context, Error, Kind, Result};
use crate::sys;
use crate::text::{nearest, one_line};
use crate::zone::{Civil, Zone};
use args::{Command, Parsed};

/// Every command.
const COMMANDS: &[&Command] = &[
    &agent::COMMAND,
    &gateway::COMMAND,
    &onboard::COMMAND,
    &doctor::COMMAND,
    &status::COMMAND,
    &service::COMMAND,
    &tools::COMMAND,
    &sessions::LIST,
    &sessions::SHOW,
    &sessions::RESET,
    &sessions::PRUNE,
    &sessions::ERASE,
    &skills::LIST,
    &skills::SHOW,
    &skills::INSTALL,
    &skills::REMOVE,
    &usage::COMMAND,
    &cron::ADD,
    &cron::LIST,
    &cron::REMOVE,
    &cron::ENABLE,
    &cron::DISABLE,
    &cron::RUN,
    &cron::HISTORY,
    &help::COMMAND,
];

/// Runs the program.
pub fn main(args: impl Iterator<Item = OsString>, env: &Env) -> ExitCode {
    ExitCode::from(match run(args, env) {
        Ok(code) => code,
        Err(e) => report(&e),
    })
}

fn run(args: impl Iterator<Item = OsString>, env: &Env) -> Result<u8> {
    // This process holds the keys.
    sys::close_to_others().doing("closing itself to other processes")?;
    let mut args = args.peekable();
    let Some(first) = args.next() else {
        return Err(Error::usage("no command").hint("bantam agent -m \"a question\", or bantam help"));
    };
    match first.to_string_lossy().as_ref() {
        "--version" | "-V" => say(concat!("bantam ", env!("CARGO_PKG_VERSION"))),
        "--help" | "-h" => say(&help::overview()),
        name => {
            let mut name = name.to_owned();
            let mut found = find(&name)?;
            if found[0].name != name {
                // A word with verbs: the verb comes next.
                let verbs = verbs(&found);
                let Some(verb) = args.next() else {
                    return Err(Error::usage(format!("bantam {name} needs a verb")).hint(verbs));
                };
                let verb = verb.to_string_lossy();
                if matches!(verb.as_ref(), "--help" | "-h") {
                    return say(&help::of(&found));
                }
                if verb.starts_with('-') {
                    return Err(Error::usage(format!("the verb of bantam {name} comes before its flags")).hint(verbs));
                }
                name = format!("{name} {verb}");
                found = find(&name)?;
            }
            match args::parse(found[0], args)? {
                Parsed::Help => say(&help::of(&found)),
                Parsed::Run(given) => (found[0].run)(&given, env),
            }
        }
    }
}

/// The command called `name`; for a word with verbs, all of them. Never empty.
fn find(name: &str) -> Result<Vec<&'static Command>> {
    let one = COMMANDS.iter().filter(|c| c.name == name);
    let all = COMMANDS.iter().filter(|c| c.name.split_once(' ').is_some_and(|(word, _)| word == name));
    let found: Vec<&Command> = one.chain(all).copied().collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let near = match name.split_once(' ') {
        // Whoever has the first word right means one of its verbs.
        Some((word, verb)) => {
            let of_word = find(word)?;
            let names = of_word.iter().filter_map(|c| c.name.split_once(' '));
            let near = nearest(verb, names.map(|(_, verb)| verb)).map(|near| format!("{word} {near}"));
            near.map_or_else(|| verbs(&of_word), |near| format!("did you mean `bantam {near}`?"))
        }
        None => {
            let words = COMMANDS.iter().map(|c| c.name.split(' ').next().unwrap_or_default());
            let near = nearest(name, words).map(|near| format!("did you mean `bantam {near}`?"));
            near.unwrap_or_else(|| "bantam help lists the commands".to_owned())
        }
    };
    Err(Error::usage(format!("there is no command \"{}\"", one_line(name, 40))).hint(near))
}

/// `bantam sessions list|show|reset|prune|erase`
fn verbs(commands: &[&Command]) -> String {
    let verbs: Vec<&str> = commands.iter().filter_map(|c| c.name.split_once(' ')).map(|(_, verb)| verb).collect();
    let word = commands.iter().find_map(|c| c.name.split(' ').next()).unwrap_or_default();
    format!("bantam {word} {}", verbs.join("|")).trim_end().to_owned()
}

/// Prints a command's answer.
fn say(text: &str) -> Result<u8> {
    print(&format!("{text}\n")).map(|()| 0)
}

/// Writes to standard output. Whoever reads it may have read enough: a closed pipe is no error.
fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::from(e).doing("writing the answer")),
        _ => Ok(()),
    }
}

/// Writes a line to standard error. When that is gone there is nobody left to tell.
fn tell(line: &str) {
    drop(writeln!(io::stderr().lock(), "{line}"));
}

/// Asks on the terminal.
fn ask(question: &str) -> Result<String> {
    // Whoever else has something to say meanwhile does not wait for the answer.
    drop(io::stderr().write_all(question.as_bytes()));
    let mut answer = String::new();
    if io::stdin().lock().read_line(&mut answer).doing("reading the answer")? == 0 {
        return Err(Error::new(Kind::Interrupted, "stopped: the question was not answered"));
    }
    Ok(answer.trim().to_owned())
}

/// The one printer of errors: what was being done and what went wrong, then the thing to type or change.
fn report(e: &Error) -> u8 {
    tell(&format!("bantam: error: {}", one_line(&e.message, 2000)));
    if let Some(hint) = &e.hint {
        tell(&format!("hint: {hint}"));
    }
    e.kind.exit_code()
}

/// The zone in which times are shown. One that cannot be read is told, and UTC shown instead.
fn zone(env: &Env) -> Zone {
    Zone::local(env).unwrap_or_else(|e| {
        tell(&format!("bantam: {e}; times are UTC"));
        Zone::utc()
    })
}

/// A stored time, as clocks show it here: `2026-11-21 22:44:35`. What is no time stays as it is.
fn shown(rfc3339: &str, zone: &Zone) -> String {
    match Civil::parse(rfc3339) {
        Some((seconds, offset)) => zone.stamp(seconds - i64::from(offset.unwrap_or(0))),
        None => one_line(rfc3339, 19),
    }
}

/// An error of this kind ends the program as its user wished.
fn is_interrupt(e: &Error) -> bool {
    e.kind == Kind::Interrupted
}
