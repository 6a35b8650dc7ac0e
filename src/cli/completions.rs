//! `bantam completions` and `bantam man`: shell completions and the manual page, from the command tables.

use std::collections::BTreeSet;

use super::args::{Args, Command, Flag};
use super::ui::Ui;
use super::{agent, commands, help, print, topics};
use crate::app::App;
use crate::config::path;
use crate::config::vendors::VENDORS;
use crate::cron::{Job, Jobs};
use crate::error::Result;
use crate::paths::shown_key;
use crate::session::{FileStore, Store};
use crate::skills::Skills;
use crate::text::{is_unsafe_to_show, not_found, to_single_line};

pub(super) const COMMANDS: &[Command] = &[
    Command::plain(
        "completions",
        "bash|zsh|fish",
        completions,
        "print a script for completion with Tab in a shell",
    )
    .with_examples(&["bantam completions bash >~/.local/share/bash-completion/completions/bantam"]),
    Command::plain("man", "", man, "print a manual page")
        .with_examples(&["bantam man >~/.local/share/man/man1/bantam.1"]),
];

const BASH: &str = r#"# bash completion for bantam: source it, or put it into
# ~/.local/share/bash-completion/completions/bantam
_bantam() {
    local words last names name
    # COMP_WORDS would split at colons.
    read -ra words <<<"${COMP_LINE:0:COMP_POINT}."
    last=${words[-1]%.}
    COMPREPLY=()
    if names=$("$1" __complete "${words[@]:1:${#words[@]}-2}" "$last" 2>/dev/null); then
        while IFS=$'\t' read -r name _; do
            # bash replaces only what follows a colon or an equals sign.
            [[ -z $name ]] || COMPREPLY+=("$(printf %q "${name#"${last%"${last##*[:=]}"}"}")")
        done <<<"$names"
    else
        compopt -o default
    fi
}
complete -F _bantam bantam
"#;

const ZSH: &str = r#"#compdef bantam
# zsh completion for bantam: put it into a directory of $fpath as _bantam.
_bantam() {
    local found
    local -a names
    if found=$($words[1] __complete "${(@Q)words[2,CURRENT]}" 2>/dev/null); then
        names=("${(@f)found//:/\\:}")
        names=("${(@)names/$'\t'/:}")
        [[ -z $found ]] || _describe bantam names
    else
        _files
    fi
}
if [[ $funcstack[1] == _bantam ]]; then _bantam "$@"; else compdef _bantam bantam; fi
"#;

const FISH: &str = r#"# fish completion for bantam: ~/.config/fish/completions/bantam.fish
function __bantam_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    $words[1] __complete $words[2..] "$last" 2>/dev/null
    or __fish_complete_path "$last"
end
complete -c bantam -f -a '(__bantam_complete)'
"#;

fn completions(_: &Ui, given: &Args) -> Result<u8> {
    let script = match given.words[0].as_str() {
        "bash" => BASH,
        "zsh" => ZSH,
        "fish" => FISH,
        other => {
            let shells = ["bash", "zsh", "fish"];
            return Err(not_found("shell", other, shells, "bantam help completions"));
        }
    };
    print(script).map(|()| 0)
}

/// Names with a description each, which may be empty.
type Names = Vec<(String, String)>;

fn with_help(name: impl Into<String>, help: &str) -> (String, String) {
    (name.into(), help::first_clause(help).to_owned())
}

/// Prints for the scripts the names that may take the place of the last word, one a line. The exit code 1 asks for files.
pub(super) fn complete(app: &App, words: &[String]) -> Result<u8> {
    let (last, before) = words
        .split_last()
        .map_or(("", words), |(last, rest)| (last, rest));
    // After `--model=`, the shell still wants the whole word.
    let at = last.find('=').filter(|_| last.starts_with("--"));
    let (flag, typed) = at.map_or(("", last), |at| last.split_at(at + 1));
    let mut before = before.to_vec();
    before.extend(at.map(|at| last[..at].to_owned()));
    let Some(names) = names_after(&before, typed, app) else {
        return Ok(1);
    };
    let is_shown = |name: &str| {
        // Each question leaves an unnamed conversation.
        let is_wanted = typed.starts_with('+') || !name.starts_with('+');
        name.starts_with(typed) && is_wanted && !name.chars().any(is_unsafe_to_show)
    };
    let lines = names.iter().filter(|(name, _)| is_shown(name));
    let line = |(name, help): &(String, String)| match help.as_str() {
        "" => format!("{flag}{name}\n"),
        help => format!("{flag}{name}\t{}\n", to_single_line(help, 60)),
    };
    let lines = lines.map(line);
    print(&lines.collect::<String>()).map(|()| 0)
}

/// Returns the names that may follow the words `before`; `None` for files.
fn names_after(before: &[String], typed: &str, app: &App) -> Option<Names> {
    let is_flag = typed.starts_with('-');
    let (command, taken) = match before {
        [] if !is_flag => return Some(first_words()),
        [group] if !is_flag && super::find(group).len() > 1 => {
            let members = super::find(group).into_iter();
            return Some(members.map(|c| with_help(c.verb(), c.about)).collect());
        }
        // A question needs no command before its flags.
        _ => super::command_of(before).unwrap_or((&agent::COMMAND, 0)),
    };
    let rest = &before[taken..];
    let flag_with_value = |word: &String| {
        let is_same = |flag: &Flag| {
            let short = flag.short.map(|c| format!("-{c}"));
            *word == format!("--{}", flag.long) || short.as_ref() == Some(word)
        };
        command
            .flags()
            .find(|flag| is_same(flag) && !flag.value.is_empty())
    };
    if let Some(flag) = rest.last().and_then(flag_with_value) {
        return names(command, flag.value, app);
    }
    if is_flag {
        return Some(flags(command));
    }
    if let ("help", [group]) = (command.name, rest) {
        return names_after(std::slice::from_ref(group), typed, app);
    }
    let (mut given, mut is_value) = (0, false);
    for word in rest {
        given += usize::from(!is_value && !word.starts_with('-'));
        is_value = flag_with_value(word).is_some();
    }
    let declared: Vec<&str> = command.words.split_whitespace().collect();
    let repeated = declared.last().filter(|last| last.contains("..."));
    names(command, declared.get(given).or(repeated)?, app)
}

fn flags(command: &Command) -> Names {
    let flags = command
        .flags()
        .map(|flag| with_help(format!("--{}", flag.long), flag.help));
    flags
        .chain([with_help("--help", "show help for this command")])
        .collect()
}

/// Returns the commands and groups.
fn first_words() -> Names {
    let mut names = Names::new();
    for command in commands() {
        let name = match command.group() {
            Some(group) => with_help(group, help::subject(group)),
            None => with_help(command.name, command.about),
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the names that a placeholder of a command stands for; `None` for files, no names if they cannot be read.
fn names(command: &Command, placeholder: &str, app: &App) -> Option<Names> {
    let placeholder = placeholder.trim_matches(['[', ']', '.']);
    if ["TEXT", "FILE", "DIR", "COMMAND"]
        .iter()
        .any(|word| placeholder.contains(word))
    {
        return None;
    }
    Some(match placeholder {
        "TOPIC" => first_words()
            .into_iter()
            .chain(topics::names().map(|name| with_help(name, "topic")))
            .collect(),
        "bash|zsh|fish" => placeholder
            .split('|')
            .map(|name| with_help(name, ""))
            .collect(),
        _ => stored_names(command.group(), placeholder, app).unwrap_or_default(),
    })
}

fn stored_names(group: Option<&str>, placeholder: &str, app: &App) -> Result<Names> {
    let home = app.home.clone();
    let names: Vec<String> = match (group, placeholder) {
        (group, "KEY") => {
            let mut keys = FileStore::new(home).list()?;
            // A question continues only conversations of the command line.
            keys.retain(|key| group == Some("sessions") || key.starts_with("cli_"));
            keys.iter().map(|key| shown_key(key)).collect()
        }
        (Some("cron"), "ID") => {
            let called = |job: &Job| match job.name() {
                name if name.contains(char::is_whitespace) => {
                    (job.id().to_owned(), name.to_owned())
                }
                name => with_help(name, &job.question()),
            };
            return Ok(Jobs::new(home, &app.env)
                .list()?
                .iter()
                .map(called)
                .collect());
        }
        (Some("mcp"), "NAME") => app.loaded()?.config.mcp_servers.keys().cloned().collect(),
        (Some("skills"), "NAME") => {
            let found = Skills::new(home.agent(), Vec::new()).all();
            found.skills.into_iter().map(|skill| skill.name).collect()
        }
        (Some("config"), "PATH") => {
            let mut paths = path::all_settings();
            paths.extend(path::list_values(&app.loaded()?.file));
            paths
                .iter()
                .map(|names| names.join("."))
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()
        }
        (_, "MODEL" | "PROVIDER|NAME") => {
            let names = app.loaded()?.config.names().into_iter().map(str::to_owned);
            names
                .chain(VENDORS.iter().map(|vendor| vendor.name.to_owned()))
                .collect()
        }
        _ => Vec::new(),
    };
    Ok(names
        .into_iter()
        .map(|name| (name, String::new()))
        .collect())
}

/// Prints the pages of all commands as a manual page.
fn man(_: &Ui, _: &Args) -> Result<u8> {
    let mut page = format!(
        ".TH BANTAM 1 \"\" \"bantam {}\" \"User Commands\"\n.SH NAME\nbantam \\- a personal AI agent\n\
         .SH SYNOPSIS\n.B bantam\nCOMMAND [ARGUMENT...]\n.SH COMMANDS\n",
        env!("CARGO_PKG_VERSION")
    );
    for command in commands() {
        // Escapes backslashes and dashes, and dots at the beginning of lines.
        let text = help::section(command, help::WIDTH)
            .replace('\\', "\\e")
            .replace('-', "\\-")
            .replace("\n.", "\n\\&.");
        // Printed without indentation, because its 80 columns would not fit a terminal otherwise.
        page.push_str(&format!(
            ".SS {}\n.EX\n.in 0\n{text}.in\n.EE\n",
            command.name
        ));
    }
    page.push_str(".SH EXIT STATUS\n");
    for (code, meaning) in help::EXIT_CODES {
        page.push_str(&format!(".TP\n{code}\n{meaning}\n"));
    }
    page.push_str(
        ".SH FILES\n~/.bantam, or $BANTAM_HOME: see \\(lqbantam help files\\-and\\-formats\\(rq.\n",
    );
    print(&page).map(|()| 0)
}
