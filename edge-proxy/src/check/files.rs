//! Mounts and devices as the kernel's files tell of them: the mount that a path lies on, the device below it, and what is used.

use std::{os::unix::fs::MetadataExt, path::Path};

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub point: String,
    /// Such as `ext4`.
    pub kind: String,
    /// Such as `/dev/sda1`.
    pub source: String,
    /// Of the mount and of the file system.
    pub options: Vec<String>,
}

impl Mount {
    /// The one that `path`, which exists, lies on.
    pub fn of(path: &Path) -> Option<Self> {
        let path = std::fs::canonicalize(path).ok()?;
        Self::find(&std::fs::read_to_string("/proc/self/mountinfo").ok()?, &path)
    }

    fn find(table: &str, path: &Path) -> Option<Self> {
        let mounts = table.lines().filter_map(Self::parse);
        mounts
            .filter(|mount| path.starts_with(&mount.point))
            // Of mounts on one point the last one is seen.
            .max_by_key(|mount| mount.point.len())
    }

    fn parse(line: &str) -> Option<Self> {
        let (before, behind) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(4);
        let mut behind = behind.split(' ');
        let (point, own) = (before.next()?, before.next()?);
        let (kind, source) = (behind.next()?, behind.next()?);
        let options = own.split(',').chain(behind.next().unwrap_or("").split(','));
        Some(Self {
            point: point.replace("\\040", " "),
            kind: kind.to_owned(),
            source: source.to_owned(),
            options: options.map(str::to_owned).collect(),
        })
    }

    /// Whether its syncs are told not to reach the medium.
    pub fn skips_barriers(&self) -> bool {
        let skips = ["nobarrier", "barrier=0", "barrier=none"];
        self.options.iter().any(|option| skips.contains(&option.as_str()))
    }
}

/// What the block device below `path` says of its volatile cache, if it is one: `write back` or `write through`.
pub fn write_cache(path: &Path) -> Option<String> {
    let device = std::fs::metadata(path).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let device = format!("/sys/dev/block/{major}:{minor}");
    // A partition's queue is that of its disk.
    ["queue/write_cache", "../queue/write_cache"]
        .iter()
        .find_map(|below| std::fs::read_to_string(Path::new(&device).join(below)).ok())
        .map(|text| text.trim().to_owned())
}

/// Bytes on disk below `directory`, of its first `most` files.
pub fn used_bytes(directory: &Path, most: usize) -> u64 {
    let (mut sum, mut seen) = (0, 0);
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in std::fs::read_dir(next).into_iter().flatten().flatten() {
            seen += 1;
            if seen > most {
                return sum;
            }
            match entry.metadata() {
                Ok(found) if found.is_dir() => directories.push(entry.path()),
                Ok(found) => sum += found.blocks() * 512,
                Err(_) => {}
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_over_a_path_is_the_one_it_lies_on() {
        let table = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
                     30 22 0:26 / /var/lib/a\\040b rw shared:2 - xfs /dev/sdb1 rw,nobarrier\n\
                     31 22 0:27 / /var/lib/a rw - tmpfs tmpfs rw\n";
        let found = |path: &str| Mount::find(table, Path::new(path)).expect("a mount");
        assert_eq!(found("/var/lib/firn").kind, "ext4");
        assert!(!found("/var/lib/firn").skips_barriers());
        assert_eq!(found("/var/lib/a b/firn").source, "/dev/sdb1");
        assert!(found("/var/lib/a b/firn").skips_barriers());
        assert_eq!(found("/var/lib/a/firn").kind, "tmpfs");
        assert_eq!(found("/var/lib/ab").kind, "ext4");
    }
}
