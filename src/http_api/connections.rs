//! Limits the number of open connections without letting idle clients block others.
//!
//! A new connection is always served. If all slots are in use, the oldest unauthorized connection is closed. The head of a
//! request takes milliseconds, so idle connections lose.

use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
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
    /// Connections, oldest first.
    open: Mutex<Vec<OpenConnection>>,
    changed: Condvar,
}

struct OpenConnection {
    stream: Arc<TcpStream>,
    since: Instant,
    /// Whether the request has the right token.
    is_authorized: bool,
}

/// Permission of a connection to be open, until dropped.
pub(super) struct Slot {
    limiter: Arc<ConnectionLimiter>,
    stream: Arc<TcpStream>,
}

impl ConnectionLimiter {
    /// Assigns a slot to a new connection. Waits while all connections are authorized.
    pub(super) fn admit(self: &Arc<Self>, stream: &Arc<TcpStream>) -> Slot {
        let mut open = sync::lock(&self.open);
        while open.len() >= MAX_CONNECTIONS && !close_oldest(&mut open, Instant::now()) {
            open = sync::wait(&self.changed, open, PAUSE);
        }
        open.push(OpenConnection {
            stream: stream.clone(),
            since: Instant::now(),
            is_authorized: false,
        });
        drop(open);
        // A connection that was closed to make room may be waiting in `Slot::wait`.
        self.changed.notify_all();
        Slot {
            limiter: self.clone(),
            stream: stream.clone(),
        }
    }
}

/// Closes the oldest unauthorized connection if it has had its minimum time. Returns whether it closed one.
fn close_oldest(open: &mut Vec<OpenConnection>, now: Instant) -> bool {
    let oldest = open.iter().position(|entry| !entry.is_authorized);
    match oldest.filter(|n| now.duration_since(open[*n].since) >= MIN_AGE) {
        // The connection's thread detects this and ends.
        Some(n) => drop(open.remove(n).stream.shutdown(Shutdown::Both)),
        None => return false,
    }
    true
}

impl Slot {
    fn is_own(&self, entry: &OpenConnection) -> bool {
        Arc::ptr_eq(&entry.stream, &self.stream)
    }

    /// Marks the connection as authorized, which protects it from being closed for another. Returns whether it is still open.
    pub(super) fn authorize(&self) -> bool {
        let mut open = sync::lock(&self.limiter.open);
        let own = open.iter_mut().find(|entry| self.is_own(entry));
        own.map(|own| own.is_authorized = true).is_some()
    }

    /// Waits for this time, or until the connection is closed for another.
    pub(super) fn wait(&self, time: Duration) {
        let is_open = |open: &mut Vec<OpenConnection>| open.iter().any(|entry| self.is_own(entry));
        let (open, changed) = (sync::lock(&self.limiter.open), &self.limiter.changed);
        drop(changed.wait_timeout_while(open, time, is_open));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        sync::lock(&self.limiter.open).retain(|entry| !self.is_own(entry));
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
        assert_eq!(sync::lock(&limiter.open).len(), slots.len());
    }

    #[test]
    fn young_and_authorized_connections_are_never_closed() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let open = full(&limiter);
        let newest = sync::lock(&limiter.open)[0].since;
        assert!(!close_oldest(
            &mut sync::lock(&limiter.open),
            newest + MIN_AGE / 2
        ));
        for (slot, _) in &open {
            assert!(slot.authorize());
        }
        assert!(!close_oldest(
            &mut sync::lock(&limiter.open),
            newest + MIN_AGE * 100
        ));
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
