//! `bantam help`: prints the command tables.

use std::collections::BTreeSet;

use super::args::{Args, Subcommand};
use super::topics::{self, HelpEntry};
use super::ui::Ui;
use super::{App, COMMANDS, find, print, table, terminal};
use crate::error::Result;
use crate::text::{self, nearest, not_found_near};

/// Lines of an exit code and its meaning.
pub(super) const EXIT_CODES: &str = include_str!("texts/exit-codes.txt");

/// Lines of a command group and its subject.
const GROUPS: &str = include_str!("texts/groups.txt");

/// Width of the left column, and maximum width of a page.
const LEFT: usize = 27;
pub(super) const WIDTH: usize = 80;

/// Maximum numbers of places that a search lists, and of sections that it prints.
const MAX_FOUND: usize = 10;
const MAX_SECTIONS: usize = 3;

/// Returns the width of a page on the current output.
fn width() -> usize {
    if terminal::is_output() {
        WIDTH.min(terminal::columns())
    } else {
        WIDTH
    }
}

pub(super) fn run(_: &App, ui: &Ui, args: &Args) -> Result<u8> {
    let name = args.words.join(" ");
    if name.is_empty() {
        return overview();
    }
    let found = find(&name);
    match topics::page(&name) {
        None if found.is_empty() => match sections(&name).as_str() {
            "" => search(&name),
            text => topics::show("", text, ui),
        },
        None => show(&found),
        Some(text) if found.is_empty() => topics::show("", &text, ui),
        // `cron` is also a group of commands.
        Some(text) => topics::show(&(page(&found, width()) + "\n"), &text, ui),
    }
}

/// Returns the sections of a topic with all the words after its name, the best first.
fn sections(name: &str) -> String {
    let (topic, words) = name.split_once(' ').unwrap_or((name, ""));
    let page = format!("bantam help {topic}");
    let places = topics::places("").filter(|place| place.page == page);
    let places: Vec<HelpEntry> = places.collect();
    let found = topics::search(&places, words).into_iter();
    let section = |place: &HelpEntry| format!("## {}\n{}\n", place.title, place.text);
    found.take(MAX_SECTIONS).map(section).collect()
}

/// Prints the commands that show the places with all these words, the best first.
fn search(words: &str) -> Result<u8> {
    let quoted = format!(" {}", shell_words::quote(words));
    let mut places: Vec<HelpEntry> = topics::places(&quoted).collect();
    let mut known = BTreeSet::new();
    for command in COMMANDS {
        let place = |title: &str, text: &str| HelpEntry {
            page: format!("bantam {} --help", command.name()),
            title: title.to_owned(),
            text: text.to_owned(),
        };
        places.push(place(command.name(), command.about()));
        // A flag that several commands have is found once.
        let new = command.flags().filter(|flag| known.insert(flag.long));
        places.extend(new.map(|flag| place(flag.typed, flag.help)));
    }
    let found = topics::search(&places, words);
    if found.is_empty() {
        let groups = COMMANDS.iter().filter_map(Subcommand::group);
        let names = COMMANDS.iter().map(Subcommand::name).chain(groups);
        let names = names.chain(topics::names());
        let near = nearest(words, names).map(|near| format!("bantam help {near}"));
        let (near, list) = (near.as_deref(), "bantam help");
        return Err(not_found_near("command or topic", words, near, list));
    }
    let row = |place: &&HelpEntry| [place.page.clone(), place.title.clone()];
    let rows: Vec<_> = found.iter().take(MAX_FOUND).map(row).collect();
    print(&table(&[], &rows)).map(|()| 0)
}

/// Prints the page of a command, or the list of a group's subcommands.
pub(super) fn show(found: &[&Subcommand]) -> Result<u8> {
    print(&page(found, width())).map(|()| 0)
}

fn page(found: &[&Subcommand], width: usize) -> String {
    match found {
        [command] => section(command, width),
        group => {
            let name = group[0].group().unwrap_or_default();
            let members = group.iter().map(|command| list_row(command, width));
            let more = format!("`bantam {name} COMMAND --help` shows its options.");
            let list = members.collect::<String>() + "\n" + &wrapped(0, &more, width);
            format!("Usage: bantam {name} COMMAND ({})\n\n{list}", subject(name))
        }
    }
}

/// Formats a command for a list.
fn list_row(command: &Subcommand, width: usize) -> String {
    let usage = format!("bantam {} {}", command.name(), command.words());
    let left = match usage.trim_end() {
        long if long.len() > LEFT => &long[..7 + command.name().len()],
        usage => usage,
    };
    row(left, first_clause(command.about()), width)
}

pub(super) fn overview() -> Result<u8> {
    let width = width();
    let (mut list, mut shown) = (String::new(), "");
    for command in COMMANDS {
        match command.group() {
            // Subcommands, already printed in one line.
            Some(group) if group == shown => {}
            Some(group) => {
                let verbs: Vec<&str> = find(group).into_iter().map(Subcommand::verb).collect();
                let right = format!("{}: {}", subject(group), verbs.join(", "));
                list.push_str(&row(&format!("bantam {group} ..."), &right, width));
                shown = group;
            }
            None => list.push_str(&list_row(command, width)),
        }
    }
    let topics = topics::names().collect::<Vec<_>>().join(", ");
    let topics = wrapped(0, &format!("Topics: {topics}."), width);
    let codes = EXIT_CODES.trim().replace('\n', ", ");
    let codes = wrapped(0, &format!("Exit codes: {codes}."), width);
    let values = |name: &str| match name {
        "commands" => Some(list.as_str()),
        "topics" => Some(topics.as_str()),
        _ => Some(codes.as_str()),
    };
    let page = text::fill(include_str!("texts/overview.txt"), values);
    print(&page.unwrap_or_default()).map(|()| 0)
}

/// Returns what a group of commands is about.
pub(super) fn subject(group: &str) -> &'static str {
    let mut rows = GROUPS.lines().filter_map(|row| row.split_once(' '));
    let row = rows.find(|(name, _)| *name == group);
    row.map_or("", |(_, subject)| subject)
}

/// Returns the part of a description that fits the list of all commands.
pub(super) fn first_clause(about: &str) -> &str {
    let clause = about.split([';', ':', '(']).next().unwrap_or(about);
    let clause = clause.split(". ").next().unwrap_or(clause);
    let clause = clause.split(", or ").next().unwrap_or(clause);
    clause.trim_end_matches([' ', ','])
}

/// Formats the help of one command: its usage, a sentence, examples, and flags under their headings.
pub(super) fn section(command: &Subcommand, width: usize) -> String {
    let first = command.rows().next();
    let options = first.map_or("", |_| " [OPTIONS]");
    let (name, words) = (command.name(), command.words());
    let usage = format!("Usage: bantam {name}{options} {words}");
    let (letter, rest) = command.about().split_at(1);
    let about = format!("{}{rest}.", letter.to_uppercase());
    let mut page = wrapped(0, usage.trim_end(), width) + "\n" + &wrapped(0, &about, width);
    for (n, example) in command.examples().enumerate() {
        page.push_str(if n == 0 { "\nExamples:\n" } else { "" });
        page.push_str(&format!("  {example}\n"));
    }
    // Otherwise the flags have headings.
    if first.is_some_and(|(_, help)| !help.is_empty()) {
        page.push_str("\nOptions:\n");
    }
    for (typed, help) in command.rows() {
        let indent = if typed.starts_with("--") { "    " } else { "" };
        page.push_str(&match help {
            "" => format!("\n{typed}\n"),
            help => row(&format!("{indent}{typed}"), help, width),
        });
    }
    page
}

fn row(left: &str, right: &str, width: usize) -> String {
    let column = LEFT + 3;
    let gap = if left.len() > LEFT {
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
    use super::super::args;
    use super::*;

    #[test]
    fn every_command_has_examples_that_are_understood() {
        for command in COMMANDS {
            assert!(
                command.words().is_empty() || command.examples().next().is_some(),
                "{}",
                command.name()
            );
            for line in command.examples() {
                let (_, words) = line.split_once("bantam ").unwrap();
                let words = words.strip_prefix(command.name()).unwrap();
                let words = shell_words::split(words.split(['<', '>']).next().unwrap()).unwrap();
                let parsed = args::parse(command, words.into_iter().map(Into::into));
                assert!(matches!(parsed, Ok(Some(_))), "{line}");
            }
            for line in section(command, WIDTH).lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
        }
    }
}
