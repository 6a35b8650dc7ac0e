//! Limits the number of open connections without letting idle clients block others.
//!
//! A new connection is always served. If all places are taken, the oldest unauthorized connection is closed. The head of a
//! request takes milliseconds, so idle connections lose.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::sync;

/// Maximum number of open connections. A program with 50 simultaneous questions opens all connections before it sends the first
/// head, which takes seconds on a busy board.
const MAX_CONNECTIONS: usize = 64;
/// Minimum time for a new connection to send its head, regardless of other connections.
const MIN_AGE: Duration = Duration::from_secs(2);
/// Interval of checks for a free place.
const PAUSE: Duration = Duration::from_millis(10);

/// Open connections, oldest first.
#[derive(Default)]
pub(super) struct ConnectionLimiter(Mutex<Vec<OpenConnection>>);

struct OpenConnection {
    stream: Arc<TcpStream>,
    since: Instant,
    /// Whether the request has the right token.
    is_authorized: bool,
}

impl ConnectionLimiter {
    /// Adds a new connection. Waits while all connections are authorized.
    pub(super) fn admit(&self, stream: &Arc<TcpStream>) {
        let mut open = sync::lock(&self.0);
        while open.len() >= MAX_CONNECTIONS && !close_oldest(&mut open, Instant::now()) {
            drop(open);
            thread::sleep(PAUSE);
            open = sync::lock(&self.0);
        }
        open.push(OpenConnection {
            stream: stream.clone(),
            since: Instant::now(),
            is_authorized: false,
        });
    }

    /// Marks a connection as authorized, which protects it from being closed for another. Returns whether it is still open.
    pub(super) fn authorize(&self, stream: &Arc<TcpStream>) -> bool {
        let mut open = sync::lock(&self.0);
        let own = open
            .iter_mut()
            .find(|entry| Arc::ptr_eq(&entry.stream, stream));
        own.map(|own| own.is_authorized = true).is_some()
    }

    pub(super) fn remove(&self, stream: &Arc<TcpStream>) {
        sync::lock(&self.0).retain(|entry| !Arc::ptr_eq(&entry.stream, stream));
    }
}

/// Closes the oldest unauthorized connection if it has had its minimum time. Returns whether it closed one.
fn close_oldest(open: &mut Vec<OpenConnection>, now: Instant) -> bool {
    let oldest = open.iter().position(|entry| !entry.is_authorized);
    let is_due = |n: &usize| now.duration_since(open[*n].since) >= MIN_AGE;
    let Some(oldest) = oldest.filter(is_due) else {
        return false;
    };
    // The connection's thread detects this and ends.
    drop(open.remove(oldest).stream.shutdown(Shutdown::Both));
    true
}
