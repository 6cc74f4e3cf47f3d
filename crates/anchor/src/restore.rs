//! Making the tuple of a volume anew when the table is lost.
//!
//! The table holds roots and nothing else, and every root's checkpoint lies in the bucket, so a lost table costs at most the
//! knowledge which of the newest checkpoints was committed. Whoever finds them there enters one again as the root of a volume
//! that was drained. It never replaces a tuple that exists.

use crate::{Anchor, AnchorError, Root};
use firn_format::VolumeId;

impl Anchor {
    /// Enters a volume with a root that was found in the bucket. The next ownership is above the root's epoch.
    ///
    /// # Errors
    /// [`AnchorError::VolumeExists`], [`AnchorError::NameTaken`], [`AnchorError::Name`], [`AnchorError::NoSuchFamily`], or
    /// what the table says.
    pub async fn restore_volume(&self, volume: VolumeId, name: &str, root: Root) -> Result<(), AnchorError> {
        self.enter_volume(volume, name, Some(root)).await
    }
}
