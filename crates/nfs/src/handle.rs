//! File handles as clients see them: opaque, stable across restarts, and impossible to make up.
//!
//! ```text
//! handle (44 bytes) = version u8 = 1 | zero [3] | export u64 | file system u64 | inode u64 | MAC [16]
//! ```
//!
//! The MAC is keyed BLAKE3 over everything before it, cut to 128 bits. Without it a client could walk inode numbers and
//! reach files whose directories it may not enter, or swap the export number for one with weaker rules.

use crate::xdr::Opaque;
use bytes::Bytes;
use firn_vfs::FileHandle;
use subtle::ConstantTimeEq;

const VERSION: u8 = 1;
const SIGNED_BYTES: usize = 28;
const MAC_BYTES: usize = 16;
const HANDLE_BYTES: usize = SIGNED_BYTES + MAC_BYTES;

/// A file handle on the wire (RFC 1813 §2.3.3: at most 64 bytes).
pub type WireHandle = Opaque<64>;

/// Names an export for as long as it is served under the same path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExportId(pub u64);

/// What an authentic handle says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SignedHandle {
    /// The export it was given out for.
    pub export: ExportId,
    /// The file.
    pub file: FileHandle,
}

/// Signs and checks handles.
#[derive(Clone)]
pub struct HandleKey {
    key: [u8; 32],
}

impl HandleKey {
    /// From a secret that stays the same across restarts; another secret makes every handle given out before invalid.
    pub fn new(secret: &[u8; 32]) -> Self {
        Self {
            key: blake3::derive_key("firn 2026 nfs file handle v1", secret),
        }
    }

    /// The handle of a file of an export.
    pub fn sign(&self, handle: SignedHandle) -> WireHandle {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[0] = VERSION;
        bytes[4..12].copy_from_slice(&handle.export.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&handle.file.file_system.to_be_bytes());
        bytes[20..28].copy_from_slice(&handle.file.inode.to_be_bytes());
        let mac = self.mac(&bytes[..SIGNED_BYTES]);
        bytes[SIGNED_BYTES..].copy_from_slice(&mac);
        Opaque(Bytes::copy_from_slice(&bytes))
    }

    /// What a handle says; `None` if this key did not sign it.
    pub fn open(&self, handle: &[u8]) -> Option<SignedHandle> {
        let handle: &[u8; HANDLE_BYTES] = handle.try_into().ok()?;
        let (signed, mac) = handle.split_at(SIGNED_BYTES);
        if !bool::from(self.mac(signed).ct_eq(mac)) || signed[..4] != [VERSION, 0, 0, 0] {
            return None;
        }
        let number = |at: usize| u64::from_be_bytes(std::array::from_fn(|byte| signed[at + byte]));
        Some(SignedHandle {
            export: ExportId(number(4)),
            file: FileHandle {
                file_system: number(12),
                inode: number(20),
            },
        })
    }

    /// The export that a handle names; nothing of it is checked.
    pub(crate) fn claimed_export(handle: &[u8]) -> Option<ExportId> {
        let handle: &[u8; HANDLE_BYTES] = handle.try_into().ok()?;
        Some(ExportId(u64::from_be_bytes(std::array::from_fn(|byte| {
            handle[4 + byte]
        }))))
    }

    fn mac(&self, signed: &[u8]) -> [u8; MAC_BYTES] {
        let hash = blake3::keyed_hash(&self.key, signed);
        std::array::from_fn(|byte| hash.as_bytes()[byte])
    }
}

impl std::fmt::Debug for HandleKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("HandleKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: SignedHandle = SignedHandle {
        export: ExportId(7),
        file: FileHandle {
            file_system: 8,
            inode: u64::MAX,
        },
    };

    #[test]
    fn a_handle_says_what_was_signed_also_after_a_restart() {
        let wire = HandleKey::new(&[1; 32]).sign(HANDLE);
        assert_eq!(HandleKey::new(&[1; 32]).open(&wire.0), Some(HANDLE));
    }

    #[test]
    fn a_handle_with_any_bit_changed_is_refused() {
        let key = HandleKey::new(&[1; 32]);
        let wire = key.sign(HANDLE).0;
        for bit in 0..wire.len() * 8 {
            let mut forged = wire.to_vec();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(key.open(&forged), None, "bit {bit}");
        }
    }

    #[test]
    fn handles_of_another_key_or_length_are_refused() {
        let wire = HandleKey::new(&[1; 32]).sign(HANDLE).0;
        assert_eq!(HandleKey::new(&[2; 32]).open(&wire), None);
        let key = HandleKey::new(&[1; 32]);
        for length in 0..wire.len() {
            assert_eq!(key.open(&wire[..length]), None, "{length} bytes");
        }
        assert_eq!(key.open(&[&wire[..], &[0]].concat()), None);
        assert_eq!(key.open(&[]), None);
    }
}
