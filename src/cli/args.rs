//! Commands as tables: what a flag is called, what it takes, what it does. Parsing and help both read them.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::config::Env;
use crate::error::{Error, Result};
use crate::text::{nearest, one_line};

pub struct Command {
    /// One word, or a word and a verb: `sessions list`. Each verb is a command of its own, with its own flags.
    pub name: &'static str,
    /// What follows the name: `KEY` has to be there, `[KEY]` may, and `[TEXT...]` may be many.
    pub words: &'static str,
    pub about: &'static str,
    pub flags: &'static [Flag],
    pub run: fn(&Given, &Env) -> Result<u8>,
}

pub struct Flag {
    pub short: Option<char>,
    /// Without the dashes.
    pub long: &'static str,
    /// The name of what it takes; empty for one that takes nothing.
    pub value: &'static str,
    pub help: &'static str,
}

impl Flag {
    pub const fn new(short: Option<char>, long: &'static str, value: &'static str, help: &'static str) -> Self {
        Self { short, long, value, help }
    }
}

/// What was given, by the flags' long names.
#[derive(Debug, Default)]
pub struct Given {
    flags: BTreeMap<&'static str, Vec<String>>,
    pub words: Vec<String>,
}

impl Given {
    pub fn has(&self, flag: &str) -> bool {
        self.flags.contains_key(flag)
    }

    /// The last value given.
    pub fn value(&self, flag: &str) -> Option<&str> {
        self.flags.get(flag)?.last().map(String::as_str)
    }

    /// Every value given, in order.
    pub fn values(&self, flag: &str) -> impl Iterator<Item = &str> {
        self.flags.get(flag).into_iter().flatten().map(String::as_str)
    }

    pub fn number(&self, flag: &str) -> Result<Option<u64>> {
        let Some(text) = self.value(flag) else { return Ok(None) };
        match text.parse() {
            Ok(n) if n >= 1 => Ok(Some(n)),
            _ => Err(Error::usage(format!("--{flag} {text}: not a number"))
                .hint(format!("--{flag} takes a whole number of at least 1"))),
        }
    }
}

#[derive(Debug)]
pub enum Parsed {
    Help,
    Run(Given),
}

pub fn parse(command: &Command, args: impl Iterator<Item = OsString>) -> Result<Parsed> {
    use lexopt::Arg;
    let hint = || format!("bantam help {}", command.name);
    let mut given = Given::default();
    let mut parser = lexopt::Parser::from_args(args);
    let text = |word: OsString| {
        word.into_string()
            .map_err(|_| Error::usage("an argument is not UTF-8").hint("pass such text through standard input"))
    };
    loop {
        let arg = parser.next().map_err(|e| Error::usage(e.to_string()).hint(hint()))?;
        let (found, shown) = match arg {
            None => return count(command, &given).map(|()| Parsed::Run(given)),
            Some(Arg::Long("help") | Arg::Short('h')) => return Ok(Parsed::Help),
            Some(Arg::Value(word)) => {
                given.words.push(text(word)?);
                continue;
            }
            Some(Arg::Long(name)) => (command.flags.iter().find(|f| f.long == name), format!("--{name}")),
            Some(Arg::Short(c)) => (command.flags.iter().find(|f| f.short == Some(c)), format!("-{c}")),
        };
        let Some(flag) = found else {
            let known: Vec<String> = command.flags.iter().map(|f| format!("--{}", f.long)).collect();
            let near = nearest(&shown, known.iter().map(String::as_str));
            let near = near.map_or_else(hint, |near| format!("did you mean {near}?"));
            return Err(Error::usage(format!("unknown flag {shown} for bantam {}", command.name)).hint(near));
        };
        let value = if flag.value.is_empty() {
            String::new()
        } else {
            let value = parser.value().map_err(|_| {
                Error::usage(format!("{shown} needs a value")).hint(format!("--{} {}", flag.long, flag.value))
            })?;
            text(value)?
        };
        given.flags.entry(flag.long).or_default().push(value);
    }
}

/// Checks how many words were given against what the command takes.
fn count(command: &Command, given: &Given) -> Result<()> {
    let Command { name, words, .. } = command;
    let taken: Vec<&str> = words.split_whitespace().collect();
    let needed = taken.iter().filter(|word| !word.starts_with('[')).count();
    if let Some(missing) = taken.get(given.words.len()).filter(|_| given.words.len() < needed) {
        return Err(Error::usage(format!("bantam {name} needs {missing}")).hint(format!("bantam {name} {words}")));
    }
    match given.words.get(taken.len()) {
        Some(word) if !words.contains("...") => {
            let word = one_line(word, 40);
            Err(Error::usage(format!("bantam {name} does not take \"{word}\"")).hint(format!("bantam help {name}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMAND: Command = Command {
        name: "test",
        words: "A [B...]",
        about: "",
        flags: &[Flag::new(Some('m'), "message", "TEXT", ""), Flag::new(None, "json", "", "")],
        run: |_, _| Ok(0),
    };

    fn parsed(args: &[&str]) -> Result<Given> {
        match parse(&COMMAND, args.iter().map(OsString::from))? {
            Parsed::Run(given) => Ok(given),
            Parsed::Help => Err(Error::usage("help")),
        }
    }

    #[test]
    fn flags_and_words_are_told_apart() {
        let given = parsed(&["a", "-m", "x y", "--json", "--", "-b"]).unwrap();
        assert_eq!(given.words, ["a", "-b"]);
        assert_eq!(given.value("message"), Some("x y"));
        assert!(given.has("json") && !given.has("message-not"));
        assert_eq!(parsed(&["a", "--message=x"]).unwrap().value("message"), Some("x"));
    }

    #[test]
    fn words_are_counted() {
        let taken = |words: &'static str, given: &[&str]| {
            let given = Given { words: given.iter().map(|word| (*word).to_owned()).collect(), ..Given::default() };
            count(&Command { words, ..COMMAND }, &given).is_ok()
        };
        assert!(taken("", &[]) && !taken("", &["a"]));
        assert!(taken("KEY", &["a"]) && !taken("KEY", &[]) && !taken("KEY", &["a", "b"]));
        assert!(taken("[KEY]", &[]) && taken("[KEY]", &["a"]) && !taken("[KEY]", &["a", "b"]));
        assert!(taken("[TEXT...]", &["a", "b", "c"]));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_is_right() {
        for (args, message, hint) in [
            (&["--mesage", "x"][..], "unknown flag --mesage", "did you mean --message?"),
            (&[], "bantam test needs A", "bantam test A [B...]"),
            (&["-z"], "unknown flag -z", "bantam help test"),
            (&["-m"], "-m needs a value", "--message TEXT"),
            (&["--json=1"], "json", "bantam help test"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.message.contains(message), "{error}");
            assert_eq!(error.hint.as_deref(), Some(hint));
        }
    }
}
