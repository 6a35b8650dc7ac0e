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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

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

    #[test]
    fn newcomer_replaces_the_oldest_unauthorized_connection() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let admit = |_| {
            let (server, client) = connection();
            limiter.admit(&server);
            (server, client)
        };
        let open: Vec<_> = (0..MAX_CONNECTIONS).map(admit).collect();
        assert!(limiter.authorize(&open[0].0) && limiter.authorize(&open[2].0));
        let newcomers: Vec<_> = (0..2).map(admit).collect();
        let closed: Vec<usize> = (0..open.len()).filter(|n| is_closed(&open[*n].1)).collect();
        assert_eq!(closed, [1, 3]);
        // The closed connection's thread must not free the newcomer's place.
        for (server, _) in &open {
            limiter.remove(server);
        }
        assert_eq!(sync::lock(&limiter.0).len(), newcomers.len());
    }

    #[test]
    fn newcomer_waits_while_all_connections_are_authorized() {
        let limiter = Arc::new(ConnectionLimiter::default());
        let open: Vec<_> = (0..MAX_CONNECTIONS).map(|_| connection()).collect();
        for (server, _) in &open {
            limiter.admit(server);
            assert!(limiter.authorize(server));
        }
        let later = Instant::now() + MIN_AGE * 100;
        assert!(!close_oldest(&mut sync::lock(&limiter.0), later));
        let (server, _client) = connection();
        thread::scope(|scope| {
            let admitted = scope.spawn(|| limiter.admit(&server));
            limiter.remove(&open[0].0);
            admitted.join().unwrap();
        });
        assert!(open.iter().all(|(_, client)| !is_closed(client)));
    }
}
