//! Answers a message, from top to bottom: records its start, downloads its files, runs the turn, and stores the answer.

use std::slice::from_ref;
use std::sync::Arc;

use super::Dispatcher;
use super::reports::{MAX_POSTED, task_of};
use super::run::note_title;
use crate::agent::{Agent, Request, Steering};
use crate::bus::{Event, Inbound, Response, Source, TurnStop, Work};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Kind, Result};
use crate::log::log_error;
use crate::message::Media;
use crate::outbox::{Item, Note};
use crate::storage::queue::MAX_STARTS;
use crate::text::clip;
use crate::usage::Budget;

impl Dispatcher {
    /// Answers messages of a user together, a run of a job, the report of a background task, or a command.
    pub(super) fn answer(self: &Arc<Self>, mut work: Work) {
        if let Some(command) = work.first().command.clone() {
            return self.answer_command(&work, &command);
        }
        if let Some(why) = self.refusal(&work) {
            return self.reply(work.first(), &why);
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
        self.show(&work.first().origin, &Event::TurnStarted);
        if let Source::Job(_) = work.first().source {
            return self.answer_job(&mut work);
        }
        let session = work.first().session.clone();
        let mut is_told = false;
        let asked = self.agents.agent().and_then(|agent| {
            let own = || agent.budget(&session, &work.first().origin.channel);
            let budget = budget.unwrap_or_else(own);
            self.fetch(&session, &mut work.messages, &work.cancel, &budget)?;
            let response = self.run(&mut work, &agent, &budget, "")?;
            is_told = response.stop == TurnStop::Limit && budget.is_told_again();
            Ok(response)
        });
        let response = match asked {
            // The message remains open, and its start was undone.
            Err(_) if self.cancel.reason().is_some() => return,
            asked => asked.unwrap_or_else(|e| Response::failed(&session, e)),
        };
        let (first, mut text) = (work.first(), final_text(&response));
        let is_report = matches!(first.source, Source::Task);
        if response.output.is_empty() && is_told {
            // The error that the budget is used up is shown once, not for each waiting report.
            text.clear();
        } else if response.output.is_empty() && is_report && response.stop == TurnStop::Error {
            // The model could not pass on the report, so the user gets the original.
            text = format!("{}\n\n{text}", clip(&first.text, MAX_POSTED));
        }
        self.finish(&work, response, &text);
    }

    /// Counts the start of a conversation's work on disk. A full disk does not prevent the answer. Returns false if the program
    /// is stopping.
    pub(super) fn start(&self, first: &Inbound) -> bool {
        let started = self.inbox.start(&first.session);
        started.unwrap_or_else(|e| {
            self.show(&first.origin, &Event::Notice(e.message));
            true
        })
    }

    /// Returns why the model is not asked, if so, without the text of a message that has crashed the program, which might crash it
    /// again.
    fn refusal(&self, work: &Work) -> Option<String> {
        let first = work.first();
        if let Source::Job(run) = &first.source {
            return self.give_up_job(first, run);
        }
        if first.starts >= MAX_STARTS {
            return Some("I crashed three times on this message, so I skipped it.".to_owned());
        }
        // The model would mistake an unknown command in a chat for a question.
        let is_alone = first.written().is_some() && work.messages.len() == 1;
        if !is_alone || !first.text.starts_with('/') {
            return None;
        }
        let name = self.agents.unknown_command(&first.text)?;
        Some(format!("There is no command /{name}; /help lists them."))
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

    /// Runs the turn, under a title for the conversation if it is not empty.
    ///
    /// # Errors
    /// Returns an error if the program is stopping; the messages then remain open.
    pub(super) fn run(
        self: &Arc<Self>,
        work: &mut Work,
        agent: &Agent,
        budget: &Arc<Budget>,
        title: &str,
    ) -> Result<Response> {
        // A download or a check may have taken long.
        if self.cancel.reason().is_some() {
            return Err(Error::new(Kind::Interrupted, "the program is stopping"));
        }
        let (text, media) = joined(&mut work.messages);
        let first = work.first();
        let (origin, session) = (&first.origin, &first.session);
        let ids = work.messages.iter().map(|message| message.id.clone());
        let request = Request {
            media,
            title: title.to_owned(),
            origin: origin.clone(),
            ids: ids.collect(),
            model: first.model.clone(),
            confirm: self.asker(first, &work.cancel),
            cancel: work.cancel.clone(),
            budget: Some(budget.clone()),
            tasks: Some(self.tasks.clone()),
            steering: Some(self.steering(work, budget)),
            ..Request::new(text, session)
        };
        Ok(agent.run(&request, &|event| {
            let is_reply = matches!(
                event,
                Event::Delta(_) | Event::Progress(_) | Event::ToolStarted { .. }
            );
            if is_reply {
                self.inbox.has_replied(session);
            }
            if let (Some(chats), Event::Progress(text)) = (self.chats_of(origin), &event) {
                chats.post(&origin.chat, text.trim());
            }
            self.show(origin, &event);
        }))
    }

    /// Lets the message's turn receive later messages of its chat.
    fn steering(self: &Arc<Self>, work: &Work, budget: &Arc<Budget>) -> Arc<Steering> {
        let own = self.clone();
        let first = work.first().clone();
        let budget = budget.clone();
        let cancel = work.cancel.clone();
        Arc::new(move |asking: &Cancel| {
            let (mut more, started) = own.inbox.take_more(&first.session, asking);
            own.show_failure(&first.origin, started);
            // A message that arrives meanwhile stops the request, but no download.
            let fetched = own.fetch(&first.session, &mut more, &cancel, &budget);
            own.show_failure(&first.origin, fetched);
            more
        })
    }

    /// Stores the answer and finishes the answered messages, in one write.
    pub(super) fn finish(&self, work: &Work, response: Response, text: &str) {
        let first = work.first();
        let own = self.inbox.ids(&first.session);
        let others = response.answered.iter().filter(|id| !own.contains(id));
        let answered: Vec<String> = own.iter().chain(others).cloned().collect();
        let title = note_title(&first.source);
        let note = title.as_ref().map(|title| Note {
            title,
            from: &first.session,
            text,
        });
        if let Some(chats) = self.chats_of(&first.origin) {
            chats.end_activity(&first.origin.chat);
        }
        let is_kept = self.end(first, Item::text("", text), &answered, note.as_ref());
        self.show(&first.origin, &Event::Done(Box::new(response)));
        if let Source::Task = first.source {
            // A report whose answer is not on disk is answered again after a restart.
            if is_kept {
                self.show_failure(&first.origin, self.tasks.close(task_of(first)));
            }
            self.show_tasks(&first.origin, &first.session);
        }
    }

    /// Ends messages with an item for the chat of the first, if it has a chat and the item a text, in one write. A full disk does
    /// not prevent the text. Returns whether this is on disk.
    pub(super) fn end(
        &self,
        first: &Inbound,
        mut item: Item,
        ids: &[String],
        note: Option<&Note>,
    ) -> bool {
        item.to = first.reply_to.clone().unwrap_or_default();
        let is_sent = !item.to.is_empty() && !item.text.is_empty();
        let ended = if is_sent {
            self.outbox.post(&item, ids, note).map(drop)
        } else {
            let done = self.inbox.queue.done(ids);
            done.doing("recording that a message was answered")
        };
        let is_kept = log_error(&self.log, ended).is_some();
        if let (true, false, Some(chats)) = (is_sent, is_kept, &self.bot) {
            chats.sender.send_unrecorded(item, ids);
        }
        self.inbox.forget(&first.session, ids);
        is_kept
    }

    /// Replies to a message that needs no turn, and ends it.
    pub(super) fn reply(&self, message: &Inbound, text: &str) {
        if message.reply_to.is_none() && !text.is_empty() {
            self.show(&message.origin, &Event::Notice(text.to_owned()));
        }
        self.end(message, Item::text("", text), from_ref(&message.id), None);
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

/// Returns the text that ends a turn in its chat.
fn final_text(response: &Response) -> String {
    let lost = response.lost.iter().map(|lost| format!("⚠️ {lost}"));
    let mut parts: Vec<String> = lost.collect();
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
