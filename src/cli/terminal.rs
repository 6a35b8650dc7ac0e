//! The terminal as a channel: sends messages to the dispatcher and shows what happens.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::printer::{Output, Printer};
use super::screen::Screen;
use super::signals::Signals;
use crate::agent::Agent;
use crate::bus::{Channel, Event, Inbound, Outbound, Response, TurnStop};
use crate::config::Env;
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::gateway::Dispatcher;
use crate::text::millis;

/// How often the time of waiting is shown.
const TICK: Duration = Duration::from_secs(1);

/// Asks one question and prints the answer, but for the object of `--json`.
pub(super) fn ask(agent: Agent, question: Inbound, output: Output, env: &Env) -> Result<Response> {
    let screen = Screen::new(env);
    let signals = Signals::watch(screen.clone(), None)?;
    let mut printer = Printer::new(output, screen);
    let agent = Arc::new(agent);
    // The program ends with this turn: the kernel frees the agent faster.
    std::mem::forget(agent.clone());
    serve(Dispatcher::one_shot(agent), move |dispatcher| {
        dispatcher.turn(question, &mut printer, &signals)
    })?
}

/// Runs `conversation` on its own thread, next to the dispatcher.
pub(super) fn serve<T: Send + 'static>(
    dispatcher: Dispatcher,
    conversation: impl FnOnce(&Connection) -> T + Send + 'static,
) -> Result<T> {
    let (result, finished) = channel();
    let conversation = move |dispatcher: &Connection| drop(result.send(conversation(dispatcher)));
    Arc::new(dispatcher).serve(vec![Box::new(Terminal(conversation))])?;
    finished
        .recv()
        .map_err(|_| Error::failed("the conversation ended without a result"))
}

struct Terminal<F>(F);

impl<F: FnOnce(&Connection) + Send + 'static> Channel for Terminal<F> {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let (outbound, events) = channel();
        // Dropping the connection at the end ends the dispatcher.
        let conversation = move || self.0(&Connection { inbound, events });
        Builder::new()
            .spawn(conversation)
            .doing("starting a thread")?;
        Ok(outbound)
    }
}

/// The way to the dispatcher and back.
pub(super) struct Connection {
    inbound: Sender<Inbound>,
    events: Receiver<Outbound>,
}

impl Connection {
    /// Runs a turn and prints it, with its background tasks and the answers to their reports.
    pub(super) fn turn(
        &self,
        question: Inbound,
        printer: &mut Printer,
        signals: &Signals,
    ) -> Result<Response> {
        let gone = || Error::failed("the dispatcher ended before the turn");
        signals.turn_begins(&self.inbound, &question);
        printer.progress("thinking...");
        self.inbound.send(question).map_err(|_| gone())?;
        let response = self.follow(printer, signals).ok_or_else(gone)?;
        Ok(printer.finish(response))
    }

    /// Shows events until the turn and its tasks are done; `None` when the dispatcher ends first.
    fn follow(&self, printer: &mut Printer, signals: &Signals) -> Option<Response> {
        let started = Instant::now();
        let (mut total, mut tasks, mut had_tasks): (Option<Response>, usize, bool) =
            (None, 0, false);
        loop {
            let event = match self.events.recv_timeout(TICK) {
                Ok(Outbound { event, .. }) => event,
                Err(RecvTimeoutError::Timeout) => {
                    printer.tick();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if let Event::Background(left) = event {
                (tasks, had_tasks) = (left, true);
            }
            match event {
                Event::Done(response) => {
                    printer.turn_ends(&response, tasks);
                    match &mut total {
                        None => total = Some(*response),
                        Some(before) => before.join(*response),
                    }
                }
                event => printer.event(event),
            }
            // A task counts until the answer to its report is shown.
            if tasks == 0 && total.is_some() {
                break;
            }
        }
        let was_stopped = signals.turn_ends();
        let mut total = total?;
        if had_tasks {
            total.ms = millis(started.elapsed());
        }
        // The signal came after the turn: it stopped the tasks.
        if was_stopped && had_tasks && total.error.is_none() {
            total.stop = TurnStop::Cancelled;
            total.error = Some(Error::new(ErrorKind::Interrupted, "stopped by the user"));
        }
        Some(total)
    }
}
