//! The dispatcher: messages come in from a channel, each conversation has one worker, and a stop acts at once.
//!
//! Everything goes this way, the one-shot command line included: there is no second path that runs turns.

pub mod clock;
pub mod status;
pub mod tasks;

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::agent::{Agent, Request, Tokens};
use crate::bus::{Channel, Event, Inbound, Kind, Origin, Outbound, Response};
use crate::cancel::Cancel;
use crate::error::{Context, Error, Result};
use tasks::{Asked, Spawner, Tasks};

/// A worker without work ends after this.
const IDLE: Duration = Duration::from_secs(60);
/// How long the rest of a message that comes in parts is waited for, after each part.
const PARTS: Duration = Duration::from_secs(1);
/// Messages that are answered together. What came while the program was away may be hundreds: more than one turn can do.
const MOST_TOGETHER: usize = 16;

/// Who does what comes in.
pub trait Handler: Send + Sync {
    /// The agent for a conversation.
    fn agent(&self, session: &str) -> Result<Arc<Agent>>;

    /// Does what is no turn, and says what to answer.
    fn handle(&self, _kind: &Kind, _session: &str, _busy: Busy) -> Result<String> {
        Err(Error::failed("there is no such thing here"))
    }

    /// The floor is open: from here on it can be asked whether anything is under way.
    fn opens(&self, _floor: &Arc<Dispatcher>) {}

    /// What all that comes in shares; `None` where each turn and each background task has limits of its own.
    fn shared(&self) -> Option<Shared> {
        None
    }
}

/// What is under way.
#[derive(Clone, Copy)]
pub struct Busy {
    pub turns: usize,
    /// Background tasks whose report has not been answered.
    pub tasks: usize,
}

/// What one question may use, with all that comes of it.
#[derive(Clone)]
pub struct Shared {
    pub until: Instant,
    pub tokens: Arc<Tokens>,
}

/// The same agent for every conversation.
pub struct SharedAgent(pub Arc<Agent>);

/// One agent for one question.
pub struct SingleTurn {
    agent: Arc<Agent>,
    shared: Shared,
}

impl SingleTurn {
    /// The question's time begins now.
    pub fn new(agent: Arc<Agent>) -> Self {
        let limits = agent.limits();
        let until = Instant::now() + limits.timeout;
        Self { agent, shared: Shared { until, tokens: Arc::new(Tokens::new(limits.budget_tokens)) } }
    }
}

impl Handler for SingleTurn {
    fn agent(&self, _: &str) -> Result<Arc<Agent>> {
        Ok(self.agent.clone())
    }

    fn shared(&self) -> Option<Shared> {
        Some(self.shared.clone())
    }
}

impl Handler for SharedAgent {
    fn agent(&self, _: &str) -> Result<Arc<Agent>> {
        Ok(self.0.clone())
    }
}

/// Serves a channel until nothing more can come in from it, and every turn and every background task has ended. At most
/// `at_once` turns are under way.
pub fn serve(staff: Arc<dyn Handler>, at_once: usize, tasks: Tasks, from: impl Channel) -> Result<()> {
    let (tx, inbound) = channel();
    let outbound = from.start(tx)?;
    let shared = staff.shared();
    let (room, alone, workers) = (Semaphore::new(at_once), Mutex::default(), Mutex::default());
    let floor = Arc::new(Dispatcher { staff, shared, outbound, tasks, room, alone, workers });
    floor.staff.opens(&floor);
    for message in inbound {
        floor.take(message)?;
    }
    floor.close()
}

impl Inbound {
    /// Answers what needs no turn.
    fn reply(&self, text: &str) {
        if let Some(ack) = &self.ack {
            let _closed = ack.reply(&self.ids, &self.origin, text);
        }
    }
}

/// What all workers share.
pub struct Dispatcher {
    staff: Arc<dyn Handler>,
    shared: Option<Shared>,
    outbound: Sender<Outbound>,
    tasks: Tasks,
    room: Semaphore,
    /// Held by a turn that runs beside no other of its sort.
    alone: Mutex<()>,
    workers: Mutex<Workers>,
}

#[derive(Default)]
struct Workers {
    by_session: HashMap<String, Worker>,
    /// Nothing more comes from the channel.
    are_last: bool,
}

impl Dispatcher {
    /// Acts on what came in: at once, or by the worker of its conversation.
    fn take(self: &Arc<Self>, message: Inbound) -> Result<()> {
        let stopped = match message.kind {
            Kind::Stop | Kind::New => {
                let (stopped, noted) = self.tasks.stop(&message.session);
                self.note(&message.origin, noted);
                stopped
            }
            _ => 0,
        };
        match message.kind {
            Kind::Stop => {
                let turn = self.workers().by_session.get(&message.session).is_some_and(|worker| worker.queue.stop());
                // Where a turn was stopped, its end says so.
                message.reply(&match (stopped, turn) {
                    (0, true) => String::new(),
                    (0, false) => "There is nothing to stop.".to_owned(),
                    (1, _) => "The background task was stopped.".to_owned(),
                    (n, _) => format!("{n} background tasks were stopped."),
                });
                self.show_tasks(&message.origin, &message.session);
            }
            Kind::Status | Kind::Usage => message.reply(&self.handle(&message)),
            Kind::New => {
                // The new conversation knows nothing of them.
                drop(self.tasks.take_stopped(&message.session));
                self.give_to_worker(message)?;
            }
            Kind::Task => tasks::resume(self, message),
            Kind::Message | Kind::Report | Kind::Model(_) => self.give_to_worker(message)?,
        }
        Ok(())
    }

    fn give_to_worker(self: &Arc<Self>, message: Inbound) -> Result<()> {
        let mut workers = self.workers();
        let session = message.session.clone();
        let message = match workers.by_session.get(&session) {
            // SharedAgent that is about to end takes nothing more.
            Some(worker) => worker.queue.push(message),
            None => Some(message),
        };
        let Some(message) = message else { return Ok(()) };
        let worker = Worker::start(self.clone(), workers.are_last)?;
        drop(worker.queue.push(message));
        if let Some(mut old) = workers.by_session.insert(session, worker) {
            old.thread.take().map_or(Ok(()), join)?;
        }
        workers.by_session.retain(|_, worker| worker.thread.as_ref().is_none_or(|thread| !thread.is_finished()));
        Ok(())
    }

    /// Waits for all that is under way. What tasks report meanwhile is answered, and that may begin others.
    fn close(&self) -> Result<()> {
        let noted = self.tasks.close();
        loop {
            self.tasks.wait();
            let threads: Vec<JoinHandle<()>> = {
                let mut workers = self.workers();
                workers.are_last = true;
                for worker in workers.by_session.values() {
                    worker.queue.lock().is_over = true;
                    worker.queue.changed.notify_all();
                }
                workers.by_session.values_mut().filter_map(|worker| worker.thread.take()).collect()
            };
            if threads.is_empty() && self.tasks.are_idle() {
                return noted;
            }
            threads.into_iter().try_for_each(join)?;
        }
    }

    /// Whether no turn and no background task is under way, and none waits.
    pub fn is_idle(&self) -> bool {
        // A task that ends hands its report over first, and a turn that begins one ends after that.
        let are_queues_idle = || self.workers().by_session.values().all(|worker| worker.queue.is_idle());
        self.tasks.are_idle() && are_queues_idle() && self.tasks.are_idle()
    }

    fn workers(&self) -> MutexGuard<'_, Workers> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, message: &Inbound) -> String {
        let busy = Busy { turns: self.room.taken(), tasks: self.tasks.count(None) };
        self.staff.handle(&message.kind, &message.session, busy).unwrap_or_else(|e| e.message)
    }

    fn show(&self, origin: &Origin, event: Event) {
        // A channel that has gone misses what it would have shown, and nothing else changes.
        drop(self.outbound.send(Outbound { origin: origin.clone(), event }));
    }

    /// Shows how many background tasks the conversation waits for.
    fn show_tasks(&self, origin: &Origin, session: &str) {
        self.show(origin, Event::Background(self.tasks.count(Some(session))));
    }

    /// Shows what could not be written down about tasks.
    fn note(&self, origin: &Origin, noted: Result<()>) {
        if let Err(e) = noted {
            self.show(origin, Event::Notice(e.message));
        }
    }

    /// Within the time that all share, if they do.
    fn cancel(&self, cancel: Cancel) -> Cancel {
        match &self.shared {
            Some(shared) => cancel.with_timeout(shared.until.saturating_duration_since(Instant::now())),
            None => cancel,
        }
    }

    /// Runs one turn.
    fn turn(self: &Arc<Self>, message: Inbound, cancel: Cancel) {
        // Of a report: the name of its task, what it used, and how deep it is.
        let task = if message.kind == Kind::Report {
            let id = message.ids.first().cloned().unwrap_or_default();
            let Some(asked) = self.tasks.ask(&id) else { return };
            Some((id, asked))
        } else {
            None
        };
        let (origin, session) = (message.origin.clone(), message.session.clone());
        let (response, is_answered) = self.answer(message, cancel, task.as_ref());
        if let Some(response) = response {
            self.show(&origin, Event::Done(Box::new(response)));
        }
        if let Some((id, _)) = task {
            if is_answered {
                self.note(&origin, self.tasks.over(&id));
            } else {
                // Its report stays in the journal, and is answered at the next start.
                self.tasks.put_back(&id);
            }
            self.show_tasks(&origin, &session);
        }
    }

    /// What came of the turn, if there was one, and whether the message is answered for good: it is not where the program is
    /// ending, or where nobody could keep the answer.
    fn answer(
        self: &Arc<Self>,
        message: Inbound,
        cancel: Cancel,
        task: Option<&(String, Asked)>,
    ) -> (Option<Response>, bool) {
        let Inbound { origin, session, mut text, attachments: mut images, ids, ack, is_alone, .. } = message;
        let alone = is_alone.then(|| self.alone.lock().unwrap_or_else(PoisonError::into_inner));
        // What is fetched takes no room from those who have nothing to wait for.
        let fetches = ack.as_ref().is_some_and(|ack| ack.has_files(&ids));
        let place = (!fetches).then(|| self.room.enter());
        let agent = match self.staff.agent(&session) {
            Ok(agent) => agent,
            Err(e) => {
                let text = format!("⚠️ {}", e.message);
                return (None, ack.is_none_or(|ack| ack.reply(&ids, &origin, &text)));
            }
        };
        if let Some(ack) = &ack {
            if !ack.begin(&ids, &origin, &mut text, &mut images, &cancel) {
                return (None, false);
            }
        }
        let place = place.unwrap_or_else(|| self.room.enter());
        let mut depth = 0;
        match task {
            Some((id, asked)) => {
                depth = asked.depth;
                self.note(&origin, self.tasks.asked(id));
            }
            None => {
                for label in self.tasks.take_stopped(&session) {
                    text.push_str(&format!("\n\n[The user has stopped the background task “{label}”.]"));
                }
            }
        }
        let background = Arc::new(Spawner {
            floor: self.clone(),
            agent: agent.clone(),
            session: session.clone(),
            origin: origin.clone(),
            ack: ack.clone(),
            depth,
        });
        let request = Request {
            images,
            origin: origin.clone(),
            id: ids.join("+"),
            cancel: self.cancel(cancel),
            tokens: self.shared.as_ref().map(|shared| shared.tokens.clone()),
            background: Some(background),
            ..Request::new(text, session)
        };
        let mut response = agent.run(&request, &|event| self.show(&origin, event));
        drop((place, alone));
        if let Some((_, asked)) = task {
            response.usage.add(asked.used.0);
            response.add_cost(asked.used.1);
        }
        let is_kept = ack.is_none_or(|ack| ack.end(&ids, &origin, &response));
        (Some(response), is_kept)
    }
}

/// Semaphore for so many turns.
struct Semaphore {
    most: usize,
    taken: Mutex<usize>,
    left: Condvar,
}

/// A place in the [`Semaphore`], until dropped.
struct Permit<'a>(&'a Semaphore);

impl Semaphore {
    fn new(most: usize) -> Self {
        Self { most: most.max(1), taken: Mutex::new(0), left: Condvar::new() }
    }

    fn taken(&self) -> usize {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self) -> Permit<'_> {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken =
            self.left.wait_while(taken, |taken| *taken >= self.most).unwrap_or_else(PoisonError::into_inner);
        *taken += 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.left.notify_one();
    }
}

/// The thread that does what comes in for one conversation, one after the other.
struct Worker {
    queue: Arc<Queue>,
    /// Until somebody waits for its end.
    thread: Option<JoinHandle<()>>,
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

    fn is_idle(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.running.is_none()
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
        // Their tasks have been stopped.
        state.waiting.retain(|message| message.kind != Kind::Report);
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
        if !matches!(message.kind, Kind::Message | Kind::Report) {
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
        let both = self.kind == Kind::Message && more.kind == Kind::Message;
        let together = both && self.origin == more.origin;
        // What belongs together stays so.
        let has_room = self.is_part || self.ids.len() + more.ids.len() <= MOST_TOGETHER;
        together && has_room && !self.ids.is_empty() && !more.ids.is_empty() && !self.is_alone && !more.is_alone
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
    /// `is_last`: it ends when nothing is left to do.
    fn start(floor: Arc<Dispatcher>, is_last: bool) -> Result<Self> {
        let queue = Arc::new(Queue::default());
        queue.lock().is_over = is_last;
        let own = queue.clone();
        let work = move || {
            while let Some((message, cancel)) = own.next() {
                match message.kind {
                    Kind::Message | Kind::Report => floor.turn(message, cancel),
                    _ => message.reply(&floor.handle(&message)),
                }
                own.lock().running = None;
            }
        };
        let thread = std::thread::Builder::new().name("worker".to_owned()).spawn(work).doing("starting a thread")?;
        Ok(Self { queue, thread: Some(thread) })
    }
}

fn join(thread: JoinHandle<()>) -> Result<()> {
    thread.join().map_err(|_| Error::failed("a worker died"))
}
