//! A conversation at a terminal: reads a message or a command, runs the turn, and repeats.

use std::sync::Arc;
use std::time::SystemTime;

use super::agent;
use super::attach;
use super::editor::Editor;
use super::question;
use super::slash::{self, Input};
use super::ui::{Ui, report, terminal};
use crate::agent::{Agent, Request, TurnModels};
use crate::app::{self, App, Flags, StoredConversation, media};
use crate::cancel::Cancel;
use crate::error::{Kind as ErrorKind, Result};
use crate::message::add_cost;
use crate::session::Session;
use crate::text::rfc3339;
use crate::usage::Totals;

pub(super) struct Repl {
    pub ui: Ui,
    pub app: Arc<App>,
    pub flags: Flags,
    /// Key of the conversation.
    pub session: String,
    pub agent: Arc<Agent>,
    /// Names of the skills.
    skills: Vec<String>,
    /// Model chosen by `/model`, which overrides a flag; or empty.
    pub model: String,
    editor: Editor,
    /// Usage and cost of its turns.
    pub total: Totals,
    /// A question that failed without being stored.
    pub unanswered: Option<Request>,
}

impl Repl {
    pub(super) fn new(
        ui: &Ui,
        app: Arc<App>,
        flags: Flags,
        (agent, session): (Agent, String),
    ) -> Result<Self> {
        let skills = app::skills(app.loaded()?).all().skills.into_iter();
        let skills = skills.map(|skill| skill.name).collect();
        let history = flags.memory.is_none().then(|| app.home.history());
        // A signal ends the program while lines are edited.
        terminal::remember()?;
        Ok(Self {
            ui: ui.clone(),
            app,
            flags,
            session,
            agent: Arc::new(agent),
            skills,
            model: String::new(),
            editor: Editor::new(ui, history)?,
            total: Totals::default(),
            unanswered: None,
        })
    }

    /// Runs the conversation until the user quits. Returns the exit code.
    pub(super) fn run(&mut self) -> Result<u8> {
        if !self.ui.is_quiet() {
            let models = self.agent.models_for(&self.session)?;
            self.ui.warn(&models.warnings);
            let (version, model) = (env!("CARGO_PKG_VERSION"), models.first());
            self.ui.line(&format!(
                "bantam {version}, {model}. Type /help for commands, Ctrl-D to quit."
            ));
            self.describe();
        }
        loop {
            self.ui.end_line();
            let Some(line) = self.editor.read()? else {
                return Ok(0);
            };
            let done = match slash::parse(&line, &self.skills) {
                Ok(Input::Message(text)) if text.is_empty() => continue,
                Ok(Input::Message(text)) => self.message(&text),
                Ok(Input::Subcommand("/quit", _)) => return Ok(0),
                Ok(Input::Subcommand(command, argument)) => self.command(command, &argument),
                Err(e) => Err(e),
            };
            if let Err(mut e) = done {
                let hint = e.hint.map(|hint| hint.replace("bantam models", "/model"));
                e.hint = hint.map(|hint| hint.replace("bantam sessions list", "/resume"));
                self.ui.end_line();
                report(&e);
            }
            if self.ui.signals.is_terminating() {
                return Ok(ErrorKind::Interrupted.exit_code());
            }
        }
    }

    /// Shows what was asked last, unless the conversation is only in memory. A turn reports an unreadable one.
    pub(super) fn describe(&self) {
        if self.flags.memory.is_none() {
            if let Ok(session) = Session::peek(&self.app.store(), &self.session) {
                self.ui.note(&session.describe());
            }
        }
    }

    /// Returns the conversation for commands that change it.
    pub(super) fn stored(&self) -> StoredConversation<'_> {
        StoredConversation {
            app: &self.app,
            key: &self.session,
            memory: self.flags.memory.as_ref(),
        }
    }

    /// Asks the typed text, with the files that it names.
    fn message(&mut self, text: &str) -> Result<()> {
        let mut request = Request::new(text, &self.session);
        let named = attach::named_in(text, &self.app.env)?;
        // Pasted text may have another author, who must not choose files.
        if named.is_empty() {
            return self.turn(request);
        }
        if self.ui.yes_or_no(&attach::question(&named), false)? != Some(true) {
            self.ui.note("sent without the files");
            return self.turn(request);
        }
        let loaded = self.app.loaded()?;
        for (path, _) in named {
            let file = attach::read(path, loaded, None, &self.ui)?;
            let file = media::convert(&self.app, path, file)?;
            self.ui.warn(&attach::pdf_warning(path, &file));
            question::attach(&mut request, file, &self.agent.redactor);
        }
        self.turn(request)
    }

    /// Returns the models for the next message.
    pub(super) fn models(&self) -> Result<TurnModels> {
        if self.model.is_empty() {
            self.agent.models_for(&self.session)
        } else {
            self.agent.models.choose(&self.model, None)
        }
    }

    pub(super) fn turn(&mut self, mut request: Request) -> Result<()> {
        // An MCP server has reported new tools.
        if self.app.servers.take_changed() {
            let (agent, notices) = self.app.build(&self.flags)?;
            self.ui.warn(&notices);
            self.agent = Arc::new(agent);
        }
        let started = rfc3339(SystemTime::now());
        request.origin = agent::origin(&self.session);
        request.model.clone_from(&self.model);
        request.cancel = Cancel::default();
        let response = self.ui.turn(&self.agent, request.clone());
        self.total.calls += 1;
        self.total.usage.add(response.usage);
        add_cost(&mut self.total.cost, response.cost);
        self.unanswered = None;
        let Some(e) = response.error else {
            self.ui.end_line();
            self.ui.line("");
            return Ok(());
        };
        let asked = self.stored().last_question()?;
        if asked.is_none_or(|asked| asked.time < started) {
            self.unanswered = Some(request);
        }
        if e.kind == ErrorKind::Interrupted {
            self.ui.note("stopped");
            return Ok(());
        }
        Err(e)
    }
}
