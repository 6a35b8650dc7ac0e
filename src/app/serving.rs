//! Serves a home: what `bantam gateway` and a program by [`serve`] have in common, with the channels of the latter.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::bus::{Channel, Event, Inbound, Kind, Origin, Outbound};
use crate::cancel::Cancel;
use crate::config;
use crate::cron::Jobs;
use crate::error::{Context, Error, Kind as ErrorKind, Result};
use crate::gateway::run::JobRunner;
use crate::gateway::tasks::post_left_reports;
use crate::gateway::{ControlReply, Dispatcher, Handler};
use crate::message::Media;
use crate::outbox::Outbox;
use crate::paths::Home;
use crate::storage::{Entry, Lock, Queue};

/// Which items of the queue are messages of channels.
const KIND: &str = "channel";

/// Turns that run at the same time, in different conversations.
const WORKERS: usize = 4;

/// A home that nobody else serves as long as its lock is held.
pub(super) struct Taken {
    pub lock: Lock,
    pub outbox: Outbox,
}

/// Takes a home, with all that waits there.
pub(super) fn take(home: &Home) -> Result<Taken> {
    let lock = lock(home)?;
    let outbox = Outbox::new(home.clone());
    post_left_reports(&outbox)?;
    Ok(Taken { lock, outbox })
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
/// conversations are answered at once. [`Kind::Stop`] ends the turn that runs. The events of a turn go to all channels; its last
/// is [`Event::Done`], and the word that a message other than [`Kind::Message`] gets is a [`Event::Notice`].
///
/// A message with an id is kept in `home` until its turn is over: after a crash the next call of `serve` with this home goes on
/// with the turn, if the agent's store has kept it. One whose id is known already is not answered again, and one that has stopped
/// the program three times is set aside, with a word to its chat. `home` is in use by one server at a time.
///
/// When this returns, for whatever reason, `cancel` is stopped, so that what reads for a channel learns that nobody listens. A
/// message with an id that came too late is kept for the next call of `serve`.
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
    } = take(&home)?;
    let queue = outbox.queue().clone();
    let runs = JobRunner::new(
        home.clone(),
        Jobs::new(home, &config::environment()),
        0,
        outbox,
        Cancel::new(None),
        Arc::new(|_, _| ()),
    );
    let handler = Arc::new(OneAgent(Arc::new(agent)));
    let dispatcher = Dispatcher::new(handler, WORKERS, None, Arc::new(runs));
    let mut all: Vec<Box<dyn Channel>> = vec![Box::new(Left(queue.entries(KIND)?))];
    let mut ways = Vec::new();
    for channel in channels {
        let way = Way::default();
        ways.push(way.clone());
        all.push(Box::new(KeepingChannel {
            channel,
            queue: queue.clone(),
            way,
            cancel: cancel.clone(),
        }));
    }
    let _hook = cancel.on_stop(move || ways.iter().for_each(Way::close));
    dispatcher.serve(all, cancel)
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

/// The id of a message among those of all channels.
fn id_of(channel: &str, id: &str) -> String {
    format!("{channel}:{id}")
}

/// Answers in all conversations.
struct OneAgent(Arc<Agent>);

impl Handler for OneAgent {
    fn agent(&self) -> Result<Arc<Agent>> {
        Ok(self.0.clone())
    }

    fn control(&self, kind: &Kind, session: &str) -> Result<ControlReply> {
        let agent = &self.0;
        match kind {
            Kind::New => {
                agent.reset(session)?;
                Ok("This is a new conversation.".to_owned().into())
            }
            Kind::Status => {
                let (models, window) = (agent.models_for(session)?, agent.window_use(session)?);
                Ok(format!("`{}`\ncontext: {window}", models.first()).into())
            }
            _ => Err(Error::failed("this command does not exist here")),
        }
    }
}

/// What an earlier run has left.
struct Left(Vec<Entry>);

impl Channel for Left {
    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let left = self.0;
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
    fn drained(&mut self) -> Option<Receiver<Error>> {
        self.channel.drained()
    }

    fn start(self: Box<Self>, inbound: Sender<Inbound>) -> Result<Sender<Outbound>> {
        let (sender, messages) = channel::<Inbound>();
        let outbound = self.channel.start(sender)?;
        *self.way.lock() = Some((inbound, outbound.clone()));
        if self.cancel.reason().is_some() {
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
        let queue = Arc::new(Queue::new(dir.join("q"), dir.join("lock"), 9));
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
        let left = Left(queue.entries(KIND).unwrap());
        let (sender, messages) = channel();
        Box::new(left).start(sender).unwrap();
        let found: Vec<_> = messages
            .iter()
            .map(|message| (message.ids.join("+"), message.text, message.is_alone))
            .collect();
        let expected = [
            ("b+a".to_owned(), "text b\n\ntext a".to_owned(), true),
            ("c".to_owned(), "text c".to_owned(), true),
            ("d".to_owned(), "text d".to_owned(), false),
        ];
        assert_eq!(found, expected);
        std::fs::remove_dir_all(dir).unwrap();
    }
}
