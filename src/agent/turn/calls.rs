//! Runs the calls of a turn. Neighboring parallel calls (which only read, or start subagents) run together, all others in
//! order. Each call gets one result.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::{Shared, Turn};
use crate::agent::media::Shown;
use crate::agent::{Agent, Decision, Request};
use crate::bus::{CallReport, Event};
use crate::cancel::CancelReason;
use crate::error::{Error, Kind, Result, contained};
use crate::message::{Message, ToolCall, ToolResult};
use crate::paths::TELEGRAM;
use crate::session::versions::Versions;
use crate::session::{OpenSession, Record, Session, Values};
use crate::storage::Durability;
use crate::sync;
use crate::text::{millis, to_single_line};
use crate::tool::{Call, CallContext, ToolOutput};

/// Maximum number of calls that run at the same time. Each may be a process, and retains its result until the earlier results
/// are stored.
const AT_ONCE: usize = 8;

/// Number of characters of a result that `-v` shows.
const SHOWN_OF_A_RESULT: usize = 200;

/// State of the calls of a turn.
#[derive(Default)]
pub(super) struct Calls {
    /// Named values of the conversation.
    values: Values,
    shown: Mutex<Shown>,
    /// Notice after the last result.
    pub notice: &'static str,
    /// Number of tokens at which the reply was cut off, if it was.
    pub cut_at: Option<u64>,
    /// Tool that needed approval while the user could not be asked.
    unasked: Option<String>,
    /// See [`CallContext::is_handed_over`].
    is_handed_over: AtomicBool,
    /// See [`CallContext::said`]; set with the first call.
    said: Option<String>,
}

/// A call that may run, or the reason why not.
pub(super) struct Admitted<'a> {
    pub call: Call<'a>,
    /// Reason, worded for the model.
    pub refused: Option<String>,
    /// The user allowed the call after seeing its changes.
    pub is_approved: bool,
}

impl Calls {
    pub(super) fn new(session: &Session) -> Self {
        Self {
            values: Values::new(&session.values),
            ..Self::default()
        }
    }

    /// Whether the turn is continued elsewhere.
    pub(super) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::SeqCst)
    }

    /// Returns the error of a turn in which a call was refused because the user could not be asked.
    pub(super) fn take_unasked(&mut self) -> Option<Error> {
        let tool = self.unasked.take()?;
        let what = format!("{tool} was not run: it needs confirmation, but nobody can be asked");
        let error = Error::new(Kind::Limit, what);
        Some(error.hint("ask at a terminal (`bantam agent -c`), or take it out of tools.confirm"))
    }

    /// Appends the values that calls have set.
    fn store_values(&self, open: &mut OpenSession) -> Result<()> {
        let values = self.values.take_changed();
        let entries: Vec<Record> = values
            .iter()
            .map(|(name, value)| Record::Value(name, value))
            .collect();
        if entries.is_empty() {
            return Ok(());
        }
        let now = SystemTime::now();
        open.append(&entries, Durability::Later, now)
    }

    /// Runs calls in parallel and passes their results to `append` in order.
    fn run_all(
        &self,
        turn: &Shared,
        calls: &[Admitted],
        mut append: impl FnMut((ToolResult, CallReport)) -> Result<()>,
    ) -> Result<()> {
        if let [only] = calls {
            return append(self.run_one(turn, only));
        }
        thread::scope(|scope| {
            let spawn = |call| {
                thread::Builder::new()
                    .name("call".to_owned())
                    .spawn_scoped(scope, move || self.run_one(turn, call))
            };
            let running: Vec<_> = calls.iter().map(|call| (call, spawn(call))).collect();
            for (call, thread) in running {
                append(match thread {
                    Ok(thread) => thread
                        .join()
                        .map_err(|_| Error::failed("a tool panicked"))?,
                    // The process may start no more threads, so the call runs here, which only takes longer.
                    Err(_) => self.run_one(turn, call),
                })?;
            }
            Ok(())
        })
    }

    fn run_one(&self, turn: &Shared, admitted: &Admitted) -> (ToolResult, CallReport) {
        let (agent, call, started) = (turn.agent, &admitted.call, Instant::now());
        let why_not = match turn.cancel.reason() {
            Some(CancelReason::Stopped) => Some("the user stopped the turn"),
            Some(CancelReason::Deadline) => Some("the turn timed out"),
            None => admitted.refused.as_deref(),
        };
        let prefix = if why_not.is_some() { "not run: " } else { "" };
        (turn.events)(Event::ToolStarted {
            summary: format!("{prefix}{}", call.summary()),
        });
        let mut result = match why_not {
            Some(why) => call.not_run(why),
            None => call.run(&CallContext {
                origin: &turn.request.origin,
                metadata: &turn.request.metadata,
                cancel: turn.cancel,
                values: &self.values,
                said: self.said.as_deref().unwrap_or_default(),
                budget: turn.budget,
                events: turn.events,
                run_task: &|task| turn.run_task(task),
                start_task: &|task| turn.start_task(task),
                room: turn.history.result_limit(),
                is_confirmed: call.needs_approval(&agent.confirm),
                is_handed_over: &self.is_handed_over,
            }),
        };
        // Limits the result now, because the results of parallel calls remain in memory until the first call has ended.
        sync::lock(&self.shown).limit(&mut result);
        let diff = call.diff();
        if !result.is_error && !admitted.is_approved && !diff.is_empty() {
            (turn.events)(Event::FileDiff(diff));
        }
        let report = CallReport {
            name: call.name().to_owned(),
            ok: !result.is_error,
            ms: millis(started.elapsed()),
        };
        (turn.events)(Event::ToolFinished {
            name: report.name.clone(),
            ok: report.ok,
            ms: report.ms,
        });
        let shown = to_single_line(&result.content, SHOWN_OF_A_RESULT);
        (turn.events)(Event::Trace(format!("{}: {shown}", report.name)));
        (result, report)
    }
}

impl Turn<'_> {
    /// Whether the call needs the user's decision before it runs.
    pub(super) fn asks_about(&self, call: &Call) -> bool {
        let Shared { agent, cancel, .. } = self.shared;
        call.needs_approval(&agent.confirm)
            && !self.open.session.allowed.contains(&call.allowed_as())
            && cancel.reason().is_none()
    }

    /// Returns how many of these calls run together: the first, and parallel ones after it that need no approval.
    pub(super) fn parallel(&self, calls: &VecDeque<ToolCall>) -> usize {
        let tools = &self.shared.agent.tools;
        let prepared = calls.iter().take(AT_ONCE).map(|call| tools.prepare(call));
        let together = prepared
            .take_while(|call| call.is_parallel() && !self.asks_about(call))
            .count();
        together.max(1)
    }

    /// Sends a file of the workspace to the turn's chat, as the model would.
    pub(in crate::agent) fn send_file(&self, path: &str) {
        let Shared { agent, request, .. } = self.shared;
        if request.origin.channel != TELEGRAM {
            return;
        }
        let call = ToolCall {
            name: "message".to_owned(),
            arguments: json!({ "file": path }).to_string(),
            ..ToolCall::default()
        };
        let (result, _) = self.calls.run_one(&self.shared, &agent.prepare(&call));
        if result.is_error {
            self.shared.warn(result.content);
        }
    }

    pub(super) fn admit<'c>(&mut self, raw: &'c ToolCall) -> Admitted<'c>
    where
        Self: 'c,
    {
        let mut admitted = self.shared.agent.prepare(raw);
        admitted.refused = match self.calls.cut_at {
            Some(limit) if !is_complete(raw) => Some(format!(
                "your reply was cut at {limit} tokens, and this call with it: write the rest in parts, each shorter than \
                 that, a file with append_file"
            )),
            _ => self.detector.refuses(&admitted.call),
        };
        admitted
    }

    /// Runs calls together. Appends each result as soon as the earlier ones are appended. If the last call of the reply is
    /// included, all results are on disk when this returns.
    pub(super) fn run_batch(&mut self, batch: &[Admitted], is_last: bool) -> Result<()> {
        if self.calls.said.is_none() {
            self.calls.said = Some(said(&self.open.session.messages));
            self.keep_versions();
        }
        let Self {
            shared,
            open,
            calls,
            detector,
            response,
            ..
        } = self;
        let mut left = batch.iter();
        calls.run_all(shared, batch, |(mut result, report)| {
            let run = left.next().filter(|next| next.refused.is_none());
            if let Some(Admitted { call, .. }) = run {
                detector.brought(call, &result);
            }
            response.tool_calls.push(report);
            let mut durability = Durability::Later;
            if is_last && left.len() == 0 {
                result.content.push_str(calls.notice);
                // The last result is synced with all earlier ones.
                durability = Durability::Now;
            }
            let message = Message::ToolResult(result);
            open.append(&[Record::Message(&message)], durability, SystemTime::now())?;
            // Images take much memory, of which the copy made for the file is freed first.
            open.session.messages.pop();
            open.session.messages.push(message);
            Ok(())
        })?;
        calls.store_values(open)
    }

    /// Stores earlier versions of files for `/undo`, starting with the first call.
    fn keep_versions(&self) {
        let Shared { agent, budget, .. } = self.shared;
        let Some((home, kind)) = &agent.undo_in else {
            return;
        };
        let name = &self.open.session.name;
        if !name.starts_with(kind) {
            return;
        }
        budget.keep_versions(Versions::new(home.undo(name), self.open.session.asked));
    }

    /// Asks the user about a call, and waits without a limit. Returns why it must not run, if it must not. The question is stored
    /// first, so that a resumed turn asks again and runs each call only once.
    pub(super) fn ask_about(&mut self, call: &mut Call) -> Result<Option<String>> {
        let (turn, tool, open) = (self.shared, call.name().to_owned(), &mut self.open);
        let Some(confirm) = &turn.request.confirm else {
            self.calls.unasked = Some(tool.clone());
            return Ok(Some(format!(
                "{tool} needs the user's confirmation, and nobody can be asked here: say what you would have done"
            )));
        };
        open.store(&[Record::Asked(call.id())])?;
        let decision = {
            let _pause = turn.cancel.pause();
            confirm(&call.pending(turn.cancel))
        };
        match decision {
            Decision::Yes => open.store(&[Record::Asked("")])?,
            Decision::Always => {
                let mut allowed = open.session.allowed.clone();
                allowed.push(call.allowed_as());
                open.store(&[Record::Asked(""), Record::Allow(&allowed)])?;
            }
            Decision::No => return Ok(Some("the user was asked, and said no".to_owned())),
            Decision::Unanswered => {
                return Ok(Some("the user was asked, and has not answered".to_owned()));
            }
        }
        Ok(None)
    }
}

impl Agent {
    /// Calls a tool as the model would, in the conversation `library_default`, whose values it can use. Returns the text for
    /// the model, including errors.
    ///
    /// ```
    /// use bantam::{Agent, Demo, Function};
    /// use serde_json::{Value, json};
    ///
    /// let schema = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;
    /// let double = Function::new("double", "Doubles.", schema, |args: Value, _| {
    ///     Ok((args["n"].as_i64().unwrap_or(0) * 2).to_string())
    /// });
    /// let agent = Agent::builder().provider(Demo).tool(double).build()?;
    /// assert_eq!(agent.call("double", &json!({"n": 21}))?.text, "42");
    /// let refused = agent.call("double", &json!({"n": "a few"}))?;
    /// assert!(refused.failed && refused.text.contains("\"n\" must be an integer"));
    /// # Ok::<(), bantam::Error>(())
    /// ```
    ///
    /// Stores values that the tool sets, but not its result. The call needs no approval
    /// ([`Builder::confirm`](crate::agent::Builder::confirm)), because the program makes it. Waits for a running turn, so a tool
    /// cannot use this for its own conversation.
    ///
    /// # Errors
    /// Returns the errors of [`Agent::set`].
    pub fn call(&self, name: &str, args: &Value) -> Result<ToolOutput> {
        let request = Request::new("", "library_default");
        let called = contained("the call", || {
            self.with_turn(&request, &|_| (), |shared, mut open| {
                let call = ToolCall {
                    id: format!("call_{}", open.place()),
                    name: name.to_owned(),
                    arguments: args.to_string(),
                    ..ToolCall::default()
                };
                let calls = Calls::new(&open.session);
                let (result, _) = calls.run_one(&shared, &self.prepare(&call));
                calls.store_values(&mut open)?;
                Ok(ToolOutput {
                    text: result.content,
                    failed: result.is_error,
                    images: result.images,
                })
            })
        });
        called.map_err(|e| self.redacted(e))
    }

    /// Makes a call that may run.
    fn prepare<'c>(&'c self, call: &'c ToolCall) -> Admitted<'c> {
        Admitted {
            call: self.tools.prepare(call),
            refused: None,
            is_approved: false,
        }
    }
}

/// Whether the arguments of a call are whole, although its reply may be cut off.
pub(super) fn is_complete(call: &ToolCall) -> bool {
    serde_json::from_str::<IgnoredAny>(&call.arguments).is_ok()
}

/// Returns everything that the user wrote.
fn said(messages: &[Message]) -> String {
    let texts = messages.iter().filter_map(|message| match message {
        Message::User(user) => Some(user.content.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
