//! TLS 1.3 within a session, by the option `STARTTLS`.
//!
//! Once a server has TLS it insists: every option but `STARTTLS` and `ABORT` is refused before the handshake. A server that
//! merely allowed it could be talked out of it by whoever sits in between. TLS 1.2 is left out although the protocol's text
//! wants it: all clients that matter have had 1.3 for years, and its handshake is encrypted and has no weak choices.

use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
};
use std::sync::Arc;

/// Whose certificate the server wants to see.
#[derive(Clone, Debug)]
pub enum TlsPolicy {
    /// Nobody's: the connection is private, its client anonymous.
    AnyClient,
    /// One signed by these authorities.
    ClientsOf(Vec<CertificateDer<'static>>),
}

/// What is wrong with certificates or keys.
#[derive(Debug, thiserror::Error)]
#[error("TLS cannot be set up: {0}")]
pub struct TlsError(String);

/// A server's side of TLS.
#[derive(Clone)]
pub struct Tls {
    pub(crate) acceptor: tokio_rustls::TlsAcceptor,
}

impl Tls {
    /// From a certificate chain (the server's first), its key, and whom to let in.
    ///
    /// # Errors
    /// If they do not fit together.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        policy: TlsPolicy,
    ) -> Result<Self, TlsError> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| TlsError(error.to_string()))?;
        let builder = match policy {
            TlsPolicy::AnyClient => builder.with_no_client_auth(),
            TlsPolicy::ClientsOf(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots
                        .add(authority)
                        .map_err(|error| TlsError(format!("certificate of an authority: {error}")))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| TlsError(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder
            .with_single_cert(chain, key)
            .map_err(|error| TlsError(error.to_string()))?;
        Ok(Self {
            acceptor: Arc::new(config).into(),
        })
    }
}
