//! The rows of `status` about NFS, locks, mounts and SMB, and the screen of `top`: what clients do, for people.

use super::{behind, size, span};
use crate::{
    smb::SmbPart,
    snapshot::{LocalMountPart, LocksPart, NfsPart, ProtocolPart, Snapshot},
};
use firn_quantity::{Dollars, Money};
use std::fmt::Write;

/// Microseconds in a unit that people read.
fn latency(us: Option<u64>) -> String {
    match us {
        None => "-".into(),
        Some(us) if us < 10_000 => format!("{us} us"),
        Some(us) if us < 10_000_000 => format!("{} ms", us / 1000),
        Some(us) => format!("{} s", us / 1_000_000),
    }
}

/// What clients have and did, by protocol.
pub(super) fn protocol_lines(protocols: &[ProtocolPart]) -> Vec<String> {
    let line = |part: &ProtocolPart| {
        let traffic = &part.traffic;
        format!(
            "{}: {} clients, {} opens, {} locks; {} operations ({} failed), {} received, {} sent, mean {}, 99 % within {}",
            part.protocol,
            part.clients,
            part.open_files,
            part.locks,
            traffic.operations,
            traffic.failed,
            size(traffic.received_bytes),
            size(traffic.sent_bytes),
            latency(traffic.mean_us()),
            latency(traffic.within_us(0.99))
        )
    };
    protocols.iter().map(line).collect()
}

/// The table of `top` about protocols.
fn protocol_table(before: &Snapshot, after: &Snapshot, seconds: f64) -> String {
    let mut out = format!(
        "{:<10}{:>9}{:>8}{:>8}{:>14}{:>12}{:>12}{:>16}{:>16}\n",
        "PROTOCOL", "CLIENTS", "OPENS", "LOCKS", "OPERATIONS/S", "MEAN", "P99", "RECEIVED", "SENT"
    );
    for now in &after.protocols {
        let then = before.protocols.iter().find(|then| then.protocol == now.protocol);
        let traffic = now
            .traffic
            .since(&then.map(|then| then.traffic.clone()).unwrap_or_default());
        let rate = |bytes: u64| format!("{}/s", size((bytes as f64 / seconds) as u64));
        let _ = writeln!(
            out,
            "{:<10}{:>9}{:>8}{:>8}{:>14.1}{:>12}{:>12}{:>16}{:>16}",
            now.protocol,
            now.clients,
            now.open_files,
            now.locks,
            traffic.operations as f64 / seconds,
            latency(traffic.mean_us()),
            latency(traffic.within_us(0.99)),
            rate(traffic.received_bytes),
            rate(traffic.sent_bytes)
        );
    }
    out
}

/// NFS; an edge may have mounts alone.
pub(super) fn nfs_line(nfs: &NfsPart, calls: u64) -> String {
    if nfs.address.is_empty() {
        return "not served: nothing is exported".into();
    }
    format!(
        "{}: {} connections, {} mounts, {calls} calls",
        nfs.address,
        nfs.connections,
        nfs.mounts.len()
    )
}

/// Locks of all protocols; nothing if there are none.
pub(super) fn locks_line(locks: &LocksPart) -> Option<String> {
    let grace = match locks.in_grace {
        true => "; NFS clients may reclaim theirs, nobody gets new ones yet",
        false => "",
    };
    if locks.held + locks.waiting == 0 && !locks.in_grace {
        return None;
    }
    Some(format!(
        "{} held by {} clients, {} requests wait{grace} (firn-edge locks)",
        locks.held, locks.clients, locks.waiting
    ))
}

/// SMB: what is served, and what is wrong with it.
pub(super) fn smb_lines(smb: &SmbPart) -> Vec<(&'static str, String)> {
    let mut lines = vec![(
        "SMB",
        format!(
            "{}, {} connections, {} users, shares {}",
            smb.state,
            smb.connections,
            smb.users,
            smb.shares.join(", ")
        ),
    )];
    if smb.lists_directories {
        lines.push((
            "",
            "a directory is listed for each name that is not found as it is written: slow in large ones; Samba's module glusterfs_fuse is not \
             installed (Debian, Ubuntu: samba-vfs-modules)"
                .into(),
        ));
    }
    if let Some(reason) = &smb.reason {
        lines.push(("", reason.clone()));
    }
    if let Some(domain) = &smb.domain {
        let reason = domain
            .reason
            .as_ref()
            .map_or(String::new(), |reason| format!(": {reason}"));
        lines.push(("SMB domain", format!("{} {}{reason}", domain.name, domain.state)));
    }
    if smb.failures > 0 {
        lines.push((
            "",
            format!(
                "smbd ended or did not answer {} times since the start",
                smb.failures
            ),
        ));
    }
    lines
}

/// A mount on this machine.
pub(super) fn mount_line(mount: &LocalMountPart) -> String {
    let mut text = format!(
        "{}{}: {} open files, {} requests",
        mount.path,
        if mount.read_only { " (read-only)" } else { "" },
        mount.open_files,
        mount.requests
    );
    if !mount.is_mounted {
        text.push_str("; somebody unmounted it, a restart mounts it again");
    }
    if mount.is_stalled {
        text.push_str("; the kernel does not answer, changes of others may be seen late");
    }
    text
}

/// One screen of `top`: what happened between two snapshots.
pub fn top(before: &Snapshot, after: &Snapshot) -> String {
    let seconds = (after.volume.up_ms.saturating_sub(before.volume.up_ms)).max(1) as f64 / 1000.0;
    let rate = |after: u64, before: u64| after.saturating_sub(before) as f64 / seconds;
    let bytes = |after: u64, before: u64| format!("{}/s", size(rate(after, before) as u64));
    let mut out = format!(
        "{} {}, up {}; {}\n",
        after.volume.name,
        after.volume.state,
        span(after.volume.up_ms),
        behind(after)
    );
    let (now, then) = (&after.store, &before.store);
    let _ = writeln!(
        out,
        "store {:.1} requests/s, {} up, {} down, {} since the start; journal {} of {}; cache misses {:.1}/s\n",
        rate(now.requests, then.requests),
        bytes(now.usage.bytes_up, then.usage.bytes_up),
        bytes(now.usage.bytes_down, then.usage.bytes_down),
        Dollars(Money::of_nanos(now.nanodollars)),
        size(after.journal.used_bytes),
        size(after.journal.capacity_bytes),
        rate(after.cache.misses, before.cache.misses),
    );
    let _ = writeln!(out, "{}", protocol_table(before, after, seconds));
    let _ = writeln!(
        out,
        "{:<24}{:>12}{:>14}{:>16}{:>16}",
        "PROCEDURE", "CALLS/S", "MEAN", "RECEIVED", "SENT"
    );
    let mut rows: Vec<_> = after
        .nfs
        .operations
        .iter()
        .filter_map(|now| {
            let then = before
                .nfs
                .operations
                .iter()
                .find(|then| (&then.program, &then.procedure) == (&now.program, &now.procedure));
            let then = then.cloned().unwrap_or_default();
            let calls = now.calls.saturating_sub(then.calls);
            (calls > 0).then_some((calls, now, then))
        })
        .collect();
    rows.sort_by_key(|(calls, now, _)| (std::cmp::Reverse(*calls), now.procedure.clone()));
    for (calls, now, then) in rows {
        let mean_us = now.latency_sum_us.saturating_sub(then.latency_sum_us) / calls;
        let _ = writeln!(
            out,
            "{:<24}{:>12.1}{:>14}{:>16}{:>16}",
            format!("{} {}", now.program, now.procedure),
            calls as f64 / seconds,
            format!("{mean_us} us"),
            bytes(now.received_bytes, then.received_bytes),
            bytes(now.sent_bytes, then.sent_bytes)
        );
    }
    out
}
