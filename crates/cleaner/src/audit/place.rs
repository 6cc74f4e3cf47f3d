//! The place at which an audit that ran out of money goes on the next time.
//!
//! A round goes over everything once, over as many audits as the money takes: the trees of the head, those of the retained roots from
//! the newest to the oldest, each from its end to its beginning, and at last the manifest and the second store. Where an audit was cut
//! off says what the next one begins with; whoever keeps that goes over all of an archive by and by, and whoever does not begins anew each
//! time.
//!
//! A place is one in the order of the walk, and of no particular root: a volume goes on between two audits of a round. What was written
//! before the place meanwhile is looked at in the next round; what stood behind it is met, if it is still needed.

use firn_format::{INODE_MAP, ORPHAN_MAP, Place, USAGE_MAP, radix};
use serde::{Deserialize, Serialize};

/// A stage of a round, and how far it is. In JSON one object; compare the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "stage", deny_unknown_fields)]
pub enum AuditPlace {
    /// Among the trees of the head.
    Head(TreePlace),
    /// Among those of a retained root, or of the next older one if that is released by now.
    Retained {
        /// The root's version.
        version: u64,
        /// How far.
        at: TreePlace,
    },
    /// All trees were gone through.
    Manifest,
}

/// A place among the trees of a root. The walk comes from the last place to the first: this one and all before it are still to be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TreePlace {
    /// The map: the reserved inode that it is known by.
    map: u64,
    /// The inode, or the leaf of the map of usage.
    index: u64,
    /// The block of the inode's data.
    block: u64,
}

impl TreePlace {
    /// That of all trees of a root.
    pub(super) const ALL: Self = Self {
        map: USAGE_MAP,
        index: u64::MAX,
        block: u64::MAX,
    };

    /// That of an object which hangs on `map`, and all below it.
    pub(super) fn of(map: u64, place: &Place) -> Self {
        let (index, block) = match place.inode == map {
            true => (last_leaf(place), u64::MAX),
            false => (place.inode, last_leaf(place)),
        };
        Self { map, index, block }
    }

    /// Whether nothing below an object that hangs on `map` is to be met any more.
    pub(super) fn is_past(&self, map: u64, place: &Place) -> bool {
        if map != self.map {
            return order(map) < order(self.map);
        }
        match place.inode == map {
            true => first_leaf(place) > self.index,
            false => {
                place.inode > self.index || (place.inode == self.index && first_leaf(place) > self.block)
            }
        }
    }
}

/// In which order the walk comes to the maps of a root.
fn order(map: u64) -> u8 {
    match map {
        USAGE_MAP => 0,
        ORPHAN_MAP => 1,
        INODE_MAP => 2,
        _ => 3,
    }
}

/// The leaves below an object have numbers that begin with its own.
fn first_leaf(place: &Place) -> u64 {
    let bits = u32::from(place.level) * radix::FANOUT.trailing_zeros();
    place.index.checked_shl(bits).unwrap_or(0)
}

fn last_leaf(place: &Place) -> u64 {
    let bits = u32::from(place.level) * radix::FANOUT.trailing_zeros();
    let below = 1u64.checked_shl(bits).map_or(u64::MAX, |leaves| leaves - 1);
    first_leaf(place) | below
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn place(inode: u64, level: u8, index: u64) -> Place {
        Place { inode, level, index }
    }

    #[test]
    fn what_is_behind_a_place_is_met_and_what_is_before_it_is_not() {
        // In the order of the walk, none of them below another.
        let walk = [
            (USAGE_MAP, place(USAGE_MAP, 1, 1)),
            (USAGE_MAP, place(USAGE_MAP, 0, 3)),
            (ORPHAN_MAP, place(ORPHAN_MAP, 0, 41)),
            (ORPHAN_MAP, place(40, 1, 2)),
            (INODE_MAP, place(INODE_MAP, 1, 2)),
            (INODE_MAP, place(INODE_MAP, 0, 101)),
            (INODE_MAP, place(100, 2, 1)),
            (INODE_MAP, place(100, 1, 127)),
            (INODE_MAP, place(100, 1, 3)),
            (INODE_MAP, place(INODE_MAP, 0, 99)),
            (INODE_MAP, place(98, 1, 500)),
        ];
        for (at, (map, cut)) in walk.iter().enumerate() {
            let from = TreePlace::of(*map, cut);
            for (number, (map, place)) in walk.iter().enumerate() {
                assert_eq!(from.is_past(*map, place), number < at, "{place:?} from {from:?}");
            }
            assert!(!TreePlace::ALL.is_past(*map, cut));
        }
    }

    #[test]
    fn what_leads_to_a_place_is_met() {
        let from = TreePlace::of(INODE_MAP, &place(1000, 1, 300));
        for (map, place) in [
            (INODE_MAP, place(INODE_MAP, 9, 0)),
            (INODE_MAP, place(INODE_MAP, 10, 0)),
            (INODE_MAP, place(INODE_MAP, 1, 7)),
            (INODE_MAP, place(INODE_MAP, 0, 1000)),
            (INODE_MAP, place(1000, 3, 0)),
            (INODE_MAP, place(1000, 2, 2)),
        ] {
            assert!(!from.is_past(map, &place), "{place:?}");
        }
        assert!(from.is_past(INODE_MAP, &place(INODE_MAP, 1, 8)));
        assert!(from.is_past(USAGE_MAP, &place(USAGE_MAP, 9, 0)));
    }

    #[test]
    fn it_is_read_back_from_what_is_kept() {
        let at = TreePlace::of(INODE_MAP, &place(1000, 1, 300));
        for place in [
            AuditPlace::Head(at),
            AuditPlace::Retained { version: 7, at },
            AuditPlace::Manifest,
        ] {
            let text = serde_json::to_string(&place).unwrap();
            assert_eq!(
                serde_json::from_str::<AuditPlace>(&text).unwrap(),
                place,
                "{text}"
            );
        }
        serde_json::from_str::<AuditPlace>(r#"{"stage":"tail"}"#).unwrap_err();
    }
}
