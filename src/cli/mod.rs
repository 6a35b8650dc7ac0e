//! The command line: from arguments to a command, and from its end to an exit code.

mod agent;
mod args;
mod doctor;
mod help;
mod markdown;
mod question;
mod repl;
mod screen;
mod terminal;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use crate::config::Env;
use crate::error::{Error, Kind, Result};
use args::{Command, Parsed};

/// Every command.
const COMMANDS: &[&Command] = &[&agent::COMMAND, &doctor::COMMAND, &help::COMMAND];

/// Runs the program.
#[must_use]
pub fn main(args: impl Iterator<Item = OsString>, env: &Env) -> ExitCode {
    ExitCode::from(match run(args, env) {
        Ok(code) => code,
        Err(e) => report(&e),
    })
}

fn run(args: impl Iterator<Item = OsString>, env: &Env) -> Result<u8> {
    let mut args = args.peekable();
    let Some(first) = args.next() else {
        return Err(Error::usage("no command").hint("bantam agent -m \"a question\", or bantam help"));
    };
    match first.to_string_lossy().as_ref() {
        "--version" | "-V" => say(concat!("bantam ", env!("CARGO_PKG_VERSION"))),
        "--help" | "-h" => say(&help::overview()),
        name => {
            let command = find(name)?;
            match args::parse(command, args)? {
                Parsed::Help => say(&help::of(command)),
                Parsed::Run(given) => (command.run)(&given, env),
            }
        }
    }
}

fn find(name: &str) -> Result<&'static Command> {
    COMMANDS.iter().find(|c| c.name == name).copied().ok_or_else(|| {
        let near = crate::text::nearest(name, COMMANDS.iter().map(|c| c.name));
        let hint =
            near.map_or("bantam help lists the commands".to_owned(), |near| format!("did you mean `bantam {near}`?"));
        Error::usage(format!("there is no command \"{}\"", crate::text::one_line(name, 40))).hint(hint)
    })
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

/// The one printer of errors: what was being done and what went wrong, then the thing to type or change.
fn report(e: &Error) -> u8 {
    tell(&format!("bantam: error: {}", crate::text::one_line(&e.message, 2000)));
    if let Some(hint) = &e.hint {
        tell(&format!("hint: {hint}"));
    }
    e.kind.exit_code()
}

/// An error of this kind ends the program as its user wished.
fn is_interrupt(e: &Error) -> bool {
    e.kind == Kind::Interrupted
}
