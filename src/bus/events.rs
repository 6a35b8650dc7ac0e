//! The events of turns, stored for readers that join late.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::{Event, Response};

use crate::sync;

/// Stores the events of each turn in a stream. Several threads may read a stream while its turn runs, each from the last number
/// that it saw.
///
/// Events are numbered from 1, and the last one of a stream is [`Event::Done`]. A stream is removed some time after that.
///
/// ```
/// use std::time::Duration;
///
/// use bantam::{Agent, Demo, Event, EventLog, Request, StreamStatus};
///
/// let log = EventLog::new(Duration::from_secs(60));
/// let agent = Agent::builder().provider(Demo).build()?;
/// let response = agent.run(&Request::new("time", "notes"), &log.writer("turn-1"));
/// log.end("turn-1", &response);
/// assert_eq!(log.status("turn-1"), Some(StreamStatus::Done));
/// assert!(matches!(log.after("turn-1", 0).pop(), Some((_, Event::Done(_)))));
/// # Ok::<(), bantam::Error>(())
/// ```
pub struct EventLog {
    keep: Duration,
    streams: Mutex<BTreeMap<String, Stream>>,
    changed: Condvar,
}

/// The status of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// More events may follow.
    Running,
    /// Its turn has succeeded.
    Done,
    /// Its turn has failed or was stopped.
    Failed,
}

struct Stream {
    events: VecDeque<Event>,
    /// Number of the first stored event.
    first: u64,
    status: Status,
    at: Instant,
}

/// Maximum number of events per stream; beyond that, the oldest are dropped.
const MOST: usize = 10_000;

impl Stream {
    fn after(&self, number: u64) -> Vec<(u64, Event)> {
        let numbered = (self.first..).zip(&self.events);
        let new = numbered.filter(|(n, _)| *n > number);
        new.map(|(n, event)| (n, event.clone())).collect()
    }

    /// Returns the number of the last event.
    fn last(&self) -> u64 {
        self.first + self.events.len() as u64 - 1
    }
}

impl EventLog {
    /// Creates a log that stores each stream for this long after its end.
    pub fn new(keep: Duration) -> Self {
        Self {
            keep,
            streams: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Locks the streams and removes expired ones.
    fn streams(&self) -> MutexGuard<'_, BTreeMap<String, Stream>> {
        let mut streams = sync::lock(&self.streams);
        streams.retain(|_, stream| {
            stream.status == Status::Running || stream.at.elapsed() < self.keep
        });
        streams
    }

    /// Adds an event to a stream, creating it if needed, and returns the event's number. After [`Event::Done`], events are
    /// dropped, and the number is that of the last event.
    pub fn add(&self, stream: &str, event: Event) -> u64 {
        let status = match &event {
            Event::Done(response) if response.error.is_some() => Status::Failed,
            Event::Done(_) => Status::Done,
            _ => Status::Running,
        };
        let mut streams = self.streams();
        let kept = streams.entry(stream.to_owned()).or_insert_with(|| Stream {
            events: VecDeque::new(),
            first: 1,
            status: Status::Running,
            at: Instant::now(),
        });
        if kept.status == Status::Running {
            kept.events.push_back(event);
            if kept.events.len() > MOST {
                kept.events.pop_front();
                kept.first += 1;
            }
            (kept.status, kept.at) = (status, Instant::now());
        }
        let number = kept.last();
        drop(streams);
        self.changed.notify_all();
        number
    }

    /// Returns a receiver of events for [`Agent::run`](crate::agent::Agent::run) that adds them to a stream.
    pub fn writer<'l>(&'l self, stream: &'l str) -> impl Fn(Event) + Sync + 'l {
        move |event| {
            self.add(stream, event);
        }
    }

    /// Ends a stream with the response of its turn.
    pub fn end(&self, stream: &str, response: &Response) -> u64 {
        self.add(stream, Event::Done(Box::new(response.clone())))
    }

    /// Returns the events of a stream after this number (0 for all), each with its own number. Empty if the stream is unknown.
    pub fn after(&self, stream: &str, number: u64) -> Vec<(u64, Event)> {
        let streams = self.streams();
        streams
            .get(stream)
            .map_or_else(Vec::new, |stream| stream.after(number))
    }

    /// Like [`EventLog::after`], but waits for an event, up to `most`. An empty list means either a timeout or the end of the
    /// stream; [`EventLog::status`] returns which. This also waits for an unknown stream, which may begin. To avoid waiting for
    /// a removed stream, check its status first.
    pub fn wait(&self, stream: &str, number: u64, most: Duration) -> Vec<(u64, Event)> {
        let started = Instant::now();
        let mut streams = self.streams();
        loop {
            let known = streams.get(stream);
            let new = known.map_or_else(Vec::new, |stream| stream.after(number));
            let is_over = known.is_some_and(|stream| stream.status != Status::Running);
            let left = most.saturating_sub(started.elapsed());
            if !new.is_empty() || is_over || left.is_zero() {
                return new;
            }
            streams = sync::wait(&self.changed, streams, left);
        }
    }

    /// Returns the status of a stream; `None` if it has not begun or was removed.
    pub fn status(&self, stream: &str) -> Option<Status> {
        self.streams().get(stream).map(|stream| stream.status)
    }

    /// Returns how many events a stream has had.
    pub fn count(&self, stream: &str) -> u64 {
        self.streams().get(stream).map_or(0, Stream::last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::thread;

    const LONG: Duration = Duration::from_secs(60);

    fn numbers(events: &[(u64, Event)]) -> Vec<u64> {
        events.iter().map(|(number, _)| *number).collect()
    }

    #[test]
    fn late_subscriber_gets_the_stream_end() {
        let log = EventLog::new(LONG);
        for n in 1..=3 {
            assert_eq!(log.add("a", Event::Delta(n.to_string())), n);
        }
        assert_eq!(log.add("b", Event::TurnStarted), 1);
        assert_eq!(log.status("a"), Some(Status::Running));
        let response = Response {
            error: Some(Error::failed("no")),
            ..Response::default()
        };
        assert_eq!(log.end("a", &response), 4);
        assert_eq!(log.add("a", Event::TurnStarted), 4);
        assert_eq!(numbers(&log.after("a", 2)), [3, 4]);
        assert!(log.wait("a", 4, LONG).is_empty());
        assert_eq!((log.count("a"), log.count("b"), log.count("c")), (4, 1, 0));
        log.end("b", &Response::default());
        assert_eq!(
            (log.status("a"), log.status("b"), log.status("c")),
            (Some(Status::Failed), Some(Status::Done), None)
        );
        let forgetful = EventLog::new(Duration::ZERO);
        forgetful.add("a", Event::TurnStarted);
        assert_eq!(forgetful.status("a"), Some(Status::Running));
        forgetful.end("a", &Response::default());
        assert_eq!((forgetful.status("a"), forgetful.count("a")), (None, 0));
    }

    #[test]
    fn long_stream_drops_its_oldest_events() {
        let log = EventLog::new(LONG);
        let last = MOST as u64 + 6;
        thread::scope(|scope| {
            let read = || {
                let (mut seen, mut ended) = (0, false);
                while !ended {
                    for (number, event) in log.wait("a", seen, LONG) {
                        assert!(number > seen);
                        (seen, ended) = (number, matches!(event, Event::Done(_)));
                    }
                }
                seen
            };
            let readers: Vec<_> = (0..3).map(|_| scope.spawn(read)).collect();
            for _ in 1..last {
                log.add("a", Event::TurnStarted);
            }
            log.end("a", &Response::default());
            for reader in readers {
                assert_eq!(reader.join().unwrap(), last);
            }
        });
        assert_eq!(log.after("a", 0)[0].0, 7);
    }
}
