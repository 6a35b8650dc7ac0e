//! Command tables, and their parser. `help` prints the same tables.

use std::collections::BTreeMap;
use std::ffi::OsString;

use lexopt::Arg;

use super::Ui;
use crate::app::App;
use crate::error::{Error, Result};
use crate::text::{nearest, not_found_near, to_single_line};

pub(super) struct Subcommand {
    pub run: fn(&App, &Ui, &Args) -> Result<u8>,
    /// The help in lines: the name and the words after it (`KEY` is required, `[KEY]` optional, `[TEXT...]` repeatable), a
    /// sentence, examples, and flags with their help, under headings if there are many. Two spaces separate columns.
    pub text: &'static str,
}

impl Subcommand {
    /// Returns the name and the words after it.
    fn usage(&self) -> (&'static str, &'static str) {
        let usage = self.text.split('\n').next().unwrap_or_default();
        usage.split_once("  ").unwrap_or((usage, ""))
    }

    /// Returns the name, such as `agent`, or a group and its subcommand, such as `sessions list`.
    pub(super) fn name(&self) -> &'static str {
        self.usage().0
    }

    pub(super) fn words(&self) -> &'static str {
        self.usage().1
    }

    pub(super) fn group(&self) -> Option<&'static str> {
        self.name().split_once(' ').map(|(group, _)| group)
    }

    /// Returns the last word of the name.
    pub(super) fn verb(&self) -> &'static str {
        self.name().split(' ').next_back().unwrap_or_default()
    }

    fn lines(&self) -> impl Iterator<Item = &'static str> {
        self.text.lines().skip(1).map(str::trim_start)
    }

    pub(super) fn about(&self) -> &'static str {
        self.lines().next().unwrap_or_default()
    }

    pub(super) fn examples(&self) -> impl Iterator<Item = &'static str> {
        self.lines().filter_map(|line| line.strip_prefix("$ "))
    }

    /// Returns the flags as typed, such as `-m, --message TEXT`, with their help. Headings have none.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let rows = self.lines().skip(1).filter(|line| !line.starts_with("$ "));
        rows.map(|row| row.split_once("  ").unwrap_or((row, "")))
            .map(|(typed, help)| (typed, help.trim_start()))
    }

    pub(super) fn flags(&self) -> impl Iterator<Item = Flag> {
        self.rows().filter_map(|(typed, help)| {
            let (short, long) = typed.split_once("--")?;
            let (long, value) = long.split_once(' ').unwrap_or((long, ""));
            let short = short.chars().nth(1);
            Some(Flag {
                typed,
                short,
                long,
                value,
                help,
            })
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
            Error::usage(format!("--{flag} {shown} is not an integer, 1 or more"))
                .hint(format!("use a number, such as `--{flag} {example}`"))
        })
    }

    /// Returns an error if more than one of these flags is given.
    pub(super) fn exclude(&self, flags: &[&str]) -> Result<()> {
        let mut given = flags.iter().filter(|flag| self.has(flag));
        let (Some(one), Some(other)) = (given.next(), given.next()) else {
            return Ok(());
        };
        let what = format!("--{one} and --{other} cannot be used together");
        Err(Error::usage(what).hint("remove one of them"))
    }
}

/// Parses the words after the command's name; `None` if they ask for help.
pub(super) fn parse(
    command: &Subcommand,
    args: impl Iterator<Item = OsString>,
) -> Result<Option<Args>> {
    let utf8 = |word: OsString| {
        word.into_string().map_err(|_| {
            Error::usage("an argument is not UTF-8").hint("pass it through standard input")
        })
    };
    let mut parsed = Args::default();
    let mut parser = lexopt::Parser::from_args(args);
    let misplaced = |e: lexopt::Error| {
        Error::usage(e.to_string()).hint(format!("run `bantam help {}`", command.name()))
    };
    while let Some(arg) = parser.next().map_err(misplaced)? {
        let (flag, shown) = match arg {
            Arg::Long("help") | Arg::Short('h') => return Ok(None),
            Arg::Value(word) => {
                parsed.words.push(utf8(word)?);
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
            return Err(error.hint("remove one of them"));
        }
    }
    check_words(command, &parsed.words)?;
    Ok(Some(parsed))
}

fn unknown_flag(command: &Subcommand, shown: &str) -> Error {
    // The opposite of a flag is never meant.
    let other = |f: &Flag| f.long.strip_prefix("no-") != shown.strip_prefix("--");
    let flags = command.flags().filter(other);
    let flags: Vec<String> = flags.map(|f| format!("--{}", f.long)).collect();
    let known = flags.iter().map(String::as_str).chain(["--help"]);
    let list = format!("bantam help {}", command.name());
    let text = format!("run `{list}`, or put `--` before text that starts with -");
    match nearest(shown, known) {
        None if !command.words().is_empty() => not_found_near("flag", shown, None, "").hint(text),
        near => not_found_near("flag", shown, near, &list),
    }
}

fn check_words(command: &Subcommand, given: &[String]) -> Result<()> {
    let (name, words) = command.usage();
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
                Error::usage(format!("unexpected argument \"{extra}\" of bantam {name}"))
                    .hint(format!("run `bantam help {name}`")),
            )
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMANDS: [Subcommand; 3] = [
        command(
            "test  A [B...]
            about
            $ bantam test a
            -m, --message TEXT  text
                --json          object",
        ),
        command("test  [KEY]"),
        command("test  KEY"),
    ];

    const fn command(text: &'static str) -> Subcommand {
        Subcommand { run, text }
    }

    fn run(_: &App, _: &Ui, args: &Args) -> Result<u8> {
        args.exclude(&[]).map(|()| 0)
    }

    fn parsed(command: &Subcommand, args: &str) -> Result<Args> {
        let args = args.split_whitespace().map(OsString::from);
        parse(command, args).map(Option::unwrap)
    }

    #[test]
    fn flags_and_words_are_told_apart() {
        let [command, optional, required] = &COMMANDS;
        let given = parsed(command, "a -m x --json -- -b").unwrap();
        assert_eq!(given.words, ["a", "-b"]);
        assert_eq!(given.value("message"), Some("x"));
        assert!(given.has("json") && !given.has("message-not"));
        assert_eq!(
            parsed(command, "a --message=x").unwrap().value("message"),
            Some("x")
        );
        for (command, args) in [
            (command, ""),
            (optional, "a b"),
            (required, ""),
            (required, "a b"),
        ] {
            assert!(parsed(command, args).is_err(), "{args}");
        }
        assert!(parsed(optional, "").is_ok() && parsed(required, "a").is_ok());
    }
}
