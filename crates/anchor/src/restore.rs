//! Making the tuple of a volume anew when the table is lost.
//!
//! The table holds roots and nothing else, and every root's checkpoint lies in the bucket, so a lost table costs at most the
//! knowledge which of the newest checkpoints was committed. Whoever finds them there enters one again as the root of a volume
//! that was drained. It never replaces a tuple that exists.

use crate::{
    Anchor, AnchorError, OwnerId, Root, VolumeTuple,
    anchor::{NAME_PREFIX, volume_sort},
    tuple::check_name,
};
use bytes::Bytes;
use firn_format::{OwnershipEpoch, VolumeId};
use firn_table::{Condition, Write};

impl Anchor {
    /// Enters a volume with a root that was found in the bucket. The next ownership is above the root's epoch.
    ///
    /// # Errors
    /// [`AnchorError::VolumeExists`], [`AnchorError::NameTaken`], [`AnchorError::Name`], [`AnchorError::NoSuchFamily`], or
    /// what the table says.
    pub async fn restore_volume(&self, volume: VolumeId, name: &str, root: Root) -> Result<(), AnchorError> {
        check_name(name)?;
        self.load_family().await?;
        let tuple = VolumeTuple {
            name: name.to_owned(),
            epoch: root.epoch,
            root: Some(root),
            // Nobody's: a journal that is still somewhere belongs to a tenure the table has forgotten, and is salvaged.
            tenure: OwnershipEpoch(0),
            tenure_owner: OwnerId([0; 16]),
            grant: self.env.random_bytes(),
            owner: None,
            taken_at_ms: self.env.wall().as_millis(),
            drained: true,
            retained: Vec::new(),
            change_id: self.env.random_bytes(),
        };
        let sort = volume_sort(volume);
        let writes = vec![
            Write::Put {
                key: self.key(&sort),
                value: tuple.to_bytes(),
                condition: Condition::Absent,
            },
            Write::Put {
                key: self.key(&format!("{NAME_PREFIX}{name}")),
                value: Bytes::copy_from_slice(&volume.0),
                condition: Condition::Absent,
            },
        ];
        let created = self
            .create(writes, &sort, |item| {
                let found = VolumeTuple::from_bytes(&item.value)?;
                Ok(found.change_id == tuple.change_id)
            })
            .await?;
        match created {
            Ok(()) => Ok(()),
            Err(0) => Err(AnchorError::VolumeExists { volume }),
            Err(_) => Err(AnchorError::NameTaken {
                name: name.to_owned(),
            }),
        }
    }
}
