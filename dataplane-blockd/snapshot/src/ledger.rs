//! Snapshot list: a chain of generations, each the whole list.
//!
//! ```text
//! generation = magic "FBDL" | version u8 (1) | reserved [3] | number u64 | epoch u64 | count u32 | entry × count
//! entry      = name length u8, name | generation u64 | taken_unix_ms i64 | size_bytes u64 | root uid [32]
//! ```
//!
//! All integers are little-endian. Whoever takes or deletes a snapshot creates the generation after the newest; of those who try at once
//! one succeeds, the others look again. So there is one order of all that was taken and deleted, and whoever made a generation
//! knows what came before it. A deletion's own number becomes the epoch.
//!
//! A generation is removed when there is a newer one. Somebody who slept meanwhile may then create one of a number long past: nobody
//! looks at it, and whoever did finds that the newest does not say what it wanted ([`Catalogue::commit`](crate::Catalogue)).

use crate::{
    fields::{Fields, head},
    format::Uid,
};
use bytes::Bytes;
use firn_codec::{Reader, Writer};

const MAGIC: [u8; 4] = *b"FBDL";
const VERSION: u8 = 1;
/// Snapshots of one disk: a generation stays below 512 KiB.
pub(crate) const SNAPSHOTS_MAX: usize = 4096;
/// Bytes of a name.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// A snapshot that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name among its disk's.
    pub name: String,
    /// The generation that made it: of two of the same name, one of which was deleted, the later has the greater.
    pub generation: u64,
    /// Its instant, by the client's calendar, in milliseconds since 1970.
    pub taken_unix_ms: i64,
    /// The disk's size at the instant.
    pub size_bytes: u64,
    pub(crate) root: Uid,
}

impl Listed {
    /// It and no other, now and ever.
    pub(crate) fn identity(&self) -> String {
        format!("{}/{}", self.generation, self.name)
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    /// Of this generation; 0: nothing was ever taken.
    pub(crate) number: u64,
    /// The last generation that deleted something.
    pub(crate) epoch: u64,
    /// What there is, in the order in which it was taken.
    pub(crate) live: Vec<Listed>,
}

impl Ledger {
    pub(crate) fn named(&self, name: &str) -> Option<&Listed> {
        self.live.iter().find(|listed| listed.name == name)
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut fields = Writer::with_capacity(28 + 128 * self.live.len());
        fields.raw(&MAGIC);
        fields.raw(&[VERSION, 0, 0, 0]);
        fields.u64(self.number);
        fields.u64(self.epoch);
        fields.u32(u32::try_from(self.live.len()).expect("at most 4096"));
        for listed in &self.live {
            fields.text(&listed.name);
            fields.u64(listed.generation);
            fields.i64(listed.taken_unix_ms);
            fields.u64(listed.size_bytes);
            fields.raw(&listed.root.0);
        }
        fields.finish().into()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut fields = Reader::new(Fields, bytes);
        head(&mut fields, MAGIC, VERSION, "it is no generation")?;
        let number = fields.u64()?;
        let epoch = fields.u64()?;
        let count = fields.u32()? as usize;
        if epoch > number || count > SNAPSHOTS_MAX {
            return Err("its numbers cannot be");
        }
        let mut live = Vec::new();
        for _ in 0..count {
            live.push(Listed {
                name: fields.text()?.to_owned(),
                generation: fields.u64()?,
                taken_unix_ms: fields.i64()?,
                size_bytes: fields.u64()?,
                root: Uid(fields.array()?),
            });
        }
        fields.finish()?;
        Ok(Self { number, epoch, live })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn generations_are_read_back(
            number in any::<u64>(),
            entries in proptest::collection::vec(("[a-z]{1,64}", any::<u64>(), any::<i64>(), any::<[u8; 32]>()), 0..20),
        ) {
            let live = entries
                .into_iter()
                .map(|(name, generation, taken_unix_ms, root)| Listed {
                    name,
                    generation,
                    taken_unix_ms,
                    size_bytes: generation / 2,
                    root: Uid(root),
                })
                .collect();
            let ledger = Ledger { number, epoch: number / 2, live };
            prop_assert_eq!(Ledger::decode(&ledger.encode()), Ok(ledger));
        }

        #[test]
        fn nothing_from_outside_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Ledger::decode(&bytes);
            let mut headed = Ledger::default().encode()[..24].to_vec();
            headed.extend(bytes);
            let _ = Ledger::decode(&headed);
        }
    }

    /// The bytes of version 1, for ever.
    #[test]
    fn golden_bytes() {
        let ledger = Ledger {
            number: 3,
            epoch: 2,
            live: vec![Listed {
                name: "ab".into(),
                generation: 1,
                taken_unix_ms: -1,
                size_bytes: 4096,
                root: Uid([0xcc; 32]),
            }],
        };
        let hex = data_encoding::HEXLOWER.encode(&ledger.encode());
        let head = "4642444c01000000030000000000000002000000000000000100000002616201000000000000";
        assert_eq!(
            hex,
            format!("{head}00ffffffffffffffff0010000000000000{}", "cc".repeat(32))
        );
    }
}
