//! Answers a message, from top to bottom: records its start, downloads its files, runs the turn, and stores the answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Dispatcher;
use super::reports::{MAX_POSTED, task_of};
use super::run::note_title;
use crate::agent::{Agent, ReceivedMessage, Request, Steering};
use crate::bus::{Event, Inbound, Response, Source, TurnStop, Work};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::message::Media;
use crate::outbox::{Item, Note};
use crate::storage::queue::MAX_STARTS;
use crate::text::clip;
use crate::usage::Budget;

impl Dispatcher {
    /// Answers messages of a user together, a run of a job, the report of a background task, or a command.
    pub(super) fn answer(self: &Arc<Self>, mut work: Work) {
        if let Some(command) = work.first().command.clone() {
            return self.command_in_turn(&work, &command);
        }
        if self.refuse_command(&work) || self.gives_up_job(work.first()) || self.skip_crasher(&work)
        {
            return;
        }
        let mut budget = None;
        if let Source::Task = work.first().source {
            budget = self.tasks.begin_answer(task_of(work.first()));
            if budget.is_none() {
                // The task was stopped in the meantime.
                return;
            }
        }
        if !self.start(work.first()) {
            return;
        }
        self.show(&work.first().origin.clone(), Event::TurnStarted);
        if let Source::Job(_) = work.first().source {
            return self.answer_job(&mut work);
        }
        let (response, mut text) = match self.handler.agent() {
            Ok(agent) => {
                let own = || agent.budget(&work.first().session, &work.first().origin.channel);
                let budget = budget.unwrap_or_else(own);
                let session = work.first().session.clone();
                let (messages, cancel) = (&mut work.messages, &work.cancel);
                let fetched = self.fetch(&session, messages, cancel, &budget);
                // If the program is stopping by now, the message remains open, and its start was undone.
                if self.cancel.reason().is_some() {
                    return;
                }
                match fetched {
                    Ok(()) => self.run(&mut work, &agent, &budget),
                    Err(e) => failed(&work.first().session, e),
                }
            }
            Err(e) => failed(&work.first().session, e),
        };
        let (first, has_failed) = (work.first(), response.stop == TurnStop::Error);
        if matches!(first.source, Source::Task) && has_failed && response.output.is_empty() {
            // The model could not pass on the report, so the user gets the original.
            text = format!("{}\n\n{text}", clip(&first.text, MAX_POSTED));
        }
        self.finish(&work, response, &text);
    }

    /// Counts the start of a conversation's work on disk. A full disk does not prevent the answer. Returns false if the program
    /// is stopping.
    pub(super) fn start(&self, first: &Inbound) -> bool {
        let (has_started, counted) = self.inbox.start(&first.session);
        self.show_failure(&first.origin, counted);
        has_started
    }

    /// Rejects an unknown command in a chat, which the model would mistake for a question.
    fn refuse_command(&self, work: &Work) -> bool {
        let first = work.first();
        let is_written = first.written().is_some();
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

    /// Skips a message that has crashed the program three times, without its text, which might crash it again.
    fn skip_crasher(&self, work: &Work) -> bool {
        let is_skipped = work.first().starts >= MAX_STARTS;
        if is_skipped {
            let text = "I crashed three times on this message, so I skipped it.";
            self.reply(work.first(), text);
        }
        is_skipped
    }

    /// Downloads the files of messages, which may take minutes. Transcribing recordings may cost money. Returns an error if no
    /// message has words.
    fn fetch(
        &self,
        session: &str,
        messages: &mut [Inbound],
        cancel: &Cancel,
        budget: &Budget,
    ) -> Result<()> {
        let Some(bot) = self.bot.as_ref() else {
            return Ok(());
        };
        if messages.iter().all(|message| message.files().is_empty()) {
            return Ok(());
        }
        self.inbox.without_turn(session, || {
            let fetched = messages
                .iter_mut()
                .map(|message| bot.fetch(message, cancel, budget));
            // One message with words is a question.
            fetched.min_by_key(Result::is_err).unwrap_or(Ok(()))
        })
    }

    /// Runs the turn. Also returns the text that ends it in a chat.
    pub(super) fn run(
        self: &Arc<Self>,
        work: &mut Work,
        agent: &Agent,
        budget: &Arc<Budget>,
    ) -> (Response, String) {
        let (text, media) = joined(&mut work.messages);
        let first = work.first();
        let (origin, session) = (&first.origin, &first.session);
        let request = Request {
            media,
            title: work.title.clone(),
            origin: origin.clone(),
            ids: work
                .messages
                .iter()
                .map(|message| message.id.clone())
                .collect(),
            model: first.model.clone(),
            confirm: self.asker(first, &work.cancel),
            cancel: work.cancel.clone(),
            budget: Some(budget.clone()),
            tasks: Some(self.tasks.clone()),
            steering: Some(self.steering(work, budget)),
            ..Request::new(text, session)
        };
        let has_replied = AtomicBool::new(false);
        let response = agent.run(&request, &|event| {
            let is_reply = matches!(
                event,
                Event::Delta(_) | Event::Progress(_) | Event::ToolStarted { .. }
            );
            if is_reply && !has_replied.swap(true, Ordering::Relaxed) {
                self.inbox.has_replied(session);
            }
            if let (Some(chats), Event::Progress(text)) = (self.chats_of(origin), &event) {
                chats.post(&origin.chat, text.trim(), &[]);
            }
            self.show(origin, event);
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

    /// Lets the message's turn receive later messages of its chat.
    fn steering(self: &Arc<Self>, work: &Work, budget: &Arc<Budget>) -> Arc<Steering> {
        let (own, first, budget) = (self.clone(), work.first().clone(), budget.clone());
        let cancel = work.cancel.clone();
        Arc::new(move |asking: &Cancel| {
            let (mut more, started) = own.inbox.take_more(&first.session, asking);
            own.show_failure(&first.origin, started);
            // A message that arrives meanwhile stops the request, but no download.
            let fetched = own.fetch(&first.session, &mut more, &cancel, &budget);
            own.show_failure(&first.origin, fetched);
            let received = more.into_iter().map(|message| ReceivedMessage {
                id: message.id,
                text: message.text,
                media: message.media,
            });
            received.collect()
        })
    }

    /// Stores the answer and finishes the answered messages, in one write.
    pub(super) fn finish(&self, work: &Work, response: Response, text: &str) {
        let first = work.first();
        let mut answered = self.inbox.ids(&first.session);
        answered.extend_from_slice(&response.answered);
        let is_job = matches!(first.source, Source::Job(_));
        let title = is_job.then(|| note_title(&first.source));
        if let Some(chats) = self.chats_of(&first.origin) {
            chats.end_activity(&first.origin.chat);
        }
        let is_kept = self.end_with(first, text, &answered, title.as_deref());
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
        let is_kept = if let (Some(to), false) = (&first.reply_to, text.is_empty()) {
            let note = title.map(|title| Note {
                title,
                from: &first.session,
                text,
            });
            let item = Item::text(to, text);
            let is_kept = self.post(&item, ids, note.as_ref());
            if let (false, Some(chats)) = (is_kept, &self.bot) {
                chats.sender.send_unrecorded(item, ids);
            }
            is_kept
        } else {
            let ended = self.inbox.finish(ids);
            let is_kept = ended.is_ok();
            self.show_failure(&first.origin, ended);
            is_kept
        };
        self.inbox.forget(ids);
        is_kept
    }

    /// Replies to a message that needs no turn, and finishes it.
    pub(super) fn reply(&self, message: &Inbound, text: &str) {
        if message.reply_to.is_none() && !text.is_empty() {
            self.show(&message.origin, Event::Notice(text.to_owned()));
        }
        self.end_with(message, text, std::slice::from_ref(&message.id), None);
    }
}

/// Returns the text and the media of messages that are answered together.
fn joined(messages: &mut [Inbound]) -> (String, Vec<Media>) {
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    for message in messages {
        texts.extend(Some(message.text.as_str()).filter(|text| !text.is_empty()));
        media.append(&mut message.media);
    }
    (texts.join("\n\n"), media)
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
