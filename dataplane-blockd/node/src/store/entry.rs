//! Index entry of one block: its generation, its checksum, and where it lies.

use firn_blockd_protocol::{BlockState, BlockVersion, Fence, Generation, TRACT_BLOCKS};

/// Where a block's content lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// It was never written.
    Absent,
    /// It was trimmed: a tombstone, so that older content that arrives later stays out.
    Trimmed,
    /// In this slot of the tract's group.
    Slot(u32),
}

/// A block's entry in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) generation: Generation,
    pub(crate) checksum: u32,
    pub(crate) place: Place,
}

impl Entry {
    pub(crate) const ABSENT: Self = Self {
        generation: Generation::ZERO,
        checksum: 0,
        place: Place::Absent,
    };

    pub(crate) fn version(&self) -> BlockVersion {
        BlockVersion {
            generation: self.generation,
            state: match self.place {
                Place::Absent => BlockState::Absent,
                Place::Trimmed => BlockState::Trimmed,
                Place::Slot(_) => BlockState::Written(self.checksum),
            },
        }
    }

    pub(crate) fn slot(&self) -> Option<u32> {
        match self.place {
            Place::Slot(slot) => Some(slot),
            Place::Absent | Place::Trimmed => None,
        }
    }
}

impl Place {
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Absent => 0,
            Self::Trimmed => 1,
            Self::Slot(slot) => slot + 2,
        }
    }

    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            0 => Self::Absent,
            1 => Self::Trimmed,
            slot => Self::Slot(slot - 2),
        }
    }
}

/// Bytes of an entry, in memory and on the disk: 40 KiB for a tract, half a per cent of what it describes.
pub(crate) const ENTRY_BYTES: usize = 20;

/// The entries of a tract, packed.
#[derive(Clone)]
pub(crate) struct Entries(Box<[[u8; ENTRY_BYTES]]>);

impl Entries {
    pub(crate) fn absent() -> Self {
        Self(vec![[0; ENTRY_BYTES]; usize::from(TRACT_BLOCKS)].into_boxed_slice())
    }

    pub(crate) fn get(&self, block: u16) -> Entry {
        let bytes = &self.0[usize::from(block)];
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Entry {
            generation: Generation::new(
                Fence(word(0)),
                u64::from_le_bytes(bytes[4..12].try_into().expect("eight bytes")),
            ),
            checksum: word(12),
            place: Place::from_code(word(16)),
        }
    }

    pub(crate) fn set(&mut self, block: u16, entry: Entry) {
        let bytes = &mut self.0[usize::from(block)];
        bytes[0..4].copy_from_slice(&entry.generation.fence.0.to_le_bytes());
        bytes[4..12].copy_from_slice(&entry.generation.sequence.to_le_bytes());
        bytes[12..16].copy_from_slice(&entry.checksum.to_le_bytes());
        bytes[16..20].copy_from_slice(&entry.place.code().to_le_bytes());
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, Entry)> + '_ {
        (0..TRACT_BLOCKS).map(|block| (block, self.get(block)))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.0.as_flattened()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        assert!(
            entries.len() == usize::from(TRACT_BLOCKS) && rest.is_empty(),
            "the entries of one tract"
        );
        Self(entries.into())
    }
}
