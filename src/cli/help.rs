//! `bantam help`: prints the command tables.

use super::args::{Args, Command};
use super::ui::Ui;
use super::{commands, find, print, terminal, topics};
use crate::error::Result;
use crate::text::{nearest, not_found_near};

pub(super) const COMMAND: Command = Command::plain(
    "help",
    "[COMMAND|TOPIC...]",
    run,
    "show this page, or that of a command",
)
.with_examples(&["bantam help cron add", "bantam help sandbox"]);

pub(super) const EXIT_CODES: [(u8, &str); 9] = [
    (0, "answered"),
    (1, "failed"),
    (2, "wrong usage"),
    (3, "configuration"),
    (4, "credentials refused"),
    (5, "provider unreachable"),
    (6, "limit reached"),
    (7, "conversation busy"),
    (130, "interrupted"),
];

/// Subjects of the command groups.
const GROUPS: [(&str, &str); 5] = [
    ("config", "settings"),
    ("sessions", "conversations"),
    ("skills", "skills"),
    ("mcp", "MCP servers"),
    ("cron", "scheduled jobs"),
];

/// Width of the left column, and maximum width of a page.
const LEFT: usize = 27;
pub(super) const WIDTH: usize = 80;
/// Minimum width of two columns, and indentation of the right column under the left one on a narrower page.
const NARROW: usize = 60;
const BELOW: usize = 6;

/// Returns the width of a page on the current output.
fn width() -> usize {
    if terminal::is_output() {
        WIDTH.min(terminal::size().0)
    } else {
        WIDTH
    }
}

fn run(ui: &Ui, args: &Args) -> Result<u8> {
    match &args.words[..] {
        [] => overview(),
        words => {
            let name = words.join(" ");
            match topics::page(&name) {
                None => show(&found(&name)?),
                // `cron` is also a group of commands.
                Some(text) => {
                    let is_group = commands().any(|command| command.group() == Some(&name));
                    let list = if is_group {
                        sections(&found(&name)?, width()) + "\n"
                    } else {
                        String::new()
                    };
                    topics::show(&list, &text, ui)
                }
            }
        }
    }
}

/// Finds the commands of a page. The hint names a page, because a request for help is no question for the model.
fn found(name: &str) -> Result<Vec<&'static Command>> {
    find(name).map_err(|e| {
        if name.contains(' ') {
            return e;
        }
        let names = commands()
            .flat_map(|c| [Some(c.name), c.group()])
            .flatten()
            .chain(topics::names());
        let near = nearest(name, names).map(|near| format!("bantam help {near}"));
        not_found_near("command or topic", name, near.as_deref(), "bantam help")
    })
}

/// Prints the page of a command, or of all subcommands of a group.
pub(super) fn show(commands: &[&Command]) -> Result<u8> {
    print(&sections(commands, width())).map(|()| 0)
}

fn sections(commands: &[&Command], width: usize) -> String {
    commands
        .iter()
        .map(|command| section(command, width))
        .collect::<Vec<_>>()
        .join("\n")
}

pub(super) fn overview() -> Result<u8> {
    print(&page(width())).map(|()| 0)
}

fn page(width: usize) -> String {
    let mut page = String::from("bantam: a personal AI agent in one small program\n\n");
    let mut shown = "";
    for command in commands() {
        match command.group() {
            // Subcommands, already printed in one line.
            Some(group) if group == shown => {}
            Some(group) => {
                let about = GROUPS.iter().find(|(name, _)| *name == group);
                let about = about.map_or("", |(_, about)| about);
                let members = commands().filter(|other| other.group() == Some(group));
                let verbs: Vec<&str> = members.map(verb).collect();
                let right = format!("{about}: {}", verbs.join(", "));
                page.push_str(&row(&format!("bantam {group} ..."), &right, width));
                shown = group;
            }
            None => {
                let usage = usage(command);
                let name = format!("bantam {}", command.name);
                let left = if usage.len() > LEFT { name } else { usage };
                page.push_str(&row(&left, first_clause(command.about), width));
            }
        }
    }
    let topics: Vec<&str> = topics::names().collect();
    page.push_str(&format!(
        "\n{}\n",
        wrapped(0, &format!("Topics: {}.", topics.join(", ")), width)
    ));
    let place = "bantam keeps everything in $BANTAM_HOME (default ~/.bantam).";
    page.push_str(&wrapped(0, place, width));
    let codes = EXIT_CODES.map(|(code, meaning)| format!("{code} {meaning}"));
    page.push_str(&wrapped(
        0,
        &format!("Exit codes: {}.", codes.join(", ")),
        width,
    ));
    // Printed last, where a terminal still shows it.
    page.push_str(
        "\nTo begin:\n  \
         bantam onboard                   set up a model, and a bot if you like\n  \
         bantam \"What is in my workspace?\"\n  \
         dmesg | bantam \"Anything wrong here?\"\n  \
         bantam agent                     a conversation\n",
    );
    page
}

/// Returns the last word of a command's name.
fn verb(command: &'static Command) -> &'static str {
    command.name.rsplit(' ').next().unwrap_or(command.name)
}

/// Returns the part of a description that fits the list of all commands.
fn first_clause(about: &str) -> &str {
    let clause = about.split([';', ':', '(']).next().unwrap_or(about);
    clause
        .split(", or ")
        .next()
        .unwrap_or(clause)
        .trim_end()
        .trim_end_matches(',')
}

pub(super) fn section(command: &Command, width: usize) -> String {
    let mut page = format!("{}\n{}", usage(command), wrapped(0, command.about, width));
    for (n, flag) in command.flags().enumerate() {
        let indent = if flag.short.is_some() { "" } else { "    " };
        page.push_str(if n == 0 { "\n" } else { "" });
        page.push_str(&row(&format!("{indent}{}", flag.typed), flag.help, width));
    }
    if !command.examples.is_empty() {
        page.push_str(&format!("\n  {}\n", command.examples.join("\n  ")));
    }
    page
}

fn usage(command: &Command) -> String {
    format!("bantam {} {}", command.name, command.words)
        .trim_end()
        .to_owned()
}

fn row(left: &str, right: &str, width: usize) -> String {
    let (is_narrow, mut left) = (width < NARROW, left);
    let column = if is_narrow { BELOW } else { LEFT + 3 };
    if is_narrow {
        left = left.trim_start();
    }
    let gap = if is_narrow || left.len() > LEFT {
        format!("\n{:column$}", "")
    } else {
        " ".repeat(LEFT + 1 - left.len())
    };
    format!("  {left}{gap}{}", wrapped(column, right, width))
}

/// Wraps `text`, which starts in the column `indent`, and indents all lines by it.
fn wrapped(indent: usize, text: &str, most: usize) -> String {
    let (mut page, mut column) = (String::new(), indent);
    for word in text.split(' ') {
        let width = word.chars().count();
        if column > indent && column + 1 + width > most {
            page.push_str(&format!("\n{:indent$}", ""));
            column = indent;
        } else if column > indent {
            page.push(' ');
            column += 1;
        }
        page.push_str(word);
        column += width;
    }
    page + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_line_is_wider_than_a_terminal() {
        let pages = commands()
            .map(|command| section(command, WIDTH))
            .chain([page(WIDTH)]);
        for line in pages.collect::<String>().lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn every_command_has_examples_that_are_understood() {
        for command in commands() {
            let is_plain = command.words.is_empty();
            assert!(
                is_plain || !command.examples.is_empty(),
                "{} has no example",
                command.name
            );
            for line in command.examples {
                let (_, words) = line.split_once("bantam ").unwrap();
                let words = words
                    .strip_prefix(command.name)
                    .unwrap()
                    .split(['<', '>'])
                    .next()
                    .unwrap();
                let words = shell_words::split(words)
                    .unwrap()
                    .into_iter()
                    .map(Into::into);
                assert!(
                    matches!(super::super::args::parse(command, words), Ok(Some(_))),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn commands_and_flags_are_unique_and_documented() {
        let mut names = BTreeSet::new();
        for command in commands() {
            assert!(
                names.insert(command.name),
                "{} is there twice",
                command.name
            );
            assert!(
                !command.about.is_empty(),
                "{} says nothing about itself",
                command.name
            );
            let mut flags = BTreeSet::from(["--help".to_owned(), "-h".to_owned()]);
            for flag in command.flags() {
                assert!(
                    !flag.help.is_empty(),
                    "--{} of {} says nothing about itself",
                    flag.long,
                    command.name
                );
                let spelled = flag
                    .short
                    .map(|c| format!("-{c}"))
                    .into_iter()
                    .chain([format!("--{}", flag.long)]);
                for name in spelled {
                    assert!(
                        flags.insert(name.clone()),
                        "{name} of {} is there twice",
                        command.name
                    );
                }
            }
        }
    }
}
