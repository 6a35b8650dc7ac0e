//! What TLS is made of: ring's algorithms, and no private key of ours.

use std::sync::{Arc, OnceLock};

use rustls::Error;
use rustls::crypto::{CryptoProvider, KeyProvider, ring};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::SigningKey;

/// The algorithms of every connection. rustls' own choice brings the means to sign with certificates of a client, too, which
/// this program has none of.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let all = || Arc::new(CryptoProvider { key_provider: &NoKeys, ..ring::default_provider() });
    PROVIDER.get_or_init(all).clone()
}

/// Takes no private key.
#[derive(Debug)]
struct NoKeys;

impl KeyProvider for NoKeys {
    fn load_private_key(&self, _: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        Err(Error::General("certificates of a client are not built in".to_owned()))
    }
}
