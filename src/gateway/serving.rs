//! Serves a home: code shared by `bantam gateway` and [`serve`], and the channels of the latter.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::poster::Poster;
use super::{CommandReply, Dispatcher, Handler, Resources};
use crate::agent::Agent;
use crate::app::status;
use crate::bus::{Channel, Command, Inbox, MessageStore, Source};
use crate::cancel::Cancel;
use crate::error::{Error, Kind as ErrorKind, Result};
use crate::log::Logger;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::storage::Lock;

/// Number of turns that run at the same time, in different conversations.
const WORKERS: usize = 4;

/// A home that this process serves while it owns the lock.
pub(super) struct Taken {
    pub lock: Lock,
    pub outbox: Outbox,
    pub store: MessageStore,
}

/// Locks a home, and opens its queued messages.
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

/// Locks a home for serving.
fn lock(home: &Home) -> Result<Lock> {
    // A program that checks for a gateway locks it for a moment.
    let wait = Duration::from_millis(300);
    Lock::acquire(&home.lock("gateway"), wait).map_err(|e| {
        if e.kind != ErrorKind::Busy {
            return e;
        }
        let running = status::read(home).filter(|gateway| gateway["ended"].is_null());
        let process = running.map_or(String::new(), |gateway| {
            format!(" (process {})", gateway["pid"])
        });
        let what = format!("a gateway is already running for this home{process}");
        let hint = "stop that one first, or set BANTAM_HOME to another home";
        Error::new(ErrorKind::Busy, what).hint(hint)
    })
}

/// Runs an agent that answers the messages of these channels until all channels have ended, or `cancel` stops, and then until
/// all messages are answered.
///
/// Messages of one conversation are answered in order; those waiting together share a turn. Up to four conversations are
/// answered at the same time. [`Command::Stop`] ends the running turn. Events of a turn are sent to all channels; the last one
/// is [`Event::Done`](crate::Event::Done). The reply to a command is an [`Event::Notice`](crate::Event::Notice).
///
/// A message is stored in `home` until its turn ends. After a crash, the next call of `serve` with this home continues the
/// turn, if the agent's store has saved it. Messages with a known id are not answered again. A message that crashed the program
/// three times is skipped, with a notice to its chat. Only one server can use `home` at a time.
///
/// Before this returns, `cancel` is stopped, so that readers of channels can end, and [`Inbox::add`] refuses later messages.
///
/// # Errors
/// Returns [`crate::error::Kind::Busy`] if another server uses `home`, and other errors if a channel cannot start or the queue
/// cannot be read.
///
/// Also returns an error if a channel of [`bus::channel`](crate::bus::channel) panicked, after the waiting messages are
/// answered, or if a channel that reports its progress ([`Channel::drained`]) needed more than 30 seconds for the last events;
/// its thread is then abandoned. Answers that were not shown are in their conversations ([`Agent::session`]).
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
    let log: Logger = Arc::new(|_, _| ());
    let dispatcher = Dispatcher::new(Resources {
        handler: Arc::new(OneAgent(Arc::new(agent))),
        workers: WORKERS,
        poster: Poster {
            outbox,
            chats: None,
            log: log.clone(),
        },
        runner: None,
        store: store.clone(),
        // Received messages are answered even after the channels have ended.
        cancel: Cancel::new(None),
        log,
    });
    let (inbox, arrivals) = Inbox::new(store);
    let _hook = inbox.close_on(cancel);
    dispatcher.serve(channels, (inbox, arrivals), left, cancel)
}

/// One agent for all conversations.
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
