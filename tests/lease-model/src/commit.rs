//! Arrival of a commit at the table, and what must hold of every root.

use crate::{
    act::{commit_id, of_others},
    content::{INODES, Kind, NAMES, NUMBERS, Root},
    protocol::Protocol,
    world::{Request, Stage, World, is_below},
};
use firn_anchor::{MemberChange, MemberCommit};
use firn_format::{Version, WriterId};

impl Protocol {
    /// The transaction: the root's version is the one that was built on, and the member's record has the incarnation.
    pub(crate) fn deliver(
        &self,
        world: &mut World,
        index: usize,
        request: &Request,
    ) -> Result<Stage, String> {
        let version = request.on_version + 1;
        let change = MemberChange::Commit {
            incarnation: WriterId(u64::from(request.incarnation)),
            commit: MemberCommit {
                commit_id: commit_id(index, request.commit),
                version: Version(u64::from(version)),
                sequence: 0,
            },
        };
        if change.apply(&world.records[index]).is_err() {
            return Ok(Stage::Refused);
        }
        if world.head.version != request.on_version {
            return Ok(Stage::LostRace);
        }
        world.change_record(index, change)?;
        self.record_written(world, index);
        let root = Root {
            version,
            commit: (index as u8, request.commit),
            leaves: request.leaves,
        };
        promises(world, index, &root)?;
        world.head = root;
        self.sign_of_life(world, index);
        Ok(Stage::Done)
    }
}

/// What must hold of a root that follows the head.
fn promises(world: &World, committer: usize, root: &Root) -> Result<(), String> {
    let name = NAMES[committer];
    for inode in 0..INODES {
        let (before, after) = (world.head.leaves[inode], root.leaves[inode]);
        if before == after {
            continue;
        }
        if !after.continues(before) {
            return Err(format!(
                "S2: {name}'s commit makes of inode {inode} {after:?}, and {before:?} was committed before"
            ));
        }
        if world.holder(inode) != Some(committer) {
            return Err(format!(
                "S1: {name} commits a change of inode {inode}, which it does not hold"
            ));
        }
        let mut seen = before;
        for number in after.iter().skip(before.iter().count()) {
            let operation = world.operation(number);
            let place = operation.changes().position(|changed| changed == inode);
            let built_on = operation.built_on[place.expect("only what it changes")];
            if of_others(world, seen, operation.member as usize) != built_on {
                return Err(format!(
                    "S4: operation {number} was done on {built_on:?} of inode {inode}, and is committed on {seen:?}"
                ));
            }
            seen = seen.with(number);
        }
    }
    for number in 1..=NUMBERS as u8 {
        let Some(operation) = world.operations[number as usize - 1] else {
            continue;
        };
        let times: Vec<bool> = operation
            .changes()
            .map(|inode| root.leaves[inode].has(number))
            .collect();
        if times.iter().any(|is_in| *is_in != times[0]) {
            return Err(format!("S2: half of operation {number} is in a root"));
        }
    }
    for (member, name) in NAMES.iter().enumerate() {
        for leaf in root.leaves {
            let own = leaf.only(|number| world.operation(number).member as usize == member);
            let numbers: Vec<u8> = own.iter().collect();
            if !numbers.is_sorted() {
                return Err(format!("S2: operations of {name} are in another order"));
            }
        }
    }
    let parents = world.parents(root);
    let has_circle =
        (0..INODES).any(|inode| parents[inode].is_some_and(|parent| is_below(&parents, parent, inode)));
    match has_circle {
        true => Err(format!(
            "S1: directories are below each other: {} commits a {:?} that others' renames do not allow",
            name,
            Kind::Move
        )),
        false => Ok(()),
    }
}
