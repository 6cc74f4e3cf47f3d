//! The bytes of the client list. One small file, always replaced whole, so that it is either the old or the new list.
//!
//! ```text
//! file   = magic "FIRNNSM1" | state u32 | count u32 | client* | BLAKE3 of everything before [32]
//! client = length u8 (4 or 16) | address | state u32 | length u16 | host name        (integers big endian)
//! ```

use super::Host;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::{collections::BTreeMap, net::IpAddr};

const MAGIC: &[u8; 8] = b"FIRNNSM1";
const HASH_BYTES: usize = 32;

/// Clients that hold locks, or may: host → the state number of its last restart notice, 0 if there was none.
pub(super) type Clients = BTreeMap<Host, u32>;

/// What a restart must know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Our own state number: odd while serving.
    pub(super) state: u32,
    pub(super) clients: Clients,
}

/// The file is not a client list, or not the one that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the list of lock clients is damaged: {0}")]
pub struct DamagedRecord(&'static str);

impl DamagedRecord {
    pub(super) fn too_long() -> Self {
        Self("it is longer than any list")
    }
}

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_slice(MAGIC);
        out.put_u32(self.state);
        out.put_u32(u32::try_from(self.clients.len()).expect("the list is bounded"));
        for (host, state) in &self.clients {
            match host.address {
                IpAddr::V4(address) => {
                    out.put_u8(4);
                    out.put_slice(&address.octets());
                }
                IpAddr::V6(address) => {
                    out.put_u8(16);
                    out.put_slice(&address.octets());
                }
            }
            out.put_u32(*state);
            out.put_u16(u16::try_from(host.name.len()).expect("host names are bounded"));
            out.put_slice(&host.name);
        }
        let hash = blake3::hash(&out);
        out.put_slice(hash.as_bytes());
        out.freeze()
    }

    pub(super) fn decode(file: &[u8]) -> Result<Self, DamagedRecord> {
        let body_bytes = file
            .len()
            .checked_sub(HASH_BYTES)
            .ok_or(DamagedRecord("too short"))?;
        let (body, hash) = file.split_at(body_bytes);
        if blake3::hash(body).as_bytes() != hash {
            return Err(DamagedRecord("its checksum is wrong"));
        }
        let mut rest = body
            .strip_prefix(MAGIC)
            .ok_or(DamagedRecord("unknown format or version"))?;
        let short = |_| DamagedRecord("it ends too early");
        let state = rest.try_get_u32().map_err(short)?;
        let count = rest.try_get_u32().map_err(short)?;
        let mut clients = Clients::new();
        for _ in 0..count {
            let address = match rest.try_get_u8().map_err(short)? {
                4 => IpAddr::from(rest.try_get_u32().map_err(short)?.to_be_bytes()),
                16 => IpAddr::from(rest.try_get_u128().map_err(short)?.to_be_bytes()),
                _ => return Err(DamagedRecord("an address is neither IPv4 nor IPv6")),
            };
            let notified = rest.try_get_u32().map_err(short)?;
            let length = usize::from(rest.try_get_u16().map_err(short)?);
            if rest.len() < length {
                return Err(DamagedRecord("it ends too early"));
            }
            let (name, after) = rest.split_at(length);
            rest = after;
            let name = Bytes::copy_from_slice(name);
            clients.insert(Host { address, name }, notified);
        }
        if !rest.is_empty() {
            return Err(DamagedRecord("there is more than its count says"));
        }
        Ok(Self { state, clients })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_record() -> impl Strategy<Value = Record> {
        let host =
            (any::<IpAddr>(), prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(address, name)| Host {
                address,
                name: name.into(),
            });
        let clients = prop::collection::btree_map(host, any::<u32>(), 0..8);
        (any::<u32>(), clients).prop_map(|(state, clients)| Record { state, clients })
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(record in any_record()) {
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn a_changed_bit_or_a_lost_end_is_noticed(record in any_record(), at in any::<prop::sample::Index>(), bit in 0..8) {
            let mut file = record.encode().to_vec();
            let at = at.index(file.len());
            prop_assert!(Record::decode(&file[..at]).is_err());
            file[at] ^= 1_u8 << bit;
            prop_assert!(Record::decode(&file).is_err());
        }

        #[test]
        fn any_bytes_are_a_list_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut file = [&MAGIC[..], &bytes].concat();
            let hash = blake3::hash(&file);
            file.extend_from_slice(hash.as_bytes());
            if let Ok(record) = Record::decode(&file) {
                prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
            }
        }
    }
}
