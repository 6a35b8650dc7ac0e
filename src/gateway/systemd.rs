//! Notifications for the service manager, as `sd_notify(3)` and `sd_watchdog_enabled(3)` describe them.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use crate::config::Env;

/// The interval without a watchdog.
const NO_WATCHDOG: Duration = Duration::from_secs(3600);

/// The service manager that started this process, if any.
#[derive(Clone)]
pub(crate) struct ServiceManager {
    socket: Option<String>,
    /// How often to send `WATCHDOG=1`: twice within the manager's limit.
    pub interval: Duration,
}

impl ServiceManager {
    pub(crate) fn new(env: &Env) -> Self {
        let is_for_us = env
            .get("WATCHDOG_PID")
            .is_none_or(|pid| *pid == std::process::id().to_string());
        let limit = env
            .get("WATCHDOG_USEC")
            .and_then(|limit| limit.parse().ok())
            .filter(|limit| *limit > 0);
        let limit = limit.filter(|_| is_for_us).map(Duration::from_micros);
        Self {
            socket: env.get("NOTIFY_SOCKET").cloned(),
            interval: limit.map_or(NO_WATCHDOG, |limit| limit / 2),
        }
    }

    /// Sends a state such as `READY=1`. A manager that does not listen is ignored.
    pub(crate) fn notify(&self, state: &str) {
        let Some(path) = &self.socket else { return };
        let send = || -> std::io::Result<usize> {
            let address = match path.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name)?,
                None => SocketAddr::from_pathname(path)?,
            };
            let socket = UnixDatagram::unbound()?;
            // A manager that does not read must not stop the gateway.
            socket.set_nonblocking(true)?;
            socket.send_to_addr(state.as_bytes(), &address)
        };
        drop(send());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_half_the_limit_of_this_process() {
        let interval = |pairs: &[(&str, &str)]| {
            let env: Env = pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            ServiceManager::new(&env).interval
        };
        let own = std::process::id().to_string();
        assert_eq!(
            interval(&[("WATCHDOG_USEC", "180000000")]),
            Duration::from_secs(90)
        );
        assert_eq!(
            interval(&[("WATCHDOG_USEC", "180000000"), ("WATCHDOG_PID", &own)]),
            Duration::from_secs(90)
        );
        for other in [
            &[][..],
            &[("WATCHDOG_USEC", "180000000"), ("WATCHDOG_PID", "1")],
            &[("WATCHDOG_USEC", "0")],
        ] {
            assert_eq!(interval(other), NO_WATCHDOG);
        }
    }
}
