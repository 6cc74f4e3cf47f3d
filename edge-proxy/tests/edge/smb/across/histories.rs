//! Random work of all three clients on the same few files, held against a model after every step.
//!
//! FIRN_ACROSS_SEED names another history (1), FIRN_ACROSS_STEPS makes it longer (1,500). One step is one call: what two calls at
//! once may do to each other is what `crates/session/src/histories.rs` and the engine's own histories show.
//!
//! Names come in two spellings that are one to SMB and two to the others. A lock of anybody keeps SMB from reading and writing, and others from
//! locking. Now and then the edge is killed, right after a change by NFS: that was answered at level 1, so everything before it, by whomever, is there
//! again.

use super::{
    super::{ALICE, Shared, agent::Agent},
    clients::{ALL, By, Clients, Held},
    connected, served,
};
use crate::{locks::LockClient, machine::Cloud};
use firn_nfs::nlm::LockStatus;
use rustix::fs::FlockOperation;
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::Instant,
};

const STEPS: u64 = 1500;
/// Steps between two kills, in the mean.
const KILL_EVERY: u64 = 500;
const NAMES: u64 = 8;
const HELD_MAX: usize = 6;
const LOCKS_MAX: usize = 3;
const LENGTH_MAX: u64 = 100_000;
/// More than any file has.
const LOCKED_BYTES: u64 = 1 << 20;

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
        let name = format!("file-{}", self.below(NAMES));
        match self.below(4) {
            0 => name.to_uppercase(),
            _ => name,
        }
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

    /// The name that a client means by `name`, if it is there: SMB takes the other spelling where it is not there as it is spelled.
    fn spelled(&self, by: By, name: &str) -> Option<String> {
        let lower = name.to_lowercase();
        let mut spellings = vec![name.to_owned()];
        if by == By::Smb {
            spellings.extend([name.to_uppercase(), lower]);
        }
        spellings.into_iter().find(|name| self.names.contains_key(name))
    }
}

/// A lock on all of a file.
enum Lock {
    Nfs(LockClient),
    Smb(u64),
    Fuse(fs::File),
}

struct Locked {
    file: usize,
    lock: Lock,
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
    locks: Vec<Locked>,
    all: Clients,
    /// Locks over SMB, for which the library of `all` has no call.
    locker: Agent,
    edge: Shared,
    counts: BTreeMap<&'static str, u32>,
}

impl History {
    /// SMB removes and replaces a file that another of its clients has open only once that is closed.
    fn smb_has_open(&self, file: usize) -> bool {
        let opens = self.open.iter();
        let of_locks = self.locks.iter();
        opens
            .filter(|open| open.by == By::Smb)
            .any(|open| open.file == file)
            || of_locks
                .filter(|locked| matches!(locked.lock, Lock::Smb(_)))
                .any(|locked| locked.file == file)
    }

    fn is_locked(&self, file: usize) -> bool {
        self.locks.iter().any(|locked| locked.file == file)
    }

    async fn step(&mut self) {
        if self.numbers.below(KILL_EVERY) == 0 {
            self.kill().await;
            *self.counts.entry("kill").or_default() += 1;
            return;
        }
        let by = ALL[self.numbers.below(3) as usize];
        let name = self.numbers.name();
        let meant = self.model.spelled(by, &name);
        let there = meant.as_ref().map(|meant| self.model.names[meant]);
        let kind = self.numbers.below(14);
        let what = [
            "put", "put", "get", "get", "rename", "remove", "open", "names", "read", "write", "resize",
            "close", "lock", "unlock",
        ][kind as usize];
        println!("{by} {what} {name}");
        let done = match (what, there) {
            ("put", _) => self.put(by, &name, meant).await,
            ("get", _) => {
                let got = self.all.get(by, &name).await;
                let expected = there.map(|file| &self.model.files[file]);
                match there {
                    Some(file) if by == By::Smb && self.is_locked(file) => is_refused(got.map(drop)),
                    _ => assert!(got.as_ref().ok() == expected, "{}", differ(got, expected)),
                }
                true
            }
            ("rename", Some(file)) => self.rename(by, &name, &meant.expect("it is there"), file).await,
            ("remove", Some(file)) => {
                if self.smb_has_open(file) && by == By::Smb {
                    return;
                }
                // Its handle would lead nowhere.
                self.unlock_all(|locked| locked.file == file && matches!(locked.lock, Lock::Nfs(_)))
                    .await;
                self.all.remove(by, &name).await.expect("removed");
                self.model.names.remove(&meant.expect("it is there"));
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
            ("lock", Some(file)) => self.lock(by, &name, file).await,
            ("unlock", _) if !self.locks.is_empty() => {
                let at = self.numbers.below(self.locks.len() as u64) as usize;
                let locked = self.locks.remove(at);
                self.unlock(locked).await;
                true
            }
            ("read" | "write" | "resize" | "close", _) if !self.open.is_empty() => self.on_open(what).await,
            _ => false,
        };
        if done {
            *self.counts.entry(what).or_default() += 1;
        }
    }

    /// Tries to lock a file; who holds it already has it alone.
    async fn lock(&mut self, by: By, name: &str, file: usize) -> bool {
        let is_free = !self.is_locked(file);
        if is_free && self.locks.len() >= LOCKS_MAX {
            return false;
        }
        let taken = match by {
            By::Nfs => {
                let who = if is_free { "holder" } else { "another" };
                let client = LockClient::new(&self.edge.edge, &self.all.nfs, who, name).await;
                match client.lock_unmonitored().await {
                    Some(LockStatus::Granted) => Some(Lock::Nfs(client)),
                    Some(LockStatus::Denied) => None,
                    other => panic!("{other:?}"),
                }
            }
            By::Smb => {
                let handle = self.locker.call(json!(["open", name])).expect("open");
                match self.locker.call(json!(["lock", handle, 0, 1, LOCKED_BYTES])) {
                    Ok(_) => Some(Lock::Smb(handle.as_u64().expect("a handle"))),
                    Err(why) => {
                        assert_eq!(why, "0xc0000055", "NT_STATUS_LOCK_NOT_GRANTED");
                        self.locker.call(json!(["close", handle])).expect("closed");
                        None
                    }
                }
            }
            By::Fuse => {
                let open = fs::File::options()
                    .read(true)
                    .write(true)
                    .open(self.all.path(name));
                let open = open.expect("open");
                match rustix::fs::flock(&open, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => Some(Lock::Fuse(open)),
                    Err(rustix::io::Errno::AGAIN) => None,
                    Err(error) => panic!("{error}"),
                }
            }
        };
        assert_eq!(taken.is_some(), is_free, "of file {file}");
        self.locks.extend(taken.map(|lock| Locked { file, lock }));
        true
    }

    async fn unlock(&mut self, locked: Locked) {
        match locked.lock {
            Lock::Nfs(client) => assert_eq!(client.unlock().await, Some(LockStatus::Granted)),
            Lock::Smb(handle) => {
                let unlock = json!(["unlock", handle, 0, 1, LOCKED_BYTES]);
                self.locker.call(unlock).expect("unlocked");
                self.locker.call(json!(["close", handle])).expect("closed");
            }
            Lock::Fuse(file) => rustix::fs::flock(&file, FlockOperation::Unlock).expect("unlocked"),
        }
    }

    async fn unlock_all(&mut self, which: impl Fn(&Locked) -> bool) {
        let (ending, staying) = std::mem::take(&mut self.locks).into_iter().partition(which);
        self.locks = staying;
        let ending: Vec<Locked> = ending;
        for locked in ending {
            self.unlock(locked).await;
        }
    }

    /// Kills the edge after a change that was answered at level 1, and finds everything before it, by every protocol.
    async fn kill(&mut self) {
        println!("kill");
        self.put(By::Nfs, "last", self.model.spelled(By::Nfs, "last"))
            .await;
        // What was open, or locked, is cut off.
        self.open.clear();
        self.locks.clear();
        self.edge.edge.kill();
        self.edge.start();
        self.all = connected(&self.edge, self.all.mount.clone()).await;
        self.locker = Agent::raw(&self.edge, ALICE);
        for by in ALL {
            let expected: BTreeSet<String> = self.model.names.keys().cloned().collect();
            assert_eq!(self.all.names(by).await, expected, "{by}, after a kill");
            for name in expected {
                let found = self.all.get(by, &name).await;
                let expected = &self.model.files[self.model.names[&name]];
                let is = found.as_ref() == Ok(expected);
                assert!(is, "{by}, {name} after a kill: {}", differ(found, Some(expected)));
            }
        }
    }

    async fn put(&mut self, by: By, name: &str, meant: Option<String>) -> bool {
        let there = meant.map(|meant| self.model.names[&meant]);
        // It would be cut before the write is refused.
        if by == By::Smb && there.is_some_and(|file| self.is_locked(file)) {
            return false;
        }
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

    /// `old` is written as the client asks for it, `meant` as it is.
    async fn rename(&mut self, by: By, old: &str, meant: &str, file: usize) -> bool {
        let mut new = self.numbers.name();
        if self.numbers.below(4) == 0 {
            // Only the case is another.
            new = match meant.to_uppercase() == meant {
                true => meant.to_lowercase(),
                false => meant.to_uppercase(),
            };
        }
        let replaced = self.model.spelled(by, &new).map(|name| self.model.names[&name]);
        // Samba's library never replaces; of a file that it has open itself no name is taken.
        let is_other = replaced.is_some_and(|replaced| replaced != file);
        let refused = by == By::Smb && (is_other || self.smb_has_open(file));
        if new == meant || refused {
            return false;
        }
        if let Some(replaced) = replaced.filter(|_| is_other) {
            // As with a removal.
            self.unlock_all(|locked| locked.file == replaced && matches!(locked.lock, Lock::Nfs(_)))
                .await;
        }
        println!("  … to {new}");
        self.all.rename(by, old, &new).await.expect("renamed");
        self.model.names.remove(meant).expect("there");
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
        let mut data = self.numbers.data();
        // Of nothing nobody asks whether it is locked.
        data.push(0);
        let offset = self.numbers.below(LENGTH_MAX);
        let held = &self.open[at].held;
        let result = match what {
            "read" => self.all.read(held).await.map(Some),
            "write" => self.all.write(held, &data, offset).await.map(|()| None),
            _ => self.all.resize(held, offset).await.map(|()| None),
        };
        if by == By::Smb && self.is_locked(file) {
            is_refused(result.map(drop));
            return true;
        }
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

/// That a lock was in the way.
fn is_refused(result: Result<(), String>) {
    let why = result.expect_err("locked by another");
    assert!(why.contains("lock"), "{why}");
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
    let Some((edge, all, _kept)) = served(&cloud).await else {
        return;
    };
    let seed = number_of("FIRN_ACROSS_SEED").unwrap_or(1);
    let steps = number_of("FIRN_ACROSS_STEPS").unwrap_or(STEPS);
    let step = std::cell::Cell::new(0);
    let _repeat = Repeat(seed, &step);
    let began = Instant::now();
    let mut history = History {
        numbers: Numbers(seed),
        model: Model::default(),
        open: Vec::new(),
        locks: Vec::new(),
        all,
        locker: Agent::raw(&edge, ALICE),
        edge,
        counts: BTreeMap::new(),
    };
    while step.get() < steps {
        history.step().await;
        step.set(step.get() + 1);
    }
    println!(
        "{steps} steps of seed {seed} in {:?}: {:?}",
        began.elapsed(),
        history.counts
    );
    let kinds = history.counts.keys().filter(|kind| **kind != "kill").count();
    assert!(
        steps < 1000 || kinds == 12,
        "something was never done: {:?}",
        history.counts
    );
    history.kill().await;
    history.edge.edge.stop();
    let log = history.edge.edge.log();
    assert_eq!(log.matches("ERROR").count(), 0, "{log}");
}
