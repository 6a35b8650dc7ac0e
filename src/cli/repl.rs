//! The conversation at a terminal: a channel that asks for a line, sends it, and shows the turn until it is over.
//!
//! Lines are edited by the terminal itself, so whatever it can type arrives. It hands over a line at a time; lines that are
//! there together, as from a paste, are one message.

use std::io;
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::{Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::screen::Screen;
use super::terminal::{self, Show, Signals, Verbosity, View};
use crate::bus::{Channel, Inbound, Origin, Outbound};
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::message::Usage;
use crate::paths::session_name;
use crate::text::{nearest, one_line, printable};

const HELP: &str = "\
/new            begin a new conversation (/clear, /reset)
/model [NAME]   which model answers, or let another one
/usage          tokens and cost so far
/quit           end (/exit, exit, Ctrl-D)
Ctrl-C stops an answer. A line that ends in \\ goes on in the next one, and
lines that are pasted together are one message. To send a line that looks like
a command, put a space before it.";

/// The commands, and what else they are called.
const COMMANDS: [(&str, &[&str]); 5] = [
    ("/help", &["/?"]),
    ("/new", &["/clear", "/reset"]),
    ("/model", &[]),
    ("/usage", &[]),
    ("/quit", &["/exit", "exit", "quit"]),
];

/// How long to wait for more of a paste, which terminals may write in pieces.
const PASTE: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Why a conversation ended, or is interrupted for a while.
pub enum End {
    /// The user has left, with this exit code.
    Left(u8),
    /// The user wants to begin anew.
    New,
    /// The user wants this model to answer from now on.
    Model(String),
}

/// What goes on from one agent to the next when the model is changed.
pub struct Talk {
    pub screen: Screen,
    pub verbosity: Verbosity,
    pub signals: Signals,
    pub chat: String,
    /// The names in `model_list`.
    pub models: Vec<String>,
    lines: Lines,
    /// A turn was the last thing shown.
    answered: bool,
    spent: Usage,
    cost: Option<f64>,
    turns: u32,
}

impl Talk {
    pub fn new(screen: Screen, verbosity: Verbosity, signals: Signals, chat: String, models: Vec<String>) -> Self {
        let (lines, spent) = (Lines::default(), Usage::default());
        Self { screen, verbosity, signals, chat, models, lines, answered: false, spent, cost: None, turns: 0 }
    }
}

/// The conversation with one agent.
pub struct Repl {
    pub talk: Talk,
    /// As it is shown.
    pub model: String,
    pub result: Sender<(Talk, End)>,
}

impl Channel for Repl {
    fn start(self, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let (outbound, events) = channel();
        let Self { mut talk, model, result } = self;
        let talking = move || {
            let end = talk.go_on(&model, &inbound, &events);
            // Nothing more comes in: that ends the dispatcher.
            drop(inbound);
            drop(result.send((talk, end)));
        };
        Builder::new().spawn(talking).doing("starting a thread")?;
        Ok(outbound)
    }
}

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
enum Typed {
    Message(String),
    /// A command by its first name, and what stands behind it.
    Command(&'static str, String),
    /// Looks like a command and is none.
    Unknown(String),
    Nothing,
    End,
}

/// What to do at the first Ctrl-C where nothing can be stopped.
pub fn warn(screen: &Screen) {
    screen.note("(Ctrl-C once more, or Ctrl-D, ends it)");
    screen.prompt(PROMPT);
}

const PROMPT: &str = "> ";
const MORE: &str = ". ";

impl Talk {
    fn go_on(&mut self, model: &str, inbound: &Sender<Inbound>, events: &Receiver<Outbound>) -> End {
        loop {
            let typed = self.ask();
            match typed {
                Typed::Nothing => {}
                Typed::End => {
                    self.screen.end_line();
                    return End::Left(0);
                }
                Typed::Unknown(name) => {
                    let known = COMMANDS.iter().map(|(name, _)| *name);
                    let near =
                        nearest(&name, known).map_or("/help lists them".to_owned(), |n| format!("did you mean {n}?"));
                    self.screen.note(&format!("bantam: there is no command {}: {near}", one_line(&name, 40)));
                }
                Typed::Command("/quit", _) => return End::Left(0),
                Typed::Command("/model", name) if !name.is_empty() => return End::Model(name),
                Typed::Command("/model", _) => {
                    self.screen.note(&format!("bantam: {model} answers"));
                    let or = if self.models.is_empty() { "" } else { ", or " };
                    let names = self.models.join(", ");
                    self.screen.note(&format!("bantam: /model NAME takes another: {names}{or}vendor/model"));
                }
                Typed::Command("/new", _) => return End::New,
                Typed::Command("/usage", _) => self.screen.note(&self.usage()),
                Typed::Command(..) => self.screen.note(HELP),
                Typed::Message(text) => match self.turn(text, inbound, events) {
                    Ok(()) if self.signals.leaving() => return End::Left(ErrorKind::Interrupted.exit_code()),
                    Ok(()) => {}
                    Err(e) => self.fault(&e),
                },
            }
        }
    }

    fn turn(&mut self, text: String, inbound: &Sender<Inbound>, events: &Receiver<Outbound>) -> Result<()> {
        let origin = Origin { channel: "cli".to_owned(), chat: self.chat.clone() };
        let session = session_name(&origin.channel, &origin.chat)?;
        let question = Inbound::message(origin, session, text);
        let mut view = View::new(Show::Text, self.verbosity, self.screen.clone());
        self.signals.turn_begins(inbound, &question);
        view.begin();
        let gone = || Error::failed("the conversation's thread has gone");
        inbound.send(question).map_err(|_| gone())?;
        let response = terminal::whole(events, &mut view, &self.signals).ok_or_else(gone)?;
        let response = view.done(response);
        self.spent.add(response.usage);
        if let Some(cost) = response.cost {
            self.cost = Some(self.cost.unwrap_or(0.0) + cost);
        }
        (self.turns, self.answered) = (self.turns + 1, true);
        match response.error {
            Some(e) if e.kind == ErrorKind::Interrupted => self.screen.note("bantam: stopped"),
            Some(e) => self.fault(&e),
            None => {}
        }
        Ok(())
    }

    pub fn fault(&self, e: &Error) {
        self.screen.end_line();
        super::report(&Error { hint: e.hint.as_deref().map(at_the_prompt), ..e.clone() });
    }

    fn usage(&self) -> String {
        let Usage { prompt_tokens, completion_tokens, cached_tokens } = self.spent;
        let turns = match self.turns {
            1 => "1 turn".to_owned(),
            n => format!("{n} turns"),
        };
        let cost = self.cost.map_or(String::new(), |_| format!("; cost {}", super::usage::cost(self.cost)));
        format!(
            "bantam: {turns}: {prompt_tokens} tokens read ({cached_tokens} of them cached), {completion_tokens} written{cost}"
        )
    }

    /// Asks for a message. What was typed before a Ctrl-C is thrown away.
    fn ask(&mut self) -> Typed {
        self.signals.interrupted_at_prompt();
        // An answer stands by itself.
        self.screen.prompt(if std::mem::take(&mut self.answered) { "\n> " } else { PROMPT });
        let mut message: Option<String> = None;
        loop {
            let line = self.lines.next();
            self.screen.entered();
            if self.signals.interrupted_at_prompt() {
                message = None;
            }
            let mut text = match (message.take(), line) {
                (None, None) => return Typed::End,
                (Some(text), None) => return Typed::Message(text),
                (Some(text), Some(line)) => text + "\n" + &line,
                (None, Some(line)) => match understood(&line) {
                    Typed::Message(text) => text,
                    typed => return typed,
                },
            };
            if !self.lines.more_of_a_paste() {
                if !text.ends_with('\\') {
                    return Typed::Message(text.trim_end().to_owned());
                }
                text.pop();
                self.screen.prompt(MORE);
            }
            message = Some(text);
        }
    }
}

/// A hint to somebody who types commands and not flags: some flags are commands here, and others are for the next start.
fn at_the_prompt(hint: &str) -> String {
    let hint = hint.replace("another --model", "another model with /model NAME").replace("--new", "/new");
    let hint = hint.replace("with --", "by starting bantam with --");
    // What a shell is told now does not reach a program that runs already.
    if hint.starts_with("export ") { format!("/quit, then {hint}") } else { hint }
}

fn understood(line: &str) -> Typed {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Typed::Nothing;
    }
    if let Some(name) = command(line) {
        let rest = trimmed.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim());
        return Typed::Command(name, rest.to_owned());
    }
    let first = line.split_whitespace().next().unwrap_or_default();
    // A path is no command.
    let looks_like_one = line.starts_with('/') && first.len() > 1 && first[1..].chars().all(char::is_alphabetic);
    if looks_like_one { Typed::Unknown(first.to_owned()) } else { Typed::Message(line.to_owned()) }
}

/// The command that a line is. Only `/model` takes a word.
fn command(line: &str) -> Option<&'static str> {
    let mut words = line.split_whitespace();
    let first = words.next()?;
    let (name, _) = COMMANDS.iter().find(|(name, others)| *name == first || others.contains(&first))?;
    let fits = line.starts_with(first) && (*name == "/model" || words.next().is_none());
    fits.then_some(*name)
}

/// A key that no other conversation has: the time, and the process.
pub fn fresh_chat() -> String {
    let now = crate::text::rfc3339(SystemTime::now());
    let digits: String = now.chars().filter(char::is_ascii_digit).collect();
    let (date, time) = digits.split_at(8);
    format!("{date}-{time}-{}", std::process::id())
}

/// Standard input, line by line, with what is there already told apart from what is yet to come.
#[derive(Default)]
struct Lines {
    read: Vec<u8>,
    ended: bool,
}

impl Lines {
    /// The next line; `None` at the end.
    fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.read.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return Some(text_of(&line[..end]));
            }
            if self.ended {
                let rest = std::mem::take(&mut self.read);
                return (!rest.is_empty()).then(|| text_of(&rest));
            }
            let mut piece = [0; 4096];
            match rustix::io::read(io::stdin(), &mut piece) {
                // Ctrl-D behind a part of a line hands that part over; alone it is the end.
                Ok(0) => self.ended = true,
                Ok(n) => self.read.extend_from_slice(&piece[..n]),
                Err(Errno::INTR) => {}
                // The terminal has gone.
                Err(_) => self.ended = true,
            }
        }
    }

    /// Whether a further line has come together with the last one. A command in it ends the message before it.
    fn more_of_a_paste(&mut self) -> bool {
        let started = Instant::now();
        while !self.read.contains(&b'\n') && !self.ended {
            let stdin = io::stdin();
            let mut fds = [PollFd::from_borrowed_fd(stdin.as_fd(), PollFlags::IN)];
            if poll(&mut fds, Some(&PASTE)) != Ok(1) || started.elapsed().as_secs() > 0 {
                return false;
            }
            let mut piece = [0; 4096];
            match rustix::io::read(&stdin, &mut piece) {
                Ok(n) if n > 0 => self.read.extend_from_slice(&piece[..n]),
                _ => self.ended = true,
            }
        }
        let Some(end) = self.read.iter().position(|b| *b == b'\n') else { return false };
        let line = text_of(&self.read[..end]);
        !(line.starts_with('/') && command(&line).is_some())
    }
}

/// A line as text. Bytes that are not UTF-8, from a terminal of another kind, show as such; keys that the terminal could
/// not make text of lose what could steer it.
fn text_of(line: &[u8]) -> String {
    printable(&String::from_utf8_lossy(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_what_can_be_typed_here() {
        for (hint, told) in [
            ("try again later, or use another --model", "try again later, or use another model with /model NAME"),
            ("start a new conversation with --new", "start a new conversation with /new"),
            ("give it more with --timeout", "give it more by starting bantam with --timeout"),
            ("export OPENAI_API_KEY=...", "/quit, then export OPENAI_API_KEY=..."),
            ("check the key", "check the key"),
        ] {
            assert_eq!(at_the_prompt(hint), told);
        }
    }

    #[test]
    fn a_line_is_a_command_a_message_or_a_mistake() {
        let is = |line, name, rest: &str| assert_eq!(understood(line), Typed::Command(name, rest.to_owned()), "{line}");
        is("/help", "/help", "");
        is("/clear ", "/new", "");
        is("/model  openai/gpt-5-mini ", "/model", "openai/gpt-5-mini");
        is("/exit", "/quit", "");
        is("exit", "/quit", "");
        for line in ["exit the loop", "/etc/hosts: what is it?", " /help me", "// a comment", "/ 2", "quit smoking"] {
            assert_eq!(understood(line), Typed::Message(line.to_owned()));
        }
        assert_eq!(understood("/modle x"), Typed::Unknown("/modle".to_owned()));
        assert_eq!(understood(" \t"), Typed::Nothing);
    }

    #[test]
    fn two_fresh_conversations_have_harmless_names() {
        let name = session_name("cli", &fresh_chat()).unwrap();
        assert!(!name.contains('%'), "{name}");
    }
}
