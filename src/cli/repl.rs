//! The conversation at a terminal: reads a message or a command, runs the turn, and asks again.

use std::sync::{Arc, Mutex, PoisonError};

use super::agent::fresh_key;
use super::input::LineReader;
use super::printer::{Output, Printer, Verbosity};
use super::screen::Screen;
use super::signals::Signals;
use super::terminal::{Connection, serve};
use crate::agent::Agent;
use crate::app::factory::AgentFactory;
use crate::bus::{Inbound, Origin};
use crate::error::{Kind as ErrorKind, Result};
use crate::gateway::tasks::Tasks;
use crate::gateway::{Dispatcher, Handler};
use crate::message::{Usage, add_cost};
use crate::paths::session_name;
use crate::text::{nearest, one_line};
use crate::usage::Totals;

const HELP: &str = "\
/new            start a new conversation (/clear, /reset)
/model [NAME]   show or change the model
/usage          show tokens and cost so far
/quit           end (/exit, exit, Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ continues on the next, and
lines pasted together are one message. To send a line that looks like a
command, put a space before it.";

/// The commands and their aliases.
const COMMANDS: [(&str, &[&str]); 5] = [
    ("/help", &["/?"]),
    ("/new", &["/clear", "/reset"]),
    ("/model", &[]),
    ("/usage", &[]),
    ("/quit", &["/exit", "exit", "quit"]),
];

const PROMPT: &str = "> ";
const CONTINUATION: &str = ". ";

#[derive(Debug, PartialEq, Eq)]
enum Input {
    Message(String),
    /// A command's name, and the text behind it.
    Command(&'static str, String),
    /// Looks like a command.
    Unknown(String),
    Empty,
    End,
}

pub(super) struct Repl {
    pub factory: AgentFactory,
    /// The part of the session's name after `cli_`.
    pub chat: String,
    pub output: Output,
    /// The names in `model_list`.
    pub models: Vec<String>,
}

/// Talks until the user leaves. Returns the exit code.
pub(super) fn run(repl: Repl, agent: Agent) -> Result<u8> {
    let screen = Screen::new(&repl.factory.env);
    let signals = Signals::watch(screen.clone(), Some(warn))?;
    if repl.output.verbosity != Verbosity::Quiet {
        let (version, model) = (env!("CARGO_PKG_VERSION"), agent.model());
        screen.note(&format!("bantam {version}, {model}. /help lists the commands, Ctrl-D ends."));
    }
    let agent = Arc::new(Mutex::new(Arc::new(agent)));
    let (lines, total) = (LineReader::default(), Totals::default());
    let mut conversation =
        Conversation { repl, agent: agent.clone(), screen, signals, lines, total, follows_answer: false };
    serve(Dispatcher::new(agent, 1, Tasks::default()), move |dispatcher| conversation.run(dispatcher))
}

/// The first Ctrl-C at the prompt.
fn warn(screen: &Screen) {
    screen.note("(Ctrl-C once more, or Ctrl-D, ends)");
    screen.prompt(PROMPT);
}

/// The agent of the conversation, which `/model` replaces.
type CurrentAgent = Mutex<Arc<Agent>>;

impl Handler for CurrentAgent {
    fn agent(&self, _: &str) -> Result<Arc<Agent>> {
        Ok(self.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

struct Conversation {
    repl: Repl,
    agent: Arc<CurrentAgent>,
    screen: Screen,
    signals: Signals,
    lines: LineReader,
    /// Of its turns.
    total: Totals,
    /// An answer stands above the prompt.
    follows_answer: bool,
}

impl Conversation {
    fn run(&mut self, dispatcher: &Connection) -> u8 {
        loop {
            let done = match self.read() {
                Input::Empty => Ok(String::new()),
                Input::End => {
                    self.screen.end_line();
                    return 0;
                }
                Input::Command("/quit", _) => return 0,
                Input::Command("/new", _) => self.start_over(),
                Input::Command("/model", name) if name.is_empty() => self.model(),
                Input::Command("/model", name) => self.switch_model(&name),
                Input::Command("/usage", _) => Ok(self.usage()),
                Input::Command(..) => Ok(HELP.to_owned()),
                Input::Unknown(name) => {
                    let near = nearest(&name, COMMANDS.iter().map(|(name, _)| *name));
                    let hint = near.map_or("/help lists them".to_owned(), |near| format!("did you mean {near}?"));
                    Ok(format!("bantam: unknown command {}: {hint}", one_line(&name, 40)))
                }
                // Hints name variables; a key typed here would go to the model.
                Input::Message(text) if text.starts_with("export ") && text.contains("KEY=") => {
                    Ok("bantam: that line is for a shell: /quit first".to_owned())
                }
                Input::Message(text) => self.turn(dispatcher, text),
            };
            match done {
                Ok(note) if note.is_empty() => {}
                Ok(note) => self.screen.note(&note),
                Err(e) => {
                    self.screen.end_line();
                    super::report(&e);
                }
            }
            if self.signals.is_terminating() {
                return ErrorKind::Interrupted.exit_code();
            }
        }
    }

    fn turn(&mut self, dispatcher: &Connection, text: String) -> Result<String> {
        let origin = Origin { channel: "cli".to_owned(), chat: self.repl.chat.clone() };
        let question = Inbound::message(origin, self.session()?, text);
        let mut printer = Printer::new(self.repl.output, self.screen.clone());
        let response = dispatcher.turn(question, &mut printer, &self.signals)?;
        self.total.calls += 1;
        self.total.usage.add(response.usage);
        add_cost(&mut self.total.cost, response.cost);
        self.follows_answer = true;
        match response.error {
            Some(e) if e.kind == ErrorKind::Interrupted => Ok("bantam: stopped".to_owned()),
            Some(e) => Err(e),
            None => Ok(String::new()),
        }
    }

    fn session(&self) -> Result<String> {
        session_name("cli", &self.repl.chat)
    }

    fn start_over(&mut self) -> Result<String> {
        let mut kept = "";
        if self.repl.factory.options.memory.is_some() {
            self.repl.chat = fresh_key();
        } else if self.repl.factory.reset(&self.session()?)? {
            kept = "; the old one is kept";
        }
        self.set_model(None)?;
        Ok(format!("bantam: started a new conversation{kept}"))
    }

    fn model(&self) -> Result<String> {
        let (model, models) = (self.agent.agent("")?.model().to_owned(), self.repl.models.join(", "));
        let or = if models.is_empty() { "" } else { ", or " };
        Ok(format!("bantam: the model is {model}\nbantam: /model NAME changes it: {models}{or}vendor/model"))
    }

    fn switch_model(&self, name: &str) -> Result<String> {
        let model = self.set_model(Some(name))?;
        self.repl.factory.choose_model(&self.session()?, name)?;
        Ok(format!("bantam: the model is now {model}"))
    }

    /// Answers with this model or the configured one, and returns its name.
    fn set_model(&self, name: Option<&str>) -> Result<String> {
        let factory = &self.repl.factory;
        let agent = factory.build(&factory.load(name)?.config)?.agent;
        let model = agent.model().to_owned();
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(agent);
        Ok(model)
    }

    fn usage(&self) -> String {
        let Totals { calls, usage, cost } = &self.total;
        let Usage { prompt_tokens, completion_tokens, cached_tokens } = usage;
        let turns = if *calls == 1 { "1 turn".to_owned() } else { format!("{calls} turns") };
        let cost = cost.map_or(String::new(), |_| format!("; cost {}", super::usage::cost(*cost)));
        format!(
            "bantam: {turns}: {prompt_tokens} tokens read ({cached_tokens} of them cached), {completion_tokens} written{cost}"
        )
    }

    /// The next message or command. Ctrl-C discards what was typed before it.
    fn read(&mut self) -> Input {
        self.signals.take_interrupt();
        self.screen.prompt(if std::mem::take(&mut self.follows_answer) { "\n> " } else { PROMPT });
        let mut message: Option<String> = None;
        loop {
            let line = self.lines.next();
            if line.is_some() {
                self.screen.entered();
            }
            if self.signals.take_interrupt() {
                message = None;
            }
            let mut text = match (message.take(), line) {
                (None, None) => return Input::End,
                (Some(text), None) => return Input::Message(text),
                (Some(text), Some(line)) => text + "\n" + &line,
                (None, Some(line)) => match parse(&line) {
                    Input::Message(text) => text,
                    other => return other,
                },
            };
            // A pasted command ends the message before it.
            if self.lines.pasted().is_none_or(|line| line.starts_with('/') && command(&line).is_some()) {
                if !text.ends_with('\\') {
                    return Input::Message(text.trim_end().to_owned());
                }
                text.pop();
                self.screen.prompt(CONTINUATION);
            }
            message = Some(text);
        }
    }
}

fn parse(line: &str) -> Input {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Input::Empty;
    }
    if let Some(name) = command(line) {
        let rest = trimmed.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim());
        return Input::Command(name, rest.to_owned());
    }
    let first = line.split_whitespace().next().unwrap_or_default();
    // Paths such as /etc/hosts are text.
    let is_slash_word = line.starts_with('/') && first.len() > 1 && first[1..].chars().all(char::is_alphabetic);
    if is_slash_word { Input::Unknown(first.to_owned()) } else { Input::Message(line.to_owned()) }
}

/// The command in a line. Only `/model` takes an argument.
fn command(line: &str) -> Option<&'static str> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let (name, _) = COMMANDS.iter().find(|(name, aliases)| *name == first || aliases.contains(&first))?;
    let fits = line.starts_with(first) && (*name == "/model" || words.next().is_none());
    fits.then_some(*name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_command_a_message_or_a_mistake() {
        let is = |line, name, rest: &str| assert_eq!(parse(line), Input::Command(name, rest.to_owned()), "{line}");
        is("/help", "/help", "");
        is("/clear ", "/new", "");
        is("/model  openai/gpt-5-mini ", "/model", "openai/gpt-5-mini");
        is("/exit", "/quit", "");
        is("exit", "/quit", "");
        for line in ["exit the loop", "/etc/hosts: what is it?", " /help me", "// a comment", "/ 2", "quit smoking"] {
            assert_eq!(parse(line), Input::Message(line.to_owned()));
        }
        assert_eq!(parse("/modle x"), Input::Unknown("/modle".to_owned()));
        assert_eq!(parse(" \t"), Input::Empty);
    }
}
