//! `bantam completions` and `bantam man`: shell completions and the manual page, from the command tables.

use std::collections::BTreeSet;

use super::args::{Args, Flag, Subcommand};
use super::ui::Ui;
use super::{COMMANDS, command_of, find, help, print, topics};
use crate::app::App;
use crate::config::path;
use crate::config::vendors::VENDORS;
use crate::cron::{Job, Jobs};
use crate::error::Result;
use crate::paths::{shown_key, telegram_chat};
use crate::session::{FileStore, Store};
use crate::skills::Skills;
use crate::template;
use crate::text::{self, is_unsafe_to_show, not_found};

/// The scripts ask [`complete`] for names.
const SCRIPTS: [(&str, &str); 3] = [
    ("bash", include_str!("texts/bantam.bash")),
    ("zsh", include_str!("texts/_bantam")),
    ("fish", include_str!("texts/bantam.fish")),
];

pub(super) fn completions(_: &App, _: &Ui, given: &Args) -> Result<u8> {
    let shell = given.words[0].as_str();
    match SCRIPTS.iter().find(|(name, _)| *name == shell) {
        Some((_, script)) => print(script).map(|()| 0),
        None => {
            let shells = SCRIPTS.map(|(name, _)| name);
            Err(not_found("shell", shell, shells, "bantam help completions"))
        }
    }
}

/// Prints the names that may take the place of the last word, one a line. The exit code 1 asks for files.
pub(super) fn complete(app: &App, words: &[String]) -> Result<u8> {
    let Some((typed, before)) = words.split_last() else {
        return Ok(1);
    };
    let Some(names) = names_after(before, typed, app) else {
        return Ok(1);
    };
    let is_shown = |name: &&String| {
        // Each question leaves an unnamed conversation.
        let is_wanted = typed.starts_with('+') || !name.starts_with('+');
        name.starts_with(typed) && is_wanted && !name.contains(is_unsafe_to_show)
    };
    let lines = names.iter().filter(is_shown);
    print(&lines.flat_map(|name| [name, "\n"]).collect::<String>()).map(|()| 0)
}

/// Returns the names that may follow the words `before`; `None` for files.
fn names_after(before: &[String], typed: &str, app: &App) -> Option<Vec<String>> {
    let is_flag = typed.starts_with('-');
    let (command, taken) = match before {
        [] if !is_flag => return Some(first_words()),
        [group] if !is_flag && find(group).len() > 1 => {
            let members = find(group).into_iter();
            return Some(members.map(|command| command.verb().to_owned()).collect());
        }
        // A question needs no command before its flags.
        _ => command_of(before).unwrap_or((&COMMANDS[0], 0)),
    };
    let takes = |flag: &Flag, word: &str| {
        !flag.value.is_empty() && flag.typed.split([',', ' ']).any(|name| name == word)
    };
    let last = before[taken..].last();
    if let Some(flag) = last.and_then(|word| command.flags().find(|flag| takes(flag, word))) {
        return names(command, flag.value, app);
    }
    if is_flag {
        let flags = command.flags().map(|flag| format!("--{}", flag.long));
        return Some(flags.chain(["--help".to_owned()]).collect());
    }
    if let ("help", [_]) = (command.name(), &before[taken..]) {
        return names_after(&before[taken..], typed, app);
    }
    let (mut given, mut is_value) = (0, false);
    for word in &before[taken..] {
        given += usize::from(!is_value && !word.starts_with('-'));
        is_value = command.flags().any(|flag| takes(&flag, word));
    }
    names(command, command.words().split(' ').nth(given)?, app)
}

/// Returns the commands and groups.
fn first_words() -> Vec<String> {
    let name = |command: &Subcommand| command.group().unwrap_or(command.name()).to_owned();
    let mut names: Vec<String> = COMMANDS.iter().map(name).collect();
    names.dedup();
    names
}

/// Returns the names that a placeholder of a command or flag stands for; `None` for files, no names if they cannot be read.
fn names(command: &Subcommand, placeholder: &str, app: &App) -> Option<Vec<String>> {
    const FREE: [&str; 5] = ["TEXT", "FILE", "DIR", "COMMAND", "VALUE"];
    let placeholder = placeholder.trim_matches(['[', ']', '.']);
    if placeholder.is_empty() || FREE.iter().any(|word| placeholder.contains(word)) {
        return None;
    }
    Some(stored_names(command.group(), placeholder, app).unwrap_or_default())
}

fn stored_names(group: Option<&str>, placeholder: &str, app: &App) -> Result<Vec<String>> {
    let home = app.home.clone();
    Ok(match (group, placeholder) {
        (_, "TOPIC") => {
            let topics = topics::names().map(str::to_owned);
            first_words().into_iter().chain(topics).collect()
        }
        (_, "KEY") => {
            let mut keys = FileStore::new(home).list()?;
            // A question continues only conversations of the command line.
            keys.retain(|key| group == Some("sessions") || key.starts_with("cli_"));
            keys.iter().map(|key| shown_key(key)).collect()
        }
        (Some("cron"), "ID") => {
            let name = |job: &Job| match job.name() {
                name if name.contains(' ') => job.id().to_owned(),
                name => name.to_owned(),
            };
            Jobs::new(home, &app.env).list()?.iter().map(name).collect()
        }
        (None, "NAME") => {
            let built_in = template::names("agent/prompts").into_iter();
            let own = fs_err::read_dir(home.agent().join("prompts"));
            let own = own.into_iter().flatten().flatten();
            let own = own.filter_map(|file| file.file_name().into_string().ok());
            let files: BTreeSet<String> = built_in.map(str::to_owned).chain(own).collect();
            let names = files.iter().filter_map(|file| file.strip_suffix(".md"));
            names.map(str::to_owned).collect()
        }
        (_, "telegram:CHAT") => {
            let keys = FileStore::new(home).list()?.into_iter();
            let chats = keys.map(|key| key.replacen('_', ":", 1));
            chats.filter(|chat| telegram_chat(chat).is_ok()).collect()
        }
        (Some("mcp"), "NAME") => app.loaded()?.config.mcp_servers.keys().cloned().collect(),
        (Some("skills"), "NAME") => {
            let found = Skills::new(home.agent(), Vec::new()).all();
            found.skills.into_iter().map(|skill| skill.name).collect()
        }
        (Some("config"), "PATH") => {
            let mut paths = path::list_settings(&path::shape());
            paths.extend(path::list_values(&app.loaded()?.file));
            paths.iter().map(|names| names.join(".")).collect()
        }
        (_, "MODEL" | "PROVIDER|NAME") => {
            let vendors = VENDORS.iter().map(|vendor| vendor.name);
            let names = app.loaded()?.config.names().into_iter().chain(vendors);
            names.map(str::to_owned).collect()
        }
        _ => Vec::new(),
    })
}

/// Prints the pages of all commands as a manual page.
pub(super) fn man(_: &App, _: &Ui, _: &Args) -> Result<u8> {
    // Escapes backslashes and dashes, and dots at the beginning of lines. The text is not indented, because its 80 columns would
    // not fit a terminal otherwise.
    let section = |command: &Subcommand| {
        let text = help::section(command, help::WIDTH).replace('\\', "\\e");
        let text = text.replace('-', "\\-").replace("\n.", "\n\\&.");
        format!(".SS {}\n.EX\n.in 0\n{text}.in\n.EE\n", command.name())
    };
    let code = |line: &str| format!(".TP\n{}\n", line.replacen(' ', "\n", 1));
    let pages: String = COMMANDS.iter().map(section).collect();
    let codes: String = help::EXIT_CODES.lines().map(code).collect();
    let value = |name: &str| match name {
        "commands" => Some(pages.as_str()),
        "codes" => Some(codes.as_str()),
        _ => Some(env!("CARGO_PKG_VERSION")),
    };
    let page = text::fill(include_str!("texts/bantam.1"), value);
    print(&page.unwrap_or_default()).map(|()| 0)
}
