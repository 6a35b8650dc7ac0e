//! Runs a question of the command line on the thread of the command, and shows its events.
//!
//! Standard output gets only the answer, streamed on a terminal, otherwise printed whole after it is stored.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde_json::{Value, json};

use super::lines::{json_line, print};
use super::{Format, Shown, Ui, Verbosity, terminal};
use crate::agent::{Agent, Confirm, Decision, PendingCall, Request, TaskReport, TaskSink, Tasks};
use crate::bus::{Event, Origin, Response, TurnStop};
use crate::cancel::{Cancel, CancelReason};
use crate::cli::error_json;
use crate::error::{Error, Kind as ErrorKind};
use crate::paths::shown_key;
use crate::sync;
use crate::text::{clip, millis, printable, to_single_line};

impl Ui {
    /// Runs a turn and shows it, with its background tasks and the answers to their reports. `request.cancel` ends all of them.
    pub(in crate::cli) fn turn(&self, agent: &Arc<Agent>, request: Request) -> Response {
        let started = Instant::now();
        let show = |event: Event| self.event(event);
        let (sender, reports) = mpsc::channel();
        let tasks = Tasks::with_sink(QuestionTasks {
            cancel: request.cancel.clone(),
            ui: self.clone(),
            reports: sender,
        });
        let request = Request {
            tasks: Some(tasks.clone()),
            confirm: self.asker(request.cancel.clone()),
            ..request
        };
        self.signals.set_turn(Some(&request.cancel));
        self.progress("thinking...");
        let mut response = agent.run(&request, &show);
        self.end_answer(&response, tasks.open(None));
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
            self.end_answer(&answer, open);
            self.event(Event::Background(open));
            response.join(answer);
        }
        self.signals.set_turn(None);
        response.ms = millis(started.elapsed());
        // The signal may come after the turn, and stop only its tasks.
        let was_stopped = request.cancel.reason() == Some(CancelReason::Stopped);
        if was_stopped && response.error.is_none() {
            response.stop = TurnStop::Cancelled;
            response.error = Some(Error::new(ErrorKind::Interrupted, "stopped by the user"));
        }
        if self.format == Format::Text && !self.streams() {
            let written = print(&std::mem::take(&mut self.lock().answers));
            response.error = response.error.or(written.err());
        }
        response
    }

    /// Whether text is shown as it arrives.
    fn streams(&self) -> bool {
        self.format == Format::Text && self.stdout_is_terminal
    }

    fn event(&self, event: Event) {
        if self.format == Format::Events {
            let mut shown = self.lock();
            shown.events += 1;
            let mut line = event_json(&event);
            line["number"] = shown.events.into();
            // A write error is reported at the end.
            drop(print(&json_line(&line)));
        }
        let verbose = self.verbosity == Verbosity::Verbose;
        let watched = verbose || !self.is_quiet() && self.stderr_is_terminal;
        match event {
            Event::Delta(text) if self.streams() => self.delta(&printable(&text)),
            Event::Thought(text) if self.thinking => self.prompt(&self.dimmed(&printable(&text))),
            Event::Progress(_) if self.streams() => self.end_text(),
            Event::Progress(text) if verbose && !text.trim().is_empty() => self.detail(text.trim()),
            Event::ToolStarted { summary } => {
                if watched {
                    self.detail(&summary);
                }
                self.progress("running...");
            }
            Event::ToolFinished { name, ok, ms } => {
                if verbose {
                    let done = if ok { "done" } else { "failed" };
                    self.detail(&format!("{name} {done} in {ms} ms"));
                }
                self.progress("thinking...");
            }
            Event::FileDiff(lines) if watched => {
                let lines: Vec<String> = lines.iter().map(|line| clip(line, 200).into()).collect();
                self.change(&lines, if verbose { 200 } else { 12 });
            }
            Event::Notice(text) if watched => self.note(&text),
            Event::Warning(text) if !self.is_quiet() => self.note(&to_single_line(&text, 500)),
            Event::Trace(text) if verbose => self.detail(&text),
            _ => {}
        }
    }

    /// Returns a function that asks the user about a call; `None` without a terminal.
    fn asker(&self, cancel: Cancel) -> Option<Arc<Confirm>> {
        if !self.stderr_is_terminal || !io::stdin().is_terminal() {
            return None;
        }
        let ui = self.clone();
        Some(Arc::new(move |pending: &PendingCall| {
            static ASKING: Mutex<()> = Mutex::new(());
            // Parallel calls may ask at the same time.
            let _one_at_a_time = sync::lock(&ASKING);
            if cancel.reason().is_some() {
                return Decision::Unanswered;
            }
            ui.end_line();
            ui.note(&pending.summary);
            // Shows all arguments, so that the user knows what is allowed.
            for line in pending.arguments.iter().flat_map(|text| text.lines()) {
                ui.line(&format!("  {}", printable(line)));
            }
            ui.change(&pending.change, usize::MAX);
            let tool = &pending.tool;
            let asked = format!(
                "Allow? [y]es / [n]o / [a]lways {tool} in this conversation (default: no) "
            );
            let answers = [
                ("", Decision::No),
                ("yes", Decision::Yes),
                ("no", Decision::No),
                ("always", Decision::Always),
            ];
            match ui.choose(&asked, &answers) {
                Ok(Some(decision)) => decision,
                Ok(None) => {
                    cancel.stop();
                    Decision::Unanswered
                }
                // Without an answer, the call is refused.
                Err(_) => Decision::No,
            }
        }))
    }

    fn delta(&self, text: &str) {
        let mut shown = self.lock();
        let rendered = self.has_colors().then(|| {
            let markdown = shown.markdown.get_or_insert_default();
            markdown.columns = terminal::columns();
            markdown.push(text)
        });
        shown.answer(rendered.as_deref().unwrap_or(text));
    }

    fn end_text(&self) {
        let mut shown = self.lock();
        if let Some(mut markdown) = shown.markdown.take() {
            shown.answer(&markdown.finish());
        }
        shown.end_line();
        shown.progress = None;
    }

    /// Ends the output of a turn. `tasks` background tasks are still running.
    fn end_answer(&self, response: &Response, tasks: usize) {
        self.end_text();
        // A pipe gets only complete answers.
        if !response.partial && !response.output.is_empty() {
            let answers = &mut self.lock().answers;
            if !answers.is_empty() {
                answers.push('\n');
            }
            answers.push_str(&response.output);
            if !response.output.ends_with('\n') {
                answers.push('\n');
            }
        }
        if tasks > 0 {
            self.progress("waiting for background tasks...");
        }
    }
}

impl Shown {
    /// Shows a part of an answer on the terminal. The text is stored even if writing fails.
    fn answer(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.erase();
        self.progress = None;
        if std::mem::take(&mut self.is_aside) {
            self.end_line();
        }
        self.is_open = !text.ends_with('\n');
        drop(print(text));
    }
}

/// Background tasks of one question. They end with it, and the command waits for their reports.
struct QuestionTasks {
    cancel: Cancel,
    ui: Ui,
    reports: Sender<TaskReport>,
}

impl TaskSink for QuestionTasks {
    fn begin(&self) -> Cancel {
        self.cancel.clone()
    }

    fn event(&self, _: &Origin, event: Event) {
        self.ui.event(event);
    }

    fn end(&self, report: Option<TaskReport>) {
        if let Some(report) = report {
            // Ignored if the command has ended.
            self.reports.send(report).ok();
        }
    }
}

/// Formats a line of `--events`.
fn event_json(event: &Event) -> Value {
    match event {
        Event::TurnStarted => json!({"event": "turn_started"}),
        Event::Delta(text) => json!({"event": "delta", "text": text}),
        Event::Thought(text) => json!({"event": "thought", "text": text}),
        Event::Progress(text) => json!({"event": "progress", "text": text}),
        Event::ToolStarted { summary } => json!({"event": "tool_started", "summary": summary}),
        Event::ToolFinished { name, ok, ms } => {
            json!({"event": "tool_finished", "name": name, "ok": ok, "ms": ms})
        }
        Event::FileDiff(lines) => json!({"event": "changed", "lines": lines}),
        Event::Notice(text) => json!({"event": "notice", "text": text}),
        Event::Warning(text) => json!({"event": "warning", "text": text}),
        Event::Trace(text) => json!({"event": "trace", "text": text}),
        Event::Background(tasks) => json!({"event": "background", "tasks": tasks}),
        Event::Done(response) => response_json(response),
    }
}

/// Formats the object of `--json`.
pub(in crate::cli) fn response_json(response: &Response) -> Value {
    json!({
        "ok": response.error.is_none(),
        "output": response.output,
        "session": Some(shown_key(&response.session)).filter(|session| !session.is_empty()),
        "model": Some(&response.model).filter(|model| !model.is_empty()),
        "stop": response.stop.name(),
        "steps": response.steps,
        "tool_calls": response.tool_calls.iter()
            .map(|c| json!({"name": c.name, "ok": c.ok, "ms": c.ms})).collect::<Value>(),
        "usage": response.usage.to_json(),
        "cost": response.cost,
        "ms": response.ms,
        "error": response.error.as_ref().map(error_json),
    })
}

/// Formats the object of `--json` for a failure before the turn.
pub(in crate::cli) fn failure_json(e: &Error) -> Value {
    response_json(&Response::failed("", e.clone()))
}
