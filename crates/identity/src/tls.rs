//! Mutual TLS 1.3 between edges, nodes and services: both ends show a certificate of the authority, and each checks the
//! *name* in the other's, not its address.
//!
//! A [`TlsIdentity`] is swapped while connections are open: new handshakes use the new certificate, old connections stay.

use crate::{IssuedCertificate, PeerIdentity, PeerKind, SigningKey, UnixTime};
use firn_env::Env;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme,
    client::{
        ResolvesClientCert,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime as TlsTime},
    server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier},
    sign::CertifiedKey,
    time_provider::TimeProvider,
    version::TLS13,
};
use std::{
    fmt,
    sync::{Arc, RwLock},
    time::Duration,
};

/// Why a TLS end cannot be set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A certificate of the authority cannot be trusted.
    #[error("not an authority's certificate: {0}")]
    BadAuthority(String),
    /// Certificate and key do not belong together, or one of them is none.
    #[error("the certificate does not fit the key: {0}")]
    BadIdentity(String),
}

/// A key and its current certificate; clones share it.
#[derive(Clone)]
pub struct TlsIdentity(Arc<RwLock<Current>>);

struct Current {
    certified: Arc<CertifiedKey>,
    renew_after: UnixTime,
    expires: UnixTime,
}

impl TlsIdentity {
    /// Joins a key with the certificate issued for it.
    ///
    /// # Errors
    /// [`TlsError::BadIdentity`] if they do not belong together.
    pub fn new(key: &SigningKey, issued: &IssuedCertificate) -> Result<Self, TlsError> {
        Ok(Self(Arc::new(RwLock::new(Current::new(key, issued)?))))
    }

    /// Uses another certificate, and perhaps another key, from the next handshake on.
    ///
    /// # Errors
    /// [`TlsError::BadIdentity`] if they do not belong together; the old ones stay in use.
    pub fn renew(&self, key: &SigningKey, issued: &IssuedCertificate) -> Result<(), TlsError> {
        let renewed = Current::new(key, issued)?;
        *self.0.write().expect("no panic under this lock") = renewed;
        Ok(())
    }

    /// When the next certificate should be asked for.
    pub fn renew_after(&self) -> UnixTime {
        self.0.read().expect("no panic under this lock").renew_after
    }

    /// When connections will be refused.
    pub fn expires(&self) -> UnixTime {
        self.0.read().expect("no panic under this lock").expires
    }

    /// The name in the certificate; nothing if it holds none of ours.
    pub fn name(&self) -> Option<PeerIdentity> {
        let certified = self.certified();
        PeerIdentity::of_certificate(certified.cert.first()?).ok()
    }

    fn certified(&self) -> Arc<CertifiedKey> {
        self.0.read().expect("no panic under this lock").certified.clone()
    }
}

impl Current {
    fn new(key: &SigningKey, issued: &IssuedCertificate) -> Result<Self, TlsError> {
        let bad = |error: Error| TlsError::BadIdentity(error.to_string());
        let signing = aws_lc_rs::sign::any_ecdsa_type(&PrivateKeyDer::Pkcs8(key.key_der())).map_err(bad)?;
        let certified = CertifiedKey::new(vec![issued.certificate.clone()], signing);
        certified.keys_match().map_err(bad)?;
        Ok(Self {
            certified: Arc::new(certified),
            renew_after: issued.renew_after,
            expires: issued.expires,
        })
    }
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TlsIdentity(secret, expires {})", self.expires())
    }
}

impl ResolvesServerCert for TlsIdentity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }
}

impl ResolvesClientCert for TlsIdentity {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.certified())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Whether a server asks its clients for certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// No connection without one: nodes.
    Required,
    /// With or without: the API, where members come with tokens.
    Optional,
}

/// Whom a client expects to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Exactly this peer.
    Peer(PeerIdentity),
    /// Any node of this trust domain.
    AnyNode {
        /// The trust domain.
        trust_domain: String,
    },
}

impl Expected {
    fn matches(&self, found: &PeerIdentity) -> bool {
        match self {
            Self::Peer(expected) => expected == found,
            Self::AnyNode { trust_domain } => {
                found.trust_domain == *trust_domain && matches!(found.kind, PeerKind::Node(_))
            }
        }
    }
}

/// Sets up the serving end. The caller reads the peer's name with [`PeerIdentity::of_certificate`] after the handshake.
///
/// # Errors
/// [`TlsError::BadAuthority`] if an authority's certificate is none.
pub fn server_config(
    env: &Env,
    identity: &TlsIdentity,
    authorities: &[CertificateDer<'static>],
    clients: ClientCertificates,
) -> Result<ServerConfig, TlsError> {
    let bad = |error: &dyn fmt::Display| TlsError::BadAuthority(error.to_string());
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone()).map_err(|error| bad(&error))?;
    }
    let provider = provider();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let verifier = match clients {
        ClientCertificates::Required => verifier,
        ClientCertificates::Optional => verifier.allow_unauthenticated(),
    };
    Ok(
        ServerConfig::builder_with_details(provider, Arc::new(EnvTime(env.clone())))
            .with_protocol_versions(&[&TLS13])
            .expect("the provider speaks TLS 1.3")
            .with_client_cert_verifier(verifier.build().map_err(|error| bad(&error))?)
            .with_cert_resolver(Arc::new(identity.clone())),
    )
}

/// Sets up the calling end.
///
/// # Errors
/// [`TlsError::BadAuthority`] if an authority's certificate is none.
pub fn client_config(
    env: &Env,
    identity: &TlsIdentity,
    authorities: &[CertificateDer<'static>],
    expected: Expected,
) -> Result<ClientConfig, TlsError> {
    let anchors = authorities
        .iter()
        .map(|authority| {
            webpki::anchor_from_trusted_cert(authority)
                .map(|anchor| anchor.to_owned())
                .map_err(|error| TlsError::BadAuthority(error.to_string()))
        })
        .collect::<Result<_, _>>()?;
    let provider = provider();
    let verifier = NamedServer {
        anchors,
        expected,
        provider: provider.clone(),
    };
    Ok(
        ClientConfig::builder_with_details(provider, Arc::new(EnvTime(env.clone())))
            .with_protocol_versions(&[&TLS13])
            .expect("the provider speaks TLS 1.3")
            .dangerous() // rustls calls every verifier of one's own so; ours checks chain, time, usage and name
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(identity.clone())),
    )
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// Time for certificate checks, from the environment: simulated where that is.
struct EnvTime(Env);

impl fmt::Debug for EnvTime {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("EnvTime")
    }
}

impl TimeProvider for EnvTime {
    fn current_time(&self) -> Option<TlsTime> {
        let now = UnixTime::from_wall(self.0.wall());
        Some(TlsTime::since_unix_epoch(Duration::from_secs(now.0)))
    }
}

/// Checks a server by the name in its certificate.
#[derive(Debug)]
struct NamedServer {
    anchors: Vec<TrustAnchor<'static>>,
    expected: Expected,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for NamedServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: TlsTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = webpki::EndEntityCert::try_from(end_entity)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        certificate
            .verify_for_usage(
                self.provider.signature_verification_algorithms.all,
                &self.anchors,
                intermediates,
                now,
                webpki::KeyUsage::server_auth(),
                None,
                None,
            )
            .map_err(|error| Error::InvalidCertificate(chain_error(error)))?;
        match PeerIdentity::of_certificate(end_entity) {
            Ok(found) if self.expected.matches(&found) => Ok(ServerCertVerified::assertion()),
            Ok(_) | Err(_) => Err(Error::InvalidCertificate(CertificateError::NotValidForName)),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("only TLS 1.3 is spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn chain_error(error: webpki::Error) -> CertificateError {
    match error {
        webpki::Error::CertExpired { .. } => CertificateError::Expired,
        webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
        webpki::Error::UnknownIssuer => CertificateError::UnknownIssuer,
        _ => CertificateError::ApplicationVerificationFailure,
    }
}
