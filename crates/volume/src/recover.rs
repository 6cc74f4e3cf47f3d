//! Finding volumes in a bucket whose table is lost.
//!
//! Every checkpoint lies in the log, sealed like everything else, and is the last object of the segments of its commit. So the
//! newest segments of each writer tell what it committed last: from the end backwards until a checkpoint is found that is whole.
//! Of a volume the one with the highest epoch counts, then the highest version.
//!
//! What the bucket cannot tell is whether the newest checkpoint was committed: an edge may have died between the upload and the
//! commit. Then it is one commit ahead of what the table said: data that was acknowledged by the edge's journal, and nothing
//! that never happened. It counts as whole only if all segments of its commit are there.

use crate::{
    checkpoint::CheckpointPayload,
    config::VolumeConfig,
    error::VolumeError,
    freshness::{self, StaleTable},
    objects::ReadError,
    ownership_statement::{OwnershipStatement, RootSigner, StatementKind},
    parts::Parts,
};
use firn_anchor::{AnchorError, Owner, OwnerId, Root};
use firn_format::{
    Checkpoint, ForwardingRecord, Kind, Pointer, SegmentId, VolumeId, WriterId, checkpoint_place,
    decode_segment,
};
use firn_store::{ObjectKey, StoreError};
use std::collections::BTreeMap;

/// Segments of one writer that are read until a checkpoint is found: 16 GiB, many times the largest commit.
const SEGMENTS_A_WRITER: usize = 4096;

/// A checkpoint that a volume can go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCheckpoint {
    /// Whose.
    pub volume: VolumeId,
    /// Its version.
    pub version: u64,
    /// The ownership under which it was made.
    pub epoch: u64,
    /// When it was made, by that edge's clock, milliseconds since 1970.
    pub committed_at_ms: i64,
    /// Files in it.
    pub files: u64,
    /// Bytes of data in it.
    pub used_bytes: u64,
    /// Snapshots in it.
    pub snapshots: u64,
    /// The volume it was cloned from.
    pub cloned_from: Option<VolumeId>,
    pointer: Pointer,
}

/// What a bucket holds of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryScan {
    /// The newest checkpoint of each volume, in order of their ids.
    pub volumes: Vec<FoundCheckpoint>,
    /// Newer checkpoints that were passed over, and why: parts of them were never uploaded.
    pub passed_over: Vec<String>,
    /// Segments listed.
    pub segments: u64,
    /// Objects below the log that are no segments of this family; ignored.
    pub foreign: Vec<String>,
    highest_writer: u64,
}

/// Foreign objects named one by one.
const FOREIGN_MAX: usize = 20;

fn store_failed(error: StoreError) -> VolumeError {
    VolumeError::Read(ReadError::Unavailable {
        segment: SegmentId {
            writer: WriterId(0),
            sequence: 0,
        },
        detail: error.to_string(),
    })
}

/// Looks for volumes of the family of `parts` (whose volume does not matter) in its bucket. Reads only.
///
/// # Errors
/// If the store does not answer.
pub async fn scan(parts: &Parts, config: &VolumeConfig) -> Result<RecoveryScan, VolumeError> {
    let mut scan = RecoveryScan::default();
    let writers = list_segments(parts, &mut scan).await?;
    let mut newest: BTreeMap<VolumeId, FoundCheckpoint> = BTreeMap::new();
    for (writer, sequences) in writers {
        let Some(found) = newest_of(parts, config, writer, &sequences, &mut scan).await? else {
            continue;
        };
        let better = newest
            .get(&found.volume)
            .is_none_or(|known| (known.epoch, known.version) < (found.epoch, found.version));
        if better {
            newest.insert(found.volume, found);
        }
    }
    scan.volumes = newest.into_values().collect();
    Ok(scan)
}

/// The sequences of each writer's segments, in order.
async fn list_segments(
    parts: &Parts,
    scan: &mut RecoveryScan,
) -> Result<BTreeMap<WriterId, Vec<u64>>, VolumeError> {
    let prefix = format!("{}/log/", parts.family());
    let mut writers: BTreeMap<WriterId, Vec<u64>> = BTreeMap::new();
    let mut after: Option<ObjectKey> = None;
    loop {
        let page = parts
            .store
            .list(&prefix, after.as_ref())
            .await
            .map_err(store_failed)?;
        for object in &page.objects {
            match SegmentId::parse_key(&object.key.to_string()) {
                Some((family, id)) if family == parts.family() => {
                    writers.entry(id.writer).or_default().push(id.sequence);
                    scan.segments += 1;
                    scan.highest_writer = scan.highest_writer.max(id.writer.0);
                }
                _ if scan.foreign.len() < FOREIGN_MAX => scan.foreign.push(object.key.to_string()),
                _ => {}
            }
        }
        after = page.objects.last().map(|object| object.key.clone());
        if !page.more || after.is_none() {
            return Ok(writers);
        }
    }
}

/// The newest whole checkpoint of one writer.
async fn newest_of(
    parts: &Parts,
    config: &VolumeConfig,
    writer: WriterId,
    sequences: &[u64],
    scan: &mut RecoveryScan,
) -> Result<Option<FoundCheckpoint>, VolumeError> {
    // One found, with the sequence of its segment, whose commit's first segment is not known yet.
    let mut candidate: Option<(FoundCheckpoint, u64)> = None;
    for sequence in sequences.iter().rev().take(SEGMENTS_A_WRITER) {
        let id = SegmentId {
            writer,
            sequence: *sequence,
        };
        for found in checkpoints_in(parts, config, id, scan).await?.into_iter().rev() {
            if let Some((newer, at)) = candidate.take() {
                if is_whole(parts, writer, sequences, *sequence..at).await? {
                    return Ok(Some(newer));
                }
                scan.passed_over.push(format!(
                    "volume {}, version {}: segments of it were never uploaded",
                    newer.volume, newer.version
                ));
            }
            candidate = Some((found, *sequence));
        }
    }
    let Some((found, at)) = candidate else {
        return Ok(None);
    };
    // The first of this writer: its commit began with the writer's first segment.
    if is_whole(parts, writer, sequences, 0..at).await? {
        return Ok(Some(found));
    }
    scan.passed_over.push(format!(
        "volume {}, version {}: segments of it were never uploaded",
        found.volume, found.version
    ));
    Ok(None)
}

/// Whether every segment of the writer in the range is there, or was moved by the cleaner.
async fn is_whole(
    parts: &Parts,
    writer: WriterId,
    sequences: &[u64],
    range: std::ops::Range<u64>,
) -> Result<bool, VolumeError> {
    for sequence in range {
        if sequences.binary_search(&sequence).is_ok() {
            continue;
        }
        let id = SegmentId { writer, sequence };
        let prefix = ForwardingRecord::prefix(&parts.family(), id);
        let page = parts.store.list(&prefix, None).await.map_err(store_failed)?;
        if page.objects.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The checkpoints in a segment, oldest first. What is half written, foreign or damaged has none.
async fn checkpoints_in(
    parts: &Parts,
    config: &VolumeConfig,
    id: SegmentId,
    scan: &mut RecoveryScan,
) -> Result<Vec<FoundCheckpoint>, VolumeError> {
    let key = ObjectKey::new(&id.key(&parts.family()));
    let bytes = match parts.store.get(&key).await {
        Ok(bytes) => bytes,
        // Deleted since it was listed.
        Err(StoreError::NotFound { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(store_failed(error)),
    };
    let segment = match decode_segment(bytes) {
        Ok(segment) if segment.id == id && segment.family == parts.family() => segment,
        Ok(_) | Err(_) => {
            scan.passed_over.push(format!("{key} is no whole segment"));
            return Ok(Vec::new());
        }
    };
    let mut found = Vec::new();
    for entry in segment
        .entries
        .iter()
        .filter(|entry| entry.kind == Kind::Checkpoint)
    {
        let pointer = Pointer {
            uid: entry.uid,
            location: entry.location(id),
        };
        match checkpoint_at(parts, config, pointer, entry.place.index).await {
            Ok(checkpoint) => found.push(checkpoint),
            Err(error @ VolumeError::Read(ReadError::Unavailable { .. })) => return Err(error),
            // Not sealed with the family's keys, or by a newer build.
            Err(error) => scan.passed_over.push(format!("a checkpoint in {key}: {error}")),
        }
    }
    Ok(found)
}

async fn checkpoint_at(
    parts: &Parts,
    config: &VolumeConfig,
    pointer: Pointer,
    version: u64,
) -> Result<FoundCheckpoint, VolumeError> {
    let objects = parts.objects(config).await?;
    let place = checkpoint_place(firn_format::Version(version));
    let object = objects.probe_object(&pointer, place).await?;
    let checkpoint = Checkpoint::from_plain_and_children(&object.header.plain, &object.header.children)?;
    let payload = CheckpointPayload::decode(object.payload.clone())?;
    Ok(FoundCheckpoint {
        volume: checkpoint.volume,
        version: checkpoint.version.0,
        epoch: checkpoint.epoch.0,
        committed_at_ms: checkpoint.committed_at_ms,
        files: payload.counters.files,
        used_bytes: payload.counters.used_bytes,
        snapshots: checkpoint.snapshots.len() as u64,
        cloned_from: checkpoint.fork.map(|fork| fork.volume),
        pointer,
    })
}

/// Enters a volume in the anchor again, with a checkpoint that [`scan`] found as its root. A volume that is there is never
/// replaced.
///
/// # Errors
/// If the anchor has the volume, or the name, or refuses.
pub async fn restore(
    parts: &Parts,
    scan: &RecoveryScan,
    found: &FoundCheckpoint,
    name: &str,
) -> Result<(), VolumeError> {
    match parts.anchor.create_family().await {
        Ok(()) | Err(AnchorError::FamilyExists { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    // Nobody may be given a writer id again that has segments in the log.
    parts
        .anchor
        .next_writer_above(WriterId(scan.highest_writer))
        .await?;
    let parts = &Parts {
        volume: found.volume,
        ..parts.clone()
    };
    match parts.anchor.load(found.volume).await {
        Err(AnchorError::NoSuchVolume { .. }) => {}
        Ok(_) => return Err(AnchorError::VolumeExists { volume: found.volume }.into()),
        Err(error) => return Err(error.into()),
    }
    // Above all ownerships that the bucket knows of, so that none of them is newer than this one.
    let given = match freshness::newest_statements(parts).await? {
        Ok(Some(statements)) => statements.newest.epoch.0 + 1,
        Ok(None) | Err(_) => 0,
    };
    let root = Root {
        uid: found.pointer.uid,
        location: found.pointer.location,
        version: firn_format::Version(found.version),
        epoch: firn_format::OwnershipEpoch(found.epoch.max(given)),
        owner: OwnerId([0; 16]),
        owner_name: "recovered".into(),
        commit_id: parts.env.random_bytes(),
        committed_at_ms: found.committed_at_ms,
        signature: None,
    };
    announce(parts, found, &root).await?;
    parts.anchor.restore_volume(found.volume, name, root).await?;
    Ok(())
}

/// States from which root the volume goes on; before it is in the table, so that no start finds the one without the other.
async fn announce(parts: &Parts, found: &FoundCheckpoint, root: &Root) -> Result<(), VolumeError> {
    let grant = parts.env.random_bytes();
    let statement = OwnershipStatement {
        kind: StatementKind::Recovered,
        volume: found.volume,
        epoch: root.epoch,
        grant,
        owner: Owner {
            id: root.owner,
            name: root.owner_name.clone(),
        },
        writer: WriterId(0),
        signer: RootSigner::draw(&parts.env, parts.family(), found.volume, grant).public(),
        base: Some(root.into()),
        abandoned: firn_format::Version(0),
        made_at_ms: parts.env.wall().as_millis(),
    };
    statement.put(&parts.env, &*parts.store, &parts.keys).await
}

/// Whether the table has a volume that was found in the bucket, and shows an older root of it than the bucket has.
///
/// # Errors
/// If store or table do not answer.
pub async fn stale_table(
    parts: &Parts,
    config: &VolumeConfig,
    found: &FoundCheckpoint,
) -> Result<Option<StaleTable>, VolumeError> {
    let parts = Parts {
        volume: found.volume,
        ..parts.clone()
    };
    match freshness::check(&parts, config, None).await {
        Ok(_)
        | Err(VolumeError::Anchor(AnchorError::NoSuchVolume { .. } | AnchorError::NoSuchFamily { .. })) => {
            Ok(None)
        }
        Err(VolumeError::StaleTable(stale)) => Ok(Some(*stale)),
        Err(error) => Err(error),
    }
}
