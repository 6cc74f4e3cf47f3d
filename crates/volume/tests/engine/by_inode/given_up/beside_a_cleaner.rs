//! A root that was given up beside a cleaner: what only that one needed goes, and nothing that another needs; and no clone stands on it.

use super::{break_member, entry_of, put_away};
use crate::{
    by_inode::{
        cleaned::{clean_with, is_noticed},
        offices::{Machines, Started, connected, make, patient, start},
    },
    files::{create, look, read, write},
};
use firn_anchor::{MemberNumber, OwnerId};
use firn_env::{
    mutants::planting,
    sim::{Seeded, Simulation},
};
use firn_leases::Member;
use firn_vfs::{FileHandle, Vfs};
use firn_volume::{MemberStartError, Parts, Volume, VolumeError};
use std::{sync::Arc, time::Duration};

const FILE_BYTES: usize = 50_000;

/// What a file has that was written so many times: nothing that compresses.
fn content(times: u64) -> Vec<u8> {
    let mut content = vec![0; FILE_BYTES];
    Seeded::new(times, 0).fill(&mut content);
    content
}

/// Has a member be there that went away while nobody asked anything of it.
async fn is_back(member: Arc<Member>) {
    if member.is_away().await {
        member.come_back().await.expect("it comes back");
    }
}

async fn has(volume: &Volume, name: &str) -> Vec<u8> {
    let file = look(volume, &[name]).await.expect("it is there");
    let found = read(volume, file, 0, FILE_BYTES as u64).await;
    found.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The files `a` and `b`, written once.
async fn publish_two(volume: &Volume) -> Vec<FileHandle> {
    let mut files = Vec::new();
    for name in ["a", "b"] {
        let file = create(volume, volume.root(), name).await;
        write(volume, file, 0, content(1)).await;
        files.push(file);
    }
    volume.sync().await.expect("published");
    files
}

/// Breaks who holds these, and writes all of them once more.
async fn break_and_write(volume: &Volume, files: &[FileHandle], times: u64) {
    let member = volume.member_by_inode().expect("a member").clone();
    let inodes: Vec<u64> = files.iter().map(|file| file.inode).collect();
    drop(member.acquire(&inodes).await.expect("they are taken"));
    volume.catch_up().await.expect("the root is read");
    for file in files {
        write(volume, *file, 0, content(times)).await;
    }
    volume.sync().await.expect("published");
}

/// Two offices are broken with something unpublished, one after the other, and what the roots have that are kept for them is overwritten by a third. The root of the first
/// is given up, and a cleaner cleans; then both come back.
fn one_of_two_is_given_up() {
    let machines = Machines::new(Simulation::new(43));
    let (simulation, world) = (&machines.simulation, machines.world.clone());
    let third = simulation.machine("third");
    let (own, table) = connected(&world, &machines.first);
    let (other, _) = connected(&world, &machines.second);
    let (beside, its_table) = connected(&world, &third);
    let ran = simulation.run(async move {
        let numbers = make(&own, 3).await;
        let volume = start(&own, numbers[0], &patient()).await;
        let second = start(&other, numbers[1], &patient()).await;
        let files = publish_two(&volume).await;
        table.set_outage(true);
        write(&volume, files[0], 0, content(2)).await;
        break_and_write(&second, &files, 3).await;
        (numbers, files, second)
    });
    let (numbers, mut files, second) = ran.expect("the run ends");
    machines.restart_first();
    let (first_number, third_number) = (numbers[0], numbers[2]);
    let ran = simulation.run(async move {
        let volume = start(&beside, third_number, &patient()).await;
        let file = create(&volume, volume.root(), "c").await;
        write(&volume, file, 0, content(1)).await;
        volume.sync().await.expect("published");
        its_table.set_outage(true);
        write(&volume, file, 0, content(2)).await;
        files.push(file);
        break_and_write(&second, &files[2..], 4).await;
        break_and_write(&second, &files, 4).await;
        second
    });
    let second = Arc::new(ran.expect("the run ends"));
    third.crash();
    third.restart();
    let stored = |what: &str| {
        let (within, env) = (world.clone(), simulation.env());
        let cleaned = simulation.run(async move { clean_with(&within, &env, Duration::from_secs(60)).await });
        cleaned.expect("the run ends");
        let bytes = world.store().stored_bytes();
        println!("{bytes} bytes stored {what}");
        bytes
    };
    let before = stored("with both roots");
    let giving = second.clone();
    let ran = simulation.run(async move {
        let member = giving.member_by_inode().expect("a member");
        is_back(member.clone()).await;
        let given_up = member.give_up(first_number).await.expect("it answers");
        assert!(given_up, "it is retained");
        assert!(!member.give_up(first_number).await.expect("it answers"), "once");
    });
    ran.expect("the run ends");
    let freed = before - stored("with one");
    let only_there = 2 * FILE_BYTES as u64;
    assert!(
        (only_there..only_there + 50_000).contains(&freed),
        "{freed} bytes freed of {only_there}"
    );
    let (parts, _) = connected(&world, &third);
    let ran = simulation.run(async move {
        let started = Volume::open_by_inode(parts, patient(), third_number).await;
        let (volume, report) = started.expect("its root is there");
        (volume, report.salvage.expect("what it wrote is lost").volume)
    });
    let (_volume, clone) = ran.expect("the run ends");
    let parts = world.elsewhere(simulation, clone);
    let ran = simulation.run(async move {
        let (clone, _) = Volume::open(parts, patient()).await.expect("it opens");
        for (name, times) in [("a", 3), ("b", 3), ("c", 2)] {
            assert!(has(&clone, name).await == content(times), "{name} of the clone");
        }
    });
    ran.expect("the run ends");
    let (parts, _) = connected(&world, &machines.first);
    let ran = simulation.run(async move {
        let volume = comes_back(&parts, first_number).await;
        volume.sync().await.expect("published");
        is_back(second.member_by_inode().expect("a member")).await;
        second.catch_up().await.expect("the root is read");
        for name in ["a", "b", "c"] {
            assert!(has(&volume, name).await == content(4), "{name}");
            assert!(has(&second, name).await == content(4), "{name} at the second");
        }
    });
    ran.expect("the run ends");
}

/// Told what it was told before, it starts without its journal.
async fn comes_back(parts: &Parts, number: MemberNumber) -> Volume {
    match Volume::open_by_inode(parts.clone(), patient(), number).await {
        Err(MemberStartError::GivenUp { directory, .. }) => {
            put_away(&**parts.env.disk(), &directory).await;
        }
        Ok(_) => {}
        Err(error) => panic!("{error}"),
    }
    start(parts, number, &patient()).await
}

#[test]
fn what_only_a_root_that_was_given_up_needed_is_deleted_and_nothing_else() {
    one_of_two_is_given_up();
}

#[test]
fn a_cleaner_that_deletes_what_another_root_needs_and_a_journal_that_goes_on_are_noticed() {
    is_noticed("cleaner.ignore_retained_roots", one_of_two_is_given_up);
    is_noticed("volume.given_up_goes_on", one_of_two_is_given_up);
}

/// How a start ended while which the root that it judged by was given up, and cleaned up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It serves, and every clone can be read.
    Serves,
    /// As told by the look that comes before the clone.
    Refused,
    /// It was broken.
    Broken,
    /// There is a clone of what is not there any more.
    CloneIsDamaged,
}

/// So long a request to the table takes, each way.
const TRAVEL: Duration = Duration::from_millis(100);

fn given_up_while_it_judges(after: Duration) -> Ended {
    let machines = Machines::new(Simulation::new(44));
    let (simulation, world) = (&machines.simulation, machines.world.clone());
    let (number, second) = machines.start(move |started: Started| async move {
        let (volume, second) = (started.first, started.second);
        let files = publish_two(&volume).await;
        started.table.set_outage(true);
        write(&volume, files[0], 0, content(2)).await;
        break_and_write(&second, &files, 3).await;
        (started.numbers[0], second)
    });
    machines.restart_first();
    let (own, table) = connected(&world, &machines.first);
    table.set_rates(firn_table::FaultRates {
        delay: TRAVEL..=TRAVEL,
        ..firn_table::FaultRates::default()
    });
    let (other, _) = connected(&world, &machines.second);
    let (within, env) = (world.clone(), simulation.env());
    let ran = simulation.run(async move {
        let joined = other
            .anchor
            .join_volume(other.volume, OwnerId([9; 16]), "breaker")
            .await;
        let started = other
            .anchor
            .start_member(other.volume, joined.expect("it joins"))
            .await;
        let mut breaker = started.expect("it starts");
        let starting = own.env.clone().spawn("start", async move {
            let opened = Volume::open_by_inode(own, patient(), number).await;
            opened.map(|(volume, _)| volume)
        });
        let record = || async { entry_of(&other, number).await.tuple.record };
        while record().await.incarnation.is_none() {
            env.sleep(Duration::from_millis(1)).await;
        }
        env.sleep(after).await;
        if record().await.incarnation.is_some() {
            break_member(&other, &mut breaker, number, 1001).await;
            let broken = entry_of(&other, number).await;
            let given_up = other.anchor.give_up(&mut breaker, &broken).await;
            given_up.expect("it answers");
            clean_with(&within, &env, Duration::from_millis(20)).await;
        }
        let ended = starting.await.expect("the machine is up");
        let volumes = other.anchor.volumes().await.expect("it answers");
        let clones = volumes.into_iter().filter(|entry| entry.volume != other.volume);
        let clones: Vec<_> = clones.filter(|entry| entry.tuple.root.is_some()).collect();
        drop(second);
        (ended.map(drop), clones)
    });
    let (ended, clones) = ran.expect("the run ends");
    for entry in clones {
        let parts = world.elsewhere(simulation, entry.volume);
        let ran = simulation.run(async move {
            let Ok((clone, _)) = Volume::open(parts, patient()).await else {
                return false;
            };
            let b = match look(&clone, &["b"]).await {
                Ok(file) => read(&clone, file, 0, FILE_BYTES as u64).await,
                Err(error) => Err(error),
            };
            b.is_ok_and(|b| b == content(1))
        });
        if !ran.expect("the run ends") {
            return Ended::CloneIsDamaged;
        }
    }
    match ended {
        Ok(()) => Ended::Serves,
        Err(MemberStartError::Volume(VolumeError::RetainedNoMore)) => Ended::Refused,
        Err(MemberStartError::Member(_)) => Ended::Broken,
        Err(error) => panic!("{error}"),
    }
}

/// The last moments are those between the read of the root and the look before the clone is made. Later ones are not tried: nobody gives up what was broken a moment ago.
#[test]
fn a_clone_is_made_only_of_a_root_that_is_still_retained() {
    let at = |bug, place| planting(bug, || given_up_while_it_judges(place * TRAVEL / 4));
    let mut refused = Vec::new();
    for place in 0..100 {
        match at(None, place) {
            Ended::Refused => refused.push(place),
            _ if !refused.is_empty() => break,
            // It is told at its first sign of life.
            Ended::Broken | Ended::Serves => {}
            Ended::CloneIsDamaged => panic!("at {place}"),
        }
    }
    let blind = |place: &u32| at(Some("volume.salvages_onto_what_is_gone"), *place);
    let blind: Vec<_> = refused.iter().map(blind).collect();
    println!("refused at {refused:?} quarters of a journey to the table; without the look: {blind:?}");
    assert!(blind.contains(&Ended::CloneIsDamaged), "{blind:?}");
}
