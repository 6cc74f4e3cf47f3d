//! Random histories of two protocols on one file system, held against two models.
//!
//! *Caches*: each side keeps, like a kernel, what it was told of names and attributes until it hears of a change. After every
//! call of the other side nothing that it still keeps may be stale. *Opens*: a file that is open must be readable although it
//! was removed, one that nobody has open must be gone, the counts must be those of the model, and a lock or reservation must
//! end with what it belongs to. The seed is the history; planted bugs prove that the models would notice.

use crate::{
    AnnouncingVfs, ByteRange, Changes, Delivery, LockClient, LockLimits, LockOwner, LockProtocol,
    LockRequest, LockTable, OpenAccess, OpenError, OpenFiles, OpenId, OpenLimits, Origin, ShareMode, Watcher,
};
use bytes::Bytes;
use firn_env::{Env, sim::Simulation};
use firn_vfs::{
    Caller, CreateMode, Credentials, FileHandle, MemoryOptions, MemoryVfs, Name, SetAttributes, Stability,
    Vfs, VfsError, XattrMode,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
};

const STEPS: u64 = 250;
const SEEDS: u64 = 40;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const CLIENTS: [&str; 3] = ["x", "y", "z"];
const OPENS_PER_CLIENT: usize = 5;
/// Short, so that histories overflow it.
const QUEUE: usize = 2;

fn root_caller() -> Caller {
    Caller::new(Credentials::root())
}

fn name(index: u64) -> Name {
    Name::new(NAMES[index as usize % NAMES.len()].as_bytes()).expect("a name")
}

fn client(index: u64) -> LockClient {
    LockClient {
        protocol: LockProtocol::Local,
        name: Bytes::from_static(CLIENTS[index as usize % CLIENTS.len()].as_bytes()),
    }
}

/// What one side keeps: names with what they stand for, and change counters of files.
#[derive(Default)]
struct Cache {
    names: BTreeMap<(FileHandle, Name), FileHandle>,
    changes: BTreeMap<FileHandle, u64>,
}

impl Cache {
    fn drop_stale(&mut self, delivery: &Delivery) {
        let Delivery::Change(change, _) = delivery else {
            return *self = Self::default();
        };
        for part in &change.parts {
            match part {
                crate::ChangeKind::Entry { directory, name } => {
                    self.names.remove(&(*directory, name.clone()));
                }
                crate::ChangeKind::Attributes(file)
                | crate::ChangeKind::Content(file)
                | crate::ChangeKind::Elsewhere(file) => {
                    self.changes.remove(file);
                }
            }
        }
    }

    fn knows(&self, file: FileHandle) -> bool {
        self.changes.contains_key(&file) || self.names.keys().any(|(directory, _)| *directory == file)
    }
}

struct Side {
    vfs: AnnouncingVfs,
    cache: Arc<Mutex<Cache>>,
}

/// Drops what it hears of; now and then only after a while, so that queues fill.
async fn follow(env: Env, watcher: Watcher, cache: Arc<Mutex<Cache>>) {
    loop {
        if env.random_below(3) == 0 {
            env.sleep(std::time::Duration::from_millis(env.random_below(20)))
                .await;
        }
        let delivery = watcher.next().await;
        cache.lock().expect("no panic").drop_stale(&delivery);
    }
}

impl Side {
    fn new(env: &Env, model: &Arc<MemoryVfs>, changes: &Changes, origin: Origin) -> Self {
        let cache = Arc::new(Mutex::new(Cache::default()));
        let known = cache.clone();
        let interest = move |file| known.lock().expect("no panic").knows(file);
        let watcher = changes.watch_with_queue(origin, QUEUE, interest);
        env.spawn("follow", follow(env.clone(), watcher, cache.clone()));
        Self {
            vfs: AnnouncingVfs::new(model.clone(), changes.clone(), origin),
            cache,
        }
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.cache.lock().expect("no panic")
    }

    /// Looks everything up there is, as a kernel would on the way to files.
    async fn fill(&self) {
        for directory in directories(&self.vfs).await {
            for index in 0..NAMES.len() as u64 {
                if let Ok((file, attributes)) = self.vfs.lookup(&root_caller(), directory, &name(index)).await
                {
                    let mut cache = self.cache();
                    cache.names.insert((directory, name(index)), file);
                    cache.changes.insert(file, attributes.change);
                }
            }
            if let Ok(attributes) = self.vfs.attributes(directory).await {
                self.cache().changes.insert(directory, attributes.change);
            }
        }
    }

    /// What was done by this side itself it knows.
    fn forget(&self) {
        *self.cache() = Cache::default();
    }

    async fn check(&self, after: &str) {
        let (names, changes) = {
            let cache = self.cache();
            (cache.names.clone(), cache.changes.clone())
        };
        for ((directory, name), file) in names {
            let found = self.vfs.lookup(&root_caller(), directory, &name).await;
            assert_eq!(
                found.ok().map(|(file, _)| file),
                Some(file),
                "a stale name after {after}"
            );
        }
        for (file, change) in changes {
            let found = self.vfs.attributes(file).await;
            assert_eq!(
                found.ok().map(|found| found.change),
                Some(change),
                "stale attributes after {after}"
            );
        }
    }
}

async fn directories(vfs: &dyn Vfs) -> Vec<FileHandle> {
    let root = vfs.root();
    let mut all = vec![root];
    for index in 0..NAMES.len() as u64 {
        if let Ok((file, attributes)) = vfs.lookup(&root_caller(), root, &name(index)).await
            && attributes.kind == firn_vfs::FileKind::Directory
        {
            all.push(file);
        }
    }
    all
}

/// One random change; an error is as good as any other outcome.
async fn change(env: &Env, vfs: &dyn Vfs) -> String {
    let caller = &root_caller();
    let all = directories(vfs).await;
    let pick = |env: &Env| all[env.random_below(all.len() as u64) as usize];
    let (directory, other) = (pick(env), pick(env));
    let (one, two) = (name(env.random_below(4)), name(env.random_below(4)));
    let file = vfs.lookup(caller, directory, &one).await.map(|(file, _)| file);
    let file = file.unwrap_or(directory);
    let mode = SetAttributes {
        mode: Some(0o700 + env.random_below(64) as u32),
        ..SetAttributes::default()
    };
    let empty = SetAttributes {
        size_bytes: Some(0),
        ..SetAttributes::default()
    };
    match env.random_below(12) {
        0 | 1 => format!(
            "create {:?}",
            vfs.create(caller, directory, &one, CreateMode::Unchecked(empty))
                .await
        ),
        2 if directory == vfs.root() => {
            format!(
                "mkdir {:?}",
                vfs.make_directory(caller, directory, &one, mode).await
            )
        }
        2 | 3 => format!("remove {:?}", vfs.remove(caller, directory, &one).await),
        4 => format!("rmdir {:?}", vfs.remove_directory(caller, directory, &one).await),
        5 | 6 => format!(
            "rename {:?}",
            vfs.rename(caller, directory, &one, other, &two).await
        ),
        7 => format!("link {:?}", vfs.link(caller, file, other, &two).await),
        8 => format!("chmod {:?}", vfs.set_attributes(caller, file, mode, None).await),
        9 => {
            let data = vec![Bytes::from_static(b"data")];
            format!(
                "write {:?}",
                vfs.write(caller, file, 0, data, Stability::Unstable).await
            )
        }
        10 => {
            let value = Bytes::from_static(b"value");
            format!(
                "setxattr {:?}",
                vfs.set_xattr(caller, file, b"user.a", value, XattrMode::Either)
                    .await
            )
        }
        _ => format!(
            "symlink {:?}",
            vfs.make_symlink(caller, directory, &two, Bytes::from_static(b"t"), mode)
                .await
        ),
    }
}

/// A change that is made, and whose future is dropped before it says so.
async fn abandon(env: &Env, vfs: &AnnouncingVfs) {
    let caller = &root_caller();
    let (directory, name) = (vfs.root(), name(env.random_below(4)));
    let parts = AnnouncingVfs::entry(directory, &name).to_vec();
    let work = vfs.announced(parts, async {
        let made = firn_vfs::VfsLayer::below(vfs)
            .create(
                caller,
                directory,
                &name,
                CreateMode::Guarded(SetAttributes::default()),
            )
            .await;
        env.sleep(std::time::Duration::from_secs(1)).await;
        made
    });
    let soon = env.sleep(std::time::Duration::from_millis(1));
    futures::pin_mut!(work, soon);
    drop(futures::future::select(work, soon).await);
}

async fn caches(env: Env) {
    let model = Arc::new(MemoryVfs::new(&env, MemoryOptions::default()));
    let changes = Changes::new(&env);
    let sides = [Origin(1), Origin(2)].map(|origin| Side::new(&env, &model, &changes, origin));
    for _ in 0..STEPS {
        let by = env.random_below(2) as usize;
        let (actor, observer) = (&sides[by], &sides[1 - by]);
        observer.fill().await;
        if env.random_below(8) == 0 {
            // Several at once, more than a queue holds.
            let burst = (0..6).map(|_| change(&env, &actor.vfs));
            futures::future::join_all(burst).await;
            observer.check("a burst").await;
        } else if env.random_below(8) == 0 {
            // A client that goes away in the middle of a call: whoever caches hears of it all the same, if a moment later.
            abandon(&env, &actor.vfs).await;
            env.sleep(std::time::Duration::from_millis(200)).await;
            observer.check("a change whose client went away").await;
        } else {
            // The other side reads on meanwhile.
            let reads = async {
                for _ in 0..4 {
                    env.sleep(std::time::Duration::from_millis(5)).await;
                    observer.fill().await;
                }
            };
            let (done, ()) = futures::future::join(change(&env, &actor.vfs), reads).await;
            observer.check(&done).await;
        }
        actor.forget();
    }
}

/// An open as the model knows it.
struct Known {
    file: FileHandle,
    client: LockClient,
    denies_write: bool,
    locked: bool,
}

async fn opens(env: Env) {
    let vfs = Arc::new(MemoryVfs::new(&env, MemoryOptions::default()));
    let locks = LockTable::new(LockLimits::default());
    let limits = OpenLimits {
        opens_per_client: OPENS_PER_CLIENT,
        ..OpenLimits::default()
    };
    let files = OpenFiles::new(vfs.clone(), locks.clone(), limits);
    let root = vfs.root();
    let mut model: BTreeMap<OpenId, Known> = BTreeMap::new();
    let mut seen: BTreeSet<FileHandle> = BTreeSet::new();
    let mut processes: BTreeSet<LockClient> = BTreeSet::new();
    for _ in 0..STEPS {
        let (who, what) = (client(env.random_below(3)), name(env.random_below(4)));
        let picked = model
            .keys()
            .nth(env.random_below(model.len().max(1) as u64) as usize)
            .copied();
        match (env.random_below(11), picked) {
            (0..=1, _) => {
                if let Ok(created) = vfs
                    .create(
                        &root_caller(),
                        root,
                        &what,
                        CreateMode::Guarded(SetAttributes::default()),
                    )
                    .await
                {
                    seen.insert(created.handle);
                }
            }
            (2..=4, _) => {
                let Ok((file, _)) = vfs.lookup(&root_caller(), root, &what).await else {
                    continue;
                };
                let denies_write = env.random_below(3) == 0;
                let share = denies_write.then_some(ShareMode {
                    read: true,
                    deny_write: true,
                    ..ShareMode::default()
                });
                let access = OpenAccess {
                    read: true,
                    write: false,
                };
                let mine = model.values().filter(|known| known.client == who).count();
                match files.open(&who, file, access, share).await {
                    Ok(id) => {
                        assert!(mine < OPENS_PER_CLIENT, "a client's limit");
                        assert_eq!(files.get(id).map(|open| open.file), Some(file));
                        model.insert(
                            id,
                            Known {
                                file,
                                client: who,
                                denies_write,
                                locked: false,
                            },
                        );
                    }
                    Err(error) => assert!(mine == OPENS_PER_CLIENT && error == OpenError::TooMany, "{error}"),
                }
            }
            (5, Some(id)) => {
                let known = model.get_mut(&id).expect("picked");
                let request = LockRequest {
                    file: known.file,
                    owner: files.lock_owner(id).expect("open"),
                    range: ByteRange {
                        first: id.0,
                        last: id.0,
                    },
                    exclusive: true,
                };
                known.locked |= locks.lock(&request).is_ok();
            }
            (6..=7, Some(id)) => {
                files.close(id).await.expect("the model refuses nothing");
                model.remove(&id);
            }
            (8, _) => {
                files.release_client(&who).await;
                model.retain(|_, known| known.client != who);
                processes.remove(&who);
            }
            (9, _) => {
                // A lock of a process of the client, which no close ends.
                let request = LockRequest {
                    file: root,
                    owner: LockOwner {
                        client: who.clone(),
                        owner: Bytes::from_static(b"process"),
                    },
                    range: ByteRange::ALL,
                    exclusive: false,
                };
                locks.lock(&request).expect("shared");
                processes.insert(who);
            }
            (_, _) => {
                // An error is that there is no such name.
                let _ = vfs.remove(&root_caller(), root, &what).await;
            }
        }
        check_opens(&files, &locks, &vfs, (&model, &processes), &seen).await;
    }
}

async fn check_opens(
    files: &OpenFiles,
    locks: &LockTable,
    vfs: &MemoryVfs,
    (model, processes): (&BTreeMap<OpenId, Known>, &BTreeSet<LockClient>),
    seen: &BTreeSet<FileHandle>,
) {
    let clients: BTreeSet<_> = model.values().map(|known| &known.client).collect();
    assert_eq!(
        (files.counts().opens, files.counts().clients),
        (model.len(), clients.len())
    );
    let held = model
        .values()
        .map(|known| usize::from(known.denies_write) + usize::from(known.locked));
    let held = held.sum::<usize>() + processes.len();
    assert_eq!(
        locks.counts().locks,
        held,
        "locks and reservations of what is open"
    );
    for file in seen {
        let open = model.values().any(|known| known.file == *file);
        match vfs.attributes(*file).await {
            Ok(attributes) => assert!(
                attributes.links > 0 || open,
                "an unlinked file that nobody has open stays"
            ),
            Err(error) => assert!(!open && error == VfsError::Stale, "an open file is gone: {error}"),
        }
    }
}

fn run(seed: u64) {
    let simulation = Simulation::new(seed);
    let env = simulation.env();
    simulation
        .run(async move {
            caches(env.clone()).await;
            opens(env).await;
        })
        .expect("the history ends");
}

#[test]
fn random_histories_leave_no_stale_cache_and_no_lost_open() {
    // FIRN_SEED replays one.
    match std::env::var("FIRN_SEED") {
        Ok(seed) => run(seed.parse().expect("a number")),
        Err(_) => (1..=SEEDS).for_each(run),
    }
}

/// Each with what it does.
const MUTANTS: [&str; 11] = [
    // A watcher whose queue is full hears nothing of what it lost.
    "session.overflow_is_silent",
    // Caches are dropped before the change, so that they fill again with the old state.
    "session.announce_before_the_change",
    // A change whose client went away is not told.
    "session.dropped_change_is_silent",
    // What loses a name keeps its cached attributes.
    "session.victims_are_forgotten",
    // A rename is told to the source directory only.
    "session.rename_tells_one_side",
    "session.open_does_not_retain",
    "session.close_does_not_release",
    "session.close_keeps_locks",
    "session.close_keeps_the_share",
    "session.gone_client_keeps_locks",
    "session.opens_without_limit",
];

#[test]
fn every_planted_bug_is_found_by_some_history() {
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let missed: Vec<&str> = MUTANTS
        .into_iter()
        .filter(|mutant| {
            let found = |seed| {
                let history = AssertUnwindSafe(|| firn_env::mutants::planting(Some(mutant), || run(seed)));
                std::panic::catch_unwind(history).is_err()
            };
            !(1..=SEEDS).any(found)
        })
        .collect();
    std::panic::set_hook(quiet);
    assert_eq!(missed, Vec::<&str>::new(), "bugs that no history finds");
}
