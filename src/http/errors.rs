//! ureq's errors as sentences. None of them quotes a header.

use std::io::ErrorKind;
use std::time::{Duration, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use rustls::{CertificateError, InvalidMessage};

use super::{Fault, authority};
use crate::text::rfc3339;

/// `proxy` is the address of the proxy, if any.
pub(super) fn fault(e: &ureq::Error, proxy: &str) -> Fault {
    let through = match proxy {
        "" => String::new(),
        proxy => format!("the proxy {}", authority(proxy)),
    };
    match e {
        ureq::Error::HostNotFound => Fault::Unreachable("unknown host name".to_owned()),
        ureq::Error::ConnectionFailed => Fault::Unreachable("the connection failed".to_owned()),
        ureq::Error::Timeout(what) => Fault::Unreachable(format!("no connection in time ({what})")),
        ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused && proxy.is_empty() => {
            Fault::Unreachable("the connection was refused".to_owned())
        }
        ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => {
            Fault::Unreachable(format!("{through} refused the connection"))
        }
        ureq::Error::ConnectProxyFailed(why) => Fault::Broken(format!("{through} refused the connection ({why})")),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => {
            Fault::Broken("invalid address: api_base must begin with http:// or https://".to_owned())
        }
        ureq::Error::Rustls(e) => Fault::Broken(tls(e)),
        ureq::Error::Io(e) => match e.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(e) => Fault::Broken(tls(e)),
            None => Fault::Broken(e.to_string()),
        },
        e => Fault::Broken(e.to_string()),
    }
}

fn tls(e: &rustls::Error) -> String {
    match e {
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the server does not speak TLS; try http://".to_owned()
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "an unknown authority signed the certificate; set SSL_CERT_FILE=/path/ca.pem".to_owned()
        }
        rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. }) => {
            format!("the certificate expired on {}; renew it, or check this machine's clock", date(*not_after))
        }
        rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. }) => {
            format!("the certificate is not valid before {}; check this machine's clock", date(*not_before))
        }
        e => e.to_string(),
    }
}

fn date(time: UnixTime) -> String {
    let text = rfc3339(UNIX_EPOCH + Duration::from_secs(time.as_secs()));
    text.split('T').next().unwrap_or_default().to_owned()
}
