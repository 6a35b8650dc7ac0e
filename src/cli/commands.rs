//! The commands of a conversation, and what a line typed there is.

use super::repl::Conversation;
use crate::error::{Error, Result};
use crate::text::not_found;

/// A command of a conversation.
pub(super) struct Command {
    pub name: &'static str,
    /// `KEY` is required, `[NAME]` optional.
    pub argument: &'static str,
    about: &'static str,
    /// Its other names.
    aliases: &'static [&'static str],
    pub run: Run,
}

/// Returns what to tell; `None` ends the conversation.
type Run = fn(&mut Conversation, &str) -> Result<Option<String>>;

const COMMANDS: [Command; 8] = [
    row(
        "/help",
        "[COMMAND]",
        "show this, or the line of one command",
        &["/?"],
        |_, name| help_on(name).map(Some),
    ),
    row(
        "/new",
        "",
        "start a new conversation",
        &["/clear", "/reset"],
        |talk, _| talk.start_over().map(Some),
    ),
    row(
        "/model",
        "[NAME]",
        "list the models, or change to one",
        &[],
        |talk, name| talk.model(name).map(Some),
    ),
    row(
        "/retry",
        "",
        "ask the last question again",
        &[],
        |talk, _| talk.retry().map(Some),
    ),
    row(
        "/undo",
        "",
        "take back the last question, its answer and file changes",
        &[],
        |talk, _| talk.undo().map(Some),
    ),
    row(
        "/thinking",
        "",
        "show what the model thinks, or hide it again",
        &[],
        |talk, _| Ok(Some(talk.toggle_thinking())),
    ),
    row(
        "/usage",
        "",
        "show tokens and cost so far",
        &[],
        |talk, _| talk.usage().map(Some),
    ),
    row("/quit", "", "leave", &["/exit", "exit", "quit"], |_, _| {
        Ok(None)
    }),
];

const fn row(
    name: &'static str,
    argument: &'static str,
    about: &'static str,
    aliases: &'static [&'static str],
    run: Run,
) -> Command {
    Command {
        name,
        argument,
        about,
        aliases,
        run,
    }
}

const KEYS: &str = "\
Ctrl-C stops an answer or clears the line; pressed again, it leaves, as does
Ctrl-D. Alt-Enter, or \\ at the end of a line, begins another line. Ctrl-R
searches what was typed before, Tab completes. @FILE in a message attaches the
file, once you agree. To send a line that looks like a command, put a
space before it.";

pub(super) enum Input {
    Message(String),
    /// A command, and the text behind it.
    Command(&'static Command, String),
    /// Looks like a command.
    Unknown(Error),
    /// Several lines, probably pasted, of which the first would be a command: its name.
    Lines(String),
    Empty,
}

pub(super) fn parse(line: &str, skills: &[String]) -> Input {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Input::Empty;
    }
    let has_more = trimmed.contains('\n');
    if let Some(command) = find(line) {
        if has_more {
            return Input::Lines(command.name.to_owned());
        }
        let rest = trimmed
            .split_once(char::is_whitespace)
            .map_or("", |(_, rest)| rest.trim());
        return Input::Command(command, rest.to_owned());
    }
    let (message, first) = (
        Input::Message(line.trim_end().to_owned()),
        line.split_whitespace().next().unwrap_or_default(),
    );
    // Paths such as /etc/hosts are text.
    let is_command =
        |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_alphabetic() || c == '-');
    let Some(name) = first
        .strip_prefix('/')
        .filter(|word| line.starts_with('/') && is_command(word))
    else {
        return message;
    };
    if skills.iter().any(|skill| skill == name) {
        return message;
    }
    if has_more {
        return Input::Lines(first.to_owned());
    }
    let skills = skills.iter().map(|name| format!("/{name}"));
    let known: Vec<String> = names().map(str::to_owned).chain(skills).collect();
    let known = known.iter().map(String::as_str);
    Input::Unknown(not_found("command", first, known, "/help"))
}

/// The command in a line.
fn find(line: &str) -> Option<&'static Command> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let command = COMMANDS
        .iter()
        .find(|command| command.name == first || command.aliases.contains(&first))?;
    // "exit the loop" is a message.
    let fits = line.starts_with(first) && (first.starts_with('/') || words.next().is_none());
    fits.then_some(command)
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|command| command.name)
}

impl Command {
    fn line(&self) -> String {
        let Self {
            name,
            argument,
            about,
            aliases,
            ..
        } = self;
        let also = if aliases.is_empty() {
            String::new()
        } else {
            format!(" (also {})", aliases.join(", "))
        };
        format!("{:<15} {about}{also}\n", format!("{name} {argument}"))
    }
}

fn help() -> String {
    let lines = COMMANDS.iter().map(Command::line);
    lines.chain([KEYS.to_owned()]).collect()
}

/// The line of the command that is called so, with a slash or without; of all if no name is given.
fn help_on(name: &str) -> Result<String> {
    if name.is_empty() {
        return Ok(help());
    }
    let bare = name.trim_start_matches('/');
    let is_meant = |known: &str| known.trim_start_matches('/') == bare;
    let command = COMMANDS.iter().find(|command| {
        is_meant(command.name) || command.aliases.iter().any(|name| is_meant(name))
    });
    let line = command.map(|command| command.line().trim_end().to_owned());
    line.ok_or_else(|| not_found("command", &format!("/{bare}"), names(), "/help"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a line is, in words.
    fn kind(line: &str, skills: &[String]) -> String {
        match parse(line, skills) {
            Input::Message(text) => format!("message {text}"),
            Input::Command(command, rest) => format!("{} {rest}", command.name),
            Input::Unknown(e) => format!("{}: {}", e.message, e.hint.unwrap()),
            Input::Lines(word) => format!("lines after {word}"),
            Input::Empty => String::new(),
        }
    }

    #[test]
    fn a_line_is_a_command_a_skill_a_message_or_a_mistake() {
        let skills = ["weather".to_owned(), "write-news".to_owned()];
        let is = |line, name, rest: &str| {
            assert_eq!(kind(line, &skills), format!("{name} {rest}"));
        };
        is("/help", "/help", "");
        is("/clear ", "/new", "");
        is("/model  openai/gpt-5-mini ", "/model", "openai/gpt-5-mini");
        is("/exit", "/quit", "");
        is("/undo 3", "/undo", "3");
        is("/help model", "/help", "model");
        is("exit", "/quit", "");
        for line in [
            "exit the loop",
            "/etc/hosts: what is it?",
            " /help me",
            "// a comment",
            "/ 2",
            "quit smoking",
        ] {
            assert_eq!(kind(line, &skills), format!("message {line}"));
        }
        for line in ["/weather in Berlin", "/write-news"] {
            assert_eq!(
                kind(line, &skills),
                format!("message {line}"),
                "the agent adds the skill"
            );
        }
        for (line, hint) in [
            ("/modle x", "did you mean `/model`?"),
            ("/wether", "did you mean `/weather`?"),
            ("/zzzzz", "run `/help`"),
        ] {
            let word = line.split(' ').next().unwrap();
            let expected = format!("no command named \"{word}\": {hint}");
            assert_eq!(kind(line, &skills), expected);
        }
        for (lines, expected) in [
            ("/clear\nwhat now?", "lines after /new"),
            ("/zzzzz x\ny", "lines after /zzzzz"),
            ("/weather in\nBerlin", "message /weather in\nBerlin"),
            (" /new\nx", "message  /new\nx"),
        ] {
            assert_eq!(kind(lines, &skills), expected);
        }
        assert_eq!(kind(" \t", &skills), "");
    }

    #[test]
    fn the_help_fits_a_narrow_terminal() {
        assert!(
            help().lines().all(|line| line.chars().count() < 80),
            "{}",
            help()
        );
    }
}
