//! Clients of a history of locks: they lock, wait, try, raise counters, hang, and unlock.

use super::{CLIENTS, History, Hold, later, office::Serving};
use crate::world::root;
use bytes::Bytes;
use firn_env::sim::Seeded;
use firn_session::{ByteRange, LockClient, LockError, LockOwner, LockProtocol, LockRequest, Locked};
use firn_vfs::{FileHandle, Stability, Vfs, VfsError};
use std::{sync::Arc, time::Duration};

const STEPS: u64 = 10;
/// Longest that a client waits for a lock before it gives up.
const GIVES_UP_AFTER: Duration = Duration::from_secs(150);
/// Within so long after it is heard again an office has opened the volume again, and told what is lost.
const HEARS_WITHIN: Duration = Duration::from_secs(40);
/// Longest that it tries to read or write.
const CALLS_FOR: Duration = Duration::from_secs(60);

fn request(history: &History, office: usize, client: u64, random: &mut Seeded) -> LockRequest {
    let exclusive = random.chance(2, 3);
    let range = match random.below(4) {
        0 if !exclusive => ByteRange { first: 0, last: 9 },
        1 => ByteRange { first: 5, last: 14 },
        _ => ByteRange::ALL,
    };
    LockRequest {
        file: *random.pick(&history.files),
        owner: owner(office, client),
        range,
        exclusive,
    }
}

fn owner(office: usize, client: u64) -> LockOwner {
    LockOwner {
        client: LockClient {
            protocol: LockProtocol::Nlm,
            name: format!("machine {client} of office {office}").into(),
        },
        owner: "process".into(),
    }
}

/// A client.
pub async fn work(history: Arc<History>, place: usize, client: u64, mut random: Seeded) {
    for _ in 0..STEPS {
        if history.book().violation.is_some() {
            return;
        }
        let pause = match random.below(8) {
            0 => random.duration(Duration::from_secs(20), Duration::from_secs(100)),
            1..=4 => random.duration(Duration::ZERO, Duration::from_millis(50)),
            _ => random.duration(Duration::ZERO, Duration::from_secs(5)),
        };
        history.env.sleep(pause).await;
        let asked = request(&history, place, client, &mut random);
        let waits = random.chance(2, 3);
        let Some(hold) = lock(&history, place, &asked, waits, GIVES_UP_AFTER).await else {
            continue;
        };
        if asked.exclusive && asked.range == ByteRange::ALL && random.chance(3, 4) {
            raise(&history, place, &asked, hold).await;
        }
        let pause = match random.below(6) {
            0 => random.duration(Duration::from_secs(10), Duration::from_secs(80)),
            _ => random.duration(Duration::ZERO, Duration::from_secs(2)),
        };
        history.env.sleep(pause).await;
        // A program that hangs for as long as its office is cut off, and for longer than that needs to hear what was lost.
        let office = &history.offices[place];
        if random.chance(1, 2) && office.is_cut_off() {
            while office.is_cut_off() && history.book().violation.is_none() {
                history.env.sleep(Duration::from_secs(1)).await;
            }
            history.env.sleep(HEARS_WITHIN).await;
        }
        unlock(&history, place, &asked, hold);
    }
}

/// Unlocks, also where the process has died since: then there is nothing to unlock, or what it gave back is.
fn unlock(history: &History, place: usize, asked: &LockRequest, hold: u64) {
    history.book().holds.remove(&hold);
    if let Some(table) = history.offices[place].table() {
        table.unlock(asked.file, &asked.owner, ByteRange::ALL);
    }
}

/// Locks; the number of the hold, if it was granted.
async fn lock(
    history: &History,
    place: usize,
    asked: &LockRequest,
    waits: bool,
    limit: Duration,
) -> Option<u64> {
    let (env, office) = (&history.env, &history.offices[place]);
    let hold = Hold {
        office: place,
        request: asked.clone(),
    };
    let end = later(env, limit);
    while env.now() < end && history.book().violation.is_none() {
        let Some(serving) = office.serves() else {
            env.sleep(Duration::from_millis(500)).await;
            continue;
        };
        if waits {
            match serving.table.lock_or_wait(asked) {
                Ok(Locked::Now) => return Some(history.has(&hold, None)),
                Ok(Locked::Later(mut waiter)) => {
                    let is_same = || office.serves().is_some_and(|now| now.opening == serving.opening);
                    while env.now() < end && is_same() {
                        if let Ok(granted) = env.timeout(Duration::from_secs(1), &mut waiter).await {
                            granted.ok()?;
                            history.book().count("waits granted");
                            return Some(history.has(&hold, None));
                        }
                    }
                }
                Ok(Locked::AlreadyWaiting) | Err(LockError::Grace) => {}
                Err(error) => {
                    history.book().violate(format!("{asked:?} may not wait: {error}"));
                    return None;
                }
            }
        } else {
            match serving.table.lock(asked) {
                Ok(()) => {
                    history.book().count("tries granted");
                    return Some(history.has(&hold, None));
                }
                Err(LockError::Away | LockError::Grace) => {}
                Err(_) => {
                    history.book().count("tries refused");
                    return None;
                }
            }
        }
        env.sleep(Duration::from_millis(100)).await;
    }
    history.book().count("requests given up");
    None
}

/// Whether a client gets a lock within a limit.
pub async fn gets(history: &History, place: usize, file: usize, limit: Duration) -> bool {
    let asked = LockRequest {
        file: history.files[file],
        owner: owner(place, CLIENTS),
        range: ByteRange::ALL,
        exclusive: true,
    };
    let Some(hold) = lock(history, place, &asked, true, limit).await else {
        return false;
    };
    raise(history, place, &asked, hold).await;
    unlock(history, place, &asked, hold);
    true
}

/// Raises the counter of a file by one.
async fn raise(history: &History, place: usize, asked: &LockRequest, hold: u64) {
    let (file, key) = (asked.file, asked.file.inode);
    let Some(before) = calling(history, place, move |serving| async move {
        number_in(&serving, file).await
    })
    .await
    else {
        return;
    };
    {
        // What is read when the lock is lost says nothing.
        let mut book = history.book();
        if !book.holds.contains_key(&hold) {
            return;
        }
        match book.counters[&key] {
            Some(expected) if before != expected => book.violate(format!(
                "counter {key} is {before} in office {place} under a lock, and was left at {expected}"
            )),
            _ => {}
        }
        // As long as nobody knows whether it is written it may be either.
        book.counters.insert(key, None);
    }
    let written = calling(history, place, move |serving| async move {
        let data = vec![Bytes::copy_from_slice(&(before + 1).to_be_bytes())];
        let caller = root();
        let written = serving.vfs.write(&caller, file, 0, data, Stability::FileSync);
        written.await.map(drop)
    });
    let is_written = written.await.is_some();
    let mut book = history.book();
    if is_written && book.holds.contains_key(&hold) {
        book.counters.insert(key, Some(before + 1));
        book.count("counters raised");
    }
}

/// Calls until the call is answered otherwise than "try again", by one process of the office.
async fn calling<T: Send + 'static, F: Future<Output = Result<T, VfsError>> + Send + 'static>(
    history: &History,
    place: usize,
    call: impl Fn(Serving) -> F,
) -> Option<T> {
    let env = &history.env;
    let end = later(env, CALLS_FOR);
    let serving = history.offices[place].serves()?;
    loop {
        let calling = serving.env.spawn("call", call(serving.clone()));
        match env.timeout(CALLS_FOR, calling).await {
            Ok(Ok(Ok(done))) => return Some(done),
            Ok(Ok(Err(VfsError::TryAgain { .. }))) if env.now() < end => {
                env.sleep(Duration::from_millis(500)).await;
            }
            // It is not known what came of it, or the process has died.
            _ => return None,
        }
    }
}

async fn number_in(serving: &Serving, file: FileHandle) -> Result<u64, VfsError> {
    let read = serving.vfs.read(&root(), file, 0, 8).await?;
    let bytes = read.data.concat();
    Ok(u64::from_be_bytes(bytes.try_into().expect("eight bytes")))
}
