//! Disjoint groups of chunks: what may be folded side by side.
//!
//! Each group is one transaction, and no two groups of a round name the same marker or the same tenant, so the transactions of one
//! process never meet on a tenant's head or hours. A chunk is done tenant by tenant in order of their names (`fold.rs`), so what a
//! group claims of it is a prefix of its tenants:
//!
//! ```text
//! chunks, in the order of the round   tenants left     group 0      group 1      waits
//!   a                                 acme             acme
//!   b                                 beta, chi                     beta, chi
//!   c                                 acme, beta       acme                      c from beta on
//!   d                                 beta                          beta
//! ```
//!
//! The first chunk always has its first tenant, so each round gets on, and who waits is first sooner or later.

use super::work::Work;
use crate::layout;
use firn_usage::TenantName;
use std::collections::{BTreeMap, BTreeSet};

/// Tenants of one group at most. Each is two items of its transaction as a rule, the check of its head and an hour.
pub(super) const GROUP_TENANTS: usize = 40;
/// Chunks of a group below which another is not begun for the sake of being side by side: a transaction of the embedded table is an fsync.
const GROUP_CHUNKS: usize = 4;

/// Chunks that one transaction takes, as far as they are claimed.
#[derive(Default)]
pub(super) struct Group {
    pub(super) works: Vec<Work>,
    pub(super) tenants: BTreeSet<TenantName>,
}

/// What [`parted`] makes of the chunks of a round.
#[derive(Default)]
pub(super) struct Parted {
    pub(super) groups: Vec<Group>,
    /// Chunks of which nothing can be done in this round.
    pub(super) waiting: Vec<Work>,
}

/// Parts chunks into disjoint groups: `most` at most, and about `side_by_side` if there are chunks enough. Nothing is claimed from a tenant of
/// `unreadable` on; chunks that begin with one are left out.
pub(super) fn parted(
    works: Vec<Work>,
    unreadable: &BTreeSet<TenantName>,
    side_by_side: usize,
    most: usize,
) -> Parted {
    let size = works
        .len()
        .div_ceil(side_by_side)
        .clamp(GROUP_CHUNKS, layout::FOLD_CHUNKS);
    let mut parted = Parted::default();
    let mut owners: BTreeMap<TenantName, usize> = BTreeMap::new();
    for mut work in works {
        let first = work.left.keys().next();
        if first.is_some_and(|tenant| unreadable.contains(tenant)) {
            continue;
        }
        let owner = first.and_then(|tenant| owners.get(tenant).copied());
        let Some(at) = parted.place(owner, size, most) else {
            parted.waiting.push(work);
            continue;
        };
        let group = &mut parted.groups[at];
        for tenant in work.left.keys() {
            let owner = owners.get(tenant).copied();
            let is_free = owner.is_none() && group.tenants.len() < GROUP_TENANTS;
            let is_ours = owner == Some(at) || firn_env::planted!("billing.tenants_are_not_parted");
            if unreadable.contains(tenant) || !(is_free || is_ours) {
                break;
            }
            owners.insert(tenant.clone(), at);
            group.tenants.insert(tenant.clone());
            work.claimed += 1;
        }
        group.works.push(work);
    }
    parted
}

impl Parted {
    /// The group for a chunk whose first tenant is `owner`'s; none: there is no room in this round.
    fn place(&mut self, owner: Option<usize>, size: usize, most: usize) -> Option<usize> {
        if let Some(at) = owner
            && !firn_env::planted!("billing.tenants_are_not_parted")
        {
            return (self.groups[at].works.len() < layout::FOLD_CHUNKS).then_some(at);
        }
        let is_open = |group: &Group| group.works.len() < size && group.tenants.len() < GROUP_TENANTS;
        if !self.groups.last().is_some_and(is_open) {
            if self.groups.len() >= most {
                return None;
            }
            self.groups.push(Group::default());
        }
        Some(self.groups.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReporterRole;
    use bytes::Bytes;
    use firn_table::{Item, ItemKey, ItemVersion};
    use firn_usage::SourceId;
    use proptest::prelude::*;

    fn tenant(number: u8) -> TenantName {
        TenantName::new(&format!("tenant-{number:03}")).unwrap()
    }

    fn work(number: usize, tenants: &BTreeSet<u8>) -> Work {
        Work {
            marker: Item {
                key: ItemKey::new(layout::PENDING, format!("{number:04}")),
                version: ItemVersion(1),
                value: Bytes::new(),
            },
            received_ms: 0,
            source: SourceId::new("api/1").unwrap(),
            role: ReporterRole::Observed,
            left: tenants
                .iter()
                .map(|number| (tenant(*number), Vec::new()))
                .collect(),
            claimed: 0,
            skipped: 0,
            taken: 0,
            touched: false,
            events: Vec::new(),
        }
    }

    proptest! {
        #[test]
        fn no_two_groups_name_a_tenant_and_the_first_chunk_gets_on(
            chunks in proptest::collection::vec(proptest::collection::btree_set(0..80_u8, 0..60), 1..80),
            unreadable in proptest::collection::btree_set(0..80_u8, 0..4),
            side_by_side in 1..10_usize,
            most in 1..12_usize,
        ) {
            let unreadable: BTreeSet<TenantName> = unreadable.into_iter().map(tenant).collect();
            let works: Vec<Work> = chunks.iter().enumerate().map(|(number, tenants)| work(number, tenants)).collect();
            let begins_unreadable = |work: &&Work| work.left.keys().next().is_some_and(|tenant| unreadable.contains(tenant));
            let left_out = works.iter().filter(begins_unreadable).count();
            let first = works.iter().find(|work| !begins_unreadable(work)).map(|work| work.marker.key.clone());
            let parted = parted(works, &unreadable, side_by_side, most);
            prop_assert!(parted.groups.len() <= most);
            let mut seen = BTreeSet::new();
            for group in &parted.groups {
                prop_assert!(group.works.len() <= layout::FOLD_CHUNKS && group.tenants.len() <= GROUP_TENANTS);
                prop_assert!(group.tenants.iter().all(|tenant| !unreadable.contains(tenant) && seen.insert(tenant.clone())));
                for work in &group.works {
                    prop_assert!(work.left.is_empty() || work.claimed > 0);
                    prop_assert!(work.left.keys().take(work.claimed).all(|tenant| group.tenants.contains(tenant)));
                }
            }
            let taken = || parted.groups.iter().flat_map(|group| &group.works);
            prop_assert_eq!(taken().count() + parted.waiting.len() + left_out, chunks.len());
            prop_assert!(first.is_none_or(|first| taken().any(|work| work.marker.key == first)));
        }
    }
}
