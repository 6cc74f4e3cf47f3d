//! The judgement of a journal at a start: what was published, what is put into a salvage clone, and what goes on.
//!
//! A member that was not broken goes on with all of it. One that was broken salvages each record that touches something it lost, or
//! anything that such a record touched. Lost is what another holds now, *and* what is no longer what the retained root has of it: others may
//! have had it, changed it and given it home.

use crate::{
    act::committed,
    content::{History, INODES, NAMES, SHAPE},
    protocol::Protocol,
    rules::Bug,
    world::{Phase, World, bit},
};

impl Protocol {
    pub(crate) fn serve(&self, world: &mut World, index: usize) -> Result<(), String> {
        let head = world.head;
        let Phase::Reading { was_broken } = world.members[index].phase else {
            unreachable!("a step of a start");
        };
        let ground = world.retained[index]
            .take()
            .filter(|_| was_broken)
            .unwrap_or(head);
        let done = world.members[index]
            .journal
            .only(|number| world.has_done(&ground, number));
        committed(world, index, done);
        let mut lost = 0;
        for slot in 0..=SHAPE {
            let is_held = world.members[index].usable & bit(slot) != 0;
            let has_changed = slot != SHAPE && head.leaves[slot] != ground.leaves[slot];
            let is_forgiven = slot == SHAPE && self.is(Bug::ShapeNeverLost);
            let is_compared = !self.is(Bug::LostByArenasAlone) && !self.is(Bug::NoLeafCheck);
            if was_broken && !is_forgiven && (!is_held || (has_changed && is_compared)) {
                lost |= bit(slot);
            }
        }
        let (mut tainted, mut kept) = (lost, History::default());
        let mut salvaged = 0;
        for number in world.members[index].journal.iter() {
            let touched = world
                .operation(number)
                .touches()
                .fold(0, |all, slot| all | bit(slot));
            let stands_on = match self.is(Bug::TaintedReplayedAlone) {
                true => lost,
                false => tainted,
            };
            if touched & stands_on == 0 {
                if touched & salvaged != 0 {
                    return Err(format!(
                        "S2: {} goes on with operation {number}, and what it stands on is only in the salvage clone",
                        NAMES[index]
                    ));
                }
                kept = kept.with(number);
                continue;
            }
            for inode in world.operation(number).changes() {
                let built_on = world.members[index].ground[inode];
                if salvaged & bit(inode) == 0 && ground.leaves[inode] != built_on {
                    return Err(format!(
                        "S2: {} salvages operation {number} on {:?} of inode {inode}, and it was done on {built_on:?}",
                        NAMES[index], ground.leaves[inode]
                    ));
                }
            }
            tainted |= touched;
            salvaged |= touched;
            world.salvaged |= 1 << number;
        }
        let member = &mut world.members[index];
        member.phase = Phase::Up;
        member.journal = kept;
        member.base = head;
        member.view = head.leaves;
        for inode in 0..INODES {
            let changes =
                kept.only(|number| world.operation(number).changes().any(|changed| changed == inode));
            let member = &mut world.members[index];
            if changes.is_empty() {
                member.ground[inode] = History::default();
            }
            member.view[inode] = changes.iter().fold(head.leaves[inode], History::with);
        }
        Ok(())
    }
}
