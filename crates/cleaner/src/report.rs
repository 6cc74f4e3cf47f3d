//! Report and plan of a cleaning run: what it did, or would do, with counts and cost.

use crate::Damage;
use firn_anchor::Listing;
use firn_quantity::Money;
use firn_store::{ProviderPrices, Route, Usage};
use serde::{Deserialize, Serialize};

/// Things that are named in a report at most; beyond, only their number grows.
const NAMED: usize = 32;

/// A list that names the first few of many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Named {
    /// How many there were.
    pub count: u64,
    /// The first of them.
    pub first: Vec<String>,
}

impl Named {
    pub(crate) fn add(&mut self, what: impl ToString) {
        self.count += 1;
        if self.first.len() < NAMED {
            self.first.push(what.to_string());
        }
    }
}

/// A damaged object as a report shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamagedFile {
    /// The inode it belongs to (0 to 3: the volume's own maps).
    pub inode: u64,
    /// The whole story.
    pub detail: String,
}

/// What a run did. All counts are of this run alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Segments the listing showed.
    pub listed_segments: u64,
    /// Bytes of them.
    pub listed_bytes: u64,
    /// Segments whose objects were looked up.
    pub judged_segments: u64,
    /// Objects looked up.
    pub judged_objects: u64,
    /// Places looked up in roots for that.
    pub lookups: u64,
    /// Nodes, inodes and leaves fetched for that.
    pub lookup_fetches: u64,
    /// Segments retired: their objects lie elsewhere, or nobody needs them.
    pub retired_segments: u64,
    /// Bytes of them.
    pub retired_bytes: u64,
    /// Objects moved.
    pub moved_objects: u64,
    /// Bytes of file data written into the cleaner's log.
    pub moved_data_bytes: u64,
    /// Bytes of nodes, inodes and checkpoints written there.
    pub moved_node_bytes: u64,
    /// All bytes put: objects, indices, forwarding records.
    pub written_bytes: u64,
    /// Heads proposed.
    pub proposals: u64,
    /// Segments deleted.
    pub deleted_segments: u64,
    /// Bytes of them, as far as their retirement told.
    pub deleted_bytes: u64,
    /// Retired segments that wait for their grace to end.
    pub waiting_segments: u64,
    /// Retired segments that a hold keeps until the parity groups in the second store are written without them.
    pub hold_segments: u64,
    /// Since when the oldest of them is held, milliseconds since 1970.
    pub hold_since_ms: Option<i64>,
    /// Segments that cannot be deleted: an object lock, a missing permission. They are tried again in every run.
    pub held: Named,
    /// Segments whose writer may be about to commit them.
    pub uncommitted_segments: u64,
    /// Segments of writers that never said what they are for, or were never drawn. They are left alone.
    pub unclaimed: Named,
    /// Names in the log that are no segment, and segments that cannot be read. They are left alone.
    pub foreign: Named,
    /// Segments that a head's usage map counts bytes of, that are not in the bucket and were not retired: they are lost, or the figure is wrong.
    pub missing: Named,
    /// The same, which this run had no time to ask for by name.
    pub not_looked_for: u64,
    /// Retirements that moved nothing and whose segments are gone, forgotten.
    pub forgotten_retirements: u64,
    /// Forwarding records rewritten because they led to retired segments.
    pub collapsed_records: u64,
    /// Times another cleaner was first; what was copied for it is garbage for a later run.
    pub overtaken: u64,
    /// Objects that roots lead to and that are damaged or gone; what they lie in is kept.
    pub damaged: Vec<DamagedFile>,
    /// Damaged objects beyond those named.
    pub damaged_more: u64,
    /// The part of the log that the listing showed, once it is done with: what stands in a report of an earlier run is listed again.
    #[serde(skip)]
    pub listing: Option<Listing>,
    /// Whether the sweep came to the end of the log: the next run begins anew.
    pub sweep_ended: bool,
    /// Whether the run ended because its time was up.
    pub out_of_time: bool,
    /// Store requests by class, and their bytes.
    pub usage: Usage,
}

impl Report {
    pub(crate) fn add_damage(&mut self, damage: &Damage) {
        let file = DamagedFile {
            inode: damage.inode(),
            detail: damage.to_string(),
        };
        if self.damaged.contains(&file) {
            return;
        }
        if self.damaged.len() < NAMED {
            self.damaged.push(file);
        } else {
            self.damaged_more += 1;
        }
    }

    /// What the store charges for the run, in the region of the bucket.
    pub fn cost(&self, book: &ProviderPrices) -> Money {
        book.cost(&self.usage, Route::SameRegion).total()
    }

    /// What the bytes that were retired cost in a month of storage, less what was written in their stead.
    pub fn saved_a_month(&self, book: &ProviderPrices) -> Money {
        book.storage_month
            .estimate(self.retired_bytes.saturating_sub(self.written_bytes))
    }
}

/// What the next runs would do, as far as one look tells; nothing was changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Segments the listing showed.
    pub listed_segments: u64,
    /// Bytes of them.
    pub listed_bytes: u64,
    /// Segments that would be retired.
    pub victims: u64,
    /// Bytes of them.
    pub victim_bytes: u64,
    /// Objects that would be moved.
    pub moved_objects: u64,
    /// Bytes of them.
    pub moved_bytes: u64,
    /// Bytes that would become free, before nodes and records are written.
    pub freed_bytes: u64,
    /// Retired segments that wait to be deleted.
    pub waiting_segments: u64,
    /// Whether the whole log was looked at.
    pub whole_log: bool,
    /// What would be kept, and why.
    pub unclaimed: Named,
    /// Names in the log that are no segment, and segments that cannot be read.
    pub foreign: Named,
    /// Segments that a head's usage map counts bytes of, that are not in the bucket and were not retired.
    pub missing: Named,
    /// Damaged objects met.
    pub damaged: Vec<DamagedFile>,
    /// Requests this look took.
    pub usage: Usage,
}

impl Plan {
    /// An estimate of the requests that doing it takes: reading, writing and deleting, without the nodes above what is moved.
    pub fn expected_usage(&self) -> Usage {
        let segments_written = self.moved_bytes.div_ceil(4 << 20);
        Usage {
            puts: segments_written + self.victims,
            ranged_gets: 2 * self.victims,
            deletes: self.victims,
            bytes_up: self.moved_bytes,
            bytes_down: self.moved_bytes,
            ..Usage::default()
        }
    }

    /// What [`Plan::expected_usage`] costs in the region of the bucket.
    pub fn cost(&self, book: &ProviderPrices) -> Money {
        book.cost(&self.expected_usage(), Route::SameRegion).total()
    }

    /// What the freed bytes cost in a month of storage.
    pub fn saved_a_month(&self, book: &ProviderPrices) -> Money {
        book.storage_month.estimate(self.freed_bytes)
    }
}
