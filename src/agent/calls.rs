//! The calls of one reply: what only looks is run at once, and so are subagents; what does more is run in its order. Each
//! gets one result.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread;
use std::time::{Instant, SystemTime};

use super::breaker::Breaker;
use super::task::{Subagents, Tokens};
use super::turn::Events;
use super::{Agent, Request};
use crate::bus::{CallReport, Event};
use crate::cancel::{Cancel, Why};
use crate::disk::Durability;
use crate::error::{Error, Result};
use crate::message::{Message, ToolCall, ToolResult};
use crate::session::{Entry, Session};
use crate::text::millis;
use crate::tool::pages::Pages;
use crate::tool::{Ready, Turn};

/// How many calls are run at once. Each may be a process, or hold a result of a megabyte until those before it are there.
const AT_ONCE: usize = 8;

/// The calls of a turn.
pub struct Calls<'a> {
    agent: &'a Agent,
    request: &'a Request,
    cancel: &'a Cancel,
    events: Events<'a>,
    pages: Pages,
    breaker: Breaker,
    /// The subagents of this turn, and what they used.
    pub helpers: Subagents,
}

/// A call that is about to be run, or is not to be, and why.
type Admitted<'a> = (Ready<'a>, Option<String>);

impl<'a> Calls<'a> {
    pub fn new(
        agent: &'a Agent,
        request: &'a Request,
        cancel: &'a Cancel,
        events: Events<'a>,
        tokens: Arc<Tokens>,
    ) -> Self {
        Self {
            agent,
            request,
            cancel,
            events,
            pages: Pages::default(),
            breaker: Breaker::default(),
            helpers: Subagents::new(tokens),
        }
    }

    /// It makes no sense to offer tools any longer.
    pub fn are_stuck(&self) -> bool {
        self.breaker.is_stuck()
    }

    /// Runs the calls of a reply that is the last message of the session. Their results go into the session in the order
    /// of the calls, each as soon as those before it are there; all are on disk when this returns. `last_word` goes below
    /// the last of them.
    pub fn run(
        &mut self,
        calls: &[ToolCall],
        last_word: &str,
        session: &mut Session,
        reports: &mut Vec<CallReport>,
    ) -> Result<()> {
        self.breaker.next_reply();
        let mut ready = calls.iter().map(|call| self.agent.tools.read(call)).peekable();
        let mut left = calls.len();
        while let Some(first) = ready.next() {
            let parallel = first.is_parallel();
            let mut batch: Vec<Admitted> = vec![self.admit(first)];
            while let Some(next) = ready.next_if(|next| parallel && next.is_parallel()) {
                batch.push(self.admit(next));
            }
            let mut keep = |result: ToolResult, report: CallReport| {
                left -= 1;
                self.keep(result, if left == 0 { Some(last_word) } else { None }, session)?;
                reports.push(report);
                Ok(())
            };
            match batch.as_slice() {
                [alone] => {
                    let (result, report) = self.one(alone);
                    keep(result, report)?;
                }
                several => self.together(several, keep)?,
            }
        }
        Ok(())
    }

    fn admit<'c>(&mut self, call: Ready<'c>) -> Admitted<'c> {
        let refused = self.breaker.refuses(&call);
        (call, refused)
    }

    /// Runs calls side by side, and gives `keep` their results in order.
    fn together(&self, calls: &[Admitted], mut keep: impl FnMut(ToolResult, CallReport) -> Result<()>) -> Result<()> {
        let mut left = calls.iter();
        thread::scope(|scope| {
            let mut running = VecDeque::new();
            loop {
                for call in left.by_ref().take(AT_ONCE - running.len()) {
                    let thread = thread::Builder::new().name("call".to_owned());
                    running.push_back((call, thread.spawn_scoped(scope, || self.one(call))));
                }
                let (result, report) = match running.pop_front() {
                    None => return Ok(()),
                    Some((_, Ok(thread))) => thread.join().map_err(|_| Error::failed("a tool panicked"))?,
                    // There was no thread to be had: it is done here, which only takes longer.
                    Some((call, Err(_))) => self.one(call),
                };
                keep(result, report)?;
            }
        })
    }

    fn one(&self, (call, refused): &Admitted) -> (ToolResult, CallReport) {
        let started = Instant::now();
        (self.events)(Event::ToolStarted { summary: call.summary() });
        let result = match (self.cancel.why(), refused) {
            (Some(Why::Stopped), _) => call.not_run("the user stopped the turn"),
            (Some(Why::Deadline), _) => call.not_run("the turn's time was up"),
            (None, Some(why)) => call.not_run(why),
            (None, None) => call.run(&Turn {
                origin: &self.request.origin,
                cancel: self.cancel,
                pages: &self.pages,
                events: self.events,
                run_task: &|task| self.agent.run_task(task, &self.helpers, self.cancel, self.events),
                start_task: &|label, task| self.agent.start_task(label, task, &self.helpers, self.request),
            }),
        };
        let report = CallReport { name: call.name().to_owned(), ok: !result.is_error, ms: millis(started.elapsed()) };
        (self.events)(Event::ToolFinished { name: report.name.clone(), ok: report.ok, ms: report.ms });
        (result, report)
    }

    /// Stores a result, or its first page. `last_word` is there for the last one of a reply: with it all are on disk.
    fn keep(&self, mut result: ToolResult, last_word: Option<&str>, session: &mut Session) -> Result<()> {
        // By its line in the session: no later turn of the conversation has the same.
        result.content = self.pages.fold(&format!("r{}", session.place()), result.content);
        if let Some(word) = last_word.filter(|word| !word.is_empty()) {
            result.content.push_str(&format!("\n[{word}]"));
        }
        let durability = if last_word.is_some() { Durability::Now } else { Durability::Later };
        let message = Message::ToolResult(result);
        self.agent.store.append(session, &[Entry::Message(&message)], durability, SystemTime::now())?;
        session.messages.push(message);
        Ok(())
    }
}
