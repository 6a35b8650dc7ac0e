//! `bantam agent`: ask once, or talk.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::SystemTime;

use serde_json::Value;

use super::args::{Args, Command, Flag};
use super::question::{Message, Question};
use super::repl::{self, End, Repl, Talk, fresh_chat};
use super::screen::Screen;
use super::terminal::{self, Show, Signals, Verbosity, View};
use super::{notice, report, tell};
use crate::agent::{Agent, Request};
use crate::app::deliver::Delivery;
use crate::app::{self, Keep, Ready};
use crate::bus::{Inbound, Origin};
use crate::cancel::Cancel;
use crate::config::{self, Env, Loaded, Origin as From, Override};
use crate::cron::Jobs;
use crate::disk::Durability;
use crate::error::{Context, Error, Result};
use crate::gateway::Dispatcher;
use crate::gateway::tasks::Tasks;
use crate::paths::{Home, session_name, telegram_chat};
use crate::session::{self, Entry, Files, Memory, Store, archive};

pub const COMMAND: Command = Command {
    name: "agent",
    words: "[TEXT...]",
    about: "ask once; without TEXT at a terminal, hold a conversation",
    flags: &[
        Flag::new(Some('m'), "message", "TEXT", "the question"),
        Flag::new(Some('s'), "session", "KEY", "continue the conversation KEY (default: default)"),
        Flag::new(None, "new", "", "start a conversation under a fresh key"),
        Flag::new(None, "no-session", "", "remember nothing"),
        Flag::new(None, "model", "NAME", "a model_list name or vendor/model"),
        Flag::new(Some('t'), "template", "NAME", "fill agent/prompts/NAME.md; {{input}} is the question"),
        Flag::new(Some('p'), "param", "key=value", "fill {{key}} in the template (repeatable)"),
        Flag::new(Some('a'), "attach", "FILE", "add a text file or an image (repeatable)"),
        Flag::new(None, "json", "", "print one JSON object, on success and on failure"),
        Flag::new(None, "events", "", "print JSON Lines of events, and then that object"),
        Flag::new(None, "dry-run", "", "print the request; send and store nothing"),
        Flag::new(None, "no-stream", "", "ask for the whole answer at once"),
        Flag::new(Some('q'), "quiet", "", "print the answer and errors only"),
        Flag::new(Some('v'), "verbose", "", "print tool calls, retries and timings to stderr"),
        Flag::new(None, "max-steps", "N", "limit requests; the last one offers no tools"),
        Flag::new(None, "timeout", "SECS", "limit the whole turn"),
        Flag::new(None, "max-tokens", "N", "limit one reply"),
        Flag::new(None, "budget-tokens", "N", "limit all requests and replies together"),
        Flag::new(None, "tools", "a,b", "offer the model only these tools"),
        Flag::new(None, "no-tools", "", "offer the model no tools"),
        Flag::new(Some('n'), "no-stdin", "", "do not read standard input"),
        Flag::new(None, "workspace", "DIR", "work in DIR"),
        Flag::new(None, "to", "telegram:CHAT", "also deliver the answer there"),
    ],
    run,
};

fn run(args: &Args, env: &Env) -> Result<u8> {
    match ask(args, env) {
        Ok(code) => Ok(code),
        // The object has one shape, on success and on failure, however early that was.
        Err(e) if args.has("json") || args.has("events") => {
            super::print(&format!("{}\n", terminal::failure(&e)))?;
            Ok(report(&e))
        }
        Err(e) => Err(e),
    }
}

/// One run of the command, before there is an agent.
struct Start<'a> {
    args: &'a Args,
    env: &'a Env,
    home: Home,
    file: Option<String>,
    /// The conversations of a run that keeps none on disk.
    memory: Memory,
}

fn ask(args: &Args, env: &Env) -> Result<u8> {
    for (one, other) in
        [("quiet", "verbose"), ("json", "events"), ("new", "session"), ("new", "no-session"), ("tools", "no-tools")]
    {
        args.exclude(one, other)?;
    }
    let verbosity = match (args.has("quiet"), args.has("verbose")) {
        (true, _) => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        _ => Verbosity::Normal,
    };
    // What is wrong with the flags is told before anything is read.
    overrides(args, None)?;
    tools(args)?;
    args.number("budget-tokens")?;
    let to = args.value("to").map(telegram_chat).transpose()?;
    let chat = match args.value("session") {
        None if args.has("new") => fresh_chat(),
        key => key.unwrap_or("default").to_owned(),
    };
    let origin = Origin { channel: "cli".to_owned(), chat };
    let session = session_name(&origin.channel, &origin.chat)?;
    let question = Question::read(args, verbosity)?;
    if to.is_some() && question.is_none() {
        return Err(Error::usage("--to delivers one answer, and there is no question").hint("ask it with -m \"...\""));
    }
    let home = config::home(env)?;
    let message = question.map(|question| question.message(args, &home)).transpose()?;
    let file = config::read(&home)?;
    let start = Start { args, env, home, file, memory: Memory::default() };
    let (loaded, ready) = start.agent_of(&session)?;
    if verbosity != Verbosity::Quiet {
        for line in loaded.warnings.iter().chain(&ready.notices) {
            tell(&format!("bantam: {line}"));
        }
    }
    if let (Some(Message { text, images }), true) = (&message, args.has("dry-run")) {
        let (input, images, cancel) = (text.clone(), images.clone(), Cancel::new(None));
        let request = Request { images, session, origin, cancel, ..Request::new(input, "") };
        return super::print(&format!("{}\n", ready.agent.preview(&request)?)).map(|()| 0);
    }
    let to = to.map(str::to_owned);
    // Whether it can be delivered at all is told before anything is asked.
    let delivery = match Delivery::new(&start.home, &loaded.config, env, notice) {
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
        delivery.iter().for_each(Delivery::send_posted);
        return code;
    };
    let show = match (args.has("json"), args.has("events")) {
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
        Dispatcher::new(Arc::new(agent.clone()), 1, Tasks::default()).serve(repl)?;
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
        if self.args.has("no-session") {
            *chat = fresh_chat();
            return Ok("");
        }
        let session = session_name("cli", chat)?;
        let kept = archive::reset(&self.home, &session, &Cancel::new(None), SystemTime::now())?;
        Ok(if kept.is_some() { "; the old one is kept" } else { "" })
    }

    /// Has the model `name` answer in the conversation `chat` when it is taken up again.
    fn note_model(&self, chat: &str, name: &str) -> Result<()> {
        if self.args.has("no-session") {
            return Ok(());
        }
        let store = Files::new(self.home.clone());
        let mut session = store.load(&session_name("cli", chat)?, &Cancel::new(None))?;
        store.append(&mut session, &[Entry::State(session::MODEL, name)], Durability::Now, SystemTime::now())
    }

    /// The agent for the conversation `session`: the model that was chosen in it answers, unless a flag names one.
    fn agent_of(&self, session: &str) -> Result<(Loaded, Ready)> {
        if self.args.has("model") || self.args.has("no-session") {
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
        let Self { args, env, home, file, memory } = self;
        let loaded = config::load_for(home, file.as_deref(), env, overrides(args, model)?)?;
        let ready = app::build(&app::Parts {
            home,
            config: &loaded.config,
            env,
            configured: file.is_some(),
            keep: if args.has("no-session") { Keep::InMemory(memory.clone()) } else { Keep::OnDisk },
            stream: !args.has("no-stream"),
            tools: tools(args)?,
            jobs: Some(Jobs::new(home.clone(), env)),
            budget_tokens: args.number("budget-tokens")?,
        })?;
        if !args.has("dry-run") {
            app::make_workspace(home, &loaded.config, env)?;
        }
        Ok((loaded, ready))
    }
}

/// The tools that were chosen, if any were.
fn tools(args: &Args) -> Result<Option<Vec<String>>> {
    if args.has("no-tools") {
        return Ok(Some(Vec::new()));
    }
    if !args.has("tools") {
        return Ok(None);
    }
    let names = args.values("tools").flat_map(|list| list.split(',')).map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.is_empty() {
        return Err(Error::usage("--tools names no tool").hint("--tools read_file,list_dir, or --no-tools"));
    }
    Ok(Some(names))
}

/// The flags that are settings, as the layer above the environment.
fn overrides(args: &Args, model: Option<&str>) -> Result<Vec<Override>> {
    let mut flags: Vec<Override> = Vec::new();
    if let Some(model) = model.or(args.value("model")) {
        flags.push(("agents.defaults.model_name", model.into(), From::Flag("--model")));
    }
    if let Some(dir) = args.value("workspace") {
        let dir = std::path::absolute(Path::new(dir)).doing("finding the workspace")?;
        let dir = dir.to_str().ok_or_else(|| Error::usage("the workspace's path is not UTF-8"))?;
        flags.push(("agents.defaults.workspace", dir.into(), From::Flag("--workspace")));
    }
    for (flag, path) in [
        ("max-steps", "agents.defaults.max_tool_iterations"),
        ("timeout", "agents.defaults.timeout"),
        ("max-tokens", "agents.defaults.max_tokens"),
    ] {
        if let Some(n) = args.number(flag)? {
            flags.push((path, Value::from(n), From::Flag(flag)));
        }
    }
    Ok(flags)
}
