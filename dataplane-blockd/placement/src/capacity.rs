//! Capacity of a cluster: what may be promised to disks, so that it can be delivered after the loss of the largest failure domain.
//!
//! Disks are thin on the nodes but reserved here, all copies counted. The arithmetic
//! ([decision 0093](../../../docs/decisions/0093-capacity-is-what-survives.md)):
//!
//! ```text
//! tracts(nodes, k)   the most tracts of which k copies fit on different nodes: the largest T with Σ min(capacity, T) ≥ k·T
//! deliverable        k · min( tracts(all, k), for each failure domain d: tracts(all but d, min(k, nodes without d)) ),  k = min(2, nodes)
//! slack              nodes that are left × tracts of the largest row, if more than two are left: rows are not cut in pieces
//! promisable         deliverable − slack
//! free               promisable − reserved
//! ```
//!
//! Where all nodes are in one failure domain each is taken for one of its own: a node is the least that is lost at once.

use crate::{Placement, PlacementError, record::Stored};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Copies that the arithmetic keeps through a loss. A disk of three is counted with three, so it is kept as well.
const COPIES: u64 = 2;

/// The cluster's room in tracts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Capacity {
    /// On nodes that live, take writes and are not being emptied; kept by the coordinator.
    pub total_tracts: u64,
    /// Promised to disks, all copies counted.
    pub reserved_tracts: u64,
    /// Of the total, what there is room for after the loss of the largest failure domain. Records of earlier builds lack it:
    /// then it is the total.
    #[serde(default)]
    pub deliverable_tracts: Option<u64>,
    /// Nodes that are left after that loss, if they are more than two.
    #[serde(default)]
    pub slack_nodes: u64,
    /// Tracts promised in the row in which most are, at most.
    #[serde(default)]
    pub largest_row_tracts: u64,
}

impl Capacity {
    /// What may be promised in all.
    pub fn promisable_tracts(&self) -> u64 {
        self.promisable(self.largest_row_tracts)
    }

    fn promisable(&self, largest_row_tracts: u64) -> u64 {
        self.deliverable_tracts
            .unwrap_or(self.total_tracts)
            .saturating_sub(self.slack_nodes.saturating_mul(largest_row_tracts))
    }

    /// What can still be promised.
    pub fn free_tracts(&self) -> u64 {
        self.promisable_tracts().saturating_sub(self.reserved_tracts)
    }

    /// The same with `copies` copies of `tracts` more promised to one disk, in a table of so many rows.
    pub(crate) fn reserve(self, tracts: u64, copies: u64, rows: u32) -> Result<Self, PlacementError> {
        let needed_tracts = tracts.saturating_mul(copies);
        let largest_row_tracts = self
            .largest_row_tracts
            .saturating_add(tracts.div_ceil(rows.max(1).into()));
        let free_tracts = self
            .promisable(largest_row_tracts)
            .saturating_sub(self.reserved_tracts);
        if needed_tracts > free_tracts {
            return Err(PlacementError::NoCapacity {
                needed_tracts,
                free_tracts,
            });
        }
        Ok(Self {
            reserved_tracts: self.reserved_tracts + needed_tracts,
            largest_row_tracts,
            ..self
        })
    }
}

/// What nodes can deliver after a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Deliverable {
    /// See [`Capacity::deliverable_tracts`].
    pub tracts: u64,
    /// See [`Capacity::slack_nodes`].
    pub slack_nodes: u64,
}

/// What may be promised on these nodes, each of a failure domain and with room for so many tracts.
pub fn deliverable<'a>(nodes: impl Iterator<Item = (&'a str, u64)>) -> Deliverable {
    let nodes: Vec<(&str, u64)> = nodes.collect();
    let mut domains: BTreeMap<&str, BTreeSet<usize>> = BTreeMap::new();
    for (at, (domain, _)) in nodes.iter().enumerate() {
        domains.entry(domain).or_default().insert(at);
    }
    let losses: Vec<BTreeSet<usize>> = match domains.len() {
        0 | 1 => (0..nodes.len()).map(|at| BTreeSet::from([at])).collect(),
        _ => domains.into_values().collect(),
    };
    let all: Vec<u64> = nodes.iter().map(|(_, tracts)| *tracts).collect();
    let copies = COPIES.min(all.len() as u64);
    let mut least = most_tracts(&all, copies);
    let mut left_most = 0;
    for lost in &losses {
        let left: Vec<u64> = all
            .iter()
            .enumerate()
            .filter(|(at, _)| !lost.contains(at))
            .map(|(_, tracts)| *tracts)
            .collect();
        // Nothing is left of a single node, and nothing to promise it to.
        if left.is_empty() {
            continue;
        }
        left_most = left_most.max(left.len() as u64);
        least = least.min(most_tracts(&left, copies.min(left.len() as u64)));
    }
    Deliverable {
        tracts: copies * least,
        // On one or two nodes every row lies on all of them: there is nothing to choose.
        slack_nodes: if left_most > COPIES { left_most } else { 0 },
    }
}

/// What fits on nodes with room for so many tracts each, all copies of two counted.
pub(crate) fn room(nodes: impl Iterator<Item = u64>) -> u64 {
    let nodes: Vec<u64> = nodes.collect();
    let copies = COPIES.min(nodes.len() as u64);
    copies * most_tracts(&nodes, copies)
}

/// The most tracts of which so many copies fit, each on a node of its own: the room that counts on a node is at most one copy of each.
fn most_tracts(nodes: &[u64], copies: u64) -> u64 {
    let fits = |tracts: u64| {
        let room: u128 = nodes.iter().map(|node| u128::from(*node.min(&tracts))).sum();
        room >= u128::from(tracts) * u128::from(copies)
    };
    if copies == 0 {
        return 0;
    }
    // What fits is an interval from 0 on, since the left side grows ever slower.
    let (mut least, mut beyond) = (
        0,
        nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(*node)) / copies + 1,
    );
    while beyond - least > 1 {
        let middle = least + (beyond - least) / 2;
        if fits(middle) {
            least = middle;
        } else {
            beyond = middle;
        }
    }
    least
}

impl Placement {
    /// The cluster's room.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub async fn capacity(&self) -> Result<Capacity, PlacementError> {
        Ok(self
            .stored_capacity()
            .await?
            .map(|stored| stored.value)
            .unwrap_or_default())
    }

    pub(crate) async fn stored_capacity(&self) -> Result<Option<Stored<Capacity>>, PlacementError> {
        self.read(&self.capacity_key()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracts(nodes: &[(&str, u64)]) -> u64 {
        deliverable(nodes.iter().copied()).tracts
    }

    #[test]
    fn what_is_promised_fits_after_the_loss_of_the_largest_domain() {
        assert_eq!(tracts(&[]), 0);
        assert_eq!(tracts(&[("a", 35)]), 35, "one copy on one node");
        assert_eq!(tracts(&[("a", 35), ("b", 35)]), 70, "one copy is left of each");
        assert_eq!(tracts(&[("a", 35), ("b", 35), ("c", 35)]), 70);
        assert_eq!(tracts(&[("a", 35), ("a", 35), ("a", 35)]), 70, "each a domain");
        assert_eq!(tracts(&[("a", 35), ("a", 35), ("b", 35), ("c", 35)]), 70);
        assert_eq!(
            tracts(&[("a", 35), ("b", 35), ("c", 35), ("d", 35)]),
            104,
            "an even number"
        );
    }

    #[test]
    fn two_copies_of_a_tract_lie_on_two_nodes_however_large_one_is() {
        assert_eq!(tracts(&[("a", 10), ("b", 10), ("c", 100)]), 20);
        assert_eq!(
            tracts(&[("a", 100), ("b", 100), ("c", 10)]),
            20,
            "a large one lost leaves 100 and 10"
        );
        assert_eq!(most_tracts(&[u64::MAX, u64::MAX], 2), u64::MAX / 2);
    }

    #[test]
    fn rows_that_are_not_cut_need_slack_where_there_is_a_choice() {
        let capacity = |nodes: &[(&'static str, u64)]| {
            let found = deliverable(nodes.iter().copied());
            Capacity {
                total_tracts: nodes.iter().map(|(_, tracts)| tracts).sum(),
                deliverable_tracts: Some(found.tracts),
                slack_nodes: found.slack_nodes,
                ..Capacity::default()
            }
        };
        let three = capacity(&[("a", 35), ("b", 35), ("c", 35)]);
        assert_eq!(
            three.reserve(35, 2, 4).map(|after| after.free_tracts()).ok(),
            Some(0)
        );
        assert!(three.reserve(36, 2, 4).is_err());
        let four = capacity(&[("a", 35), ("b", 35), ("c", 35), ("d", 35)]);
        assert!(
            four.reserve(52, 2, 4).is_err(),
            "13 tracts a row: two to a node, six in all, and eight are needed"
        );
        assert!(four.reserve(30, 2, 30).is_ok());
        let before: Capacity =
            serde_json::from_str(r#"{"total_tracts":9,"reserved_tracts":4}"#).expect("a record of before");
        assert_eq!(before.free_tracts(), 5);
    }
}
