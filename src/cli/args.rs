//! Command tables, and their parser. `help` prints the same tables.

use std::collections::BTreeMap;
use std::ffi::OsString;

use lexopt::Arg;

use super::Ui;
use crate::app::App;
use crate::error::{Error, Result};
use crate::text::{nearest, not_found_near, to_single_line};

/// What a command does.
pub(super) enum Run {
    InHome(fn(&App, &Ui, &Args) -> Result<u8>),
    Anywhere(fn(&Ui, &Args) -> Result<u8>),
}

pub(super) struct Command {
    /// Command name, such as `agent`, or a group and its subcommand, such as `sessions list`.
    pub name: &'static str,
    /// Words after the name: `KEY` is required, `[KEY]` optional, `[TEXT...]` repeatable.
    pub words: &'static str,
    pub run: Run,
    pub about: &'static str,
    /// Flags as typed, such as `-m, --message TEXT` or `--json`, each with its description. A row without a description is the
    /// heading of the flags after it.
    pub rows: &'static [(&'static str, &'static str)],
    pub examples: &'static [&'static str],
}

impl Command {
    pub(super) const fn row(
        name: &'static str,
        words: &'static str,
        run: fn(&App, &Ui, &Args) -> Result<u8>,
        about: &'static str,
    ) -> Self {
        let plain = Self::plain(name, words, |_, _| Ok(0), about);
        Self {
            run: Run::InHome(run),
            ..plain
        }
    }

    /// Makes a command that needs no home.
    pub(super) const fn plain(
        name: &'static str,
        words: &'static str,
        run: fn(&Ui, &Args) -> Result<u8>,
        about: &'static str,
    ) -> Self {
        Self {
            name,
            words,
            run: Run::Anywhere(run),
            about,
            rows: &[],
            examples: &[],
        }
    }

    pub(super) const fn with_flags(self, rows: &'static [(&'static str, &'static str)]) -> Self {
        Self { rows, ..self }
    }

    pub(super) const fn with_examples(self, examples: &'static [&'static str]) -> Self {
        Self { examples, ..self }
    }

    pub(super) fn group(&self) -> Option<&'static str> {
        self.name.split_once(' ').map(|(group, _)| group)
    }

    /// Returns the last word of the name.
    pub(super) fn verb(&self) -> &'static str {
        self.name
            .split_once(' ')
            .map_or(self.name, |(_, verb)| verb)
    }

    pub(super) fn flags(&self) -> impl Iterator<Item = Flag> + '_ {
        let flags = self.rows.iter().filter(|(_, help)| !help.is_empty());
        flags.map(|(typed, help)| {
            let (short, long) = typed.split_once("--").unwrap_or(("", typed));
            let (long, value) = long.split_once(' ').unwrap_or((long, ""));
            Flag {
                typed,
                short: short.chars().nth(1),
                long,
                value,
                help,
            }
        })
    }
}

pub(super) struct Flag {
    /// The flag as typed, such as `-m, --message TEXT`.
    pub typed: &'static str,
    pub short: Option<char>,
    /// Long name without the dashes.
    pub long: &'static str,
    /// Placeholder for the value; empty for a switch.
    pub value: &'static str,
    pub help: &'static str,
}

/// Parsed arguments, with flags under their long names.
#[derive(Debug, Default)]
pub(super) struct Args {
    flags: BTreeMap<&'static str, Vec<String>>,
    pub words: Vec<String>,
}

impl Args {
    pub(super) fn has(&self, flag: &str) -> bool {
        self.flags.contains_key(flag)
    }

    /// Returns the value of a flag; of one that may be repeated, the last.
    pub(super) fn value(&self, flag: &str) -> Option<&str> {
        self.values(flag).last()
    }

    /// Returns all values given, in order.
    pub(super) fn values(&self, flag: &str) -> impl Iterator<Item = &str> {
        self.flags
            .get(flag)
            .into_iter()
            .flatten()
            .map(String::as_str)
    }

    /// Parses the value as an integer, 1 or more; `example` is for the hint.
    pub(super) fn number(&self, flag: &str, example: u64) -> Result<Option<u64>> {
        let Some(text) = self.value(flag) else {
            return Ok(None);
        };
        let number = text.parse().ok().filter(|n| *n > 0);
        number.map(Some).ok_or_else(|| {
            let shown = to_single_line(text, 40);
            Error::usage(format!(
                "--{flag} {shown}: must be a whole number of at least 1"
            ))
            .hint(format!("write a number, such as `--{flag} {example}`"))
        })
    }

    /// Returns an error if both flags are given.
    pub(super) fn exclude(&self, one: &str, other: &str) -> Result<()> {
        if self.has(one) && self.has(other) {
            return Err(
                Error::usage(format!("--{one} and --{other} cannot be used together"))
                    .hint("leave out one of them"),
            );
        }
        Ok(())
    }
}

/// Parses the words after the command's name; `None` if they ask for help.
pub(super) fn parse(
    command: &Command,
    args: impl Iterator<Item = OsString>,
) -> Result<Option<Args>> {
    let utf8 = |word: OsString| {
        word.into_string().map_err(|_| {
            Error::usage("an argument is not UTF-8").hint("pass such text through standard input")
        })
    };
    let mut parsed = Args::default();
    let mut parser = lexopt::Parser::from_args(args);
    let misplaced = |e: lexopt::Error| match e {
        lexopt::Error::UnexpectedValue { option, .. } => {
            Error::usage(format!("{option} takes no value")).hint(format!("write `{option}` alone"))
        }
        e => Error::usage(e.to_string()).hint(format!("run `bantam help {}`", command.name)),
    };
    while let Some(arg) = parser.next().map_err(misplaced)? {
        let (flag, shown) = match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            Arg::Value(word) => {
                parsed.words.push(utf8(word)?);
                continue;
            }
            // A negative number is a word.
            Arg::Short(c) if c.is_ascii_digit() => {
                let rest = parser.optional_value().unwrap_or_default();
                parsed.words.push(format!("-{c}{}", utf8(rest)?));
                continue;
            }
            Arg::Long(name) => (
                command.flags().find(|f| f.long == name),
                format!("--{name}"),
            ),
            Arg::Short(c) => (
                command.flags().find(|f| f.short == Some(c)),
                format!("-{c}"),
            ),
        };
        let Some(flag) = flag else {
            return Err(unknown_flag(command, &shown));
        };
        let value = if flag.value.is_empty() {
            String::new()
        } else {
            let missing = |_| {
                Error::usage(format!("{shown} needs a value"))
                    .hint(format!("write `{shown} {}`", flag.value))
            };
            utf8(parser.value().map_err(missing)?)?
        };
        let values = parsed.flags.entry(flag.long).or_default();
        values.push(value);
        let is_repeatable = flag.value.is_empty() || flag.help.ends_with("(repeatable)");
        if values.len() > 1 && !is_repeatable {
            let error = Error::usage(format!("--{} is given twice", flag.long));
            return Err(error.hint("leave out one of them"));
        }
    }
    check_words(command, &parsed.words)?;
    Ok(Some(parsed))
}

fn unknown_flag(command: &Command, shown: &str) -> Error {
    let flags: Vec<String> = command.flags().map(|f| format!("--{}", f.long)).collect();
    let known = flags.iter().map(String::as_str);
    let known = known.chain(["--help", "--version"]);
    let list = format!("bantam help {}", command.name);
    match nearest(shown, known) {
        // A flag of bantam itself, not of a command.
        Some("--version") => not_found_near("flag", shown, Some("bantam --version"), &list),
        None if command.words.contains("...") => not_found_near("flag", shown, None, &list)
            .hint("put `--` before text that starts with -"),
        near => not_found_near("flag", shown, near, &list),
    }
}

fn check_words(command: &Command, given: &[String]) -> Result<()> {
    let Command { name, words, .. } = command;
    let declared: Vec<&str> = words.split_whitespace().collect();
    match (declared.get(given.len()), given.get(declared.len())) {
        (Some(missing), _) if !missing.starts_with('[') => {
            let missing = missing.replace('|', " or ");
            Err(Error::usage(format!("missing {missing}"))
                .hint(format!("write `bantam {name} {words}`")))
        }
        (_, Some(extra)) if !words.contains("...") => {
            let extra = to_single_line(extra, 40);
            Err(
                Error::usage(format!("bantam {name} does not take \"{extra}\""))
                    .hint(format!("run `bantam help {name}`")),
            )
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAND: Command = Command::plain("test", "A [B...]", |_, _| Ok(0), "")
        .with_flags(&[("-m, --message TEXT", "text"), ("--json", "object")]);

    fn parsed(args: &[&str]) -> Result<Args> {
        parse(&COMMAND, args.iter().map(OsString::from)).map(Option::unwrap)
    }

    #[test]
    fn flags_and_words_are_told_apart() {
        let given = parsed(&["a", "-m", "x y", "--json", "--", "-b"]).unwrap();
        assert_eq!(given.words, ["a", "-b"]);
        assert_eq!(given.value("message"), Some("x y"));
        assert!(given.has("json") && !given.has("message-not"));
        assert_eq!(parsed(&["-50", "-0.5"]).unwrap().words, ["-50", "-0.5"]);
        assert_eq!(
            parsed(&["a", "--message=x"]).unwrap().value("message"),
            Some("x")
        );
    }

    #[test]
    fn words_are_counted() {
        let taken = |words: &'static str, given: &[&str]| {
            let given: Vec<String> = given.iter().map(|word| (*word).to_owned()).collect();
            check_words(&Command { words, ..COMMAND }, &given).is_ok()
        };
        assert!(taken("", &[]) && !taken("", &["a"]));
        assert!(taken("KEY", &["a"]) && !taken("KEY", &[]) && !taken("KEY", &["a", "b"]));
        assert!(taken("[KEY]", &[]) && taken("[KEY]", &["a"]) && !taken("[KEY]", &["a", "b"]));
        assert!(taken("[TEXT...]", &["a", "b", "c"]));
    }
}
