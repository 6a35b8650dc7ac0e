//! Commands of a conversation at the terminal: `/new`, `/undo` and others.

use std::time::SystemTime;

use super::repl::Repl;
use super::{sessions, table};
use crate::agent::Request;
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::paths::{CLI, session_name, shown_key};
use crate::provider::catalog::{self, Offer};
use crate::session::{SessionInfo, archive, entries, fresh_key};
use crate::storage::segments;
use crate::text::{counted, not_found, printable, to_single_line};
use crate::usage::Totals;

/// Help of a conversation: commands, with the placeholder of their argument, and keys.
const HELP: &str = include_str!("texts/slash.txt");

/// Maximum number of earlier parts, and of other conversations, in the list of `/resume`.
const MAX_EARLIER: usize = 10;

pub(super) enum Input {
    Message(String),
    /// A command, and the text after it.
    Subcommand(&'static str, String),
}

/// Several lines are a message, because the first may be pasted.
///
/// # Errors
/// Returns an error for an unknown command.
pub(super) fn parse(line: &str, skills: &[String]) -> Result<Input> {
    let message = Ok(Input::Message(line.trim_end().to_owned()));
    let first = line.split_whitespace().next().unwrap_or_default();
    if line.trim().contains('\n') || !line.starts_with(first) {
        return message;
    }
    let rest = line[first.len()..].trim();
    let name = match first {
        // "exit the loop" is a message.
        "exit" | "quit" if rest.is_empty() => "/quit",
        "/exit" | "/q" => "/quit",
        "/clear" | "/reset" => "/new",
        name => name,
    };
    if let Some(command) = names().find(|command| *command == name) {
        return Ok(Input::Subcommand(command, rest.to_owned()));
    }
    // Paths such as /etc/hosts are text.
    let is_command = |word: &str| word.chars().all(|c| c.is_alphabetic() || c == '-');
    match first.strip_prefix('/') {
        Some(name) if !name.is_empty() && is_command(name) => {
            if skills.iter().any(|skill| skill == name) {
                return message;
            }
            let skills = skills.iter().map(|name| format!("/{name}"));
            let known: Vec<String> = names().map(str::to_owned).chain(skills).collect();
            let known = known.iter().map(String::as_str);
            Err(not_found("command", first, known, "/help"))
        }
        _ => message,
    }
}

/// Returns the names of the commands.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    let commands = HELP.lines().filter(|line| line.starts_with('/'));
    commands.filter_map(|line| line.split(' ').next())
}

impl Repl {
    pub(super) fn command(&mut self, name: &str, argument: &str) -> Result<()> {
        if !matches!(name, "/model" | "/resume") && !argument.is_empty() {
            return Err(Error::usage(format!("{name} does not take an argument"))
                .hint(format!("type `{name}` alone")));
        }
        match name {
            "/new" => self.start_over()?,
            "/resume" => self.resume(argument)?,
            "/model" => self.model(argument)?,
            "/retry" => self.retry()?,
            "/undo" => self.undo()?,
            "/status" => self.status()?,
            "/thinking" => {
                self.ui.thinking = !self.ui.thinking;
                let is = if self.ui.thinking { "shown" } else { "hidden" };
                self.ui.note(&format!("the model's reasoning is {is}"));
            }
            "/usage" => self.ui.note(&used(&self.total)),
            _ => self.ui.line(HELP.trim_end()),
        }
        Ok(())
    }

    fn start_over(&mut self) -> Result<()> {
        let (mut kept, now) = (String::new(), SystemTime::now());
        if self.flags.memory.is_some() {
            self.session = session_name(CLI, &fresh_key(now))?;
        } else {
            let old = archive::reset(&self.app.home, &self.session, &Cancel::new(None), now)?;
            let old = old.and_then(|old| Some(shown_key(&old.file_stem()?.to_string_lossy())));
            kept = old.map_or(kept, |old| format!("; /resume {old} goes back"));
        }
        self.unanswered = None;
        self.model.clear();
        self.ui.note(&format!("started a new conversation{kept}"));
        Ok(())
    }

    /// Lists earlier conversations, or continues one.
    fn resume(&mut self, name: &str) -> Result<()> {
        let home = &self.app.home;
        if self.flags.memory.is_some() {
            return Err(Error::usage("this conversation is not stored")
                .hint("start `bantam agent` without --no-session"));
        }
        if name.is_empty() {
            return self.list_earlier();
        }
        self.session = match sessions::reopen(home, name)? {
            Some(key) => key,
            None => archive::key_for(home, &archive::find(home, name)?)?,
        };
        self.unanswered = None;
        self.model.clear();
        self.describe();
        Ok(())
    }

    /// Lists earlier parts of this conversation and the newest others of the command line.
    fn list_earlier(&self) -> Result<()> {
        let (home, current) = (&self.app.home, &self.session);
        let mut rows: Vec<[String; 2]> = Vec::new();
        for path in segments::earlier(&home.session(current))?.take(MAX_EARLIER) {
            let part = path.file_stem().unwrap_or_default().to_string_lossy();
            let asked = entries(&path)?.find_map(|entry| entry.ok()?.title());
            rows.extend(asked.map(|asked| [shown_key(&part), asked]));
        }
        let others = archive::list(home)?.into_iter();
        let is_other = |info: &SessionInfo| {
            info.key.starts_with("cli_") && info.key != *current && !info.title.is_empty()
        };
        let others = others.filter(is_other).take(MAX_EARLIER);
        rows.extend(others.map(|info| [shown_key(&info.key), info.title]));
        if rows.is_empty() {
            self.ui.note("no earlier conversation");
        } else {
            self.ui.line(&printable(&table(&[], &rows)));
            let all = "`bantam sessions list` in a shell lists all";
            self.ui.note(&format!("/resume KEY continues one; {all}"));
        }
        Ok(())
    }

    /// Lists the models, or changes the model.
    fn model(&mut self, name: &str) -> Result<()> {
        if name.is_empty() {
            return self.list_models();
        }
        let (name, first) = self.stored().use_model(name)?;
        self.model = name;
        self.ui.note(&format!("the model is now {first}"));
        Ok(())
    }

    /// Lists the models to choose from.
    fn list_models(&self) -> Result<()> {
        let models = self.models()?;
        let model = models.first();
        self.ui.note(&format!("the model is {model}"));
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
            self.ui.line(&printable(&table(&[], &rows)));
        }
        names.push("or provider/model; /model default goes back");
        self.ui
            .note(&format!("/model NAME changes it: {}", names.join(", ")));
        Ok(())
    }

    /// Undoes the last question and asks it again.
    fn retry(&mut self) -> Result<()> {
        let request = match self.unanswered.take() {
            Some(request) => Some(request),
            None => self.stored().undo()?.map(|user| Request {
                title: user.title,
                media: user.media,
                ..Request::new(user.content, &self.session)
            }),
        };
        let Some(request) = request else {
            self.ui.note("no question to retry");
            return Ok(());
        };
        let asked = match request.title.as_str() {
            "" => &request.input,
            title => title,
        };
        let asked = to_single_line(asked, 60);
        self.ui.detail(&format!("asking again: {asked}"));
        self.turn(request)
    }

    fn undo(&mut self) -> Result<()> {
        self.unanswered = None;
        match self.stored().undo_with_files()? {
            Some(lines) => lines.iter().for_each(|line| self.ui.note(line)),
            None => self.ui.note("nothing to undo"),
        }
        Ok(())
    }

    fn status(&self) -> Result<()> {
        let status = crate::app::chat_status(&self.agent, &self.session, self.models()?.first())?;
        self.describe();
        self.ui.line(&printable(&status));
        Ok(())
    }
}

/// Describes the usage of a conversation's turns.
fn used(total: &Totals) -> String {
    let used = total.usage;
    let turns = counted(usize::try_from(total.calls).unwrap_or(usize::MAX), "turn");
    let cost = total.cost.map_or(String::new(), |_| {
        format!("; cost {}", super::usage::cost(total.cost))
    });
    format!(
        "{turns}, {} input tokens ({} cached), {} output tokens{cost}",
        used.prompt_tokens, used.cached_tokens, used.completion_tokens
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes the kind of a line.
    fn kind(line: &str, skills: &[String]) -> String {
        match parse(line, skills) {
            Ok(Input::Message(text)) => format!("message {text}"),
            Ok(Input::Subcommand(command, rest)) => format!("{command} {rest}"),
            Err(e) => format!("{}: {}", e.message, e.hint.unwrap()),
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
        is("/q", "/quit", "");
        is("/clear", "/new", "");
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
            ("/new\nwhat now?", "message /new\nwhat now?"),
            ("/weather in\nBerlin", "message /weather in\nBerlin"),
            (" /new\nx", "message  /new\nx"),
        ] {
            assert_eq!(kind(lines, &skills), expected);
        }
        assert_eq!(kind(" \t", &skills), "message ");
    }
}
