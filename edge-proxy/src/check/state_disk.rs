//! Fitness of the state disk, on which level 1 is promised: room, kind, what a sync takes, and whether it can be believed.
//!
//! The sync is that of the journal: 4 KiB written and made durable, again and again, in a file that has no name any more, so that
//! nothing is left whatever happens.

use super::{Subject, files, there};
use crate::finding::Finding;
use crate::{config::Config, report::size};
use firn_env::Env;
use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

/// Syncs that are timed, for a p99 that means something; at 10 ms each two seconds.
const SYNCS: usize = 200;
const SYNCING_MAX: Duration = Duration::from_secs(4);
const SYNC_BYTES: usize = 4096;
/// A request and a reply of the fastest disks with a protected cache take 10 µs and a file system's journal as much again. What comes back
/// sooner was not there.
const SYNC_LEAST: Duration = Duration::from_micros(15);
/// Above it small durable writes of one client are felt: a disk that turns.
const SYNC_SLOW: Duration = Duration::from_millis(15);
/// Above it clients stall now and then.
const SYNC_SLOW_P99: Duration = Duration::from_millis(100);
/// Files that are looked at to know what an edge uses already: a cache of a TiB.
const FILES_MAX: usize = 300_000;
/// Names for journal and cache; a disk that is nearly out of them ends in "full" with space to spare.
const NAMES_LEAST: u64 = 10_000;

pub async fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    for disk in disks(subject) {
        found.push(kind(&disk));
        found.push(space(&disk));
        found.push(sync(subject.env, &disk).await);
    }
    found
}

/// Volumes whose state lies on one disk.
struct StateDisk<'a> {
    device: u64,
    /// The first state directory, or what is there of its path.
    at: PathBuf,
    volumes: Vec<&'a Config>,
}

fn disks<'a>(subject: &'a Subject<'_>) -> Vec<StateDisk<'a>> {
    let mut disks: Vec<StateDisk<'a>> = Vec::new();
    for config in &subject.edge.volumes {
        let at = there(&config.volume.state_directory);
        let device = std::fs::metadata(&at).map_or(0, |found| found.dev());
        match disks.iter_mut().find(|disk| disk.device == device) {
            Some(disk) => disk.volumes.push(config),
            None => disks.push(StateDisk {
                device,
                at,
                volumes: vec![config],
            }),
        }
    }
    disks
}

fn kind(disk: &StateDisk<'_>) -> Finding {
    const SUBJECT: &str = "state disk";
    let at = disk.at.display();
    let Some(mount) = files::Mount::of(&disk.at) else {
        return Finding::not_seen(SUBJECT, format!("{at}: /proc/self/mountinfo says nothing of it"));
    };
    let said = format!("{at} is on {} ({})", mount.kind, mount.source);
    let elsewhere = "put state_directory on a local disk with ext4 or XFS";
    let finding = match mount.kind.as_str() {
        "tmpfs" | "ramfs" => Finding::fails(
            SUBJECT,
            format!("{said}, which is memory: what clients were promised (level 1) would end with the power"),
            elsewhere,
        ),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "ceph" => Finding::hurts(
            SUBJECT,
            format!("{said}: each acknowledged write waits for another machine, and fails with it"),
            elsewhere,
        ),
        "overlay" => Finding::hurts(
            SUBJECT,
            format!("{said}, the layer of a container: it ends with the container, and its journal with it"),
            "mount a volume of the host there",
        ),
        _ if mount.skips_barriers() => Finding::hurts(
            SUBJECT,
            format!("{said}, mounted so that syncs do not reach the medium"),
            "mount it without nobarrier or barrier=0",
        ),
        _ => {
            let cache = files::write_cache(&disk.at);
            let cache = cache.map_or(String::new(), |cache| format!(", cache {cache}"));
            Finding::fine(SUBJECT, format!("{said}{cache}"))
        }
    };
    finding.figure("file_system", mount.kind)
}

fn space(disk: &StateDisk<'_>) -> Finding {
    const SUBJECT: &str = "state disk";
    let at = disk.at.display();
    let status = match rustix::fs::statvfs(&disk.at) {
        Ok(status) => status,
        Err(error) => return Finding::fails(SUBJECT, format!("{at}: {error}"), "mend the disk"),
    };
    let free = status.f_bavail * status.f_frsize;
    let used: u64 = disk
        .volumes
        .iter()
        .map(|config| files::used_bytes(&config.volume.state_directory, FILES_MAX))
        .sum();
    let limits = disk.volumes.iter().map(|config| &config.limits);
    let (mut wanted, mut journal) = (0_u64, 0_u64);
    for limits in limits {
        wanted = wanted.saturating_add(limits.disk_cache.0.saturating_add(limits.journal.0));
        // Two files of the journal: one that is written and the next.
        journal += (limits.journal.0 / 8).clamp(4 << 20, 64 << 20) * 2;
    }
    let said = format!(
        "{at}: {} free, {} used; limits.disk_cache and limits.journal may take {}",
        size(free),
        size(used),
        size(wanted)
    );
    let finding = if used == 0 && free < journal {
        Finding::fails(
            SUBJECT,
            format!("{said}, and the journal needs {} to begin", size(journal)),
            "free space, or name another state_directory",
        )
    } else if free < 64 << 20 {
        Finding::fails(
            SUBJECT,
            format!("{said}: the disk is full, and writers wait"),
            "free space; what is acknowledged is safe",
        )
    } else if free.saturating_add(used) < wanted {
        Finding::hurts(
            SUBJECT,
            said,
            "lower limits.disk_cache to what is there less limits.journal, or give it a larger disk",
        )
    } else if status.f_favail < NAMES_LEAST && status.f_files > 0 {
        Finding::hurts(
            SUBJECT,
            format!("{said}, and {} inodes are left", status.f_favail),
            "make the file system anew with more inodes",
        )
    } else {
        Finding::fine(SUBJECT, said)
    };
    finding
        .figure("free_bytes", free)
        .figure("used_bytes", used)
        .figure("wanted_bytes", wanted)
}

/// What syncs took, the shortest first.
struct Syncs(Vec<Duration>);

impl Syncs {
    fn at(&self, hundredths: usize) -> Duration {
        self.0[(self.0.len() * hundredths / 100).min(self.0.len() - 1)]
    }
}

async fn sync(env: &Env, disk: &StateDisk<'_>) -> Finding {
    const SUBJECT: &str = "sync";
    let at = disk.at.clone();
    let clock = env.clone();
    let timed = env.compute(move || time_syncs(&clock, &at)).await;
    let syncs = match timed {
        Ok(syncs) => syncs,
        Err(error) => return unwritable(&disk.at, &error),
    };
    let (p50, p99) = (syncs.at(50), syncs.at(99));
    let is_memory = files::Mount::of(&disk.at).is_some_and(|mount| mount.kind.ends_with("mpfs"));
    let said = format!(
        "4 KiB written and synced {} times: p50 {:.2} ms, p99 {:.2} ms",
        syncs.0.len(),
        p50.as_secs_f64() * 1e3,
        p99.as_secs_f64() * 1e3
    );
    let finding = if p50 < SYNC_LEAST && !is_memory {
        Finding::hurts(
            SUBJECT,
            format!(
                "{said}: no medium is so fast, so something below drops syncs, and a power cut would take what clients were promised"
            ),
            "let the hypervisor or the controller honour flushes (cache=none or writethrough, no eatmydata), then check again",
        )
    } else if p50 > SYNC_SLOW || p99 > SYNC_SLOW_P99 {
        Finding::hurts(
            SUBJECT,
            format!("{said}: small durable writes of clients wait as long"),
            "put state_directory on an SSD, or on one that nobody else keeps busy",
        )
    } else {
        Finding::fine(SUBJECT, said)
    };
    finding
        .figure("p50_us", p50.as_micros() as u64)
        .figure("p99_us", p99.as_micros() as u64)
        .figure("syncs", syncs.0.len())
}

fn unwritable(at: &Path, error: &io::Error) -> Finding {
    const SUBJECT: &str = "sync";
    let (at, user) = (at.display(), rustix::process::geteuid().as_raw());
    match error.kind() {
        io::ErrorKind::PermissionDenied => Finding::fails(
            SUBJECT,
            format!("the user {user} may not write in {at}"),
            "run this as the user of the edge (sudo -u firn firn-edge check), or give it the directory",
        ),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Finding::fails(
            SUBJECT,
            format!("{at} is full: not even 4 KiB could be written"),
            "free space, or name another state_directory; what is acknowledged is safe",
        ),
        io::ErrorKind::ReadOnlyFilesystem => Finding::fails(
            SUBJECT,
            format!("{at} is mounted read-only"),
            "mount it writable; after an error of the disk, check it first",
        ),
        _ => Finding::fails(SUBJECT, format!("{at}: {error}"), "mend the disk"),
    }
}

/// Blocks.
fn time_syncs(env: &Env, at: &Path) -> io::Result<Syncs> {
    let file = nameless(env, at)?;
    // Changing bytes: a disk that compares could leave equal ones out.
    let mut bytes: Vec<u8> = (0..SYNC_BYTES).map(|at| at as u8).collect();
    let mut took = Vec::with_capacity(SYNCS);
    let began = env.now();
    for number in 0..SYNCS {
        bytes[0] = number as u8;
        let before = env.now();
        file.write_all_at(&bytes, (number * SYNC_BYTES) as u64)?;
        file.sync_data()?;
        took.push(env.now().since(before));
        if env.now().since(began) > SYNCING_MAX {
            break;
        }
    }
    took.sort_unstable();
    Ok(Syncs(took))
}

/// A new file whose name is gone before anything is in it.
fn nameless(env: &Env, at: &Path) -> io::Result<File> {
    let path = at.join(format!(".firn-check-{:016x}", env.random_u64()));
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
