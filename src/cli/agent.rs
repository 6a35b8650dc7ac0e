//! `bantam agent`: ask once.

use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::Value;

use super::args::{Command, Flag, Given};
use super::terminal::{Show, Terminal, Verbosity};
use super::{report, tell, terminal};
use crate::app::{self, Keep};
use crate::bus::{Inbound, Kind, Origin};
use crate::config::{self, Config, Env, Origin as From, Override};
use crate::error::{Context, Error, Result};
use crate::gateway;
use crate::paths::session_name;
use crate::sys;

pub const COMMAND: Command = Command {
    name: "agent",
    words: "[TEXT...]",
    about: "ask once; text on standard input is the question, or goes with it",
    flags: &[
        Flag::new(Some('m'), "message", "TEXT", "the question"),
        Flag::new(Some('s'), "session", "KEY", "continue the conversation KEY (default: default)"),
        Flag::new(None, "no-session", "", "remember nothing"),
        Flag::new(None, "model", "NAME", "a model_list name or vendor/model"),
        Flag::new(None, "json", "", "one JSON object on standard output, on success and on failure"),
        Flag::new(None, "no-stream", "", "ask for the whole answer at once"),
        Flag::new(Some('q'), "quiet", "", "nothing but the answer and errors"),
        Flag::new(Some('v'), "verbose", "", "tool calls, retries and timings on standard error"),
        Flag::new(None, "max-steps", "N", "requests to the model in this turn; the last is asked without tools"),
        Flag::new(None, "timeout", "SECS", "for the whole turn"),
        Flag::new(None, "max-tokens", "N", "of one reply"),
        Flag::new(Some('n'), "no-stdin", "", "do not read standard input"),
        Flag::new(None, "workspace", "DIR", "work there instead"),
    ],
    run,
};

fn run(given: &Given, env: &Env) -> Result<u8> {
    let json = given.has("json");
    match ask(given, env) {
        Ok(code) => Ok(code),
        // The object has one shape, on success and on failure, however early that was.
        Err(e) if json => {
            super::print(&format!("{}\n", terminal::failure(&e)))?;
            Ok(report(&e))
        }
        Err(e) => Err(e),
    }
}

fn ask(given: &Given, env: &Env) -> Result<u8> {
    let verbosity = match (given.has("quiet"), given.has("verbose")) {
        (true, true) => return Err(Error::usage("--quiet and --verbose contradict each other").hint("leave one out")),
        (true, false) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Normal,
    };
    let flags = overrides(given)?;
    let origin = Origin { channel: "cli".to_owned(), chat: given.value("session").unwrap_or("default").to_owned() };
    let session = session_name(&origin.channel, &origin.chat)?;
    let text = message(given, verbosity)?;

    let home = config::home(env)?;
    let file = config::read(&home)?;
    let name = home.config().display().to_string();
    let loaded = Config::load(file.as_deref().map(|text| (name.as_str(), text)), env, flags)?;
    let ready = app::build(&app::Parts {
        home: &home,
        config: &loaded.config,
        env,
        configured: file.is_some(),
        keep: if given.has("no-session") { Keep::Nothing } else { Keep::OnDisk },
        stream: !given.has("no-stream"),
        tools: None,
        budget_tokens: None,
    })?;
    if verbosity != Verbosity::Quiet {
        for line in loaded.warnings.iter().chain(&ready.notices) {
            tell(&format!("bantam: {line}"));
        }
    }

    // From here on a signal ends the turn, not the program.
    sys::hold_signals();
    let (result, finished) = channel();
    let show = if given.has("json") { Show::Json } else { Show::Text };
    let inbound = Inbound { origin, session, text, kind: Kind::Message };
    gateway::serve(&Arc::new(ready.agent), Terminal { inbound, show, verbosity, result })?;
    let response = finished.recv().map_err(|_| Error::failed("the turn ended without a word"))?;
    Ok(response.error.as_ref().map_or(0, report))
}

/// The flags that are settings, as the layer above the environment.
fn overrides(given: &Given) -> Result<Vec<Override>> {
    let mut flags: Vec<Override> = Vec::new();
    if let Some(model) = given.value("model") {
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

/// How long standard input may say nothing before its reader says so.
const QUIET_INPUT: Duration = Duration::from_secs(3);
/// More than any model reads at once.
const MOST_INPUT: u64 = 8 << 20;

/// The question: from the flag, the words, or standard input; what a pipe brings besides goes below it.
fn message(given: &Given, verbosity: Verbosity) -> Result<String> {
    let words = given.words.join(" ");
    let asked = match (given.value("message"), words.is_empty()) {
        (Some(_), false) => return Err(Error::usage("the question is given twice").hint("use -m or words, not both")),
        (Some(text), true) => text.to_owned(),
        (None, _) => words,
    };
    let piped = if given.has("no-stdin") { String::new() } else { piped(verbosity)? };
    let text = match (asked.trim().is_empty(), piped.trim().is_empty()) {
        (true, true) => {
            return Err(Error::usage("there is no question").hint("bantam agent -m \"a question\", or pipe one in"));
        }
        (false, true) => asked,
        (true, false) => piped,
        (false, false) => format!("{asked}\n\n{piped}"),
    };
    Ok(text)
}

/// What a pipe brings; nothing from a terminal.
fn piped(verbosity: Verbosity) -> Result<String> {
    if io::stdin().is_terminal() {
        return Ok(String::new());
    }
    let (tx, rx) = channel();
    // On a thread, so that a starter that holds the pipe open and says nothing can be told apart from a slow one.
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut input = io::stdin().lock().take(MOST_INPUT + 1);
        let mut piece = [0; 16 << 10];
        let result = loop {
            match input.read(&mut piece) {
                Ok(0) => break Ok(()),
                Ok(n) => {
                    // The first bytes are enough to end the wait.
                    if bytes.is_empty() && tx.send(None).is_err() {
                        break Ok(());
                    }
                    bytes.extend_from_slice(&piece[..n]);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        // The receiver may have gone with the program.
        drop(tx.send(Some(result.map(|()| bytes))));
    });
    let mut got = rx.recv_timeout(QUIET_INPUT);
    if matches!(got, Err(RecvTimeoutError::Timeout)) {
        if verbosity != Verbosity::Quiet {
            tell("bantam: waiting for stdin (-n to skip)");
        }
        got = rx.recv().map_err(|_| RecvTimeoutError::Disconnected);
    }
    let bytes = loop {
        match got {
            Ok(Some(result)) => break result,
            Ok(None) => got = rx.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Err(_) => return Err(Error::failed("reading standard input: it ended without a word")),
        }
    };
    let bytes = match bytes {
        Ok(bytes) => bytes,
        // Closed from the start, as some schedulers do it: nothing was piped.
        Err(e) if e.raw_os_error() == Some(libc::EBADF) => return Ok(String::new()),
        Err(e) => return Err(Error::from(e).doing("reading standard input")),
    };
    if bytes.len() as u64 > MOST_INPUT {
        return Err(Error::usage(format!("standard input is larger than {} MB", MOST_INPUT >> 20))
            .hint("pass the part that matters, or put the file into the workspace and name it"));
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(Error::usage("standard input is binary, not text")
            .hint("put the file into the workspace and name it in the question")),
    }
}
