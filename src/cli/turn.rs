//! Asks for the command line: runs a question with all that follows from it on the thread of the command, and prints what
//! happens.

use std::sync::Arc;
use std::time::Instant;

use super::background::BackgroundTasks;
use super::printer::{Output, Printer};
use super::term::screen::Screen;
use super::term::signals::Signals;
use crate::agent::{Agent, Background, Request};
use crate::bus::{Event, Response, TurnStop};
use crate::cancel::Cancel;
use crate::config::Env;
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::session::Session;
use crate::text::millis;

/// What came of a question.
pub(super) struct Answered {
    pub response: Response,
    /// The labels of background tasks that were stopped.
    pub stopped: Vec<String>,
}

/// Asks one question and prints the answer, but for the object of `--json`.
pub(super) fn ask(agent: Agent, request: Request, output: Output, env: &Env) -> Result<Response> {
    let screen = Screen::new(env);
    let signals = Signals::watch(screen.clone(), false)?;
    let cancel = Cancel::new(Some(agent.limits().timeout));
    let request = Request { cancel, ..request };
    let printer = Arc::new(Printer::new(output, screen));
    Ok(turn(&Arc::new(agent), None, request, &printer, &signals).response)
}

/// Runs a turn and prints it, with its background tasks and the answers to their reports. `request.cancel` ends all of them;
/// `session` is the conversation if it is loaded already.
pub(super) fn turn(
    agent: &Arc<Agent>,
    session: Option<Session>,
    request: Request,
    printer: &Arc<Printer>,
    signals: &Signals,
) -> Answered {
    let started = Instant::now();
    let show = |event: Event| printer.event(event);
    let tasks = BackgroundTasks::new(agent.clone(), request.cancel.clone(), printer.clone());
    let starter = tasks.clone();
    let is_job = request.origin.channel == "cron";
    let start: Arc<Background> = Arc::new(move |task, budget| {
        if is_job {
            return Err(Error::failed(
                "a scheduled job ends with its answer: use subagent, which waits",
            ));
        }
        starter.begin(task, budget)
    });
    let request = Request {
        background: Some(start),
        confirm: printer.clone().asker(request.cancel.clone()),
        ..request
    };
    signals.turn_begins(&request.cancel);
    printer.progress("thinking...");
    let mut response = match session {
        Some(session) => agent.run_in(session, &request, &show),
        None => agent.run(&request, &show),
    };
    printer.turn_ends(&response, tasks.count());
    let had_tasks = tasks.count() > 0;
    while let Some(report) = tasks.next_report() {
        let answer = agent.run(
            &Request {
                input: report.text.clone(),
                title: String::new(),
                media: Vec::new(),
                budget: Some(report.budget.clone()),
                ..request.clone()
            },
            &show,
        );
        tasks.answered(&report);
        printer.turn_ends(&answer, tasks.count());
        tasks.show_open();
        response.join(answer);
    }
    let was_stopped = signals.turn_ends();
    if had_tasks {
        response.ms = millis(started.elapsed());
        // The signal came after the turn: it stopped the tasks.
        if was_stopped && response.error.is_none() {
            response.stop = TurnStop::Cancelled;
            response.error = Some(Error::new(ErrorKind::Interrupted, "stopped by the user"));
        }
    }
    Answered {
        response: printer.finish(response),
        stopped: tasks.take_open(),
    }
}
