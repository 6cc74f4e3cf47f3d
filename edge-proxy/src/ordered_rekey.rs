//! The rekey that the service orders: obeyed once for each order, and reported (decision 0172). What an administrator asks of this edge
//! itself, `firn-edge rekey`, is another way to the same engine; what was asked for last holds.
//!
//! | order | volume | what is done |
//! |---|---|---|
//! | start, to an epoch | nothing older is left, and no rekey is under way | nothing |
//! | start, to an epoch | has not that key yet | looks for a newer key ring; without one it waits, and tries again |
//! | start, to an epoch | else | a rekey to the newest key begins, or goes on at the order's rate |
//! | stop | any | ends what is under way |
//!
//! Which order was obeyed is known in memory only. After a restart it is obeyed again, which by this table does no harm.

use firn_edge_state::{DesiredRekey, NAMED_SNAPSHOTS_MAX, ObservedRekey, shortened};
use firn_volume::{RekeyEnd, RekeyStatus, Volume};
use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

/// The edge looks for a newer key ring within seconds; store and service may take some more.
const KEYS_WITHIN: Duration = Duration::from_secs(120);

/// What became of the newest order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Obeyed {
    /// The order that was obeyed last; 0: none since this edge started.
    number: u64,
    /// Why a newer one was not yet.
    waits: Option<String>,
}

/// See the module.
pub struct OrderedRekey {
    volume: Volume,
    obeyed: Mutex<Obeyed>,
    /// As it was when somebody last asked whether there is news.
    seen: Mutex<Option<ObservedRekey>>,
}

impl OrderedRekey {
    /// Nothing is obeyed yet.
    pub fn new(volume: &Volume) -> Self {
        Self {
            volume: volume.clone(),
            obeyed: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Obeyed> {
        self.obeyed.lock().expect("no panic under this lock")
    }

    /// Obeys an order, unless it was obeyed. If it cannot be now, the reason is reported, and the next call tries again.
    pub async fn obey(&self, wanted: Option<DesiredRekey>) {
        let Some(wanted) = wanted else { return };
        if self.lock().number == wanted.number {
            return;
        }
        let done = self.carry_out(wanted).await;
        let mut obeyed = self.lock();
        match done {
            Ok(()) => {
                tracing::info!(
                    number = wanted.number,
                    to_epoch = wanted.to_epoch,
                    is_stopped = wanted.is_stopped,
                    "the service's order about rekeying is obeyed"
                );
                *obeyed = Obeyed {
                    number: wanted.number,
                    waits: None,
                };
            }
            Err(why) => {
                tracing::debug!(
                    why,
                    number = wanted.number,
                    "the service's order about rekeying waits"
                );
                obeyed.waits = Some(shortened(&why));
            }
        }
    }

    async fn carry_out(&self, wanted: DesiredRekey) -> Result<(), String> {
        let volume = &self.volume;
        if wanted.is_stopped {
            let stopped = volume.rekey_stop().await;
            return stopped.map(drop).map_err(|error| error.to_string());
        }
        let status = volume.rekey_status();
        let is_there = status.oldest.is_some_and(|oldest| oldest.0 >= wanted.to_epoch);
        if is_there && status.under_way.is_none() {
            return Ok(());
        }
        if status.newest.0 < wanted.to_epoch {
            volume.want_newest_keys(KEYS_WITHIN).await?;
            let newest = volume.rekey_status().newest.0;
            if newest < wanted.to_epoch {
                return Err(format!(
                    "the newest key that this edge has is of epoch {newest}, and the order is to epoch {}",
                    wanted.to_epoch
                ));
            }
        }
        let started = volume.rekey_start(wanted.bytes_per_second).await;
        started.map(drop).map_err(|error| error.to_string())
    }

    /// How the rekey stands, if one was ordered.
    pub fn observed(&self, wanted: Option<DesiredRekey>) -> Option<ObservedRekey> {
        wanted.map(|_| observed(self.volume.rekey_status(), self.lock().clone()))
    }

    /// Whether a rekey is under way.
    pub fn is_under_way(&self) -> bool {
        self.volume.rekey_status().under_way.is_some()
    }

    /// Whether more than the progress of a rekey changed since this was last asked.
    pub fn has_news(&self, wanted: Option<DesiredRekey>) -> bool {
        let now = self.observed(wanted).map(|observed| ObservedRekey {
            resealed_bytes: 0,
            left_bytes: 0,
            ..observed
        });
        let mut seen = self.seen.lock().expect("no panic under this lock");
        let has_news = *seen != now;
        *seen = now;
        has_news
    }
}

fn observed(status: RekeyStatus, obeyed: Obeyed) -> ObservedRekey {
    let counts = status.under_way.as_ref().map(|under_way| under_way.counts);
    let counts = counts.or(status.last.as_ref().map(|last| last.counts));
    let end = status.last.as_ref().map(|last| match last.end {
        RekeyEnd::Done => "done",
        RekeyEnd::Stopped => "stopped",
        RekeyEnd::Unreadable => "unreadable",
    });
    let snapshots = status.snapshots.iter();
    ObservedRekey {
        number: obeyed.number,
        newest_epoch: status.newest.0,
        oldest_epoch: status.oldest.map(|epoch| epoch.0),
        oldest_epoch_needed: status.oldest_needed().map(|epoch| epoch.0),
        under_way_to: status.under_way.as_ref().map(|under_way| under_way.target.0),
        resealed_bytes: counts.map_or(0, |counts| counts.resealed_bytes),
        left_bytes: status.left_bytes,
        unreadable_objects: counts.map_or(0, |counts| counts.unreadable),
        last_end: end.map(Into::into),
        old_snapshots: snapshots
            .take(NAMED_SNAPSHOTS_MAX)
            .map(|snapshot| shortened(&snapshot.name))
            .collect(),
        old_snapshot_count: status.snapshots.len() as u64,
        waits: obeyed.waits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_format::KeyEpoch;
    use firn_volume::OldSnapshot;

    #[test]
    fn the_oldest_snapshots_are_named_and_all_are_counted() {
        let snapshots = (0..20).map(|ordinal| OldSnapshot {
            name: format!("s{ordinal}{}", "x".repeat(500)),
            protected_until_ms: 0,
            oldest: None,
        });
        let status = RekeyStatus {
            newest: KeyEpoch(3),
            oldest: Some(KeyEpoch(3)),
            under_way: None,
            left_bytes: 0,
            last: None,
            snapshots: snapshots.collect(),
        };
        let seen = observed(
            status,
            Obeyed {
                number: 4,
                waits: None,
            },
        );
        assert_eq!(
            (seen.number, seen.newest_epoch, seen.oldest_epoch),
            (4, 3, Some(3))
        );
        assert_eq!(seen.oldest_epoch_needed, None, "a snapshot may need any");
        assert_eq!(
            (seen.old_snapshots.len(), seen.old_snapshot_count),
            (NAMED_SNAPSHOTS_MAX, 20)
        );
        assert!(seen.old_snapshots[0].starts_with("s0") && seen.old_snapshots[0].len() <= 400);
    }
}
