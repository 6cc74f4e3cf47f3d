//! The real disk against a plain vector: what was written is what is read, whichever way a sync was made.

mod queue_depth;

use super::{RealDisk, pace::WhoWaits};
use crate::{Disk, DiskError, DiskFile, OpenMode};
use bytes::Bytes;
use std::{path::PathBuf, sync::Arc, time::Duration};

/// A directory that is removed in the end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        Self::below(std::env::temp_dir(), name)
    }

    fn below(parent: PathBuf, name: &str) -> Self {
        let path = parent.join(format!("firn-real-disk-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Makes the disk believe that its writes and syncs are short, so that the next small one is made in place; or long.
fn believe(disk: &RealDisk, short: bool) {
    tell(disk, short);
    assert_eq!(disk.paces.syncs.is_short(1, WhoWaits::Others), short);
    assert_eq!(disk.paces.writes.is_short(1, WhoWaits::Others), short);
    assert_eq!(disk.paces.flushes.is_short(1, WhoWaits::Others), short);
}

fn tell(disk: &RealDisk, short: bool) {
    let took = if short {
        Duration::ZERO
    } else {
        Duration::from_secs(1)
    };
    for _ in 0..200 {
        disk.paces.syncs.note(took);
        disk.paces.writes.note(took);
        disk.paces.reads.note(took);
        disk.paces.flushes.note(took);
    }
}

/// Parts of varied lengths, some empty, and the bytes that they add up to.
fn parts(step: usize, bytes: usize) -> (Vec<Bytes>, Vec<u8>) {
    let all: Vec<u8> = (0..bytes).map(|at| (at * 7 + step * 31) as u8).collect();
    let mut parts = vec![Bytes::new()];
    let mut rest = all.as_slice();
    let mut length = 1;
    while !rest.is_empty() {
        let (part, behind) = rest.split_at(length.min(rest.len()));
        parts.push(Bytes::copy_from_slice(part));
        rest = behind;
        length = length * 3 + step % 5;
    }
    (parts, all)
}

async fn read_all(file: &Arc<dyn DiskFile>, length: usize) -> Vec<u8> {
    file.read_at(0, length).await.unwrap().to_vec()
}

async fn written_is_read(name: &str, turn: impl Fn(&RealDisk, usize)) {
    written_is_read_in(Directory::new(name), turn).await;
}

async fn written_is_read_in(directory: Directory, turn: impl Fn(&RealDisk, usize)) {
    let disk = RealDisk::open(&directory.0).unwrap();
    let file = disk.open("file", OpenMode::CreateNew).await.unwrap();
    let mut model: Vec<u8> = Vec::new();
    for step in 0..200 {
        turn(&disk, step);
        // Most are short; some are longer than what is ever written in place.
        let bytes = if step % 40 == 39 {
            300_000
        } else {
            step * 97 % 9000
        };
        // Over what is there, at its end, and behind it.
        let offset = step * 8191 % (model.len() + 2000);
        let (parts, all) = parts(step, bytes);
        if step % 3 == 0 {
            file.write_at(offset as u64, parts).await.unwrap();
        } else {
            file.write_and_sync(offset as u64, parts).await.unwrap();
        }
        if bytes > 0 && model.len() < offset + bytes {
            model.resize(offset + bytes, 0);
        }
        if bytes > 0 {
            model[offset..offset + bytes].copy_from_slice(&all);
        }
        let around = offset.saturating_sub(10);
        let read = file.read_at(around as u64, bytes + 20).await.unwrap();
        assert_eq!(
            read,
            model[around.min(model.len())..model.len().min(around + bytes + 20)],
            "step {step}"
        );
    }
    assert_eq!(read_all(&file, model.len() + 1).await, model);
    assert_eq!(std::fs::read(directory.0.join("file")).unwrap(), model);
    let again = disk.open("file", OpenMode::Read).await.unwrap();
    assert_eq!(read_all(&again, model.len()).await, model);
}

#[tokio::test]
async fn written_in_place_is_read() {
    written_is_read("place", |disk, _| believe(disk, true)).await;
}

#[tokio::test]
async fn written_by_threads_is_read() {
    written_is_read("threads", |disk, _| believe(disk, false)).await;
}

#[tokio::test]
async fn written_by_turns_is_read() {
    written_is_read("turns", |disk, step| believe(disk, step % 3 == 0)).await;
}

/// A tmpfs does not say whether a read would have to wait: such reads go another way.
#[tokio::test]
async fn what_a_tmpfs_holds_is_read() {
    let directory = Directory::below("/dev/shm".into(), "tmpfs");
    written_is_read_in(directory, |disk, step| believe(disk, step % 5 < 2)).await;
}

/// A sync of much goes to a thread however fast the device has been; what it made durable the next one need not wait for.
#[tokio::test]
async fn a_sync_is_made_in_place_if_little_was_written_since_the_last() {
    let directory = Directory::new("flushes");
    let disk = RealDisk::open(&directory.0).unwrap();
    let file = disk.open("file", OpenMode::CreateNew).await.unwrap();
    for (bytes, in_place) in [(1000, true), (300_000, false), (1000, true), (0, true)] {
        believe(&disk, true);
        file.write_at(0, vec![Bytes::from(vec![7; bytes])]).await.unwrap();
        believe(&disk, true);
        let mut sync = file.sync_data();
        let at_once = futures::poll!(&mut sync).is_ready();
        assert_eq!(at_once, in_place, "{bytes} bytes");
        if !at_once {
            sync.await.unwrap();
        }
    }
    believe(&disk, false);
    file.write_at(0, vec![Bytes::from_static(&[7])]).await.unwrap();
    let mut sync = file.sync_data();
    assert!(futures::poll!(&mut sync).is_pending(), "the device is slow");
    sync.await.unwrap();
}

#[tokio::test]
async fn writers_of_one_file_do_not_mix() {
    let directory = Directory::new("writers");
    let disk = Arc::new(RealDisk::open(&directory.0).unwrap());
    let file = disk.open("file", OpenMode::CreateNew).await.unwrap();
    let writers: Vec<_> = (0..8_u64)
        .map(|writer| {
            let (disk, file) = (disk.clone(), file.clone());
            tokio::spawn(async move {
                for step in 0..50 {
                    tell(&disk, (step + writer) % 2 == 0);
                    let data = Bytes::from(vec![writer as u8 + 1; 500]);
                    file.write_and_sync((step * 8 + writer) * 500, vec![data])
                        .await
                        .unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let all = read_all(&file, 8 * 50 * 500).await;
    assert_eq!(all.len(), 8 * 50 * 500);
    for (number, record) in all.chunks(500).enumerate() {
        assert!(
            record.iter().all(|byte| usize::from(*byte) == number % 8 + 1),
            "record {number}"
        );
    }
}

#[tokio::test]
async fn a_failed_write_says_so_either_way() {
    let directory = Directory::new("failed");
    let disk = RealDisk::open(&directory.0).unwrap();
    std::fs::write(directory.0.join("file"), b"as it was").unwrap();
    let file = disk.open("file", OpenMode::Read).await.unwrap();
    for short in [true, false] {
        believe(&disk, short);
        let error = file
            .write_and_sync(0, vec![Bytes::from_static(b"not this")])
            .await
            .unwrap_err();
        assert!(matches!(error, DiskError::Io { .. }), "{error}");
    }
    assert_eq!(std::fs::read(directory.0.join("file")).unwrap(), b"as it was");
}

#[tokio::test]
async fn reads_end_where_the_file_does() {
    let directory = Directory::new("reads");
    let disk = RealDisk::open(&directory.0).unwrap();
    let data: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
    std::fs::write(directory.0.join("file"), &data).unwrap();
    let file = disk.open("file", OpenMode::Read).await.unwrap();
    // Short and long reads, within, across the end and behind it: from the page cache in place, or by a thread.
    for (offset, length) in [
        (0, 10),
        (999_990, 10),
        (999_990, 11),
        (1_000_000, 5),
        (2_000_000, 5),
        (0, 2_000_000),
        (500_000, 400_000),
    ] {
        let read = file.read_at(offset, length).await.unwrap();
        let start = data.len().min(offset as usize);
        assert_eq!(
            read,
            data[start..data.len().min(start + length)],
            "{length} bytes at {offset}"
        );
    }
    // In parts: few and many, in place or by a thread, with empty ones, and beyond what the kernel takes in one call.
    for (offset, lengths) in [
        (0, vec![10, 20, 30]),
        (999_970, vec![10, 0, 25, 5]),
        (1_000_000, vec![5, 5]),
        (2_000_000, vec![5]),
        (0, vec![32_900; 31]),
        (100, vec![700; 1500]),
        (0, vec![]),
    ] {
        let parts = file.read_parts_at(offset, &lengths).await.unwrap();
        assert_eq!(parts.len(), lengths.len());
        let mut start = data.len().min(offset as usize);
        for (part, length) in parts.iter().zip(&lengths) {
            let end = data.len().min(start + length);
            assert_eq!(*part, data[start..end], "{} parts at {offset}", lengths.len());
            start = end;
        }
    }
}

#[tokio::test]
async fn what_is_written_past_the_page_cache_is_read_as_it_was() {
    let directory = Directory::new("direct");
    let disk = RealDisk::open(&directory.0).unwrap();
    for (step, bytes) in [
        0,
        1,
        4095,
        65_535,
        65_536,
        70_001,
        1 << 20,
        (1 << 20) + 1,
        4_300_000,
    ]
    .into_iter()
    .enumerate()
    {
        let (parts, expected) = parts(step, bytes);
        let file = disk
            .open(&format!("file{step}"), OpenMode::CreateNew)
            .await
            .unwrap();
        file.write_uncached_at(0, parts.clone()).await.unwrap();
        file.sync_data().await.unwrap();
        assert_eq!(
            file.read_at(0, bytes + 1).await.unwrap(),
            expected,
            "{bytes} bytes"
        );
        // Over what is there, aligned and not; and the usual way after it.
        for offset in [4096, 5000] {
            file.write_uncached_at(offset, parts.clone()).await.unwrap();
            assert_eq!(
                file.read_at(offset, bytes).await.unwrap(),
                expected,
                "{bytes} bytes"
            );
        }
        file.write_at(1, vec![Bytes::from_static(b"usual")])
            .await
            .unwrap();
        assert_eq!(file.read_at(1, 5).await.unwrap(), b"usual"[..]);
    }
}

/// A part of `bytes` bytes whose address is aligned as `offset` is, and one that is not.
fn placed(offset: u64, bytes: usize, filler: u8) -> [Bytes; 2] {
    const PAGE: usize = 4096;
    let memory = Bytes::from(vec![filler; bytes + 2 * PAGE + 1]);
    let start = memory.as_ptr().align_offset(PAGE) + (offset % PAGE as u64) as usize;
    [start, start + 1].map(|start| memory.slice(start..start + bytes))
}

#[tokio::test]
async fn writes_past_the_page_cache_and_through_it_meet_in_a_page() {
    let directory = Directory::new("mixed");
    let disk = RealDisk::open(&directory.0).unwrap();
    let file = disk.open("journal", OpenMode::CreateNew).await.unwrap();
    file.allocate(8 << 20).await.unwrap();
    let (mut expected, mut filler) = (Vec::new(), 0);
    // One after the other as a journal writes, then over some of it.
    for round in 0..3 {
        let mut offset = 84 * round;
        for bytes in [100, 70_000, 4096, 65_536, 1, 300_000, 65_536 + 4096, 1 << 20, 200] {
            for is_alike in [true, false] {
                filler += 1;
                let [alike, other] = placed(offset, bytes, filler);
                let part = if is_alike { alike } else { other };
                let end = offset as usize + bytes;
                expected.resize(expected.len().max(end), 0);
                expected[offset as usize..end].copy_from_slice(&part);
                match filler % 3 {
                    0 => file.write_uncached_at(offset, vec![part]).await.unwrap(),
                    1 => {
                        let (head, tail) = (part.slice(..bytes / 3), part.slice(bytes / 3..));
                        file.write_and_sync(offset, vec![head, tail]).await.unwrap();
                    }
                    _ => file.write_and_sync(offset, vec![part]).await.unwrap(),
                }
                offset += bytes as u64;
                let read = file.read_at(0, expected.len()).await.unwrap();
                assert!(
                    read == expected,
                    "{bytes} bytes up to {offset}, alike: {is_alike}"
                );
            }
        }
    }
    let other = disk.open("journal", OpenMode::Read).await.unwrap();
    assert!(other.read_at(0, expected.len()).await.unwrap() == expected);
}

#[tokio::test]
async fn a_write_past_the_page_cache_does_not_hold_up_others_of_the_file() {
    let directory = Directory::new("beside");
    let disk = RealDisk::open(&directory.0).unwrap();
    let file = disk.open("journal", OpenMode::CreateNew).await.unwrap();
    let large: usize = 2 << 20;
    let beside = |number: u64| {
        let (file, offset) = (file.clone(), number * (large as u64 + 5000));
        async move {
            let [part, _] = placed(offset, large, number as u8);
            let small = Bytes::from(vec![number as u8; 5000]);
            let (bulk, little) = tokio::join!(
                file.write_uncached_at(offset, vec![part]),
                file.write_and_sync(offset + large as u64, vec![small])
            );
            bulk.unwrap();
            little.unwrap();
        }
    };
    futures::future::join_all((0..6).map(beside)).await;
    for number in 0..6_u64 {
        let read = file
            .read_at(number * (large as u64 + 5000), large + 5000)
            .await
            .unwrap();
        assert!(read.iter().all(|byte| *byte == number as u8), "{number}");
    }
}

#[test]
fn what_a_client_asks_for_with_one_call_is_read_in_place() {
    use super::read::{Cached, IN_PLACE_BYTES, cached};
    /// A block of 32 KiB with what sealing adds, amply.
    const SEALED_BLOCK_BYTES: usize = (32 << 10) + 1024;
    let directory = Directory::new("in-place");
    let path = directory.0.join("segment");
    std::fs::write(&path, vec![7; 2 * IN_PLACE_BYTES]).unwrap();
    let file = std::fs::File::open(path).unwrap();
    // A mebibyte that begins within a block.
    let blocks = [SEALED_BLOCK_BYTES; 33];
    match cached(&file, 5, &blocks) {
        Cached::Whole(parts) => assert_eq!(parts.len(), 33),
        // A file system that does not say.
        Cached::Unknown => {}
        Cached::No => panic!("it is in the page cache, and no more than one call asks for"),
    }
    assert!(matches!(cached(&file, 0, &[IN_PLACE_BYTES + 1]), Cached::No));
}
