//! Steps of the protocol: what can happen next in a world, and how it reads in a trace.

use crate::{
    content::{ASCENDING, EACH, INODES, Kind, MEMBERS, NAMES, SHAPE},
    protocol::Protocol,
    rules::Bug,
    world::{BREAKS, LAPSES, Phase, Stage, Unstable, World, bit},
};
use std::fmt;

/// One step, mostly of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whose.
    pub member: u8,
    /// What.
    pub act: Act,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A client asks for something.
    Begin(Kind, u8, u8),
    /// What the operation needs next is held and may be used: it is kept until the operation is done.
    Pin,
    /// A conditional put of the arena: what is nobody's is taken.
    Take,
    /// The holder's record is read: it is absent, or there is none (a step of its own only with the bugs).
    SeeAbsent,
    /// The lease of an absent member is taken.
    TakeFromAbsent,
    /// What is the home of no member is taken.
    TakeFromNobody,
    /// Somebody joins: there is a record.
    Join,
    /// The member joins the queue.
    Want,
    /// The lease of a silent holder is broken.
    Break,
    /// The arena is read: the lease was given to the member.
    Look,
    /// A strong read of the root.
    ReadRoot,
    /// The root that was read is taken into memory.
    Adopt,
    /// The operation is done, in memory and in the journal.
    Execute,
    /// The client sends COMMIT for its unstable write.
    ClientCommit,
    /// The checkpoint is put, and the commit sent.
    Send,
    /// The commit arrives at the table.
    Deliver,
    /// A commit that was given up arrives at the table.
    DeliverLate,
    /// The commit's reply arrives.
    Reply,
    /// The commit's reply, or the request, is lost or late.
    Lose,
    /// A commit in doubt is looked up.
    Resolve,
    /// A lease is given to who waits.
    Give(u8),
    /// A lease is given home though nobody waits.
    Return(u8),
    /// The request to give arrives at the table, and its reply at the member.
    GiftArrives,
    /// The reply of the request to give is lost; it happened, or may come late.
    LoseGift(bool),
    /// A request to give that was given up arrives at the table.
    LateGiftArrives,
    /// What became of a gift in doubt is looked up.
    SettleGift,
    /// The member leaves.
    Leave,
    /// The member is cut off; with the reply of a heartbeat under way or not.
    CutOff(bool),
    /// That reply arrives.
    BeatReply,
    /// The member reaches the table again, and gives a sign of life.
    Reconnect,
    /// Its process dies.
    Crash,
    /// It writes into its record that it is present, with a new incarnation after a crash or a break.
    Start,
    /// It asks the arenas what it holds.
    Ask,
    /// It reads the root, judges its journal, and serves.
    Serve,
    /// 20 s pass for all; who is connected gives a sign of life.
    Tick,
}

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES[self.member as usize];
        let slot = |slot: u8| match slot as usize {
            SHAPE => "the shape lease".to_owned(),
            inode => format!("inode {inode}"),
        };
        let what = match self.act {
            Act::Begin(kind, first, second) => {
                return write!(formatter, "{name}'s client asks: {kind:?} {first} {second}");
            }
            Act::Tick => return formatter.write_str("20 s pass; who is connected gives a sign of life"),
            Act::Pin => "pins what it needs next",
            Act::Take => "takes the lease, which is nobody's",
            Act::SeeAbsent => "reads that the holder is absent",
            Act::TakeFromAbsent => "takes the lease of the absent holder",
            Act::TakeFromNobody => "takes what is the home of no member",
            Act::Join => "joins the volume",
            Act::Want => "joins the queue for the lease",
            Act::Break => "breaks the silent holder",
            Act::Look => "sees that the lease was given to it",
            Act::ReadRoot => "reads the root",
            Act::Adopt => "adopts the root that it read",
            Act::Execute => "does the operation, into the journal",
            Act::ClientCommit => "has its client's COMMIT",
            Act::Send => "sends its commit",
            Act::Deliver => "has its commit arrive at the table",
            Act::DeliverLate => "has the commit that it gave up arrive at the table",
            Act::Reply => "hears what became of its commit",
            Act::Lose => "loses the reply of its commit, or the request is late",
            Act::Resolve => "looks up what became of its commit",
            Act::Give(lease) => return write!(formatter, "{name} sends a gift of {}", slot(lease)),
            Act::Return(lease) => return write!(formatter, "{name} sends a gift of {} home", slot(lease)),
            Act::GiftArrives => "has its gift arrive at the table, and hears of it",
            Act::LoseGift(false) => "gives its gift up; it may come late",
            Act::LoseGift(true) => "has its gift arrive at the table, and the reply is lost",
            Act::LateGiftArrives => "has the gift that it gave up arrive at the table",
            Act::SettleGift => "looks up what became of its gift",
            Act::Leave => "leaves: away",
            Act::CutOff(false) => "is cut off",
            Act::CutOff(true) => "is cut off; a heartbeat is done, its reply under way",
            Act::BeatReply => "hears of that heartbeat",
            Act::Reconnect => "is connected again and gives a sign of life",
            Act::Crash => "crashes",
            Act::Start => "starts: writes that it is present",
            Act::Ask => "asks the arenas what it holds",
            Act::Serve => "reads the root, judges its journal and serves",
        };
        write!(formatter, "{name} {what}")
    }
}

impl Protocol {
    /// All that can happen.
    pub(crate) fn steps_of(&self, world: &World) -> Vec<Step> {
        let mut steps = Vec::new();
        for index in 0..MEMBERS {
            let mut acts = Vec::new();
            let member = &world.members[index];
            self.network(world, index, &mut acts);
            match member.phase {
                Phase::Outside => acts.push(Act::Join),
                Phase::Up => self.up(world, index, &mut acts),
                Phase::Away => {
                    self.begin(world, index, &mut acts);
                    if member.current != 0 {
                        acts.push(self.first_of_return());
                    }
                }
                _ if !member.is_connected => {}
                Phase::Down | Phase::Broken => acts.push(self.first_of_return()),
                Phase::Asking { .. } => acts.push(match self.is(Bug::ArenasBeforePresence) {
                    false => Act::Ask,
                    true => Act::Start,
                }),
                Phase::Reading { .. } => acts.push(Act::Serve),
            }
            let member = u8::try_from(index).expect("members are few");
            steps.extend(acts.into_iter().map(|act| Step { member, act }));
        }
        let time_matters = (0..MEMBERS).any(|index| {
            let member = &world.members[index];
            let ages = !member.is_connected && member.phase.runs() && member.beat_age < LAPSES;
            let is_late = member.late_beat.is_some_and(|age| age < LAPSES);
            let watches = member.watch.is_some_and(|watch| watch.silent < BREAKS);
            let is_over = world.is_heard(index) && !world.is_incarnation(index);
            ages || is_late || watches || is_over
        });
        if time_matters {
            steps.push(Step {
                member: 0,
                act: Act::Tick,
            });
        }
        steps
    }

    fn first_of_return(&self) -> Act {
        match self.is(Bug::ArenasBeforePresence) {
            false => Act::Start,
            true => Act::Ask,
        }
    }

    fn network(&self, world: &World, index: usize, acts: &mut Vec<Act>) {
        let member = &world.members[index];
        if !member.is_connected {
            acts.push(Act::Reconnect);
        } else if member.phase.runs() && world.spent.partitions < self.bounds.partitions {
            acts.extend([Act::CutOff(false), Act::CutOff(true)]);
        }
        match member.request.map(|request| request.stage) {
            None => {}
            Some(Stage::Sent) => acts.push(Act::Deliver),
            Some(Stage::Done | Stage::LostRace | Stage::Refused) => acts.push(Act::Reply),
        }
        if member.delayed.is_some() {
            acts.push(Act::DeliverLate);
        }
        if member.gift.is_some() {
            acts.push(Act::GiftArrives);
        }
        if member.late_gift.is_some() {
            acts.push(Act::LateGiftArrives);
        }
        if member.late_beat.is_some() {
            acts.push(Act::BeatReply);
        }
    }

    fn begin(&self, world: &World, index: usize, acts: &mut Vec<Act>) {
        let begun = world.operations.iter().flatten().count();
        let is_over = begun >= self.bounds.operations || world.begun(index) >= EACH;
        if world.members[index].current != 0 || is_over {
            return;
        }
        for kind in self.bounds.kinds {
            for first in 0..INODES {
                match kind {
                    Kind::Write | Kind::Unstable | Kind::Relocate => {
                        acts.push(Act::Begin(*kind, first as u8, first as u8));
                    }
                    Kind::Pair | Kind::Move => {
                        let is_both_ways = *kind == Kind::Move || self.is(Bug::PinsInAnyOrder);
                        let seconds = (0..INODES)
                            .filter(|second| *second != first && (is_both_ways || *second > first));
                        acts.extend(seconds.map(|second| Act::Begin(*kind, first as u8, second as u8)));
                    }
                }
            }
        }
    }

    fn up(&self, world: &World, index: usize, acts: &mut Vec<Act>) {
        let member = &world.members[index];
        let (bounds, spent) = (&self.bounds, &world.spent);
        self.begin(world, index, acts);
        if member.current != 0 {
            match member.unstable {
                Unstable::None => self.operate(world, index, acts),
                Unstable::Written | Unstable::Crashed | Unstable::Broken => acts.push(Act::ClientCommit),
            }
        }
        if member.root_read.is_some() {
            acts.push(Act::Adopt);
        }
        if spent.crashes < bounds.crashes {
            acts.push(Act::Crash);
        }
        let has_request = member.request.is_some();
        if has_request && spent.losses < bounds.losses {
            acts.push(Act::Lose);
        }
        let gives = member.gift.is_some() || member.gift_in_doubt.is_some();
        if member.gift.is_some() && spent.losses < bounds.losses {
            acts.extend([Act::LoseGift(false), Act::LoseGift(true)]);
        }
        if !member.is_connected {
            return;
        }
        if member.root_read.is_none() && (member.granted != 0 || member.must_adopt) {
            acts.push(Act::ReadRoot);
        }
        let is_settled = !has_request && member.doubt.is_none() && !gives;
        if is_settled && !member.must_adopt && !member.journal.is_empty() {
            acts.push(Act::Send);
        }
        if member.doubt.is_some() {
            acts.push(Act::Resolve);
        }
        if member.gift_in_doubt.is_some() {
            acts.push(Act::SettleGift);
        }
        if is_settled {
            for slot in ASCENDING {
                self.gifts(world, index, slot, acts);
            }
        }
        let is_idle = member.current == 0 && member.journal.is_empty() && is_settled;
        if is_idle && spent.departures < bounds.departures {
            acts.push(Act::Leave);
        }
    }

    fn gifts(&self, world: &World, index: usize, slot: usize, acts: &mut Vec<Act>) {
        let member = &world.members[index];
        let is_free = member.pins & bit(slot) == 0
            && (self.is(Bug::GiveBeforePublish) || !world.has_changes(index, slot));
        if world.holder(slot) != Some(index) || !is_free {
            return;
        }
        let is_wanted = (0..MEMBERS).any(|other| world.waits(other, slot));
        let number = u8::try_from(slot).expect("slots are few");
        if is_wanted {
            acts.push(Act::Give(number));
        } else if world.spent.returns < self.bounds.returns && self.home(slot) != Some(index) {
            acts.push(Act::Return(number));
        }
    }

    /// What brings the client's operation on.
    fn operate(&self, world: &World, index: usize, acts: &mut Vec<Act>) {
        let member = &world.members[index];
        let is_valid = member.beat_age < LAPSES;
        let needs = self.needs(world.operation(member.current));
        let Some(slot) = world.next_needed(index, &needs) else {
            if is_valid {
                acts.push(Act::Execute);
            }
            return;
        };
        if member.usable & bit(slot) != 0 {
            if is_valid {
                acts.push(Act::Pin);
            }
            return;
        }
        let gives = member.gift.is_some() || member.gift_in_doubt.is_some();
        if !member.is_connected || member.granted & bit(slot) != 0 || gives {
            return;
        }
        let is_decided = self.is(Bug::TakeFromNobodyOnAnyRecord) && member.saw_absent.is_some();
        match world.holder(slot) {
            None => acts.push(Act::Take),
            Some(holder) if holder == index => acts.push(Act::Look),
            Some(holder) if is_decided && self.home(slot) == Some(holder) => acts.push(Act::TakeFromNobody),
            Some(holder) if !world.has_joined(holder) => {
                acts.push(match self.is(Bug::TakeFromNobodyOnAnyRecord) {
                    true => Act::SeeAbsent,
                    false => Act::TakeFromNobody,
                });
            }
            Some(holder) => {
                let is_absent = world.records[holder].is_absent();
                let has_seen = member.saw_absent.is_some();
                if self.is(Bug::TakeOnAnyVersion) && is_absent && !has_seen {
                    acts.push(Act::SeeAbsent);
                }
                let may_take = match self.is(Bug::TakeOnAnyVersion) {
                    true => has_seen,
                    false => is_absent,
                };
                if may_take {
                    acts.push(Act::TakeFromAbsent);
                } else if !is_absent && !world.waits(index, slot) {
                    acts.push(Act::Want);
                }
                if !is_absent && member.watch.is_some_and(|watch| watch.silent >= BREAKS) {
                    acts.push(Act::Break);
                }
            }
        }
    }
}
