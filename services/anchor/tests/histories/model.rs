//! The executable model: which states of a volume's tuple may follow each other, and what each caller was told of its commits.
//!
//! It sees every state that the tuple had, in order, so that it knows what happened without asking the service.

use firn_anchor::{HandoverRecord, OwnerId, Root, VolumeTuple};
use firn_format::OwnershipEpoch;
use firn_table::ItemKey;
use std::collections::{BTreeMap, BTreeSet};

/// What a caller was told of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    Committed,
    Never,
}

/// What the histories went through: shows that they are no idle ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub commits: u64,
    pub in_doubt: u64,
    pub never: u64,
    pub takeovers: u64,
    pub refused: u64,
    pub drains: u64,
    pub crashes: u64,
    pub wants: u64,
    pub beats: u64,
}

#[derive(Default)]
pub struct Model {
    tuples: BTreeMap<ItemKey, VolumeTuple>,
    handovers: BTreeMap<ItemKey, HandoverRecord>,
    committed: BTreeSet<[u8; 16]>,
    told: BTreeMap<[u8; 16], Told>,
    handed_out: BTreeSet<(ItemKey, OwnershipEpoch)>,
    violation: Option<String>,
    pub counts: Counts,
}

impl Model {
    pub fn violate(&mut self, what: impl Into<String>) {
        self.violation.get_or_insert(what.into());
    }

    /// Commits that happened: each call that was accepted, once.
    pub fn commits(&self) -> u64 {
        self.committed.len() as u64
    }

    /// The tuple became this.
    pub fn observe(&mut self, key: &ItemKey, after: VolumeTuple) {
        if let Some(before) = self.tuples.insert(key.clone(), after.clone())
            && let Err(what) = self.step(&before, &after)
        {
            self.violate(format!("{what}:\n  {before:?}\n  {after:?}"));
        }
    }

    fn step(&mut self, before: &VolumeTuple, after: &VolumeTuple) -> Result<(), &'static str> {
        let ensure = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
        if after.grant != before.grant {
            let is_next = before.epoch.0.checked_add(1) == Some(after.epoch.0);
            ensure(is_next, "ownership was given and the epoch did not rise by one")?;
            ensure(after.owner.is_some(), "ownership was given to nobody")?;
            ensure(
                after.root == before.root,
                "a giving of ownership changed the root",
            )?;
            return ensure(after.commits == before.commits, "it was counted as a commit");
        }
        ensure(after.epoch == before.epoch, "the epoch changed under an owner")?;
        if after.root == before.root {
            ensure(
                after.commits == before.commits,
                "a commit was counted that was none",
            )?;
            let drained = after.owner.is_none() && after.drained;
            return ensure(after.owner == before.owner || drained, "the owner changed");
        }
        let root = after.root.as_ref().ok_or("the root vanished")?;
        let owner = before
            .owner
            .as_ref()
            .ok_or("a root was committed without an owner")?;
        let is_owners = root.owner == owner.id && root.epoch == before.epoch;
        ensure(is_owners, "a root was committed by another than the owner")?;
        let rises = before.root.as_ref().is_none_or(|old| root.version > old.version);
        ensure(rises, "a version did not rise")?;
        ensure(self.committed.insert(root.commit_id), "a commit happened twice")?;
        ensure(
            after.commits == before.commits + 1,
            "a commit was not counted once",
        )
    }

    /// The handover record became this.
    pub fn observe_handover(&mut self, key: &ItemKey, after: HandoverRecord) {
        let before = self
            .handovers
            .insert(key.clone(), after.clone())
            .unwrap_or_default();
        if let Err(what) = Self::handover_step(&before, &after) {
            self.violate(format!("{what}:\n  {before:?}\n  {after:?}"));
        }
    }

    fn handover_step(before: &HandoverRecord, after: &HandoverRecord) -> Result<(), &'static str> {
        let members = |record: &HandoverRecord| {
            record
                .wants
                .iter()
                .map(|want| want.member)
                .collect::<Vec<OwnerId>>()
        };
        let (old, new) = (members(before), members(after));
        if after.heartbeat != before.heartbeat {
            let beat = after.heartbeat.ok_or("a heartbeat vanished")?;
            let is_next = match before.heartbeat {
                Some(last) if last.epoch == beat.epoch => {
                    last.owner == beat.owner && beat.beats == last.beats + 1
                }
                Some(last) => beat.epoch > last.epoch && beat.beats == 1,
                None => beat.beats == 1,
            };
            let kept = match old.iter().position(|member| *member == beat.owner) {
                Some(place) => &old[place + 1..],
                None => &old[..],
            };
            return match (is_next, kept == new) {
                (false, _) => Err("a heartbeat fell or skipped"),
                (true, false) => Err("a beat changed the queue behind its owner"),
                (true, true) => Ok(()),
            };
        }
        let joined = new.len() == old.len() + 1 && new.starts_with(&old);
        let kept: Vec<_> = old
            .iter()
            .filter(|member| new.contains(member))
            .copied()
            .collect();
        let left = kept == new && new.len() + 1 == old.len();
        match joined || left || old == new {
            true => Ok(()),
            false => Err("the queue was shuffled"),
        }
    }

    /// Somebody was told that a volume is its own under this epoch.
    pub fn hand_out(&mut self, key: ItemKey, epoch: OwnershipEpoch) {
        if !self.handed_out.insert((key, epoch)) {
            self.violate(format!("epoch {epoch} was handed out twice"));
        }
    }

    /// Somebody was told what became of a commit; `None`: it is in doubt.
    pub fn tell(&mut self, root: &Root, told: Option<Told>) {
        let Some(told) = told else {
            self.counts.in_doubt += 1;
            return;
        };
        let is_there = self.committed.contains(&root.commit_id);
        match told {
            Told::Committed => self.counts.commits += 1,
            Told::Never => self.counts.never += 1,
        }
        if is_there != (told == Told::Committed) {
            self.violate(format!("{told:?} was answered to version {}", root.version));
        }
        self.told.insert(root.commit_id, told);
    }

    /// What was told must hold for ever.
    ///
    /// # Errors
    /// The first thing that was wrong.
    pub fn end(mut self) -> Result<Counts, String> {
        for (id, told) in std::mem::take(&mut self.told) {
            if self.committed.contains(&id) != (told == Told::Committed) {
                self.violate(format!("{told:?} was answered, and later it is not so"));
            }
        }
        match self.violation {
            Some(violation) => Err(violation),
            None => Ok(self.counts),
        }
    }
}
