//! Late arrivals: listings of a store that shows new objects only after seconds, and changes that waited while the volume was
//! drained.

use crate::{
    files::{create, look, read, write},
    world::{World, config, root},
};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::{Env, Monotonic, mutants::planting, sim::Simulation};
use firn_format::KeyEpoch;
use firn_seal::{EpochKey, Keys};
use firn_store::{FaultConfig, Faults, Faulty, ListPage, ObjectInfo, ObjectKey, PutMode, Store, StoreError};
use firn_vfs::{Stability, Vfs};
use firn_volume::{Contradiction, RekeyEnd, Volume, VolumeConfig, VolumeError};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

/// A store whose listings lack one object until a moment.
struct ListsLate {
    inner: Arc<dyn Store>,
    env: Env,
    hidden: ObjectKey,
    until: Monotonic,
}

#[async_trait]
impl Store for ListsLate {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.inner.put(key, parts, mode).await
    }
    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.inner.get(key).await
    }
    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.inner.get_range(key, offset, length).await
    }
    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.inner.head(key).await
    }
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete(key).await
    }
    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        let mut page = self.inner.list(prefix, after).await?;
        if self.env.now() < self.until {
            page.objects.retain(|object| object.key != self.hidden);
        }
        Ok(page)
    }
}

/// A store that does not show one segment in sixteen until a moment.
struct ShowsLate {
    inner: Arc<dyn Store>,
    env: Env,
    until: Arc<Mutex<Option<Monotonic>>>,
}

impl ShowsLate {
    fn look(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let until = *self.until.lock().expect("no panic under this lock");
        let is_hidden = key.as_str().contains("/log/") && key.as_str().ends_with('3');
        match is_hidden && until.is_some_and(|until| self.env.now() < until) {
            true => Err(StoreError::not_found(key)),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Store for ShowsLate {
    async fn put(&self, key: &ObjectKey, parts: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        self.inner.put(key, parts, mode).await
    }
    async fn get(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        self.look(key)?;
        self.inner.get(key).await
    }
    async fn get_range(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Bytes, StoreError> {
        self.look(key)?;
        self.inner.get_range(key, offset, length).await
    }
    async fn head(&self, key: &ObjectKey) -> Result<ObjectInfo, StoreError> {
        self.look(key)?;
        self.inner.head(key).await
    }
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.inner.delete(key).await
    }
    async fn list(&self, prefix: &str, after: Option<&ObjectKey>) -> Result<ListPage, StoreError> {
        self.inner.list(prefix, after).await
    }
}

/// All keys in the store that hold `part`.
async fn keys(store: &dyn Store, part: &str) -> Vec<ObjectKey> {
    let page = store.list("", None).await.expect("it answers");
    assert!(!page.more, "few objects");
    let found = page.objects.into_iter().map(|object| object.key);
    found.filter(|key| key.as_str().contains(part)).collect()
}

/// Opens the volume on a machine beside, where the newest owner's statement is listed only after `late`.
fn open_beside(late: Duration) -> Result<(), VolumeError> {
    let simulation = Simulation::new(3);
    let world = World::new(&simulation);
    let store = world.store();
    let made = world.format_and_open();
    let second = world.machine_beside(&simulation, "second");
    let mut third = world.machine_beside(&simulation, "third");
    let work = async move {
        made.await.drain().await.expect("drained");
        let before = keys(&*store, "/owner").await;
        let (volume, _) = Volume::open(second, config()).await.expect("it opens");
        create(&volume, volume.root(), "file").await;
        volume.drain().await.expect("drained");
        let mut new = keys(&*store, "/owner").await;
        new.retain(|key| !before.contains(key));
        let [hidden] = new.try_into().expect("one statement for one ownership");
        third.store = Arc::new(ListsLate {
            inner: third.store.clone(),
            env: third.env.clone(),
            hidden,
            until: third.env.now().after(late),
        });
        let (volume, _) = Volume::open(third, config()).await?;
        look(&volume, &["file"]).await.expect("it is there");
        volume.stop().await.expect("stopped");
        Ok(())
    };
    simulation.run(work).expect("the run ends")
}

#[test]
fn a_statement_that_the_store_lists_late_is_no_rollback() {
    open_beside(Duration::from_secs(4)).expect("it is waited for");
    let error = open_beside(Duration::from_secs(3_600)).expect_err("it never comes");
    let VolumeError::StaleTable(stale) = &error else {
        panic!("{error}")
    };
    assert!(matches!(stale.contradiction, Contradiction::NotAnnounced { .. }));
}

/// More writes than the journal has room for, begun so long before the volume is drained: how many are refused, and which
/// acknowledged ones another machine does not find.
fn write_while_draining(bug: Option<&str>, before: Duration) -> (usize, Vec<usize>) {
    const WRITES: usize = 60;
    const WRITE_BYTES: usize = 128 << 10;
    let simulation = Simulation::new(4);
    let world = World::new(&simulation);
    let mut slow = world.machine_beside(&simulation, "slow");
    let other = world.machine_beside(&simulation, "other");
    let made = world.format_and_open();
    let controller = simulation.env();
    let small = VolumeConfig {
        journal_bytes: 4 << 20,
        journal_file_bytes: 1 << 20,
        ..config()
    };
    let work = async move {
        made.await.drain().await.expect("drained");
        let far =
            Faulty::new(&controller, slow.store.clone(), FaultConfig::default()).expect("a configuration");
        let faults = far.control();
        slow.store = Arc::new(far);
        let env = slow.env.clone();
        let (volume, _) = Volume::open(slow, small).await.expect("it opens");
        let file = create(&volume, volume.root(), "file").await;
        let far_away = Faults {
            latency_ms: 2_000,
            ..Faults::default()
        };
        faults.set(far_away).expect("faults");
        let writing: Vec<_> = (0..WRITES)
            .map(|number| {
                let volume = volume.clone();
                env.spawn("writes", async move {
                    let data = vec![Bytes::from(vec![1; WRITE_BYTES])];
                    let offset = (number * WRITE_BYTES) as u64;
                    let written = volume
                        .write(&root(), file, offset, data, Stability::FileSync)
                        .await;
                    written.is_ok()
                })
            })
            .collect();
        env.sleep(before).await;
        volume.drain().await.expect("drained");
        let mut acknowledged = Vec::new();
        for (number, one) in writing.into_iter().enumerate() {
            if one.await.expect("it ends") {
                acknowledged.push(number);
            }
        }

        let (volume, _) = Volume::open(other, config()).await.expect("it opens");
        let file = look(&volume, &["file"]).await.expect("it is there");
        let refused = WRITES - acknowledged.len();
        let mut lost = Vec::new();
        for number in acknowledged {
            let found = read(&volume, file, (number * WRITE_BYTES) as u64, 1).await;
            if found.expect("it is read") != [1] {
                lost.push(number);
            }
        }
        (refused, lost)
    };
    planting(bug, || simulation.run(work).expect("the run ends"))
}

#[test]
fn what_is_acknowledged_while_a_volume_is_drained_is_committed() {
    let moments = || (0..40).map(|step| Duration::from_millis(1 + 500 * step));
    let mut refused = Vec::new();
    for before in moments() {
        let (some, lost) = write_while_draining(None, before);
        assert_eq!(lost, [0; 0], "begun {before:?} before the drain");
        refused.push(some);
    }
    assert!(
        refused.iter().any(|some| *some > 0),
        "{refused:?}: some come too late"
    );
    let bug = Some("volume.change_after_drain");
    let is_caught = moments().any(|before| !write_while_draining(bug, before).1.is_empty());
    assert!(is_caught, "the bug, planted again, loses some");
}

#[test]
fn a_rekey_waits_for_what_the_store_shows_late() {
    let simulation = Simulation::new(5);
    let world = World::new(&simulation);
    let made = world.format_and_open();
    let mut cold = world.machine_beside(&simulation, "cold");
    let epochs = [1, 2].map(|epoch| (KeyEpoch(epoch), EpochKey::from_bytes([epoch as u8 + 2; 32])));
    let work = async move {
        let volume = made.await;
        let file = create(&volume, volume.root(), "file").await;
        for block in 0..200_u64 {
            // What does not compress: many segments.
            let mut data = vec![0; 32 << 10];
            let mut noise = blake3::Hasher::new().update(&block.to_le_bytes()).finalize_xof();
            noise.fill(&mut data);
            write(&volume, file, block * (32 << 10), data).await;
        }
        volume.drain().await.expect("drained");

        let until = Arc::new(Mutex::new(None));
        cold.keys = Keys::new(cold.keys.family(), epochs.into_iter().collect());
        cold.store = Arc::new(ShowsLate {
            inner: cold.store.clone(),
            env: cold.env.clone(),
            until: until.clone(),
        });
        let env = cold.env.clone();
        let (volume, _) = Volume::open(cold, config()).await.expect("it opens");
        *until.lock().expect("no panic under this lock") = Some(env.now().after(Duration::from_secs(2)));
        volume.rekey_start(1 << 30).await.expect("started");
        for _ in 0..100 {
            if volume.rekey_status().under_way.is_none() {
                break;
            }
            env.sleep(Duration::from_secs(1)).await;
        }
        volume.rekey_status().last.expect("it ended")
    };
    let last = simulation.run(work).expect("the run ends");
    assert_eq!((last.end, last.counts.unreadable), (RekeyEnd::Done, 0));
}
