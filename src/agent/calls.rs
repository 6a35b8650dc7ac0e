//! Runs the calls of one reply: neighbouring calls that are parallel (they only read, or start subagents) run together, all
//! others in their order. Each call gets one result.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Instant, SystemTime};

use serde_json::Value;

use super::history;
use super::loop_detector::LoopDetector;
use super::media::Shown;
use super::turn::WAITING;
use super::turn_context::{Events, TurnContext};
use super::{Agent, Decision, Request};
use crate::bus::{CallReport, Event};
use crate::cancel::CancelReason;
use crate::error::{Error, Result, contained};
use crate::message::{Message, ToolCall, ToolResult};
use crate::session::{Record, Session, Values};
use crate::storage::Durability;
use crate::text::{millis, one_line};
use crate::tool::pages::{FirstPage, Pages};
use crate::tool::{Audience, Call, CallContext, ToolOutput};
use crate::usage::Account;

/// The most calls that run at once: each may be a process, and holds up to a megabyte of result until those before it are
/// stored.
const AT_ONCE: usize = 8;

/// Characters of a result that `-v` shows.
const SHOWN_OF_A_RESULT: usize = 200;
/// The most characters shown of a line that a running command has printed.
const SHOWN_OF_A_LINE: usize = 200;

/// The calls of a turn, created for the first one.
pub(super) struct Calls<'a> {
    agent: &'a Agent,
    pub turn: &'a TurnContext<'a>,
    /// The named values of the conversation.
    values: Values,
    pages: Pages,
    shown: Shown,
    detector: LoopDetector,
    /// See [`CallContext::is_handed_over`].
    is_handed_over: AtomicBool,
    /// See [`CallContext::said`]; made with the first call.
    said: OnceLock<String>,
}

/// What [`Agent::call_in`] did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CallOutput {
    /// The key of its conversation; a new one if the request named none.
    pub session: String,
    /// What the model would read, including errors.
    pub output: ToolOutput,
}

/// A call that may run, or the reason why not.
struct Admitted<'a> {
    call: Call<'a>,
    permission: Permission,
}

enum Permission {
    Granted,
    /// The user allowed it, after seeing what it changes.
    GrantedByUser,
    /// In words for the model.
    Refused(String),
}

impl<'a> Calls<'a> {
    pub(super) fn new(agent: &'a Agent, turn: &'a TurnContext<'a>, session: &Session) -> Self {
        Self {
            agent,
            turn,
            values: Values::of(&session.values),
            pages: Pages::default(),
            shown: Shown::default(),
            detector: LoopDetector::default(),
            is_handed_over: AtomicBool::new(false),
            said: OnceLock::new(),
        }
    }

    /// Whether somebody else goes on with the turn.
    pub(super) fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::SeqCst)
    }

    /// Whether the model repeats itself, so that it should get no more tools.
    pub(super) fn is_stuck(&self) -> bool {
        self.detector.is_stuck()
    }

    /// Runs the calls of the reply at the end of the session. Appends each result as soon as those before it are appended;
    /// all are on disk when this returns. `footer` goes below the last one.
    pub(super) fn run(
        &mut self,
        calls: &[ToolCall],
        footer: &str,
        session: &mut Session,
        reports: &mut Vec<CallReport>,
    ) -> Result<()> {
        self.detector.next_reply();
        self.said.get_or_init(|| said(&session.messages));
        let mut left = calls.len();
        let tools = &self.agent.tools;
        let mut ready = calls.iter().map(|call| tools.prepare(call)).peekable();
        while let Some(first) = ready.next() {
            let parallel = first.is_parallel();
            let mut batch = vec![self.admit(first, session)?];
            while batch.len() < AT_ONCE {
                let Some(next) = ready.next_if(|next| parallel && next.is_parallel()) else {
                    break;
                };
                batch.push(self.admit(next, session)?);
            }
            let mut failed = Vec::new();
            self.run_together(&batch, |(mut result, report)| {
                left -= 1;
                if result.is_error {
                    failed.push(result.call_id.clone());
                }
                // The line number makes the name of the pages unique in the conversation.
                let pages = format!("r{}", session.place());
                let first = FirstPage::of_tool(&report.name);
                result.content = self.pages.fold(&pages, result.content, first);
                reports.push(report);
                append_result(result, (left == 0).then_some(footer), session)
            })?;
            for id in failed {
                self.detector.failed(&id);
            }
            self.store_values(session)?;
        }
        Ok(())
    }

    /// Appends the values that calls have set.
    fn store_values(&self, session: &mut Session) -> Result<()> {
        let values = self.values.take_changed();
        let entries: Vec<Record> = values
            .iter()
            .map(|(name, value)| Record::Value(name, value))
            .collect();
        if entries.is_empty() {
            return Ok(());
        }
        let now = SystemTime::now();
        session.append(&entries, Durability::Later, now)
    }

    fn admit<'c>(&mut self, call: Call<'c>, session: &mut Session) -> Result<Admitted<'c>> {
        let is_gone = |id: &str| history::has_lost_result(&session.messages, id);
        let permission = match self.detector.refuses(&call, is_gone) {
            Some(why) => Permission::Refused(why),
            None => self.permission(&call, session)?,
        };
        Ok(Admitted { call, permission })
    }

    /// Asks the user about a call, if `tools.confirm` has it. The conversation knows how far this has come, so that a turn that
    /// is resumed asks again and runs nothing twice.
    fn permission(&self, call: &Call, session: &mut Session) -> Result<Permission> {
        let (turn, tool) = (self.turn, call.name());
        let is_settled = !call.needs_approval(&self.agent.confirm)
            || session.allowed.contains(&call.allowed_as())
            || turn.cancel.reason().is_some();
        if is_settled {
            return Ok(Permission::Granted);
        }
        if turn.request.confirm.is_some() {
            store_now(session, &[Record::Asked(call.id())])?;
        }
        let decision = turn.ask_user(call);
        let refused = |why: &str| Ok(Permission::Refused(why.to_owned()));
        match decision {
            Some(Decision::Yes) => store_now(session, &[Record::Asked("")])?,
            Some(Decision::Always) => {
                let mut allowed = session.allowed.clone();
                allowed.push(call.allowed_as());
                store_now(session, &[Record::Asked(""), Record::Allow(&allowed)])?;
            }
            Some(Decision::No) => return refused("the user was asked, and said no"),
            Some(Decision::Unanswered) => {
                return refused("the user was asked, and has not answered");
            }
            None => {
                return refused(&format!(
                    "{tool} needs the user's confirmation, and nobody can be asked here: say what you would have done"
                ));
            }
        }
        Ok(Permission::GrantedByUser)
    }

    /// Runs calls in parallel and passes their results to `append` in order.
    fn run_together(
        &self,
        calls: &[Admitted],
        mut append: impl FnMut((ToolResult, CallReport)) -> Result<()>,
    ) -> Result<()> {
        if let [only] = calls {
            return append(self.run_one(only));
        }
        thread::scope(|scope| {
            let spawn = |call| {
                thread::Builder::new()
                    .name("call".to_owned())
                    .spawn_scoped(scope, move || self.run_one(call))
            };
            let running: Vec<_> = calls.iter().map(|call| (call, spawn(call))).collect();
            for (call, thread) in running {
                append(match thread {
                    Ok(thread) => thread
                        .join()
                        .map_err(|_| Error::failed("a tool panicked"))?,
                    // The process may start no more threads: running it here only takes longer.
                    Err(_) => self.run_one(call),
                })?;
            }
            Ok(())
        })
    }

    fn run_one(&self, Admitted { call, permission }: &Admitted) -> (ToolResult, CallReport) {
        let (turn, started) = (self.turn, Instant::now());
        let why_not = match (turn.cancel.reason(), permission) {
            (Some(CancelReason::Stopped), _) => Some("the user stopped the turn"),
            (Some(CancelReason::Deadline), _) => Some("the turn timed out"),
            (None, Permission::Refused(why)) => Some(why.as_str()),
            (None, Permission::Granted | Permission::GrantedByUser) => None,
        };
        let prefix = if why_not.is_some() { "not run: " } else { "" };
        let view = call.view(Audience::Events);
        (turn.events)(Event::ToolStarted {
            summary: format!("{prefix}{}", view.summary),
        });
        let events = |event| {
            (turn.events)(match event {
                // Redact the whole line: the beginning of a key is not recognised as a key.
                Event::ToolOutput(line) => {
                    let line = self.agent.redactor.redact_output(line, "");
                    Event::ToolOutput(one_line(&line, SHOWN_OF_A_LINE))
                }
                event => event,
            });
        };
        let mut result = match why_not {
            Some(why) => call.not_run(why),
            None => call.run(&CallContext {
                origin: &turn.request.origin,
                metadata: &turn.request.metadata,
                cancel: &turn.cancel,
                values: &self.values,
                said: self.said.get().map_or("", String::as_str),
                account: Account {
                    session: &turn.request.session,
                    channel: &turn.request.origin.channel,
                    cause: turn.spending.cause(),
                    begin: &|expected| {
                        let limits = &self.agent.limits;
                        turn.spending.begin_other_call(limits, expected)
                    },
                    spent: &|tokens, counted, cost| turn.spending.spend(tokens, counted, cost),
                    warn: &|text| turn.warn(text),
                },
                pages: &self.pages,
                events: &events,
                run_task: &|task| self.agent.run_task(task, turn),
                start_task: &|task| turn.start_task(task),
                versions: turn.spending.versions(),
                is_handed_over: &self.is_handed_over,
            }),
        };
        // Limit it now: the results of parallel calls all stay in memory until the first call has ended.
        self.shown.limit(&mut result);
        let is_news = !result.is_error && !matches!(permission, Permission::GrantedByUser);
        if is_news && !view.diff.is_empty() {
            (turn.events)(Event::FileDiff(view.diff));
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
        let shown = one_line(&result.content, SHOWN_OF_A_RESULT);
        (turn.events)(Event::Trace(format!("{}: {shown}", report.name)));
        (result, report)
    }
}

impl Agent {
    /// Calls a tool as the model would, in the conversation `library_default`, whose values it can use. Returns what the model
    /// would read, including errors, but all of it where the model would get a first page.
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
    /// # Errors
    /// Those of [`Agent::set`].
    pub fn call(&self, name: &str, args: &Value) -> Result<ToolOutput> {
        let request = Request::new("", "library_default");
        let called = self.call_in(&request, name, args, &|_| ())?;
        Ok(called.output)
    }

    /// Calls a tool in the conversation of a request, with the request's origin, metadata, cancellation and limits. Values that
    /// the tool sets are stored; its result is not. The user is not asked about the call
    /// ([`Builder::confirm`](super::Builder::confirm)), because the program makes it. Waits for a turn that is running, so a
    /// tool cannot use it for its own conversation.
    ///
    /// # Errors
    /// Those of [`Agent::call`].
    pub fn call_in(
        &self,
        request: &Request,
        name: &str,
        args: &Value,
        events: Events,
    ) -> Result<CallOutput> {
        let request = request.with_key();
        let turn = TurnContext::new(&request, &self.limits, events, self.model());
        let called = contained("the call", || self.call_of(&turn, name, args));
        called.map_err(|e| self.redacted(e))
    }

    fn call_of(&self, turn: &TurnContext, name: &str, args: &Value) -> Result<CallOutput> {
        let is_waiting = || turn.warn(WAITING);
        let key = &turn.request.session;
        let mut session = Session::open(&self.store, key, &turn.cancel, &is_waiting)?;
        let call = ToolCall {
            id: format!("call_{}", session.place()),
            name: name.to_owned(),
            arguments: args.to_string(),
            ..ToolCall::default()
        };
        let calls = Calls::new(self, turn, &session);
        let admitted = Admitted {
            call: self.tools.prepare(&call),
            permission: Permission::Granted,
        };
        let (result, _) = calls.run_one(&admitted);
        calls.store_values(&mut session)?;
        Ok(CallOutput {
            session: session.name.clone(),
            output: ToolOutput {
                text: result.content,
                failed: result.is_error,
                images: result.images,
            },
        })
    }
}

fn store_now(session: &mut Session, entries: &[Record]) -> Result<()> {
    session.append(entries, Durability::Now, SystemTime::now())
}

/// Appends a result. The last result of a reply has a `footer`, and is synced with all before it.
fn append_result(
    mut result: ToolResult,
    footer: Option<&str>,
    session: &mut Session,
) -> Result<()> {
    if let Some(footer) = footer.filter(|footer| !footer.is_empty()) {
        result.content.push_str(&format!("\n[{footer}]"));
    }
    let durability = if footer.is_some() {
        Durability::Now
    } else {
        Durability::Later
    };
    let message = Message::ToolResult(result);
    session.append(&[Record::Message(&message)], durability, SystemTime::now())?;
    session.messages.push(message);
    Ok(())
}

/// Everything that the user wrote.
fn said(messages: &[Message]) -> String {
    let texts = messages.iter().filter_map(|message| match message {
        Message::User(user) => Some(user.content.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}
