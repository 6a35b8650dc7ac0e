//! The terminal as a channel: one question goes in, and what happens is shown.
//!
//! Standard output holds the answer and nothing else: streamed on a terminal, otherwise printed whole once it is stored.

use std::io::{self, IsTerminal};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};

use super::{is_interrupt, print, tell};
use crate::bus::{Channel, Event, Inbound, Kind, Outbound, Response};
use crate::error::Error;
use crate::sys;
use crate::text::printable;

/// What stands on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    Text,
    Json,
}

/// What stands on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

/// One question, and where its answer is reported.
pub struct Terminal {
    pub inbound: Inbound,
    pub show: Show,
    pub verbosity: Verbosity,
    pub result: Sender<Response>,
}

impl Channel for Terminal {
    fn start(self, inbound: Sender<Inbound>) -> Sender<Outbound> {
        let (outbound, events) = channel::<Outbound>();
        let stop = Inbound { kind: Kind::Stop, text: String::new(), ..self.inbound.clone() };
        // The receiver is there: it was made a moment ago.
        drop(inbound.send(self.inbound));
        let sender = Arc::new(Mutex::new(Some(inbound)));
        watch_signals(sender.clone(), stop);
        let mut view = View { show: self.show, verbosity: self.verbosity, streaming: Streaming::of(self.show) };
        let result = self.result;
        std::thread::spawn(move || {
            for Outbound { event, .. } in events {
                if let Event::Done(response) = event {
                    let response = view.done(*response);
                    // Nothing more comes in: that ends the dispatcher.
                    sender.lock().unwrap_or_else(PoisonError::into_inner).take();
                    drop(result.send(response));
                } else {
                    view.event(event);
                }
            }
        });
        outbound
    }
}

/// The first signal ends the turn; the second ends the program, turn or no turn.
fn watch_signals(sender: Arc<Mutex<Option<Sender<Inbound>>>>, stop: Inbound) {
    std::thread::spawn(move || {
        let mut before = false;
        loop {
            let signal = sys::wait_for_signal();
            let sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
            match (&*sender, before) {
                (Some(sender), false) => drop(sender.send(stop.clone())),
                _ => std::process::exit(128 + signal),
            }
            before = true;
        }
    });
}

/// Whether text is shown as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Streaming {
    No,
    /// Nothing is on the line yet.
    LineStart,
    /// The last thing shown did not end its line.
    InLine,
}

impl Streaming {
    fn of(show: Show) -> Self {
        if show == Show::Text && io::stdout().is_terminal() { Self::LineStart } else { Self::No }
    }
}

struct View {
    show: Show,
    verbosity: Verbosity,
    streaming: Streaming,
}

impl View {
    fn event(&mut self, event: Event) {
        let watched =
            self.verbosity == Verbosity::Verbose || self.verbosity == Verbosity::Normal && io::stderr().is_terminal();
        match event {
            Event::Delta(text) => self.delta(&text),
            Event::DeltasVoid => self.end_line(),
            Event::ToolStarted { summary } if watched => self.note(&format!("· {summary}")),
            Event::ToolFinished { name, ok, ms } if self.verbosity == Verbosity::Verbose => {
                let outcome = if ok { "done" } else { "failed" };
                self.note(&format!("· {name} {outcome} in {ms} ms"));
            }
            Event::Notice(text) if watched => self.note(&format!("bantam: {text}")),
            Event::Trace(text) if self.verbosity == Verbosity::Verbose => self.note(&format!("· {text}")),
            _ => {}
        }
    }

    /// A line on standard error that does not land in the middle of the answer.
    fn note(&mut self, line: &str) {
        self.end_line();
        tell(&printable(line));
    }

    fn delta(&mut self, text: &str) {
        if self.streaming == Streaming::No || text.is_empty() {
            return;
        }
        // What cannot be shown now is stored all the same, and told at the end.
        drop(print(&printable(text)));
        self.streaming = if text.ends_with('\n') { Streaming::LineStart } else { Streaming::InLine };
    }

    fn end_line(&mut self) {
        if self.streaming == Streaming::InLine {
            drop(print("\n"));
            self.streaming = Streaming::LineStart;
        }
    }

    /// Shows the end of the turn. An answer that could not be written is the error of the whole.
    fn done(&mut self, mut response: Response) -> Response {
        self.end_line();
        let shown = match self.show {
            Show::Json => print(&format!("{}\n", object(&response))),
            // Half an answer is none to a pipe.
            Show::Text if self.streaming == Streaming::No && !response.partial && !response.output.is_empty() => {
                let end = if response.output.ends_with('\n') { "" } else { "\n" };
                print(&format!("{}{end}", response.output))
            }
            Show::Text => Ok(()),
        };
        if let (Err(e), None) = (shown, &response.error) {
            response.error = Some(e);
        }
        response
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
        "cost": null,
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
        "stop": if is_interrupt(e) { "cancelled" } else { "error" },
        "steps": 0,
        "tool_calls": [],
        "usage": crate::message::Usage::default().to_json(),
        "cost": null,
        "ms": 0,
        "error": error(e),
    })
}
