//! Volumes, their key rings and snapshot policies.

use crate::names::DisplayName;
use firn_anchor::MemberState;
use firn_identity::{EdgeId, UnixTime, VolumeId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a volume's segments lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Bucket {
    /// A prefix of a bucket of the service's.
    Managed {
        /// In which region.
        #[schema(min_length = 1, max_length = 32, pattern = "^[a-z0-9-]+$")]
        region: String,
    },
    /// The tenant's own bucket, through a role that the tenant grants.
    Own {
        /// `s3://bucket/prefix` or `azure://account/container/prefix`.
        #[schema(min_length = 1, max_length = 512)]
        url: String,
        /// The role to assume, which must demand the tenant's external id.
        #[schema(min_length = 1, max_length = 512)]
        role: String,
    },
}

/// When snapshots are made and how long they are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotPolicy {
    /// The last so many versions.
    #[schema(maximum = 1024)]
    pub last: u16,
    /// One an hour, for so many hours.
    #[schema(maximum = 744)]
    pub hourly: u16,
    /// One a day, for so many days.
    #[schema(maximum = 366)]
    pub daily: u16,
    /// One a week, for so many weeks.
    #[schema(maximum = 520)]
    pub weekly: u16,
    /// One a month, for so many months.
    #[schema(maximum = 120)]
    pub monthly: u16,
}

impl Default for SnapshotPolicy {
    /// Two days of hours, a month of days, a year of months.
    fn default() -> Self {
        Self {
            last: 4,
            hourly: 48,
            daily: 31,
            weekly: 8,
            monthly: 12,
        }
    }
}

/// By what the offices of a volume keep each other from changing the same; decided when the volume is made, for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeLeases {
    /// One office has the whole volume at a time: its owner, or whoever has its turn.
    #[default]
    Volume,
    /// Offices write at the same moment, each the files and directories that it holds.
    Inode,
}

impl VolumeLeases {
    fn is_volume(&self) -> bool {
        *self == Self::Volume
    }
}

/// Asks for a volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateVolume {
    /// What it is called.
    #[schema(value_type = String, min_length = 1, max_length = 64)]
    pub name: DisplayName,
    /// Where it lies.
    pub bucket: Bucket,
    /// Its first key ring, base64 without padding: made and signed by the client.
    #[serde(default)]
    #[schema(max_length = 350_000)]
    pub key_ring: Option<String>,
    /// Its snapshot policy.
    #[serde(default)]
    pub snapshot_policy: SnapshotPolicy,
    /// By what its offices keep each other from changing the same, for ever.
    #[serde(default)]
    pub leases: VolumeLeases,
}

/// Changes a volume; absent fields stay.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeVolume {
    /// Its new name.
    #[serde(default)]
    #[schema(value_type = Option<String>, min_length = 1, max_length = 64)]
    pub name: Option<DisplayName>,
    /// Its new snapshot policy.
    #[serde(default)]
    pub snapshot_policy: Option<SnapshotPolicy>,
    /// Has the edge that serves it seal everything anew under a newer key, or end that.
    #[serde(default)]
    pub rekey: Option<RekeyOrder>,
}

/// Asks for a rekey of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RekeyOrder {
    /// Nothing in the volume as clients see it is to be sealed under an older key epoch than this: one of its newest key ring.
    #[schema(minimum = 1)]
    pub to_epoch: u32,
    /// How many bytes the edge reads and writes for it a second, at most.
    #[schema(minimum = 16_384, maximum = 1_099_511_627_776_u64)]
    pub bytes_per_second: u64,
    /// Whether a rekey that is under way is to end instead; what it did stays done.
    #[serde(default)]
    pub stop: bool,
}

/// The rekey that was asked for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeRekey {
    /// Rises with each order; what the edge says of it names the order that it obeyed last.
    pub number: u64,
    /// What was asked for.
    pub order: RekeyOrder,
    /// When.
    #[schema(value_type = u64)]
    pub asked: UnixTime,
}

/// What a volume's life has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// In use.
    Active,
    /// Deleted, and can be undeleted for 30 days; then it is erased by itself.
    Deleted,
    /// Its key rings are being removed; there is no way back.
    Erasing,
    /// Its key rings are gone from the service; what the bucket holds can no longer be read with the service's help.
    Erased,
}

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its id.
    #[schema(value_type = String)]
    pub id: VolumeId,
    /// What it is called.
    #[schema(value_type = String)]
    pub name: DisplayName,
    /// Where it lies.
    pub bucket: Bucket,
    /// The same as the configuration of an edge names it (`volume.store`), for which the service gives credentials. Told when volumes are
    /// listed or shown; absent where the service keeps nothing, and for a bucket of the tenant's, whose region only the tenant knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// What its life has come to.
    pub state: VolumeState,
    /// When it was deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub deleted: Option<UnixTime>,
    /// Its snapshot policy.
    pub snapshot_policy: SnapshotPolicy,
    /// By what its offices keep each other from changing the same; absent: `volume`.
    #[serde(default, skip_serializing_if = "VolumeLeases::is_volume")]
    pub leases: VolumeLeases,
    /// Generation of the newest key ring; 0: none yet.
    pub key_ring_generation: u64,
    /// The family of its key rings, 32 hex digits; absent until there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub family: Option<String>,
    /// When it was shown that the bucket is the tenant's to bring; absent for a managed one, and for one that was not proved yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub bucket_proved: Option<UnixTime>,
    /// The rekey that was asked for last; how far it is, the edge that serves the volume says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rekey: Option<VolumeRekey>,
    /// What erases it, once that was begun: look at it under `operations`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// When it was made.
    #[schema(value_type = u64)]
    pub created: UnixTime,
}

/// A key ring, as the client signed it. The service checks the signature so that it does not store nonsense; clients check it
/// again, against the key they pinned.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyRingText {
    /// Base64 without padding.
    #[schema(min_length = 1, max_length = 350_000)]
    pub key_ring: String,
}

/// An office that writes a volume of leases by inode.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct VolumeMember {
    /// Its number in the volume, for ever: its own inode numbers begin at this times 2^32.
    pub number: u32,
    /// What its edge calls itself.
    pub name: String,
    /// Which of the tenant's edges it is.
    #[schema(value_type = String)]
    pub edge: EdgeId,
    /// How it stands.
    pub state: MemberState,
    /// The version of the last root that it committed since it started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_commit: Option<u64>,
    /// Whether the volume keeps a root by which the journal of an office that was broken is judged when it starts again.
    pub is_retained: bool,
}
