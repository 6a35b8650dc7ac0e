//! Access control of the endpoint: the token, and the `Host` and `Origin` headers of browsers.

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use super::request::Head;
use super::response::Refusal;
use crate::error::{Context, Result};
use crate::secret::Secret;

/// Delay of a wrong token, on its connection only. It makes guessing slow without an effect on other clients.
pub(super) const WRONG_TOKEN_DELAY: Duration = Duration::from_secs(1);

/// Suffixes that cannot be registered in the public DNS (RFC 6761, RFC 6762, RFC 8375, ICANN on `.internal`).
const PRIVATE_SUFFIXES: [&str; 4] = [".localhost", ".local", ".internal", ".home.arpa"];

/// Requirements for a request.
pub(super) struct Access {
    pub(super) token: Secret,
    /// Web origin whose pages may use the endpoint; empty for none.
    pub(super) allow_origin: String,
}

/// Returns a new token: 32 random hexadecimal digits.
pub(crate) fn new_token() -> Result<String> {
    let mut bytes = [0; 16];
    let mut source = fs_err::File::open("/dev/urandom")?;
    source.read_exact(&mut bytes).doing("making a token")?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

impl Access {
    pub(super) fn new(token: Secret, allow_origin: &str) -> Self {
        Self {
            token,
            allow_origin: allow_origin.trim_end_matches('/').to_owned(),
        }
    }

    /// Rejects requests that a malicious web page could send from a user's browser: requests to a domain that resolves to this
    /// machine (DNS rebinding), and requests from another origin.
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
        // An IPv6 address is in brackets (RFC 3986, section 3.2.2).
        let is_address = match name.strip_prefix('[') {
            Some(rest) => rest
                .strip_suffix(']')
                .is_some_and(|address| address.parse::<Ipv6Addr>().is_ok()),
            None => name.parse::<Ipv4Addr>().is_ok(),
        };
        let is_single_label = !name.is_empty() && name.chars().all(is_word);
        is_address
            || is_single_label
            || PRIVATE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
            || page_host == Some(name)
    }

    /// Rejects a request without the token. An empty token is always wrong.
    pub(super) fn check_token(&self, head: &Head) -> Result<(), Refusal> {
        let given = head.header("authorization").and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme
                .eq_ignore_ascii_case("bearer")
                .then_some(token.trim())
        });
        let is_right = given.is_some_and(|given| {
            is_equal(given.as_bytes(), self.token.reveal().as_bytes()) && !given.is_empty()
        });
        if is_right {
            return Ok(());
        }
        let why = match given {
            Some(_) => "the token is wrong",
            None => "the request has no token; send Authorization: Bearer TOKEN",
        };
        Err(Refusal::new(401, why).code("invalid_api_key"))
    }
}

/// Returns `HOST` of `HOST:PORT` or `[ADDRESS]:PORT`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.is_empty() => {
            // A bare IPv6 address contains colons, but no port.
            if name.contains(':') && !name.ends_with(']') {
                host
            } else {
                name
            }
        }
        _ => host,
    }
}

/// Compares in a time that depends only on the lengths, so that timing does not reveal a partially correct guess.
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
    fn configured_web_origin_is_allowed() {
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
    fn only_the_token_is_accepted_and_an_empty_one_never() {
        let check = |token: &str, value: &str| {
            let access = Access::new(Secret::new(token), "");
            let refused = access.check_token(&head(&[("authorization", value)]));
            refused.map_err(|refusal| refusal.status)
        };
        let token = "not-a-real-token";
        assert_eq!(check(token, "Bearer not-a-real-token"), Ok(()));
        assert_eq!(check(token, "bearer  not-a-real-token"), Ok(()));
        for wrong in [
            "Bearer not-a-real-tokem",
            "Bearer ",
            token,
            "Basic bm90",
            "",
        ] {
            assert_eq!(check(token, wrong), Err(401), "{wrong}");
            assert_eq!(check("", wrong), Err(401), "{wrong}");
        }
    }
}
