//! Serves a home: what `bantam gateway` and a program by [`serve`] have in common, with the channels of the latter.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::agent::Agent;
use crate::bus::{Channel, Command, Inbox, MessageStore, Source};
use crate::cancel::Cancel;
use crate::config;
use crate::cron::Jobs;
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::gateway::poster::Poster;
use crate::gateway::{CommandReply, Dispatcher, Handler, Resources};
use crate::log::Sink;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::storage::Lock;

/// Turns that run at the same time, in different conversations.
const WORKERS: usize = 4;

/// A home that nobody else serves as long as its lock is held.
pub(super) struct Taken {
    pub lock: Lock,
    pub outbox: Outbox,
    pub store: MessageStore,
}

/// Takes a home, with all that waits there.
pub(super) fn take(home: &Home) -> Result<Taken> {
    let lock = lock(home)?;
    let outbox = Outbox::new(home.clone());
    let store = MessageStore::new(outbox.queue().clone());
    Ok(Taken {
        lock,
        outbox,
        store,
    })
}

/// The lock of whoever serves a home.
fn lock(home: &Home) -> Result<Lock> {
    // A program that checks for a gateway holds it for a moment.
    let wait = Duration::from_millis(300);
    Lock::acquire(&home.lock("gateway"), wait, &Cancel::new(None)).map_err(|e| match e.kind {
        ErrorKind::Busy => Error::new(
            ErrorKind::Busy,
            "a gateway is already running for this home",
        )
        .hint("stop that one first, or set BANTAM_HOME to another home"),
        _ => e,
    })
}

/// Lets an agent answer the messages of these channels until all channels have ended, or `cancel` stops, and then until no
/// message waits and no turn runs.
///
/// Messages of one conversation are answered one after the other, those that wait together in one turn; up to four
/// conversations are answered at once. [`Command::Stop`] ends the turn that runs. The events of a turn go to all channels; its
/// last is [`Event::Done`](crate::Event::Done), and the reply to a command is a [`Event::Notice`](crate::Event::Notice).
///
/// A message is kept in `home` until its turn is over: after a crash the next call of `serve` with this home goes on with the
/// turn, if the agent's store has kept it. One whose id is known already is not answered again, and one that has stopped the
/// program three times is set aside, with a word to its chat. `home` is in use by one server at a time.
///
/// When this returns, for whatever reason, `cancel` is stopped, so that what reads for a channel learns that nobody listens, and
/// [`Inbox::add`] refuses what comes too late.
///
/// # Errors
/// Of the kind [`crate::error::Kind::Busy`]: another server uses `home`. A channel cannot start, or the queue cannot be read.
///
/// A channel of [`bus::channel`](crate::bus::channel) panicked: the messages that wait are answered, then this ends. Or a channel that
/// tells what it has shown ([`Channel::drained`]) needed more than 30 seconds for the last events; its thread is left behind.
/// What was not shown then is not lost: each answer is in its conversation ([`Agent::session`]).
pub fn serve(
    agent: Agent,
    home: impl AsRef<Path>,
    channels: Vec<Box<dyn Channel>>,
    cancel: &Cancel,
) -> Result<()> {
    let served = serve_until_end(agent, home.as_ref(), channels, cancel);
    cancel.stop();
    served
}

fn serve_until_end(
    agent: Agent,
    home: &Path,
    channels: Vec<Box<dyn Channel>>,
    cancel: &Cancel,
) -> Result<()> {
    let home = Home::new(std::path::absolute(home)?);
    let Taken {
        lock: _lock,
        outbox,
        store,
    } = take(&home)?;
    let mut left = store.all()?;
    left.retain(|message| {
        message.reply_to.is_none() && matches!(message.source, Source::Channel | Source::Task)
    });
    let jobs = Jobs::new(home.clone(), &config::environment());
    let log: Sink = Arc::new(|_, _| ());
    let dispatcher = Dispatcher::new(Resources {
        handler: Arc::new(OneAgent(Arc::new(agent))),
        workers: WORKERS,
        home,
        poster: Poster {
            outbox,
            chats: None,
            log: log.clone(),
        },
        jobs: jobs.with_messages(store.clone()),
        store: store.clone(),
        // What has come is answered, also after the end.
        cancel: Cancel::new(None),
        log,
    });
    let (inbox, arrivals) = Inbox::new(store);
    let _hook = inbox.close_on(cancel);
    dispatcher.serve(channels, (inbox, arrivals), left, cancel)
}

/// Answers in all conversations.
struct OneAgent(Arc<Agent>);

impl Handler for OneAgent {
    fn agent(&self) -> Result<Arc<Agent>> {
        Ok(self.0.clone())
    }

    fn command(&self, command: &Command, session: &str) -> Result<CommandReply> {
        let agent = &self.0;
        match command {
            Command::New => {
                agent.reset(session)?;
                Ok("This is a new conversation.".to_owned().into())
            }
            Command::Status => {
                let (models, window) = (agent.models_for(session)?, agent.window_use(session)?);
                Ok(format!("`{}`\ncontext: {window}", models.first()).into())
            }
            _ => Err(Error::failed("this command does not exist here")),
        }
    }
}
