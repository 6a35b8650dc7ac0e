//! `bantam agent`: asks once, or holds a conversation.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::SystemTime;

use serde_json::Value;

use super::args::{Args, Command};
use super::attach;
use super::printer::{Format, Output, Verbosity, response_json};
use super::question::{self, Question};
use super::repl::{self, Repl};
use super::{json_line, notice, print, report, terminal};
use crate::agent::{Agent, Request};
use crate::app::deliver::Delivery;
use crate::app::factory::{AgentFactory, MODEL_NAME};
use crate::app::media;
use crate::app::{self, Options, Parts};
use crate::bus::{Inbound, Origin};
use crate::cancel::Cancel;
use crate::config::{self, Env, Origin as Source, Override};
use crate::error::{Context, Error, Result};
use crate::paths::{Home, session_name, telegram_chat};
use crate::session::{Memory, archive};
use crate::text::rfc3339;

pub(super) const COMMAND: Command = Command::row(
    "agent",
    "[TEXT...]",
    run,
    "ask, in the conversation \"default\" (-s KEY: in another, --no-session: in none); \
            without TEXT at a terminal, hold a conversation",
)
.with_flags(&[
    ("-m, --message TEXT", "the question"),
    (
        "-s, --session KEY",
        "continue the conversation KEY (default: default)",
    ),
    ("-c, --continue", "continue the newest conversation"),
    ("--new", "start a conversation under a fresh key"),
    ("--no-session", "remember nothing"),
    ("--model NAME", "a model_list name or vendor/model"),
    ("--system TEXT", "add TEXT to the system prompt"),
    ("--temperature X", "how varied the answer is: 0 is least"),
    (
        "-t, --template NAME",
        "fill agent/prompts/NAME.md; {{input}} is the question",
    ),
    (
        "-p, --param key=value",
        "fill {{key}} in the template (repeatable)",
    ),
    (
        "-a, --attach FILE",
        "add a text, an image, a PDF or a recording (repeatable)",
    ),
    ("--json", "print one JSON object, on success and on failure"),
    (
        "--events",
        "print JSON Lines of events, and then that object",
    ),
    ("--show-thinking", "show what the model thinks, on stderr"),
    ("--dry-run", "print the request; send and store nothing"),
    ("--no-stream", "ask for the whole answer at once"),
    ("-q, --quiet", "print the answer and errors only"),
    (
        "-v, --verbose",
        "print tool calls, retries and timings to stderr",
    ),
    (
        "--max-steps N",
        "limit requests; the last one offers no tools",
    ),
    ("--timeout SECS", "limit the whole turn"),
    ("--max-tokens N", "limit one reply"),
    (
        "--budget-tokens N",
        "limit all requests and replies together",
    ),
    ("--tools a,b", "offer the model only these tools"),
    ("--no-tools", "offer the model no tools"),
    ("-n, --no-stdin", "do not read standard input"),
    ("--workspace DIR", "work in DIR; . is where you are"),
    ("--to telegram:CHAT", "also deliver the answer there"),
])
.with_examples(&[
    "bantam agent \"What is in my workspace?\"",
    "dmesg | bantam agent --no-session \"Anything wrong here?\"",
    "bantam agent --workspace . \"Which functions have no test?\"",
    "bantam agent -a photo.jpg \"What is this plant?\"",
]);

/// Flags that exclude each other.
const EXCLUSIVE: [(&str, &str); 8] = [
    ("quiet", "verbose"),
    ("json", "events"),
    ("new", "session"),
    ("new", "no-session"),
    ("continue", "new"),
    ("continue", "session"),
    ("continue", "no-session"),
    ("tools", "no-tools"),
];

fn run(args: &Args, env: &Env) -> Result<u8> {
    EXCLUSIVE
        .iter()
        .try_for_each(|(one, other)| args.exclude(one, other))?;
    let (output, factory) = (Output::of(args), factory(args, env)?);
    let to = args
        .value("to")
        .map(telegram_chat)
        .transpose()?
        .map(str::to_owned);
    let chat = match args.value("session") {
        None if args.has("new") => fresh_key(),
        None if args.has("continue") => newest(&factory.home)?,
        key => key.unwrap_or("default").to_owned(),
    };
    let session = session_name("cli", &chat)?;
    let mut question = question::read(args, &factory.home, output.verbosity)?;
    if to.is_some() && question.is_none() {
        return Err(Error::usage("--to needs a question").hint("ask it with -m \"...\""));
    }
    let (loaded, ready) = factory.for_session(&session)?;
    let (config, agent) = (&loaded.config, ready.agent);
    attach(args, question.as_mut(), factory.parts(config), &agent)?;
    let origin = Origin {
        channel: "cli".to_owned(),
        chat: chat.clone(),
    };
    if let (Some(Question { text, media }), true) = (&question, args.has("dry-run")) {
        output.warn(loaded.warnings.iter().chain(&ready.notices));
        let (media, cancel) = (media.clone(), Cancel::new(None));
        let request = Request {
            media,
            session,
            origin,
            cancel,
            ..Request::new(text.clone(), "")
        };
        return print(&json_line(agent.preview(&request)?)).map(|()| 0);
    }
    app::make_workspace(factory.parts(config))?;
    super::warn_once(output, &factory, &loaded, &ready.notices);
    let delivery = Delivery::find(&factory.home, config, env, to.as_deref(), notice)?;
    let is_kept = factory.options.memory.is_none();
    if is_kept && output.verbosity == Verbosity::Verbose {
        notice(&format!("session {chat}"));
    }
    let Some(Question {
        text,
        media: attachments,
    }) = question
    else {
        let code = repl::run(Repl::new(factory, config, chat, session, output), agent);
        delivery.iter().for_each(Delivery::send_posted);
        return code;
    };
    let inbound = Inbound {
        attachments,
        ..Inbound::message(origin, session, text)
    };
    let mut response = terminal::ask(agent, inbound, output, env)?;
    if !is_kept {
        response.session.clear();
    }
    if let Some(delivery) = delivery {
        let title =
            format!("The answer to a question on the command line, in the conversation {chat}");
        delivery.deliver(&mut response, to.map(|chat| (chat, title)));
    }
    if output.format != Format::Text {
        print(&json_line(response_json(&response)))?;
    }
    let Some(e) = &response.error else {
        // Not on the way of the answer.
        if let Some(model) = config.choose_model(env).ok().flatten() {
            output.warn(&app::learn_window(factory.parts(config), &model));
        }
        return Ok(0);
    };
    Ok(report(e))
}

/// Adds the files of `--attach`. A dry run converts none.
fn attach(args: &Args, question: Option<&mut Question>, parts: Parts, agent: &Agent) -> Result<()> {
    let Some(question) = question else {
        return Ok(());
    };
    for path in args.values("attach") {
        let file = attach::read(path, parts)?;
        question.attach(
            if args.has("dry-run") {
                file
            } else {
                media::convert(parts, path, file)?
            },
            agent,
        );
    }
    Ok(())
}

/// Applies the flags to the agents of this command.
fn factory(args: &Args, env: &Env) -> Result<AgentFactory> {
    let (overrides, tools, budget_tokens) = (
        overrides(args)?,
        tools(args)?,
        args.number("budget-tokens")?,
    );
    let memory = args.has("no-session").then(Memory::default);
    let whole_replies = args.has("no-stream");
    let format = Output::of(args).format;
    let unseen = format == Format::Json || format == Format::Text && !io::stdout().is_terminal();
    let system = args.value("system").map(str::to_owned);
    let options = Options {
        memory,
        whole_replies,
        unseen,
        tools,
        budget_tokens,
        system,
        ..Options::default()
    };
    Ok(AgentFactory {
        overrides,
        options,
        ..AgentFactory::new(&config::home(env)?, env)?
    })
}

/// The key of the conversation that was last used here.
fn newest(home: &Home) -> Result<String> {
    let list = archive::list(home)?;
    let newest = list
        .iter()
        .find_map(|session| session.key.strip_prefix("cli_"));
    newest
        .map(str::to_owned)
        .ok_or_else(|| Error::usage("no conversation to continue").hint("leave out -c"))
}

/// A key that no other conversation has: the time and the process.
pub(super) fn fresh_key() -> String {
    let digits: String = rfc3339(SystemTime::now())
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    let (date, time) = digits.split_at(8);
    format!("{date}-{time}-{}", std::process::id())
}

fn tools(args: &Args) -> Result<Option<Vec<String>>> {
    let names = args
        .values("tools")
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    if args.has("tools") && names.is_empty() {
        return Err(
            Error::usage("--tools names no tool").hint("--tools read_file,list_dir, or --no-tools")
        );
    }
    Ok((args.has("tools") || args.has("no-tools")).then_some(names))
}

/// The flags that override settings.
fn overrides(args: &Args) -> Result<Vec<Override>> {
    let mut overrides: Vec<Override> = Vec::new();
    if let Some(dir) = args.value("workspace") {
        let dir = std::path::absolute(Path::new(dir)).doing("finding the workspace")?;
        if !dir.is_dir() {
            let shown = dir.display().to_string();
            return Err(
                Error::usage(format!("--workspace: there is no directory {shown}"))
                    .hint(format!("mkdir -p {}", shell_words::quote(&shown))),
            );
        }
        let dir = dir
            .to_str()
            .ok_or_else(|| Error::usage("the workspace's path is not UTF-8"))?;
        overrides.push((
            "agents.defaults.workspace",
            dir.into(),
            Source::Flag("--workspace"),
        ));
    }
    overrides.extend(
        args.value("model")
            .map(|model| (MODEL_NAME, model.into(), Source::Flag("--model"))),
    );
    for (flag, path) in [
        ("max-steps", "agents.defaults.max_tool_iterations"),
        ("timeout", "agents.defaults.timeout"),
        ("max-tokens", "agents.defaults.max_tokens"),
    ] {
        if let Some(n) = args.number(flag)? {
            overrides.push((path, Value::from(n), Source::Flag(flag)));
        }
    }
    if let Some(text) = args.value("temperature") {
        let number = text
            .parse::<f64>()
            .ok()
            .filter(|number| (0.0..=10.0).contains(number))
            .ok_or_else(|| {
                Error::usage(format!("--temperature {text}: must be a number from 0"))
                    .hint("for example --temperature 0.2")
            })?;
        overrides.push((
            "agents.defaults.temperature",
            number.into(),
            Source::Flag("--temperature"),
        ));
    }
    Ok(overrides)
}
