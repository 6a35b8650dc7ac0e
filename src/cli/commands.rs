//! The commands of a conversation, and what a line typed there is.

use crate::text::nearest;

/// A command: its name, its argument, what it does, and its other names.
type Command = (&'static str, &'static str, &'static str, &'static [&'static str]);

const COMMANDS: [Command; 14] = [
    ("/help", "", "show this", &["/?"]),
    ("/new", "", "start a new conversation", &["/clear", "/reset"]),
    ("/model", "[NAME]", "list the models, or change to one", &[]),
    ("/attach", "FILE", "send a file with the next message", &[]),
    ("/retry", "", "ask the last question again", &[]),
    ("/undo", "", "take back the last question and its answer", &[]),
    ("/copy", "", "copy the last answer to the clipboard", &[]),
    ("/export", "FILE", "write the conversation to a new Markdown file", &[]),
    ("/sessions", "", "list the conversations", &[]),
    ("/resume", "KEY", "go on with another conversation", &[]),
    ("/thinking", "", "show what the model thinks, or hide it again", &[]),
    ("/usage", "", "show tokens and cost so far", &[]),
    ("/skills", "", "list the skills; /NAME runs one", &[]),
    ("/quit", "", "leave", &["/exit", "exit", "quit"]),
];

const KEYS: &str = "\
Ctrl-C stops an answer or clears the line; pressed again, it leaves, as does
Ctrl-D. Alt-Enter, or \\ at the end of a line, begins another line. Ctrl-R
searches what was typed before, Tab completes. @FILE in a message attaches the
file. To send a line that looks like a command, put a space before it.";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input {
    Message(String),
    /// A command's name, and the text behind it.
    Command(&'static str, String),
    /// Looks like a command; a hint.
    Unknown(String, String),
    Empty,
}

pub(super) fn parse(line: &str, skills: &[String]) -> Input {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Input::Empty;
    }
    if let Some(name) = find(line) {
        let rest = trimmed.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim());
        return Input::Command(name, rest.to_owned());
    }
    let (message, first) =
        (Input::Message(line.trim_end().to_owned()), line.split_whitespace().next().unwrap_or_default());
    // Paths such as /etc/hosts are text.
    let is_command = |word: &&str| !word.is_empty() && word.chars().all(|c| c.is_alphabetic() || c == '-');
    let Some(name) = first.strip_prefix('/').filter(|word| line.starts_with('/') && is_command(word)) else {
        return message;
    };
    if skills.iter().any(|skill| skill == name) {
        return message;
    }
    let words = words(skills);
    let near = nearest(first, words.iter().map(String::as_str));
    let hint = near.map_or("/help lists them".to_owned(), |near| format!("did you mean {near}?"));
    Input::Unknown(first.to_owned(), hint)
}

/// The command in a line.
pub(super) fn find(line: &str) -> Option<&'static str> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let (name, argument, ..) =
        COMMANDS.iter().find(|(name, .., aliases)| *name == first || aliases.contains(&first))?;
    let fits = line.starts_with(first) && (!argument.is_empty() || words.next().is_none());
    fits.then_some(*name)
}

/// The words that a command or a skill begins with.
pub(super) fn words(skills: &[String]) -> Vec<String> {
    let skills = skills.iter().map(|name| format!("/{name}"));
    COMMANDS.iter().map(|(name, ..)| (*name).to_owned()).chain(skills).collect()
}

pub(super) fn help() -> String {
    let line = |(name, argument, about, aliases): &Command| {
        let also = if aliases.is_empty() { String::new() } else { format!(" (also {})", aliases.join(", ")) };
        format!("{:<15} {about}{also}\n", format!("{name} {argument}"))
    };
    COMMANDS.iter().map(line).chain([KEYS.to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_a_skill_a_message_or_a_mistake() {
        let skills = ["weather".to_owned(), "write-news".to_owned()];
        let is = |line, name, rest: &str| {
            assert_eq!(parse(line, &skills), Input::Command(name, rest.to_owned()), "{line}");
        };
        is("/help", "/help", "");
        is("/clear ", "/new", "");
        is("/model  openai/gpt-5-mini ", "/model", "openai/gpt-5-mini");
        is("/export my talk.md", "/export", "my talk.md");
        is("/exit", "/quit", "");
        is("exit", "/quit", "");
        for line in ["exit the loop", "/etc/hosts: what is it?", " /help me", "// a comment", "/ 2", "quit smoking"] {
            assert_eq!(parse(line, &skills), Input::Message(line.to_owned()));
        }
        for line in ["/weather in Berlin", "/write-news"] {
            assert_eq!(parse(line, &skills), Input::Message(line.to_owned()), "the agent adds the skill");
        }
        for (line, hint) in [
            ("/modle x", "did you mean /model?"),
            ("/wether", "did you mean /weather?"),
            ("/zzzzz", "/help lists them"),
        ] {
            let word = line.split(' ').next().unwrap();
            assert_eq!(parse(line, &skills), Input::Unknown(word.to_owned(), hint.to_owned()));
        }
        assert_eq!(parse(" \t", &skills), Input::Empty);
    }

    #[test]
    fn the_help_fits_a_narrow_terminal() {
        assert!(help().lines().all(|line| line.chars().count() < 80), "{}", help());
    }
}
