//! Who is connected, and for whom there is room.
//!
//! A client is unknown until its request shows the token. When every connection is taken, the unknown ones that have had their
//! time are closed, and their networks may from then on have a few such connections only: so nobody keeps others out by
//! saying nothing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MAX_CONNECTIONS: usize = 32;
/// How long a client may be unknown when others need its place.
const PATIENCE: Duration = Duration::from_secs(1);
/// Unknown clients of a network that has lately taken places for longer than that.
const MAX_UNKNOWN: usize = 4;
/// A network that was quiet for so long starts over.
pub(super) const FORGET: Duration = Duration::from_secs(600);
/// The most networks to remember.
pub(super) const MAX_NETWORKS: usize = 256;

#[derive(Default)]
pub(super) struct Room {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    guests: Vec<Entry>,
    next: u64,
    /// The networks that have taken places for too long, and when.
    pushy: HashMap<IpAddr, Instant>,
}

struct Entry {
    id: u64,
    stream: Arc<TcpStream>,
    network: IpAddr,
    since: Instant,
    is_known: bool,
}

/// A place in the room. Dropping it frees the place.
pub(super) struct Guest {
    room: Arc<Room>,
    id: u64,
}

impl Room {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a place. If not, those are closed that took one for too long without saying who they are.
    pub(super) fn has_place(&self, now: Instant) -> bool {
        let mut state = self.state();
        let State { guests, pushy, .. } = &mut *state;
        if guests.len() < MAX_CONNECTIONS {
            return true;
        }
        pushy.retain(|_, at| now.duration_since(*at) < FORGET);
        for guest in guests {
            if !guest.is_known && now.duration_since(guest.since) >= PATIENCE {
                // Its thread frees the place.
                drop(guest.stream.shutdown(Shutdown::Both));
                if pushy.len() < MAX_NETWORKS {
                    pushy.insert(guest.network, now);
                }
            }
        }
        false
    }

    /// Takes a place. `None`: this client's network has as many unknown ones as it may have.
    pub(super) fn enter(
        self: &Arc<Self>,
        stream: &Arc<TcpStream>,
        address: IpAddr,
        now: Instant,
    ) -> Option<Guest> {
        let network = network(address);
        let mut state = self.state();
        let is_pushy = state
            .pushy
            .get(&network)
            .is_some_and(|at| now.duration_since(*at) < FORGET);
        let unknown = state.guests.iter();
        let unknown = unknown.filter(|guest| guest.network == network && !guest.is_known);
        if is_pushy && unknown.count() >= MAX_UNKNOWN {
            return None;
        }
        let id = state.next;
        state.next += 1;
        state.guests.push(Entry {
            id,
            stream: stream.clone(),
            network,
            since: now,
            is_known: false,
        });
        Some(Guest {
            room: self.clone(),
            id,
        })
    }
}

impl Guest {
    /// The client has shown the token: it keeps its place for as long as it needs it.
    pub(super) fn is_known(&self) {
        let mut state = self.room.state();
        if let Some(own) = state.guests.iter_mut().find(|guest| guest.id == self.id) {
            own.is_known = true;
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.room.state().guests.retain(|guest| guest.id != self.id);
    }
}

/// What one attacker has all of: an address, or with IPv6 the half of it that names a network.
pub(super) fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// A connection, and the other end of it.
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
    fn who_says_nothing_makes_room_and_may_not_take_it_all_again() {
        let room = Arc::new(Room::default());
        let start = Instant::now();
        let (silent, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let known = connection();
        let own = room.enter(&known.0, silent, start).unwrap();
        own.is_known();
        let ends: Vec<_> = (1..MAX_CONNECTIONS).map(|_| connection()).collect();
        let enter = |(server, _): &(Arc<TcpStream>, TcpStream)| room.enter(server, silent, start);
        let guests: Vec<Guest> = ends.iter().filter_map(enter).collect();
        assert_eq!(guests.len(), MAX_CONNECTIONS - 1);
        // A burst has its time.
        assert!(!room.has_place(start + PATIENCE / 2));
        assert!(ends.iter().all(|(_, client)| !is_closed(client)));
        let late = start + PATIENCE;
        assert!(!room.has_place(late));
        assert!(ends.iter().all(|(_, client)| is_closed(client)));
        assert!(!is_closed(&known.1));
        drop(guests);
        assert!(room.has_place(late));
        // The same network again, and another one.
        let again: Vec<Guest> = ends
            .iter()
            .filter_map(|(server, _)| room.enter(server, silent, late))
            .collect();
        assert_eq!(again.len(), MAX_UNKNOWN);
        let others: Vec<Guest> = ends[..8]
            .iter()
            .filter_map(|(server, _)| room.enter(server, other, late))
            .collect();
        assert_eq!(others.len(), 8);
        // Who shows the token is no longer counted.
        again[0].is_known();
        let next = room.enter(&ends[0].0, silent, late);
        assert!(next.is_some());
        assert!(room.enter(&ends[0].0, silent, late + FORGET).is_some());
    }

    #[test]
    fn a_network_is_what_one_attacker_has_all_of() {
        let of = |text: &str| network(text.parse().unwrap()).to_string();
        assert_eq!(of("192.168.1.7"), "192.168.1.7");
        assert_eq!(of("::ffff:192.168.1.7"), "192.168.1.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(of("::1"), "::");
    }
}
