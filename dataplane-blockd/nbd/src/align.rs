//! A device of whole blocks, made usable by clients that know only sectors or bytes.
//!
//! Reads are widened and cut. A write that begins or ends inside a block reads that block, changes it and writes it back;
//! meanwhile nobody else may write it, or an answered write would be undone. So every write of this adapter holds its
//! blocks, and whoever uses the adapter must write the device through nothing else.
//!
//! The linux kernel's client has sectors of 512 bytes unless told otherwise, and ignores what the server would prefer: this
//! is for it. Whole blocks pass through at the cost of one uncontended lock.

use crate::{
    device::{BlockDevice, DeviceError, Durability, Extent, Geometry, Piece},
    range_lock::RangeLock,
};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};

/// A device that takes any offset and length, over one that takes whole blocks.
pub struct AnyAlignment<D> {
    device: D,
    locks: RangeLock,
}

/// A range cut at block boundaries: a partial block before, whole blocks, a partial block after.
struct Cut {
    head: Option<(u64, u64)>,
    middle: (u64, u64),
    tail: Option<(u64, u64)>,
}

impl<D: BlockDevice> AnyAlignment<D> {
    /// Wraps a device whose size is a multiple of its block.
    pub fn new(device: D) -> Self {
        Self {
            device,
            locks: RangeLock::default(),
        }
    }

    /// The device itself.
    pub fn inner(&self) -> &D {
        &self.device
    }

    fn block(&self) -> u64 {
        self.device.geometry().block_bytes.into()
    }

    fn cut(&self, offset: u64, length: u64) -> Cut {
        let (block, end) = (self.block(), offset + length);
        let (first, last) = (offset.next_multiple_of(block), end / block * block);
        if first > last {
            return Cut {
                head: Some((offset, length)),
                middle: (0, 0),
                tail: None,
            };
        }
        Cut {
            head: (offset < first).then_some((offset, first - offset)),
            middle: (first, last - first),
            tail: (last < end).then_some((last, end - last)),
        }
    }

    async fn lock(&self, offset: u64, length: u64) -> crate::RangeGuard {
        let block = self.block();
        self.locks
            .lock(offset / block..(offset + length).div_ceil(block))
            .await
    }

    /// Replaces a part of one block. The caller holds the block.
    async fn patch(&self, offset: u64, data: &[u8], durability: Durability) -> Result<(), DeviceError> {
        let block = self.block();
        let start = offset / block * block;
        let within = (offset - start) as usize;
        assert!(
            within + data.len() <= block as usize,
            "a patch stays in one block"
        );
        let mut bytes = BytesMut::with_capacity(block as usize);
        for piece in self.device.read(start, block as u32).await? {
            match piece {
                Piece::Data(data) => bytes.extend_from_slice(&data),
                Piece::Zeroes(length) => bytes.resize(bytes.len() + length as usize, 0),
            }
        }
        bytes[within..within + data.len()].copy_from_slice(data);
        self.device.write(start, bytes.freeze(), durability).await
    }

    async fn patch_zeroes(
        &self,
        part: Option<(u64, u64)>,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        match part {
            Some((offset, length)) => self.patch(offset, &vec![0; length as usize], durability).await,
            None => Ok(()),
        }
    }
}

#[async_trait]
impl<D: BlockDevice> BlockDevice for AnyAlignment<D> {
    fn geometry(&self) -> Geometry {
        let inner = self.device.geometry();
        Geometry {
            block_bytes: 1,
            preferred_bytes: inner.preferred_bytes.max(inner.block_bytes),
            // A widened read is longer by up to two blocks.
            payload_bytes_max: inner.payload_bytes_max
                - 2 * inner.block_bytes.min(inner.payload_bytes_max / 4),
            ..inner
        }
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn is_shared_safely(&self) -> bool {
        self.device.is_shared_safely()
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError> {
        let block = self.block();
        let start = offset / block * block;
        let end = (offset + u64::from(length)).next_multiple_of(block);
        let pieces = self.device.read(start, (end - start) as u32).await?;
        Ok(cut_pieces(pieces, offset - start, length.into()))
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        let _held = self.lock(offset, data.len() as u64).await;
        let cut = self.cut(offset, data.len() as u64);
        let part = |at: u64, length: u64| {
            let from = (at - offset) as usize;
            data.slice(from..from + length as usize)
        };
        if let Some((at, length)) = cut.head {
            self.patch(at, &part(at, length), durability).await?;
        }
        if let (at, length @ 1..) = cut.middle {
            self.device.write(at, part(at, length), durability).await?;
        }
        if let Some((at, length)) = cut.tail {
            self.patch(at, &part(at, length), durability).await?;
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush().await
    }

    async fn trim(&self, offset: u64, length: u64, durability: Durability) -> Result<(), DeviceError> {
        let _held = self.lock(offset, length).await;
        // Parts of blocks stay as they are: a trim is a hint.
        match self.cut(offset, length).middle {
            (_, 0) => Ok(()),
            (at, length) => self.device.trim(at, length, durability).await,
        }
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        let _held = self.lock(offset, length).await;
        let cut = self.cut(offset, length);
        self.patch_zeroes(cut.head, durability).await?;
        if let (at, length @ 1..) = cut.middle {
            self.device
                .write_zeroes(at, length, allow_hole, durability)
                .await?;
        }
        self.patch_zeroes(cut.tail, durability).await
    }

    fn zeroes_fast(&self, allow_hole: bool) -> bool {
        self.device.zeroes_fast(allow_hole)
    }

    async fn cache(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let block = self.block();
        let start = offset / block * block;
        let end = (offset + length).next_multiple_of(block);
        self.device.cache(start, end - start).await
    }

    async fn extents(
        &self,
        offset: u64,
        length: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        let block = self.block();
        let start = offset / block * block;
        let end = (offset + length).next_multiple_of(block);
        let mut extents = self.device.extents(start, end - start, extents_max).await?;
        // The first extent covers a whole block at least, so the cut leaves something of it.
        if let Some(first) = extents.first_mut() {
            first.length_bytes -= offset - start;
        }
        let mut left = length;
        extents.retain_mut(|extent| {
            extent.length_bytes = extent.length_bytes.min(left);
            left -= extent.length_bytes;
            extent.length_bytes > 0
        });
        Ok(extents)
    }
}

/// Leaves `skip` bytes out and keeps the next `keep`.
fn cut_pieces(pieces: Vec<Piece>, mut skip: u64, mut keep: u64) -> Vec<Piece> {
    let mut kept = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let length = piece.length_bytes();
        let from = skip.min(length);
        skip -= from;
        let now = (length - from).min(keep);
        keep -= now;
        if now > 0 {
            kept.push(match piece {
                Piece::Zeroes(_) => Piece::Zeroes(now),
                Piece::Data(data) => Piece::Data(data.slice(from as usize..(from + now) as usize)),
            });
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use futures::FutureExt;
    use proptest::prelude::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        future.now_or_never().expect("memory is never waited for")
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Zero(u64, u64),
        Read(u64, u64),
    }

    const SIZE_BYTES: u64 = 4096;

    fn step() -> impl Strategy<Value = Step> {
        let range = (0..SIZE_BYTES, 1..1500_u64)
            .prop_map(|(offset, length)| (offset, length.min(SIZE_BYTES - offset)));
        prop_oneof![
            (range.clone(), any::<u8>()).prop_map(|((offset, length), byte)| Step::Write(
                offset,
                (0..length).map(|index| byte.wrapping_add(index as u8)).collect()
            )),
            range
                .clone()
                .prop_map(|(offset, length)| Step::Zero(offset, length)),
            range.prop_map(|(offset, length)| Step::Read(offset, length)),
        ]
    }

    proptest! {
        #[test]
        fn any_alignment_behaves_like_plain_memory(steps in proptest::collection::vec(step(), 1..40)) {
            let device = AnyAlignment::new(MemoryDevice::with_block(SIZE_BYTES, 512));
            let mut model = vec![0_u8; SIZE_BYTES as usize];
            for step in steps {
                match step {
                    Step::Write(offset, data) => {
                        model[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
                        block_on(device.write(offset, data.into(), Durability::Acknowledged)).unwrap();
                    }
                    Step::Zero(offset, length) => {
                        model[offset as usize..(offset + length) as usize].fill(0);
                        block_on(device.write_zeroes(offset, length, true, Durability::Acknowledged)).unwrap();
                    }
                    Step::Read(offset, length) => {
                        let mut read = Vec::new();
                        for piece in block_on(device.read(offset, length as u32)).unwrap() {
                            match piece {
                                Piece::Data(data) => read.extend_from_slice(&data),
                                Piece::Zeroes(length) => read.resize(read.len() + length as usize, 0),
                            }
                        }
                        prop_assert_eq!(&read[..], &model[offset as usize..(offset + length) as usize]);
                    }
                }
            }
        }
    }
}
