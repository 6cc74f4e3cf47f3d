//! Histories of locks of a volume that several offices change by turns: clients at each office lock, wait, try, raise counters under their locks and
//! unlock, while lines fail and machines lose power.
//!
//! What must hold:
//!
//! | | how it is seen |
//! |---|---|
//! | a lock excludes clients of all offices | a client is never granted what another one has, unless the other's office was not heard for long |
//! | who lost a lock hears of it | within seconds after its office is heard again |
//! | what was written under a lock is seen under the next | a counter is found as it was left, as long as nobody lost a lock or the volume |
//! | progress | when all is well a client of each office gets each lock within a bound |
//! | silence | an hour after the last unlock nobody has asked anything |

use super::{
    Shared,
    client::{name, number_in},
    ending,
    office::{self, Office},
};
use crate::sharing::{
    Report,
    owner::{filled, root},
    world::World,
};
use bytes::Bytes;
use firn_env::{
    Env, Monotonic,
    sim::{Seeded, Simulation},
};
use firn_session::{
    ByteRange, LockClient, LockError, LockOwner, LockProtocol, LockRequest, LockTable, Locked,
};
use firn_vfs::{CreateMode, FileHandle, SetAttributes, Stability, Vfs, VfsError};
use firn_volume::{MemberVfs, file_system_id};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

const STEPS: u64 = 14;
/// Clients of one office.
const CLIENTS: u64 = 2;
/// Files with locks and counters.
const FILES: u64 = 2;
/// Longest that a client waits for a lock before it gives up.
const GIVES_UP_AFTER: Duration = Duration::from_secs(150);
/// A member whose line was cut for less is not broken by anybody: a minute of silence, less the beat before it, an answer that was lost, and a look.
const HEARD_WITHIN: Duration = Duration::from_secs(35);
/// Within so long after its line is well a member has heard what it lost: calls that hang, and pauses between tries.
const HEARS_WITHIN: Duration = Duration::from_secs(25);
/// What a client may take to get a lock once all is well: a minute until a member that is gone is broken, a minute until it is taken over, and handovers.
const PROGRESS: Duration = Duration::from_secs(240);

/// What a client believes to hold.
#[derive(Clone, Debug)]
struct Hold {
    office: usize,
    incarnation: u64,
    request: LockRequest,
}

#[derive(Default)]
struct Book {
    holds: BTreeMap<u64, Hold>,
    next: u64,
    counters: BTreeMap<u64, u64>,
    lost: u64,
}

/// A history under way.
struct History {
    env: Env,
    shared: Arc<Shared>,
    offices: Vec<Arc<Office>>,
    book: Mutex<Book>,
}

impl History {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no panic under this lock")
    }

    /// Whether a client that believes to hold something may be wrong: its machine is down, or its office was not heard for long and had no time to
    /// hear what it lost.
    fn may_be_wrong(&self, hold: &Hold) -> bool {
        let office = &self.offices[hold.office];
        let lives = office.machine().is_running()
            && office
                .locks()
                .is_some_and(|(_, incarnation)| incarnation == hold.incarnation);
        if !lives {
            return true;
        }
        let now = self.env.now();
        match office.cut() {
            None => false,
            Some((since, None)) => now.since(since) >= HEARD_WITHIN,
            Some((since, Some(until))) => {
                until.since(since) >= HEARD_WITHIN && now.since(until) <= HEARS_WITHIN
            }
        }
    }

    /// A client was granted this; the number of its hold.
    fn granted(&self, hold: Hold) -> u64 {
        let mut book = self.book();
        let conflicts = |other: &&Hold| {
            let (of, asked) = (&other.request, &hold.request);
            of.file == asked.file
                && of.owner != asked.owner
                && of.range.overlaps(asked.range)
                && (of.exclusive || asked.exclusive)
        };
        let mut in_the_way = book.holds.values().filter(conflicts);
        if let Some(other) = in_the_way.find(|other| !self.may_be_wrong(other)) {
            self.shared.fail(format!(
                "{hold:?} was granted at {:?} beside {other:?}",
                self.env.now()
            ));
        }
        book.next += 1;
        let number = book.next;
        book.holds.insert(number, hold);
        number
    }

    /// Nobody lost anything so far, and no machine went down.
    fn is_whole(&self) -> bool {
        let is_first = |office: &Arc<Office>| {
            office.machine().is_running() && office.locks().is_some_and(|(_, incarnation)| incarnation == 1)
        };
        self.book().lost == 0
            && self.shared.counted("owners that were taken over") == 0
            && self.offices.iter().all(is_first)
    }
}

/// Runs the history of a seed.
pub fn run(seed: u64) -> Report {
    let simulation = Simulation::new(seed);
    let mut random = Seeded::new(seed, 47);
    let world = Arc::new(World::new(&simulation, &mut random));
    let shared = Arc::new(Shared::default());
    let members = random.between(2, 3) as usize;
    let is_calm = random.chance(1, 3);
    let env = simulation.env();
    let own = shared.clone();
    let known = world.clone();
    let work = async move {
        let offices: Vec<_> = (0..members)
            .map(|number| Office::new(&env, known.clone(), own.clone(), number, &mut random))
            .collect();
        super::format(&offices[0]).await;
        let history = Arc::new(History {
            env: env.clone(),
            shared: own.clone(),
            offices: offices.clone(),
            book: Mutex::default(),
        });
        let mut tasks = Vec::new();
        for office in &offices {
            office.start();
        }
        for office in &offices {
            for client in 0..CLIENTS {
                let random = Seeded::new(random.draw(), client);
                tasks.push(env.spawn("locker", work_on(history.clone(), office.number, client, random)));
            }
            drop(env.spawn("news", hear(history.clone(), office.number)));
            if !is_calm {
                let weather = Seeded::new(random.draw(), 9);
                drop(env.spawn("weather", office::weather(office.clone(), weather)));
            }
        }
        for task in tasks {
            if task.await.is_err() {
                own.fail("a client ended early".into());
            }
        }
        own.ledger().is_over = true;
        for office in &offices {
            office.heal();
        }
        progress(&history).await;
        let status = offices.iter().filter_map(|office| office.member());
        for status in status.map(|member| member.status()) {
            own.add("locks of silent offices broken", status.lock_breaks);
            own.add("takes", status.taken);
        }
        // Idle owners give the volume up.
        env.sleep(Duration::from_secs(400)).await;
        ending::silence(&env, &known, &own).await;
    };
    if let Err(error) = simulation.run(work) {
        shared.fail(format!("the run did not end: {error:?}"));
    }
    for machine in world.machines() {
        for panic in machine.take_panics() {
            shared.fail(format!("{} panicked: {panic}", machine.name()));
        }
    }
    std::mem::take(&mut *shared.report.lock().expect("no panic under this lock"))
}

/// Takes out of the book what clients of an office hear that they have lost.
async fn hear(history: Arc<History>, office: usize) {
    let office = &history.offices[office];
    loop {
        let Some(member) = office.member() else { return };
        let incarnation = office.locks().map(|(_, incarnation)| incarnation);
        let heard = history
            .env
            .timeout(Duration::from_secs(1), member.lost_locks().next())
            .await;
        let mut book = history.book();
        for lost in heard.unwrap_or_default() {
            let is_it = |hold: &Hold| {
                hold.office == office.number
                    && Some(hold.incarnation) == incarnation
                    && hold.request.owner == lost.owner
                    && hold.request.file == lost.file
            };
            book.holds.retain(|_, hold| !is_it(hold));
            book.lost += 1;
            history.shared.count("locks lost");
        }
    }
}

fn request(office: usize, client: u64, random: &mut Seeded) -> LockRequest {
    let file = FileHandle {
        file_system: file_system_id(crate::sharing::world::VOLUME),
        inode: 1_000 + random.below(FILES),
    };
    let exclusive = random.chance(2, 3);
    let range = match random.below(4) {
        0 if !exclusive => ByteRange { first: 0, last: 9 },
        1 => ByteRange { first: 5, last: 14 },
        _ => ByteRange::ALL,
    };
    LockRequest {
        file,
        owner: owner(office, client),
        range,
        exclusive,
    }
}

fn owner(office: usize, client: u64) -> LockOwner {
    LockOwner {
        client: LockClient {
            protocol: LockProtocol::Local,
            name: format!("office{office}").into(),
        },
        owner: client.to_be_bytes().to_vec().into(),
    }
}

/// A client.
async fn work_on(history: Arc<History>, number: usize, client: u64, mut random: Seeded) {
    for _ in 0..STEPS {
        let pause = match random.below(8) {
            0 => random.duration(Duration::from_secs(20), Duration::from_secs(100)),
            1..=4 => random.duration(Duration::ZERO, Duration::from_millis(50)),
            _ => random.duration(Duration::ZERO, Duration::from_secs(5)),
        };
        history.env.sleep(pause).await;
        let asked = request(number, client, &mut random);
        let (waits, mut own) = (random.chance(2, 3), Seeded::new(random.draw(), 3));
        let office = history.offices[number].clone();
        let Some((locks, incarnation)) = office.locks().filter(|_| office.machine().is_running()) else {
            continue;
        };
        let (history, env) = (history.clone(), office.machine().env());
        let step = async move {
            let Some(hold) = lock(
                &history,
                (&locks, number, incarnation),
                &asked,
                waits,
                GIVES_UP_AFTER,
            )
            .await
            else {
                return;
            };
            if asked.exclusive && asked.range == ByteRange::ALL && own.chance(2, 3) {
                raise(&history, number, &asked, hold).await;
            }
            let pause = match own.below(5) {
                0 => own.duration(Duration::from_secs(10), Duration::from_secs(60)),
                _ => own.duration(Duration::ZERO, Duration::from_secs(2)),
            };
            history.env.sleep(pause).await;
            // A program that hangs for as long as its office is cut off.
            let hangs = own.chance(1, 2);
            let is_cut_off = || matches!(history.offices[number].cut(), Some((_, None)));
            if hangs && is_cut_off() {
                while is_cut_off() {
                    history.env.sleep(Duration::from_secs(1)).await;
                }
                // It goes on for longer than its office needs to hear what it lost.
                history.env.sleep(HEARS_WITHIN * 2).await;
            }
            history.book().holds.remove(&hold);
            locks.unlock(asked.file, &asked.owner, ByteRange::ALL);
        };
        // It ends with its machine.
        let _ = env.spawn("lock client", step).await;
    }
}

/// Locks; the number of the hold, if it was granted.
async fn lock(
    history: &History,
    (locks, office, incarnation): (&LockTable, usize, u64),
    asked: &LockRequest,
    waits: bool,
    limit: Duration,
) -> Option<u64> {
    let env = history.offices[office].machine().env();
    let granted = || {
        history.granted(Hold {
            office,
            incarnation,
            request: asked.clone(),
        })
    };
    let end = env.now().after(limit);
    if waits {
        return match locks.lock_or_wait(asked) {
            Ok(Locked::Now) => Some(granted()),
            Ok(Locked::Later(waiter)) => match env.timeout(limit, waiter).await {
                Ok(Ok(())) => {
                    history.shared.count("waits granted");
                    Some(granted())
                }
                _ => {
                    history.shared.count("waits given up");
                    None
                }
            },
            Ok(Locked::AlreadyWaiting) => None,
            Err(error) => {
                history.shared.fail(format!("{asked:?} may not wait: {error}"));
                None
            }
        };
    }
    loop {
        match locks.lock(asked) {
            Ok(()) => {
                history.shared.count("tries granted");
                return Some(granted());
            }
            Err(LockError::Away) if env.now() < end => env.sleep(Duration::from_millis(100)).await,
            Err(_) => {
                history.shared.count("tries refused");
                return None;
            }
        }
    }
}

/// Raises the counter of a file by one.
async fn raise(history: &History, office: usize, asked: &LockRequest, hold: u64) {
    let Some(member) = history.offices[office].member() else {
        return;
    };
    let (vfs, key) = (member.vfs(), asked.file.inode);
    let file = name(&format!("counter{key}"));
    let end = history.env.now().after(Duration::from_secs(200));
    let Some(before) = calling(history, end, || number_in(&vfs as &dyn Vfs, &file)).await else {
        return;
    };
    let before = before.unwrap_or(0);
    if !history.book().holds.contains_key(&hold) {
        return;
    }
    let expected = history.book().counters.get(&key).copied().unwrap_or(0);
    if before != expected && history.is_whole() {
        history.shared.fail(format!(
            "counter {key} is {before} under a lock, and was left at {expected}"
        ));
    }
    // As long as nobody knows whether it is written it may be either.
    if calling(history, end, || put(&vfs, &file, before + 1))
        .await
        .is_none()
    {
        history.book().lost += 1;
        return;
    }
    history.book().counters.insert(key, before + 1);
    history.shared.count("counters raised");
}

/// Calls until the call is answered otherwise than "try again".
async fn calling<T, F: Future<Output = Result<T, VfsError>>>(
    history: &History,
    end: Monotonic,
    call: impl Fn() -> F,
) -> Option<T> {
    loop {
        match call().await {
            Ok(done) => return Some(done),
            Err(VfsError::TryAgain { .. } | VfsError::Stale) if history.env.now() < end => {
                history.env.sleep(Duration::from_millis(500)).await;
            }
            Err(VfsError::TryAgain { .. } | VfsError::Stale) => return None,
            Err(error) => {
                history
                    .shared
                    .fail(format!("a call under a lock was refused: {error}"));
                return None;
            }
        }
    }
}

async fn put(vfs: &MemberVfs, name: &firn_vfs::Name, number: u64) -> Result<(), VfsError> {
    let mode = CreateMode::Unchecked(SetAttributes::default());
    let file = match vfs.lookup(&root(), vfs.root(), name).await {
        Ok((file, _)) => file,
        Err(VfsError::NotFound) => vfs.create(&root(), vfs.root(), name, mode).await?.handle,
        Err(error) => return Err(error),
    };
    let data = vec![Bytes::from(filled(number, 3_000))];
    vfs.write(&root(), file, 0, data, Stability::FileSync)
        .await
        .map(drop)
}

/// All is well: each office gets each lock.
async fn progress(history: &History) {
    for round in 0..2 {
        for office in &history.offices {
            for inode in 0..FILES {
                let mut asked = request(office.number, CLIENTS, &mut Seeded::new(0, 0));
                asked.file.inode = 1_000 + inode;
                (asked.range, asked.exclusive) = (ByteRange::ALL, true);
                let Some((locks, incarnation)) = office.locks() else {
                    continue;
                };
                let began = history.env.now();
                let at = (&locks, office.number, incarnation);
                let hold = lock(history, at, &asked, true, PROGRESS).await;
                let Some(hold) = hold else {
                    history.shared.fail(format!(
                        "round {round}: office {} does not get lock {inode} for {:?} though all is well: {:?}",
                        office.number,
                        history.env.now().since(began),
                        office.member().map(|member| member.status())
                    ));
                    return;
                };
                history.book().holds.remove(&hold);
                locks.unlock(asked.file, &asked.owner, ByteRange::ALL);
            }
        }
    }
}
