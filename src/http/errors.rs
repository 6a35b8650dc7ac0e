//! Converts ureq's errors to messages. Messages do not quote headers.

use std::io::ErrorKind;
use std::time::{Duration, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, InvalidMessage};

use super::{Fault, authority};
use crate::error::Error;
use crate::text::{rfc3339, to_single_line};

/// 2026-01-01, in seconds since 1970; an earlier time means a wrong clock.
const FIRST_RELEASE: u64 = 1_767_225_600;

fn of_tls(e: &ureq::Error) -> Option<&rustls::Error> {
    match e {
        ureq::Error::Rustls(e) => Some(e),
        ureq::Error::Io(e) => e.get_ref().and_then(|inner| inner.downcast_ref()),
        _ => None,
    }
}

/// Whether a certificate was signed by an unknown authority.
pub(super) fn is_unknown_issuer(e: &ureq::Error) -> bool {
    let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
    of_tls(e) == Some(&unknown)
}

/// Converts an error. `proxy` is the address of the proxy, or empty.
pub(super) fn fault(e: &ureq::Error, proxy: &str) -> Fault {
    if let Some(e) = of_tls(e) {
        return tls(e);
    }
    let name = authority(proxy);
    let broken = |why: &str| Fault::Broken(why.to_owned());
    // A proxy looks up the host itself, so the unknown name is the proxy's.
    let unknown_host = || match proxy {
        proxy if proxy.is_empty() || proxy.starts_with("socks5:") => broken("unknown host name"),
        _ => broken(&format!("no proxy named \"{name}\"")),
    };
    match e {
        ureq::Error::HostNotFound => unknown_host(),
        ureq::Error::Io(e) if e.to_string().contains("lookup address") => {
            if e.to_string().contains("Temporary") {
                broken("the name look-up failed; is the network up?")
            } else {
                unknown_host()
            }
        }
        ureq::Error::Timeout(what) => Fault::Broken(format!("no connection in time ({what})")),
        ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => match proxy {
            "" => broken("the connection was refused"),
            _ => broken(&format!("the proxy {name} refused the connection")),
        },
        // Without the system's number.
        ureq::Error::Io(e) if e.raw_os_error().is_some() => broken(&e.kind().to_string()),
        ureq::Error::ConnectProxyFailed(why) => {
            broken(&format!("the proxy {name} refused the connection ({why})"))
        }
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => Fault::Config(
            Error::config("invalid address or header")
                .hint("correct the address or the headers in config.json"),
        ),
        // An error of the address guard.
        ureq::Error::Other(why) => Fault::Broken(why.to_string()),
        e => Fault::Broken(e.to_string()),
    }
}

fn tls(e: &rustls::Error) -> Fault {
    use CertificateError::{
        ExpiredContext, NotValidForNameContext, NotValidYetContext, Other, UnknownIssuer,
    };
    let (message, hint) = match e {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => (
            "the server does not speak TLS".to_owned(),
            "write http:// instead of https:// in its address",
        ),
        rustls::Error::AlertReceived(AlertDescription::ProtocolVersion)
        | rustls::Error::PeerIncompatible(_) => (
            "the server speaks only an old version of TLS; 1.2 or newer is needed".to_owned(),
            "update the server",
        ),
        rustls::Error::InvalidCertificate(other @ Other(_))
            if format!("{other:?}").contains("CaUsedAsEndEntity") =>
        {
            (
                "the certificate is self-signed".to_owned(),
                "set SSL_CERT_FILE=/path/of/that/certificate.pem",
            )
        }
        // A machine without a battery starts with an old time or 1970, until the network sets the clock.
        rustls::Error::InvalidCertificate(NotValidYetContext { time, .. })
            if time.as_secs() < FIRST_RELEASE =>
        {
            (
                format!("this machine's clock says {}", date(*time)),
                "set the clock, or wait until the network sets it",
            )
        }
        rustls::Error::InvalidCertificate(UnknownIssuer) => (
            "an unknown authority signed the certificate".to_owned(),
            "set SSL_CERT_FILE=/path/ca.pem",
        ),
        rustls::Error::InvalidCertificate(ExpiredContext { not_after, .. }) => (
            format!("the certificate expired on {}", date(*not_after)),
            "renew it, or correct this machine's clock",
        ),
        rustls::Error::InvalidCertificate(NotValidYetContext { not_before, .. }) => (
            format!("the certificate is not valid before {}", date(*not_before)),
            "correct this machine's clock",
        ),
        rustls::Error::InvalidCertificate(NotValidForNameContext {
            expected,
            presented,
        }) => (
            format!(
                "the certificate is for {}, not for {}",
                to_single_line(&names(presented), 200),
                expected.to_str()
            ),
            "correct the address, or the server's certificate",
        ),
        rustls::Error::InvalidCertificate(_) => (
            e.to_string(),
            "correct the address, or the server's certificate",
        ),
        e => return Fault::Broken(e.to_string()),
    };
    Fault::Config(Error::config(message).hint(hint))
}

/// Extracts the names of a certificate, which rustls lists as `DnsName("example.org")`.
fn names(presented: &[String]) -> String {
    let bare = |name: &String| name.split('"').nth(1).unwrap_or(name).to_owned();
    presented.iter().map(bare).collect::<Vec<_>>().join(", ")
}

fn date(time: UnixTime) -> String {
    let text = rfc3339(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    text.split('T').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_is_told_in_words() {
        let error = ureq::Error::Io(std::io::Error::from_raw_os_error(libc::ENETUNREACH));
        let told = matches!(fault(&error, ""), Fault::Broken(why) if why == "network unreachable");
        assert!(told);
    }

    #[test]
    fn a_certificate_that_cannot_be_trusted_is_a_matter_of_configuration() {
        let [time, not_after, stopped] = [2_000_000_000, 1_609_459_200, 86_400]
            .map(|s| UnixTime::since_unix_epoch(Duration::from_secs(s)));
        for (error, says) in [
            (CertificateError::UnknownIssuer, "unknown authority"),
            (
                CertificateError::ExpiredContext { time, not_after },
                "expired on 2021-01-01",
            ),
            (
                CertificateError::NotValidYetContext {
                    time,
                    not_before: time,
                },
                "not valid before 2033-05-18",
            ),
            (
                CertificateError::NotValidYetContext {
                    time: stopped,
                    not_before: not_after,
                },
                "clock says 1970-01-02",
            ),
            (
                CertificateError::NotValidForNameContext {
                    expected: "a.example".try_into().unwrap(),
                    presented: vec!["DnsName(\"b.example\")".to_owned()],
                },
                "is for b.example, not for a.example",
            ),
        ] {
            let error = ureq::Error::Rustls(rustls::Error::InvalidCertificate(error));
            let Fault::Config(e) = fault(&error, "") else {
                panic!("{says}: another try would not help")
            };
            assert_eq!(e.kind, crate::error::Kind::Config);
            assert!(e.message.contains(says) && e.hint.is_some(), "{e:?}");
        }
    }
}
