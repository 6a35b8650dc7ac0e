//! Limits the number of open connections without letting idle clients block others.
//!
//! A new connection is always served. If all slots are in use, the oldest unauthorized connection is closed. The head of a
//! request takes milliseconds, so idle connections lose.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::sync;

/// Maximum number of open connections. A program with 50 simultaneous questions opens all connections before it sends the first
/// head, which takes seconds on a busy board.
const MAX_CONNECTIONS: usize = 64;
/// Minimum time for a new connection to send its head, regardless of other connections.
const MIN_AGE: Duration = Duration::from_secs(2);
/// Interval of checks for a free slot.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
pub(super) struct ConnectionLimiter {
    open: Mutex<Connections>,
    changed: Condvar,
}

#[derive(Default)]
struct Connections {
    /// Connections, oldest first.
    entries: Vec<Entry>,
    next_id: u64,
}

struct Entry {
    id: u64,
    stream: Arc<TcpStream>,
    since: Instant,
    /// Whether the request has the right token.
    is_authorized: bool,
}

/// Permission of a connection to be open, until dropped.
pub(super) struct Slot {
    limiter: Arc<ConnectionLimiter>,
    id: u64,
}

impl ConnectionLimiter {
    /// Assigns a slot to a new connection. Waits while all connections are authorized.
    pub(super) fn admit(self: &Arc<Self>, stream: &Arc<TcpStream>) -> Slot {
        let mut open = self.lock();
        while open.entries.len() >= MAX_CONNECTIONS && !open.close_oldest(Instant::now()) {
            open = sync::wait(&self.changed, open, PAUSE);
        }
        let id = open.next_id;
        open.next_id += 1;
        open.entries.push(Entry {
            id,
            stream: stream.clone(),
            since: Instant::now(),
            is_authorized: false,
        });
        drop(open);
        // A connection that was closed to make room may be waiting in `Slot::wait`.
        self.changed.notify_all();
        Slot {
            limiter: self.clone(),
            id,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        sync::lock(&self.open)
    }
}

impl Connections {
    /// Closes the oldest unauthorized connection if it has had its minimum time. Returns whether it closed one.
    fn close_oldest(&mut self, now: Instant) -> bool {
        let oldest = self.entries.iter().position(|entry| !entry.is_authorized);
        let Some(oldest) = oldest.filter(|n| now.duration_since(self.entries[*n].since) >= MIN_AGE)
        else {
            return false;
        };
        let closed = self.entries.remove(oldest);
        // The connection's thread detects this and ends.
        drop(closed.stream.shutdown(Shutdown::Both));
        true
    }
}

impl Slot {
    /// Marks the connection as authorized, which protects it from being closed for another. Returns whether it is still open.
    pub(super) fn authorize(&self) -> bool {
        let mut open = self.limiter.lock();
        let own = open.entries.iter_mut().find(|entry| entry.id == self.id);
        own.map(|own| own.is_authorized = true).is_some()
    }

    /// Waits for this time, or until the connection is closed for another.
    pub(super) fn wait(&self, time: Duration) {
        let is_open = |open: &mut Connections| open.entries.iter().any(|entry| entry.id == self.id);
        let changed = &self.limiter.changed;
        drop(changed.wait_timeout_while(self.limiter.lock(), time, is_open));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.limiter
            .lock()
            .entries
            .retain(|entry| entry.id != self.id);
        self.limiter.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::thread;

    /// Returns both ends of a connection: the server's and the client's.
    fn connection() -> (Arc<TcpStream>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (Arc::new(listener.accept().unwrap().0), client)
    }

    fn is_closed(mut client: &TcpStream) -> bool {
        client.set_nonblocking(true).unwrap();
        matches!(client.read(&mut [0]), Ok(0))
    }

    fn full(limiter: &Arc<ConnectionLimiter>) -> Vec<(Slot, TcpStream)> {
        let admit = |_| {
            let (server, client) = connection();
            (limiter.admit(&server), client)
        };
        (0..MAX_CONNECTIONS).map(admit).collect()
    }

    #[test]
    fn newcomer_replaces_the_oldest_unauthorized_connection() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let open = full(&limiter);
        assert!(open[0].0.authorize() && open[2].0.authorize());
        let newcomers: Vec<_> = (0..2).map(|_| connection()).collect();
        let slots: Vec<Slot> = newcomers
            .iter()
            .map(|(server, _)| limiter.admit(server))
            .collect();
        let closed: Vec<usize> = (0..open.len()).filter(|n| is_closed(&open[*n].1)).collect();
        assert_eq!(closed, [1, 3]);
        // The closed connection's thread must not free the newcomer's slot.
        drop(open);
        assert_eq!(limiter.lock().entries.len(), slots.len());
    }

    #[test]
    fn young_and_authorized_connections_are_never_closed() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let open = full(&limiter);
        let newest = limiter.lock().entries[0].since;
        assert!(!limiter.lock().close_oldest(newest + MIN_AGE / 2));
        for (slot, _) in &open {
            assert!(slot.authorize());
        }
        assert!(!limiter.lock().close_oldest(newest + MIN_AGE * 100));
        assert!(open.iter().all(|(_, client)| !is_closed(client)));
    }

    #[test]
    fn newcomer_waits_for_an_authorized_connection_to_end() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let mut open = full(&limiter);
        for (slot, _) in &open {
            assert!(slot.authorize());
        }
        let (server, _client) = connection();
        thread::scope(|scope| {
            let admitted = scope.spawn(|| limiter.admit(&server));
            drop(open.pop());
            drop(admitted.join().unwrap());
        });
        assert!(open.iter().all(|(_, client)| !is_closed(client)));
    }
}
