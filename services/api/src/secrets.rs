//! Everything secret of the service, derived from one master secret of 32 bytes, which lies in a file that only the service
//! reads. So the table holds no key, and all instances agree without exchanging any.

use data_encoding::HEXLOWER;
use firn_identity::{
    AuthorityError, CapabilityIssuer, CertificateAuthority, KeySchedule, SigningKey, UnixTime,
};
use std::fmt;
use zeroize::{ZeroizeOnDrop, Zeroizing};

/// The master secret. Wiped when dropped, never printed.
#[derive(Clone)]
pub struct MasterSecret(Box<Zeroizing<[u8; 32]>>);

/// 2026-01-01T00:00:00Z: before any certificate the authority can have issued.
const AUTHORITY_VALID_FROM: UnixTime = UnixTime(1_767_225_600);

impl MasterSecret {
    /// Takes 32 random bytes.
    pub fn new(bytes: &[u8; 32]) -> Self {
        Self(Box::new(Zeroizing::new(*bytes)))
    }

    /// The keys tokens are signed with. Raise `generation` when one leaked.
    pub fn token_keys(&self, generation: u32) -> KeySchedule {
        KeySchedule::new(*self.derive("firn-api 1 token keys", &[]), generation)
    }

    /// The certificate authority of a trust domain.
    ///
    /// # Errors
    /// If `trust_domain` is no name.
    pub fn authority(&self, trust_domain: &str) -> Result<CertificateAuthority, AuthorityError> {
        let seed = self.derive("firn-api 1 certificate authority", &[]);
        CertificateAuthority::from_seed(*seed, trust_domain, AUTHORITY_VALID_FROM)
    }

    /// What disk capabilities are made with.
    pub fn capabilities(&self) -> CapabilityIssuer {
        CapabilityIssuer::from_seed(*self.derive("firn-api 1 disk capabilities", &[]))
    }

    /// What audit heads are signed with; it does not change, so that heads stay checkable for years.
    pub fn audit_key(&self) -> SigningKey {
        SigningKey::from_seed(*self.derive("firn-api 1 audit heads", &[]))
    }

    /// The key under which the reply to one idempotent request is kept.
    pub(crate) fn reply_key(&self, tenant: &str, idempotency_key: &str) -> Zeroizing<[u8; 32]> {
        self.derive(
            "firn-api 1 kept replies",
            &[tenant.as_bytes(), idempotency_key.as_bytes()],
        )
    }

    /// What a node of the pool joins with.
    pub(crate) fn node_secret(&self, node: &str) -> Zeroizing<[u8; 32]> {
        self.derive("firn-api 1 node join secrets", &[node.as_bytes()])
    }

    /// Hides a mail address in a key of the table.
    pub(crate) fn blind(&self, text: &str) -> String {
        hex(&*self.derive("firn-api 1 blinded names", &[text.as_bytes()]))
    }

    fn derive(&self, context: &str, parts: &[&[u8]]) -> Zeroizing<[u8; 32]> {
        let mut hasher = blake3::Hasher::new_derive_key(context);
        hasher.update(&**self.0);
        for part in parts {
            // Lengths keep parts apart: ("ab", "c") must not derive like ("a", "bc").
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Zeroizing::new(*hasher.finalize().as_bytes())
    }
}

impl ZeroizeOnDrop for MasterSecret {}

impl fmt::Debug for MasterSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("MasterSecret(secret)")
    }
}

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    HEXLOWER.encode(bytes)
}

/// Reads `N` bytes of lower-case hex digits.
pub(crate) fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    HEXLOWER.decode_mut(text.as_bytes(), &mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_master_secret_prints_nothing_of_itself_and_what_derives_from_it_differs() {
        let master = MasterSecret::new(&[0xab; 32]);
        assert_eq!(format!("{master:?}"), "MasterSecret(secret)");
        let other = MasterSecret::new(&[0xac; 32]);
        assert_ne!(master.audit_key().public(), other.audit_key().public());
        assert_ne!(master.capabilities().public(), other.capabilities().public());
        // Parts are kept apart by their lengths, not by luck.
        assert_ne!(master.reply_key("a", "bc"), master.reply_key("ab", "c"));
        assert_eq!(master.blind("a"), master.blind("a"));
    }

    #[test]
    fn hex_is_read_exactly_as_it_is_written() {
        assert_eq!(unhex::<2>(&hex(&[0, 255])), Some([0, 255]));
        for wrong in ["00f", "00FF", "00ff0", "+0ff", "é0f"] {
            assert_eq!(unhex::<2>(wrong), None, "{wrong}");
        }
    }
}
