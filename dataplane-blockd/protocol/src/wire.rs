//! Wire encoding of each noun of [`ids`](crate::DiskId) as fields.

use crate::{
    BlockRange, DiskId, Fence, Generation, NodeId, Replication, TractId,
    cursor::{DecodeError, Decoder, Encoder},
};

impl Decoder {
    pub(crate) fn disk(&mut self) -> Result<DiskId, DecodeError> {
        Ok(DiskId(self.array()?))
    }

    pub(crate) fn node(&mut self) -> Result<NodeId, DecodeError> {
        Ok(NodeId(self.array()?))
    }

    pub(crate) fn tract(&mut self) -> Result<TractId, DecodeError> {
        Ok(TractId {
            disk: self.disk()?,
            index: self.u32()?,
        })
    }

    pub(crate) fn generation(&mut self) -> Result<Generation, DecodeError> {
        Ok(Generation {
            fence: Fence(self.u32()?),
            sequence: self.u64()?,
        })
    }

    pub(crate) fn range(&mut self) -> Result<BlockRange, DecodeError> {
        let (first, count) = (self.u16()?, self.u16()?);
        BlockRange::new(first, count).ok_or(DecodeError::Invalid {
            field: "block range",
            value: u64::from(first) << 16 | u64::from(count),
        })
    }

    pub(crate) fn replication(&mut self) -> Result<Replication, DecodeError> {
        let copies = self.u8()?;
        Replication::new(copies).ok_or(DecodeError::Invalid {
            field: "replication",
            value: copies.into(),
        })
    }

    /// Something that may be absent.
    pub(crate) fn optional<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        if self.flag(field)? {
            return read(self).map(Some);
        }
        Ok(None)
    }
}

impl Encoder {
    pub(crate) fn disk(&mut self, disk: DiskId) {
        self.raw(&disk.0);
    }

    pub(crate) fn node(&mut self, node: NodeId) {
        self.raw(&node.0);
    }

    pub(crate) fn tract(&mut self, tract: TractId) {
        self.disk(tract.disk);
        self.u32(tract.index);
    }

    pub(crate) fn generation(&mut self, generation: Generation) {
        self.u32(generation.fence.0);
        self.u64(generation.sequence);
    }

    pub(crate) fn range(&mut self, range: BlockRange) {
        self.u16(range.first());
        self.u16(u16::try_from(range.count()).expect("a tract has fewer blocks"));
    }

    pub(crate) fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }
}
