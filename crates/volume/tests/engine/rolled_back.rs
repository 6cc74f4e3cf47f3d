//! A table that was put back to an earlier moment: whoever opens the volume next notices, whichever moment it was.

use crate::{
    files::{create, look, read, write},
    world::{World, config},
};
use firn_anchor::AnchorError;
use firn_env::{mutants::planting, sim::Simulation};
use firn_format::{KeyEpoch, Version, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::{ObjectKey, PutMode, Store};
use firn_table::MemoryTableImage;
use firn_vfs::Vfs;
use firn_volume::{Contradiction, Parts, StaleTable, Volume, VolumeError, recover};
use std::collections::BTreeMap;

/// What the owner does between two moments.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Changes something and commits it.
    Commit,
    /// Stops cleanly and starts again.
    Restart,
    /// Loses power and starts again.
    PowerCut,
    /// Gives the volume up and takes it again.
    Drain,
}

/// Steps from a seed: not all of one kind.
fn history(seed: u64) -> Vec<Step> {
    let mut dice = blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof();
    let mut next = || {
        let mut byte = [0];
        dice.fill(&mut byte);
        byte[0]
    };
    (0..6 + next() % 5)
        .map(|_| match next() % 8 {
            0..=4 => Step::Commit,
            5 => Step::Restart,
            6 => Step::PowerCut,
            _ => Step::Drain,
        })
        .collect()
}

/// A moment of the table, and whether a root was committed after it.
struct Moment {
    image: MemoryTableImage,
    root: Option<Version>,
}

fn root_in(simulation: &Simulation, parts: &Parts) -> Option<Version> {
    let parts = parts.clone();
    simulation
        .run(async move {
            let tuple = parts.anchor.load(parts.volume).await.expect("it answers").0;
            tuple.root.map(|root| root.version)
        })
        .expect("the run ends")
}

/// Runs a history; what the table was after each step. The machine is down at its end.
fn run(simulation: &Simulation, world: &mut World, steps: &[Step]) -> Vec<Moment> {
    let made = world.format_and_open();
    let mut volume = simulation.run(made).expect("the run ends");
    let mut moments = Vec::new();
    let mut keep = |simulation: &Simulation, world: &World| {
        let image = world.table().image();
        let root = root_in(simulation, &world.own_parts());
        moments.push(Moment { image, root });
    };
    keep(simulation, world);
    for (number, step) in steps.iter().enumerate() {
        volume = match step {
            Step::Commit => {
                let work = async move {
                    create(&volume, volume.root(), &format!("file {number}")).await;
                    volume.sync().await.expect("committed");
                    volume
                };
                simulation.run(work).expect("the run ends")
            }
            Step::PowerCut => world.power_cut(simulation),
            Step::Restart | Step::Drain => {
                let drains = matches!(step, Step::Drain);
                let work = async move {
                    match drains {
                        true => volume.drain().await.expect("drained"),
                        false => volume.stop().await.expect("stopped"),
                    };
                };
                simulation.run(work).expect("the run ends");
                keep(simulation, world);
                let parts = world.own_parts();
                let open = async move { Volume::open(parts, config()).await.expect("it opens").0 };
                simulation.run(open).expect("the run ends")
            }
        };
        keep(simulation, world);
    }
    world.end();
    moments
}

/// Who opens the volume on the table as it was put back.
#[derive(Clone, Copy, Debug)]
enum Opener {
    /// The edge that had it, with its state directory.
    Old,
    /// A machine that never saw it, after the owner gave it up or not.
    Fresh,
    /// The same, by force.
    Takeover,
    /// Whoever looks for volumes in the bucket.
    Recover,
}

/// What it is told; `None`: it goes on.
fn told(simulation: &Simulation, world: &mut World, opener: Opener, name: &str) -> Option<VolumeError> {
    let parts = match opener {
        Opener::Old => world.parts_in(&world.copy_machine(simulation, name).restart()),
        Opener::Fresh | Opener::Takeover | Opener::Recover => world.machine_beside(simulation, name),
    };
    let work = async move {
        match opener {
            Opener::Old | Opener::Fresh => match Volume::open(parts, config()).await {
                Ok((volume, _)) => {
                    volume.stop().await.expect("stopped");
                    None
                }
                Err(error) => Some(error),
            },
            Opener::Takeover => Volume::takeover(&parts, &config()).await.err(),
            Opener::Recover => {
                let scan = recover::scan(&parts, &config()).await.expect("it answers");
                let found = &scan.volumes[0];
                let stale = recover::stale_table(&parts, &config(), found)
                    .await
                    .expect("it answers");
                stale.map(|stale| Box::new(stale).into())
            }
        }
    };
    simulation.run(work).expect("the run ends")
}

const OPENERS: [Opener; 4] = [Opener::Old, Opener::Fresh, Opener::Takeover, Opener::Recover];

#[test]
fn every_opener_notices_a_table_put_back_to_any_moment_before_its_newest_root() {
    let mut seen = 0;
    for seed in 0..12 {
        let simulation = Simulation::new(seed);
        let mut world = World::new(&simulation);
        let steps = history(seed);
        let moments = run(&simulation, &mut world, &steps);
        let newest = moments.last().expect("there is one").root;
        let now = world.table().image();
        // What is tried on a table that is right leaves statements, so only the others are tried.
        let earlier = moments
            .iter()
            .enumerate()
            .filter(|(_, moment)| moment.root < newest);
        for (at, moment) in earlier {
            for opener in OPENERS {
                world.table().restore(&moment.image);
                let told = told(&simulation, &mut world, opener, &format!("{opener:?} {at}"));
                let what = format!("seed {seed}, {steps:?}, moment {at}, {opener:?}: {told:?}");
                match told {
                    Some(VolumeError::StaleTable(_) | VolumeError::RolledBack(_)) => seen += 1,
                    // An owner is named first: nothing is served, and the takeover that this leads to is told the rest.
                    Some(VolumeError::Anchor(AnchorError::OwnedByOther { .. }))
                        if matches!(opener, Opener::Fresh) => {}
                    _ => panic!("{what}"),
                }
            }
        }
        world.table().restore(&now);
        // The newest table is no rolled-back one to anybody. (Last, as statements are left.)
        let told = told(&simulation, &mut world, Opener::Recover, "looks");
        assert!(told.is_none(), "seed {seed}, {steps:?}: {told:?}");
        let told = self::told(&simulation, &mut world, Opener::Takeover, "takes over");
        assert!(told.is_none(), "seed {seed}, {steps:?}: {told:?}");
    }
    assert!(
        seen > 100,
        "{seen} rolled-back tables were noticed: too few to say anything"
    );
}

/// Formats, commits twice, and puts the table back to before the second; the machine is down.
fn put_back(simulation: &Simulation, world: &mut World) {
    let made = world.format_and_open();
    let volume = simulation.run(made).expect("the run ends");
    let table = world.table();
    let work = async move {
        let file = create(&volume, volume.root(), "kept").await;
        write(&volume, file, 0, b"first".to_vec()).await;
        volume.sync().await.expect("committed");
        let before = table.image();
        create(&volume, volume.root(), "given up").await;
        volume.sync().await.expect("committed");
        write(&volume, file, 0, b"third".to_vec()).await;
        volume.sync().await.expect("committed");
        table.restore(&before);
    };
    simulation.run(work).expect("the run ends");
    world.end();
}

fn stale(error: Option<VolumeError>) -> StaleTable {
    match error {
        Some(VolumeError::StaleTable(stale)) => *stale,
        other => panic!("not told: {other:?}"),
    }
}

#[test]
fn without_the_check_a_fresh_machine_goes_on_from_an_old_root() {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    put_back(&simulation, &mut world);
    let found = stale(told(&simulation, &mut world, Opener::Takeover, "checks"));
    assert!(
        matches!(found.contradiction, Contradiction::LaterCheckpoint(_)),
        "{found:?}"
    );
    let trusting = || told(&simulation, &mut world, Opener::Takeover, "trusts");
    let told = planting(Some("volume.trust_the_table"), trusting);
    assert!(told.is_none(), "{told:?}");
}

#[test]
fn what_an_administrator_accepts_is_gone_on_from_and_nobody_is_told_again() {
    let simulation = Simulation::new(2);
    let mut world = World::new(&simulation);
    put_back(&simulation, &mut world);
    let old = world.parts_in(&world.copy_machine(&simulation, "old").restart());
    let parts = world.machine_beside(&simulation, "accepts");
    let other = world.machine_beside(&simulation, "comes later");
    let work = async move {
        let refused = Volume::takeover(&parts, &config()).await.err();
        let refused = stale(refused);
        let report = Volume::accept_rollback(&parts, &config())
            .await
            .expect("accepted");
        let report = report.expect("there was something");
        assert_eq!(report.stale, Some(refused.clone()));
        assert_eq!(Some(report.accepted), refused.table);
        let again = Volume::accept_rollback(&parts, &config()).await.expect("looked");
        assert_eq!(again, None, "once is enough");

        let (volume, _) = Volume::open(parts.clone(), config()).await.expect("it opens");
        let kept = look(&volume, &["kept"]).await.expect("it was there");
        assert_eq!(read(&volume, kept, 0, 5).await.expect("it is read"), b"first");
        assert!(look(&volume, &["given up"]).await.is_err());
        write(&volume, kept, 0, b"after".to_vec()).await;
        volume.drain().await.expect("drained");

        // The machine that wrote what was given up remembers it, and is not surprised twice either.
        let seen = Volume::open(old.clone(), config()).await.err();
        assert!(seen.is_some(), "it saw newer roots");
        let report = Volume::accept_rollback(&old, &config()).await.expect("accepted");
        assert!(report.is_some());
        let (volume, _) = Volume::open(old, config()).await.expect("it opens");
        let kept = look(&volume, &["kept"]).await.expect("it was there");
        assert_eq!(read(&volume, kept, 0, 5).await.expect("it is read"), b"after");
        volume.drain().await.expect("drained");

        let (volume, _) = Volume::open(other.clone(), config()).await.expect("it opens");
        volume.drain().await.expect("drained");
        // A recovery goes on from the accepted branch, too, not from what was given up.
        let scan = recover::scan(&other, &config()).await.expect("it answers");
        let tuple = other.anchor.load(other.volume).await.expect("it answers").0;
        assert_eq!(
            Some(Version(scan.volumes[0].version)),
            tuple.root.map(|root| root.version)
        );
    };
    simulation.run(work).expect("the run ends");
}

#[test]
fn the_owner_that_died_between_upload_and_commit_starts_and_others_are_asked() {
    let simulation = Simulation::new(3);
    let mut world = World::new(&simulation);
    let made = world.format_and_open();
    let volume = simulation.run(made).expect("the run ends");
    world.crash_at("checkpoint.before_commit");
    let work = async move {
        create(&volume, volume.root(), "in doubt").await;
        let _ = volume.sync().await;
    };
    world.attempt(&simulation, work);
    let found = stale(told(&simulation, &mut world, Opener::Takeover, "another"));
    assert!(found.is_in_doubt(), "{found:?}");
    // Its own journal has it.
    assert!(told(&simulation, &mut world, Opener::Old, "the same").is_none());
    // And now that it said what it went out from, nobody is asked any more.
    assert!(told(&simulation, &mut world, Opener::Takeover, "a third").is_none());
}

#[test]
fn a_root_that_its_owner_did_not_sign_is_refused_and_junk_is_passed_over() {
    let simulation = Simulation::new(4);
    let mut world = World::new(&simulation);
    let made = world.format_and_open();
    let volume = simulation.run(made).expect("the run ends");
    let work = async move {
        create(&volume, volume.root(), "a file").await;
        volume.sync().await.expect("committed");
    };
    simulation.run(work).expect("the run ends");
    world.end();
    let parts = world.own_parts();
    let store = world.store();
    let tuple = {
        let parts = parts.clone();
        let load = async move { parts.anchor.load(parts.volume).await.expect("it answers").0 };
        simulation.run(load).expect("the run ends")
    };
    assert!(tuple.root.as_ref().is_some_and(|root| root.signature.is_some()));
    let now = world.table().image();
    for (what, flip) in [("the signature", None), ("the time of the commit", Some(1))] {
        let mut changed = tuple.clone();
        let root = changed.root.as_mut().expect("it has one");
        match flip {
            None => root.signature = None,
            Some(more) => root.committed_at_ms += more,
        }
        world.put_tuple(&simulation, &changed.to_bytes());
        let found = stale(told(&simulation, &mut world, Opener::Takeover, what));
        assert!(
            matches!(found.contradiction, Contradiction::NotSigned { .. }),
            "{what}: {found:?}"
        );
        world.table().restore(&now);
    }
    // Junk before the newest statement: a little of it is passed over, much of it is told.
    let put = move |count: u64| {
        let (store, family, volume) = (store.clone(), parts.anchor.family(), parts.volume);
        async move {
            for number in 0..count {
                let key = format!("{family}/owner/{}/{number:016x}-junk", VolumeId::hex(&volume));
                let junk = vec![bytes::Bytes::from_static(b"junk")];
                let put = store.put(&ObjectKey::new(&key), junk, PutMode::Overwrite).await;
                put.expect("it is put");
            }
        }
    };
    simulation.run(put(64)).expect("the run ends");
    assert!(told(&simulation, &mut world, Opener::Recover, "a little").is_none());
    simulation.run(put(65)).expect("the run ends");
    let found = stale(told(&simulation, &mut world, Opener::Recover, "much"));
    assert!(
        matches!(found.contradiction, Contradiction::Hidden { .. }),
        "{found:?}"
    );
}

#[test]
fn statements_under_keys_that_were_dropped_keep_nobody_out() {
    let simulation = Simulation::new(6);
    let world = World::new(&simulation);
    let made = world.format_and_open();
    let volume = simulation.run(made).expect("the run ends");
    let parts = world.own_parts();
    let later = BTreeMap::from([(KeyEpoch(2), EpochKey::from_bytes([4; 32]))]);
    let later = Parts {
        keys: Keys::new(parts.anchor.family(), later),
        ..parts.clone()
    };
    let work = async move {
        volume.stop().await.expect("stopped");
        for _ in 0..66 {
            Volume::takeover(&parts, &config()).await.expect("taken");
        }
        let scan = recover::scan(&parts, &config()).await.expect("it answers");
        let found = &scan.volumes[0];
        let stale = recover::stale_table(&later, &config(), found).await;
        assert_eq!(stale.expect("it answers"), None);
    };
    simulation.run(work).expect("the run ends");
}

#[test]
fn a_start_asks_the_store_for_five_things_more() {
    let simulation = Simulation::new(5);
    let mut world = World::new(&simulation);
    let made = world.format_and_open();
    let volume = simulation.run(made).expect("the run ends");
    let (parts, meter) = (world.own_parts(), world.meter());
    let work = async move {
        create(&volume, volume.root(), "a file").await;
        volume.stop().await.expect("stopped");
        let before = meter.usage();
        let (volume, _) = Volume::open(parts, config()).await.expect("it opens");
        let used = meter.usage().since(&before);
        assert_eq!((used.lists, used.puts), (3, 1), "{used:?}");
        assert!(
            used.gets <= 3,
            "the statement, and the checkpoint if it is not in the cache: {used:?}"
        );
        volume.stop().await.expect("stopped");
    };
    simulation.run(work).expect("the run ends");
    let _ = &mut world;
}
