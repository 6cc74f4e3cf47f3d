//! Effects of steps: on the table by the rules of `firn-anchor`, in the members by the rules of the protocol.

use crate::{
    content::{EACH, History, INODES, Kind, MEMBERS, Operation, Root, arena_of, number_of, range_of},
    gift::arena_written,
    protocol::Protocol,
    rules::Bug,
    step::{Act, Step},
    world::{BREAKS, LAPSES, Phase, Request, Stage, Unstable, Watch, World, bit, is_below, parents},
};
use firn_anchor::{ArenaChange, MemberChange, MemberRecord};
use firn_format::WriterId;

impl Protocol {
    pub(crate) fn act(&self, world: &mut World, Step { member, act }: Step) -> Result<(), String> {
        let index = member as usize;
        match act {
            Act::Begin(kind, first, second) => begin(world, index, (kind, first, second)),
            Act::Pin => {
                let slot = self.needed(world, index);
                world.members[index].pins |= bit(slot);
            }
            Act::Take => self.change_needed(world, index, ArenaChange::Take)?,
            Act::Want => self.change_needed(world, index, ArenaChange::Want)?,
            Act::Look => {
                let slot = self.needed(world, index);
                self.granted(world, index, slot);
            }
            Act::SeeAbsent => {
                world.members[index].saw_absent = Some(self.needed(world, index) as u8);
            }
            Act::TakeFromAbsent => self.take_from_absent(world, index)?,
            Act::TakeFromNobody => self.take_from_nobody(world, index)?,
            Act::Join => world.members[index].phase = Phase::Down,
            Act::Break => self.break_holder(world, index)?,
            Act::ReadRoot => {
                let head = world.head;
                let member = &mut world.members[index];
                member.root_read = Some((head, member.granted));
            }
            Act::Adopt => self.adopt(world, index),
            Act::Execute => self.execute(world, index),
            Act::ClientCommit => self.client_commit(world, index),
            Act::Send => self.send(world, index)?,
            Act::Deliver => {
                let request = world.members[index].request.expect("a step of a request");
                let stage = self.deliver(world, index, &request)?;
                world.members[index].request = Some(Request { stage, ..request });
            }
            Act::DeliverLate => {
                let request = world.members[index].delayed.take().expect("a step of a request");
                self.deliver(world, index, &request)?;
            }
            Act::Reply => reply(world, index),
            Act::Lose => {
                world.spent.losses += 1;
                let member = &mut world.members[index];
                let request = member.request.take().expect("a step of a request");
                member.doubt = Some((request.commit, request.operations));
                member.delayed = (request.stage == Stage::Sent).then_some(request);
            }
            Act::Resolve => self.resolve(world, index)?,
            Act::Give(slot) => Self::give(world, index, slot as usize),
            Act::Return(slot) => {
                world.spent.returns += 1;
                Self::give(world, index, slot as usize);
            }
            Act::GiftArrives => self.gift_arrives(world, index)?,
            Act::LoseGift(happened) => self.lose_gift(world, index, happened)?,
            Act::LateGiftArrives => self.late_gift_arrives(world, index)?,
            Act::SettleGift => self.settle_gift(world, index),
            Act::Leave => {
                world.spent.departures += 1;
                let incarnation = incarnation(world, index);
                if !world.is_incarnation(index) {
                    learn_break(world, index);
                    return Ok(());
                }
                world.change_record(index, MemberChange::Leave { incarnation })?;
                self.record_written(world, index);
                forget(world, index);
                world.members[index].phase = Phase::Away;
            }
            Act::CutOff(has_late_beat) => {
                world.spent.partitions += 1;
                world.members[index].is_connected = false;
                world.members[index].late_beat = has_late_beat.then_some(0);
            }
            Act::BeatReply => {
                let member = &mut world.members[index];
                let sent = member.late_beat.take().expect("a step of a heartbeat");
                member.beat_age = match self.is(Bug::BeatCountsFromReply) {
                    true => 0,
                    false => member.beat_age.min(sent),
                };
            }
            Act::Reconnect => {
                world.members[index].is_connected = true;
                if world.members[index].phase.runs() {
                    self.beat(world, index);
                }
            }
            Act::Crash => crash(world, index),
            Act::Start => self.start(world, index)?,
            Act::Ask => {
                let held = world.held(index);
                let member = &mut world.members[index];
                member.usable = held;
                member.phase = match (member.phase, self.is(Bug::ArenasBeforePresence)) {
                    (Phase::Asking { was_broken }, false) => Phase::Reading { was_broken },
                    (phase, _) => Phase::Asking {
                        was_broken: phase == Phase::Broken,
                    },
                };
            }
            Act::Serve => self.serve(world, index)?,
            Act::Tick => self.tick(world),
        }
        Ok(())
    }

    /// What follows from every step: who waits begins to watch, and a lease that changed hands is watched anew.
    pub(crate) fn settle(&self, world: &mut World) {
        for index in 0..MEMBERS {
            let waits = self.waits_for(world, index);
            let member = &mut world.members[index];
            if member.saw_absent.map(usize::from) != waits.map(|(_, slot)| slot) {
                member.saw_absent = None;
            }
            let watched = member
                .watch
                .map(|watch| (watch.holder as usize, watch.slot as usize));
            let Some((holder, slot)) = waits else {
                member.watch = None;
                continue;
            };
            if !world.waits(index, slot) {
                world.members[index].watch = None;
            } else if watched != waits {
                world.members[index].watch = Some(Watch {
                    holder: holder as u8,
                    slot: slot as u8,
                    silent: 0,
                });
            }
        }
    }

    /// For which lease of which other member the operation at hand waits.
    fn waits_for(&self, world: &World, index: usize) -> Option<(usize, usize)> {
        let member = &world.members[index];
        let is_waiting = member.phase == Phase::Up
            && member.is_connected
            && member.current != 0
            && member.unstable == Unstable::None;
        if !is_waiting {
            return None;
        }
        let needs = self.needs(world.operation(member.current));
        let slot = world.next_needed(index, &needs)?;
        let holder = world.holder(slot).filter(|holder| *holder != index)?;
        Some((holder, slot))
    }

    fn needed(&self, world: &World, index: usize) -> usize {
        let needs = self.needs(world.operation(world.members[index].current));
        world
            .next_needed(index, &needs)
            .expect("a step of an operation that needs something")
    }

    fn change_needed(&self, world: &mut World, index: usize, change: ArenaChange) -> Result<(), String> {
        let slot = self.needed(world, index);
        change_arena(world, index, slot, change)?;
        if change == ArenaChange::Take {
            self.granted(world, index, slot);
        }
        Ok(())
    }

    pub(crate) fn granted(&self, world: &mut World, index: usize, slot: usize) {
        let member = &mut world.members[index];
        match self.is(Bug::UseBeforeAdoption) {
            true => member.usable |= bit(slot),
            false => member.granted |= bit(slot),
        }
    }

    fn take_from_absent(&self, world: &mut World, index: usize) -> Result<(), String> {
        let slot = self.needed(world, index);
        let holder = world.holder(slot).expect("a step about a holder");
        // The transaction is on the version of the record that was read, hence on what stands there now; without that, on what was seen.
        let record = match self.is(Bug::TakeOnAnyVersion) {
            true => MemberRecord::default(),
            false => world.records[holder].clone(),
        };
        let arena = &mut world.arenas[arena_of(slot)];
        *arena = arena
            .taken_from_absent(range_of(slot), number_of(index), (number_of(holder), &record))
            .map_err(|why| why.to_string())?;
        arena_written(world, slot);
        self.granted(world, index, slot);
        Ok(())
    }

    /// The transaction is on the absence of the record, hence on what stands there now: without that a step of its own saw it before.
    fn take_from_nobody(&self, world: &mut World, index: usize) -> Result<(), String> {
        let slot = self.needed(world, index);
        let arena = &mut world.arenas[arena_of(slot)];
        *arena = arena
            .taken_from_nobody(range_of(slot), number_of(index))
            .map_err(|why| why.to_string())?;
        arena_written(world, slot);
        self.granted(world, index, slot);
        Ok(())
    }

    fn break_holder(&self, world: &mut World, index: usize) -> Result<(), String> {
        let slot = self.needed(world, index);
        let holder = world.holder(slot).expect("a step about a holder");
        let silent = (number_of(holder), &world.records[holder]);
        let (arena, record) = world.arenas[arena_of(slot)]
            .broken(range_of(slot), number_of(index), silent)
            .map_err(|why| why.to_string())?;
        world.arenas[arena_of(slot)] = arena;
        world.records[holder] = record;
        arena_written(world, slot);
        self.record_written(world, holder);
        if !self.is(Bug::BreakWithoutRetaining) {
            world.retained[holder].get_or_insert(world.head);
        }
        self.granted(world, index, slot);
        Ok(())
    }

    fn adopt(&self, world: &mut World, index: usize) {
        let (root, held) = world.members[index]
            .root_read
            .take()
            .expect("a step of a root read");
        if self.is(Bug::RebaseWithoutAdoption) && world.members[index].must_adopt {
            world.members[index].base.version = root.version;
        } else {
            world.adopt(index, root);
        }
        let member = &mut world.members[index];
        member.must_adopt = false;
        let adopted = match self.is(Bug::RootReadBeforeLease) {
            true => member.granted,
            false => member.granted & held,
        };
        member.granted &= !adopted;
        member.usable |= adopted;
    }

    fn execute(&self, world: &mut World, index: usize) {
        let number = world.members[index].current;
        let operation = *world.operation(number);
        let shown = world.members[index].view;
        let would_be_circle = operation.kind == Kind::Move && {
            let parents = parents(shown, &world.operations);
            is_below(&parents, operation.second as usize, operation.first as usize)
        };
        if would_be_circle {
            // Refused, as on any file system.
            world.members[index].current = 0;
            world.members[index].pins = 0;
            return;
        }
        let mut built_on = [History::default(); 2];
        for (place, inode) in operation.changes().enumerate() {
            let before = shown[inode];
            if !world.has_changes(index, inode) {
                world.members[index].ground[inode] = before;
            }
            built_on[place] = of_others(world, before, index);
            world.members[index].view[inode] = before.with(number);
        }
        world.operations[number as usize - 1] = Some(Operation {
            built_on,
            ..operation
        });
        let member = &mut world.members[index];
        member.journal = member.journal.with(number);
        member.pins = 0;
        if operation.kind == Kind::Unstable {
            member.unstable = Unstable::Written;
        } else {
            member.current = 0;
            world.acknowledged |= 1 << number;
        }
    }

    fn client_commit(&self, world: &mut World, index: usize) {
        let member = &world.members[index];
        let number = member.current;
        let is_same_verifier = match member.unstable {
            Unstable::None => unreachable!("a step of an unstable write"),
            Unstable::Written => true,
            Unstable::Crashed => false,
            Unstable::Broken => self.is(Bug::VerifierKept),
        };
        // Data that was published before the verifier changed is sent once more to no effect.
        let is_durable = is_same_verifier || world.has_done(&world.head, number);
        let member = &mut world.members[index];
        member.unstable = Unstable::None;
        if is_durable {
            member.current = 0;
            world.acknowledged |= 1 << number;
        }
    }

    fn send(&self, world: &mut World, index: usize) -> Result<(), String> {
        let mut leaves = world.members[index].base.leaves;
        for (inode, leaf) in leaves.iter_mut().enumerate() {
            if !world.has_changes(index, inode) {
                if self.is(Bug::RebaseWithoutAdoption) {
                    *leaf = world.members[index].view[inode];
                }
                continue;
            }
            let member = &world.members[index];
            if *leaf != member.ground[inode] && !self.is(Bug::NoLeafCheck) {
                return Err(format!(
                    "a member that was always heard, or has served since, finds inode {inode} changed by another and would have to salvage what it acknowledged"
                ));
            }
            *leaf = member.view[inode];
        }
        let member = &mut world.members[index];
        member.commits += 1;
        member.request = Some(Request {
            commit: member.commits,
            incarnation: member.incarnation,
            on_version: member.base.version,
            leaves,
            operations: member.journal,
            stage: Stage::Sent,
        });
        Ok(())
    }

    fn resolve(&self, world: &mut World, index: usize) -> Result<(), String> {
        let (commit, operations) = world.members[index].doubt.take().expect("a step of a doubt");
        if !world.is_incarnation(index) {
            learn_break(world, index);
            return Ok(());
        }
        if !self.is(Bug::DoubtWithoutFence) {
            self.beat(world, index);
        }
        let happened = match self.is(Bug::CommitIdOnlyInRoot) {
            true => world.head.commit == (index as u8, commit),
            false => world.records[index].records_commit(&commit_id(index, commit)),
        };
        if happened {
            committed(world, index, operations);
        }
        must_adopt(world, index);
        Ok(())
    }

    /// A heartbeat that is acknowledged at once, or says that the member was broken. It is a write of the record, on which a delayed commit is
    /// conditional.
    pub(crate) fn beat(&self, world: &mut World, index: usize) {
        if !world.is_incarnation(index) {
            learn_break(world, index);
            return;
        }
        self.sign_of_life(world, index);
        self.record_written(world, index);
        self.beat_before_gift(world, index);
        let member = &mut world.members[index];
        member.beat_age = 0;
        member.late_beat = None;
        member.delayed = None;
    }

    pub(crate) fn sign_of_life(&self, world: &mut World, of: usize) {
        for member in &mut world.members {
            if let Some(watch) = &mut member.watch {
                let is_decided = self.is(Bug::BreakOnAnyVersion) && watch.silent >= BREAKS;
                if watch.holder as usize == of && !is_decided {
                    watch.silent = 0;
                }
            }
        }
    }

    fn start(&self, world: &mut World, index: usize) -> Result<(), String> {
        let is_return = world.records[index].is_away;
        let was_broken = world.records[index].incarnation.is_none();
        let change = match is_return {
            true => MemberChange::Return {
                incarnation: incarnation(world, index),
            },
            false => {
                world.members[index].incarnation += 1;
                MemberChange::Start {
                    incarnation: incarnation(world, index),
                }
            }
        };
        world.change_record(index, change)?;
        self.record_written(world, index);
        self.sign_of_life(world, index);
        let member = &mut world.members[index];
        member.delayed = None;
        member.phase = match self.is(Bug::ArenasBeforePresence) {
            false => Phase::Asking { was_broken },
            true => Phase::Reading { was_broken },
        };
        Ok(())
    }

    fn tick(&self, world: &mut World) {
        for index in 0..MEMBERS {
            if world.is_heard(index) {
                self.beat(world, index);
            } else if world.members[index].phase.runs() {
                let member = &mut world.members[index];
                member.beat_age = (member.beat_age + 1).min(LAPSES);
                member.late_beat = member.late_beat.map(|age| (age + 1).min(LAPSES));
            }
        }
        for index in 0..MEMBERS {
            let Some(watch) = world.members[index].watch else {
                continue;
            };
            let is_heard = world.is_heard(watch.holder as usize);
            let is_decided = self.is(Bug::BreakOnAnyVersion) && watch.silent >= BREAKS;
            let silent = match is_heard && !is_decided {
                true => 0,
                false => (watch.silent + 1).min(BREAKS),
            };
            world.members[index].watch = Some(Watch { silent, ..watch });
        }
    }
}

/// The operations of others.
pub(crate) fn of_others(world: &World, history: History, member: usize) -> History {
    history.only(|number| world.operation(number).member as usize != member)
}

fn begin(world: &mut World, index: usize, (kind, first, second): (Kind, u8, u8)) {
    let place = index * EACH + world.begun(index);
    world.operations[place] = Some(Operation {
        kind,
        member: index as u8,
        first,
        second,
        built_on: [History::default(); 2],
    });
    world.members[index].current = place as u8 + 1;
}

pub(crate) fn change_arena(
    world: &mut World,
    index: usize,
    slot: usize,
    change: ArenaChange,
) -> Result<(), String> {
    let arena = &mut world.arenas[arena_of(slot)];
    *arena = arena
        .changed(change, range_of(slot), number_of(index))
        .map_err(|why| why.to_string())?;
    arena_written(world, slot);
    Ok(())
}

fn reply(world: &mut World, index: usize) {
    let request = world.members[index].request.take().expect("a step of a request");
    match request.stage {
        Stage::Sent => unreachable!("a reply follows a delivery"),
        Stage::Done => {
            let root = Root {
                version: request.on_version + 1,
                commit: (index as u8, request.commit),
                leaves: request.leaves,
            };
            committed(world, index, request.operations);
            world.adopt(index, root);
        }
        Stage::LostRace => must_adopt(world, index),
        Stage::Refused => learn_break(world, index),
    }
}

/// The commit of these operations is known to have happened.
pub(crate) fn committed(world: &mut World, index: usize, operations: History) {
    for number in operations.iter() {
        world.published |= 1 << number;
    }
    let before = world.members[index].journal;
    world.members[index].journal = before.only(|number| !operations.has(number));
    for inode in 0..INODES {
        let published =
            operations.only(|number| world.operation(number).changes().any(|changed| changed == inode));
        let member = &mut world.members[index];
        for number in published.iter() {
            member.ground[inode] = member.ground[inode].with(number);
        }
    }
}

/// The next root to be adopted is one that is read from now on: an older one may lack the own commit.
fn must_adopt(world: &mut World, index: usize) {
    world.members[index].must_adopt = true;
    world.members[index].root_read = None;
}

pub(crate) fn incarnation(world: &World, index: usize) -> WriterId {
    WriterId(u64::from(world.members[index].incarnation))
}

pub(crate) fn commit_id(member: usize, commit: u8) -> [u8; 16] {
    let mut id = [0; 16];
    id[0] = member as u8;
    id[1] = commit;
    id
}

/// What is in memory only goes.
fn forget(world: &mut World, index: usize) {
    let member = &mut world.members[index];
    member.usable = 0;
    member.granted = 0;
    member.pins = 0;
    member.root_read = None;
    member.must_adopt = false;
    member.doubt = None;
    member.gift_in_doubt = None;
    member.base = Root::default();
    member.view = Default::default();
    member.beat_age = 0;
    member.late_beat = None;
    member.watch = None;
}

fn lose_unstable(world: &mut World, index: usize, how: Unstable) {
    let member = &mut world.members[index];
    if member.unstable == Unstable::Written {
        let number = member.current;
        member.journal = member.journal.only(|other| other != number);
        member.unstable = how;
    }
}

pub(crate) fn learn_break(world: &mut World, index: usize) {
    forget(world, index);
    lose_unstable(world, index, Unstable::Broken);
    let member = &mut world.members[index];
    member.request = None;
    member.delayed = None;
    member.gift = None;
    member.phase = Phase::Broken;
}

fn crash(world: &mut World, index: usize) {
    world.spent.crashes += 1;
    forget(world, index);
    lose_unstable(world, index, Unstable::Crashed);
    let member = &mut world.members[index];
    let sent = member
        .request
        .take()
        .filter(|request| request.stage == Stage::Sent);
    member.delayed = sent.or(member.delayed);
    member.late_gift = member.gift.take().or(member.late_gift);
    member.is_connected = true;
    member.phase = Phase::Down;
}
