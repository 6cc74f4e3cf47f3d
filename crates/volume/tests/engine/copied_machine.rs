//! A machine that was copied with its disk, and even with its source of randomness: no key and nonce seal two contents.

use crate::{
    files::{create, look, write},
    world::{World, config},
};
use firn_env::{
    Env,
    mutants::planting,
    sim::{DiskImage, Simulation},
};
use firn_format::{
    JOURNAL_HEADER_BYTES, JournalFileHeader, SegmentId, WriterId, decode_object, decode_segment,
};
use firn_store::Store;
use firn_vfs::Vfs;
use firn_volume::{Parts, Volume};
use futures::future::BoxFuture;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

/// A machine's environment with the randomness that all copies of the machine have: what its image had gathered.
#[derive(Clone)]
struct SameRandomness {
    env: Env,
    stream: Arc<Mutex<blake3::OutputReader>>,
}

fn with_the_same_randomness(env: &Env) -> Env {
    let stream = blake3::Hasher::new_derive_key("the randomness of a copied machine").finalize_xof();
    let same = SameRandomness {
        env: env.clone(),
        stream: Arc::new(Mutex::new(stream)),
    };
    Env::new(firn_env::Parts {
        clock: Arc::new(same.clone()),
        random: Arc::new(same.clone()),
        tasks: Arc::new(same),
        disk: env.disk().clone(),
        network: env.network().clone(),
        faults: env.faults().clone(),
    })
}

impl firn_env::Random for SameRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        self.stream.lock().expect("no panic under this lock").fill(bytes);
    }
}

impl firn_env::Clock for SameRandomness {
    fn now(&self) -> firn_env::Monotonic {
        self.env.now()
    }

    fn wall(&self) -> firn_env::WallTime {
        self.env.wall()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let env = self.env.clone();
        Box::pin(async move { env.sleep(duration).await })
    }
}

impl firn_env::Tasks for SameRandomness {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) -> Box<dyn Fn() + Send + Sync> {
        let task = self.env.spawn(name, future);
        Box::new(move || task.abort())
    }

    fn spawn_compute(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }
}

/// Of the journal's files on a disk: by salt, whose they say they are.
fn journals(image: &DiskImage) -> BTreeMap<[u8; 32], WriterId> {
    let files = image
        .files
        .iter()
        .filter(|(path, _)| path.starts_with("journal/"));
    files
        .filter_map(|(_, file)| {
            let bytes = file.to_bytes();
            let header = JournalFileHeader::decode(bytes.get(..JOURNAL_HEADER_BYTES)?).ok()?;
            Some((header.salt, header.writer))
        })
        .collect()
}

/// Of all segments in the store: by salt and nonce, the objects that were sealed so.
async fn sealed(store: &dyn Store) -> BTreeMap<([u8; 32], u32), BTreeSet<(SegmentId, u32)>> {
    let mut found: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    let mut after = None;
    loop {
        let page = store.list("", after.as_ref()).await.expect("it answers");
        for object in &page.objects {
            let bytes = store.get(&object.key).await.expect("it answers");
            let Ok(segment) = decode_segment(bytes) else {
                continue;
            };
            for entry in &segment.entries {
                let object = decode_object(segment.object(entry)).expect("an object");
                let seal = object.unverified_header().seal;
                let places = found.entry((seal.salt, seal.slot)).or_default();
                places.insert((segment.id, entry.offset));
            }
        }
        after = page.objects.last().map(|object| object.key.clone());
        if !page.more {
            return found;
        }
    }
}

#[derive(Debug, Default)]
struct Copies {
    /// Salts of journal files that two copies have sealed under since they were copied.
    repeated_in_journals: usize,
    /// Of all segments, how often one salt and nonce sealed two objects.
    repeated_in_segments: usize,
    /// Names under which journals of both copies were written since.
    common_writers: usize,
    /// Journal files that each of them began.
    begun: Vec<usize>,
}

/// A machine is copied twice in the middle of its work; each copy starts, writes and commits, the second after the first has ended.
/// With a bug planted in them they only write: a commit over what another has would end the matter otherwise.
fn copied_twice(bug: Option<&str>) -> Copies {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let opening = world.format_and_open();
    simulation
        .run(async move {
            let volume = opening.await;
            let file = create(&volume, volume.root(), "letter").await;
            write(&volume, file, 0, vec![1; 100_000]).await;
            volume.sync().await.expect("committed");
            // In the journal only: every copy has it to replay.
            write(&volume, file, 50_000, vec![2; 100_000]).await;
        })
        .expect("the run ends");
    world.end();
    let before = journals(&world.disk_image());
    let commits = bug.is_none();
    let mut copies = Copies::default();
    let mut begun: Vec<BTreeMap<[u8; 32], WriterId>> = Vec::new();
    for number in 0..2_u8 {
        let machine = world.copy_machine(&simulation, &format!("copy-{number}"));
        let env = machine.restart();
        // The anchor would notice: it refuses an owner whose random grant is the one that is there.
        let parts = Parts {
            env: with_the_same_randomness(&env),
            ..world.parts_in(&env)
        };
        let disk = machine.disk();
        let work = async move {
            let (volume, _) = Volume::open(parts, config()).await.expect("it opens");
            let file = look(&volume, &["letter"]).await.expect("it is there");
            write(&volume, file, 0, vec![number + 3; 200_000]).await;
            let mut own = journals(&disk.image());
            if commits {
                volume.sync().await.expect("committed");
                own.extend(journals(&disk.image()));
            }
            own
        };
        let own = planting(bug, || simulation.run(work)).expect("the run ends");
        machine.crash();
        begun.push(
            own.into_iter()
                .filter(|(salt, _)| !before.contains_key(salt))
                .collect(),
        );
    }
    copies.begun = begun.iter().map(BTreeMap::len).collect();
    copies.repeated_in_journals = begun[1]
        .keys()
        .filter(|salt| begun[0].contains_key(*salt))
        .count();
    let writers: Vec<BTreeSet<WriterId>> = begun
        .iter()
        .map(|journals| journals.values().copied().collect())
        .collect();
    copies.common_writers = writers[0].intersection(&writers[1]).count();
    let store = world.own_parts().store;
    let all = simulation
        .run(async move { sealed(&*store).await })
        .expect("the run ends");
    copies.repeated_in_segments = all.values().filter(|places| places.len() > 1).count();
    copies
}

#[test]
fn a_copied_state_directory_seals_under_another_writers_name_and_no_nonce_is_used_twice() {
    let copies = copied_twice(None);
    assert!(copies.begun.iter().all(|begun| *begun > 0), "{copies:?}");
    assert_eq!(copies.common_writers, 0, "{copies:?}");
    assert_eq!(copies.repeated_in_journals, 0, "{copies:?}");
    assert_eq!(copies.repeated_in_segments, 0, "{copies:?}");

    let careless = copied_twice(Some("volume.reuse_writer_incarnation"));
    assert!(
        careless.common_writers > 0 && careless.repeated_in_journals > 0,
        "the test does not meet what it is for: {careless:?}"
    );
}
