//! Serves channels of an embedding program, with the gateway's queue, stop and crash safety.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::gateway;
use crate::agent::Agent;
use crate::bus::{Channel, Event, Inbound, Kind, Origin, Outbound};
use crate::cancel::Cancel;
use crate::config;
use crate::cron::Jobs;
use crate::disk::{Entry, MAX_STARTS, Queue};
use crate::error::{Context, Error, Result};
use crate::gateway::run::JobRunner;
use crate::gateway::tasks::Tasks;
use crate::gateway::{ControlReply, Dispatcher, Handler};
use crate::message::Media;
use crate::outbox::Outbox;
use crate::paths::Home;

/// Which items of the queue are messages of channels.
const KIND: &str = "channel";

/// Turns that run at the same time, in different conversations.
const WORKERS: usize = 4;

/// How long channels have for what they have not shown when nothing more can come.
const LAST_SHOWN: Duration = Duration::from_secs(30);

/// Lets an agent answer the messages of these channels until all channels have ended, or `cancel` stops, and then until no
/// message waits and no turn runs.
///
/// Messages of one conversation are answered one after the other, those that wait together in one turn; up to four
/// conversations are answered at once. [`Kind::Stop`] ends the turn that runs. The events of a turn go to all channels; its last
/// is [`Event::Done`], and the word that a message other than [`Kind::Message`] gets is a [`Event::Notice`].
///
/// A message with an id is kept in `home` until its turn is over: after a crash the next call of `serve` with this home goes on
/// with the turn, if the agent's store has kept it. One whose id is known already is not answered again, and one that has stopped
/// the program three times is given up. `home` is in use by one server at a time.
///
/// When this returns, for whatever reason, `cancel` is stopped, so that what reads for a channel learns that nobody listens. A
/// message with an id that came too late is kept for the next call of `serve`.
///
/// # Errors
/// Of the kind [`crate::error::Kind::Busy`]: another server uses `home`. A channel cannot start, or the queue cannot be read.
///
/// A channel of [`bus::channel`](crate::bus::channel) panicked: the messages that wait are answered, then this ends. Or a channel that
/// tells what it has shown ([`Channel::last_shown`]) needed more than 30 seconds for the last events; its thread is left behind.
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
    let _lock = gateway::lock(&home)?;
    let outbox = Outbox::new(home.clone());
    let queue = outbox.queue().clone();
    let (tasks, _) = Tasks::open(&outbox)?;
    let runs = JobRunner::new(
        home.clone(),
        Jobs::new(home, &config::environment()),
        0,
        outbox,
        Cancel::new(None),
        Arc::new(|_, _| ()),
    );
    let served = Served {
        agent: Arc::new(agent),
        queue: queue.clone(),
    };
    let dispatcher = Dispatcher::new(Arc::new(served), WORKERS, tasks, None, Arc::new(runs));
    let left = queue.entries(KIND)?;
    let mut all: Vec<Box<dyn Channel>> = vec![Box::new(Left(left, queue.clone()))];
    let (failures, failed) = channel();
    let mut ways = Vec::new();
    for mut channel in channels {
        if let Some(end) = channel.last_shown() {
            watch(end, failures.clone(), cancel.clone())?;
        }
        let way = Way::default();
        ways.push(way.clone());
        all.push(Box::new(KeepingChannel {
            channel,
            queue: queue.clone(),
            way,
            cancel: cancel.clone(),
        }));
    }
    drop(failures);
    let _hook = cancel.on_stop(move || ways.iter().for_each(Way::close));
    // The events' senders are gone when this returns.
    Arc::new(dispatcher).serve(all)?;
    all_shown(&failed, Instant::now() + LAST_SHOWN)
}

/// Ends serving by the first thing that goes wrong in a channel.
fn watch(end: Receiver<Error>, failures: Sender<Error>, cancel: Cancel) -> Result<()> {
    let watching = move || {
        for failure in end {
            // Nobody listens once serving has ended.
            failures.send(failure).ok();
            cancel.stop();
        }
    };
    let thread = Builder::new().name("channel".to_owned());
    thread.spawn(watching).doing("starting a thread")?;
    Ok(())
}

/// Waits until all channels have shown what there was, and tells the first thing that went wrong.
fn all_shown(failed: &Receiver<Error>, until: Instant) -> Result<()> {
    let mut first = Ok(());
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match failed.recv_timeout(left) {
            Ok(e) => first = first.and(Err(e)),
            Err(RecvTimeoutError::Disconnected) => return first,
            Err(RecvTimeoutError::Timeout) => {
                let e = format!(
                    "a channel did not show its last events within {} seconds",
                    LAST_SHOWN.as_secs()
                );
                return first.and(Err(Error::failed(e)));
            }
        }
    }
}

/// A channel's way into the dispatcher, which ends when all are closed, and back.
#[derive(Clone, Default)]
struct Way(Arc<Mutex<Option<Ends>>>);

type Ends = (Sender<Inbound>, Sender<Outbound>);

impl Way {
    fn lock(&self) -> MutexGuard<'_, Option<Ends>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        drop(self.lock().take());
    }
}

/// A message of a channel, until its turn is over.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct KeptMessage {
    channel: String,
    chat: String,
    session: String,
    text: String,
    media: Vec<Media>,
}

/// The id of a message among those of all channels; a turn for several messages has their ids, joined by `+`.
fn id_of(channel: &str, id: &str) -> String {
    format!("{channel}:{id}").replace('+', "%2B")
}

/// Has one agent for all conversations.
struct Served {
    agent: Arc<Agent>,
    queue: Arc<Queue>,
}

impl Handler for Served {
    fn agent(&self, _: &str) -> Result<Arc<Agent>> {
        Ok(self.agent.clone())
    }

    fn control(&self, kind: &Kind, session: &str) -> Result<ControlReply> {
        match kind {
            Kind::New => {
                self.agent.reset(session)?;
                Ok("A new conversation begins.".to_owned().into())
            }
            Kind::Status => {
                let (model, window) = (self.agent.model(), self.agent.window_use(session)?);
                Ok(format!("`{model}`\ncontext: {window}").into())
            }
            _ => Err(Error::failed("this command does not exist here")),
        }
    }

    fn begins(&self, ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.queue.start(ids)
    }

    fn ends(&self, ids: &[String]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.queue.done(ids)
    }
}

/// What an earlier run has left.
struct Left(Vec<Entry>, Arc<Queue>);

impl Channel for Left {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let Self(left, queue) = *self;
        let mut sent: Vec<&str> = Vec::new();
        for entry in &left {
            // What was answered together is answered together again, as its conversation names the turn by all its ids.
            let ids = match entry.group.as_slice() {
                [] => std::slice::from_ref(&entry.id),
                group => group,
            };
            let parts: Vec<&Entry> = ids
                .iter()
                .filter(|id| !sent.contains(&id.as_str()))
                .filter_map(|id| left.iter().find(|other| other.id == **id))
                .collect();
            sent.extend(parts.iter().map(|part| part.id.as_str()));
            if entry.starts >= MAX_STARTS {
                for part in parts {
                    queue.give_up(&part.id, "it stopped the program three times")?;
                }
                continue;
            }
            let mut messages = parts.into_iter().map(message);
            let Some(mut message) = messages.next() else {
                continue;
            };
            messages.for_each(|more| message.merge(more));
            drop(inbound.send(message));
        }
        Ok(channel().0)
    }
}

/// A message that was kept.
fn message(entry: &Entry) -> Inbound {
    let kept: KeptMessage = entry.read();
    let origin = Origin {
        channel: kept.channel,
        chat: kept.chat,
    };
    Inbound {
        attachments: kept.media,
        ids: vec![entry.id.clone()],
        is_alone: entry.starts > 0 || !entry.group.is_empty(),
        ..Inbound::message(origin, kept.session, kept.text)
    }
}

/// A channel whose messages are kept before the dispatcher gets them.
struct KeepingChannel {
    channel: Box<dyn Channel>,
    queue: Arc<Queue>,
    way: Way,
    cancel: Cancel,
}

impl Channel for KeepingChannel {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let (sender, messages) = channel::<Inbound>();
        let outbound = self.channel.start(sender)?;
        *self.way.lock() = Some((inbound, outbound.clone()));
        if self.cancel.why().is_some() {
            self.way.close();
        }
        let (queue, way) = (self.queue, self.way);
        let forward = move || {
            for mut message in messages {
                let kept = keep(&queue, &mut message);
                let way = way.lock();
                let Some((inbound, shown)) = way.as_ref() else {
                    return;
                };
                let is_new = kept.unwrap_or_else(|e| {
                    // It is answered all the same.
                    let event = Event::Warning(e.doing("keeping a message").message);
                    let origin = message.origin.clone();
                    drop(shown.send(Outbound { origin, event }));
                    true
                });
                if is_new {
                    drop(inbound.send(message));
                }
            }
            way.close();
        };
        Builder::new()
            .name("channel".to_owned())
            .spawn(forward)
            .doing("starting a thread")?;
        Ok(outbound)
    }
}

/// Keeps a message that has an id; false if it is known already.
fn keep(queue: &Queue, message: &mut Inbound) -> Result<bool> {
    if message.ids.is_empty() || message.kind != Kind::Message {
        message.ids.clear();
        return Ok(true);
    }
    let id = id_of(&message.origin.channel, &message.ids.join("+"));
    message.ids = vec![id.clone()];
    if queue.is_done(&id)? || !queue.find(&message.ids)?.is_empty() {
        return Ok(false);
    }
    let kept = KeptMessage {
        channel: message.origin.channel.clone(),
        chat: message.origin.chat.clone(),
        session: message.session.clone(),
        text: message.text.clone(),
        media: message.attachments.clone(),
    };
    queue.add(&[Entry::new(&id, KIND, &kept)])?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_were_answered_together_are_answered_together_again() {
        let dir = std::env::temp_dir().join(format!("bantam-left-{}", std::process::id()));
        let queue = Arc::new(Queue::new(dir.join("q"), dir.join("lock"), 9, || {
            Ok(Vec::new())
        }));
        for id in ["a", "b", "c", "d"] {
            let kept = KeptMessage {
                text: format!("text {id}"),
                session: "s".to_owned(),
                ..KeptMessage::default()
            };
            queue.add(&[Entry::new(id, KIND, &kept)]).unwrap();
        }
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        queue.start(&ids(&["b", "a"])).unwrap();
        queue.start(&ids(&["c"])).unwrap();
        queue.start(&ids(&["c"])).unwrap();
        queue.start(&ids(&["c"])).unwrap();
        let left = Left(queue.entries(KIND).unwrap(), queue.clone());
        let (sender, messages) = channel();
        Box::new(left).start(sender).unwrap();
        let found: Vec<_> = messages
            .iter()
            .map(|message| (message.ids.join("+"), message.text, message.is_alone))
            .collect();
        let expected = [
            ("b+a".to_owned(), "text b\n\ntext a".to_owned(), true),
            ("d".to_owned(), "text d".to_owned(), false),
        ];
        assert_eq!(found, expected);
        assert!(queue.is_done("c").unwrap());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
