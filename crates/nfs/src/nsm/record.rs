//! The bytes of the client list. One small file, always replaced whole, so that it is either the old or the new list.
//!
//! ```text
//! file   = magic "FIRNNSM1" | state u32 | count u32 | client* | BLAKE3 of everything before [32]
//! client = length u8 (4 or 16) | address | state u32 | length u16 | host name        (integers big endian)
//! ```

use super::Host;
use bytes::Bytes;
use firn_codec::{ByteOrder, Codec, Reader, Writer};
use std::{collections::BTreeMap, net::IpAddr};

const MAGIC: &[u8; 8] = b"FIRNNSM1";
/// The version, a digit, with which the list begins: the newest that this build reads, and the one it writes.
pub const LIST_VERSION: u8 = MAGIC[7];
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

/// The file, as its reader sees it.
struct ClientList;

impl Codec for ClientList {
    type Error = DamagedRecord;
    const BYTE_ORDER: ByteOrder = ByteOrder::Big;

    fn truncated(&self, _offset: usize, _needed: usize, _found: usize) -> DamagedRecord {
        DamagedRecord("it ends too early")
    }
}

impl Record {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = Writer::big_endian(256);
        out.raw(MAGIC);
        out.u32(self.state);
        out.u32(u32::try_from(self.clients.len()).expect("the list is bounded"));
        for (host, state) in &self.clients {
            match host.address {
                IpAddr::V4(address) => {
                    out.u8(4);
                    out.raw(&address.octets());
                }
                IpAddr::V6(address) => {
                    out.u8(16);
                    out.raw(&address.octets());
                }
            }
            out.u32(*state);
            out.u16(u16::try_from(host.name.len()).expect("host names are bounded"));
            out.raw(&host.name);
        }
        let hash = blake3::hash(out.as_slice());
        out.raw(hash.as_bytes());
        out.finish().into()
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
        let mut fields = Reader::new(ClientList, body);
        if fields.array().ok() != Some(*MAGIC) {
            return Err(DamagedRecord("unknown format or version"));
        }
        let state = fields.u32()?;
        let count = fields.u32()?;
        let mut clients = Clients::new();
        for _ in 0..count {
            let address = match fields.u8()? {
                4 => IpAddr::from(fields.array::<4>()?),
                16 => IpAddr::from(fields.array::<16>()?),
                _ => return Err(DamagedRecord("an address is neither IPv4 nor IPv6")),
            };
            let notified = fields.u32()?;
            let length = fields.u16()?;
            let name = Bytes::copy_from_slice(fields.take(length.into())?);
            clients.insert(Host { address, name }, notified);
        }
        if fields.remaining() > 0 {
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

    /// The bytes of version 1, for ever.
    #[test]
    fn golden_bytes() {
        let host = |address: &str, name: &'static str| Host {
            address: address.parse().unwrap(),
            name: Bytes::from_static(name.as_bytes()),
        };
        let record = Record {
            state: 0x0102_0305,
            clients: [(host("192.0.2.1", "ab"), 7), (host("2001:db8::1", "c"), 0)].into(),
        };
        let file = record.encode();
        let body = [
            &b"FIRNNSM1\x01\x02\x03\x05\0\0\0\x02"[..],
            b"\x04\xc0\0\x02\x01\0\0\0\x07\0\x02ab",
            b"\x10\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\x01c",
        ]
        .concat();
        assert_eq!(file, [&body[..], blake3::hash(&body).as_bytes()].concat());
        assert_eq!(Record::decode(&file), Ok(record));
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
