//! `bantam agent`: ask once, or talk.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::SystemTime;

use serde_json::Value;

use super::args::{Command, Flag, Given};
use super::deliver::Delivery;
use super::question::{Message, Question};
use super::repl::{self, End, Repl, Talk, fresh_chat};
use super::screen::Screen;
use super::terminal::{self, Show, Signals, Verbosity, View};
use super::{report, say, tell};
use crate::agent::{Agent, Request};
use crate::app::{self, Keep, Ready};
use crate::bus::{Inbound, Origin};
use crate::cancel::Cancel;
use crate::config::{self, Env, Loaded, Origin as From, Override};
use crate::cron::Jobs;
use crate::disk::Durability;
use crate::error::{Context, Error, Result};
use crate::gateway::tasks::Tasks;
use crate::gateway::{self, SharedAgent};
use crate::paths::{Home, session_name, telegram_chat};
use crate::session::{self, Entry, Files, Memory, Store, archive};

pub const COMMAND: Command = Command {
    name: "agent",
    words: "[TEXT...]",
    about: "ask once, about what is on standard input too; with no TEXT at a terminal, talk",
    flags: &[
        Flag::new(Some('m'), "message", "TEXT", "the question"),
        Flag::new(Some('s'), "session", "KEY", "continue the conversation KEY (default: default)"),
        Flag::new(None, "new", "", "begin a conversation with a key of its own"),
        Flag::new(None, "no-session", "", "remember nothing"),
        Flag::new(None, "model", "NAME", "a model_list name or vendor/model"),
        Flag::new(
            Some('t'),
            "template",
            "NAME",
            "ask what agent/prompts/NAME.md says; {{input}} in it is the question",
        ),
        Flag::new(Some('p'), "param", "key=value", "what {{key}} in the template stands for (repeatable)"),
        Flag::new(Some('a'), "attach", "FILE", "a text file or an image to go with the question (repeatable)"),
        Flag::new(None, "json", "", "one JSON object on standard output, on success and on failure"),
        Flag::new(
            None,
            "events",
            "",
            "JSON Lines on standard output: what happens, as it happens; the last is --json's",
        ),
        Flag::new(None, "dry-run", "", "print the request that would go out; send and store nothing"),
        Flag::new(None, "no-stream", "", "ask for the whole answer at once"),
        Flag::new(Some('q'), "quiet", "", "nothing but the answer and errors"),
        Flag::new(Some('v'), "verbose", "", "tool calls, retries and timings on standard error"),
        Flag::new(None, "max-steps", "N", "requests to the model in this turn; the last is asked without tools"),
        Flag::new(None, "timeout", "SECS", "for the whole turn"),
        Flag::new(None, "max-tokens", "N", "of one reply"),
        Flag::new(None, "budget-tokens", "N", "of all requests and replies of the turn together"),
        Flag::new(None, "tools", "a,b", "offer the model these tools and no others"),
        Flag::new(None, "no-tools", "", "offer it none"),
        Flag::new(Some('n'), "no-stdin", "", "do not read standard input"),
        Flag::new(None, "workspace", "DIR", "work there instead"),
        Flag::new(None, "to", "telegram:CHAT", "deliver the answer there, too"),
    ],
    run,
};

fn run(given: &Given, env: &Env) -> Result<u8> {
    match ask(given, env) {
        Ok(code) => Ok(code),
        // The object has one shape, on success and on failure, however early that was.
        Err(e) if given.has("json") || given.has("events") => {
            super::print(&format!("{}\n", terminal::failure(&e)))?;
            Ok(report(&e))
        }
        Err(e) => Err(e),
    }
}

/// One run of the command, before there is an agent.
struct Start<'a> {
    given: &'a Given,
    env: &'a Env,
    home: Home,
    file: Option<String>,
    /// The conversations of a run that keeps none on disk.
    memory: Arc<Memory>,
}

fn ask(given: &Given, env: &Env) -> Result<u8> {
    for (one, other) in
        [("quiet", "verbose"), ("json", "events"), ("new", "session"), ("new", "no-session"), ("tools", "no-tools")]
    {
        if given.has(one) && given.has(other) {
            return Err(Error::usage(format!("--{one} and --{other} contradict each other")).hint("leave one out"));
        }
    }
    let verbosity = match (given.has("quiet"), given.has("verbose")) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    // What is wrong with the flags is told before anything is read.
    overrides(given, None)?;
    tools(given)?;
    given.number("budget-tokens")?;
    let to = given.value("to").map(telegram_chat).transpose()?;
    let chat = match given.value("session") {
        None if given.has("new") => fresh_chat(),
        key => key.unwrap_or("default").to_owned(),
    };
    let origin = Origin { channel: "cli".to_owned(), chat };
    let session = session_name(&origin.channel, &origin.chat)?;
    let question = Question::read(given, verbosity)?;
    if to.is_some() && question.is_none() {
        return Err(Error::usage("--to delivers one answer, and there is no question").hint("ask it with -m \"...\""));
    }
    let home = config::home(env)?;
    let message = question.map(|question| question.message(given, &home)).transpose()?;
    let file = config::read(&home)?;
    let start = Start { given, env, home, file, memory: Arc::default() };
    let (loaded, ready) = start.agent_of(&session)?;
    if verbosity != Verbosity::Quiet {
        for line in loaded.warnings.iter().chain(&ready.notices) {
            tell(&format!("bantam: {line}"));
        }
    }
    if let (Some(Message { text, images }), true) = (&message, given.has("dry-run")) {
        let (input, images, cancel) = (text.clone(), images.clone(), Cancel::new(None));
        let request = Request { images, session, origin, cancel, ..Request::new(input, "") };
        return say(&ready.agent.preview(&request)?);
    }
    let to = to.map(str::to_owned);
    // Whether it can be delivered at all is told before anything is asked.
    let delivery = match Delivery::new(&start.home, &loaded.config, env) {
        Err(e) if to.is_some() => return Err(e),
        delivery => delivery.ok(),
    };
    let screen = Screen::new(env);
    // From here on a signal ends the turn, not the program. Threads come after this.
    let signals = Signals::watch(screen.clone(), message.is_none().then_some(repl::warn))?;
    if verbosity != Verbosity::Quiet {
        screen.spin();
    }
    if verbosity == Verbosity::Verbose {
        screen.note(&format!("bantam: session {}", origin.chat));
    }
    let Some(Message { text, images: attachments }) = message else {
        let models = loaded.config.model_list.iter().map(|m| m.model_name.clone()).filter(|m| !m.is_empty()).collect();
        let talk = Talk::new(screen, verbosity, signals, origin.chat, models);
        let code = converse(&start, talk, ready.agent);
        delivery.iter().for_each(Delivery::rest);
        return code;
    };
    let show = match (given.has("json"), given.has("events")) {
        (true, _) => Show::Json,
        (_, true) => Show::Events,
        _ => Show::Text,
    };
    let asked = format!("The answer to a question on the command line, in the conversation {}", origin.chat);
    let inbound = Inbound { attachments, ..Inbound::message(origin, session, text) };
    let mut view = View::new(show, verbosity, screen);
    if let Some(delivery) = delivery {
        view = view.then(delivery.after(to.map(|chat| (chat, asked))));
    }
    let response = terminal::ask(ready.agent, inbound, view, signals)?;
    Ok(response.error.as_ref().map_or(0, report))
}

/// Turn after turn at the terminal. Another model is another agent; the conversation goes on.
fn converse(start: &Start, mut talk: Talk, agent: Agent) -> Result<u8> {
    let mut agent = Arc::new(agent);
    if talk.verbosity != Verbosity::Quiet {
        talk.screen.note(&format!(
            "bantam {}, {}. /help tells the commands, Ctrl-D ends it.",
            env!("CARGO_PKG_VERSION"),
            agent.model()
        ));
    }
    loop {
        let (result, ended) = channel();
        let repl = Repl { talk, model: agent.model().to_owned(), result };
        gateway::serve(Arc::new(SharedAgent(agent.clone())), 1, Tasks::default(), repl)?;
        let (back, end) = ended.recv().map_err(|_| Error::failed("the conversation ended without a word"))?;
        talk = back;
        match end {
            End::Left(code) => return Ok(code),
            End::New => match start.begin_anew(&mut talk.chat) {
                Ok(what) => talk.screen.note(&format!("bantam: a new conversation begins{what}")),
                Err(e) => talk.fault(&e),
            },
            End::Model(name) => match start.agent(Some(&name)) {
                Ok((_, ready)) => {
                    agent = Arc::new(ready.agent);
                    talk.screen.note(&format!("bantam: from now on {} answers", agent.model()));
                    if let Err(e) = start.note_model(&talk.chat, &name) {
                        talk.fault(&e);
                    }
                }
                Err(e) => talk.fault(&e),
            },
        }
    }
}

impl Start<'_> {
    /// Lets the conversation `chat` begin anew: on disk as its next segment, in memory under another name.
    /// Tells what became of the old one.
    fn begin_anew(&self, chat: &mut String) -> Result<&'static str> {
        if self.given.has("no-session") {
            *chat = fresh_chat();
            return Ok("");
        }
        let session = session_name("cli", chat)?;
        let kept = archive::reset(&self.home, &session, &Cancel::new(None), SystemTime::now())?;
        Ok(if kept.is_some() { "; the old one is kept" } else { "" })
    }

    /// Has the model `name` answer in the conversation `chat` when it is taken up again.
    fn note_model(&self, chat: &str, name: &str) -> Result<()> {
        if self.given.has("no-session") {
            return Ok(());
        }
        let store = Files::new(self.home.clone());
        let mut session = store.load(&session_name("cli", chat)?, &Cancel::new(None))?;
        store.append(&mut session, &[Entry::State(session::MODEL, name)], Durability::Now, SystemTime::now())
    }

    /// The agent for the conversation `session`: the model that was chosen in it answers, unless a flag names one.
    fn agent_of(&self, session: &str) -> Result<(Loaded, Ready)> {
        if self.given.has("model") || self.given.has("no-session") {
            return self.agent(None);
        }
        // A file that cannot be read is told of when it is loaded.
        let state = session::stored_state(&self.home, session).unwrap_or_default();
        let Some(chosen) = state.get(session::MODEL) else { return self.agent(None) };
        let e = match self.agent(Some(chosen)) {
            Err(e) => e,
            made => return made,
        };
        let (loaded, mut ready) = self.agent(None)?;
        let chosen = crate::text::one_line(chosen, 80);
        ready.notices.push(format!("the model of this conversation, {chosen}, is left out: {}", e.message));
        Ok((loaded, ready))
    }

    /// The agent, answering with `model` if one is named.
    fn agent(&self, model: Option<&str>) -> Result<(Loaded, Ready)> {
        let Self { given, env, home, file, memory } = self;
        let loaded = config::load_for(home, file.as_deref(), env, overrides(given, model)?)?;
        let ready = app::build(&app::Parts {
            home,
            config: &loaded.config,
            env,
            configured: file.is_some(),
            keep: if given.has("no-session") { Keep::InMemory(memory.clone()) } else { Keep::OnDisk },
            stream: !given.has("no-stream"),
            tools: tools(given)?,
            jobs: Some(Jobs::new(home.clone(), env)),
            budget_tokens: given.number("budget-tokens")?,
        })?;
        if !given.has("dry-run") {
            app::make_workspace(home, &loaded.config, env)?;
        }
        Ok((loaded, ready))
    }
}

/// The tools that were chosen, if any were.
fn tools(given: &Given) -> Result<Option<Vec<String>>> {
    if given.has("no-tools") {
        return Ok(Some(Vec::new()));
    }
    if !given.has("tools") {
        return Ok(None);
    }
    let names = given.values("tools").flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.is_empty() {
        return Err(Error::usage("--tools names no tool").hint("--tools read_file,list_dir, or --no-tools"));
    }
    Ok(Some(names))
}

/// The flags that are settings, as the layer above the environment.
fn overrides(given: &Given, model: Option<&str>) -> Result<Vec<Override>> {
    let mut flags: Vec<Override> = Vec::new();
    if let Some(model) = model.or(given.value("model")) {
        flags.push(("agents.defaults.model_name", model.into(), From::Flag("--model")));
    }
    if let Some(dir) = given.value("workspace") {
        let dir = std::path::absolute(Path::new(dir)).doing("finding the workspace")?;
        let dir = dir.to_str().ok_or_else(|| Error::usage("the workspace's path is not UTF-8"))?;
        flags.push(("agents.defaults.workspace", dir.into(), From::Flag("--workspace")));
    }
    for (flag, path) in [
        ("max-steps", "agents.defaults.max_tool_iterations"),
        ("timeout", "agents.defaults.timeout"),
        ("max-tokens", "agents.defaults.max_tokens"),
    ] {
        if let Some(n) = given.number(flag)? {
            flags.push((path, Value::from(n), From::Flag(flag)));
        }
    }
    Ok(flags)
}
