//! Answers a message, from top to bottom: records its start, downloads its files, runs the turn, and stores the answer.

use std::sync::{Arc, Mutex, MutexGuard};

use super::Dispatcher;
use super::queue::{MAX_JOINED, Work};
use super::run::note_title;
use super::tasks::{MAX_POSTED, task_of};
use crate::agent::{ReceivedMessage, Request, Steering};
use crate::bus::{Event, Inbound, Origin, Response, Source, TurnStop};
use crate::error::{Error, Result};
use crate::log::log_error;
use crate::outbox::{Item, Note};
use crate::storage::queue::{CALM, MAX_STARTS};
use crate::sync;
use crate::text::clip;

/// Ids of a turn's messages; further messages may join a running turn.
#[derive(Clone)]
pub(super) struct TurnIds(Arc<Mutex<Vec<String>>>);

impl TurnIds {
    fn new(ids: Vec<String>) -> Self {
        Self(Arc::new(Mutex::new(ids)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        sync::lock(&self.0)
    }

    pub(super) fn all(&self) -> Vec<String> {
        self.lock().clone()
    }
}

impl Dispatcher {
    /// Answers messages of a user together, a run of a job, or the report of a background task.
    pub(super) fn answer(self: &Arc<Self>, mut work: Work) {
        // Unfinished turns run one at a time after a restart, so that the message that crashes the program is identified.
        let is_suspect = work.messages.iter().any(|message| message.starts > 0);
        let alone = is_suspect.then(|| self.alone.acquire());
        if !self.begin(&mut work) {
            return;
        }
        let (origin, ids) = (work.first().origin.clone(), TurnIds::new(work.ids()));
        self.show(&origin, Event::TurnStarted);
        if let Source::Job(_) = work.first().source {
            return self.answer_job(&mut work, &ids);
        }
        let fetched = self.fetch(&mut work);
        let permit = self.turns.acquire();
        // If the program is stopping by now, the message remains open, and its start was undone.
        if self.cancel.reason().is_some() {
            return;
        }
        let (response, text) = match fetched {
            Ok(()) => self.run(&mut work, &ids, ""),
            Err(e) => failed(&work.first().session, e),
        };
        drop((permit, alone));
        self.finish(work.first(), &ids, response, text);
    }

    /// Counts the start on disk before loading the conversation. Returns false if all messages are withdrawn or handled, or if
    /// the program is stopping; in the latter case the messages remain open.
    fn begin(&self, work: &mut Work) -> bool {
        // Messages may have been edited or withdrawn since they arrived.
        match self.store.find(&work.ids()) {
            Ok(messages) => work.messages = messages,
            Err(e) => self.show_failure(&work.first().origin, Err(e)),
        }
        let Some(starts) = work.messages.iter().map(|message| message.starts).max() else {
            return false;
        };
        if let Source::Task = work.first().source {
            work.budget = self.tasks.begin_answer(task_of(work.first()));
            if work.budget.is_none() {
                // The task was stopped in the meantime.
                return false;
            }
        }
        if self.refuse_command(work) || self.gives_up_job(work.first()) {
            return false;
        }
        if starts >= MAX_STARTS {
            self.set_aside(work);
            return false;
        }
        if starts + 1 == MAX_STARTS {
            let calm = CALM.saturating_sub(self.started.elapsed());
            if self.cancel.sleep(calm).is_err() {
                return false;
            }
        }
        if !self.start(&work.first().origin, &work.ids()) {
            return false;
        }
        true
    }

    /// Counts a start of messages on disk. A full disk does not prevent the answer. Returns false if the program is stopping.
    pub(super) fn start(&self, origin: &Origin, ids: &[String]) -> bool {
        // Locked during the check, because the shutdown undoes these starts after it has set the cancel.
        let mut running = self.running();
        if self.cancel.reason().is_some() {
            return false;
        }
        self.show_failure(origin, self.store.start(ids));
        running.extend_from_slice(ids);
        true
    }

    /// Rejects an unknown command in a chat, which the model would mistake for a question.
    fn refuse_command(&self, work: &Work) -> bool {
        let first = work.first();
        let is_written = matches!(first.source, Source::Telegram { .. });
        if !is_written || work.messages.len() > 1 || !first.text.starts_with('/') {
            return false;
        }
        let Some(name) = self.handler.unknown_command(&first.text) else {
            return false;
        };
        let text = format!("There is no command /{name}; /help lists them.");
        self.reply(first, &text);
        true
    }

    /// Skips messages that have crashed the program three times, without their text, which might crash it again.
    fn set_aside(&self, work: &Work) {
        let text = match work.messages[..] {
            [_] => "I crashed three times on this message, so I skipped it.",
            _ => "I crashed three times on these messages, so I skipped them.",
        };
        self.reply_to_all(work.first(), text, &work.ids());
    }

    /// Downloads the files of messages. Transcribing recordings may cost money. Returns an error if no message has words.
    fn fetch(&self, work: &mut Work) -> Result<()> {
        let mut files = work.messages.iter().flat_map(Inbound::files);
        if files.next().is_none() {
            return Ok(());
        }
        // Without an agent, the turn fails with an error message.
        let (Some(chats), Ok(agent)) = (&self.poster.chats, self.handler.agent()) else {
            return Ok(());
        };
        let (session, channel) = (&work.first().session, &work.first().origin.channel);
        let budget = agent.budget(session, channel);
        let messages = work.messages.iter_mut();
        let fetched = messages.map(|message| chats.fetch(message, &work.cancel, &budget));
        // One message with words is a question.
        let fetched = fetched.min_by_key(Result::is_err);
        work.budget = Some(budget);
        fetched.unwrap_or(Ok(()))
    }

    /// Runs the turn. Also returns the text that ends it in a chat. If `title` is empty, the text is the title.
    pub(super) fn run(
        self: &Arc<Self>,
        work: &mut Work,
        ids: &TurnIds,
        title: &str,
    ) -> (Response, String) {
        let first = work.first();
        let (origin, session) = (first.origin.clone(), first.session.clone());
        let agent = match self.handler.agent() {
            Ok(agent) => agent,
            Err(e) => return failed(&session, e),
        };
        let budget = work.budget.clone();
        let budget = budget.unwrap_or_else(|| agent.budget(&session, &origin.channel));
        let text = joined_text(&work.messages);
        let media = work
            .messages
            .iter_mut()
            .map(|message| std::mem::take(&mut message.media));
        let media = media.flatten().collect();
        let first = work.first();
        let request = Request {
            media,
            title: title.to_owned(),
            origin: origin.clone(),
            ids: work.ids(),
            model: first.model.clone(),
            confirm: self.asker(first, ids, &work.cancel),
            cancel: work.cancel.clone(),
            budget: Some(budget.clone()),
            tasks: Some(self.tasks.clone()),
            steering: self.steering(first, ids),
            ..Request::new(text, session)
        };
        let response = agent.run(&request, &|event| {
            if let (Some(chats), Event::Progress(text)) = (self.chats_of(&origin), &event) {
                chats.post(&origin.chat, text.trim(), &[]);
            }
            self.show(&origin, event);
        });
        // The error that the budget is used up is shown once, not for each waiting report.
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

    /// Lets the message's turn receive later messages of its chat; `None` if each message has a separate turn.
    fn steering(self: &Arc<Self>, first: &Inbound, ids: &TurnIds) -> Option<Arc<Steering>> {
        if first.starts > 0 || !matches!(first.source, Source::Telegram { .. }) {
            return None;
        }
        let (own, first, ids) = (self.clone(), first.clone(), ids.clone());
        Some(Arc::new(move || own.take_more(&first, &ids)))
    }

    /// Takes the messages that wait for the end of this turn. Writes their start to disk before returning.
    fn take_more(&self, first: &Inbound, ids: &TurnIds) -> Vec<ReceivedMessage> {
        let room = MAX_JOINED.saturating_sub(ids.lock().len());
        let more = self.queues.take_more(first, room);
        let new: Vec<String> = more.into_iter().map(|message| message.id).collect();
        // Messages taken while the program stops remain open.
        if new.is_empty() || !self.start(&first.origin, &new) {
            return Vec::new();
        }
        ids.lock().extend_from_slice(&new);
        let found = log_error(&self.log, self.store.find(&new)).unwrap_or_default();
        let received = found.into_iter().map(|message| ReceivedMessage {
            id: message.id,
            text: message.text,
        });
        received.collect()
    }

    /// Stores the answer and finishes the answered messages, in one write.
    pub(super) fn finish(
        &self,
        first: &Inbound,
        ids: &TurnIds,
        response: Response,
        mut text: String,
    ) {
        let mut answered = ids.all();
        answered.extend_from_slice(&response.answered);
        let mut title = None;
        match &first.source {
            Source::Job(_) => title = Some(note_title(&first.source)),
            // The model could not pass on the report, so the user gets the original.
            Source::Task if response.stop == TurnStop::Error && response.output.is_empty() => {
                text = format!("{}\n\n{text}", clip(&first.text, MAX_POSTED));
            }
            Source::Task | Source::Channel | Source::Telegram { .. } => {}
        }
        if let Some(chats) = &self.poster.chats {
            chats.end_activity(&first.origin.chat);
        }
        let is_kept = self.end_with(first, &text, &answered, title.as_deref());
        self.ends_running(&answered);
        self.queues.forget(&first.session, &answered);
        self.show(&first.origin, Event::Done(Box::new(response)));
        if let Source::Task = first.source {
            // A report whose answer is not on disk is answered again after a restart.
            if is_kept {
                self.show_failure(&first.origin, self.tasks.close(task_of(first)));
            }
            self.show_tasks(&first.origin, &first.session);
        }
    }

    /// Finishes messages with a text for their chat, if there are both, in one write. A full disk does not prevent the text.
    /// Returns whether it is on disk.
    fn end_with(&self, first: &Inbound, text: &str, ids: &[String], title: Option<&str>) -> bool {
        let (Some(to), false) = (&first.reply_to, text.is_empty()) else {
            let ended = self.store.finish(ids);
            let is_kept = ended.is_ok();
            self.show_failure(&first.origin, ended);
            return is_kept;
        };
        let note = title.map(|title| Note {
            title,
            from: &first.session,
            text,
        });
        let item = Item::text(to, text);
        let is_kept = self.poster.post(&item, ids, note.as_ref());
        if let (false, Some(chats)) = (is_kept, &self.poster.chats) {
            chats.sender.send_unrecorded(item, ids);
        }
        is_kept
    }

    /// Replies to a message that needs no turn, and finishes it.
    pub(super) fn reply(&self, message: &Inbound, text: &str) {
        self.reply_to_all(message, text, std::slice::from_ref(&message.id));
    }

    fn reply_to_all(&self, first: &Inbound, text: &str, ids: &[String]) {
        if first.reply_to.is_none() && !text.is_empty() {
            self.show(&first.origin, Event::Notice(text.to_owned()));
        }
        self.end_with(first, text, ids, None);
    }

    fn running(&self) -> MutexGuard<'_, Vec<String>> {
        sync::lock(&self.running)
    }

    /// Removes finished messages from the list of running ones.
    pub(super) fn ends_running(&self, ids: &[String]) {
        self.running().retain(|id| !ids.contains(id));
    }

    /// Undoes the start of a turn that waits for its user, because a crash then is not its fault.
    pub(super) fn suspend(&self, ids: &[String]) {
        let mut running = self.running();
        let is_counted = running.iter().any(|id| ids.contains(id));
        running.retain(|id| !ids.contains(id));
        if is_counted {
            log_error(&self.log, self.store.release(ids));
        }
    }

    /// Undoes the starts of running turns when the program ends normally. The cancel must be set before.
    pub(crate) fn halt(&self) {
        let running = std::mem::take(&mut *self.running());
        if !running.is_empty() {
            log_error(&self.log, self.store.release(&running));
        }
    }
}

/// Returns the text of messages that are answered together.
fn joined_text(messages: &[Inbound]) -> String {
    let texts = messages.iter().map(|message| message.text.as_str());
    texts
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("\n\n")
}

/// Returns the end of a turn that could not begin, and its text.
fn failed(session: &str, e: Error) -> (Response, String) {
    let response = Response::failed(session, e);
    let text = final_text(&response);
    (response, text)
}

/// Returns the text that ends a turn in its chat.
fn final_text(response: &Response) -> String {
    let mut parts: Vec<String> = response
        .lost
        .iter()
        .map(|lost| format!("⚠️ {lost}"))
        .collect();
    let answer = response.answer_for_chat();
    let end = match &response.error {
        // An empty answer is reported.
        None if answer.is_empty() => "(empty answer)".to_owned(),
        None => String::new(),
        Some(_) if response.stop == TurnStop::Cancelled => "(Stopped.)".to_owned(),
        // The error's hint is for the terminal.
        Some(error) => format!("⚠️ {}", error.message),
    };
    parts.extend([answer, end]);
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n")
}
