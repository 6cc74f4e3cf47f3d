//! Offices that were broken and never come back: what is retained for the oldest is given up for the next that has to be broken, not before its time, and its journal
//! is put on no root afterwards.

mod beside_a_cleaner;

use super::offices::{Machines, connected, make, patient, start};
use crate::{
    files::{create, read, write},
    world::root,
};
use firn_anchor::{MAX_RETAINED_ROOTS, MemberNumber, OwnerId};
use firn_env::{
    Disk,
    mutants::planting,
    sim::{Limits, Simulation},
};
use firn_leases::RETAINED_FOR;
use firn_vfs::Vfs;
use firn_volume::{MemberStartError, Parts, Volume};
use std::time::Duration;

/// Members that start and are not heard of again; all but the last are broken, so that with the one that is broken already every place is taken.
async fn are_broken_and_stay_away(parts: &Parts) -> MemberNumber {
    let (anchor, volume) = (&parts.anchor, parts.volume);
    let breaker = anchor.join_volume(volume, OwnerId([99; 16]), "breaker").await;
    let mut breaker = anchor
        .start_member(volume, breaker.expect("it joins"))
        .await
        .expect("it starts");
    let mut last = breaker.member();
    for place in 0..MAX_RETAINED_ROOTS as u8 {
        let name = format!("closed {place}");
        let joined = anchor.join_volume(volume, OwnerId([100 + place; 16]), &name);
        last = joined.await.expect("it joins");
        anchor.start_member(volume, last).await.expect("it starts");
        if usize::from(place) + 1 < MAX_RETAINED_ROOTS {
            break_member(parts, &mut breaker, last, 1).await;
        }
    }
    anchor.leave(&mut breaker).await.expect("it leaves");
    last
}

/// By a member that joins for that, and leaves.
async fn break_beside(parts: &Parts, member: MemberNumber, name: &str, number: u64) {
    let (anchor, volume) = (&parts.anchor, parts.volume);
    let edge = OwnerId(parts.env.random_bytes());
    let breaker = anchor.join_volume(volume, edge, name).await;
    let breaker = anchor.start_member(volume, breaker.expect("it joins")).await;
    let mut breaker = breaker.expect("it starts");
    break_member(parts, &mut breaker, member, number).await;
    anchor.leave(&mut breaker).await.expect("it leaves");
}

/// A member as the anchor has it now.
async fn entry_of(parts: &Parts, member: MemberNumber) -> firn_anchor::MemberEntry {
    let found = parts.anchor.member(parts.volume, member).await;
    let (tuple, version) = found.expect("it joined");
    firn_anchor::MemberEntry {
        member,
        tuple,
        version,
    }
}

/// Takes an inode of its home from it, of which nobody but the member itself has had the lease.
async fn break_member(
    parts: &Parts,
    breaker: &mut firn_anchor::Membership,
    member: MemberNumber,
    number: u64,
) {
    let silent = entry_of(parts, member).await;
    let at = ((u64::from(member.0) << 32) + number, 0);
    let broken = parts.anchor.break_member(breaker, at, &silent).await;
    broken.expect("it is broken");
}

/// What an administrator does with the journal.
async fn put_away(disk: &dyn Disk, directory: &str) {
    disk.create_directory("kept").await.expect("a directory");
    for file in disk.list(directory).await.expect("a list") {
        let kept = disk
            .rename(&format!("{directory}/{file}"), &format!("kept/{file}"))
            .await;
        kept.expect("it is moved");
    }
}

/// How a history ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    /// Whether the last of all could be broken.
    is_broken: bool,
    /// Whether the first was told that what was retained for it was given up.
    is_told: bool,
    /// What the file has after the first is back.
    file: Vec<u8>,
}

/// What the first does before somebody needs its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    Nothing,
    /// It comes back, and is broken again while it judges its journal.
    Return,
}

/// The first office is broken with an unpublished change; all places for roots are taken; after a time a second one has to break one more, and changes what the first had
/// changed; then the first comes back.
fn first_of_many(bug: Option<&str>, after: Duration, between: Between) -> Outcome {
    planting(bug, || {
        let limits = Limits {
            time: RETAINED_FOR * 2,
            ..Limits::default()
        };
        let machines = Machines::new(Simulation::with_limits(41, limits));
        let (simulation, world) = (&machines.simulation, &machines.world);
        let (own, client) = connected(world, &machines.first);
        let (other, _) = connected(world, &machines.second);
        let ran = simulation.run(async move {
            let numbers = make(&own, 2).await;
            let volume = start(&own, numbers[0], &patient()).await;
            let file = create(&volume, volume.root(), "file").await;
            write(&volume, file, 0, vec![0; 4]).await;
            volume.sync().await.expect("published");
            client.set_outage(true);
            write(&volume, file, 0, vec![1; 4]).await;
            (numbers, file)
        });
        let (numbers, file) = ran.expect("the run ends");
        machines.restart_first();
        let number = numbers[0];
        let gone = other.clone();
        let ran = simulation.run(async move {
            break_beside(&gone, number, "first breaker", 1001).await;
            let last = are_broken_and_stay_away(&gone).await;
            gone.env.sleep(after).await;
            last
        });
        let last = ran.expect("the run ends");
        if between == Between::Return {
            machines.first.crash_at("by_inode.before_build", 1);
            let (own, _) = connected(world, &machines.first);
            let env = own.env.clone();
            let starts = async move { drop(Volume::open_by_inode(own, patient(), number).await) };
            let ran = simulation.run(async move { env.spawn("start", starts).await.is_err() });
            assert!(
                ran.expect("the run ends"),
                "it crashes before its journal is judged"
            );
            machines.first.restart();
            let beside = other.clone();
            let ran =
                simulation.run(async move { break_beside(&beside, number, "second breaker", 1002).await });
            ran.expect("the run ends");
        }
        let ran = simulation.run(async move {
            let second = start(&other, numbers[1], &patient()).await;
            let member = second.member_by_inode().expect("a member").clone();
            let inode = (u64::from(last.0) << 32) + 1;
            let taken = other
                .env
                .timeout(Duration::from_secs(200), member.acquire(&[inode]))
                .await;
            let is_broken = match taken.expect("it is answered") {
                Ok(pins) => {
                    drop(pins);
                    true
                }
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains("the oldest for office since"), "{text}");
                    false
                }
            };
            second.catch_up().await.expect("the root is read");
            write(&second, file, 0, vec![2; 4]).await;
            second.sync().await.expect("published");
            // It is closed for good, with the file's lease where it was: home, as after a return of the lease.
            let given = member.give_home(file.inode).await;
            assert!(given.expect("it is given"), "it is the first's home");
            (second, is_broken)
        });
        let (second, is_broken) = ran.expect("the run ends");
        let (own, _) = connected(world, &machines.first);
        let ran = simulation.run(async move {
            let (volume, is_told) = match Volume::open_by_inode(own.clone(), patient(), number).await {
                Ok((volume, _)) => (volume, false),
                Err(MemberStartError::GivenUp { directory, .. }) => {
                    let again = Volume::open_by_inode(own.clone(), patient(), number).await;
                    assert!(
                        matches!(again, Err(MemberStartError::GivenUp { .. })),
                        "as often as it starts"
                    );
                    put_away(&**own.env.disk(), &directory).await;
                    (start(&own, number, &patient()).await, true)
                }
                Err(error) => panic!("{error}"),
            };
            volume.sync().await.expect("published");
            second.catch_up().await.expect("the root is read");
            let read = read(&second, file, 0, 4).await.expect("it is read");
            // What it does from here on is its own again, over a restart.
            create(&volume, volume.root(), "after").await;
            volume.stop().await.expect("it stops");
            let volume = start(&own, number, &patient()).await;
            let removed = volume
                .remove(&root(), volume.root(), &crate::files::name("after"))
                .await;
            removed.expect("it is there");
            (is_told, read)
        });
        let (is_told, file) = ran.expect("the run ends");
        Outcome {
            is_broken,
            is_told,
            file,
        }
    })
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[test]
fn the_oldest_that_was_kept_for_its_time_is_given_up_for_who_has_to_be_broken_and_its_journal_goes_nowhere() {
    let kept_to_the_end = Outcome {
        is_broken: true,
        is_told: true,
        file: vec![2; 4],
    };
    assert_eq!(
        first_of_many(None, RETAINED_FOR + DAY, Between::Nothing),
        kept_to_the_end
    );
    let refused = first_of_many(
        Some("leases.never_gives_up"),
        RETAINED_FOR + DAY,
        Between::Nothing,
    );
    assert!(!refused.is_broken && !refused.is_told, "{refused:?}");
    let replayed = first_of_many(
        Some("volume.given_up_goes_on"),
        RETAINED_FOR + DAY,
        Between::Nothing,
    );
    assert_eq!(replayed.file, [1; 4], "what another committed is gone");
}

#[test]
fn before_its_time_nothing_is_given_up_and_who_waits_is_told_who_stands_in_the_way() {
    let returned = Outcome {
        is_broken: false,
        is_told: false,
        file: vec![2; 4],
    };
    assert_eq!(
        first_of_many(None, RETAINED_FOR - DAY, Between::Nothing),
        returned
    );
    let early = first_of_many(
        Some("leases.gives_up_early"),
        RETAINED_FOR - DAY,
        Between::Nothing,
    );
    assert!(early.is_told, "{early:?}");
}

#[test]
fn who_was_there_again_is_kept_for_its_time_from_then_on() {
    let returned = Outcome {
        is_broken: true,
        is_told: false,
        file: vec![2; 4],
    };
    assert_eq!(first_of_many(None, RETAINED_FOR + DAY, Between::Return), returned);
    let bug = Some("anchor.retained_since_the_first_break");
    let given_up = first_of_many(bug, RETAINED_FOR + DAY, Between::Return);
    assert!(given_up.is_told, "{given_up:?}");
}
