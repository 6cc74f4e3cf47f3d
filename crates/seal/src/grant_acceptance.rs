//! Acceptances of grants: statements signed with a tenant's signing key, by which the owner of a volume in another tenant knows to which
//! keys it may wrap the volume's.
//!
//! ```text
//! message = "firn 1 grant acceptance" | (length u64 | bytes)*      owner, volume, grantee, access, then edge and recipient key of each edge
//! ```
//!
//! The service carries acceptances and is not believed about them: the owner was told the other tenant's key by another way, and an edge that
//! the service slips in, or another key for one that was named, has no signature.

use crate::{RecipientPublic, TenantPublic, TenantSigningKey};

const LABEL: &[u8] = b"firn 1 grant acceptance";

/// What is accepted, with all names as the service writes them.
#[derive(Clone, Copy, Debug)]
pub struct GrantAcceptance<'a> {
    /// The tenant whose volume it is.
    pub owner: &'a str,
    /// Which volume.
    pub volume: &'a str,
    /// The tenant that accepts.
    pub grantee: &'a str,
    /// `read` or `write`.
    pub access: &'a str,
    /// The edges that are to open it, and the keys to which the volume's keys are to be wrapped for them.
    pub edges: &'a [(String, RecipientPublic)],
}

impl GrantAcceptance<'_> {
    fn message(&self) -> Vec<u8> {
        let mut message = LABEL.to_vec();
        let mut part = |bytes: &[u8]| {
            message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
            message.extend_from_slice(bytes);
        };
        for text in [self.owner, self.volume, self.grantee, self.access] {
            part(text.as_bytes());
        }
        for (edge, public) in self.edges {
            part(edge.as_bytes());
            part(&public.to_bytes());
        }
        message
    }

    /// Signs it; the same acceptance has the same signature.
    pub fn sign(&self, key: &TenantSigningKey) -> [u8; 64] {
        key.sign(&self.message())
    }

    /// Whether whoever has this tenant's phrase accepted.
    pub fn is_of(&self, tenant: &TenantPublic, signature: &[u8; 64]) -> bool {
        tenant.verifies(&self.message(), signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RecipientSecret;

    #[test]
    fn an_acceptance_counts_for_its_own_volume_access_and_edges_only() {
        let key = TenantSigningKey::from_seed([7; 32]);
        let public = |seed: u8| RecipientSecret::derive(&[seed; 32]).public();
        let edges = [("edg_1".to_owned(), public(1)), ("edg_2".to_owned(), public(2))];
        let accepted = GrantAcceptance {
            owner: "ten_1",
            volume: "vol_1",
            grantee: "ten_2",
            access: "read",
            edges: &edges,
        };
        let signature = accepted.sign(&key);
        assert!(accepted.is_of(&key.public(), &signature));
        let other = TenantSigningKey::from_seed([8; 32]).public();
        assert!(!accepted.is_of(&other, &signature));
        let swapped = [("edg_1".to_owned(), public(3)), edges[1].clone()];
        let moved = [("edg_1e".to_owned(), public(1)), ("dg_2".to_owned(), public(2))];
        for forged in [
            GrantAcceptance {
                owner: "ten_3",
                ..accepted
            },
            GrantAcceptance {
                volume: "vol_2",
                ..accepted
            },
            GrantAcceptance {
                grantee: "ten_3",
                ..accepted
            },
            GrantAcceptance {
                access: "write",
                ..accepted
            },
            GrantAcceptance {
                edges: &edges[..1],
                ..accepted
            },
            GrantAcceptance {
                edges: &swapped,
                ..accepted
            },
            GrantAcceptance {
                edges: &moved,
                ..accepted
            },
        ] {
            assert!(!forged.is_of(&key.public(), &signature), "{forged:?}");
        }
    }
}
