//! `bantam agent`: answers a question, or opens a conversation.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::args::Args;
use super::attach::{self, STDIN};
use super::question;
use super::repl::Repl;
use super::schema::AnswerSchema;
use super::ui::{Format, Ui, Verbosity, print, print_json, report, response_json};
use super::{notice, sessions};
use crate::agent::Request;
use crate::app::bot::Bot;
use crate::app::media::{self, Attachment};
use crate::app::{self, App, Flags, MODEL_NAME};
use crate::bus::{Origin, Response};
use crate::cancel::Cancel;
use crate::config::{Loaded, Override};
use crate::error::{Context, Error, Result};
use crate::json::parse_json;
use crate::paths::{CLI, Home, session_name, shown_key, telegram_chat};
use crate::provider::catalog::{self, learn_window};
use crate::session::{MemoryStore, archive, fresh_key};
use crate::sync;
use crate::telegram::deliver::Delivery;
use crate::text::{not_found_near, to_single_line};

/// Flags of which one at most is given.
const EXCLUSIVE: [&[&str]; 5] = [
    &["quiet", "verbose"],
    &["json", "events"],
    &["schema", "events"],
    &["new", "continue", "session", "no-session"],
    &["tools", "no-tools"],
];

pub(super) fn run(app: &App, ui: &Ui, args: &Args) -> Result<u8> {
    let limit = args.number("timeout", 120)?.map(Duration::from_secs);
    // It counts from the start of the program.
    let deadline = limit.map(|limit| Cancel::new(Some(limit)));
    EXCLUSIVE.iter().try_for_each(|flags| args.exclude(flags))?;
    let ui = &ui.with_flags(args);
    let schema = AnswerSchema::read_from(args)?;
    let flags = flags(args, ui, schema.as_ref())?;
    let mut app = app.with_overrides(overrides(app, args)?);
    if args.has("dry-run") {
        app = app.without_keys()?;
    }
    let app = Arc::new(app);
    let to = args.value("to").map(telegram_chat).transpose()?;
    let to = to.map(str::to_owned);
    let question = question::read(args, &app.home, ui, deadline.as_ref())?;
    let session = session(args, &app.home, question.is_none())?;
    let run = Run {
        args,
        deadline,
        schema,
        ui,
        app,
        flags,
        to,
        session,
    };
    match question {
        Some(question) => run.ask(question),
        None => run.talk(),
    }
}

/// One run of the command.
struct Run<'a> {
    args: &'a Args,
    /// Ends the turn at the limit of `--timeout`.
    deadline: Option<Cancel>,
    schema: Option<AnswerSchema>,
    ui: &'a Ui,
    app: Arc<App>,
    flags: Flags,
    /// Destination of `--to`.
    to: Option<String>,
    /// Key of the conversation.
    session: String,
}

impl Run<'_> {
    /// Asks the question, and prints the answer.
    fn ask(self, mut request: Request) -> Result<u8> {
        let loaded = self.app.loaded()?;
        self.ui.signals.watch()?;
        // Only a conversation asks whether to attach it.
        let asked = question::asked(self.args)?;
        for (path, _) in attach::named_in(&asked, &self.app.env).unwrap_or_default() {
            let note = format!("@{path} is sent as text; -a {path} attaches the file");
            self.ui.note(&to_single_line(&note, 500));
        }
        self.attach(&mut request, loaded)?;
        let timeout = Duration::from_secs(loaded.config.agents.defaults.timeout);
        let deadline = self.deadline.clone();
        request.cancel = deadline.unwrap_or_else(|| Cancel::new(Some(timeout)));
        request.session.clone_from(&self.session);
        request.origin = origin(&self.session);
        let fields = self.schema.iter().flat_map(AnswerSchema::fields);
        request.sampling.extra_body = fields.collect();
        if self.args.has("dry-run") {
            return self.preview(&request);
        }
        *sync::lock(&self.app.servers.patience) = request.cancel.clone();
        self.ui.signals.set_turn(Some(&request.cancel));
        let (agent, notices) = self.app.build(&self.flags)?;
        let delivery = self.prepare(loaded, &notices)?;
        let agent = Arc::new(agent);
        // One budget for the question and for a second attempt at an answer that fits a schema.
        request.budget = Some(agent.budget(&self.session, CLI));
        let mut response = match &self.schema {
            None => self.ui.turn(&agent, request),
            Some(schema) => {
                // An answer is printed only after it was checked.
                let mut ui = self.ui.clone();
                ui.format = Format::Json;
                let asked = ui.turn(&agent, request.clone());
                schema.enforce(asked, |input| {
                    let again = Request {
                        title: String::new(),
                        media: Vec::new(),
                        input,
                        ..request
                    };
                    ui.turn(&agent, again)
                })
            }
        };
        if let Some(delivery) = delivery {
            let chat = shown_key(&self.session);
            let title =
                format!("The answer to a question on the command line, in the conversation {chat}");
            delivery.deliver(&mut response, self.to.clone().map(|chat| (chat, title)));
        }
        let is_answered = response.error.is_none();
        let code = self.finish(response)?;
        if is_answered {
            // Done after the answer, which must not wait for it.
            if let Some(model) = loaded.config.choose_model(&loaded.env).ok().flatten() {
                self.ui.warn(&learn_window(loaded, &model));
            }
        }
        Ok(code)
    }

    /// Prints the object of `--json` and the error, and returns the exit code.
    fn finish(&self, mut response: Response) -> Result<u8> {
        if self.flags.memory.is_some() {
            response.session.clear();
        }
        if self.ui.format != Format::Text {
            print_json(&response_json(&response))?;
        } else if self.schema.is_some() && response.error.is_none() {
            print(&format!("{}\n", response.output))?;
        }
        Ok(response.error.as_ref().map_or(0, report))
    }

    /// Prints the request without sending it.
    fn preview(&self, request: &Request) -> Result<u8> {
        let (agent, notices) = self.app.build(&self.flags)?;
        super::warn_before(self.ui, &self.app, &notices)?;
        print_json(&agent.preview(request)?).map(|()| 0)
    }

    /// Runs a conversation at the terminal.
    fn talk(self) -> Result<u8> {
        self.ui.signals.watch()?;
        let (agent, notices) = self.app.build(&self.flags)?;
        let delivery = self.prepare(self.app.loaded()?, &notices)?;
        let conversation = (agent, self.session);
        let code = Repl::new(self.ui, self.app, self.flags, conversation)?.run()?;
        delivery.iter().for_each(Delivery::send_posted);
        Ok(code)
    }

    /// Creates the workspace, and shows notices before the turn. Returns the delivery to the chat of `--to`.
    fn prepare(&self, loaded: &Loaded, notices: &[String]) -> Result<Option<Delivery>> {
        app::make_workspace(loaded)?;
        super::warn_before(self.ui, &self.app, notices)?;
        if self.flags.memory.is_none() && self.ui.verbosity == Verbosity::Verbose {
            let name = shown_key(&self.session);
            self.ui.note(&format!("session {name}"));
        }
        if self.to.is_none() && loaded.config.channels.telegram.token.is_empty() {
            return Ok(None);
        }
        Bot::delivery(loaded, self.to.as_deref(), notice)
    }

    /// Adds the file of standard input, and those of `--attach`. A dry run skips conversions.
    fn attach(&self, request: &mut Request, loaded: &Loaded) -> Result<()> {
        let redactor = loaded.redactor();
        let piped = std::mem::take(&mut request.media).into_iter();
        let piped = piped.map(|media| (STDIN, Ok(Attachment::Media(media))));
        let deadline = self.deadline.as_ref();
        let read = |path| (path, attach::read(path, loaded, deadline, self.ui));
        for (path, file) in piped.chain(self.args.values("attach").map(read)) {
            let mut file = file?;
            if !self.args.has("dry-run") {
                file = media::convert(&self.app, path, file)?;
                self.ui.warn(&attach::pdf_warning(path, &file));
            }
            question::attach(request, file, &redactor);
        }
        Ok(())
    }
}

/// Returns the source of the messages of a conversation of the command line.
pub(super) fn origin(session: &str) -> Origin {
    Origin {
        channel: CLI.to_owned(),
        chat: shown_key(session),
    }
}

/// Returns the key of the conversation. A question gets a new one, unless a flag names one.
fn session(args: &Args, home: &Home, is_talk: bool) -> Result<String> {
    if let Some(name) = args.value("session") {
        if args.has("dry-run") {
            return archive::key_for(home, name);
        }
        let reopened = sessions::reopen(home, name)?;
        return reopened.map_or_else(|| archive::key_for(home, name), Ok);
    }
    if args.has("continue") {
        return archive::newest(home, SystemTime::now())?
            .ok_or_else(|| Error::usage("no conversation to continue").hint("leave out `-c`"));
    }
    if is_talk && !args.has("new") {
        return session_name(CLI, "default");
    }
    session_name(CLI, &fresh_key(SystemTime::now()))
}

/// Returns how this command uses an agent.
fn flags(args: &Args, ui: &Ui, schema: Option<&AnswerSchema>) -> Result<Flags> {
    let budget_tokens = args.number("budget-tokens", 50_000)?;
    let memory = args.has("no-session").then(MemoryStore::default);
    let whole_replies = args.has("no-stream") || schema.is_some();
    let unseen = match ui.format {
        Format::Text => !ui.stdout_is_terminal,
        format => format == Format::Json,
    };
    let system = args.values("system").map(str::to_owned);
    let system: Vec<String> = system
        .chain(schema.map(AnswerSchema::instruction))
        .collect();
    let system = (!system.is_empty()).then(|| system.join("\n\n"));
    Ok(Flags {
        memory,
        whole_replies,
        unseen,
        tools: tools(args),
        budget_tokens,
        undo_of: Some("cli_"),
        system,
    })
}

fn tools(args: &Args) -> Option<Vec<String>> {
    let names = args.values("tools").flat_map(|list| list.split(','));
    let names = names.map(str::trim).filter(|name| !name.is_empty());
    (args.has("tools") || args.has("no-tools")).then(|| names.map(str::to_owned).collect())
}

/// Returns the settings overridden by flags.
fn overrides(app: &App, args: &Args) -> Result<Vec<Override>> {
    let mut overrides: Vec<Override> = Vec::new();
    if let Some(dir) = args.value("workspace") {
        let dir = std::path::absolute(dir).doing("finding the workspace")?;
        let shown = dir.display().to_string();
        if !dir.is_dir() {
            let how = if dir.exists() {
                "bantam -a"
            } else {
                "mkdir -p"
            };
            let how = format!("{how} {}", shell_words::quote(&shown));
            return Err(not_found_near("directory", &shown, None, &how).doing("--workspace"));
        }
        let path = "agents.defaults.workspace";
        overrides.push(Override::new("--workspace", path, shown));
    }
    for (flag, name) in [
        ("--max-steps", "max_tool_iterations"),
        ("--timeout", "timeout"),
        ("--max-tokens", "max_tokens"),
        ("--temperature", "temperature"),
    ] {
        if let Some(text) = args.value(&flag[2..]) {
            let value = parse_json(text).unwrap_or_else(|_| Value::from(text));
            let path = format!("agents.defaults.{name}");
            overrides.push(Override::new(flag, &path, value));
        }
    }
    if let Some(typed) = args.value("model") {
        let name = catalog::whole_name(app.loaded()?, typed)?;
        overrides.push(Override::new("--model", MODEL_NAME, name));
    }
    Ok(overrides)
}
