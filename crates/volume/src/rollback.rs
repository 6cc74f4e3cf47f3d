//! Going on from a table that was rolled back: an administrator's word, and what it takes.
//!
//! Whoever restored a table from a backup gives up what was committed after it. That must not happen by itself, and once it was said,
//! no opener may take the given-up versions for newer ones: their ownerships have epochs, their segments have writers, and the old
//! table would give both out a second time. So accepting draws the next writer above all that the log has, takes ownership until the
//! epoch is above all that were given, and leaves a statement ([`crate::ownership_statement`]) of the root that was accepted and the
//! version that was given up.
//!
//! Unless it is only a doubt that is accepted, this machine becomes another owner: a journal of its own was written on what is given
//! up and must not be replayed. It stays where it is.

use crate::{
    config::VolumeConfig,
    error::VolumeError,
    freshness::{self, RootSight, StaleTable},
    kept_checkpoint,
    local::{LocalState, journal_directory},
    ownership_statement::{OwnershipStatement, RootSigner, StatementKind, unavailable},
    parts::Parts,
    salvage::has_journal,
    volume::Volume,
};
use firn_anchor::{OwnerId, Ownership};
use firn_format::{SegmentId, Version, WriterId};
use firn_store::ObjectKey;

/// Ownerships taken in a row to get above those that were given up: one write to the table each.
const EPOCHS_MAX: u64 = 65_536;
/// Pages of the log, each a LIST that ends with another writer.
const WRITER_PAGES_MAX: usize = 1 << 20;

/// What going on from the table gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptReport {
    /// The root that the volume goes on from.
    pub accepted: RootSight,
    /// What spoke against it; `None`: only this machine had seen a newer root, which was accepted elsewhere.
    pub stale: Option<StaleTable>,
    /// The journal of this machine that is not replayed: a directory in the state directory.
    pub journal: Option<String>,
}

impl Volume {
    /// What in the bucket, or in this machine's memory, speaks against the table; changes nothing. `None`: it shows the newest root.
    ///
    /// # Errors
    /// If store or table do not answer.
    pub async fn rollback(parts: &Parts, config: &VolumeConfig) -> Result<Option<VolumeError>, VolumeError> {
        let local = LocalState::find(&parts.env).await?;
        match freshness::check(parts, config, local.as_ref()).await {
            Ok(tuple) => {
                let seen = local.and_then(|local| local.seen);
                let observed = seen.map(|mut seen| seen.observe(&tuple));
                Ok(observed.and_then(Result::err).map(VolumeError::from))
            }
            Err(stale @ VolumeError::StaleTable(_)) => Ok(Some(stale)),
            Err(error) => Err(error),
        }
    }

    /// Goes on from the root in the table although newer ones are in the bucket; see the module. `None`: nothing speaks against it.
    /// Can be stopped and run again at any point.
    ///
    /// # Errors
    /// If store or table do not answer, or the volume has no root.
    pub async fn accept_rollback(
        parts: &Parts,
        config: &VolumeConfig,
    ) -> Result<Option<AcceptReport>, VolumeError> {
        let stale = match Self::rollback(parts, config).await? {
            None => return Ok(None),
            Some(VolumeError::StaleTable(stale)) => Some(*stale),
            Some(_) => None,
        };
        let (tuple, _) = parts.anchor.load(parts.volume).await?;
        let root = tuple.root.clone().ok_or(VolumeError::NotFormatted)?;
        let before = LocalState::load(&parts.env).await?.owner;
        let was_ours = tuple.owner.as_ref().is_some_and(|owner| owner.id == before);
        // If the doubt is accepted, the table is taken for right, and what this machine has of it with it.
        let journal = match stale.as_ref().is_some_and(StaleTable::is_in_doubt) {
            true => None,
            false => leave_journal(parts, config).await?,
        };
        let local = LocalState::load(&parts.env).await?;
        if stale.is_some() || was_ours {
            let highest = highest_writer(parts, root.location.segment).await?;
            parts.anchor.next_writer_above(highest).await?;
            let above = match freshness::newest_statements(parts).await? {
                Ok(Some(statements)) => statements.newest.epoch,
                Ok(None) | Err(_) => tuple.epoch,
            };
            let (volume, name) = (parts.volume, &config.owner_name);
            let mut ownership = parts.anchor.takeover(volume, local.owner, name).await?.ownership;
            for _ in 0..EPOCHS_MAX {
                if ownership.epoch() > above {
                    break;
                }
                ownership = parts.anchor.acquire(volume, local.owner, name).await?;
            }
            parts.env.fault_point("rollback.before_statement").await;
            let abandoned = stale.as_ref().and_then(StaleTable::newest_version);
            let abandoned = abandoned.unwrap_or(Version(0));
            announce(parts, &ownership, StatementKind::Accepted, abandoned).await?;
            tracing::warn!(
                volume = %parts.volume, version = %root.version, abandoned = %abandoned, owner = name,
                "an administrator goes on from a table that was rolled back"
            );
        }
        Ok(Some(AcceptReport {
            accepted: RootSight {
                version: root.version,
                epoch: root.epoch,
                uid: root.uid,
                committed_at_ms: root.committed_at_ms,
            },
            stale,
            journal,
        }))
    }
}

/// Makes this machine another owner, which has seen nothing and has no journal. The directory of the old one, if it has records.
async fn leave_journal(parts: &Parts, config: &VolumeConfig) -> Result<Option<String>, VolumeError> {
    let mut local = LocalState::load(&parts.env).await?;
    let mut journal = None;
    if let Some(tenure) = local.tenure
        && has_journal(parts, config, tenure).await.unwrap_or(true)
    {
        journal = Some(journal_directory(tenure));
    }
    kept_checkpoint::forget(&**parts.env.disk()).await?;
    local = LocalState {
        owner: OwnerId(parts.env.random_bytes()),
        tenure: None,
        seen: None,
        clean_verifier: None,
        writer: None,
        shares_taken: 0,
        begun: Vec::new(),
    };
    local.save(&**parts.env.disk()).await?;
    Ok(journal)
}

/// The highest writer that has a segment in the log, as far as they come after this one. One LIST for each.
async fn highest_writer(parts: &Parts, from: SegmentId) -> Result<WriterId, VolumeError> {
    let prefix = format!("{}/log/", parts.family());
    let mut highest = from.writer;
    let mut after = ObjectKey::new(&from.key(&parts.family()));
    for _ in 0..WRITER_PAGES_MAX {
        let page = parts
            .store
            .list(&prefix, Some(&after))
            .await
            .map_err(|error| unavailable(&error))?;
        let segments = page.objects.iter();
        let writers = segments
            .filter_map(|object| SegmentId::parse_key(object.key.as_str()))
            .map(|(_, id)| id.writer);
        highest = writers.max().unwrap_or(highest).max(highest);
        let Some(last) = page.objects.last().filter(|_| page.more) else {
            break;
        };
        // Behind all segments of that writer.
        after = match SegmentId::parse_key(last.key.as_str()) {
            Some((family, id)) => ObjectKey::new(
                &SegmentId {
                    writer: id.writer,
                    sequence: u64::MAX,
                }
                .key(&family),
            ),
            None => last.key.clone(),
        };
    }
    Ok(highest)
}

/// Leaves the statement of an ownership that commits nothing.
pub(crate) async fn announce(
    parts: &Parts,
    ownership: &Ownership,
    kind: StatementKind,
    abandoned: Version,
) -> Result<(), VolumeError> {
    let (env, grant) = (&parts.env, ownership.grant());
    let statement = OwnershipStatement {
        kind,
        volume: parts.volume,
        epoch: ownership.epoch(),
        grant,
        owner: ownership.owner().clone(),
        writer: WriterId(0),
        signer: RootSigner::draw(env, parts.family(), parts.volume, grant).public(),
        base: ownership.root().map(Into::into),
        abandoned,
        made_at_ms: env.wall().as_millis(),
    };
    statement.put(env, &*parts.store, &parts.keys).await
}
