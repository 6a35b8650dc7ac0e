//! The dispatcher: messages come in from a channel, each conversation has one worker, and a stop acts at once.
//!
//! Everything goes this way, the one-shot command line included: there is no second path that runs turns.

pub mod clock;

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::agent::{Agent, Request};
use crate::bus::{Channel, Event, Inbound, Kind, Outbound};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};

/// A worker without work ends after this.
const IDLE: Duration = Duration::from_secs(60);
/// How long the rest of a message that comes in parts is waited for, after each part.
const PARTS: Duration = Duration::from_secs(1);

/// Who does what comes in.
pub trait Staff: Send + Sync {
    /// The agent for a conversation.
    ///
    /// # Errors
    /// It cannot be made.
    fn agent(&self, session: &str) -> Result<Arc<Agent>>;

    /// Does what is no turn, and says what to answer. `busy` is how many turns are under way.
    ///
    /// # Errors
    /// What went wrong, for the user.
    fn handle(&self, _kind: &Kind, _session: &str, _busy: usize) -> Result<String> {
        Err(Error::failed("there is no such thing here"))
    }
}

/// One agent for all there is.
pub struct One(pub Arc<Agent>);

impl Staff for One {
    fn agent(&self, _: &str) -> Result<Arc<Agent>> {
        Ok(self.0.clone())
    }
}

/// Serves a channel until nothing more can come in from it and every turn has ended. At most `at_once` turns are under way.
///
/// # Errors
/// A thread could not be started.
pub fn serve(staff: Arc<dyn Staff>, at_once: usize, from: impl Channel) -> Result<()> {
    let (tx, inbound) = channel();
    let outbound = from.start(tx)?;
    let floor = Arc::new(Floor { staff, outbound, room: Room::new(at_once), alone: Mutex::default() });
    let mut workers: HashMap<String, Worker> = HashMap::new();
    for message in inbound {
        let worker = workers.get(&message.session);
        match message.kind {
            Kind::Stop => {
                let stopped = worker.is_some_and(|worker| worker.queue.stop());
                // Where a turn was stopped, its end says so.
                message.reply(if stopped { "" } else { "There is nothing to stop." });
            }
            Kind::Status | Kind::Usage => message.reply(&floor.handle(&message)),
            Kind::Message | Kind::New | Kind::Model(_) => {
                // One that is about to end takes nothing more.
                let session = message.session.clone();
                let Some(message) = worker.map_or(Some(message.clone()), |worker| worker.queue.push(message)) else {
                    continue;
                };
                let worker = Worker::start(floor.clone())?;
                drop(worker.queue.push(message));
                if let Some(old) = workers.insert(session, worker) {
                    old.join()?;
                }
                workers.retain(|_, worker| !worker.thread.is_finished());
            }
        }
    }
    for worker in workers.values() {
        worker.queue.lock().is_over = true;
        worker.queue.changed.notify_all();
    }
    workers.into_values().try_for_each(Worker::join)
}

impl Inbound {
    /// Answers what needs no turn.
    fn reply(&self, text: &str) {
        if let Some(keeper) = &self.keeper {
            keeper.reply(&self.ids, &self.origin, text);
        }
    }
}

/// What all workers share.
struct Floor {
    staff: Arc<dyn Staff>,
    outbound: Sender<Outbound>,
    room: Room,
    /// Held by a turn that runs beside no other of its sort.
    alone: Mutex<()>,
}

impl Floor {
    fn handle(&self, message: &Inbound) -> String {
        self.staff.handle(&message.kind, &message.session, self.room.taken()).unwrap_or_else(|e| e.message)
    }

    /// Runs one turn.
    fn turn(&self, message: Inbound, cancel: Cancel) {
        let Inbound { origin, session, mut text, attachments: mut images, ids, keeper, is_alone, .. } = message;
        let show = |event| {
            // A channel that has gone misses what it would have shown, and nothing else changes.
            drop(self.outbound.send(Outbound { origin: origin.clone(), event }));
        };
        let alone = is_alone.then(|| self.alone.lock().unwrap_or_else(PoisonError::into_inner));
        let place = self.room.enter();
        let agent = match self.staff.agent(&session) {
            Ok(agent) => agent,
            Err(e) => {
                if let Some(keeper) = &keeper {
                    keeper.reply(&ids, &origin, &format!("⚠️ {}", e.message));
                }
                return;
            }
        };
        if let Some(keeper) = &keeper {
            if !keeper.begin(&ids, &origin, &mut text, &mut images) {
                return;
            }
        }
        let id = ids.join("+");
        let request = Request { images, origin: origin.clone(), id, cancel, ..Request::new(text, session) };
        let response = agent.run(&request, &show);
        drop((place, alone));
        if let Some(keeper) = &keeper {
            keeper.end(&ids, &origin, &response);
        }
        show(Event::Done(Box::new(response)));
    }
}

/// Room for so many turns.
struct Room {
    most: usize,
    taken: Mutex<usize>,
    left: Condvar,
}

/// A place in the [`Room`], until dropped.
struct Place<'a>(&'a Room);

impl Room {
    fn new(most: usize) -> Self {
        Self { most: most.max(1), taken: Mutex::new(0), left: Condvar::new() }
    }

    fn taken(&self) -> usize {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Place<'_> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken =
            self.left.wait_while(taken, |taken| *taken >= self.most).unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.left.notify_one();
    }
}

/// The thread that does what comes in for one conversation, one after the other.
struct Worker {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Inbound>,
    /// Stops the turn that is under way.
    running: Option<Cancel>,
    /// The next turn is stopped as soon as it begins.
    stop_next: bool,
    /// Nothing more will come.
    is_over: bool,
    /// The worker has gone, and takes nothing more.
    is_closed: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the message back when the worker has gone.
    fn push(&self, message: Inbound) -> Option<Inbound> {
        let mut state = self.lock();
        if state.is_closed {
            return Some(message);
        }
        if message.kind != Kind::New {
            state.waiting.push_back(message);
            self.changed.notify_all();
            return None;
        }
        // It acts at once. What waits is answered in the new conversation.
        state.waiting.push_front(message);
        self.changed.notify_all();
        let running = state.running.clone();
        drop(state);
        running.iter().for_each(Cancel::stop);
        None
    }

    /// Ends the turn that is under way, or the next that waits. Whether there was one.
    fn stop(&self) -> bool {
        let mut state = self.lock();
        match &state.running {
            Some(cancel) => {
                let cancel = cancel.clone();
                drop(state);
                cancel.stop();
                true
            }
            None => {
                let waits = state.waiting.iter().any(|message| message.kind == Kind::Message);
                state.stop_next |= waits;
                waits
            }
        }
    }

    /// What is to be done next: messages that can be answered together are one. `None` when there is nothing, for too
    /// long or for ever.
    fn next(&self) -> Option<(Inbound, Cancel)> {
        let mut state = self.lock();
        let until = Instant::now() + IDLE;
        while state.waiting.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if state.is_over || left.is_zero() {
                state.is_closed = true;
                return None;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut message = state.waiting.pop_front()?;
        let cancel = Cancel::new(None);
        if message.kind != Kind::Message {
            return Some((message, cancel));
        }
        // From here on a stop finds it.
        state.running = Some(cancel.clone());
        let mut until = Instant::now() + PARTS;
        loop {
            while state.waiting.front().is_some_and(|more| message.takes(more)) {
                until = Instant::now() + PARTS;
                state.waiting.pop_front().into_iter().for_each(|more| message.add(more));
            }
            let left = until.saturating_duration_since(Instant::now());
            if !message.is_part || !state.waiting.is_empty() || state.is_over || left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if std::mem::take(&mut state.stop_next) {
            cancel.stop();
        }
        Some((message, cancel))
    }
}

impl Inbound {
    /// Whether `more`, which came after it, can be answered with it.
    fn takes(&self, more: &Self) -> bool {
        let together = more.kind == Kind::Message && self.origin == more.origin;
        together && !self.ids.is_empty() && !more.ids.is_empty() && !self.is_alone && !more.is_alone
    }

    fn add(&mut self, more: Self) {
        if !more.text.is_empty() {
            if !self.text.is_empty() {
                self.text.push_str("\n\n");
            }
            self.text.push_str(&more.text);
        }
        self.attachments.extend(more.attachments);
        self.ids.extend(more.ids);
        self.is_part = more.is_part;
    }
}

impl Worker {
    fn start(floor: Arc<Floor>) -> Result<Self> {
        let queue = Arc::new(Queue::default());
        let own = queue.clone();
        let work = move || {
            while let Some((message, cancel)) = own.next() {
                match message.kind {
                    Kind::Message => floor.turn(message, cancel),
                    _ => message.reply(&floor.handle(&message)),
                }
                own.lock().running = None;
            }
        };
        let thread = std::thread::Builder::new().name("worker".to_owned()).spawn(work).doing("starting a thread")?;
        Ok(Self { queue, thread })
    }

    fn join(self) -> Result<()> {
        self.thread.join().map_err(|_| Error::failed("a worker died"))
    }
}
