//! Runs a question of the command line and the tasks that follow from it on the thread of the command, and prints the events.

use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Instant;

use super::printer::{Output, Printer};
use super::term::screen::Screen;
use super::term::signals::Signals;
use crate::agent::{Agent, Request, TaskReport, TaskSink, Tasks};
use crate::bus::{Event, Origin, Response, TurnStop};
use crate::cancel::{Cancel, CancelReason};
use crate::config::Env;
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::text::millis;

/// Asks one question and prints the answer, except the object of `--json`.
pub(super) fn ask(agent: Agent, request: Request, output: Output, env: &Env) -> Result<Response> {
    let screen = Screen::new(env);
    let signals = Signals::watch(screen.clone(), false)?;
    let cancel = Cancel::new(Some(agent.limits().timeout));
    let request = Request { cancel, ..request };
    let printer = Arc::new(Printer::new(output, screen));
    Ok(turn(&Arc::new(agent), request, &printer, &signals))
}

/// Runs a turn and prints it, with its background tasks and the answers to their reports. `request.cancel` ends all of them.
pub(super) fn turn(
    agent: &Arc<Agent>,
    request: Request,
    printer: &Arc<Printer>,
    signals: &Signals,
) -> Response {
    let started = Instant::now();
    let show = |event: Event| printer.event(event);
    let (sender, reports) = mpsc::channel();
    let tasks = Tasks::with_sink(QuestionTasks {
        cancel: request.cancel.clone(),
        printer: printer.clone(),
        reports: sender,
    });
    let request = Request {
        tasks: Some(tasks.clone()),
        confirm: printer.clone().asker(request.cancel.clone()),
        ..request
    };
    signals.turn_begins(&request.cancel);
    printer.progress("thinking...");
    let mut response = agent.run(&request, &show);
    printer.turn_ends(&response, tasks.open(None));
    let had_tasks = tasks.open(None) > 0;
    while tasks.open(None) > 0 {
        let Ok(report) = reports.recv() else { break };
        if request.cancel.reason() == Some(CancelReason::Stopped) {
            tasks.close(&report.id).ok();
            continue;
        }
        let answer = agent.run(
            &Request {
                input: report.text,
                title: String::new(),
                media: Vec::new(),
                budget: Some(report.budget),
                ..request.clone()
            },
            &show,
        );
        tasks.close(&report.id).ok();
        let open = tasks.open(None);
        printer.turn_ends(&answer, open);
        printer.event(Event::Background(open));
        response.join(answer);
    }
    let was_stopped = signals.turn_ends();
    if had_tasks {
        response.ms = millis(started.elapsed());
        // The signal came after the turn, and stopped the tasks.
        if was_stopped && response.error.is_none() {
            response.stop = TurnStop::Cancelled;
            response.error = Some(Error::new(ErrorKind::Interrupted, "stopped by the user"));
        }
    }
    printer.finish(response)
}

/// Background tasks of one question. They end with it, and the command waits for their reports.
struct QuestionTasks {
    cancel: Cancel,
    printer: Arc<Printer>,
    reports: Sender<TaskReport>,
}

impl TaskSink for QuestionTasks {
    fn begin(&self) -> Cancel {
        self.cancel.clone()
    }

    fn event(&self, _: &Origin, event: Event) {
        self.printer.event(event);
    }

    fn end(&self, report: Option<TaskReport>) {
        if let Some(report) = report {
            // Ignored if the command has ended.
            self.reports.send(report).ok();
        }
    }
}
