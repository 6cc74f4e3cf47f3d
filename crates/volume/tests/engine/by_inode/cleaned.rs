//! A cleaner beside members: what they wrote over comes back as free space, and what one may still refer to stays.

use super::offices::{make, patient, start, with_two};
use crate::{
    files::{create, look, read, write},
    world::World,
};
use firn_anchor::{Anchor, OwnerId};
use firn_cleaner::{Cleaner, Limits, Report};
use firn_env::{Env, mutants::planting, sim::Simulation};
use firn_format::{SegmentId, WriterId};
use firn_table::FaultRates;
use firn_vfs::Vfs;
use firn_volume::ByInodeVfs;
use futures::future::{Either, select};
use std::{collections::BTreeSet, pin::pin, sync::Arc, time::Duration};

const GRACE: Duration = Duration::from_secs(60);

async fn clean(world: &World, env: &Env) -> Vec<Report> {
    clean_with(world, env, GRACE).await
}

/// Cleans until there is nothing more to do; the reports of all runs.
pub async fn clean_with(world: &World, env: &Env, grace: Duration) -> Vec<Report> {
    let parts = world.parts_in(env);
    let limits = Limits {
        grace,
        ..Limits::default()
    };
    let mut cleaner = Cleaner::new(env, parts.store, &parts.anchor, limits);
    let mut reports = Vec::new();
    loop {
        let report = cleaner.run().await.expect("it cleans");
        let nothing = report.retired_segments + report.deleted_segments + report.waiting_segments == 0;
        assert!(report.damaged.is_empty(), "{report:?}");
        reports.push(report);
        if nothing {
            return reports;
        }
        env.sleep(2 * grace).await;
    }
}

fn sum(reports: &[Report], of: impl Fn(&Report) -> u64) -> u64 {
    reports.iter().map(of).sum()
}

/// The segments of a writer that are in the store.
fn segments_of(world: &World, writer: WriterId) -> BTreeSet<u64> {
    let contents = world.store().contents();
    let segments = contents
        .keys()
        .filter_map(|key| SegmentId::parse_key(key.as_str()));
    let own = segments.filter(|(_, segment)| segment.writer == writer);
    own.map(|(_, segment)| segment.sequence).collect()
}

#[test]
fn what_members_wrote_over_comes_back_as_free_space() {
    with_two(11, |env, volumes, world| async move {
        let mut files = Vec::new();
        for (number, volume) in volumes.iter().enumerate() {
            files.push(create(volume, volume.root(), &format!("file {number}")).await);
        }
        for round in 1..=20_u8 {
            for (volume, file) in volumes.iter().zip(&files) {
                let content: Vec<u8> = (0..100_000_u32)
                    .map(|at| ((at * 7919) >> 5) as u8 ^ round)
                    .collect();
                write(volume, *file, 0, content).await;
                volume.sync().await.expect("published");
            }
        }
        let before = world.store().stored_bytes();
        let reports = clean(&world, &env).await;
        let after = world.store().stored_bytes();
        let deleted = sum(&reports, |report| report.deleted_segments);
        let moved = sum(&reports, |report| report.moved_objects);
        println!("{before} bytes before, {after} after; {deleted} segments deleted, {moved} objects moved");
        assert!(after * 5 < before, "{before} bytes before, {after} after");
        assert!(deleted >= 30, "{deleted} segments deleted");
        assert!(
            sum(&reports, |report| report.proposals) == 0,
            "members merge none"
        );
        for volume in &volumes {
            volume.catch_up().await.expect("the root is read");
            for number in 0..2 {
                let file = look(volume, &[&format!("file {number}")])
                    .await
                    .expect("it is there");
                let content = read(volume, file, 0, 100_000).await.expect("it is read");
                assert!(
                    content
                        .iter()
                        .enumerate()
                        .all(|(at, byte)| *byte == ((at as u32 * 7919) >> 5) as u8 ^ 20)
                );
            }
        }
    });
}

#[test]
fn what_is_in_no_root_yet_stays_until_its_writer_is_over() {
    let simulation = Simulation::new(12);
    let world = Arc::new(World::new(&simulation));
    let machine = simulation.machine("first");
    let parts = world.parts_in(&machine.env());
    let (number, volume) = simulation
        .run(async move {
            let number = make(&parts, 1).await[0];
            let volume = start(&parts, number, &patient()).await;
            let file = create(&volume, volume.root(), "file").await;
            write(&volume, file, 0, vec![1; 50_000]).await;
            volume.sync().await.expect("published");
            write(&volume, file, 0, vec![2; 50_000]).await;
            (number, volume)
        })
        .expect("the run ends");
    let writer = volume.member_by_inode().expect("a member").incarnation();
    let before = segments_of(&world, writer);
    // All is uploaded, and no commit sent.
    machine.crash_at("by_inode.after_build", 1);
    let env = machine.env();
    simulation
        .run(async move {
            let ended = env.spawn("publishing", async move { volume.sync().await }).await;
            assert!(ended.is_err(), "the machine is down");
        })
        .expect("the run ends");
    let unrooted: BTreeSet<u64> = &segments_of(&world, writer) - &before;
    assert!(!unrooted.is_empty(), "something was uploaded");
    let run_cleaner = |what: &str| {
        let (within, env) = (world.clone(), simulation.env());
        let reports = simulation
            .run(async move { clean(&within, &env).await })
            .expect("the run ends");
        let left: BTreeSet<u64> = &segments_of(&world, writer) & &unrooted;
        println!(
            "{what}: {} of {} segments in no root are left",
            left.len(),
            unrooted.len()
        );
        (reports, left)
    };
    let (reports, left) = run_cleaner("its writer may commit");
    assert_eq!(left, unrooted);
    assert!(reports[0].uncommitted_segments > 0, "{reports:?}");
    let env = machine.restart();
    let parts = world.parts_in(&env);
    let volume = simulation
        .run(async move { start(&parts, number, &patient()).await })
        .expect("the run ends");
    let (_, left) = run_cleaner("its writer is over");
    assert!(left.is_empty(), "{left:?}");
    simulation
        .run(async move {
            let file = look(&volume, &["file"]).await.expect("it is there");
            let content = read(&volume, file, 0, 50_000).await.expect("it is read");
            assert_eq!(content, vec![2; 50_000], "the journal has it");
        })
        .expect("the run ends");
}

/// Whether a scenario fails once a rule is left out.
pub fn is_noticed(bug: &str, scenario: fn()) {
    let ran = planting(Some(bug), || std::panic::catch_unwind(scenario));
    assert!(ran.is_err(), "{bug}");
}

#[test]
fn a_member_that_only_reads_goes_on_to_newer_roots_before_what_it_knows_is_deleted() {
    reads_only();
}

#[test]
fn a_member_that_adopts_only_what_it_is_asked_for_is_noticed() {
    is_noticed("volume.adopts_when_asked", reads_only);
}

fn reads_only() {
    with_two(13, |env, [first, second], world| async move {
        let own = create(&second, second.root(), "own").await;
        write(&second, own, 0, vec![1; 10]).await;
        second.sync().await.expect("published");
        let file = create(&first, first.root(), "file").await;
        write(&first, file, 0, vec![1; 50_000]).await;
        first.sync().await.expect("published");
        second.catch_up().await.expect("the root is read");
        let seen = second.attributes(file).await.expect("it is there");
        assert_eq!(seen.size_bytes, 50_000);
        write(&first, file, 0, vec![2; 60_000]).await;
        first.sync().await.expect("published");
        // As long as a cleaner waits that nobody told otherwise, and while it works; clients read what the office holds, so that it stays.
        let clients = ByInodeVfs::new(second.clone(), Duration::ZERO);
        let cleaning = async {
            env.sleep(Limits::default().grace / 2).await;
            clean(&world, &env).await
        };
        let asking = async {
            loop {
                Vfs::attributes(&clients, own).await.expect("it is there");
                env.sleep(Duration::from_secs(100)).await;
            }
        };
        let (cleaning, asking) = (pin!(cleaning), pin!(asking));
        let reports = match select(cleaning, asking).await {
            Either::Left((reports, _)) => reports,
            Either::Right((never, _)) => never,
        };
        assert!(sum(&reports, |report| report.deleted_segments) > 0, "{reports:?}");
        let content = read(&second, file, 0, 60_000).await.expect("it is read");
        assert_eq!(content, vec![2; 60_000]);
    });
}

/// Seconds that each call of a slow cleaner takes to the table.
const CALL_SECONDS: u64 = 60;

/// Calls of a run, in each of which the office commits and starts again in one of the scenarios.
const CALLS: u64 = 16;

/// An office commits, and starts again, in each of the calls that a cleaner makes; whether what it committed is there afterwards.
fn starts_again_while_a_cleaner_looks() {
    for call in 0..CALLS {
        starts_again_in(call);
    }
}

fn starts_again_in(call: u64) {
    let simulation = Simulation::new(15 + call);
    let world = Arc::new(World::new(&simulation));
    let beside = world.machine_beside(&simulation, "office");
    let cleaner = world.parts_in(&simulation.machine("cleaner").env());
    let env = simulation.env();
    simulation
        .run(async move {
            let number = make(&beside, 1).await[0];
            let volume = start(&beside, number, &patient()).await;
            let file = create(&volume, volume.root(), "file").await;
            write(&volume, file, 0, vec![1; 50_000]).await;
            volume.sync().await.expect("published");
            let client = world.table().connect(&cleaner.env);
            let each = Duration::from_secs(CALL_SECONDS);
            client.set_rates(FaultRates {
                delay: each..=each,
                ..FaultRates::default()
            });
            let anchor = Anchor::new(client, cleaner.env.clone(), cleaner.anchor.family());
            let limits = Limits {
                time: Duration::from_secs(100_000),
                cleaner_lease: Duration::from_secs(100_000),
                free_per_mille: 0,
                grace: GRACE,
                ..Limits::default()
            };
            let mut slow = Cleaner::new(&cleaner.env, cleaner.store.clone(), &anchor, limits);
            let cleaning = cleaner.env.spawn("clean", async move { slow.run().await });
            env.sleep(Duration::from_secs(call * CALL_SECONDS + CALL_SECONDS / 2))
                .await;
            write(&volume, file, 0, vec![2; 50_000]).await;
            volume.sync().await.expect("published");
            volume.stop().await.expect("it stops");
            let volume = start(&beside, number, &patient()).await;
            cleaning.await.expect("the machine is up").expect("it cleans");
            env.sleep(2 * GRACE).await;
            clean(&world, &env).await;
            volume.stop().await.expect("it stops");
            // It knows nothing of what it wrote.
            let fresh = world.own_parts();
            let joined = fresh
                .anchor
                .join_volume(fresh.volume, OwnerId([9; 16]), "reader")
                .await;
            let reader = start(&fresh, joined.expect("it joins"), &patient()).await;
            let file = look(&reader, &["file"]).await.expect("it is there");
            let content = read(&reader, file, 0, 50_000).await.expect("it is read");
            assert_eq!(content, vec![2; 50_000], "call {call}");
        })
        .expect("the run ends");
}

#[test]
fn what_an_office_commits_before_it_starts_again_is_kept_whenever_a_cleaner_looks() {
    starts_again_while_a_cleaner_looks();
}

#[test]
fn a_cleaner_that_reads_heads_before_members_is_noticed() {
    is_noticed("cleaner.heads_before_members", starts_again_while_a_cleaner_looks);
}
