//! The certificate authority: names edges, nodes and services for a week at a time.
//!
//! The holder makes its key pair and keeps it; a **request** is the public key and a signature by it over the name asked for,
//! so nobody gets a certificate for a key that is not theirs, and a request for one name cannot be used for another. (Not
//! PKCS #10: what that adds is a parser for input from strangers.) Who may ask for which name, the caller decides; the
//! authority writes only names of its own trust domain.
//!
//! ```text
//! request = version u8 (1) | public key [65] | ES256 signature [64] over "firn 1 certificate request" | name
//! ```
//!
//! A holder asks again when half of the time is over ([`IssuedCertificate::renew_after`]), so the API may be away for half a
//! week before a connection fails. Removal is not by certificate: the API looks the edge up at each request.

use crate::{
    PeerIdentity, SigningKey, UnixTime, VerifyingKey, derive::derive, secret::Entropy,
    token::CLOCK_SKEW_SECONDS,
};
use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyUsagePurpose,
    PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
};
use rustls::pki_types::CertificateDer;
use time::OffsetDateTime;

/// How long a certificate holds.
pub const CERTIFICATE_SECONDS: u64 = 7 * 24 * 3600;
/// The length of a request of version 1.
pub const REQUEST_BYTES: usize = 1 + 65 + 64;
const REQUEST_VERSION: u8 = 1;
const REQUEST_CONTEXT: &[u8] = b"firn 1 certificate request";

/// Why no certificate was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthorityError {
    /// Not a request this build reads.
    #[error("not a certificate request")]
    Malformed,
    /// The key in it did not sign it for this name.
    #[error("the certificate request is not signed by its own key for {name}")]
    NotProved {
        /// The name.
        name: String,
    },
    /// A name of another installation, or one that cannot be written.
    #[error("{name} is not a name this authority may write")]
    ForeignName {
        /// The name.
        name: String,
    },
    /// The X.509 writer or the time given is at fault.
    #[error("the certificate cannot be written: {0}")]
    Encoding(String),
}

/// Asks for a certificate: to be sent to the API as it is.
pub fn certificate_request(key: &SigningKey, name: &PeerIdentity) -> [u8; REQUEST_BYTES] {
    let mut request = [REQUEST_VERSION; REQUEST_BYTES];
    request[1..66].copy_from_slice(&key.public().to_bytes());
    request[66..].copy_from_slice(&key.sign(&request_message(name)));
    request
}

/// The key that a certificate request is for; nothing if it is none. Whether its sender has the private half is checked when the
/// certificate is [issued](CertificateAuthority::issue).
pub fn requested_key(request: &[u8]) -> Option<VerifyingKey> {
    (request.len() == REQUEST_BYTES && request[0] == REQUEST_VERSION)
        .then(|| VerifyingKey::from_bytes(&request[1..66]))
        .flatten()
}

fn request_message(name: &PeerIdentity) -> Vec<u8> {
    [REQUEST_CONTEXT, name.to_string().as_bytes()].concat()
}

/// A certificate and its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The holder's certificate.
    pub certificate: CertificateDer<'static>,
    /// When it holds until.
    pub expires: UnixTime,
    /// When its holder should ask for the next.
    pub renew_after: UnixTime,
}

/// The authority. Its key is derived from a seed, so all instances of the API are the same authority.
#[derive(Debug)]
pub struct CertificateAuthority {
    trust_domain: String,
    issuer: Issuer<'static, AuthorityKey>,
    certificate: CertificateDer<'static>,
}

#[derive(Debug)]
struct AuthorityKey {
    key: SigningKey,
    point: [u8; 65],
}

impl AuthorityKey {
    fn new(key: SigningKey) -> Self {
        let point = key.public().to_bytes();
        Self { key, point }
    }
}

struct HolderKey([u8; 65]);

impl PublicKeyData for HolderKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl PublicKeyData for AuthorityKey {
    fn der_bytes(&self) -> &[u8] {
        &self.point
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for AuthorityKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let pair = EcdsaKeyPair::from_private_key_and_public_key(
            &ECDSA_P256_SHA256_ASN1_SIGNING,
            &*self.key.to_seed(),
            &self.point,
        )
        .map_err(|_| rcgen::Error::RingUnspecified)?;
        let signature = pair
            .sign(&SystemRandom::new(), message)
            .map_err(|_| rcgen::Error::RingUnspecified)?;
        Ok(signature.as_ref().to_vec())
    }
}

impl CertificateAuthority {
    /// The authority of `trust_domain` whose key derives from `seed`; its own certificate holds from `valid_from` for ten years.
    ///
    /// # Errors
    /// [`AuthorityError`] if the trust domain is no name or the time is none.
    pub fn from_seed(
        seed: [u8; 32],
        trust_domain: &str,
        valid_from: UnixTime,
    ) -> Result<Self, AuthorityError> {
        let probe = PeerIdentity {
            trust_domain: trust_domain.to_owned(),
            kind: crate::PeerKind::Service("api".into()),
        };
        if !probe.is_writable() {
            return Err(AuthorityError::ForeignName {
                name: trust_domain.to_owned(),
            });
        }
        let derived = derive::<32>(&seed, "firn 1 certificate authority", &[trust_domain.as_bytes()]);
        let key = AuthorityKey::new(SigningKey::from_seed(*derived.expose()));
        let mut params = CertificateParams::default();
        params.not_before = calendar(valid_from)?;
        params.not_after = calendar(valid_from.plus(3653 * 24 * 3600))?;
        params.serial_number = Some(SerialNumber::from_slice(&[1]));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, format!("Firn authority of {trust_domain}"));
        let certificate = params.self_signed(&key).map_err(encoding)?.der().clone();
        Ok(Self {
            trust_domain: trust_domain.to_owned(),
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// The authority's own certificate: what peers trust.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub(crate) fn signing_key(&self) -> &SigningKey {
        &self.issuer.key().key
    }

    /// The installation whose names it writes.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// Makes a certificate for `name` out of a request; `addresses` are DNS names and IP addresses that clients which are
    /// not ours (a gateway) may check.
    ///
    /// # Errors
    /// [`AuthorityError`] says what is wrong with the request.
    pub fn issue(
        &self,
        request: &[u8],
        name: &PeerIdentity,
        addresses: &[String],
        now: UnixTime,
        entropy: Entropy<'_>,
    ) -> Result<IssuedCertificate, AuthorityError> {
        if name.trust_domain != self.trust_domain || !name.is_writable() {
            return Err(AuthorityError::ForeignName {
                name: name.to_string(),
            });
        }
        let key = requested_key(request).ok_or(AuthorityError::Malformed)?;
        if !key.verifies(&request_message(name), &request[66..]) {
            return Err(AuthorityError::NotProved {
                name: name.to_string(),
            });
        }
        let expires = now.plus(CERTIFICATE_SECONDS);
        let mut serial = [0; 16];
        entropy(&mut serial);
        // Positive and of full length, as RFC 5280 asks.
        serial[0] = serial[0] & 0x7f | 0x40;
        let mut params = CertificateParams::new(addresses).map_err(encoding)?;
        params
            .subject_alt_names
            .push(SanType::URI(name.to_string().try_into().map_err(encoding)?));
        // A holder whose clock is a little behind must not refuse what it was just given.
        params.not_before = calendar(now.minus(CLOCK_SKEW_SECONDS))?;
        params.not_after = calendar(expires)?;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        let certificate = params
            .signed_by(&HolderKey(key.to_bytes()), &self.issuer)
            .map_err(encoding)?;
        Ok(IssuedCertificate {
            certificate: certificate.der().clone(),
            expires,
            renew_after: now.plus(CERTIFICATE_SECONDS / 2),
        })
    }
}

fn calendar(time: UnixTime) -> Result<OffsetDateTime, AuthorityError> {
    i64::try_from(time.0)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .ok_or_else(|| AuthorityError::Encoding(format!("{time} is beyond the calendar")))
}

fn encoding(error: rcgen::Error) -> AuthorityError {
    AuthorityError::Encoding(error.to_string())
}
