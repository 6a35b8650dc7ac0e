//! A conversation at a terminal: reads a message or a command, runs the turn, and repeats.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use super::attach;
use super::editor::{Completer, Editor, Line, PROMPT};
use super::printer::{Output, Printer, Verbosity};
use super::question::Question;
use super::slash::{self, Input, Slash};
use super::term::ask::yes_or_no;
use super::term::screen::Screen;
use super::term::signals::Signals;
use super::tty;
use super::turn;
use crate::agent::{Agent, Request, TurnModels};
use crate::app::{self, App, Flags, StoredConversation, media};
use crate::bus::Origin;
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::message::add_cost;
use crate::session::Session;
use crate::text::{rfc3339, to_single_line, without_controls};
use crate::usage::Totals;

pub(super) struct Repl {
    pub app: Arc<App>,
    pub flags: Flags,
    /// Key of the conversation, and its part after `cli_`.
    pub session: String,
    pub chat: String,
    pub output: Output,
    /// Names of the models in the settings.
    pub models: Vec<String>,
    /// Names of the skills.
    pub skills: Vec<String>,
}

/// Runs a conversation until the user quits. Returns the exit code.
pub(super) fn run(repl: Repl, agent: Agent, screen: Screen, signals: Signals) -> Result<u8> {
    if repl.output.verbosity != Verbosity::Quiet {
        let version = env!("CARGO_PKG_VERSION");
        let models = agent.models_for(&repl.session)?;
        let model = models.first();
        for warning in &models.warnings {
            screen.note(&format!("bantam: {warning}"));
        }
        screen.note(&format!(
            "bantam {version}, {model}. Type /help for commands, Ctrl-D to quit."
        ));
        if let Some(session) = repl.stored_session() {
            screen.note(&format!("bantam: {}", session.describe()));
        }
    }
    let editor = if screen.can_move_the_cursor(&repl.app.env) {
        tty::restore_on_panic();
        let is_kept = repl.flags.memory.is_none();
        let history = is_kept.then(|| repl.app.home.history());
        let env = repl.app.env.clone();
        Some(Editor::new(&screen, Completer { env }, history)?)
    } else {
        None
    };
    let mut conversation = Conversation {
        repl,
        agent: Arc::new(agent),
        model: String::new(),
        generation: 0,
        screen,
        signals,
        editor,
        total: Totals::default(),
        follows_answer: false,
        was_interrupted: false,
        unanswered: None,
    };
    let code = conversation.run();
    tty::restore();
    Ok(code)
}

impl Repl {
    pub(super) fn new(
        app: Arc<App>,
        flags: Flags,
        (chat, session): (String, String),
        output: Output,
    ) -> Result<Self> {
        let loaded = app.loaded()?;
        let models = loaded.config.names().into_iter();
        let models = models.map(str::to_owned).collect();
        let skills = app::skills(loaded)
            .all()
            .skills
            .into_iter()
            .map(|skill| skill.name)
            .collect();
        Ok(Self {
            app,
            flags,
            session,
            chat,
            output,
            models,
            skills,
        })
    }

    /// Returns the conversation, unless it is only in memory. An unreadable one is reported when its turn begins.
    pub(super) fn stored_session(&self) -> Option<Session> {
        if self.flags.memory.is_some() {
            return None;
        }
        Session::peek(&self.app.store(), &self.session).ok()
    }

    /// Returns the conversation for commands that change it.
    pub(super) fn stored(&self) -> StoredConversation<'_> {
        StoredConversation {
            app: &self.app,
            key: &self.session,
            memory: self.flags.memory.as_ref(),
        }
    }
}

pub(super) struct Conversation {
    pub repl: Repl,
    pub agent: Arc<Agent>,
    /// Model chosen by `/model`, which overrides a flag; or empty.
    pub model: String,
    /// Generation of the agent's MCP tools.
    generation: u64,
    pub screen: Screen,
    signals: Signals,
    /// Line editor; `None` on a terminal that cannot move its cursor.
    editor: Option<Editor>,
    /// Usage and cost of its turns.
    pub total: Totals,
    /// Whether an answer was printed before the prompt.
    follows_answer: bool,
    /// Whether Ctrl-C was the last key.
    was_interrupted: bool,
    /// A question that failed without being stored.
    pub unanswered: Option<Question>,
}

impl Conversation {
    fn run(&mut self) -> u8 {
        loop {
            let line = match self.read() {
                Ok(Line::Text(line)) => line,
                Ok(Line::Interrupted) => {
                    if std::mem::replace(&mut self.was_interrupted, true) {
                        return ErrorKind::Interrupted.exit_code();
                    }
                    self.screen.note("(press Ctrl-C again or Ctrl-D to quit)");
                    continue;
                }
                Ok(Line::End) => {
                    self.screen.end_line();
                    return 0;
                }
                Err(e) => return super::report(&e),
            };
            self.was_interrupted = false;
            let done = match slash::parse(&line, &self.repl.skills) {
                Input::Empty => continue,
                Input::Command(command, argument) => {
                    match self.command(command, &argument).transpose() {
                        Some(done) => done,
                        None => return 0,
                    }
                }
                Input::Unknown(e) => Err(e),
                Input::Lines(name) => Ok(format!(
                    "bantam: {} was not run, because more lines follow it: type it alone, or put a space before it to send it all as a message",
                    to_single_line(&name, 40)
                )),
                Input::Message(text) => self.message(&text),
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

    fn command(&mut self, command: &Slash, argument: &str) -> Result<Option<String>> {
        let name = command.name;
        if command.args.is_empty() && !argument.is_empty() {
            return Err(Error::usage(format!("{name} takes no argument"))
                .hint(format!("type `{name}` alone")));
        }
        (command.run)(self, argument)
    }

    /// Asks the typed text, with the files that it names.
    fn message(&mut self, text: &str) -> Result<String> {
        if let Some(path) = attach::missing_in(text, &self.repl.app.env) {
            let shown = to_single_line(path, 200);
            return Err(
                Error::usage(format!("nothing was sent: there is no file {shown}"))
                    .hint("correct its path, or leave out the @ to send the text as it is"),
            );
        }
        let mut question = Question {
            text: text.to_owned(),
            ..Question::default()
        };
        let named = attach::named_in(text, &self.repl.app.env);
        // Pasted text may have another author, who must not choose files.
        if !named.is_empty() {
            let may_attach = yes_or_no(&self.screen, &attach::question(&named), false)?;
            if may_attach == Some(true) {
                for (path, _) in named {
                    self.attach(path, &mut question)?;
                }
            } else {
                self.screen.note("bantam: sent without the files");
            }
        }
        self.turn(question)
    }

    fn attach(&self, path: &str, question: &mut Question) -> Result<()> {
        let loaded = self.repl.app.loaded()?;
        let file = attach::read(path, loaded, None, self.repl.output)?;
        let file = media::convert(loaded, path, file)?;
        self.repl.output.warn(&attach::pdf_warning(path, &file));
        question.attach(file, self.agent.redactor());
        let shown = to_single_line(path, 200);
        self.screen.note(&format!("bantam: attached {shown}"));
        Ok(())
    }

    /// Returns the models for the next message.
    pub(super) fn models(&self) -> Result<TurnModels> {
        if self.model.is_empty() {
            self.agent.models_for(&self.repl.session)
        } else {
            self.agent.models().choose(&self.model, None)
        }
    }

    /// Creates the agent again if an MCP server has reported new tools.
    fn take_changed_tools(&mut self) -> Result<()> {
        let app = &self.repl.app;
        let generation = app.servers.generation();
        if generation == self.generation {
            return Ok(());
        }
        let (agent, notices) = app.build(&self.repl.flags)?;
        for notice in &notices {
            self.screen.note(&format!("bantam: {notice}"));
        }
        self.agent = Arc::new(agent);
        self.generation = generation;
        Ok(())
    }

    pub(super) fn turn(&mut self, question: Question) -> Result<String> {
        self.take_changed_tools()?;
        let started = rfc3339(SystemTime::now());
        let origin = Origin {
            channel: "cli".to_owned(),
            chat: self.repl.chat.clone(),
        };
        let Question { text, title, media } = question.clone();
        let request = Request {
            title,
            media,
            origin,
            model: self.model.clone(),
            ..Request::new(text, &self.repl.session)
        };
        let printer = Arc::new(Printer::new(self.repl.output, self.screen.clone()));
        let response = turn::turn(&self.agent, request, &printer, &self.signals);
        self.total.calls += 1;
        self.total.usage.add(response.usage);
        add_cost(&mut self.total.cost, response.cost);
        self.follows_answer = true;
        self.unanswered = None;
        let Some(e) = response.error else {
            return Ok(String::new());
        };
        let asked = self.repl.stored().last_question()?;
        if asked.is_none_or(|asked| asked.time < started) {
            self.unanswered = Some(question);
        }
        if e.kind == ErrorKind::Interrupted {
            Ok("bantam: stopped".to_owned())
        } else {
            Err(e)
        }
    }

    /// Reads the next message or command.
    fn read(&mut self) -> Result<Line> {
        self.screen.end_line();
        if std::mem::take(&mut self.follows_answer) {
            self.screen.note("");
        }
        let Some(editor) = &mut self.editor else {
            return read_plain(&self.screen);
        };
        let outcome = editor.read()?;
        if let Line::Text(line) = &outcome {
            if !line.trim().is_empty() {
                if let Err(e) = editor.remember(line) {
                    self.screen
                        .note(&format!("bantam: {}", e.doing("adding to state/history")));
                }
            }
        }
        Ok(outcome)
    }
}

/// Reads lines that the terminal edits. A backslash at the end continues a message.
fn read_plain(screen: &Screen) -> Result<Line> {
    let (mut message, mut prompt) = (String::new(), PROMPT);
    loop {
        if screen.stderr_is_terminal {
            screen.draw(prompt);
        }
        // Bytes that are not UTF-8 end the reading like Ctrl-D.
        let read = io::stdin()
            .read_line(&mut message)
            .doing("reading what is typed")?;
        if message.is_empty() {
            return Ok(Line::End);
        }
        if message.ends_with('\n') {
            screen.entered();
            message.pop();
        }
        if read == 0 || !message.ends_with('\\') {
            return Ok(Line::Text(without_controls(&message)));
        }
        message.pop();
        message.push('\n');
        prompt = ". ";
    }
}
