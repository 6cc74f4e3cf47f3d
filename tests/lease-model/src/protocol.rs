//! The protocol as a model to explore: bounds of what happens, and the rule that is left out.

use crate::{
    content::{ASCENDING, INODES, Kind, NAMES, NUMBERS, Operation, SHAPE, arena_of},
    explore::{Limits, Model},
    rules::Bug,
    step::{Act, Step},
    world::{LAPSES, Phase, Unstable, World, bit},
};

/// What may happen.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Its name.
    pub name: &'static str,
    /// What clients ask for.
    pub kinds: &'static [Kind],
    /// How many such operations, of all members.
    pub operations: usize,
    /// How many processes die.
    pub crashes: u8,
    /// How many members are cut off.
    pub partitions: u8,
    /// How many requests or replies are lost or late.
    pub losses: u8,
    /// How many members leave.
    pub departures: u8,
    /// How many leases are given home though nobody waits.
    pub returns: u8,
    /// Whether the second member has not joined at first: what is its home is then the home of no member.
    pub has_newcomer: bool,
    /// How far the search goes.
    pub limits: Limits,
}

/// The protocol.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// What may happen.
    pub bounds: Bounds,
    /// Which rule is left out.
    pub bug: Option<Bug>,
}

impl Protocol {
    pub(crate) fn is(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// What an operation has to hold, in the order in which it is pinned.
    pub(crate) fn needs(&self, operation: &Operation) -> Vec<usize> {
        if operation.kind == Kind::Relocate && self.is(Bug::MergeBelowUnheld) {
            return Vec::new();
        }
        let mut needs: Vec<usize> = operation.touches().collect();
        if self.is(Bug::RenameWithoutShape) {
            needs.retain(|slot| *slot != SHAPE);
        }
        if !self.is(Bug::PinsInAnyOrder) {
            needs.sort_unstable_by_key(|slot| ASCENDING.iter().position(|other| other == slot));
        }
        needs
    }

    pub(crate) fn home(&self, slot: usize) -> Option<usize> {
        arena_of(slot).checked_sub(1)
    }

    /// S3: what a member may answer from memory has all that was published.
    fn reads_are_fresh(&self, world: &World) -> Result<(), String> {
        for (index, member) in world.members.iter().enumerate() {
            let is_valid = member.beat_age < LAPSES || self.is(Bug::ReadsByLapsedLease);
            let shown = (0..INODES)
                .filter(|inode| member.phase == Phase::Up && is_valid && member.usable & bit(*inode) != 0)
                .map(|inode| (inode, member.view[inode]));
            let read = member.root_read.filter(|_| self.is(Bug::ReadJoinsEarlier));
            let joined = read
                .iter()
                .flat_map(|(root, _)| root.leaves.into_iter().enumerate());
            for (inode, leaf) in shown.chain(joined) {
                for number in published(world) {
                    let changes = world.operation(number).changes().any(|changed| changed == inode);
                    if changes && !leaf.has(number) {
                        return Err(format!(
                            "S3: a read of inode {inode} at {} does not see operation {number}, which was acknowledged at level 2",
                            NAMES[index]
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

fn published(world: &World) -> impl Iterator<Item = u8> + use<> {
    let published = world.published;
    (1..=NUMBERS as u8).filter(move |number| published & 1 << number != 0)
}

impl Model for Protocol {
    type State = World;
    type Step = Step;

    fn initial(&self) -> World {
        World::initial(self.bounds.has_newcomer)
    }

    fn steps(&self, world: &World) -> Vec<Step> {
        self.steps_of(world)
    }

    fn take(&self, world: &World, step: Step) -> Result<World, String> {
        let mut next = world.clone();
        self.act(&mut next, step)?;
        self.settle(&mut next);
        Ok(next)
    }

    fn check(&self, world: &World) -> Result<(), String> {
        self.reads_are_fresh(world)?;
        for number in (1..=NUMBERS as u8).filter(|number| world.acknowledged & 1 << number != 0) {
            let is_in_journal = world.members.iter().any(|member| member.journal.has(number));
            let is_kept =
                is_in_journal || world.salvaged & 1 << number != 0 || world.has_done(&world.head, number);
            if !is_kept {
                return Err(format!(
                    "S2: operation {number} was acknowledged and is in no root, no journal and no salvage clone"
                ));
            }
        }
        Ok(())
    }

    fn is_from_outside(&self, step: Step) -> bool {
        matches!(
            step.act,
            Act::Begin(..)
                | Act::Join
                | Act::Crash
                | Act::CutOff(_)
                | Act::Lose
                | Act::LoseGift(_)
                | Act::Leave
                | Act::Return(_)
        )
    }

    fn is_done(&self, world: &World) -> bool {
        world.members.iter().all(|member| {
            matches!(member.phase, Phase::Outside | Phase::Up | Phase::Away)
                && member.is_connected
                && member.current == 0
                && member.unstable == Unstable::None
                && member.journal.is_empty()
                && member.request.is_none()
                && member.doubt.is_none()
                && member.gift.is_none()
                && member.gift_in_doubt.is_none()
        })
    }

    fn describe(&self, world: &World) -> String {
        world.to_string()
    }
}
