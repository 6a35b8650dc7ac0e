//! Chooses the proxy for a URL from the environment, as curl does, with two differences: upper and lower case names work for
//! every scheme, and loopback addresses never use a proxy, because its `localhost` is another machine.

use std::net::Ipv4Addr;

use super::Env;
use super::keys::variable;
use crate::http;

/// Returns the proxy for a URL; empty for a direct connection.
pub(crate) fn proxy(url: &str, env: &Env) -> String {
    let set =
        |name: &str| variable(name, env).or_else(|| variable(&name.to_ascii_lowercase(), env));
    let host = host(url);
    if is_loopback(&host) || set("NO_PROXY").is_some_and(|list| is_listed(&host, list)) {
        return String::new();
    }
    let is_tls = url.to_ascii_lowercase().starts_with("https://");
    let name = if is_tls { "HTTPS_PROXY" } else { "HTTP_PROXY" };
    let found = set(name).or_else(|| set("ALL_PROXY"));
    found.unwrap_or_default().to_owned()
}

/// Returns the proxy and the certificates for requests to `url`. The `proxy` of an entry overrides the environment.
pub(crate) fn http_settings(url: &str, own: &str, env: &Env) -> http::Settings {
    let ca_file = env.get("SSL_CERT_FILE").filter(|file| !file.is_empty());
    let own = Some(own).filter(|own| !own.is_empty());
    http::Settings {
        proxy: own.map_or_else(|| proxy(url, env), str::to_owned),
        ca_file: ca_file.map(Into::into),
        guard: None,
    }
}

/// Returns the host of a URL, in lower case, without brackets and port.
pub(crate) fn host(url: &str) -> String {
    let authority = http::authority(url);
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.trim_end_matches('.').to_ascii_lowercase()
}

/// Formats an address for people, without possible secrets: user, password and query.
pub(crate) fn redact_url(url: &str) -> String {
    let (address, query) = match url.split_once(['?', '#']) {
        Some((address, _)) => (address, "?..."),
        None => (url, ""),
    };
    let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
    let separator = if scheme.is_empty() { "" } else { "://" };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}{separator}{host}{path}{query}")
}

fn is_loopback(host: &str) -> bool {
    let loopback = host.parse::<Ipv4Addr>().is_ok_and(|ip| ip.is_loopback());
    loopback || matches!(host, "localhost" | "::1") || host.ends_with(".localhost")
}

/// Whether `NO_PROXY` lists the host, by name, parent domain or network, or as `*`.
fn is_listed(host: &str, list: &str) -> bool {
    let entries = list.split([',', ' ']).map(str::trim);
    let mut entries = entries.filter(|entry| !entry.is_empty());
    entries.any(|entry| {
        if let Some((network, bits)) = entry.split_once('/') {
            return is_in(host, network, bits).unwrap_or(false);
        }
        let name = self::host(entry.trim_start_matches("*.").trim_start_matches('.'));
        let below = host.strip_suffix(&*name);
        entry == "*" || below.is_some_and(|below| below.is_empty() || below.ends_with('.'))
    })
}

fn is_in(host: &str, network: &str, bits: &str) -> Option<bool> {
    let [host, network] = [host, network].map(|ip| ip.parse::<Ipv4Addr>().ok().map(u32::from));
    let shift = 32_u32.checked_sub(bits.parse().ok()?)?;
    let [host, network] = [host?, network?].map(|ip| ip.checked_shr(shift).unwrap_or(0));
    Some(host == network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_is_the_schemes_and_never_this_machines() {
        let env = |pairs: &[(&str, &str)]| {
            pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect::<Env>()
        };
        let both = env(&[
            ("HTTPS_PROXY", "http://s:1"),
            ("http_proxy", "http://p:1"),
            ("HTTP_PROXY", ""),
        ]);
        assert_eq!(proxy("https://api.example.com/v1", &both), "http://s:1");
        assert_eq!(
            proxy(
                "http://api.example.com/v1",
                &env(&[("http_proxy", "http://p:1")])
            ),
            "http://p:1"
        );
        assert_eq!(
            proxy("http://x", &env(&[("ALL_PROXY", "http://a:1")])),
            "http://a:1"
        );
        assert_eq!(proxy("http://x", &env(&[])), "");
        let urls =
            "https://localhost:11434/v1 https://127.8.0.1 https://[::1]:80/ https://a.localhost";
        for url in urls.split_whitespace() {
            assert_eq!(proxy(url, &both), "", "{url}");
        }
    }

    #[test]
    fn no_proxy_names_hosts_domains_and_networks() {
        let list = "example.com, .corp,*.lab:80,10.0.0.0/8 host.only,192.168.1.7,[fd00::1]";
        let hosts = "example.com a.example.com x.corp y.lab 10.9.8.7 host.only 192.168.1.7 fd00::1";
        for host in hosts.split_whitespace() {
            assert!(is_listed(host, list), "{host}");
        }
        for host in ["badexample.com", "11.0.0.1", "192.168.1.70", "corporate"] {
            assert!(!is_listed(host, list), "{host}");
        }
        assert!(is_listed("anything", "a,*"));
        assert!(is_listed("1.2.3.4", "0.0.0.0/0") && !is_listed("1.2.3.4", "1.2.3.4/99"));
    }
}
