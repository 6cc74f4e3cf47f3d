//! Opening a spool: what is found is made durable, then believed, then continued in a new file.

use super::{FileEntry, Index, Shared, SpoolConfig, SpoolError, create, file};
use crate::{Incarnation, SourceId};
use firn_env::{DiskError, DiskLock, Env, OpenMode};
use std::{collections::VecDeque, sync::Mutex};
use tokio::sync::Notify;

/// Longest file read: one frame more than the size at which files are closed, and generous to other configurations.
const FILE_MAX_BYTES: u64 = 64 << 20;

type Opened = (Shared, u64, Box<dyn DiskLock>);

pub(super) async fn open(
    env: &Env,
    directory: &str,
    source: SourceId,
    config: SpoolConfig,
) -> Result<Opened, SpoolError> {
    let disk = env.disk();
    disk.create_directory(directory).await?;
    // The directory's own name has to survive as surely as what is in it.
    let mut path = directory;
    while !path.is_empty() {
        path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        disk.sync_directory(path).await?;
    }
    let lock = match disk.lock(&format!("{directory}/lock")).await {
        Ok(lock) => lock,
        Err(DiskError::Locked { .. }) => return Err(SpoolError::InUse(directory.to_owned())),
        Err(other) => return Err(other.into()),
    };
    let mut numbers: Vec<u64> = disk
        .list(directory)
        .await?
        .iter()
        .filter_map(|name| file::number(name))
        .collect();
    numbers.sort_unstable();
    let newest = numbers.last().copied();
    let mut found = Found::default();
    for number in numbers {
        let path = file::path(directory, number);
        let is_last = Some(number) == newest;
        let opened = disk.open(&path, OpenMode::ReadWrite).await?;
        if !firn_env::planted!("usage.skip_sync_at_open") {
            opened.sync_data().await?;
        }
        let length = opened.length().await?.min(FILE_MAX_BYTES);
        let bytes = opened.read_at(0, length as usize).await?;
        if let Some(found) = file::newer_version(&bytes) {
            return Err(SpoolError::Newer { path, found });
        }
        let Some(scan) = file::scan(&bytes) else {
            if !is_last {
                let what = "it has no header, and there are later ones";
                return Err(SpoolError::Damaged { path, what });
            }
            disk.remove(&path).await?;
            continue;
        };
        found.take(directory, &source, path, &scan)?;
        if scan.has_records {
            found.files.push_back(FileEntry {
                number,
                file: opened,
                next_sequence: scan.next_sequence,
                durable_bytes: scan.whole_bytes,
            });
        } else {
            found.empty.push(number);
        }
    }
    if !firn_env::planted!("usage.skip_sync_at_open") {
        disk.sync_directory(directory).await?;
    }
    env.fault_point("usage.spool.found_synced").await;

    let incarnation = match found.incarnation {
        Some(incarnation) if !firn_env::planted!("usage.incarnation_anew") => incarnation,
        _ => Incarnation(env.random_u64()),
    };
    let next_sequence = if firn_env::planted!("usage.forget_sequence") {
        1
    } else {
        found.next_sequence.max(1)
    };
    let header = file::Header {
        source: source.clone(),
        incarnation,
        first_sequence: next_sequence,
    };
    let number = newest.map_or(1, |newest| newest + 1);
    let made = create(env, directory, number, &header).await?;
    // Only now: an empty file may be the only one that knows the incarnation and the next number.
    for number in found.empty {
        disk.remove(&file::path(directory, number)).await?;
    }
    let used_bytes = found.files.iter().map(|file| file.durable_bytes).sum::<u64>() + made.bytes;
    found.files.push_back(FileEntry {
        number,
        file: made.file,
        next_sequence,
        durable_bytes: made.bytes,
    });
    let shared = Shared {
        env: env.clone(),
        directory: directory.to_owned(),
        config,
        source,
        incarnation,
        index: Mutex::new(Index {
            files: found.files,
            used_bytes,
            next_sequence,
            received_before: 0,
            forgo_next: 0,
            forgone: 0,
            broken: None,
        }),
        grown: Notify::new(),
    };
    shared.grown.notify_one();
    Ok((shared, made.bytes, lock))
}

#[derive(Default)]
struct Found {
    incarnation: Option<Incarnation>,
    next_sequence: u64,
    files: VecDeque<FileEntry>,
    empty: Vec<u64>,
}

impl Found {
    fn take(
        &mut self,
        directory: &str,
        source: &SourceId,
        path: String,
        scan: &file::Scan,
    ) -> Result<(), SpoolError> {
        if &scan.header.source != source {
            return Err(SpoolError::OtherSource {
                directory: directory.to_owned(),
                found: scan.header.source.to_string(),
                wanted: source.to_string(),
            });
        }
        if firn_env::planted!("usage.incarnation_anew") || firn_env::planted!("usage.forget_sequence") {
            self.next_sequence = self.next_sequence.max(scan.next_sequence);
            self.incarnation = Some(scan.header.incarnation);
            return Ok(());
        }
        if self
            .incarnation
            .is_some_and(|known| known != scan.header.incarnation)
        {
            let what = "it belongs to another incarnation than the file before it";
            return Err(SpoolError::Damaged { path, what });
        }
        if scan.header.first_sequence < self.next_sequence {
            let what = "its numbers begin before those of the file before it end";
            return Err(SpoolError::Damaged { path, what });
        }
        self.incarnation = Some(scan.header.incarnation);
        self.next_sequence = scan.next_sequence;
        Ok(())
    }
}
