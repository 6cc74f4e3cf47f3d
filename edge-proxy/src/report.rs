//! Snapshots for people: the tables of `status` and `top`.

mod clients;

use crate::{
    audit,
    cleaner::{Cleaned, CleanerPart},
    durability::LevelTwoPart,
    second::SecondPart,
    sharing,
    snapshot::{Snapshot, VolumeState},
};
use firn_edge_state::NewWrites;
use firn_quantity::{Dollars, Money};
use firn_store::ProviderPrices;
use std::fmt::Write;

pub use clients::top;

/// Bytes with a unit, three digits or more: `1.50 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let step = (bytes.max(1).ilog2() / 10).min(5);
    if step == 0 {
        return format!("{bytes} B");
    }
    let value = bytes as f64 / (1_u64 << (10 * step)) as f64;
    format!(
        "{value:.*} {}",
        if value < 10.0 { 2 } else { 1 },
        UNITS[step as usize]
    )
}

/// Milliseconds as the two largest units that say something: `2 h 5 min`.
pub fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms % 1000 / 100),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How far the cloud is behind, in one line.
pub fn behind(snapshot: &Snapshot) -> String {
    let waiting = &snapshot.uncommitted;
    let mut text = format!(
        "{} in {} files to go, {} uploaded",
        size(waiting.bytes),
        waiting.inodes,
        size(snapshot.commits.uploaded_bytes)
    );
    if let Some(error) = &snapshot.commits.last_error {
        let _ = write!(text, "; last error: {error}");
    }
    text
}

/// The tables of `status`, one of each volume.
pub fn all(volumes: &[VolumeState]) -> String {
    let one = |volume: &VolumeState| match &volume.snapshot {
        Some(snapshot) => status(snapshot),
        None => not_open(volume),
    };
    volumes.iter().map(one).collect::<Vec<_>>().join("\n")
}

/// A volume that is not open.
pub fn not_open(volume: &VolumeState) -> String {
    let reason = volume
        .reason
        .as_ref()
        .map_or(String::new(), |reason| format!(": {reason}"));
    format!(
        "{:<16}{}\n{:<16}{}{reason}\n",
        "Volume", volume.name, "State", volume.state
    )
}

/// Damaged files that `status` names one by one.
const DAMAGES_SHOWN: usize = 8;

/// The table of `status`.
pub fn status(snapshot: &Snapshot) -> String {
    let Snapshot {
        volume,
        owner,
        uncommitted,
        commits,
        journal,
        cache,
        store,
        table,
        nfs,
        ..
    } = snapshot;
    let mut out = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<16}{value}");
    };
    let reason = volume
        .reason
        .as_ref()
        .map_or(String::new(), |reason| format!(": {reason}"));
    row("Volume", format!("{} ({})", volume.name, volume.id));
    // Edges of before did not say.
    if !volume.family.is_empty() {
        row("Family", volume.family.clone());
    }
    row(
        "State",
        format!("{}{reason}, up {}", volume.state, span(volume.up_ms)),
    );
    if let Some(detached) = &snapshot.detached {
        row(
            "Detached",
            format!("for {}: {}", span(detached.for_ms), detached.words()),
        );
        row(
            "",
            "what is cached is read, everything else is answered with \"try again later\"; writes are safe in the journal (level 1)"
                .into(),
        );
        row(
            "",
            "bring store and table back: the edge goes on by itself. Until then sync, drain, verify, audit, clean, snapshots and clones are refused"
                .into(),
        );
    }
    if let Some(desired) = &snapshot.desired {
        if desired.new_writes == NewWrites::RefusedByCap {
            row(
                "New writes",
                "refused (EDQUOT): the hard cap of the budget is reached; firn budget raise AMOUNT. Reads, deletes and flushes go on".into(),
            );
        }
        if let Some(why) = &desired.refused {
            row("Not obeyed", why.clone());
        }
    }
    let sharing = match &snapshot.by_inode {
        Some(by_inode) => by_inode.rows(),
        None => sharing::rows(owner, snapshot.following.as_ref(), snapshot.shared.as_ref()),
    };
    let level_two = snapshot
        .level_two
        .as_ref()
        .map(LevelTwoPart::rows)
        .unwrap_or_default();
    for (title, text) in sharing.into_iter().chain(level_two) {
        row(title, text);
    }
    row(
        "Content",
        format!(
            "{} files, {} of {}",
            volume.files,
            size(volume.used_bytes),
            size(volume.quota_bytes)
        ),
    );
    row(
        "Uncommitted",
        match uncommitted.oldest_ms {
            Some(age) => format!(
                "{} in {} files; the oldest change is {} old, at level 1 (journal)",
                size(uncommitted.bytes),
                uncommitted.inodes,
                span(age)
            ),
            None => "nothing; everything is at level 2 (cloud)".into(),
        },
    );
    let last = match commits.last_age_ms {
        Some(age) => format!("{} ago", span(age)),
        None => "never".into(),
    };
    let building = if commits.building { ", one under way" } else { "" };
    row(
        "Last commit",
        format!("{last}; {} since the start{building}", commits.checkpoints),
    );
    if commits.upload_failures > 0 || commits.last_error.is_some() {
        row(
            "Trouble",
            format!(
                "{} failed uploads in a row; {}",
                commits.upload_failures,
                commits.last_error.as_deref().unwrap_or("no detail")
            ),
        );
    }
    if commits.lost_segments > 0 {
        row(
            "Lost",
            format!(
                "{} segments that the store acknowledged and does not have: {}",
                commits.lost_segments,
                commits.lost_keys.join(", ")
            ),
        );
    }
    if commits.unconfirmed_segments > 0 || commits.segments_put_again > 0 {
        let again = match commits.segments_put_again {
            0 => String::new(),
            count => format!("; {count} that the store had dropped were put again"),
        };
        row(
            "Read back",
            format!(
                "{} segments wait to be read back, {} kept on disk{again}",
                commits.unconfirmed_segments,
                size(commits.pinned_bytes)
            ),
        );
    }
    if commits.altered_segments > 0 {
        row(
            "Altered",
            format!(
                "{} segments of which the store has other bytes than were put, read from this disk until they are repaired (after the next commit): {}",
                commits.altered_segments,
                commits.altered_keys.join(", ")
            ),
        );
    }
    let stalled = journal
        .stalled
        .as_ref()
        .map_or(String::new(), |why| format!("; waits: {why}"));
    row(
        "Journal",
        format!(
            "{} of {}, {} records in {} syncs, {} waits for space{stalled}",
            size(journal.used_bytes),
            size(journal.capacity_bytes),
            journal.records,
            journal.syncs,
            journal.space_waits
        ),
    );
    row(
        "Cache",
        format!(
            "memory {} of {}, disk {} of {}; hits {} and {}, misses {}",
            size(cache.memory_bytes),
            size(cache.memory_capacity_bytes),
            size(cache.disk_bytes),
            size(cache.disk_capacity_bytes),
            cache.memory_hits,
            cache.disk_hits,
            cache.misses
        ),
    );
    if cache.disk_given_up_bytes > 0 {
        row(
            "",
            format!(
                "its disk is full: {} were evicted to leave room for the journal",
                size(cache.disk_given_up_bytes)
            ),
        );
    }
    let damaged = snapshot.damaged_files();
    for (number, file) in damaged.iter().take(DAMAGES_SHOWN).enumerate() {
        let found = snapshot.damages.iter().find(|one| one.file() == *file);
        let detail = found.map_or("", |one| one.detail.as_str());
        row(
            if number == 0 { "Damage" } else { "" },
            format!("{file}: {detail}"),
        );
    }
    let more = (damaged.len().saturating_sub(DAMAGES_SHOWN)) as u64 + snapshot.more_damages;
    if !damaged.is_empty() {
        let beyond = if more > 0 {
            format!("{more} more met; ")
        } else {
            String::new()
        };
        row(
            "",
            format!("{beyond}`firn-edge verify` names all. All other files are served"),
        );
    }
    if cache.cache_damages + cache.store_damages > 0 {
        row(
            "Damage healed",
            format!(
                "{} in the disk cache, {} from the store",
                cache.cache_damages, cache.store_damages
            ),
        );
    }
    let usage = &store.usage;
    row("Store", store.url.clone());
    row(
        "",
        format!(
            "{} requests ({} put, {} get, {} ranged get, {} failed), {} up, {} down",
            store.requests,
            usage.puts,
            usage.gets,
            usage.ranged_gets,
            usage.failures,
            size(usage.bytes_up),
            size(usage.bytes_down)
        ),
    );
    row(
        "",
        format!(
            "{} since the start by {} of {}",
            Dollars(Money::of_nanos(store.nanodollars)),
            store.price_book,
            store.prices_as_of
        ),
    );
    row("Table", table.url.clone());
    row(
        "",
        format!(
            "{} requests, {} read and {} write units, {}",
            table.requests,
            table.read_units,
            table.write_units,
            Dollars(Money::of_nanos(table.nanodollars))
        ),
    );
    for (number, line) in clients::protocol_lines(&snapshot.protocols)
        .into_iter()
        .enumerate()
    {
        row(if number == 0 { "Protocols" } else { "" }, line);
    }
    row("NFS", clients::nfs_line(nfs, snapshot.calls()));
    for junction in &nfs.junctions {
        row("Junction", junction.line());
    }
    for mount in &nfs.mounts {
        row("", format!("{} mounts {}", mount.client, mount.path));
    }
    if let Some(text) = clients::locks_line(&nfs.locks) {
        row("Locks", text);
    }
    for mount in &snapshot.mounts {
        row("Mount", clients::mount_line(mount));
    }
    if let Some(smb) = &snapshot.smb {
        for (name, line) in clients::smb_lines(smb) {
            row(name, line);
        }
    }
    if let Some(log) = &snapshot.access_log {
        row("Access log", log.to_string());
    }
    if let Some(text) = cleaner_line(&snapshot.cleaner) {
        row("Cleaner", text);
    }
    if let Some(text) = audit::line(&snapshot.audit) {
        row("Audits", text);
    }
    let background = &snapshot.background;
    if background.admitted > 0 {
        let text = format!(
            "{} requests to the stores under way, {} wait for clients and uploads or for each other; {} since the start, {} of them waited",
            background.in_flight, background.waiting, background.admitted, background.delayed
        );
        row("Background", text);
    }
    if !matches!(snapshot.manifest.state.as_str(), "" | "without") {
        row("Manifest", snapshot.manifest.line());
    }
    let lines = snapshot.second.iter().flat_map(SecondPart::lines);
    for (number, line) in lines.enumerate() {
        row(if number == 0 { "Second store" } else { "" }, line);
    }
    out
}

/// What the cleaner inside did; nothing if it was never asked to.
fn cleaner_line(cleaner: &CleanerPart) -> Option<String> {
    if cleaner.every_ms.is_none() && cleaner.runs == 0 {
        return None;
    }
    let when = match (cleaner.is_running, cleaner.every_ms) {
        (true, _) => "running".into(),
        (false, Some(every)) => format!("every {}", span(every)),
        (false, None) => "when told to".into(),
    };
    let mut text = format!(
        "{when}; {} runs, {} retired, {} written, {} deleted, {} segments wait, {}",
        cleaner.runs,
        size(cleaner.retired_bytes),
        size(cleaner.written_bytes),
        size(cleaner.deleted_bytes),
        cleaner.waiting_segments,
        Dollars(Money::of_nanos(cleaner.nanodollars))
    );
    let _ = match (
        cleaner.held_segments,
        cleaner.damaged_objects,
        cleaner.missing_segments,
    ) {
        (0, 0, 0) => Ok(()),
        (held, damaged, missing) => write!(
            text,
            "; {held} segments held, {damaged} objects damaged, {missing} segments missing"
        ),
    };
    if cleaner.hold_segments > 0 {
        let held = cleaner.hold_segments;
        let _ = write!(text, "; {held} retired segments wait for parity groups");
    }
    if let Some(error) = &cleaner.last_error {
        let _ = write!(text, "; last error: {error}");
    }
    Some(text)
}

/// What a run of the cleaner did, or would do, with its money.
pub fn cleaned(cleaned: &Cleaned, book: &ProviderPrices) -> String {
    let per_gib = |cost: Money, freed_bytes: u64| match freed_bytes {
        0 => String::new(),
        freed => {
            let cost = cost.0.saturating_mul(1 << 30) / i128::from(freed);
            format!(", {} for each GiB", Dollars(Money(cost)))
        }
    };
    match cleaned {
        Cleaned::Done(report, cost) => {
            let freed = report.retired_bytes.saturating_sub(report.written_bytes);
            let mut text = format!(
                "{} of {} segments looked at; {} retired with {}, for which {} were written; {} deleted with {}; {} wait for the \
                 end of their grace. It cost {}{} by {}, and saves {} a month",
                report.judged_segments,
                report.listed_segments,
                report.retired_segments,
                size(report.retired_bytes),
                size(report.written_bytes),
                report.deleted_segments,
                size(report.deleted_bytes),
                report.waiting_segments + report.retired_segments,
                cost,
                per_gib(*cost, freed),
                book.name,
                report.saved_a_month(book),
            );
            if !report.sweep_ended || report.out_of_time {
                text.push_str(". It did not come to the end of the log; the next run goes on");
            }
            if report.hold_segments > 0 {
                let held = report.hold_segments;
                let _ = write!(
                    text,
                    ". {held} retired segments wait until the parity groups in the second store are written without them"
                );
            }
            for held in &report.held.first {
                let _ = write!(text, "\nheld: {held}");
            }
            for missing in &report.missing.first {
                let _ = write!(text, "\nmissing: {missing}");
            }
            for damage in &report.damaged {
                let _ = write!(text, "\ndamaged: inode {}: {}", damage.inode, damage.detail);
            }
            text
        }
        Cleaned::Planned(plan, cost) => format!(
            "{} of {} segments would be retired: {} with {} to move, {} would become free. It would cost about {}{} by {}, and save {} \
             a month. {}",
            plan.victims,
            plan.listed_segments,
            size(plan.victim_bytes),
            size(plan.moved_bytes),
            size(plan.freed_bytes),
            cost,
            per_gib(*cost, plan.freed_bytes),
            book.name,
            plan.saved_a_month(book),
            if plan.whole_log {
                "Nothing was changed"
            } else {
                "This is not yet the whole log. Nothing was changed"
            }
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_spans_read_as_people_write_them() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.50 KiB");
        assert_eq!(size(64 << 20), "64.0 MiB");
        assert_eq!(size(u64::MAX), "16384.0 PiB");
        assert_eq!(span(950), "950 ms");
        assert_eq!(span(59_990), "59.9 s");
        assert_eq!(span(7_500_000), "2 h 5 min");
        assert_eq!(span(90_000_000), "1 d 1 h");
    }
}
