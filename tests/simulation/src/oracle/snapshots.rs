//! The judge's record of snapshots: at which change each was made, and what became of it.

use super::{Oracle, Stop, read_model};
use crate::tree::Tree;
use std::collections::BTreeMap;

/// Something that happened to a snapshot with a change of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Created(u64),
    Deleted(u64),
}

/// A snapshot as it was found: its number and its tree.
pub type Found = (u64, Tree);

impl Oracle {
    /// The engine made a snapshot with the newest change.
    pub fn snapshot_created(&mut self, id: u64) {
        let change = self.newest();
        self.note(|| format!("snapshot {id:016x} is made with change {change}"));
        self.snapshots.push((change, Event::Created(id)));
    }

    /// The engine deleted a snapshot with the newest change.
    pub fn snapshot_deleted(&mut self, id: u64) {
        let change = self.newest();
        self.note(|| format!("snapshot {id:016x} is deleted with change {change}"));
        self.snapshots.push((change, Event::Deleted(id)));
    }

    /// Making a snapshot was acknowledged: it is in the cloud, with all before it.
    pub fn snapshot_acknowledged(&mut self, id: u64) {
        match self.made_with(id) {
            Some(change) => self.committed(change),
            None => self.fail(format!("snapshot {id:016x} was acknowledged and never made")),
        }
    }

    /// Deleting a snapshot was acknowledged.
    pub fn deletion_acknowledged(&mut self, id: u64) {
        let gone = |(_, event): &&(usize, Event)| *event == Event::Deleted(id);
        match self.snapshots.iter().find(gone) {
            Some((change, _)) => self.floor = self.floor.max(*change),
            None => self.fail(format!(
                "the end of snapshot {id:016x} was acknowledged and did not come"
            )),
        }
    }

    /// The snapshots after the first `kept` changes, with the change at which each was made.
    pub(super) fn snapshots_after(&self, kept: usize) -> BTreeMap<u64, usize> {
        let mut there = BTreeMap::new();
        for (change, event) in self.snapshots.iter().filter(|(change, _)| *change <= kept) {
            match event {
                Event::Created(id) => {
                    there.insert(*id, *change);
                }
                Event::Deleted(id) => {
                    there.remove(id);
                }
            }
        }
        there
    }

    /// Whether these are the snapshots after the first `kept` changes.
    pub(super) fn are_snapshots_after(&self, kept: usize, found: Option<&[Found]>) -> bool {
        let Some(found) = found else { return true };
        let expected = self.snapshots_after(kept);
        found.len() == expected.len() && found.iter().all(|(id, _)| expected.contains_key(id))
    }

    /// A restore of `original` to a name in the root directory was acknowledged, whose calls were those of `client` since the
    /// change `before`. If nobody else changed anything meanwhile, the copy is as its original was.
    pub fn restored(&mut self, before: usize, client: usize, original: &Tree, target: &str) {
        if self.changes[before.min(self.changes.len())..]
            .iter()
            .any(|change| change.client != Some(client))
        {
            return;
        }
        *self.counts.entry("restores compared").or_default() += 1;
        let path = format!("/{target}").into_bytes();
        let wrong = original.copied_wrong(&read_model(&self.model).below(&path), 12);
        if !wrong.is_empty() {
            self.fail(format!(
                "{target} is not as its original was:\n    {}",
                wrong.join("\n    ")
            ));
        }
    }

    /// Each snapshot shows the state at which it was made, whatever happened since.
    pub(super) fn check_snapshots(&mut self, stop: Stop, found: Option<&[Found]>) {
        for (id, tree) in found.unwrap_or_default() {
            self.check_snapshot(*id, tree, &format!("after {stop:?}"));
        }
    }

    /// The change with which a snapshot was made.
    pub(super) fn made_with(&self, id: u64) -> Option<usize> {
        let made = |(_, event): &&(usize, Event)| *event == Event::Created(id);
        self.snapshots.iter().find(made).map(|(change, _)| *change)
    }

    /// What a snapshot must show.
    pub fn snapshot_tree(&self, id: u64) -> Option<Tree> {
        Some(read_model(&self.candidate(self.made_with(id)?)))
    }

    /// A snapshot that was read must show the state at which it was made.
    pub fn check_snapshot(&mut self, id: u64, tree: &Tree, when: &str) {
        let Some(change) = self.made_with(id) else {
            return self.fail(format!("{when}: snapshot {id:016x} was never made"));
        };
        let expected = read_model(&self.candidate(change));
        *self.counts.entry("snapshots read").or_default() += 1;
        if !tree.equals(&expected) {
            let differences = tree.differences(&expected, 12).join("\n    ");
            self.fail(format!(
                "{when}: snapshot {id:016x} is not what was there at change {change}:\n    {differences}"
            ));
        }
    }
}
