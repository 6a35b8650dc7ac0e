//! A message's turn, from top to bottom: it begins on disk, its files are fetched, it runs, and its answer is kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Dispatcher;
use super::queue::MAX_MERGED;
use crate::agent::{Budget, ReceivedMessage, Request, Steering};
use crate::bus::{Event, Inbound, Kind, Origin, Response, TurnStop};
use crate::cancel::Cancel;
use crate::storage::Entry;
use crate::storage::queue::{CALM, MAX_STARTS};
use crate::telegram::inbox::{OpenMessage, texts};

/// The ids of a turn's messages: more join while it runs.
#[derive(Clone)]
pub(super) struct TurnIds(Arc<Mutex<Vec<String>>>);

impl TurnIds {
    fn new(ids: &[String]) -> Self {
        Self(Arc::new(Mutex::new(ids.to_vec())))
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn add(&self, more: &[String]) {
        let mut ids = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.extend_from_slice(more);
    }
}

/// A turn that has begun.
struct Begun {
    /// Of the message, if something has used it already.
    budget: Option<Arc<Budget>>,
    /// Those of its messages that the queue keeps until they are answered.
    kept: Vec<Entry>,
    /// The same as Telegram sent them, if they are from there.
    open: Vec<OpenMessage>,
}

impl Dispatcher {
    /// Answers a message, a run of a job, or the report of a background task.
    pub(super) fn turn(self: &Arc<Self>, mut message: Inbound, cancel: Cancel) {
        if self.refuse_command(&message) {
            return;
        }
        // Turns that never ended before run one at a time: so the one that stops the program is found.
        let alone = message.is_alone.then(|| self.alone.acquire());
        let Some(mut begun) = self.begin(&mut message) else {
            return;
        };
        self.show(&message.origin, Event::TurnStarted);
        self.fetch(&mut begun, &mut message, &cancel);
        let permit = self.turns.acquire();
        // The program may have been told to stop meanwhile: the message stays open, and its start was taken back.
        let is_kept = !begun.kept.is_empty() || message.kind == Kind::Report;
        if is_kept && self.runs.cancel.reason().is_some() {
            return;
        }
        let (response, told) = self.run(&mut message, cancel, &begun);
        drop((permit, alone));
        self.finish(&message, &begun, response, &told);
    }

    /// Answers a message of a chat that looks like a command and is none: the model would take it for a question.
    fn refuse_command(&self, message: &Inbound) -> bool {
        let is_single = message.kind == Kind::Message && message.ids.len() == 1;
        if !is_single || !message.text.starts_with('/') || self.chats_of(&message.origin).is_none()
        {
            return false;
        }
        let Some(name) = self.handler.unknown_command(&message.text) else {
            return false;
        };
        let text = format!("There is no command /{name}; /help lists them.");
        self.reply(message, &text);
        true
    }

    /// Counts the start, on disk, before anything of the conversation is loaded. `None`: the program is stopping and the message
    /// stays open, or there is nothing to answer.
    fn begin(&self, message: &mut Inbound) -> Option<Begun> {
        let mut begun = Begun {
            budget: None,
            kept: Vec::new(),
            open: Vec::new(),
        };
        if message.kind == Kind::Report {
            // The task may have been stopped after its report came in.
            begun.budget = Some(self.tasks.begin_answer(&message.first_id())?);
        } else {
            begun.kept = self.kept(&message.origin, &message.ids);
            if let Some(chats) = self.chats_of(&message.origin) {
                begun.open = chats.inbox.own(begun.kept.clone());
            }
        }
        let starts = begun.kept.iter().map(|kept| kept.starts).max();
        if starts.is_some_and(|starts| starts >= MAX_STARTS) {
            self.set_aside(message, &begun);
            return None;
        }
        if starts.is_some_and(|starts| starts + 1 == MAX_STARTS) {
            let calm = CALM.saturating_sub(self.started.elapsed());
            self.runs.cancel.sleep(calm).ok()?;
        }
        // Held over the check: the shutdown takes back what is started after it has set the cancel.
        let mut running = self.running();
        if self.runs.cancel.reason().is_some() {
            return None;
        }
        if !begun.kept.is_empty() {
            // A full disk keeps no message from its answer.
            let started = self.runs.outbox.queue().start(&message.ids);
            self.show_failure(&message.origin, started);
            running.extend(message.ids.iter().cloned());
        }
        drop(running);
        if !begun.open.is_empty() {
            // It may have been edited since it came.
            message.text = texts(&begun.open);
        }
        self.runs.begin(&message.first_id());
        Some(begun)
    }

    /// Answers a message that has stopped the program three times, without its text, which might do so again.
    fn set_aside(&self, message: &Inbound, begun: &Begun) {
        let text = if message.ids.len() == 1 {
            "This message crashed me three times, so I have set it aside."
        } else {
            "These messages crashed me three times, so I have set them aside."
        };
        self.reply(message, text);
        self.end(message, begun);
    }

    /// Those of these messages that the queue keeps until they are answered.
    fn kept(&self, origin: &Origin, ids: &[String]) -> Vec<Entry> {
        let kept = self.runs.outbox.queue().find(ids);
        kept.unwrap_or_else(|e| {
            self.show_failure(origin, Err(e.doing("reading what is to be answered")));
            Vec::new()
        })
    }

    /// Ends kept messages that no answer in a chat has ended.
    fn end(&self, message: &Inbound, begun: &Begun) {
        if self.chats_of(&message.origin).is_none() && !begun.kept.is_empty() {
            let ended = self.runs.outbox.queue().done(&message.ids);
            self.show_failure(&message.origin, ended);
        }
    }

    /// Fetches the files of a message; speech in them may become words, which costs.
    fn fetch(&self, begun: &mut Begun, message: &mut Inbound, cancel: &Cancel) {
        let Some(chats) = self.chats_of(&message.origin) else {
            return;
        };
        if begun.open.iter().all(|open| open.message.files.is_empty()) {
            return;
        }
        // Without an agent the turn fails, and says why.
        let Ok(agent) = self.handler.agent() else {
            return;
        };
        let budget = agent.budget(&message.session, &message.origin.channel);
        chats.fetch(&begun.open, message, cancel, &budget);
        begun.budget = Some(budget);
    }

    /// Runs the turn. Returns also the text that ends it in its chat.
    fn run(
        self: &Arc<Self>,
        message: &mut Inbound,
        cancel: Cancel,
        begun: &Begun,
    ) -> (Response, String) {
        let (origin, session) = (message.origin.clone(), message.session.clone());
        let agent = match self.handler.agent() {
            Ok(agent) => agent,
            Err(e) => {
                let response = Response::failed(&session, e);
                let text = final_text(&response);
                return (response, text);
            }
        };
        let budget = begun.budget.clone();
        let budget = budget.unwrap_or_else(|| agent.budget(&session, &origin.channel));
        let mut text = std::mem::take(&mut message.text);
        if message.kind == Kind::Message {
            for label in self.take_stopped_tasks(&session) {
                text.push_str(&format!(
                    "\n\n[The user has stopped the background task “{label}”.]"
                ));
            }
        }
        let ids = TurnIds::new(&message.ids);
        let parts = begun.open.iter().map(|open| ReceivedMessage {
            id: open.id.clone(),
            text: open.message.text.clone(),
        });
        let request = Request {
            media: std::mem::take(&mut message.attachments),
            origin: origin.clone(),
            ids: message.ids.clone(),
            model: self.runs.model_of(&message.first_id()).unwrap_or_default(),
            confirm: self.asker(message, &ids, &cancel),
            cancel,
            budget: Some(budget.clone()),
            tasks: Some(self.tasks.clone()),
            parts: parts.collect(),
            steering: self.steering(message, &ids),
            ..Request::new(text, session)
        };
        let response = agent.run(&request, &|event| {
            if let (Some(chats), Event::Progress(text)) = (self.chats_of(&origin), &event) {
                chats.post(&origin.chat, text.trim(), &[]);
            }
            self.show(&origin, event);
        });
        message.ids = ids.all();
        // That no call is left is said once, and not for each report that waits.
        let is_silent = response.stop == TurnStop::Limit
            && budget.is_told_again()
            && response.output.is_empty();
        let text = if is_silent {
            String::new()
        } else {
            final_text(&response)
        };
        (response, text)
    }

    /// How the turn of this message takes in later ones of its chat; `None` where each message has its own turn.
    fn steering(self: &Arc<Self>, message: &Inbound, ids: &TurnIds) -> Option<Arc<Steering>> {
        if message.kind != Kind::Message || message.is_alone || message.ids.is_empty() {
            return None;
        }
        self.chats_of(&message.origin)?;
        let (own, origin) = (self.clone(), message.origin.clone());
        let (session, ids) = (message.session.clone(), ids.clone());
        Some(Arc::new(move || own.take_more(&origin, &session, &ids)))
    }

    /// Takes the messages that wait for the end of this turn. Their start is on disk when this returns, together with that of the
    /// others: after a crash they are resumed as one.
    fn take_more(&self, origin: &Origin, session: &str, ids: &TurnIds) -> Vec<ReceivedMessage> {
        let Some(chats) = self.chats_of(origin) else {
            return Vec::new();
        };
        // Held over the check: the shutdown takes back what is started after it has set the cancel.
        let mut running = self.running();
        if self.runs.cancel.reason().is_some() {
            return Vec::new();
        }
        // Files are fetched for a turn of their own, and the parts of an album come together.
        let is_text = |message: &Inbound| {
            let open = chats.open(&message.ids);
            !message.is_part
                && !open.is_empty()
                && open.iter().all(|open| open.message.files.is_empty())
        };
        let room = MAX_MERGED.saturating_sub(ids.all().len());
        let more = self.queues.take_more(session, origin, room, &is_text);
        let new: Vec<String> = more.into_iter().flat_map(|message| message.ids).collect();
        if new.is_empty() {
            return Vec::new();
        }
        let queue = self.runs.outbox.queue();
        let before = ids.all();
        ids.add(&new);
        self.runs.logged(queue.halt(&before));
        self.runs.logged(queue.start(&ids.all()));
        running.extend(new.iter().cloned());
        drop(running);
        let open = chats.open(&new).into_iter();
        open.map(|open| ReceivedMessage {
            id: open.id,
            text: open.message.text,
        })
        .collect()
    }

    /// Keeps the answer and ends the message by it, in one write.
    fn finish(&self, message: &Inbound, begun: &Begun, response: Response, told: &str) {
        let is_kept = if let Some(chats) = self.chats_of(&message.origin) {
            chats.end_activity(&message.origin.chat);
            chats.post(&message.origin.chat, told, &message.ids)
        } else {
            self.runs.finish(&message.first_id(), &response);
            true
        };
        self.running().retain(|id| !message.ids.contains(id));
        self.show(&message.origin, Event::Done(Box::new(response)));
        self.end(message, begun);
        if message.kind == Kind::Report {
            // One whose answer was not kept is posted at the next start.
            if is_kept {
                self.show_failure(&message.origin, self.tasks.close(&message.first_id()));
            }
            self.show_tasks(&message.origin, &message.session);
        }
    }

    /// Replies to a message that needs no turn, and ends it.
    pub(super) fn reply(&self, message: &Inbound, text: &str) {
        if let Some(chats) = self.chats_of(&message.origin) {
            chats.post(&message.origin.chat, text, &message.ids);
        } else if !text.is_empty() {
            self.show(&message.origin, Event::Notice(text.to_owned()));
        }
    }

    fn running(&self) -> MutexGuard<'_, Vec<String>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn waits for its user: that start does not count.
    pub(super) fn suspend(&self, ids: &[String]) {
        let mut running = self.running();
        let is_counted = running.iter().any(|id| ids.contains(id));
        running.retain(|id| !ids.contains(id));
        if is_counted {
            self.runs.logged(self.runs.outbox.queue().halt(ids));
        }
    }

    /// The turn goes on: it counts again.
    pub(super) fn resume(&self, origin: &Origin, ids: &[String]) {
        let is_kept = !self.kept(origin, ids).is_empty();
        let mut running = self.running();
        if is_kept && self.runs.cancel.reason().is_none() {
            self.runs.logged(self.runs.outbox.queue().start(ids));
            running.extend(ids.iter().cloned());
        }
    }

    /// Takes back the starts of turns that are under way when the program ends in good order. The cancel is set by then.
    pub(crate) fn halt(&self) {
        let running = std::mem::take(&mut *self.running());
        if !running.is_empty() {
            self.runs.logged(self.runs.outbox.queue().halt(&running));
        }
    }
}

/// The text that ends a turn in its chat.
fn final_text(response: &Response) -> String {
    let output = response.output.trim();
    let end = match &response.error {
        // An empty one is told as such.
        None if output.is_empty() => return "(The answer has no visible text.)".to_owned(),
        None => return response.answer_for_chat(),
        Some(_) if response.stop == TurnStop::Cancelled => "(Stopped.)".to_owned(),
        // Its hint is for the terminal.
        Some(error) => format!("⚠️ {}", error.message),
    };
    format!("{output}\n\n{end}").trim_start().to_owned()
}
