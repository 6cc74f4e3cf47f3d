//! The hard cap of a tenant's budget, as a device before a disk (decision 0141).
//!
//! | request | at the cap |
//! |---|---|
//! | write, write zeroes | refused: no space. What was answered before is kept, and goes to nodes |
//! | read, flush, trim, cache, block status | done |
//!
//! A trim is no write here: it gives back. Zeroes are, also where a hole would do, because nobody can tell a file system that
//! prepares room from one that gives it back.

use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_client::News;
use firn_blockd_nbd::{BlockDevice, DeviceError, Durability, Extent, Geometry, Piece};
use tokio::sync::watch;

/// See the module.
pub struct Capped<D> {
    device: D,
    news: watch::Receiver<News>,
}

impl<D> Capped<D> {
    /// A device that obeys what looks at the table find.
    pub fn new(device: D, news: watch::Receiver<News>) -> Self {
        Self { device, news }
    }

    fn admit(&self) -> Result<(), DeviceError> {
        if self.news.borrow().capped {
            return Err(DeviceError::NoSpace(
                "the hard cap of the tenant's budget is reached; firn budget raise lets writes in again"
                    .into(),
            ));
        }
        Ok(())
    }
}

#[async_trait]
impl<D: BlockDevice> BlockDevice for Capped<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn is_shared_safely(&self) -> bool {
        self.device.is_shared_safely()
    }

    async fn read(&self, offset: u64, length: u32) -> Result<Vec<Piece>, DeviceError> {
        self.device.read(offset, length).await
    }

    async fn write(&self, offset: u64, data: Bytes, durability: Durability) -> Result<(), DeviceError> {
        self.admit()?;
        self.device.write(offset, data, durability).await
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        self.device.flush().await
    }

    async fn trim(&self, offset: u64, length: u64, durability: Durability) -> Result<(), DeviceError> {
        self.device.trim(offset, length, durability).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        allow_hole: bool,
        durability: Durability,
    ) -> Result<(), DeviceError> {
        self.admit()?;
        self.device
            .write_zeroes(offset, length, allow_hole, durability)
            .await
    }

    fn zeroes_fast(&self, allow_hole: bool) -> bool {
        self.device.zeroes_fast(allow_hole)
    }

    async fn cache(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.device.cache(offset, length).await
    }

    async fn extents(
        &self,
        offset: u64,
        length: u64,
        extents_max: usize,
    ) -> Result<Vec<Extent>, DeviceError> {
        self.device.extents(offset, length, extents_max).await
    }
}
