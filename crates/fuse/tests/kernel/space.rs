//! Holes, zeros and copies on a mount, as processes ask for them.

use crate::world::{World, world};
use rustix::{
    fs::{FallocateFlags, SeekFrom},
    io::Errno,
};
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
};

const MIB: u64 = 1 << 20;

/// A file of 4 MiB of sevens.
fn sevens(world: &World, name: &str) -> File {
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(world.path(name))
        .expect("made");
    file.write_all_at(&[7; 4 << 20], 0).expect("written");
    file
}

fn is_all(file: &File, byte: u8, from: u64, to: u64) -> bool {
    let mut read = vec![!byte; (to - from) as usize];
    file.read_exact_at(&mut read, from).expect("read");
    read.iter().all(|found| *found == byte)
}

#[test]
fn a_punched_hole_reads_as_zeros_and_the_size_stays() {
    let Some(world) = world() else { return };
    let file = sevens(&world, "punched");
    // What the kernel has in its cache must go too.
    assert!(is_all(&file, 7, 0, 4 * MIB));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, MIB + 1, 2 * MIB).expect("punched");
    assert!(is_all(&file, 7, 0, MIB + 1) && is_all(&file, 7, 3 * MIB + 1, 4 * MIB));
    assert!(is_all(&file, 0, MIB + 1, 3 * MIB + 1));
    rustix::fs::fallocate(&file, punch, 3 * MIB, 100 * MIB).expect("over the end");
    assert_eq!(file.metadata().expect("there").len(), 4 * MIB);
    assert!(is_all(&file, 0, 3 * MIB, 4 * MIB));
    assert_eq!(
        fs::read(world.path("punched")).expect("read").len() as u64,
        4 * MIB
    );
}

#[test]
fn a_zeroed_range_may_make_a_file_longer_and_nothing_is_set_aside() {
    let Some(world) = world() else { return };
    let file = sevens(&world, "zeroed");
    let zero = FallocateFlags::ZERO_RANGE;
    rustix::fs::fallocate(&file, zero | FallocateFlags::KEEP_SIZE, 3 * MIB, 2 * MIB).expect("zeroed");
    assert_eq!(file.metadata().expect("there").len(), 4 * MIB);
    rustix::fs::fallocate(&file, zero, 2 * MIB, 4 * MIB).expect("zeroed");
    assert_eq!(file.metadata().expect("there").len(), 6 * MIB);
    assert!(is_all(&file, 7, 0, 2 * MIB) && is_all(&file, 0, 2 * MIB, 6 * MIB));
    for refused in [
        FallocateFlags::empty(),
        FallocateFlags::KEEP_SIZE,
        FallocateFlags::COLLAPSE_RANGE,
    ] {
        let error = rustix::fs::fallocate(&file, refused, 0, MIB).expect_err("no promise");
        assert_eq!(error, Errno::OPNOTSUPP, "{refused:?}");
    }
    assert_eq!(file.metadata().expect("there").len(), 6 * MIB);
}

#[test]
fn holes_and_data_are_found() {
    let Some(world) = world() else { return };
    let file = File::create_new(world.path("sparse")).expect("made");
    file.set_len(64 * MIB).expect("long");
    file.write_all_at(&[7; 8192], 16 * MIB).expect("written");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(16 * MIB));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Hole(16 * MIB + 5)), Ok(16 * MIB + 8192));
    assert_eq!(seek(SeekFrom::Data(16 * MIB + 8192)), Err(Errno::NXIO));
    assert_eq!(seek(SeekFrom::Hole(64 * MIB)), Err(Errno::NXIO), "behind the end");
}

#[test]
fn a_copy_stays_within_the_volume_and_what_was_cached_of_the_target_goes() {
    let Some(world) = world() else { return };
    let from = sevens(&world, "from");
    let to = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(world.path("to"))
        .expect("made");
    to.write_all_at(&[1; 3 << 20], 0).expect("written");
    assert!(is_all(&to, 1, 0, 3 * MIB));
    let before = world.requests();
    let (mut read_at, mut write_at) = (MIB, 2 * MIB);
    let mut left = 2 * MIB as usize;
    while left > 0 {
        let copied = rustix::fs::copy_file_range(&from, Some(&mut read_at), &to, Some(&mut write_at), left);
        let copied = copied.expect("copied");
        assert!(copied > 0, "before the end");
        left -= copied;
    }
    let asked = world.requests() - before;
    assert!(asked < 10, "{asked} requests: the data went through the kernel");
    assert_eq!((read_at, write_at), (3 * MIB, 4 * MIB));
    assert!(is_all(&to, 1, 0, 2 * MIB) && is_all(&to, 7, 2 * MIB, 4 * MIB));
    // Within one file, and up to its end.
    let (mut read_at, mut write_at) = (3 * MIB, 8 * MIB);
    let copied = rustix::fs::copy_file_range(&to, Some(&mut read_at), &to, Some(&mut write_at), 4 << 20);
    assert_eq!(copied, Ok(1 << 20), "no more than there is");
    assert!(is_all(&to, 0, 4 * MIB, 8 * MIB) && is_all(&to, 7, 8 * MIB, 9 * MIB));
}
