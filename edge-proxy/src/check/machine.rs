//! Fitness of the machine itself: memory, open files, and what mounts and shares need of it.

use super::Subject;
use crate::finding::Finding;
use crate::{bounds, report::size, smb, validation};
use firn_fuse::KERNEL_OLDEST;
use rustix::process::{Resource, getrlimit};

/// Of an edge without its caches: what `make bounds` holds it to with the defaults (512 MiB), less the defaults' caches.
const OWN_BYTES: u64 = (512 - 80) << 20;

pub fn look(subject: &Subject<'_>) -> Vec<Finding> {
    let mut found = vec![memory(subject), open_files(subject)];
    found.extend(fuse(subject));
    found.extend(samba(subject));
    found
}

fn memory(subject: &Subject<'_>) -> Finding {
    let needed = OWN_BYTES
        + subject
            .edge
            .volumes
            .iter()
            .map(|config| config.limits.memory_cache.0 + config.limits.dirty_memory.0)
            .sum::<u64>();
    let group = group_limit();
    let (Some(total), Some(available)) = (
        validation::memory_bytes("MemTotal:"),
        validation::memory_bytes("MemAvailable:"),
    ) else {
        return Finding::not_seen("memory", "/proc/meminfo cannot be read");
    };
    let said = format!(
        "an edge with these limits may take {}; {} of {} are available",
        size(needed),
        size(available),
        size(total)
    );
    let less = "lower limits.memory_cache and limits.dirty_memory, or give the machine more memory";
    let finding = match group.filter(|limit| *limit < needed) {
        Some(limit) => Finding::hurts(
            "memory",
            format!("{said}; this control group may have {}", size(limit)),
            "raise MemoryMax of the unit or the container's limit, or lower limits.memory_cache",
        ),
        None if total < needed => Finding::fails("memory", said, less),
        // A running edge has its own already.
        None if available < needed && !subject.is_running => Finding::hurts("memory", said, less),
        None => Finding::fine("memory", said),
    };
    finding
        .figure("needed_bytes", needed)
        .figure("available_bytes", available)
        .figure("total_bytes", total)
}

/// What the control group of this process may have.
fn group_limit() -> Option<u64> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let limit = std::fs::read_to_string(format!("/sys/fs/cgroup{path}/memory.max")).ok()?;
    limit.trim().parse().ok()
}

fn open_files(subject: &Subject<'_>) -> Finding {
    let needed = bounds::descriptors(subject.edge.common().nfs.connections);
    let limit = getrlimit(Resource::Nofile).maximum;
    let shown = limit.map_or("no limit".into(), |limit| format!("a limit of {limit}"));
    let said = format!("{needed} may be needed, and there is {shown} (in this shell; a unit has its own)");
    let finding = match limit.filter(|limit| *limit < needed) {
        Some(_) => Finding::hurts(
            "open files",
            said,
            "LimitNOFILE in the unit, or ulimit -Hn; or lower nfs.connections",
        ),
        None => Finding::fine("open files", said),
    };
    finding.figure("needed", needed).figure("limit", limit)
}

fn fuse(subject: &Subject<'_>) -> Option<Finding> {
    let mounts = subject.edge.volumes.iter().map(|config| &config.mounts);
    let mounts: Vec<_> = mounts.flatten().collect();
    // Samba is served through a mount, too.
    if mounts.is_empty() && !is_shared(subject) {
        return None;
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let device = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = device {
        return Some(Finding::fails(
            "FUSE",
            format!("/dev/fuse: {error}, and [[mount]] and [smb] need it"),
            "modprobe fuse; in a container, hand the device in",
        ));
    }
    if version(release).is_some_and(|version| version < KERNEL_OLDEST) {
        let (major, minor) = KERNEL_OLDEST;
        return Some(Finding::fails(
            "FUSE",
            format!("this kernel is {release}, and [[mount]] and [smb] need {major}.{minor}"),
            "upgrade the kernel, or leave [[mount]] and [smb] out",
        ));
    }
    if let Some(missing) = mounts.iter().find(|mount| !mount.path.is_dir()) {
        let path = missing.path.display();
        return Some(Finding::fails(
            "FUSE",
            format!("[[mount]]: {path} is not there"),
            format!("mkdir -p {path}"),
        ));
    }
    Some(Finding::fine(
        "FUSE",
        format!("Linux {release}, {} [[mount]]s", mounts.len()),
    ))
}

fn is_shared(subject: &Subject<'_>) -> bool {
    subject.edge.volumes.iter().any(|config| config.smb.is_some())
}

fn samba(subject: &Subject<'_>) -> Option<Finding> {
    if !is_shared(subject) {
        return None;
    }
    Some(match subject.edge.volumes.iter().find_map(smb::unserved) {
        Some(why) => Finding::fails("Samba", format!("SMB would not be served: {why}"), ""),
        None => Finding::fine("Samba", "smbd is there, and this user may start it"),
    })
}

/// The first two numbers of a release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    #[test]
    fn releases_are_compared_by_numbers() {
        assert_eq!(super::version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(super::version("5.16"), Some((5, 16)));
        assert_eq!(super::version("rolling"), None);
        assert!((5, 9) < (5, 16));
    }
}
