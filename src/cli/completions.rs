//! `bantam completions` and `bantam man`: what shells and manual pages say, from the command tables.

use std::collections::BTreeMap;

use super::args::{Args, Command, Flag};
use super::{commands, help, print};
use crate::config::Env;
use crate::error::{Error, Result};

pub(super) const COMMANDS: &[Command] = &[
    Command {
        name: "completions",
        words: "bash|zsh|fish",
        about: "print a script that completes commands and flags in a shell",
        flags: &[],
        run: completions,
    },
    Command { name: "man", words: "", about: "print a manual page; redirect it into a file", flags: &[], run: man },
];

fn completions(given: &Args, _: &Env) -> Result<u8> {
    let script = match given.words[0].as_str() {
        "bash" => bash(),
        "zsh" => zsh(),
        "fish" => fish(),
        other => {
            return Err(
                Error::usage(format!("no completions for \"{other}\"")).hint("bantam completions bash, or zsh or fish")
            );
        }
    };
    print(&script).map(|()| 0)
}

/// The first words of the commands, each with its subcommands and what the first of them is about.
fn tree() -> BTreeMap<&'static str, Vec<&'static Command>> {
    let mut tree: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for command in commands() {
        tree.entry(command.group().unwrap_or(command.name)).or_default().push(command);
    }
    tree
}

fn verb(command: &Command) -> &'static str {
    command.name.split_once(' ').map_or("", |(_, verb)| verb)
}

/// Each flag as it is typed, with its line of help.
fn flags(command: &Command) -> Vec<(String, &'static str)> {
    let spelled = |flag: &Flag| (format!("--{}", flag.long), flag.help);
    command.flags.iter().map(spelled).chain([("--help".to_owned(), "show its page")]).collect()
}

fn bash() -> String {
    let tree = tree();
    let top: Vec<&str> = tree.keys().copied().collect();
    let mut script = format!(
        "# bash completion for bantam: source it, or put it into\n\
         # ~/.local/share/bash-completion/completions/bantam\n\
         _bantam() {{\n    local current=${{COMP_WORDS[COMP_CWORD]}} list=\n    \
         case \"$COMP_CWORD ${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}\" in\n        \"1 \"*) list=\"{}\" ;;\n",
        top.join(" ")
    );
    for (name, commands) in &tree {
        if commands[0].group().is_some() {
            let verbs: Vec<&str> = commands.iter().map(|command| verb(command)).collect();
            script.push_str(&format!("        \"2 {name} \"*) list=\"{}\" ;;\n", verbs.join(" ")));
        }
        for command in commands {
            let flags: Vec<String> = flags(command).into_iter().map(|(flag, _)| flag).collect();
            let end = if command.group().is_some() { "" } else { " " };
            script.push_str(&format!("        *\" {}{end}\"*) list=\"{}\" ;;\n", command.name, flags.join(" ")));
        }
    }
    script.push_str(
        "    esac\n    \
         if [[ $COMP_CWORD == 1 || $current == -* || $list != *--* ]]; then\n        \
         COMPREPLY=($(compgen -W \"$list\" -- \"$current\"))\n    fi\n}\n\
         complete -o default -F _bantam bantam\n",
    );
    script
}

/// `'NAME:HELP'` for zsh.
fn described(name: &str, about: &str) -> String {
    format!("'{}:{}'", name.replace(':', "\\:"), about.replace('\'', "'\\''"))
}

fn zsh() -> String {
    let tree = tree();
    let list = |entries: Vec<String>| entries.join(" ");
    let top = tree.iter().map(|(name, commands)| described(name, commands[0].about)).collect();
    let mut script = format!(
        "#compdef bantam\n\
         # zsh completion for bantam: put it into a directory of $fpath as _bantam.\n\
         _bantam() {{\n    local -a list\n    case \"$CURRENT $words[2] $words[3]\" in\n        \"2 \"*) list=({}) ;;\n",
        list(top)
    );
    for (name, commands) in &tree {
        if commands[0].group().is_some() {
            let verbs = commands.iter().map(|command| described(verb(command), command.about)).collect();
            script.push_str(&format!("        \"3 {name} \"*) list=({}) ;;\n", list(verbs)));
        }
        for command in commands {
            let flags = flags(command).iter().map(|(flag, help)| described(flag, help)).collect();
            let end = if command.group().is_some() { "" } else { " " };
            script.push_str(&format!("        *\" {}{end}\"*) list=({}) ;;\n", command.name, list(flags)));
        }
    }
    script.push_str(
        "    esac\n    \
         if (( CURRENT == 2 )) || [[ $words[CURRENT] == -* || ${list[1]} != --* ]]; then\n        \
         _describe 'bantam' list\n    else\n        _files\n    fi\n}\n\
         if [[ $funcstack[1] == _bantam ]]; then _bantam \"$@\"; else compdef _bantam bantam; fi\n",
    );
    script
}

fn fish() -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
    let mut script = "# fish completion for bantam: ~/.config/fish/completions/bantam.fish\n".to_owned();
    for (name, commands) in tree() {
        let about = quoted(commands[0].about);
        script.push_str(&format!("complete -c bantam -n __fish_use_subcommand -f -a {name} -d {about}\n"));
        let verbs: Vec<&str> = commands.iter().map(|command| verb(command)).collect();
        for command in commands {
            let seen = format!("__fish_seen_subcommand_from {name}");
            let mut here = seen.clone();
            if command.group().is_some() {
                let first = format!("{seen}; and not __fish_seen_subcommand_from {}", verbs.join(" "));
                let (verb, about) = (verb(command), quoted(command.about));
                script.push_str(&format!("complete -c bantam -n '{first}' -f -a {verb} -d {about}\n"));
                here = format!("{seen}; and __fish_seen_subcommand_from {verb}");
            }
            for flag in command.flags {
                let short = flag.short.map_or(String::new(), |c| format!(" -s {c}"));
                let value = if flag.value.is_empty() { "" } else { " -r" };
                let (long, help) = (flag.long, quoted(flag.help));
                script.push_str(&format!("complete -c bantam -n '{here}'{short} -l {long}{value} -d {help}\n"));
            }
        }
    }
    script
}

/// Text for a manual page, where a backslash, a dash and a dot at the beginning mean something.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

fn man(_: &Args, _: &Env) -> Result<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        ".TH BANTAM 1 \"\" \"bantam {version}\" \"User Commands\"\n.SH NAME\nbantam \\- a personal AI agent\n\
         .SH SYNOPSIS\n.B bantam\nCOMMAND [ARGUMENT...]\n.SH COMMANDS\n"
    );
    for command in commands() {
        page.push_str(&format!(".SS {}\n{}\n", roff(&help::usage(command)), roff(command.about)));
        for flag in command.flags {
            let short = flag.short.map_or(String::new(), |c| format!("\\-{c}, "));
            let name = roff(format!("--{} {}", flag.long, flag.value).trim_end());
            page.push_str(&format!(".TP\n{short}{name}\n{}\n", roff(flag.help)));
        }
        let examples = help::examples(command.name);
        let examples: Vec<String> = examples.map(|line| format!("{}\n", roff(line))).collect();
        page.push_str(&format!(".PP\n.EX\n{}.EE\n", examples.concat()));
    }
    page.push_str(".SH EXIT STATUS\n");
    for (code, meaning) in help::EXIT_CODES {
        page.push_str(&format!(".TP\n{code}\n{meaning}\n"));
    }
    page.push_str(".SH FILES\n~/.bantam, or $BANTAM_HOME: see \\(lqbantam help files\\-and\\-formats\\(rq.\n");
    print(&page).map(|()| 0)
}
