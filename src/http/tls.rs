//! Cryptography of TLS: ring's algorithms, without support for private keys.

use std::sync::{Arc, OnceLock};

use rustls::Error;
use rustls::crypto::{CryptoProvider, KeyProvider, ring};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;

/// Returns rustls' default provider, without the code that signs with client certificates.
pub(super) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let provider = || {
        Arc::new(CryptoProvider {
            key_provider: &NoKeys,
            ..ring::default_provider()
        })
    };
    PROVIDER.get_or_init(provider).clone()
}

#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(&self, _: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        Err(Error::General(
            "client certificates are not supported".to_owned(),
        ))
    }
}
