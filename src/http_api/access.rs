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

/// Returns a new token: 32 random hexadecimal digits.
pub(crate) fn new_token() -> Result<String> {
    let mut bytes = [0; 16];
    let mut source = fs_err::File::open("/dev/urandom")?;
    source.read_exact(&mut bytes).doing("making a token")?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Rejects requests that a malicious web page could send from a user's browser: requests to a domain that resolves to this
/// machine (DNS rebinding), and requests from another origin than the allowed one.
pub(super) fn check_site(head: &Head, allowed: &str) -> Result<(), Refusal> {
    match head.header("host") {
        Some(host) if is_known_host(host, allowed) => {}
        None if head.is_http_1_0 => {}
        None => return Err(Refusal::new(400, "the request has no Host")),
        Some(_) => {
            let why = "this Host is not a name of this machine; use its address, or localhost";
            return Err(Refusal::new(421, why));
        }
    }
    match head.header("origin") {
        // Some clients send an empty one.
        None | Some("") => Ok(()),
        Some(origin) if origin == allowed => Ok(()),
        Some(_) => {
            let why = "web pages of this origin may not use bantam; channels.http.allow_origin can name one";
            Err(Refusal::new(403, why))
        }
    }
}

fn is_known_host(host: &str, allowed_origin: &str) -> bool {
    let name = without_port(host).to_ascii_lowercase();
    let name = name.trim_end_matches('.');
    let page_host = allowed_origin.split("://").nth(1).map(without_port);
    let is_word = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    // An IPv6 address is in brackets (RFC 3986, section 3.2.2).
    let is_address = match name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
    {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    };
    let is_single_label = !name.is_empty() && name.chars().all(is_word);
    is_address
        || is_single_label
        || PRIVATE_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
        || page_host == Some(name)
}

/// Rejects a request without the token. An empty token is always wrong.
pub(super) fn check_token(head: &Head, token: &Secret) -> Result<(), Refusal> {
    let given = head.header("authorization").and_then(|value| {
        let (scheme, given) = value.split_once(' ')?;
        scheme
            .eq_ignore_ascii_case("bearer")
            .then_some(given.trim())
    });
    let why = match given {
        Some(given) if !given.is_empty() && is_equal(given, token.reveal()) => return Ok(()),
        Some(_) => "the token is wrong",
        None => "the request has no token; send Authorization: Bearer TOKEN",
    };
    Err(Refusal::new(401, why).code("invalid_api_key"))
}

/// Returns `HOST` of `HOST:PORT` or `[ADDRESS]:PORT`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Compares in a time that depends only on the lengths, so that timing does not reveal a partially correct guess.
fn is_equal(given: &str, secret: &str) -> bool {
    let (given, secret) = (given.as_bytes(), secret.as_bytes());
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
        let allowed = "https://chat.example.org:8443";
        let status = |host| match check_site(&head(&[("host", host)]), allowed) {
            Ok(()) => 200,
            Err(refusal) => refusal.status,
        };
        let hosts = "127.0.0.1:7475 localhost LOCALHOST:80 localhost.:7475 [::1]:7475 192.168.1.7 \
            raspberrypi:7475 pi.local:7475 host.docker.internal:7475 chat.example.org";
        for host in hosts.split_whitespace() {
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
        assert_eq!(check_site(&head(&[]), allowed).unwrap_err().status, 400);
    }
}
