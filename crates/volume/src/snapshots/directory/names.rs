//! The names of snapshots in `.snapshots`: their own, or their times as SMB writes them.

use crate::state::Snapshot;
use bytes::Bytes;
use jiff::{Timestamp, tz::TimeZone};
use std::collections::BTreeMap;

/// How snapshots are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotNames {
    Own,
    /// MS-SMB2 2.2.32.2: `@GMT-YYYY.MM.DD-HH.MM.SS`, in UTC.
    Time,
}

impl SnapshotNames {
    /// Those that a listing shows, under the names that it shows.
    pub fn listed(self, snapshots: &[Snapshot]) -> Vec<Snapshot> {
        let made = snapshots.iter().filter(|one| one.retained.is_some());
        match self {
            Self::Own => made.cloned().collect(),
            Self::Time => {
                let mut newest: BTreeMap<Bytes, &Snapshot> = BTreeMap::new();
                for snapshot in made {
                    let known = newest.entry(time_name(snapshot)).or_insert(snapshot);
                    if (snapshot.created_ms, snapshot.id) > (known.created_ms, known.id) {
                        *known = snapshot;
                    }
                }
                let named = newest.into_iter().map(|(name, snapshot)| Snapshot {
                    name,
                    ..snapshot.clone()
                });
                named.collect()
            }
        }
    }

    /// The snapshot that only this way of naming calls so.
    pub fn find<'a>(self, snapshots: &'a [Snapshot], name: &[u8]) -> Option<&'a Snapshot> {
        match self {
            Self::Own => None,
            Self::Time => snapshots
                .iter()
                .filter(|one| one.retained.is_some() && time_name(one) == name)
                .max_by_key(|one| (one.created_ms, one.id)),
        }
    }
}

fn time_name(snapshot: &Snapshot) -> Bytes {
    let time = Timestamp::from_millisecond(snapshot.created_ms).unwrap_or(Timestamp::UNIX_EPOCH);
    let time = time.to_zoned(TimeZone::UTC);
    time.strftime("@GMT-%Y.%m.%d-%H.%M.%S").to_string().into()
}
