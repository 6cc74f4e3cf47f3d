//! The mirror of a family, kept from beside the bucket, and repairs from it: what an edge with a second store does behind its uploads, for lines
//! that cannot carry everything twice, and with the right to delete, which no edge has.

use super::{Host, HostError};
use crate::Target;
use firn_cleaner::{CleanError, Cleaner, Repair, SecondToAudit};
use firn_mirror::{Grouping, Mirror, MirrorError, MirrorOptions, NoLocalCopies, Parity, ParityStatus, Queue};
use firn_store::{Route, StoreUrl};
use serde::Serialize;
use std::{collections::BTreeSet, sync::Arc};

/// Segments beyond repair that are named.
const NAMED_MAX: usize = 100;

/// A second store, and how it is kept.
#[derive(Clone, Debug)]
pub struct Second {
    /// Where it is; its credentials come from the environment as those of the first.
    pub store: StoreUrl,
    /// When what is lost is noticed, and when what is not needed goes.
    pub options: MirrorOptions,
    /// Whether what the first store lost is written anew.
    pub repairs: bool,
    /// How parity groups of cold segments are kept; `None`: none are made.
    pub grouping: Option<Grouping>,
}

/// How the parity groups stand after a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Grouped {
    /// Groups.
    pub groups: u64,
    /// Segments in them.
    pub members: u64,
    /// Bytes of these.
    pub member_bytes: u64,
    /// Bytes of the groups' objects.
    pub parity_bytes: u64,
    /// Segments that are cold and in no group yet.
    pub waiting: u64,
    /// Members that neither store has and nobody retired; they are among `lost_segments`.
    pub absent: u64,
    /// Groups that cannot be changed.
    pub broken: u64,
    /// Members without a copy in the second store.
    pub without_copy: u64,
    /// Bytes of these.
    pub without_copy_bytes: u64,
    /// Members whose copy is to go and did not yet.
    pub copies_to_drop: u64,
    /// Retired segments that cleaners keep in the first store until their groups are written without them.
    pub hold_segments: u64,
    /// Bytes of these.
    pub hold_bytes: u64,
    /// Since when the oldest of them is held, milliseconds since 1970.
    pub hold_since_ms: Option<i64>,
}

impl Grouped {
    fn of(status: &ParityStatus) -> Self {
        let hold = status.hold.unwrap_or_default();
        Self {
            groups: status.groups,
            members: status.members,
            member_bytes: status.member_bytes,
            parity_bytes: status.parity_bytes,
            waiting: status.waiting,
            absent: status.absent,
            broken: status.broken,
            without_copy: hold.dropped,
            without_copy_bytes: hold.dropped_bytes,
            copies_to_drop: hold.undropped,
            hold_segments: hold.held,
            hold_bytes: hold.held_bytes,
            hold_since_ms: hold.held_since_ms,
        }
    }
}

/// One comparison of both stores, and what followed from it. Counts are of members: segments, forwarding records, key rings, statements, reports.
#[derive(Clone, Debug, Serialize)]
pub struct Mirrored {
    /// The family.
    pub family: String,
    /// Members that both stores have now.
    pub members: u64,
    /// Bytes of them.
    pub member_bytes: u64,
    /// Copied by this run.
    pub copied: u64,
    /// Bytes of what was copied, each read from the first store.
    pub copied_bytes: u64,
    /// Segments that the first store was found to have lost or altered, and nobody had retired.
    pub lost_segments: u64,
    /// Of them, those whose needed objects were written anew from the second store.
    pub repaired: u64,
    /// Bytes of these objects.
    pub repaired_bytes: u64,
    /// Of them, those that nobody needs.
    pub unneeded: u64,
    /// Of them, those that can be judged only after the next commit, or that were not to be repaired.
    pub waiting: u64,
    /// Of them, those beyond repair, each with the reason.
    pub beyond: Vec<String>,
    /// Other members that the first store lost.
    pub lost_others: u64,
    /// Members that are damaged in the second, or that neither has right bytes of.
    pub damaged: u64,
    /// Names of the first of all these.
    pub named: Vec<String>,
    /// Not needed any more, and kept until their time is over.
    pub kept_deleted: u64,
    /// Deleted from the second store.
    pub deleted: u64,
    /// How much this machine's clock is ahead of the second store's, in milliseconds, if that is minutes; negative if it is behind. What is to be deleted
    /// waits until it is time by both.
    pub clock_ahead_ms: Option<i64>,
    /// What it would not delete: a lock, a missing permission.
    pub held: u64,
    /// Absent if no parity groups are kept.
    pub parity: Option<Grouped>,
    /// What the requests to both stores and the table cost, in 10⁻⁹ dollars; what leaves the first store's region is not in it, since this program
    /// is beside it.
    pub cost_nanodollars: u64,
    /// How long it took.
    pub took_ms: u64,
}

impl Mirrored {
    /// Whether all that must be there is in both stores, or will be without anybody's help.
    pub fn is_whole(&self) -> bool {
        self.beyond.is_empty() && self.lost_others + self.damaged == 0
    }
}

impl Host {
    /// The second store as audits are given it.
    ///
    /// # Errors
    /// [`HostError`] if it cannot be opened.
    pub async fn second_to_audit(&self, wanted: &Second, route: Route) -> Result<SecondToAudit, HostError> {
        let second = self.bucket(&wanted.store).await?;
        Ok(SecondToAudit {
            store: second.store,
            prices: self.settings.prices.clone(),
            route,
            is_behind: false,
        })
    }

    /// Makes the second store have what the first has, writes anew what the first lost, and lets go of what the first retired long enough ago. It
    /// takes as long as there is to copy; cancel-safe.
    ///
    /// # Errors
    /// [`HostError`]; what was copied or repaired before stays so, and the next run goes on.
    pub async fn mirror(&self, asked: Target, wanted: &Second) -> Result<Mirrored, HostError> {
        let _place = self.wait()?;
        let mut running = self.running.lock().await;
        let opened = self.open().await?;
        let target = asked
            .resolve(self.settings.roots, &self.settings.families)
            .ok_or(HostError::NotOurs { target: asked })?;
        let failed = |error: MirrorError| HostError::Mirror {
            target,
            error: Box::new(error),
        };
        let began = self.env.now();
        let table_before = opened.roots.nano_dollars();
        let anchor = opened.roots.anchor(&self.env, target);
        let known = self.known(opened, &mut running, target).await?;
        let first = known.bucket.clone();
        let second = self.bucket(&wanted.store).await?;
        // A table that does not know the family would not know what was retired, either.
        // The head may be what the first store lost.
        let has_root = match self.has_root(&first.store, target, &anchor).await {
            Err(error @ HostError::Foreign { .. }) => self
                .has_root(&second.store, target, &anchor)
                .await
                .map_err(|_| error)?,
            other => other?,
        };
        let first_before = first.meter.usage();
        let mirror = Mirror::new(
            &self.env,
            (first.store.clone(), second.store.clone()),
            anchor.clone(),
            Arc::<Queue>::default(),
            wanted.options,
        )
        .with_parity(
            Parity::new(
                &self.env,
                (first.store.clone(), second.store.clone()),
                anchor.family(),
            ),
            wanted.grouping,
        );
        mirror.check().await.map_err(|error| failed(error.into()))?;
        let found = mirror.compare(&NoLocalCopies).await.map_err(failed)?;
        mirror.group().await.map_err(failed)?;
        let lost: BTreeSet<_> = mirror.suspects().into_keys().collect();
        let lost_segments = lost.len();
        let repair = match wanted.repairs && has_root && !lost.is_empty() {
            true => {
                let limits = self.settings.limits.clone();
                let store = first.store.clone();
                let cleaner = known
                    .cleaner
                    .get_or_insert_with(|| Cleaner::new(&self.env, store, &anchor, limits));
                let repaired = cleaner.repair(Some(mirror.parity().reader()), &lost, false).await;
                repaired.map_err(|error: CleanError| HostError::Clean {
                    target,
                    error: Box::new(error),
                })?
            }
            false => Repair {
                waiting: lost,
                ..Repair::default()
            },
        };
        for segment in &repair.unneeded {
            let marked = mirror.mark_unneeded(*segment).await;
            marked.map_err(|error| failed(MirrorError::Second(error)))?;
        }
        let prices = self.settings.prices;
        let stores: u64 = [first.meter.usage().since(&first_before), second.meter.usage()]
            .iter()
            .map(|usage| prices.cost(usage, Route::SameRegion).total().nanos())
            .sum();
        let mirrored = Mirrored {
            family: target.family.to_string(),
            members: found.members,
            member_bytes: found.bytes,
            copied: found.copied,
            copied_bytes: mirror.status().copied_bytes,
            lost_segments: lost_segments as u64,
            repaired: repair.repaired.len() as u64,
            repaired_bytes: repair.moved_bytes,
            unneeded: (repair.unneeded.len() + repair.retired.len()) as u64,
            waiting: repair.waiting.len() as u64,
            beyond: repair
                .beyond
                .iter()
                .take(NAMED_MAX)
                .map(|beyond| format!("segment {}: {}", beyond.segment, beyond.detail))
                .collect(),
            lost_others: found.lost_others,
            damaged: found.damaged,
            named: found.named,
            kept_deleted: found.waiting + found.marked,
            deleted: found.deleted,
            clock_ahead_ms: mirror.status().clock_ahead_ms,
            held: found.held,
            parity: wanted.grouping.map(|_| Grouped::of(&mirror.parity().status())),
            cost_nanodollars: stores.saturating_add(opened.roots.nano_dollars() - table_before),
            took_ms: u64::try_from(self.env.now().since(began).as_millis()).unwrap_or(u64::MAX),
        };
        tracing::info!(family = %target, ?mirrored, "first and second store were compared");
        Ok(mirrored)
    }
}
