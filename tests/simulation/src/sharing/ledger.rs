//! The ledger: what was changed, in order, and how much of it was committed when.

use firn_env::Monotonic;

/// Names in the root directory.
pub const NAMES: usize = 6;
/// Bytes of a file of each name that is not empty.
pub const SIZES: [usize; NAMES] = [100, 700, 5_000, 20_000, 70_000, 150_000];

/// What stands under each name: nothing, or a file that is empty (0) or full of a number.
pub type Tree = [Option<u64>; NAMES];

/// What happened to names in one instant.
#[derive(Clone, Debug)]
pub struct Change(pub Vec<(usize, Option<u64>)>);

/// A snapshot and what it holds.
#[derive(Clone, Debug)]
pub struct Kept {
    pub name: String,
    pub tree: Tree,
    pub made_at: Monotonic,
}

/// See the module.
#[derive(Default)]
pub struct Ledger {
    changes: Vec<Change>,
    published: Vec<(Monotonic, usize)>,
    pub snapshots: Vec<Kept>,
}

impl Ledger {
    /// A change that begins now: it may show before it is acknowledged.
    pub fn begin(&mut self, change: Change) {
        self.changes.push(change);
    }

    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// The last change of all.
    pub fn tree(&self) -> Tree {
        self.tree_at(self.changes.len())
    }

    /// What the first `prefix` changes make.
    pub fn tree_at(&self, prefix: usize) -> Tree {
        let mut tree = [None; NAMES];
        for (name, content) in self.changes[..prefix].iter().flat_map(|change| &change.0) {
            tree[*name] = *content;
        }
        tree
    }

    /// Everything so far is committed (level 2).
    pub fn publish(&mut self, now: Monotonic) {
        self.published.push((now, self.changes.len()));
    }

    /// How much was committed at a time.
    pub fn published_at(&self, is_before: impl Fn(Monotonic) -> bool) -> usize {
        let before = self.published.iter().filter(|(at, _)| is_before(*at));
        before.map(|(_, prefix)| *prefix).max().unwrap_or(0)
    }

    /// The shortest prefix, of those at least as long as `low`, in which something is right.
    pub fn earliest(&self, low: usize, is_right: impl Fn(&Tree) -> bool) -> Option<usize> {
        (low..=self.changes.len()).find(|prefix| is_right(&self.tree_at(*prefix)))
    }

    /// A new owner found this tree: what was not committed is lost to it. Whether that may be.
    pub fn cut(&mut self, tree: &Tree) -> bool {
        let low = self.published_at(|_| true);
        let found = (low..=self.changes.len())
            .rev()
            .find(|prefix| self.tree_at(*prefix) == *tree);
        let Some(prefix) = found else { return false };
        self.changes.truncate(prefix);
        true
    }
}
