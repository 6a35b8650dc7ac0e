//! `bantam completions` and `bantam man`: shell completions and the manual page, from the command tables.

use std::collections::BTreeSet;

use super::args::{Args, Flag, Subcommand, commands};
use super::ui::Ui;
use super::{agent, command_of, commands, find, help, print, topics};
use crate::app::App;
use crate::config::path;
use crate::config::vendors::VENDORS;
use crate::cron::{Job, Jobs};
use crate::error::Result;
use crate::paths::shown_key;
use crate::session::{FileStore, Store};
use crate::skills::Skills;
use crate::text::{is_unsafe_to_show, not_found, to_single_line};

pub(super) const COMMANDS: &[Subcommand] = commands! {
    Anywhere(completions) "completions  bash|zsh|fish
        print a script for completion with Tab in a shell
        $ bantam completions bash >~/.local/share/bash-completion/completions/bantam"
    Anywhere(man) "man
        print a manual page
        $ bantam man >~/.local/share/man/man1/bantam.1"
};

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

/// Prints for the scripts the names that may take the place of the last word, one a line, some with a tab and a description.
/// The exit code 1 asks for files.
pub(super) fn complete(app: &App, words: &[String]) -> Result<u8> {
    let Some((last, before)) = words.split_last() else {
        return Ok(1);
    };
    // After `--model=`, the shell still wants the whole word.
    let (flag, typed) = match last.find('=') {
        Some(at) if last.starts_with("--") => last.split_at(at + 1),
        _ => ("", last.as_str()),
    };
    let mut before = before.to_vec();
    before.extend(flag.strip_suffix('=').map(str::to_owned));
    let Some(names) = names_after(&before, typed, app) else {
        return Ok(1);
    };
    let is_shown = |name: &&String| {
        // Each question leaves an unnamed conversation.
        let is_wanted = typed.starts_with('+') || !name.starts_with('+');
        let is_bad = |c| c != '\t' && is_unsafe_to_show(c);
        name.starts_with(typed) && is_wanted && !name.chars().any(is_bad)
    };
    let lines = names
        .iter()
        .filter(is_shown)
        .map(|name| format!("{flag}{name}\n"));
    print(&lines.collect::<String>()).map(|()| 0)
}

fn with_help(name: &str, help: &str) -> String {
    format!("{name}\t{}", help::first_clause(help))
}

/// Returns the names that may follow the words `before`; `None` for files.
fn names_after(before: &[String], typed: &str, app: &App) -> Option<Vec<String>> {
    let is_flag = typed.starts_with('-');
    let (command, taken) = match before {
        [] if !is_flag => return Some(first_words()),
        [group] if !is_flag && find(group).len() > 1 => {
            let members = find(group).into_iter();
            return Some(members.map(|c| with_help(c.verb(), c.about())).collect());
        }
        // A question needs no command before its flags.
        _ => command_of(before).unwrap_or((&agent::COMMANDS[0], 0)),
    };
    let rest = &before[taken..];
    let flag_with_value = |word: &String| {
        let name = |flag: &Flag| flag.typed.split([',', ' ']).any(|part| part == word);
        command
            .flags()
            .find(|flag| !flag.value.is_empty() && name(flag))
    };
    if let Some(flag) = rest.last().and_then(flag_with_value) {
        return names(command, flag.value, app);
    }
    if is_flag {
        let flags = command
            .flags()
            .map(|flag| with_help(&format!("--{}", flag.long), flag.help));
        return Some(
            flags
                .chain([with_help("--help", "show this command's help")])
                .collect(),
        );
    }
    if let ("help", [_]) = (command.name(), rest) {
        return names_after(rest, typed, app);
    }
    let (mut given, mut is_value) = (0, false);
    for word in rest {
        given += usize::from(!is_value && !word.starts_with('-'));
        is_value = flag_with_value(word).is_some();
    }
    let declared: Vec<&str> = command.words().split_whitespace().collect();
    let repeated = declared.last().filter(|last| last.contains("..."));
    names(command, declared.get(given).or(repeated)?, app)
}

/// Returns the commands and groups.
fn first_words() -> Vec<String> {
    let name = |command: &Subcommand| match command.group() {
        Some(group) => with_help(group, help::subject(group)),
        None => with_help(command.name(), command.about()),
    };
    let mut names: Vec<String> = commands().map(name).collect();
    names.dedup();
    names
}

/// Returns the names that a placeholder of a command stands for; `None` for files, no names if they cannot be read.
fn names(command: &Subcommand, placeholder: &str, app: &App) -> Option<Vec<String>> {
    let placeholder = placeholder.trim_matches(['[', ']', '.']);
    let is_file = |word: &&str| placeholder.contains(word);
    if ["TEXT", "FILE", "DIR", "COMMAND"].iter().any(is_file) {
        return None;
    }
    if placeholder == "TOPIC" {
        let topics = topics::names().map(str::to_owned);
        return Some(first_words().into_iter().chain(topics).collect());
    }
    Some(stored_names(command.group(), placeholder, app).unwrap_or_default())
}

fn stored_names(group: Option<&str>, placeholder: &str, app: &App) -> Result<Vec<String>> {
    let home = app.home.clone();
    Ok(match (group, placeholder) {
        (_, "KEY") => {
            let mut keys = FileStore::new(home).list()?;
            // A question continues only conversations of the command line.
            keys.retain(|key| group == Some("sessions") || key.starts_with("cli_"));
            keys.iter().map(|key| shown_key(key)).collect()
        }
        (Some("cron"), "ID") => {
            let name = |job: &Job| match job.name() {
                name if name.contains(' ') => format!("{}\t{}", job.id(), to_single_line(name, 60)),
                name => name.to_owned(),
            };
            Jobs::new(home, &app.env).list()?.iter().map(name).collect()
        }
        (Some("mcp"), "NAME") => app.loaded()?.config.mcp_servers.keys().cloned().collect(),
        (Some("skills"), "NAME") => {
            let found = Skills::new(home.agent(), Vec::new()).all();
            found.skills.into_iter().map(|skill| skill.name).collect()
        }
        (Some("config"), "PATH") => {
            let mut paths = path::all_settings();
            paths.extend(path::list_values(&app.loaded()?.file));
            let paths: BTreeSet<String> = paths.iter().map(|names| names.join(".")).collect();
            paths.into_iter().collect()
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
            command.name()
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
