//! `bantam completions` and `bantam man`: shell completions and the manual page, from the command tables.

use std::collections::BTreeMap;

use super::args::{Args, Command};
use super::ui::Ui;
use super::{commands, help, print};
use crate::error::Result;
use crate::text::not_found;

pub(super) const COMMANDS: &[Command] = &[
    Command::plain(
        "completions",
        "bash|zsh|fish",
        completions,
        "print a script that completes commands and flags in a shell",
    )
    .with_examples(&["bantam completions bash >~/.local/share/bash-completion/completions/bantam"]),
    Command::plain(
        "man",
        "",
        man,
        "print a manual page; redirect it into a file",
    )
    .with_examples(&["bantam man >~/.local/share/man/man1/bantam.1"]),
];

const BASH: &str = r#"# bash completion for bantam: source it, or put it into
# ~/.local/share/bash-completion/completions/bantam
_bantam() {
    local current=${COMP_WORDS[COMP_CWORD]} list=()
    case "${COMP_WORDS[*]:1:COMP_CWORD-1} " in
{cases}    esac
    COMPREPLY=()
    if [[ $current == -* || $list != --* ]]; then
        COMPREPLY=($(compgen -W "${list[*]}" -- "$current"))
    fi
}
complete -o default -F _bantam bantam
"#;

const ZSH: &str = r#"#compdef bantam
# zsh completion for bantam: put it into a directory of $fpath as _bantam.
_bantam() {
    local -a list
    case "${words[2,CURRENT-1]} " in
{cases}    esac
    if [[ $words[CURRENT] == -* || ${list[1]} != --* ]] && (( $#list )); then
        _describe 'bantam' list
    else
        _files
    fi
}
if [[ $funcstack[1] == _bantam ]]; then _bantam "$@"; else compdef _bantam bantam; fi
"#;

const FISH: &str = r#"# fish completion for bantam: ~/.config/fish/completions/bantam.fish
function __bantam_after
    set -l words (commandline -opc)
    set -e words[1]
    string match -q -- $argv[1] "$words "
end
{cases}"#;

fn completions(_: &Ui, given: &Args) -> Result<u8> {
    let script = match given.words[0].as_str() {
        "bash" => BASH.replace("{cases}", &cases(|word, _| word.to_owned())),
        "zsh" => ZSH.replace(
            "{cases}",
            &cases(|word, help| quoted(&format!("{}:{help}", word.replace(':', "\\:")))),
        ),
        "fish" => FISH.replace("{cases}", &fish()),
        other => {
            let shells = ["bash", "zsh", "fish"];
            return Err(not_found("shell", other, shells, "bantam help completions"));
        }
    };
    print(&script).map(|()| 0)
}

/// Returns the words before the cursor, and the possible next words with their help: commands, subcommands, or the flags of a
/// command as typed.
fn places() -> BTreeMap<&'static str, Vec<(String, &'static str)>> {
    let mut places: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for command in commands() {
        let (group, word) = command.name.split_once(' ').unwrap_or(("", command.name));
        if !group.is_empty() && !places.contains_key(group) {
            places
                .entry("")
                .or_default()
                .push((group.to_owned(), command.about));
        }
        places
            .entry(group)
            .or_default()
            .push((word.to_owned(), command.about));
        let flags = || {
            let flags = command.flags();
            flags.map(|flag| (format!("--{} {}", flag.long, flag.value), flag.help))
        };
        // A question needs no command word before its flags.
        if command.name == "agent" {
            places.entry("").or_default().extend(flags());
        }
        places
            .entry(command.name)
            .or_default()
            .extend(flags().chain([("--help".to_owned(), "show its page")]));
    }
    places
}

/// Returns a shell pattern for the text before a word: exactly `before`, or for flags anything with that prefix.
fn pattern(before: &str, words: &[(String, &str)]) -> (String, &'static str) {
    (
        format!("{before} "),
        if words[0].0.starts_with("--") {
            "*"
        } else {
            ""
        },
    )
}

/// Formats the places as cases of bash and zsh.
fn cases(entry: impl Fn(&str, &str) -> String) -> String {
    let case = |(before, words): (&str, Vec<(String, &str)>)| {
        let (before, star) = pattern(before, &words);
        let list: Vec<String> = words
            .iter()
            .map(|(word, help)| entry(word.split(' ').next().unwrap_or_default(), help))
            .collect();
        format!("        \"{before}\"{star}) list=({}) ;;\n", list.join(" "))
    };
    places().into_iter().map(case).collect()
}

fn fish() -> String {
    let mut script = String::new();
    for (before, words) in places() {
        let (before, star) = pattern(before, &words);
        for (word, help) in &words {
            let word = match word
                .strip_prefix("--")
                .map(|flag| flag.split_once(' ').unwrap_or((flag, "")))
            {
                None => format!("-f -a {word}"),
                Some((flag, "")) => format!("-l {flag}"),
                Some((flag, _)) => format!("-l {flag} -r"),
            };
            let help = quoted(help);
            script.push_str(&format!(
                "complete -c bantam -n \"__bantam_after '{before}{star}'\" {word} -d {help}\n"
            ));
        }
    }
    script
}

/// Quotes text in single quotes, in which shells expand nothing.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
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
