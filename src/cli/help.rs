//! `bantam help`: written from the commands' own tables.

use super::args::{Command, Given};
use super::{COMMANDS, find, say};
use crate::config::Env;
use crate::error::Result;

pub const COMMAND: Command =
    Command { name: "help", words: "[COMMAND...]", about: "this page, or a command's own", flags: &[], run };

fn run(given: &Given, _: &Env) -> Result<u8> {
    match &given.words[..] {
        [] => say(&overview()),
        words => say(&of(&find(&words.join(" "))?)),
    }
}

pub fn overview() -> String {
    let mut page = String::from("bantam: a whole personal AI agent in one small program\n\n");
    for command in COMMANDS {
        page.push_str(&format!("  {:<28} {}\n", usage(command), command.about));
    }
    page.push_str(
        "\n  bantam help COMMAND, bantam --version\n\n\
         Everything is kept in $BANTAM_HOME (default ~/.bantam). Exit codes: 0 answered, 1 failed, 2 wrong usage,\n\
         3 configuration, 4 credentials refused, 5 provider unreachable, 6 a limit was reached, 7 session busy,\n\
         130 interrupted.",
    );
    page
}

/// The page of a command, or of a word with verbs: one paragraph for each.
pub fn of(commands: &[&Command]) -> String {
    commands.iter().map(|command| paragraph(command)).collect::<Vec<_>>().join("\n\n")
}

fn paragraph(command: &Command) -> String {
    let mut page = format!("{}\n{}\n", usage(command), command.about);
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

fn usage(command: &Command) -> String {
    format!("bantam {} {}", command.name, command.words).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_command_and_flag_has_a_name_of_its_own_and_a_line_of_help() {
        let mut names = BTreeSet::new();
        for command in COMMANDS {
            assert!(names.insert(command.name), "{} is there twice", command.name);
            assert!(!command.about.is_empty(), "{} says nothing about itself", command.name);
            let mut flags = BTreeSet::from(["--help".to_owned(), "-h".to_owned()]);
            for flag in command.flags {
                assert!(!flag.help.is_empty(), "--{} of {} says nothing about itself", flag.long, command.name);
                let spelled = flag.short.map(|c| format!("-{c}")).into_iter().chain([format!("--{}", flag.long)]);
                for name in spelled {
                    assert!(flags.insert(name.clone()), "{name} of {} is there twice", command.name);
                }
            }
        }
    }
}
