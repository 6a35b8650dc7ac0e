//! The dispatcher: distributes messages from the inbox to one worker per conversation, and handles stops immediately.

mod answer;
mod ask;
mod bot;
mod checks;
mod clock;
mod drain;
mod endpoint;
mod handler;
mod monitor;
mod poster;
mod queue;
pub(crate) mod run;
mod semaphore;
mod serving;
mod start;
mod tasks;
mod turn_log;

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

use crate::agent::{Agent, Tasks};
use crate::bus::{Channel, Command, Event, Inbound, Inbox, MessageStore, Origin, Outbound, Source};
use crate::cancel::Cancel;
use crate::cron::Jobs;
use crate::error::{Context, Result};
use crate::log::Logger;
use crate::paths::Home;
use crate::sync;
use crate::telegram::{self, Chats};
pub(crate) use checks::check_command;
use poster::Poster;
use queue::Queues;
use semaphore::Semaphore;
pub use serving::serve;
pub(crate) use start::run;

/// Delay before another try to start a thread.
const THREAD_RETRY: Duration = Duration::from_secs(1);

/// Provides the agent and runs commands.
pub(crate) trait Handler: Send + Sync {
    /// Returns the agent for the next turn.
    fn agent(&self) -> Result<Arc<Agent>>;

    /// Returns the name of an unknown command, `/NAME`, in a message.
    fn unknown_command(&self, _message: &str) -> Option<String> {
        None
    }

    /// Runs a command other than [`Command::Stop`], and returns the reply.
    fn command(&self, command: &Command, session: &str) -> Result<CommandReply>;
}

/// The reply to a command.
pub(crate) struct CommandReply {
    pub text: String,
    /// Models for a menu of buttons.
    pub models: Vec<String>,
}

impl From<String> for CommandReply {
    fn from(text: String) -> Self {
        Self {
            text,
            models: Vec::new(),
        }
    }
}

/// Dependencies of a dispatcher.
pub(crate) struct Resources {
    pub handler: Arc<dyn Handler>,
    /// Maximum number of concurrent turns.
    pub workers: usize,
    pub home: Home,
    pub store: MessageStore,
    pub jobs: Jobs,
    pub poster: Poster,
    /// Set when the program is stopping: turns no longer start, and the next program resumes the running ones.
    pub cancel: Cancel,
    pub log: Logger,
}

pub(crate) struct Dispatcher {
    handler: Arc<dyn Handler>,
    home: Home,
    store: MessageStore,
    jobs: Jobs,
    poster: Poster,
    cancel: Cancel,
    log: Logger,
    outbound: OnceLock<Vec<Sender<Outbound>>>,
    queues: Queues,
    tasks: Tasks,
    /// Limits the number of concurrent turns.
    turns: Semaphore,
    /// Serializes turns that were unfinished at a restart.
    alone: Semaphore,
    /// Conversations that wait for the owner's answer, and whether their chat was notified.
    asking: Mutex<HashMap<String, bool>>,
    /// Messages whose turns are running and count as started.
    running: Mutex<Vec<String>>,
    started: Instant,
}

impl Dispatcher {
    pub(crate) fn new(with: Resources) -> Arc<Self> {
        Arc::new_cyclic(|own: &Weak<Self>| Self {
            handler: with.handler,
            home: with.home,
            store: with.store,
            jobs: with.jobs,
            poster: with.poster,
            cancel: with.cancel,
            log: with.log,
            outbound: OnceLock::new(),
            queues: Queues::default(),
            tasks: Tasks::with_sink(own.clone()),
            turns: Semaphore::new(with.workers),
            alone: Semaphore::new(1),
            asking: Mutex::default(),
            running: Mutex::default(),
            started: Instant::now(),
        })
    }

    /// Returns the bot's chats for a message from Telegram.
    fn chats_of(&self, origin: &Origin) -> Option<&Arc<Chats>> {
        if origin.channel == telegram::CHANNEL {
            self.poster.chats.as_ref()
        } else {
            None
        }
    }

    /// Answers the messages that an earlier program has left and the messages that channels add to `inbox`, until all channels,
    /// turns and background tasks have ended and the last event was shown. An error in a channel ([`Channel::drained`]) stops
    /// `cancel`, which ends the channels.
    pub(crate) fn serve(
        self: Arc<Self>,
        channels: Vec<Box<dyn Channel>>,
        inbox: (Inbox, Receiver<Inbound>),
        left: Vec<Inbound>,
        cancel: &Cancel,
    ) -> Result<()> {
        let (inbox, arrivals) = inbox;
        let (failures, failed) = mpsc::channel();
        let mut outbound = Vec::new();
        for mut channel in channels {
            if let Some(end) = channel.drained() {
                drain::watch(end, failures.clone(), cancel.clone())?;
            }
            outbound.push(channel.start(inbox.clone())?);
        }
        drop((inbox, failures));
        self.outbound.get_or_init(|| outbound);
        for message in left {
            match message.source {
                Source::Task => self.pass_on(&message),
                _ => self.dispatch(message),
            }
        }
        for message in arrivals {
            self.dispatch(message);
        }
        self.queues.wait_until_idle(Duration::MAX);
        // Drops the senders of events.
        drop(self);
        drain::wait(&failed)
    }

    /// Starts work without a queue, which ends when the result is dropped.
    fn begin_other(self: &Arc<Self>) -> OtherWork {
        self.queues.begin_other();
        OtherWork(self.clone())
    }

    /// Waits up to `limit` until all messages, turns and background tasks are finished.
    pub(crate) fn wait_until_idle(&self, limit: Duration) {
        self.queues.wait_until_idle(limit);
    }

    /// Whether all messages, turns and background tasks are finished.
    pub(crate) fn is_idle(&self) -> bool {
        self.queues.is_idle()
    }

    /// Queues a message, or runs a command that does not wait for its conversation. Reads and writes no files, because a stop of
    /// another chat may be next.
    fn dispatch(self: &Arc<Self>, message: Inbound) {
        match message.command {
            Some(Command::Stop) => {
                let otherwise = if self.queues.stop(&message.session) {
                    // The end of the turn reports the stop.
                    ""
                } else {
                    "There is nothing to stop."
                };
                return self.run_apart(message, move |own, message| own.stop(message, otherwise));
            }
            Some(Command::Status | Command::Usage | Command::Help) => {
                return self.run_apart(message, Self::run_command);
            }
            Some(Command::New | Command::Undo | Command::Model(_)) => {}
            None => self.tell_what_is_waited_for(&message),
        }
        self.enqueue(message);
    }

    /// Runs a command on a separate thread. If none can be started, the message remains open until a restart.
    fn run_apart(
        self: &Arc<Self>,
        message: Inbound,
        run: impl FnOnce(&Self, &Inbound) + Send + 'static,
    ) {
        let (origin, running) = (message.origin.clone(), self.begin_other());
        let work = move || run(&running.0, &message);
        let started = Builder::new().name("command".to_owned()).spawn(work);
        self.show_failure(&origin, started.map(drop).doing("starting a thread"));
    }

    /// Answers the first message after an open question with a reminder of the question.
    fn tell_what_is_waited_for(self: &Arc<Self>, message: &Inbound) {
        let mut asking = sync::lock(&self.asking);
        let is_first = asking
            .get_mut(&message.session)
            .is_some_and(|is_told| !std::mem::replace(is_told, true));
        drop(asking);
        if is_first {
            self.run_apart(message.clone(), |own, message| {
                let text = "Please answer the question above first, or send /stop.";
                if let Some(chats) = own.chats_of(&message.origin) {
                    chats.post(&message.origin.chat, text, &[]);
                }
            });
        }
    }

    /// Queues a message, and starts a worker if its conversation has none. Blocks until a thread can be started.
    fn enqueue(self: &Arc<Self>, message: Inbound) {
        let (origin, session) = (message.origin.clone(), message.session.clone());
        let mut is_told = !self.queues.push(message);
        if is_told {
            return;
        }
        loop {
            let (own, key) = (self.clone(), session.clone());
            let started = Builder::new()
                .name("worker".to_owned())
                .spawn(move || own.work(&key));
            let Err(e) = started else { return };
            if !std::mem::replace(&mut is_told, true) {
                self.show_failure(&origin, Err(e).doing("starting a thread"));
            }
            thread::sleep(THREAD_RETRY);
        }
    }

    /// Answers the messages of a conversation until its queue is empty.
    fn work(self: &Arc<Self>, session: &str) {
        while let Some(work) = self.queues.take(session) {
            if work.first().command.is_some() {
                self.begin_command(work.first());
            } else {
                self.answer(work);
            }
        }
    }

    /// Runs a command with side effects, but not again after a crash, because the first run may have succeeded.
    fn begin_command(&self, message: &Inbound) {
        if message.starts > 0 {
            let name = match message.command {
                Some(Command::New) => "/new",
                Some(Command::Undo) => "/undo",
                _ => "/model",
            };
            let text = format!("I was interrupted. Send {name} again if you still need it.");
            return self.reply(message, &text);
        }
        let ids = [message.id.clone()];
        if self.start(&message.origin, &ids) {
            self.run_command(message);
            self.ends_running(&ids);
        }
    }

    /// Stops the background tasks, and replies with their number, or with `otherwise` if there are none.
    fn stop(&self, message: &Inbound, otherwise: &str) {
        let text = match self.stop_tasks(message) {
            0 => otherwise.to_owned(),
            count => stopped_tasks(count),
        };
        self.reply(message, &text);
        self.show_tasks(&message.origin, &message.session);
    }

    /// Stops the background tasks of a conversation and returns their number.
    fn stop_tasks(&self, message: &Inbound) -> usize {
        let (stopped, forgotten) = self.tasks.stop(&message.session);
        self.show_failure(&message.origin, forgotten);
        stopped.len()
    }

    fn run_command(&self, message: &Inbound) {
        let Some(command) = &message.command else {
            return;
        };
        let stopped = match command {
            // Reports of these tasks would refer to questions that are gone.
            Command::Undo | Command::New => self.stop_tasks(message),
            _ => 0,
        };
        let reply = self.handler.command(command, &message.session);
        let mut reply = reply.unwrap_or_else(|e| {
            let text = match e.hint {
                Some(hint) => format!("{}\nhint: {hint}", e.message),
                None => e.message,
            };
            text.into()
        });
        if stopped > 0 {
            reply.text.push('\n');
            reply.text.push_str(&stopped_tasks(stopped));
            self.show_tasks(&message.origin, &message.session);
        }
        if *command == Command::Status {
            let (turns, tasks) = (self.turns.in_use(), self.tasks.open(None));
            let more = format!("\nturns running: {turns}\nbackground tasks: {tasks}");
            reply.text.push_str(&more);
        }
        match self.chats_of(&message.origin) {
            Some(chats) if !reply.models.is_empty() => {
                let ids = std::slice::from_ref(&message.id);
                chats.offer_models(&message.origin.chat, &reply.text, &reply.models, ids);
            }
            _ => self.reply(message, &reply.text),
        }
    }

    fn show(&self, origin: &Origin, event: Event) {
        let outbound = Outbound {
            origin: origin.clone(),
            event,
        };
        for channel in self.outbound.get().into_iter().flatten() {
            // A channel may have no receiver any more.
            drop(channel.send(outbound.clone()));
        }
    }

    /// Shows the number of running background tasks of a conversation.
    fn show_tasks(&self, origin: &Origin, session: &str) {
        self.show(origin, Event::Background(self.tasks.open(Some(session))));
    }

    fn show_failure(&self, origin: &Origin, result: Result<()>) {
        if let Err(e) = result {
            self.show(origin, Event::Notice(e.message));
        }
    }
}

/// Work that a restart waits for.
struct OtherWork(Arc<Dispatcher>);

impl Drop for OtherWork {
    fn drop(&mut self) {
        self.0.queues.end_other();
    }
}

fn stopped_tasks(count: usize) -> String {
    match count {
        1 => "The background task was stopped.".to_owned(),
        count => format!("{count} background tasks were stopped."),
    }
}
