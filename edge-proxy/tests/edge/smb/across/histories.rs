//! Random work of all three clients on the same few files, held against a model after every step.
//!
//! FIRN_ACROSS_SEED names another history (1), FIRN_ACROSS_STEPS makes it longer (1,500). One step is one call: what two calls at
//! once may do to each other is what `crates/session/src/histories.rs` and the engine's own histories show.

use super::{
    clients::{ALL, By, Clients, Held},
    served,
};
use crate::machine::Cloud;
use std::collections::{BTreeMap, BTreeSet};

const STEPS: u64 = 1500;
const NAMES: u64 = 8;
const HELD_MAX: usize = 6;
const LENGTH_MAX: u64 = 100_000;

/// SplitMix64: the same numbers from the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn name(&mut self) -> String {
        format!("file-{}", self.below(NAMES))
    }

    fn data(&mut self) -> Vec<u8> {
        let length = match self.below(3) {
            0 => self.below(20),
            1 => self.below(5000),
            _ => self.below(LENGTH_MAX),
        };
        let first = self.below(256) as u8;
        (0..length)
            .map(|at| first.wrapping_add((at % 251) as u8))
            .collect()
    }
}

/// What must be there.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, usize>,
    /// By number; of those that were removed, too.
    files: Vec<Vec<u8>>,
}

impl Model {
    fn write(&mut self, file: usize, data: &[u8], offset: usize) {
        let file = &mut self.files[file];
        if data.is_empty() {
            return;
        }
        if file.len() < offset + data.len() {
            file.resize(offset + data.len(), 0);
        }
        file[offset..offset + data.len()].copy_from_slice(data);
    }

    fn has_name(&self, file: usize) -> bool {
        self.names.values().any(|named| *named == file)
    }
}

struct Open {
    by: By,
    file: usize,
    held: Held,
}

struct History {
    numbers: Numbers,
    model: Model,
    open: Vec<Open>,
    all: Clients,
    counts: BTreeMap<&'static str, u32>,
}

impl History {
    /// SMB removes and replaces a file that another of its clients has open only once that is closed.
    fn smb_has_open(&self, name: &str) -> bool {
        let file = self.model.names.get(name);
        self.open
            .iter()
            .any(|open| open.by == By::Smb && Some(&open.file) == file)
    }

    async fn step(&mut self) {
        let by = ALL[self.numbers.below(3) as usize];
        let name = self.numbers.name();
        let there = self.model.names.get(&name).copied();
        let kind = self.numbers.below(12);
        let what = [
            "put", "put", "get", "get", "rename", "remove", "open", "names", "read", "write", "resize",
            "close",
        ][kind as usize];
        println!("{by} {what} {name}");
        let done = match (what, there) {
            ("put", _) => self.put(by, &name, there).await,
            ("get", _) => {
                let got = self.all.get(by, &name).await;
                let expected = there.map(|file| &self.model.files[file]);
                assert!(got.as_ref().ok() == expected, "{}", differ(got, expected));
                true
            }
            ("rename", Some(_)) => self.rename(by, &name).await,
            ("remove", Some(_)) => {
                if self.smb_has_open(&name) && by == By::Smb {
                    return;
                }
                self.all.remove(by, &name).await.expect("removed");
                self.model.names.remove(&name);
                true
            }
            ("open", Some(file)) if self.open.len() < HELD_MAX => {
                let held = self.all.open(by, &name).await.expect("open");
                self.open.push(Open { by, file, held });
                true
            }
            ("names", _) => {
                let expected: BTreeSet<String> = self.model.names.keys().cloned().collect();
                assert_eq!(self.all.names(by).await, expected);
                true
            }
            ("read" | "write" | "resize" | "close", _) if !self.open.is_empty() => self.on_open(what).await,
            _ => false,
        };
        if done {
            *self.counts.entry(what).or_default() += 1;
        }
    }

    async fn put(&mut self, by: By, name: &str, there: Option<usize>) -> bool {
        let data = self.numbers.data();
        self.all.put(by, name, &data).await.expect("written");
        match there {
            Some(file) => self.model.files[file] = data,
            None => {
                self.model.names.insert(name.to_owned(), self.model.files.len());
                self.model.files.push(data);
            }
        }
        true
    }

    async fn rename(&mut self, by: By, name: &str) -> bool {
        let new = self.numbers.name();
        // Samba's library never replaces; of a file that it has open itself no name is taken.
        let refused = by == By::Smb && (self.model.names.contains_key(&new) || self.smb_has_open(name));
        if new == name || refused {
            return false;
        }
        self.all.rename(by, name, &new).await.expect("renamed");
        let file = self.model.names.remove(name).expect("there");
        self.model.names.insert(new, file);
        true
    }

    async fn on_open(&mut self, what: &'static str) -> bool {
        let at = self.numbers.below(self.open.len() as u64) as usize;
        let Open { by, file, .. } = self.open[at];
        println!("  … {by}, open file {file}");
        if what == "resize" && by == By::Smb {
            return false;
        }
        if what == "close" {
            let open = self.open.remove(at);
            self.all.close(open.held);
            return true;
        }
        let data = self.numbers.data();
        let offset = self.numbers.below(LENGTH_MAX);
        let held = &self.open[at].held;
        let result = match what {
            "read" => self.all.read(held).await.map(Some),
            "write" => self.all.write(held, &data, offset).await.map(|()| None),
            _ => self.all.resize(held, offset).await.map(|()| None),
        };
        match result {
            // A handle of NFS is no open: nothing keeps a file that has no name.
            Err(why) => {
                assert!(
                    by == By::Nfs && !self.model.has_name(file) && why == "Stale",
                    "{what}: {why}"
                );
                let open = self.open.remove(at);
                self.all.close(open.held);
            }
            Ok(Some(read)) => {
                let expected = &self.model.files[file];
                assert!(&read == expected, "{}", differ(Ok(read), Some(expected)));
            }
            Ok(None) if what == "write" => self.model.write(file, &data, offset as usize),
            Ok(None) => self.model.files[file].resize(offset as usize, 0),
        }
        true
    }
}

fn differ(found: Result<Vec<u8>, String>, expected: Option<&Vec<u8>>) -> String {
    let shown = |data: &[u8]| format!("{} bytes, first {:?}", data.len(), data.first());
    let at = found
        .as_ref()
        .ok()
        .zip(expected)
        .and_then(|(found, expected)| found.iter().zip(expected).position(|(a, b)| a != b));
    format!(
        "found {:?}, expected {:?}, first difference at {at:?}",
        found.map(|data| shown(&data)),
        expected.map(|data| shown(data))
    )
}

fn number_of(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect("a number"))
}

/// Says how to repeat it, whatever fails.
struct Repeat<'a>(u64, &'a std::cell::Cell<u64>);

impl Drop for Repeat<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("step {}; again with FIRN_ACROSS_SEED={}", self.1.get(), self.0);
        }
    }
}

#[tokio::test]
async fn random_work_of_all_three_protocols_is_as_the_model_says() {
    let cloud = Cloud::new();
    let Some((mut edge, all, _kept)) = served(&cloud).await else {
        return;
    };
    let seed = number_of("FIRN_ACROSS_SEED").unwrap_or(1);
    let steps = number_of("FIRN_ACROSS_STEPS").unwrap_or(STEPS);
    let step = std::cell::Cell::new(0);
    let _repeat = Repeat(seed, &step);
    let mut history = History {
        numbers: Numbers(seed),
        model: Model::default(),
        open: Vec::new(),
        all,
        counts: BTreeMap::new(),
    };
    while step.get() < steps {
        history.step().await;
        step.set(step.get() + 1);
    }
    for open in std::mem::take(&mut history.open) {
        history.all.close(open.held);
    }
    println!("{steps} steps of seed {seed}: {:?}", history.counts);
    assert!(
        steps < 500 || history.counts.len() == 10,
        "something was never done: {:?}",
        history.counts
    );
    // What is left is the same after a kill: NFS writes and SMB closes are not all at level 1, so it is synced first.
    let names = history.all.names(By::Fuse).await;
    for name in &names {
        let file = std::fs::File::open(history.all.path(name)).expect("open");
        file.sync_all().expect("synced");
    }
    edge.edge.kill();
    edge.start();
    for name in &names {
        let file = history.model.names[name];
        let found = history.all.get(By::Fuse, name).await;
        let expected = &history.model.files[file];
        assert!(
            found.as_ref() == Ok(expected),
            "{name}: {}",
            differ(found, Some(expected))
        );
    }
    edge.edge.stop();
}
