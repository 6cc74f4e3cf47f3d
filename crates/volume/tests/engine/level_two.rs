//! Calls that are answered at level 2: what that promises, who shares a commit, and what becomes of them while the cloud is away.

use crate::{
    files::{look, name, read},
    world::{World, config, root},
};
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_env::{mutants::planting, sim::Simulation};
use firn_store::{FaultConfig, FaultControl, Faults, Faulty, Outage};
use firn_table::FaultRates;
use firn_vfs::{
    Caller, CreateMode, Created, Durability, FileHandle, RequestId, SetAttributes, Stability, Vfs, VfsError,
};
use firn_volume::{FormatOptions, OnDisconnect, Parts, Volume, VolumeConfig, VolumeError};
use std::{sync::Arc, time::Duration};

/// Root, who is answered once what it changed is in the cloud.
fn in_cloud() -> Caller {
    Caller {
        durability: Durability::Cloud,
        ..root()
    }
}

async fn create(volume: &Volume, text: &str) -> Result<Created, VfsError> {
    let mode = CreateMode::Guarded(SetAttributes::default());
    volume.create(&in_cloud(), volume.root(), &name(text), mode).await
}

async fn write(volume: &Volume, file: FileHandle, data: &'static [u8], stability: Stability) {
    let data = vec![Bytes::from_static(data)];
    let written = volume.write(&in_cloud(), file, 0, data, stability).await;
    written.expect("written");
}

/// Nothing is committed but for who waits for it.
fn lazy() -> VolumeConfig {
    let mut config = config();
    config.cadence.busy = Duration::from_secs(3600);
    config.cadence.trickle = Duration::from_secs(3600);
    config
}

/// What an edge acknowledged at level 2, read by another one after the first was lost with its disk.
fn after_the_loss(unstable: bool) -> Result<Vec<u8>, VfsError> {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let opening = world.format_and_open();
    world.attempt(&simulation, async move {
        let volume = opening.await;
        let file = create(&volume, "contract").await.expect("made").handle;
        if unstable {
            write(&volume, file, b"signed", Stability::Unstable).await;
            volume.commit(&in_cloud(), file).await.expect("committed");
        } else {
            write(&volume, file, b"signed", Stability::FileSync).await;
        }
    });
    world.end();
    let parts = world.machine_beside(&simulation, "another");
    simulation
        .run(async move {
            Volume::takeover(&parts, &config()).await.expect("taken over");
            let volume = Volume::open(parts, config()).await.expect("it opens").0;
            let file = look(&volume, &["contract"]).await?;
            read(&volume, file, 0, 100).await
        })
        .expect("the run ends")
}

#[test]
fn what_was_answered_at_level_two_survives_the_loss_of_the_machine_with_its_disk() {
    assert_eq!(after_the_loss(false), Ok(b"signed".to_vec()));
    assert_eq!(after_the_loss(true), Ok(b"signed".to_vec()));
}

/// The volume over a store that is 50 ms away, a table that is 20, and what makes the store fail.
fn over_a_slow_line(world: &World) -> (Parts, FaultControl) {
    let parts = world.own_parts();
    let faults = FaultConfig {
        faults: slow(Outage::None),
        ..FaultConfig::default()
    };
    let faulty = Faulty::new(&parts.env, parts.store.clone(), faults).expect("the faults make sense");
    let control = faulty.control();
    let table = world.table().connect(&parts.env);
    table.set_rates(FaultRates {
        delay: Duration::from_millis(20)..=Duration::from_millis(20),
        ..FaultRates::default()
    });
    let parts = Parts {
        store: Arc::new(faulty),
        anchor: Anchor::new(table, parts.env.clone(), parts.anchor.family()),
        ..parts
    };
    (parts, control)
}

fn slow(outage: Outage) -> Faults {
    Faults {
        latency_ms: 50,
        outage,
        ..Faults::default()
    }
}

async fn opened(parts: Parts, config: VolumeConfig) -> Volume {
    parts.anchor.create_family().await.expect("a new family");
    let formatted = Volume::format(&parts, "test", FormatOptions::default(), &config).await;
    formatted.expect("it is formatted");
    Volume::open(parts, config).await.expect("it opens").0
}

/// Whether what a client made is there after the machine was lost in the moment in which the client was answered, who came while the commit
/// for another one was under way.
fn joiner_is_kept() -> bool {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let (parts, _) = over_a_slow_line(&world);
    let env = world.env();
    world.attempt(&simulation, async move {
        let volume = opened(parts, lazy()).await;
        let (first, clock) = (volume.clone(), env.clone());
        drop(env.spawn("first", async move { create(&first, "first").await }));
        clock.sleep(Duration::from_millis(10)).await;
        create(&volume, "joiner").await.expect("made");
    });
    world.end();
    let parts = world.machine_beside(&simulation, "another");
    simulation
        .run(async move {
            match Volume::takeover(&parts, &config()).await {
                Ok(_) => {}
                Err(VolumeError::StaleTable(stale)) if stale.is_in_doubt() => {
                    let accepted = Volume::accept_rollback(&parts, &config()).await;
                    accepted.expect("taken over");
                }
                Err(error) => panic!("{error}"),
            }
            let volume = Volume::open(parts, config()).await.expect("it opens").0;
            look(&volume, &["joiner"]).await.is_ok()
        })
        .expect("the run ends")
}

#[test]
fn a_commit_that_began_before_a_change_does_not_answer_it_nor_one_that_is_not_committed() {
    assert!(joiner_is_kept());
    for planted in ["volume.level_two_by_any_commit", "volume.level_two_before_root"] {
        assert!(
            !planting(Some(planted), joiner_is_kept),
            "{planted} is not noticed"
        );
    }
}

#[test]
fn those_who_wait_share_a_commit() {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let (parts, _) = over_a_slow_line(&world);
    let env = world.env();
    let status = simulation
        .run(async move {
            let volume = opened(parts, lazy()).await;
            let clients: Vec<_> = (0..40_u64)
                .map(|number| {
                    let (volume, clock) = (volume.clone(), env.clone());
                    env.spawn("client", async move {
                        clock.sleep(Duration::from_millis(number)).await;
                        create(&volume, &format!("file-{number}")).await.expect("made");
                    })
                })
                .collect();
            for client in clients {
                client.await.expect("it ends");
            }
            volume.status()
        })
        .expect("the run ends");
    let waits = status.cloud_waits;
    assert_eq!((waits.answered, waits.waiting), (40, 0), "{waits:?}");
    assert_eq!((waits.refused, waits.accepted, waits.away), (0, 0, None));
    assert!(waits.commits <= 3, "each had a commit of its own: {waits:?}");
    assert!(waits.largest_group >= 20, "{waits:?}");
    // The commit under way when they came, and their own.
    assert!(waits.longest <= Duration::from_millis(500), "{waits:?}");
}

/// A creation that was under way when the store went away, one that came later, a COMMIT; then the store is back.
fn through_an_outage(on_disconnect: OnDisconnect) -> [Result<(), VfsError>; 3] {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let (parts, control) = over_a_slow_line(&world);
    let env = world.env();
    let config = VolumeConfig {
        on_disconnect,
        ..lazy()
    };
    simulation
        .run(async move {
            let volume = opened(parts, config).await;
            let file = create(&volume, "before").await.expect("made").handle;
            control.set(slow(Outage::Hang)).expect("the faults make sense");
            let (of, clock) = (volume.clone(), env.clone());
            let under_way = env.spawn("under way", async move { create(&of, "under way").await });
            clock.sleep(Duration::from_secs(15)).await;
            assert!(volume.status().cloud_waits.away.is_some());
            let later = create(&volume, "later").await;
            write(&volume, file, b"changed", Stability::Unstable).await;
            let committed = volume.commit(&in_cloud(), file).await;
            // Whatever became of it, it is not known to be in the cloud: a client that asks at level 1 is answered.
            volume.commit(&root(), file).await.expect("level 1");
            control.set(slow(Outage::None)).expect("the faults make sense");
            let under_way = under_way.await.expect("it ends");
            volume.sync().await.expect("in the cloud");
            create(&volume, "after").await.expect("made");
            let status = volume.status().cloud_waits;
            assert_eq!((status.away, status.waiting), (None, 0), "{status:?}");
            [under_way.map(drop), later.map(drop), committed.map(drop)]
        })
        .expect("the run ends")
}

#[test]
fn while_the_cloud_is_away_calls_wait_fail_or_are_accepted_as_they_are_told_to() {
    let is_later = |result: &Result<(), VfsError>| matches!(result, Err(VfsError::TryAgain { .. }));
    let [under_way, later, committed] = through_an_outage(OnDisconnect::Wait);
    assert_eq!(under_way, Ok(()));
    assert!(is_later(&later), "{later:?}");
    assert!(is_later(&committed), "{committed:?}");
    let failed = || Err(VfsError::NotInCloud);
    assert_eq!(
        through_an_outage(OnDisconnect::Fail),
        [failed(), failed(), failed()]
    );
    assert_eq!(through_an_outage(OnDisconnect::Accept), [Ok(()), Ok(()), Ok(())]);
}

#[test]
fn a_change_that_waits_when_the_edge_stops_is_not_answered_and_is_there_after_the_next_start() {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    let (parts, control) = over_a_slow_line(&world);
    let env = world.env();
    simulation
        .run(async move {
            let volume = opened(parts, lazy()).await;
            control.set(slow(Outage::Hang)).expect("the faults make sense");
            let of = volume.clone();
            let waiting = env.spawn("waiting", async move { create(&of, "minutes").await });
            env.sleep(Duration::from_secs(1)).await;
            volume.stop().await.expect("stopped");
            let ended = waiting.await.expect("it ends").map(drop);
            assert_eq!(ended, Err(VfsError::Unanswered));
        })
        .expect("the run ends");
    let volume = world.power_cut(&simulation);
    let meter = world.meter();
    simulation
        .run(async move {
            look(&volume, &["minutes"]).await.expect("it is there");
            // Who is told now that it was made is told so at level 2.
            let before = meter.usage().requests();
            volume.settle(&in_cloud()).await.expect("settled");
            assert!(meter.usage().requests() > before);
            assert_eq!(volume.status().oldest_uncommitted, None);
        })
        .expect("the run ends");
}

/// Whoever waits for an answer asks again after a crash, however long ago the call was carried out.
#[test]
fn a_call_that_waited_long_is_recognised_after_a_crash_though_others_came_later() {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    let (parts, control) = over_a_slow_line(&world);
    let env = world.env();
    let request = |transaction| RequestId {
        client: 7,
        transaction,
        checksum: 0,
    };
    let asked = request(1);
    simulation
        .run(async move {
            let volume = opened(parts, lazy()).await;
            control.set(slow(Outage::Hang)).expect("the faults make sense");
            let (of, caller) = (
                volume.clone(),
                Caller {
                    request: Some(asked),
                    ..in_cloud()
                },
            );
            let waiting = env.spawn("waiting", async move {
                let mode = CreateMode::Guarded(SetAttributes::default());
                of.create(&caller, of.root(), &name("asked"), mode).await
            });
            env.sleep(Duration::from_secs(600)).await;
            let another = Caller {
                request: Some(request(2)),
                ..root()
            };
            volume
                .make_directory(
                    &another,
                    volume.root(),
                    &name("meanwhile"),
                    SetAttributes::default(),
                )
                .await
                .expect("level 1");
            control.set(slow(Outage::None)).expect("the faults make sense");
            waiting.await.expect("it ends").expect("made");
            // The next commit, from which the next start goes on.
            create(&volume, "after").await.expect("made");
        })
        .expect("the run ends");
    let volume = world.power_cut(&simulation);
    let known = volume.completed_requests();
    assert!(known.iter().any(|done| done.request == asked), "{known:?}");
}

#[test]
fn a_commit_waits_for_changes_of_its_own_file_only() {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let (parts, control) = over_a_slow_line(&world);
    simulation
        .run(async move {
            let volume = opened(parts, lazy()).await;
            let quiet = create(&volume, "quiet").await.expect("made").handle;
            let busy = create(&volume, "busy").await.expect("made").handle;
            control.set(slow(Outage::Hang)).expect("the faults make sense");
            write(&volume, busy, b"changed", Stability::Unstable).await;
            volume
                .commit(&in_cloud(), quiet)
                .await
                .expect("nothing to wait for");
            let waits = volume.commit(&in_cloud(), busy).await;
            assert!(matches!(waits, Err(VfsError::TryAgain { .. })), "{waits:?}");
        })
        .expect("the run ends");
}

#[test]
fn a_snapshot_that_was_being_made_at_a_stop_is_in_the_cloud_and_the_next_start_needs_none() {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    let (parts, _control) = over_a_slow_line(&world);
    let env = world.env();
    simulation
        .run(async move {
            let volume = opened(parts, lazy()).await;
            create(&volume, "minutes").await.expect("made");
            let of = volume.clone();
            let making = env.spawn("making", async move { of.snapshot_create("noon", 0).await });
            // Its record is in the journal, its segment under way.
            while !volume.status().building {
                env.sleep(Duration::from_millis(1)).await;
            }
            volume.stop().await.expect("stopped");
            making.await.expect("it ends").expect("made");
        })
        .expect("the run ends");
    world.power_cut_only();
    let parts = world.own_parts();
    let opened = simulation.run(async move { Volume::open_detached(parts, config()).await.map(drop) });
    opened.expect("the run ends").expect("no cloud is needed");
}
