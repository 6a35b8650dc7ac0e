//! Commands of a conversation at the terminal: `/new`, `/undo` and others.

use std::time::SystemTime;

use super::question::Question;
use super::repl::Conversation;
use super::{sessions, table};
use crate::error::{Error, Result};
use crate::message::{Message, Usage};
use crate::paths::{CLI, session_name, shown_key};
use crate::provider::catalog::{self, Offer};
use crate::session::archive::{self, Item};
use crate::session::{SessionInfo, fresh_key};
use crate::storage::segments;
use crate::text::{counted, not_found, to_single_line};
use crate::usage::Totals;

/// A command of a conversation.
pub(super) struct Slash {
    pub name: &'static str,
    /// Placeholder of the argument, such as `[NAME]`, or empty.
    pub args: &'static str,
    help: &'static str,
    /// Returns the text to show; `None` ends the conversation.
    pub run: fn(&mut Conversation, &str) -> Result<Option<String>>,
}

const COMMANDS: [Slash; 10] = [
    Slash {
        name: "/help",
        args: "",
        help: "list the commands and keys",
        run: |_, _| Ok(Some(help())),
    },
    Slash {
        name: "/new",
        args: "",
        help: "start a new conversation",
        run: |talk, _| talk.start_over().map(Some),
    },
    Slash {
        name: "/resume",
        args: "[KEY]",
        help: "list earlier conversations, or continue one",
        run: |talk, name| talk.resume(name).map(Some),
    },
    Slash {
        name: "/model",
        args: "[NAME]",
        help: "list the models, or change to one",
        run: |talk, name| talk.model(name).map(Some),
    },
    Slash {
        name: "/retry",
        args: "",
        help: "ask the last question again",
        run: |talk, _| talk.retry().map(Some),
    },
    Slash {
        name: "/undo",
        args: "",
        help: "undo the last question, its answer and its file changes",
        run: |talk, _| talk.undo().map(Some),
    },
    Slash {
        name: "/status",
        args: "",
        help: "show the conversation, its model and its context",
        run: |talk, _| talk.status().map(Some),
    },
    Slash {
        name: "/thinking",
        args: "",
        help: "show or hide the model's reasoning",
        run: |talk, _| Ok(Some(talk.toggle_thinking())),
    },
    Slash {
        name: "/usage",
        args: "",
        help: "show tokens and cost so far",
        run: |talk, _| Ok(Some(talk.usage())),
    },
    Slash {
        name: "/quit",
        args: "",
        help: "quit (also /exit and Ctrl-D)",
        run: |_, _| Ok(None),
    },
];

const KEYS: &str = "\
Ctrl-C stops an answer or clears the line; pressed again, it leaves, as does
Ctrl-D. Alt-Enter, or \\ at the end of a line, begins another line. Ctrl-R
searches what was typed before, Tab completes. @FILE in a message attaches the
file, once you agree. To send a line that looks like a command, put a
space before it.";

/// Maximum number of earlier parts, and of other conversations, in the list of `/resume`.
const MAX_EARLIER: usize = 10;

pub(super) enum Input {
    Message(String),
    /// A command, and the text after it.
    Command(&'static Slash, String),
    /// An unknown command.
    Unknown(Error),
    /// Several lines, probably pasted, whose first would be a command: its name.
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

/// Returns the command in a line.
fn find(line: &str) -> Option<&'static Slash> {
    let name = match line.split_whitespace().next()? {
        // "exit the loop" is a message.
        "exit" | "quit" if line.split_whitespace().count() == 1 => "/quit",
        "/exit" | "/q" if line.starts_with('/') => "/quit",
        "/clear" | "/reset" if line.starts_with('/') => "/new",
        name if line.starts_with(name) => name,
        _ => return None,
    };
    COMMANDS.iter().find(|command| command.name == name)
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|command| command.name)
}

fn help() -> String {
    let line = |command: &Slash| {
        let usage = format!("{} {}", command.name, command.args);
        format!("{usage:<15} {}\n", command.help)
    };
    COMMANDS.iter().map(line).chain([KEYS.to_owned()]).collect()
}

impl Conversation {
    fn start_over(&mut self) -> Result<String> {
        let mut kept = String::new();
        if self.flags.memory.is_some() {
            self.session = session_name(CLI, &fresh_key(SystemTime::now()))?;
        } else if self.stored().reset()? {
            let old = segments::earlier(&self.app.home.session(&self.session))?.next();
            let old = old.and_then(|old| Some(shown_key(&old.file_stem()?.to_string_lossy())));
            kept = format!("; /resume {} goes back", old.unwrap_or_default());
        }
        self.unanswered = None;
        self.model.clear();
        Ok(format!("bantam: started a new conversation{kept}"))
    }

    /// Lists earlier conversations, or continues one.
    fn resume(&mut self, name: &str) -> Result<String> {
        let home = &self.app.home;
        if self.flags.memory.is_some() {
            return Err(Error::usage("this conversation is not stored")
                .hint("start `bantam agent` without --no-session"));
        }
        if name.is_empty() {
            return self.list_earlier();
        }
        let key = match sessions::archived(home, name) {
            Some((key, part)) => {
                let key = archive::key_for(home, &key)?;
                sessions::reopen(home, &key, &part)?;
                key
            }
            None => archive::key_for(home, &archive::find(home, name)?)?,
        };
        self.session = key;
        self.unanswered = None;
        self.model.clear();
        let session = self.stored_session();
        let shown = session.map(|session| session.describe());
        Ok(format!("bantam: {}", shown.unwrap_or_default()))
    }

    /// Lists earlier parts of this conversation and the newest others of the command line.
    fn list_earlier(&self) -> Result<String> {
        let (home, current) = (&self.app.home, &self.session);
        let mut rows: Vec<[String; 2]> = Vec::new();
        for path in segments::earlier(&home.session(current))?.take(MAX_EARLIER) {
            let part = path.file_stem().unwrap_or_default().to_string_lossy();
            let mut first = archive::read(home, &part, None)?.entries.into_iter();
            let first = first.find_map(|entry| match entry.item {
                Item::Message(Message::User(user)) if user.title.is_empty() => Some(user.content),
                Item::Message(Message::User(user)) => Some(user.title),
                _ => None,
            });
            let first = first.unwrap_or_default();
            rows.extend(
                (!first.is_empty()).then(|| [shown_key(&part), to_single_line(&first, 60)]),
            );
        }
        let others = archive::list(home)?.into_iter();
        let is_other = |info: &SessionInfo| {
            info.key.starts_with("cli_") && info.key != *current && !info.title.is_empty()
        };
        let others = others.filter(is_other).take(MAX_EARLIER);
        rows.extend(others.map(|info| [shown_key(&info.key), info.title]));
        if rows.is_empty() {
            return Ok("bantam: no earlier conversation".to_owned());
        }
        let page = table(&[], &rows);
        Ok(format!("{page}bantam: /resume KEY continues one"))
    }

    /// Lists the models, or changes the model.
    fn model(&mut self, name: &str) -> Result<String> {
        if name.is_empty() {
            return self.list_models();
        }
        let loaded = self.app.loaded()?;
        // The configured model, unless an entry has this name.
        let default = loaded.config.agents.defaults.model_name.as_str();
        let name = match name {
            "default" if !default.is_empty() && !loaded.config.names().contains(&name) => default,
            name => name,
        };
        let name = catalog::whole_name(loaded, name)?;
        let models = self.agent.models().choose(&name, None)?;
        self.stored().choose_model(&name)?;
        self.model = name;
        Ok(format!("bantam: the model is now {}", models.first()))
    }

    /// Lists the models to choose from.
    fn list_models(&self) -> Result<String> {
        let models = self.models()?;
        let model = models.first();
        let loaded = self.app.loaded()?;
        let mut names = loaded.config.names();
        let found = loaded.config.named(model, &loaded.env);
        let offers = found.and_then(|model| catalog::offers(&model, loaded));
        let offers = offers.unwrap_or_default();
        let row = |offer: &Offer| [offer.name.clone(), offer.abilities()];
        let has_name = |offer: &&Offer| !offer.name.is_empty();
        let rows: Vec<_> = offers.iter().filter(has_name).map(row).collect();
        if !rows.is_empty() {
            names.push("one of these");
        }
        names.push("or provider/model");
        Ok(format!(
            "bantam: the model is {model}\n{}bantam: /model NAME changes it: {}; /model default goes back",
            table(&[], &rows),
            names.join(", ")
        ))
    }

    /// Undoes the last question and asks it again.
    fn retry(&mut self) -> Result<String> {
        let question = match self.unanswered.take() {
            Some(question) => question,
            None => match self.stored().undo()? {
                Some(user) => Question {
                    text: user.content,
                    title: user.title,
                    media: user.media,
                },
                None => return Ok("bantam: no question to retry".to_owned()),
            },
        };
        let asked = match question.title.as_str() {
            "" => &question.text,
            title => title,
        };
        self.ui
            .detail(&format!("asking again: {}", to_single_line(asked, 60)));
        self.turn(question)
    }

    fn undo(&mut self) -> Result<String> {
        self.unanswered = None;
        let Some(undone) = self.stored().undo_with_files()? else {
            return Ok("bantam: nothing to undo".to_owned());
        };
        let lines = undone.lines();
        let lines = lines.iter().map(|line| format!("bantam: {line}"));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    fn status(&self) -> Result<String> {
        let models = self.models()?;
        let model = models.first();
        let context = self.agent.window_use(&self.session)?;
        let mut lines = vec![format!("bantam: the model is {model}; context: {context}")];
        if let Some(session) = self.stored_session() {
            lines.insert(0, format!("bantam: {}", session.describe()));
        }
        Ok(lines.join("\n"))
    }

    fn toggle_thinking(&mut self) -> String {
        let thinking = &mut self.ui.thinking;
        *thinking = !*thinking;
        format!(
            "bantam: the model's reasoning is {}",
            if *thinking { "shown" } else { "hidden" }
        )
    }

    fn usage(&self) -> String {
        let Totals { calls, usage, cost } = &self.total;
        let Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
        } = usage;
        let turns = counted(usize::try_from(*calls).unwrap_or(usize::MAX), "turn");
        let cost = cost.map_or(String::new(), |_| {
            format!("; cost {}", super::usage::cost(*cost))
        });
        format!(
            "bantam: {turns}, {prompt_tokens} input tokens ({cached_tokens} cached), {completion_tokens} output tokens{cost}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes the kind of a line.
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
    fn input_line_is_classified() {
        let skills = ["weather".to_owned(), "write-news".to_owned()];
        let is = |line, name, rest: &str| {
            assert_eq!(kind(line, &skills), format!("{name} {rest}"));
        };
        is("/help", "/help", "");
        is("/new ", "/new", "");
        is("/model  openai/gpt-5-mini ", "/model", "openai/gpt-5-mini");
        is("quit", "/quit", "");
        is("/undo 3", "/undo", "3");
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
            ("/new\nwhat now?", "lines after /new"),
            ("/zzzzz x\ny", "lines after /zzzzz"),
            ("/weather in\nBerlin", "message /weather in\nBerlin"),
            (" /new\nx", "message  /new\nx"),
        ] {
            assert_eq!(kind(lines, &skills), expected);
        }
        assert_eq!(kind(" \t", &skills), "");
    }
}
