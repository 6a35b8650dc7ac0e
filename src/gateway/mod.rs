//! Serves a home: answers the messages of its inbox, each on a thread of its own, and delivers what is posted to its channels.
//!
//! A message's way: a channel adds it to the inbox ([`Inbox::add`]), [`Dispatcher::serve`] gets it as the next work, a turn
//! answers it ([`answer`]), and one write ends it and posts the answer, which its channel delivers ([`deliver`]).

mod answer;
mod approval;
mod checks;
mod clock;
mod commands;
mod deliver;
mod endpoint;
mod handler;
mod reload;
mod reports;
pub(crate) mod run;
mod serving;
mod shutdown;
mod start;
mod turn_log;

use std::sync::{Arc, mpsc};
use std::thread::{self, Builder};
use std::time::Duration;

use crate::agent::Tasks;
use crate::bus::{Channel, Event, Inbox, Origin};
use crate::cancel::Cancel;
use crate::error::{Context, Result};
use crate::log::{Logger, log_error};
use crate::outbox::Outbox;
use crate::telegram::{self, Chats};
pub(crate) use checks::{need_exec, run_check};
use handler::HomeAgent;
use run::JobRunner;
pub use serving::serve;
pub(crate) use start::run;

/// Delay before another try to start a thread.
const THREAD_RETRY: Duration = Duration::from_secs(1);

/// Answers the messages of a home.
struct Dispatcher {
    agents: Arc<HomeAgent>,
    inbox: Inbox,
    outbox: Outbox,
    /// Runs jobs, if there can be any.
    runner: Option<JobRunner>,
    channels: Vec<Arc<dyn Channel>>,
    /// Chats of the Telegram bot, if there is one.
    bot: Option<Arc<Chats>>,
    tasks: Tasks,
    /// Set when the program is stopping: turns no longer start, and the next program resumes the running ones.
    cancel: Cancel,
    log: Logger,
    turn_log: Logger,
}

impl Dispatcher {
    /// Answers the messages of the inbox until it is closed and all turns and tasks have ended.
    fn serve(self: &Arc<Self>) {
        while let Some(mut work) = self.inbox.take() {
            loop {
                let (own, (give, given)) = (self.clone(), mpsc::channel());
                let answer = move || given.iter().for_each(|work| own.answer(work));
                let started = Builder::new().name("worker".to_owned()).spawn(answer);
                log_error(&self.log, started.doing("starting a thread"));
                // Nobody receives it if no thread could start.
                let Err(mpsc::SendError(unsent)) = give.send(work) else {
                    break;
                };
                work = unsent;
                thread::sleep(THREAD_RETRY);
            }
        }
    }

    /// Returns the bot's chats for a message from Telegram.
    fn chats_of(&self, origin: &Origin) -> Option<&Arc<Chats>> {
        if origin.channel == telegram::CHANNEL {
            self.bot.as_ref()
        } else {
            None
        }
    }

    /// Logs an event, and shows it in its channel.
    fn show(&self, origin: &Origin, event: &Event) {
        if let Some((level, text)) = turn_log::line(event) {
            let text = format!("{} {}: {text}", origin.channel, origin.chat);
            (self.turn_log)(level, &text);
        }
        let channels = self.channels.iter();
        let own = channels.filter(|channel| channel.name() == origin.channel);
        own.for_each(|channel| channel.show(&origin.chat, event));
    }

    /// Shows the number of running background tasks of a conversation.
    fn show_tasks(&self, origin: &Origin, session: &str) {
        self.show(origin, &Event::Background(self.tasks.open(Some(session))));
    }

    fn show_failure(&self, origin: &Origin, result: Result<()>) {
        if let Err(e) = result {
            self.show(origin, &Event::Notice(e.message));
        }
    }
}
