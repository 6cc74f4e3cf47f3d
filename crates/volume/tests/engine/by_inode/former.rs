//! A volume that an owner wrote before it was shared by inode: its numbers are the homes of writers that were never members, hence nobody's.

use super::offices::{patient, start};
use crate::{
    files::{create, directory, look, name, read, write},
    world::{World, root},
};
use firn_anchor::{AnchorError, MemberNumber, OwnerId};
use firn_env::{mutants::planting, sim::Simulation};
use firn_vfs::{FileHandle, SetAttributes, Vfs};
use firn_volume::{FormatOptions, Parts, Volume};

/// No volume is shared so late (`Anchor::share_by_inode`); what its members would do holds nevertheless.
const SHARED_LATE: &str = "anchor.shares_what_was_written";

/// More than an arena has leases.
const FILES: usize = 600;

/// The owner's directories, each with its files.
const DIRECTORIES: [&str; 2] = ["first", "second"];

/// An owner writes the volume and leaves it; then it is shared by inode, and two join.
async fn written_by_an_owner(parts: &Parts) -> [MemberNumber; 2] {
    let anchor = &parts.anchor;
    anchor.create_family().await.expect("a new family");
    let made = Volume::format(parts, "shared", FormatOptions::default(), &patient()).await;
    made.expect("it is formatted");
    let (owner, _) = Volume::open(parts.clone(), patient()).await.expect("it opens");
    for text in DIRECTORIES {
        let within = directory(&owner, owner.root(), text).await;
        for number in 0..FILES / 2 {
            let file = create(&owner, within, &format!("file {number}")).await;
            write(&owner, file, 0, vec![1; 10]).await;
        }
    }
    owner.drain().await.expect("drained");
    anchor.share_by_inode(parts.volume).await.expect("nobody owns it");
    let mut numbers = Vec::new();
    for place in 0..2_u8 {
        let joined = anchor
            .join_volume(parts.volume, OwnerId([place + 1; 16]), "office")
            .await;
        numbers.push(joined.expect("it joins"));
    }
    numbers.try_into().expect("two")
}

async fn files(volume: &Volume, text: &str) -> Vec<FileHandle> {
    let mut files = Vec::new();
    for number in 0..FILES / 2 {
        let found = look(volume, &[text, &format!("file {number}")]).await;
        files.push(found.expect("it is there"));
    }
    files
}

#[test]
fn every_file_of_a_former_owner_is_changed_by_both_members() {
    planting(Some(SHARED_LATE), both_change_every_file);
}

fn both_change_every_file() {
    let simulation = Simulation::new(21);
    let world = World::new(&simulation);
    let (own, beside) = (world.own_parts(), world.machine_beside(&simulation, "second"));
    let ran = simulation.run(async move {
        let numbers = written_by_an_owner(&own).await;
        let first = start(&own, numbers[0], &patient()).await;
        let second = start(&beside, numbers[1], &patient()).await;
        let of_owner = files(&first, "first").await[0];
        let writer = MemberNumber((of_owner.inode >> 32) as u32);
        let is_member = own.anchor.member(own.volume, writer).await;
        assert!(
            matches!(is_member, Err(AnchorError::NoSuchMember { .. })),
            "{is_member:?}"
        );

        // Each half by one and then by the other, so that each lease goes from nobody to one and on to the other.
        for round in 0..2_u8 {
            for (place, text) in DIRECTORIES.iter().enumerate() {
                let volume = [&first, &second][(place + usize::from(round)) % 2];
                volume.catch_up().await.expect("the root is read");
                for file in files(volume, text).await {
                    write(volume, file, u64::from(round) * 10, vec![2 + round; 10]).await;
                }
                volume.sync().await.expect("published");
            }
        }
        // Names as well: the directories are the owner's too.
        let within = look(&first, &["second"]).await.expect("it is there");
        create(&first, within, "new").await;
        let here = look(&second, &["first"]).await.expect("it is there");
        let removed = second.remove(&root(), here, &name("file 0")).await;
        removed.expect("it is removed");
        for volume in [&first, &second] {
            volume.sync().await.expect("published");
        }
        for volume in [&first, &second] {
            volume.catch_up().await.expect("the root is read");
            look(volume, &["second", "new"]).await.expect("it is there");
            assert!(look(volume, &["first", "file 0"]).await.is_err());
            for text in DIRECTORIES {
                for number in 1..FILES / 2 {
                    let file = look(volume, &[text, &format!("file {number}")]).await;
                    let content = read(volume, file.expect("it is there"), 0, 20).await;
                    assert_eq!(content, Ok([[2; 10], [3; 10]].concat()), "{text} {number}");
                }
            }
        }
        let arena = own
            .anchor
            .arena(own.volume, of_owner.inode)
            .await
            .expect("it answers");
        let leases = arena.arena.leases().len();
        println!("{FILES} files, and {leases} leases");
    });
    ran.expect("the run ends");
}

#[test]
fn a_member_that_has_what_was_nobodys_is_recalled_and_broken_as_any_other() {
    planting(Some(SHARED_LATE), what_was_nobodys_is_taken_again);
}

fn what_was_nobodys_is_taken_again() {
    let simulation = Simulation::new(22);
    let world = World::new(&simulation);
    let (own, beside) = (world.own_parts(), world.machine_beside(&simulation, "second"));
    let client = world.table().connect(&own.env);
    let anchor = firn_anchor::Anchor::new(client.clone(), own.env.clone(), own.anchor.family());
    let own = Parts { anchor, ..own };
    let ran = simulation.run(async move {
        let numbers = written_by_an_owner(&own).await;
        let first = start(&own, numbers[0], &patient()).await;
        let second = start(&beside, numbers[1], &patient()).await;
        let file = look(&first, &["first", "file 0"]).await.expect("it is there");
        write(&first, file, 0, vec![5; 10]).await;
        first.sync().await.expect("published");
        client.set_outage(true);
        let mode = SetAttributes {
            mode: Some(0o600),
            ..SetAttributes::default()
        };
        let changed = second.set_attributes(&root(), file, mode, None).await;
        changed.expect("it is broken, and its lease taken");
        assert_eq!(read(&second, file, 0, 10).await, Ok(vec![5; 10]));
    });
    ran.expect("the run ends");
}
