//! An hour, in virtual time, in which the service is away: writers on level 1 (journal) go on, nothing is lost, and what waited is committed by
//! itself when it is back.

use crate::wire::{Caller, Services};
use bytes::Bytes;
use firn_anchor::{Anchor, AnchorRole};
use firn_env::{Env, sim::Simulation};
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_identity::{TenantId, TenantVolume};
use firn_seal::{EpochKey, Keys};
use firn_store::MemoryStore;
use firn_table::{FaultRates, MemoryTable};
use firn_vfs::{
    Caller as Requester, CreateMode, Credentials, FileHandle, Name, SetAttributes, Stability, Vfs as _,
};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const FAMILY: FamilyId = FamilyId([1; 16]);
const VOLUME: VolumeId = VolumeId([2; 16]);
const NAMED: TenantVolume = TenantVolume {
    tenant: TenantId([3; 16]),
    volume: VOLUME,
};
/// A write every ten seconds, for an hour.
const WRITES: u64 = 360;
const PAUSE: Duration = Duration::from_secs(10);
const WRITE_BYTES: usize = 20_000;
/// The service is asked again after a minute at most, and then the upload is under way already.
const CATCHES_UP: Duration = Duration::from_secs(180);

fn root() -> Requester {
    Requester {
        credentials: Credentials::root(),
        request: None,
        durability: firn_vfs::Durability::Journal,
    }
}

fn parts(services: &Arc<Services>, store: &Arc<MemoryStore>, env: &Env) -> Parts {
    let caller = Caller::new(services, NAMED, AnchorRole::Edge);
    Parts {
        env: env.clone(),
        store: store.clone(),
        second: None,
        anchor: Anchor::over(Arc::new(caller), env.clone(), FAMILY),
        keys: Keys::new(
            FAMILY,
            BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([4; 32]))]),
        ),
        volume: VOLUME,
    }
}

fn config(owner: &str) -> VolumeConfig {
    VolumeConfig {
        owner_name: owner.into(),
        segment_bytes: 256 << 10,
        memory_cache_bytes: 4 << 20,
        disk_cache_bytes: 16 << 20,
        journal_bytes: 32 << 20,
        journal_file_bytes: 4 << 20,
        dirty_memory_bytes: 1 << 20,
        ..VolumeConfig::default()
    }
}

fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(WRITE_BYTES / 8)
}

async fn write(volume: &Volume, file: FileHandle, number: u64) {
    let data = vec![Bytes::from(content(number))];
    let offset = number * WRITE_BYTES as u64;
    let written = volume
        .write(&root(), file, offset, data, Stability::FileSync)
        .await;
    written.expect("it is on level 1");
}

async fn read_back(volume: &Volume, writes: u64) {
    let name = Name::new(b"diary".to_vec()).expect("a name");
    let (file, _) = volume
        .lookup(&root(), volume.root(), &name)
        .await
        .expect("the file");
    for number in 0..writes {
        let offset = number * WRITE_BYTES as u64;
        let length = WRITE_BYTES as u32;
        let read = volume
            .read(&root(), file, offset, length)
            .await
            .expect("it is read");
        assert!(
            read.data.concat() == content(number),
            "write {number} is not what was written"
        );
    }
}

#[test]
fn with_the_anchor_away_for_an_hour_writers_go_on_and_it_catches_up_by_itself() {
    let simulation = Simulation::new(11);
    let machine = simulation.machine("edge");
    let table = MemoryTable::new();
    let store = Arc::new(MemoryStore::new(&simulation.env()));
    let services = Services::new(&simulation.env(), &table, FaultRates::default());
    let given = parts(&services, &store, &machine.env());
    let (env, away) = (machine.env(), services.clone());
    let hour = Duration::from_secs(3600);
    let began = simulation.elapsed();
    simulation
        .run(async move {
            given.anchor.create_family().await.expect("a family");
            let formatted = Volume::format(&given, "main", FormatOptions::default(), &config("edge")).await;
            formatted.expect("a volume");
            let (anchor, config) = (given.anchor.clone(), config("edge"));
            let (volume, _) = Volume::open(given, config).await.expect("it opens");
            let name = Name::new(b"diary".to_vec()).expect("a name");
            let mode = CreateMode::Guarded(SetAttributes::default());
            let made = volume.create(&root(), volume.root(), &name, mode).await;
            let file = made.expect("a file").handle;
            volume.sync().await.expect("level 2");
            let before = anchor.load(VOLUME).await.expect("a tuple").0;

            away.be_away(true);
            for number in 0..WRITES {
                write(&volume, file, number).await;
                env.sleep(PAUSE).await;
            }
            let status = volume.status();
            let oldest = status.oldest_uncommitted.expect("something waits");
            assert!(oldest > Duration::from_secs(3500), "{oldest:?}");
            assert!(status.last_error.is_some(), "it is told");

            // Nobody asks for anything: it comes to itself.
            away.be_away(false);
            env.sleep(CATCHES_UP).await;
            let status = volume.status();
            assert_eq!(
                status.oldest_uncommitted, None,
                "it caught up: {:?}",
                status.last_error
            );
            let after = anchor.load(VOLUME).await.expect("a tuple").0;
            assert_eq!(after.epoch, before.epoch, "under the ownership that it had");
            assert!(after.root.expect("a root").version > before.root.expect("a root").version);
            assert!((before.commits + 1..before.commits + 10).contains(&after.commits));
        })
        .expect("the run ends");
    assert!(simulation.elapsed() - began > hour);

    // What is on level 2 needs nothing of the machine any more.
    machine.crash();
    let given = parts(&services, &store, &simulation.machine("another").env());
    simulation
        .run(async move {
            let config = config("another");
            Volume::takeover(&given, &config).await.expect("taken over");
            let (volume, _) = Volume::open(given, config).await.expect("it opens");
            read_back(&volume, WRITES).await;
            assert!(volume.verify(&|_| {}).await.expect("verified").is_whole());
        })
        .expect("the run ends");
}

#[test]
fn a_power_cut_within_that_hour_loses_nothing_either() {
    let simulation = Simulation::new(12);
    let machine = simulation.machine("edge");
    let table = MemoryTable::new();
    let store = Arc::new(MemoryStore::new(&simulation.env()));
    let services = Services::new(&simulation.env(), &table, FaultRates::default());
    let given = parts(&services, &store, &machine.env());
    let (env, away) = (machine.env(), services.clone());
    let file = simulation
        .run(async move {
            given.anchor.create_family().await.expect("a family");
            let formatted = Volume::format(&given, "main", FormatOptions::default(), &config("edge")).await;
            formatted.expect("a volume");
            let (volume, _) = Volume::open(given, config("edge")).await.expect("it opens");
            let name = Name::new(b"diary".to_vec()).expect("a name");
            let mode = CreateMode::Guarded(SetAttributes::default());
            let made = volume.create(&root(), volume.root(), &name, mode).await;
            let file = made.expect("a file").handle;
            volume.sync().await.expect("level 2");
            away.be_away(true);
            for number in 0..WRITES / 2 {
                write(&volume, file, number).await;
                env.sleep(PAUSE).await;
            }
            file
        })
        .expect("the run ends");

    machine.crash();
    let given = parts(&services, &store, &machine.restart());
    let (env, away) = (machine.env(), services.clone());
    simulation
        .run(async move {
            // As the edge does it while the anchor is away, and once it is back (decision 0098).
            let opened = Volume::open_detached(given, config("edge")).await;
            let (volume, _) = opened.expect("it opens without the anchor");
            for number in WRITES / 2..WRITES {
                write(&volume, file, number).await;
                env.sleep(PAUSE).await;
            }
            away.be_away(false);
            volume.stop().await.expect("stopped");
        })
        .expect("the run ends");
    let given = parts(&services, &store, &machine.env());
    let env = machine.env();
    simulation
        .run(async move {
            let (volume, _) = Volume::open(given, config("edge")).await.expect("it opens");
            env.sleep(CATCHES_UP).await;
            assert_eq!(volume.status().oldest_uncommitted, None, "it caught up");
            read_back(&volume, WRITES).await;
        })
        .expect("the run ends");
}
