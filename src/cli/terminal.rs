//! The terminal as a channel: one question goes in, and what happens is shown.
//!
//! Standard output holds the answer and nothing else: streamed on a terminal, otherwise printed whole once it is stored.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Instant;

use serde_json::{Value, json};

use super::screen::Screen;
use crate::agent::Agent;
use crate::bus::{Channel, Event, Inbound, Kind, Outbound, Response, TurnStop};
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::gateway::Dispatcher;
use crate::markdown::Markdown;
use crate::sys;
use crate::text::{millis, printable};

/// What stands on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    Text,
    /// The object that tells the whole turn.
    Json,
    /// A line for each event as it happens, and then that object.
    Events,
}

/// What stands on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

/// Asks one question, shows what happens, and tells how it ended.
pub fn ask(agent: Agent, inbound: Inbound, view: View, signals: Signals) -> Result<Response> {
    let (result, finished) = channel();
    let terminal = Terminal { inbound, view, signals, result };
    let agent = Arc::new(agent);
    // The program ends with this turn, and the kernel takes all of it back at once: not piece by piece.
    std::mem::forget(agent.clone());
    Dispatcher::one_shot(agent).serve(terminal)?;
    finished.recv().map_err(|_| Error::failed("the turn ended without a word"))
}

/// One question, and where its answer is reported.
struct Terminal {
    inbound: Inbound,
    view: View,
    signals: Signals,
    result: Sender<Response>,
}

impl Channel for Terminal {
    fn start(self, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self { inbound: question, mut view, signals, result } = self;
        let (outbound, events) = channel::<Outbound>();
        signals.turn_begins(&inbound, &question);
        view.begin();
        // The receiver is there: it was made a moment ago.
        drop(inbound.send(question));
        let showing = move || {
            // Nothing more comes in after this: that ends the dispatcher.
            if let Some(response) = whole(&events, &mut view, &signals) {
                drop(result.send(view.done(response)));
            }
        };
        Builder::new().spawn(showing).doing("starting a thread")?;
        Ok(outbound)
    }
}

/// Shows a turn, its background tasks and the answers to their reports, until nothing is left to come. What they came to
/// together; `None` when the dispatcher has gone.
pub fn whole(events: &Receiver<Outbound>, view: &mut View, signals: &Signals) -> Option<Response> {
    let started = Instant::now();
    let (mut whole, mut tasks, mut had_tasks): (Option<Response>, usize, bool) = (None, 0, false);
    for Outbound { event, .. } in events {
        match event {
            Event::Done(response) => {
                view.turn_ends(&response, tasks);
                match &mut whole {
                    None => whole = Some(*response),
                    Some(before) => before.join(*response),
                }
            }
            Event::Background(left) => {
                had_tasks = true;
                tasks = left;
                view.event(event);
            }
            event => view.event(event),
        }
        // A task is over after the answer to its report was shown.
        if tasks == 0 && whole.is_some() {
            break;
        }
    }
    let was_stopped = signals.turn_ends();
    let mut whole = whole?;
    if had_tasks {
        whole.ms = millis(started.elapsed());
    }
    if was_stopped && had_tasks && whole.error.is_none() {
        // The turn was over: its tasks were stopped.
        whole.stop = TurnStop::Cancelled;
        whole.error = Some(Error::new(ErrorKind::Interrupted, "stopped by the user"));
    }
    Some(whole)
}

/// What a signal does: it stops the turn that is under way, and the next one ends the program.
#[derive(Clone, Default)]
pub struct Signals(Arc<Mutex<Wanted>>);

#[derive(Default)]
struct Wanted {
    /// Where a stop goes while a turn is under way.
    turn: Option<(Sender<Inbound>, Inbound)>,
    /// It has been stopped already.
    stopped: bool,
    /// There was a Ctrl-C since the last line was entered.
    at_prompt: bool,
    /// The program is to end after the turn, by this signal.
    leaving: bool,
}

impl Signals {
    /// Holds the signals back from every thread started after this, and starts one that waits for them. `at_prompt` is
    /// called at the first Ctrl-C while no turn is under way; without it that ends the program.
    pub fn watch(screen: Screen, at_prompt: Option<fn(&Screen)>) -> Result<Self> {
        let signals = Self::default();
        let watched = signals.clone();
        sys::block_signals();
        let watching = move || {
            loop {
                let signal = sys::wait_for_signal();
                let mut wanted = watched.lock();
                match (&wanted.turn, at_prompt) {
                    (Some((sender, stop)), _) if !wanted.stopped => {
                        drop(sender.send(stop.clone()));
                        wanted.stopped = true;
                        wanted.leaving |= signal != libc::SIGINT;
                    }
                    (None, Some(warn)) if signal == libc::SIGINT && !wanted.at_prompt => {
                        wanted.at_prompt = true;
                        warn(&screen);
                    }
                    _ => {
                        screen.leave();
                        std::process::exit(ErrorKind::Interrupted.exit_code().into());
                    }
                }
            }
        };
        Builder::new().spawn(watching).doing("starting a thread")?;
        Ok(signals)
    }

    /// From now on a signal stops the turn that `question` begins.
    pub fn turn_begins(&self, inbound: &Sender<Inbound>, question: &Inbound) {
        let Inbound { origin, session, .. } = question;
        let (origin, session) = (origin.clone(), session.clone());
        let stop = Inbound { kind: Kind::Stop, ..Inbound::message(origin, session, String::new()) };
        let mut wanted = self.lock();
        wanted.turn = Some((inbound.clone(), stop));
        wanted.stopped = false;
    }

    /// Whether it was stopped.
    pub fn turn_ends(&self) -> bool {
        let mut wanted = self.lock();
        wanted.turn = None;
        wanted.stopped
    }

    /// Whether Ctrl-C was typed since this was last asked.
    pub fn interrupted_at_prompt(&self) -> bool {
        std::mem::take(&mut self.lock().at_prompt)
    }

    /// Whether somebody wants the program gone, not only the turn.
    pub fn leaving(&self) -> bool {
        self.lock().leaving
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows what happens in a turn.
pub struct View {
    show: Show,
    verbosity: Verbosity,
    screen: Screen,
    /// Text is shown as it comes.
    streams: bool,
    markdown: Option<Markdown>,
    then: Option<Then>,
    /// The whole answers so far.
    answers: String,
}

/// What is done with the end of a turn beside showing it. Its error is the turn's, unless that has one already.
type Then = Box<dyn FnOnce(&Response) -> Result<()> + Send>;

impl View {
    pub fn new(show: Show, verbosity: Verbosity, screen: Screen) -> Self {
        let streams = show == Show::Text && screen.stdout_is_terminal;
        let markdown = (streams && screen.style.ansi).then(|| Markdown::new(screen.style.look));
        Self { show, verbosity, screen, streams, markdown, answers: String::new(), then: None }
    }

    /// The same, doing something more at the end.
    pub fn then(mut self, then: impl FnOnce(&Response) -> Result<()> + Send + 'static) -> Self {
        self.then = Some(Box::new(then));
        self
    }

    /// The turn begins.
    pub fn begin(&self) {
        self.busy("thinking");
    }

    fn busy(&self, what: &str) {
        if self.show == Show::Text && self.verbosity != Verbosity::Quiet {
            self.screen.busy(what);
        }
    }

    pub fn event(&mut self, event: Event) {
        if self.show == Show::Events {
            // What cannot be written now is told at the end.
            drop(self.screen.answer(&format!("{}\n", line(&event))));
        }
        let verbose = self.verbosity == Verbosity::Verbose;
        let watched = verbose || self.verbosity == Verbosity::Normal && self.screen.stderr_is_terminal;
        match event {
            Event::Delta(text) if self.streams => self.delta(&printable(&text)),
            Event::DeltasDiscarded => self.text_ends(),
            Event::ToolStarted { summary } => {
                if watched {
                    self.detail(&summary);
                }
                self.busy(&summary);
            }
            Event::ToolFinished { name, ok, ms } => {
                if verbose {
                    self.detail(&format!("{name} {} in {ms} ms", if ok { "done" } else { "failed" }));
                }
                self.busy("thinking");
            }
            Event::Notice(text) if watched => self.screen.note(&format!("bantam: {text}")),
            Event::Trace(text) if verbose => self.detail(&text),
            _ => {}
        }
    }

    fn detail(&self, text: &str) {
        let bullet = if self.screen.style.look.utf8 { "·" } else { "-" };
        self.screen.faint(&format!("{bullet} {text}"));
    }

    fn delta(&mut self, text: &str) {
        let shown = self.markdown.as_mut().map(|markdown| markdown.push(text));
        // What cannot be shown now is stored all the same, and told at the end.
        drop(self.screen.answer(shown.as_deref().unwrap_or(text)));
    }

    fn text_ends(&mut self) {
        if let Some(markdown) = &mut self.markdown {
            drop(self.screen.answer(&markdown.finish()));
        }
        self.screen.end_line();
    }

    /// A turn is over. The reports of so many tasks are still to come.
    fn turn_ends(&mut self, response: &Response, tasks: usize) {
        self.text_ends();
        // Half an answer is none to a pipe.
        if !response.partial && !response.output.is_empty() {
            if !self.answers.is_empty() {
                self.answers.push('\n');
            }
            self.answers.push_str(&response.output);
            if !self.answers.ends_with('\n') {
                self.answers.push('\n');
            }
        }
        match tasks {
            0 => {}
            1 => self.busy("waiting for a background task"),
            n => self.busy(&format!("waiting for {n} background tasks")),
        }
    }

    /// Shows the end of it all. An answer that could not be written is the error of the whole.
    pub fn done(&mut self, mut response: Response) -> Response {
        // An object tells how all of it went; a text is not kept waiting.
        if self.show != Show::Text {
            self.finish(&mut response);
        }
        let shown = match self.show {
            Show::Json | Show::Events => self.screen.answer(&format!("{}\n", object(&response))),
            Show::Text if !self.streams && !self.answers.is_empty() => self.screen.answer(&self.answers),
            Show::Text => Ok(()),
        };
        if let (Err(e), None) = (shown, &response.error) {
            response.error = Some(e);
        }
        self.finish(&mut response);
        response
    }

    fn finish(&mut self, response: &mut Response) {
        match (self.then.take().map(|then| then(response)), &response.error) {
            (Some(Err(e)), None) => response.error = Some(e),
            (Some(Err(e)), Some(_)) => drop(super::report(&e)),
            _ => {}
        }
    }
}

/// The line of `--events` for an event.
fn line(event: &Event) -> Value {
    match event {
        Event::Delta(text) => json!({"event": "delta", "text": text}),
        Event::DeltasDiscarded => json!({"event": "deltas_discarded"}),
        Event::ToolStarted { summary } => json!({"event": "tool_started", "summary": summary}),
        Event::ToolFinished { name, ok, ms } => json!({"event": "tool_finished", "name": name, "ok": ok, "ms": ms}),
        Event::Notice(text) => json!({"event": "notice", "text": text}),
        Event::Trace(text) => json!({"event": "trace", "text": text}),
        Event::Background(tasks) => json!({"event": "background", "tasks": tasks}),
        Event::Done(response) => object(response),
    }
}

/// The object of `--json`.
fn object(response: &Response) -> Value {
    json!({
        "ok": response.error.is_none(),
        "output": response.output,
        "session": response.session,
        "model": response.model,
        "stop": response.stop.name(),
        "steps": response.steps,
        "tool_calls": response.tool_calls.iter()
            .map(|c| json!({"name": c.name, "ok": c.ok, "ms": c.ms})).collect::<Value>(),
        "usage": response.usage.to_json(),
        "cost": response.cost,
        "ms": response.ms,
        "error": response.error.as_ref().map(error),
    })
}

fn error(e: &Error) -> Value {
    json!({"kind": e.kind.name(), "message": e.message, "hint": e.hint})
}

/// The object of `--json` for a failure before there was a turn.
pub fn failure(e: &Error) -> Value {
    json!({
        "ok": false,
        "output": "",
        "session": null,
        "model": null,
        "stop": if e.kind == ErrorKind::Interrupted { "cancelled" } else { "error" },
        "steps": 0,
        "tool_calls": [],
        "usage": crate::message::Usage::default().to_json(),
        "cost": null,
        "ms": 0,
        "error": error(e),
    })
}
