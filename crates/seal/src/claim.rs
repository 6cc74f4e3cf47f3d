//! Recovery claims: statements signed with the tenant's signing key, which show a service that somebody has the recovery phrase and
//! tell it nothing of the phrase.
//!
//! ```text
//! message = "firn 1 account recovery" | step u8 | (length u64 | bytes)*          the parts of the step, in the order of its fields
//! ```
//!
//! The first step asks for a letter, the second shows the letter's code. The label keeps a claim from counting as the signature of a
//! key ring, and the installation's name keeps it from counting at another installation. A second step names the one recovery it is
//! for, so that it is of no use once that is over.

use crate::{TenantPublic, TenantSigningKey};

const LABEL: &[u8] = b"firn 1 account recovery";

/// What is claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryClaim<'a> {
    /// An owner of this address wants to get in again.
    Asked {
        /// The installation's name in certificates.
        trust_domain: &'a str,
        /// Where the letter goes.
        email: &'a str,
    },
    /// They read the letter.
    Confirmed {
        /// The installation's name in certificates.
        trust_domain: &'a str,
        /// The recovery, as the service named it.
        recovery: &'a str,
        /// The code in the letter.
        code: &'a str,
    },
}

impl RecoveryClaim<'_> {
    fn message(&self) -> Vec<u8> {
        let (step, parts): (u8, &[&str]) = match self {
            Self::Asked { trust_domain, email } => (1, &[trust_domain, email]),
            Self::Confirmed {
                trust_domain,
                recovery,
                code,
            } => (2, &[trust_domain, recovery, code]),
        };
        let mut message = LABEL.to_vec();
        message.push(step);
        for part in parts {
            message.extend_from_slice(&(part.len() as u64).to_le_bytes());
            message.extend_from_slice(part.as_bytes());
        }
        message
    }

    /// Signs the claim; the same claim has the same signature.
    pub fn sign(&self, key: &TenantSigningKey) -> [u8; 64] {
        key.sign(&self.message())
    }

    /// Whether whoever has this tenant's phrase made the claim.
    pub fn is_of(&self, tenant: &TenantPublic, signature: &[u8; 64]) -> bool {
        tenant.verifies(&self.message(), signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_counts_for_its_own_step_place_and_words_only() {
        let key = TenantSigningKey::from_seed([7; 32]);
        let asked = RecoveryClaim::Asked {
            trust_domain: "firn.example",
            email: "ada@one.example",
        };
        let confirmed = |trust_domain, recovery, code| RecoveryClaim::Confirmed {
            trust_domain,
            recovery,
            code,
        };
        let claim = confirmed("firn.example", "ab", "c");
        let signature = claim.sign(&key);
        assert!(claim.is_of(&key.public(), &signature));
        assert!(!claim.is_of(&TenantSigningKey::from_seed([8; 32]).public(), &signature));
        for other in [
            asked,
            confirmed("firn.test", "ab", "c"),
            confirmed("firn.example", "a", "bc"),
            confirmed("firn.example", "ab", "d"),
        ] {
            assert!(!other.is_of(&key.public(), &signature), "{other:?}");
        }
        assert!(asked.is_of(&key.public(), &asked.sign(&key)));
    }
}
