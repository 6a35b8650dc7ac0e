//! `bantam help`: written from the commands' own tables.

use super::args::{Command, Given};
use super::{COMMANDS, find, say};
use crate::config::Env;
use crate::error::Result;

pub const COMMAND: Command =
    Command { name: "help", words: "[COMMAND]", about: "this page, or a command's own", flags: &[], run };

fn run(given: &Given, _: &Env) -> Result<u8> {
    match given.words.first() {
        None => say(&overview()),
        Some(name) => say(&of(find(name)?)),
    }
}

pub fn overview() -> String {
    let mut page = String::from("bantam: a whole personal AI agent in one small program\n\n");
    for command in COMMANDS {
        page.push_str(&format!("  {:<28} {}\n", format!("bantam {} {}", command.name, command.words), command.about));
    }
    page.push_str(
        "\n  bantam help COMMAND, bantam --version\n\n\
         Everything is kept in $BANTAM_HOME (default ~/.bantam). Exit codes: 0 answered, 1 failed, 2 wrong usage,\n\
         3 configuration, 4 credentials refused, 5 provider unreachable, 6 a limit was reached, 7 session busy,\n\
         130 interrupted.",
    );
    page
}

pub fn of(command: &Command) -> String {
    let mut page = format!("bantam {} {}\n{}\n", command.name, command.words, command.about);
    if !command.flags.is_empty() {
        page.push('\n');
    }
    for flag in command.flags {
        let short = flag.short.map_or("    ".to_owned(), |c| format!("-{c}, "));
        let left = format!("{short}--{} {}", flag.long, flag.value);
        page.push_str(&format!("  {:<28} {}\n", left.trim_end(), flag.help));
    }
    page.trim_end().to_owned()
}
