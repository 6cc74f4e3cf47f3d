//! Keys, key ring, authenticated encryption, HPKE envelopes. Pure: no I/O, and all randomness is passed in.
//!
//! ```text
//! recovery phrase ─► tenant signing key ──signs──► key ring ──lists──► edges, members, the recovery key
//!                └─► recovery recipient key            │
//!                                                      └─ epoch keys, each wrapped to every recipient (HPKE)
//! epoch key + fresh salt ─► object key (one a segment), record key (one a journal file)      slot = nonce
//! ```
//!
//! Keys stay with the customer: whoever holds none of the recipients' secrets learns from a bucket what the plain parts
//! of objects say and no more. A nonce is never used twice under one key, because every sealer draws a salt of its own
//! and spends each slot once; there is no way to make a sealer for a salt that was used before.

mod aead;
mod claim;
mod derive;
mod error;
mod grant_acceptance;
mod identity;
mod keyring;
mod keys;
mod object;
mod phrase;
mod record;
mod secret;
mod signing;

pub use claim::RecoveryClaim;
pub use error::SealError;
pub use grant_acceptance::GrantAcceptance;
pub use identity::{IdentityError, RecipientPublic, RecipientSecret, TenantPublic, TenantSigningKey};
pub use keyring::{
    Entropy, FORMATS, KeyRing, KeyRingError, MAX_EPOCHS, MAX_RECIPIENTS, Recipient, RecipientKind, SeenRing,
    VerifiedKeyRing,
};
pub use keys::{EpochKey, Keys, NotTheNextKeys};
pub use object::{Compression, ObjectOpener, ObjectSealer, OpenedObject};
pub use phrase::{PhraseError, RecoveryPhrase};
pub use record::{RecordContext, RecordOpener, RecordSealer, SEALED_OVERHEAD_BYTES, framed_bytes};
pub use signing::{RootPublic, RootSigningKey};
