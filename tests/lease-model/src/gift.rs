//! Gifts: a lease is given by a request that is sent, arrives, and is answered, each a step of its own, as for commits.
//!
//! ```text
//!  none ── Give ──▶ under way ── GiftArrives ──▶ none
//!                       │ LoseGift (it happened or not), and the request may come late
//!                       ▼
//!                    in doubt ── SettleGift: beat, then look ──▶ none
//! ```
//!
//! A request is conditional on the arena, hence void once anybody has changed that, **and on the giver's own record**, hence void once that is
//! written: by a beat, a commit, a start or a break. One change of a member is under way at a time: while it gives, it commits, takes and leaves nothing.

use crate::{
    act::{change_arena, learn_break},
    content::{MEMBERS, arena_of},
    protocol::Protocol,
    rules::Bug,
    world::{World, bit},
};
use firn_anchor::ArenaChange;

impl Protocol {
    /// The lease is used no more, and the request goes out.
    pub(crate) fn give(world: &mut World, index: usize, slot: usize) {
        let member = &mut world.members[index];
        member.usable &= !bit(slot);
        member.granted &= !bit(slot);
        // A read of the root that began under this lease does not count for a later one.
        member.root_read = member.root_read.map(|(root, held)| (root, held & !bit(slot)));
        member.gift = Some(slot as u8);
    }

    /// The request arrives at the table, and the member hears of it.
    pub(crate) fn gift_arrives(&self, world: &mut World, index: usize) -> Result<(), String> {
        let slot = world.members[index].gift.take().expect("a step of a gift");
        if !world.is_incarnation(index) {
            learn_break(world, index);
            return Ok(());
        }
        self.give_at_table(world, index, slot)
    }

    fn give_at_table(&self, world: &mut World, index: usize, slot: u8) -> Result<(), String> {
        let given = change_arena(world, index, slot as usize, ArenaChange::Give);
        // A member that is told that it holds no such lease just looks again. With all rules in force it never is.
        match self.bug {
            Some(_) => Ok(()),
            None => given,
        }
    }

    /// The member gives the request up: it happened, or may come late.
    pub(crate) fn lose_gift(&self, world: &mut World, index: usize, happened: bool) -> Result<(), String> {
        world.spent.losses += 1;
        let slot = world.members[index].gift.take().expect("a step of a gift");
        world.members[index].gift_in_doubt = Some(slot);
        if !happened {
            world.members[index].late_gift = Some(slot);
        } else if world.is_incarnation(index) {
            self.give_at_table(world, index, slot)?;
        }
        Ok(())
    }

    /// A request that was given up arrives: nothing it is conditional on has changed, otherwise it would be gone.
    pub(crate) fn late_gift_arrives(&self, world: &mut World, index: usize) -> Result<(), String> {
        let slot = world.members[index].late_gift.take().expect("a step of a gift");
        self.give_at_table(world, index, slot)
    }

    /// What became of a gift in doubt: after a beat, so that it will not happen later.
    pub(crate) fn settle_gift(&self, world: &mut World, index: usize) {
        let slot = world.members[index]
            .gift_in_doubt
            .take()
            .expect("a step of a doubt");
        if !world.is_incarnation(index) {
            learn_break(world, index);
            return;
        }
        if !self.is(Bug::GiftInDoubtWithoutFence) {
            self.beat(world, index);
        }
        self.reconcile_gift(world, index, slot);
    }

    /// A beat has to be sent while a gift is under way: the gift is given up, and looked at after the beat.
    pub(crate) fn beat_before_gift(&self, world: &mut World, index: usize) {
        let Some(slot) = world.members[index].gift.take() else {
            return;
        };
        if self.is(Bug::GiftWithoutOwnRecord) {
            world.members[index].late_gift = Some(slot);
        }
        self.reconcile_gift(world, index, slot);
    }

    /// What was not given may be used again after the next read of the root.
    fn reconcile_gift(&self, world: &mut World, index: usize, slot: u8) {
        if world.holder(slot as usize) == Some(index) {
            self.granted(world, index, slot as usize);
        }
    }

    /// A member's record was written, by itself or by who broke it: what it gave up and is still under way does nothing.
    pub(crate) fn record_written(&self, world: &mut World, index: usize) {
        if !self.is(Bug::GiftWithoutOwnRecord) {
            world.members[index].late_gift = None;
        }
    }
}

/// An arena was written: gifts that were sent on what it was before do nothing.
pub(crate) fn arena_written(world: &mut World, slot: usize) {
    for index in 0..MEMBERS {
        let late = &mut world.members[index].late_gift;
        *late = late.filter(|late| arena_of(*late as usize) != arena_of(slot));
    }
}
