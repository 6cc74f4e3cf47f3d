//! The node table: which files the kernel knows, under which numbers.
//!
//! A node's number is drawn at its first lookup and means one file until the kernel forgets it as often as it looked it up.
//! Numbers are not inode numbers since volume and snapshots use the same ones. A node also remembers up to which change its
//! pages in the kernel are right, so that an open knows whether they may stay.
//!
//! The root has the kernel's own number 1, and while it is mounted under [another](Nodes::enter_root) that one.
//!
//! Its size is that of the kernel's own cache of inodes, which the kernel shrinks when memory is wanted.

use crate::abi::ROOT_NODE;
use firn_vfs::{Attributes, ChangedAttributes, FileHandle};
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

struct Node {
    handle: FileHandle,
    lookups: u64,
    /// The change counter up to which cached pages are right.
    cached_change: Option<u64>,
    /// What a directory was when its name went; it may still be open.
    removed: Option<Box<Attributes>>,
}

struct State {
    nodes: HashMap<u64, Node>,
    numbers: HashMap<FileHandle, u64>,
    next: u64,
}

/// See the module.
pub(crate) struct Nodes(Mutex<State>);

impl Nodes {
    /// Only the root is known, and never forgotten.
    pub(crate) fn new(root: FileHandle) -> Self {
        let node = Node {
            handle: root,
            lookups: 1,
            cached_change: None,
            removed: None,
        };
        Self(Mutex::new(State {
            nodes: HashMap::from([(ROOT_NODE, node)]),
            numbers: HashMap::from([(root, ROOT_NODE)]),
            next: ROOT_NODE + 1,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no panic under this lock")
    }

    /// The file of a node.
    pub(crate) fn handle(&self, node: u64) -> Option<FileHandle> {
        self.state().nodes.get(&node).map(|node| node.handle)
    }

    /// The node of a file, if the kernel knows it.
    pub(crate) fn number(&self, handle: FileHandle) -> Option<u64> {
        self.state().numbers.get(&handle).copied()
    }

    /// Counts one lookup of a file by the kernel.
    pub(crate) fn look_up(&self, handle: FileHandle) -> u64 {
        let mut state = self.state();
        if let Some(number) = state.numbers.get(&handle).copied() {
            if let Some(node) = state.nodes.get_mut(&number) {
                node.lookups += 1;
            }
            return number;
        }
        let number = state.next;
        state.next += 1;
        let node = Node {
            handle,
            lookups: 1,
            cached_change: None,
            removed: None,
        };
        state.nodes.insert(number, node);
        state.numbers.insert(handle, number);
        number
    }

    /// Counts one lookup of the root under a number that is not the kernel's own; changes of the root are told to that one from now on.
    pub(crate) fn enter_root(&self) -> u64 {
        let mut state = self.state();
        let handle = state.nodes[&ROOT_NODE].handle;
        if state.numbers.get(&handle) == Some(&ROOT_NODE) {
            state.numbers.remove(&handle);
        }
        drop(state);
        self.look_up(handle)
    }

    /// Takes `lookups` back; the kernel no longer knows a node without one.
    pub(crate) fn forget(&self, number: u64, lookups: u64) {
        if number == ROOT_NODE {
            return;
        }
        let mut state = self.state();
        let Some(node) = state.nodes.get_mut(&number) else {
            return;
        };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            let handle = node.handle;
            state.nodes.remove(&number);
            state.numbers.remove(&handle);
            if state.nodes[&ROOT_NODE].handle == handle {
                state.numbers.insert(handle, ROOT_NODE);
            }
        }
    }

    /// At an open: whether the pages of the kernel are those of change `change`. From now on they are.
    pub(crate) fn pages_are_of(&self, number: u64, change: u64) -> bool {
        let mut state = self.state();
        let node = state.nodes.get_mut(&number);
        node.is_some_and(|node| node.cached_change.replace(change) == Some(change))
    }

    /// No page of the kernel is known to be right: after a takeover a counter of changes may stand for two different ones.
    pub(crate) fn forget_pages(&self) {
        for node in self.state().nodes.values_mut() {
            node.cached_change = None;
        }
    }

    /// A change of ours, which the kernel's pages have already.
    pub(crate) fn changed_here(&self, number: u64, changed: &ChangedAttributes) {
        let mut state = self.state();
        if let Some(node) = state.nodes.get_mut(&number)
            && let Some(before) = &changed.before
            && node.cached_change == Some(before.change)
        {
            node.cached_change = Some(changed.after.change);
        }
    }

    /// The name of a directory went, by this mount: who has it open may still ask what it is, until the kernel forgets it.
    pub(crate) fn remove_directory(&self, handle: FileHandle, attributes: Attributes) {
        let mut state = self.state();
        if let Some(number) = state.numbers.get(&handle).copied()
            && let Some(node) = state.nodes.get_mut(&number)
        {
            node.removed = Some(Box::new(Attributes {
                links: 0,
                ..attributes
            }));
        }
    }

    /// What a directory without a name was.
    pub(crate) fn removed(&self, number: u64) -> Option<Attributes> {
        let state = self.state();
        state.nodes.get(&number)?.removed.as_deref().cloned()
    }

    /// All numbers.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.state().nodes.keys().copied().collect()
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.state().nodes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(inode: u64) -> FileHandle {
        FileHandle {
            file_system: 1,
            inode,
        }
    }

    #[test]
    fn a_node_is_known_until_it_is_forgotten_as_often_as_it_was_looked_up() {
        let nodes = Nodes::new(file(1));
        let node = nodes.look_up(file(2));
        assert_eq!(nodes.look_up(file(2)), node);
        nodes.forget(node, 1);
        assert_eq!(nodes.handle(node), Some(file(2)));
        nodes.forget(node, 1);
        assert_eq!((nodes.handle(node), nodes.number(file(2))), (None, None));
        assert_ne!(nodes.look_up(file(2)), node, "numbers are not used again");
        nodes.forget(ROOT_NODE, 5);
        nodes.forget(99, 5);
        assert_eq!(nodes.handle(ROOT_NODE), Some(file(1)));
    }

    #[test]
    fn the_root_goes_by_the_number_that_it_was_entered_by_until_that_is_forgotten() {
        let nodes = Nodes::new(file(1));
        let entered = nodes.enter_root();
        assert_ne!(entered, ROOT_NODE);
        assert_eq!(nodes.enter_root(), entered);
        assert_eq!(
            (nodes.handle(entered), nodes.number(file(1))),
            (Some(file(1)), Some(entered))
        );
        assert_eq!(nodes.handle(ROOT_NODE), Some(file(1)));
        nodes.forget(entered, 2);
        assert_eq!(
            (nodes.handle(entered), nodes.number(file(1))),
            (None, Some(ROOT_NODE))
        );
    }

    #[test]
    fn pages_may_stay_when_nothing_but_our_own_writes_came_between() {
        let nodes = Nodes::new(file(1));
        let node = nodes.look_up(file(2));
        assert!(!nodes.pages_are_of(node, 4), "the first open");
        assert!(nodes.pages_are_of(node, 4));
        assert!(!nodes.pages_are_of(node, 5), "somebody else wrote");
        assert!(nodes.pages_are_of(node, 5));
        nodes.forget_pages();
        assert!(!nodes.pages_are_of(node, 5), "nobody knows whose change it is");
    }
}
