//! Identity and authorization: tokens, certificates, capabilities, keys. Pure: time and randomness are passed in.
//!
//! ```text
//! person, program ── login, API key ─► token (ES256, ≤ 5 min) ─► API        checked with the key set and the revocations
//! edge, node      ── certificate ────► mutual TLS 1.3          ─► API, nodes   its name says whose it is
//! disk client     ── capability ─────► node                                  checked offline, dies with the attachment
//! new machine     ── join secret ────► certificate                           once, within the hour
//! installation    ── document ───────► whoever joined                        signed by the authority, checked from a file
//! ```
//!
//! Every secret here is wiped when it is dropped, prints as `…(secret)`, and is compared in constant time. An unverified
//! thing is another type than a verified one: [`VerifiedToken`] and [`VerifiedCapability`] come only from their verifiers.

mod api_key;
mod authority;
mod capability;
mod derive;
mod document;
mod join;
mod jwks;
mod jws;
mod key_hash;
mod p256;
mod peer;
mod pem;
mod principal;
mod revocation;
mod secret;
mod tenant_volume;
mod time;
mod tls;
mod token;

pub use api_key::{ApiKey, ApiKeyHash, BadApiKey};
pub use authority::{
    AuthorityError, CERTIFICATE_SECONDS, CertificateAuthority, IssuedCertificate, REQUEST_BYTES,
    certificate_request, requested_key,
};
pub use capability::{
    CAPABILITY_BYTES, Capability, CapabilityError, CapabilityIssuer, CapabilityKey, CapabilityVerifier,
    HolderHash, MAX_CAPABILITY_SECONDS, Rights, VerifiedCapability,
};
pub use document::{DocumentError, DocumentVerifier};
pub use firn_ids::{DiskId, EdgeId, KeyId, MemberId, NodeId, ParseIdError, TenantId, TokenId, VolumeId};
pub use join::{Authenticator, AuthenticatorHash, JoinError, JoinSecret, LookupId, MAX_INVITATION_BYTES};
pub use jwks::{JwkSet, JwksError, KEY_PERIOD_SECONDS, KeySchedule, MAX_KEYS};
pub use key_hash::KeyHash;
pub use p256::{SigningKey, VerifyingKey};
pub use peer::{PeerError, PeerIdentity, PeerKind};
pub use pem::pem;
pub use principal::{Principal, Role};
pub use revocation::{MAX_REVOCATIONS, MAX_TENANT_REVOCATIONS, Revocations, RevocationsError, Revoked};
pub use rustls::pki_types::CertificateDer;
pub use secret::{Entropy, equal_in_constant_time};
pub use tenant_volume::{BadTenantVolume, TenantVolume};
pub use time::UnixTime;
pub use tls::{ClientCertificates, Expected, TlsError, TlsIdentity, client_config, server_config};
pub use token::{
    CLOCK_SKEW_SECONDS, Claims, Grant, MAX_SCOPE_BYTES, MAX_SCOPES, MAX_TOKEN_BYTES, MAX_TOKEN_SECONDS,
    TokenError, TokenIssuer, TokenVerifier, VerifiedToken,
};
