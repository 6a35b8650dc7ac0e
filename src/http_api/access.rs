//! Who may use the endpoint: the token, the `Host` and `Origin` of browsers, and a brake for those who guess.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::request::Head;
use super::response::Refusal;
use super::room::{FORGET, MAX_NETWORKS, network};
use crate::secret::Secret;

/// How long every wrong token takes.
const PAUSE: Duration = Duration::from_millis(10);
/// Wrong tokens of a network before its next ones take [`SLOW`].
const TRIES: u32 = 5;
const SLOW: Duration = Duration::from_secs(2);
/// The most clients of a network that wait for [`SLOW`]. Its others are refused before their tokens are looked at: an answer at
/// once would tell whether a guess is right, and connections side by side would guess as fast as they like.
const MAX_SLOWED: usize = 4;

/// Suffixes of names that nobody can register in the public DNS (RFC 6761, RFC 6762, RFC 8375, ICANN on `.internal`).
const PRIVATE_SUFFIXES: [&str; 4] = [".localhost", ".local", ".internal", ".home.arpa"];

/// What a request must show.
pub(super) struct Access {
    /// Empty: none is asked for.
    pub(super) token: Secret,
    /// The one web origin whose pages may use the endpoint; empty for none.
    pub(super) allow_origin: String,
    wrong: Mutex<WrongTokens>,
}

/// The wrong tokens of late, by network.
#[derive(Default)]
struct WrongTokens(HashMap<IpAddr, Guesses>);

struct Guesses {
    count: u32,
    last: Instant,
    /// How many wait now.
    slowed: usize,
}

impl Access {
    pub(super) fn new(token: Secret, allow_origin: &str) -> Self {
        Self {
            token,
            allow_origin: allow_origin.trim_end_matches('/').to_owned(),
            wrong: Mutex::default(),
        }
    }

    /// Refuses what a web page in somebody's browser could send: a request to a name that the page's owner made point
    /// here (DNS rebinding), and one from another origin.
    pub(super) fn check_site(&self, head: &Head) -> Result<(), Refusal> {
        match head.header("host") {
            Some(host) if self.is_known_host(host) => {}
            None if head.is_http_1_0 => {}
            None => return Err(Refusal::new(400, "the request has no Host")),
            Some(_) => {
                let why = "this Host is not a name of this machine; use its address, or localhost";
                return Err(Refusal::new(421, why));
            }
        }
        match head.header("origin") {
            None | Some("") => Ok(()),
            Some(origin) if origin == self.allow_origin => Ok(()),
            Some(_) => {
                let why = "web pages of this origin may not use bantam; channels.http.allow_origin can name one";
                Err(Refusal::new(403, why))
            }
        }
    }

    fn is_known_host(&self, host: &str) -> bool {
        let name = without_port(host).to_ascii_lowercase();
        let name = name.trim_end_matches('.');
        let page_host = self.allow_origin.split("://").nth(1).map(without_port);
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let is_address = name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_single_label = !name.is_empty() && name.chars().all(is_word);
        is_address
            || is_single_label
            || PRIVATE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
            || page_host == Some(name)
    }

    /// Refuses a request without the token, and slows down a network that guesses.
    pub(super) fn check_token(&self, head: &Head, peer: SocketAddr) -> Result<(), Refusal> {
        if self.token.is_empty() {
            return Ok(());
        }
        let network = network(peer.ip());
        // Held until this one counts, or as many as come at once would find room.
        let mut wrong = self.wrong();
        if wrong.is_full(network, Instant::now()) {
            let refusal = Refusal::new(429, "too many wrong tokens came from this address");
            return Err(refusal.retry_after(SLOW.as_secs()));
        }
        let given = head.header("authorization").and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme
                .eq_ignore_ascii_case("bearer")
                .then_some(token.trim())
        });
        if given.is_some_and(|given| is_equal(given.as_bytes(), self.token.reveal().as_bytes())) {
            return Ok(());
        }
        let is_slow = wrong.begin(network, Instant::now());
        drop(wrong);
        thread::sleep(if is_slow { SLOW } else { PAUSE });
        if is_slow {
            self.wrong().end(network);
        }
        let why = match given {
            Some(_) => "the token is wrong",
            None => "the request has no token; send Authorization: Bearer TOKEN",
        };
        Err(Refusal::new(401, why).code("invalid_api_key"))
    }

    fn wrong(&self) -> MutexGuard<'_, WrongTokens> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WrongTokens {
    /// Whether as many clients of this network wait as may wait.
    fn is_full(&self, network: IpAddr, now: Instant) -> bool {
        self.0.get(&network).is_some_and(|guesses| {
            guesses.slowed >= MAX_SLOWED && now.duration_since(guesses.last) < FORGET
        })
    }

    /// Counts one more and tells whether it is slowed.
    fn begin(&mut self, network: IpAddr, now: Instant) -> bool {
        self.0
            .retain(|_, guesses| guesses.slowed > 0 || now.duration_since(guesses.last) < FORGET);
        if self.0.len() >= MAX_NETWORKS && !self.0.contains_key(&network) {
            // An attacker with so many addresses must not make bantam forget one of them at will.
            return true;
        }
        let guesses = self.0.entry(network).or_insert(Guesses {
            count: 0,
            last: now,
            slowed: 0,
        });
        guesses.count += 1;
        guesses.last = now;
        let is_slow = guesses.count > TRIES;
        guesses.slowed += usize::from(is_slow);
        is_slow
    }

    fn end(&mut self, network: IpAddr) {
        if let Some(guesses) = self.0.get_mut(&network) {
            guesses.slowed = guesses.slowed.saturating_sub(1);
        }
    }
}

/// `HOST` of `HOST:PORT` or `[ADDRESS]:PORT`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => {
            // The colons of a bare IPv6 address are no port's.
            if name.contains(':') && !name.ends_with(']') {
                host
            } else {
                name
            }
        }
        _ => host,
    }
}

/// Compares in a time that depends on the lengths alone, so that timing does not tell how much of a guess is right.
fn is_equal(given: &[u8], secret: &[u8]) -> bool {
    let mut difference = given.len() ^ secret.len();
    for (i, byte) in secret.iter().enumerate() {
        let other = given.get(i).copied().unwrap_or_default();
        difference |= usize::from(byte ^ other);
    }
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(headers: &[(&str, &str)]) -> Head {
        let mut head = Head::default();
        for (name, value) in headers {
            head.headers.push(((*name).to_owned(), (*value).to_owned()));
        }
        head
    }

    #[test]
    fn only_names_that_nobody_can_register_are_names_of_this_machine() {
        let access = Access::new(Secret::default(), "https://chat.example.org:8443");
        let status = |host| match access.check_site(&head(&[("host", host)])) {
            Ok(()) => 200,
            Err(refusal) => refusal.status,
        };
        for host in [
            "127.0.0.1:7475",
            "localhost",
            "LOCALHOST:80",
            "localhost.:7475",
            "[::1]:7475",
            "192.168.1.7",
            "raspberrypi:7475",
            "pi.local:7475",
            "host.docker.internal:7475",
            "chat.example.org",
        ] {
            assert_eq!(status(host), 200, "{host}");
        }
        for host in [
            "evil.example:7475",
            "127.0.0.1.evil.example",
            "localhost.evil.example:7475",
            "evil.example#localhost",
            "localhost@evil.example",
            "",
            ":7475",
            "127.0.0.1:7475.evil.example",
        ] {
            assert_eq!(status(host), 421, "{host}");
        }
        assert_eq!(access.check_site(&head(&[])).unwrap_err().status, 400);
    }

    #[test]
    fn one_web_origin_may_be_allowed() {
        let status = |allowed, origin| {
            let access = Access::new(Secret::default(), allowed);
            let head = head(&[("host", "localhost"), ("origin", origin)]);
            access
                .check_site(&head)
                .map_or_else(|refusal| refusal.status, |()| 200)
        };
        assert_eq!(status("", "http://localhost:3000"), 403);
        assert_eq!(status("", "null"), 403);
        assert_eq!(status("", ""), 200); // some clients send an empty one
        assert_eq!(status("https://a.example", "https://a.example"), 200);
        assert_eq!(status("https://a.example/", "https://a.example"), 200);
        assert_eq!(status("https://a.example", "https://a.example.org"), 403);
        assert_eq!(status("https://a.example", "http://a.example"), 403);
    }

    #[test]
    fn a_wrong_token_is_refused_and_guessing_is_slow() {
        let access = Access::new(Secret::new("not-a-real-token"), "");
        let peer = |last| SocketAddr::from(([127, 0, 0, last], 1));
        let check = |value: &str, last| {
            let head = head(&[("authorization", value)]);
            access
                .check_token(&head, peer(last))
                .map_err(|refusal| refusal.status)
        };
        assert_eq!(check("Bearer not-a-real-token", 1), Ok(()));
        assert_eq!(check("bearer  not-a-real-token", 1), Ok(()));
        let started = Instant::now();
        for wrong in [
            "Bearer not-a-real-tokem",
            "Bearer ",
            "not-a-real-token",
            "Basic bm90",
            "",
        ] {
            assert_eq!(check(wrong, 1), Err(401), "{wrong}");
        }
        assert!(started.elapsed() >= PAUSE * 5);
        let started = Instant::now();
        assert_eq!(check("Bearer x", 1), Err(401));
        assert!(started.elapsed() >= SLOW);
        // Another address is not slowed, nor is one that was quiet for long.
        let mut wrong = access.wrong();
        assert!(!wrong.begin(peer(2).ip(), Instant::now()));
        assert!(!wrong.begin(peer(1).ip(), Instant::now() + FORGET * 2));
    }

    #[test]
    fn guesses_side_by_side_learn_nothing() {
        let access = Access::new(Secret::new("not-a-real-token"), "");
        let peer = |last| SocketAddr::from(([127, 0, 0, last], 1));
        let check = |value: &str, last| {
            let head = head(&[("authorization", value)]);
            access
                .check_token(&head, peer(last))
                .map_err(|refusal| refusal.status)
        };
        let now = Instant::now();
        for _ in 0..TRIES {
            assert!(!access.wrong().begin(peer(1).ip(), now));
        }
        // One after the other, the right token is not slowed.
        assert_eq!(check("Bearer not-a-real-token", 1), Ok(()));
        for _ in 0..MAX_SLOWED {
            assert!(access.wrong().begin(peer(1).ip(), now));
        }
        let answers = ["Bearer wrong", "Bearer not-a-real-token"].map(|value| check(value, 1));
        assert_eq!(answers, [Err(429), Err(429)]);
        assert_eq!(check("Bearer not-a-real-token", 2), Ok(()));
        access.wrong().end(peer(1).ip());
        assert_eq!(check("Bearer not-a-real-token", 1), Ok(()));
    }

    #[test]
    fn of_guesses_that_come_together_few_are_looked_at() {
        let access = Access::new(Secret::new("not-a-real-token"), "");
        let head = head(&[("authorization", "Bearer wrong")]);
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        for _ in 0..TRIES {
            access.wrong().begin(peer.ip(), Instant::now());
        }
        let all = std::sync::Barrier::new(64);
        let guess = || {
            all.wait();
            access.check_token(&head, peer).unwrap_err().status
        };
        let started = Instant::now();
        let answers: Vec<u16> = thread::scope(|scope| {
            let guesses: Vec<_> = (0..64).map(|_| scope.spawn(guess)).collect();
            guesses
                .into_iter()
                .map(|guess| guess.join().unwrap())
                .collect()
        });
        // On a busy machine some may come when the first have waited.
        let waits = usize::try_from(started.elapsed().as_secs() / SLOW.as_secs()).unwrap();
        let looked_at = answers.iter().filter(|status| **status == 401).count();
        assert!(
            (1..=MAX_SLOWED * waits).contains(&looked_at),
            "{looked_at} in {waits}"
        );
    }
}
