//! The dispatcher: messages come in from a channel, each conversation has one worker, and a stop acts at once.
//!
//! Everything goes this way, the one-shot command line included: there is no second path that runs turns.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::agent::{Agent, Request};
use crate::bus::{Channel, Event, Inbound, Kind, Outbound};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};

/// Serves a channel until nothing more can come in from it and every turn has ended.
///
/// # Errors
/// A thread could not be started.
pub fn serve(agent: &Arc<Agent>, from: impl Channel) -> Result<()> {
    let (tx, inbound) = channel();
    let outbound = from.start(tx);
    let mut workers: HashMap<String, Worker> = HashMap::new();
    for message in inbound {
        match message.kind {
            Kind::Stop => {
                if let Some(worker) = workers.get(&message.session) {
                    worker.stop();
                }
            }
            Kind::Message => {
                if !workers.contains_key(&message.session) {
                    let worker = Worker::start(agent.clone(), outbound.clone())?;
                    workers.insert(message.session.clone(), worker);
                }
                if let Some(worker) = workers.get(&message.session) {
                    worker.send(message);
                }
            }
        }
    }
    drop(outbound);
    workers.into_values().try_for_each(Worker::join)
}

/// The thread that runs one conversation's turns, one after the other.
struct Worker {
    queue: Sender<(Inbound, Cancel)>,
    /// One for each message that was sent and whose turn has not ended, in order.
    unfinished: Unfinished,
    thread: JoinHandle<()>,
}

#[derive(Clone, Default)]
struct Unfinished(Arc<Mutex<VecDeque<Cancel>>>);

impl Unfinished {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Cancel>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn start(agent: Arc<Agent>, outbound: Sender<Outbound>) -> Result<Self> {
        let (queue, messages) = channel();
        let unfinished = Unfinished::default();
        let shared = unfinished.clone();
        let thread = std::thread::Builder::new()
            .name("worker".to_owned())
            .spawn(move || work(&agent, &messages, &outbound, &shared))
            .doing("starting a thread")?;
        Ok(Self { queue, unfinished, thread })
    }

    fn send(&self, message: Inbound) {
        let cancel = Cancel::new(None);
        self.unfinished.lock().push_back(cancel.clone());
        // The worker lives as long as its queue: it is there to take it.
        drop(self.queue.send((message, cancel)));
    }

    /// Ends the turn that is under way. One that has not begun yet ends as soon as it does.
    fn stop(&self) {
        let front = self.unfinished.lock().front().cloned();
        if let Some(cancel) = front {
            cancel.stop();
        }
    }

    fn join(self) -> Result<()> {
        drop(self.queue);
        self.thread.join().map_err(|_| Error::failed("a worker died"))
    }
}

fn work(agent: &Agent, messages: &Receiver<(Inbound, Cancel)>, outbound: &Sender<Outbound>, unfinished: &Unfinished) {
    for (message, cancel) in messages {
        let Inbound { origin, session, text, attachments, kind: _ } = message;
        let show = |event| {
            // A channel that has gone misses what it would have shown, and nothing else changes.
            drop(outbound.send(Outbound { origin: origin.clone(), event }));
        };
        let request = Request { input: text, images: attachments, session, origin: origin.clone(), cancel };
        let response = agent.run(&request, &show);
        unfinished.lock().pop_front();
        show(Event::Done(Box::new(response)));
    }
}
