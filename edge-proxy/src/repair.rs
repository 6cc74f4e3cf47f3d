//! Repair: what the store has lost or altered is written anew from the second store, by hand and in the background.
//!
//! What is lost is known from readers, audits and verifications, and from the comparison of both stores (`--all` makes one first). The work is the cleaner's
//! ([`firn_cleaner::Repair`]): nothing is put under an old name. Of what neither store has, the files are named by a walk over the trees that reads
//! no other data.
//!
//! What read-back found with other bytes than were put is repaired without a second store, from the copy that this machine keeps (`own_copies.rs`).

mod own_copies;

use crate::{
    admin::{Client, Command, Reply},
    anchor::AnchorAt,
    commands::unexpected,
    config::Config,
    failure::Failure,
    repair::own_copies::OwnCopies,
    report,
    snapshot::Observed,
};
use firn_env::{Env, eprintln, println};
use firn_format::SegmentId;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, fmt::Write as _, sync::Arc, time::Duration};

/// Between two looks whether something was found lost; they ask nobody.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Between two repairs in the background that leave something which waits, or of which a store did not answer: after a commit it may be possible.
const AGAIN_EVERY: Duration = Duration::from_secs(120);

/// At most between two that leave only what is beyond repair: each walks the trees to name files, and only somebody who brings an object back changes that.
const AGAIN_AT_LEAST_EVERY: Duration = Duration::from_secs(6 * 3600);

/// Files named in an answer.
const FILES_MAX: usize = 1000;

/// What a repair did, or would do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RepairReport {
    pub is_plan: bool,
    /// Whether there is a second store to repair from.
    pub has_second: bool,
    /// Segments that were found lost or altered.
    pub lost: u64,
    /// Of them, those whose needed objects lie elsewhere now.
    pub repaired: u64,
    pub moved_objects: u64,
    pub moved_bytes: u64,
    /// Of them, those that nobody needs.
    pub unneeded: u64,
    /// Of them, those that were retired before.
    pub retired: u64,
    /// Of them, those that can be judged only after the next commit.
    pub waiting: u64,
    /// Those that are beyond repair, each with the reason.
    pub beyond: Vec<String>,
    /// Files that have parts in these, each with what cannot be read.
    pub files: Vec<String>,
    pub more_files: u64,
}

/// `firn-edge repair`.
///
/// # Errors
/// [`Failure`]; with exit code 6 if something is beyond repair.
pub async fn repair(config: &Config, plan: bool, all: bool) -> Result<(), Failure> {
    let mut client = Client::ask(config, Command::Repair { plan, all }).await?;
    loop {
        match client.next().await? {
            Reply::Progress { text } => eprintln!("{text}"),
            Reply::Repaired { repaired } => {
                println!("{}", repaired.text());
                return match repaired.beyond.is_empty() && repaired.files.is_empty() {
                    true => Ok(()),
                    false => Err(Failure::damaged(
                        "something is in neither store: restore the named files from a snapshot, or the segments from the bucket's versions",
                    )),
                };
            }
            Reply::Error { text } => return Err(Failure::new(text)),
            other => return Err(unexpected(&other)),
        }
    }
}

/// Why this edge may not repair.
fn refusal(config: &Config) -> Option<&'static str> {
    match config.volume.anchor {
        AnchorAt::Table(_) => None,
        AnchorAt::Url(_) | AnchorAt::Service => Some(
            "the service that keeps the roots lets no edge retire segments, so this one cannot repair: `firn-cleaner mirror` does; readers have what is lost from the second \
             store meanwhile",
        ),
    }
}

impl Observed {
    /// Segments that readers, read-back, audits or the last comparison found lost or altered.
    fn lost(&self) -> BTreeSet<SegmentId> {
        let mut lost: BTreeSet<SegmentId> = self.volume.lost_segments().into_iter().collect();
        lost.extend(self.volume.altered_segments());
        if let Some(second) = &self.second {
            lost.extend(second.mirror.suspects().into_keys());
        }
        lost.extend(self.auditor.damaged_segments().iter());
        lost
    }

    /// What is repaired without being asked: without a second store, that of which this machine has the right bytes.
    fn repaired_unasked(&self) -> BTreeSet<SegmentId> {
        match &self.second {
            Some(_) => self.lost(),
            None => self.volume.altered_segments().into_iter().collect(),
        }
    }

    /// Repairs, or tells what would be repaired.
    ///
    /// # Errors
    /// What was in the way, for people. What was repaired before stays so.
    pub async fn repair(&self, plan: bool, all: bool) -> Result<RepairReport, String> {
        if let Some(why) = refusal(self.config()) {
            return Err(format!("not repaired: {why}. Nothing was changed"));
        }
        let second = self.second.as_ref().filter(|second| second.mirror.is_checked());
        if let (Some(second), true) = (second, all) {
            let compared = second.mirror.compare(&*second.here()).await;
            compared
                .map_err(|error| format!("the stores cannot be compared: {error}. Nothing was changed"))?;
        }
        if self.second.is_some() && second.is_none() {
            return Err("whether the second store is another than the first is not known; `firn-edge status` says why. Nothing was changed".into());
        }
        let lost = self.lost();
        let behind = second.map(|second| second.store.clone());
        let copies = OwnCopies::new(&self.env, &self.volume, self.volume.altered_segments(), behind);
        let repaired = self.cleaner.repair(Some(Arc::new(copies)), &lost, plan).await;
        let found = repaired.map_err(|error| {
            format!("the repair ended early: {error}. What was retired before is repaired; ask again")
        })?;
        if !plan {
            let settled = [&found.repaired, &found.unneeded, &found.retired];
            for segment in settled.into_iter().flatten() {
                self.volume.was_relocated(*segment).await;
                self.auditor.damaged_segments().remove(segment);
            }
            if let Some(second) = second {
                for segment in found.repaired.iter().chain(&found.retired) {
                    second.mirror.forget_suspect(*segment);
                }
                for segment in &found.unneeded {
                    let put = second.mirror.mark_unneeded(*segment).await;
                    put.map_err(|error| {
                        format!("repaired, but the second store does not take a tombstone: {error}")
                    })?;
                }
            }
            self.drop_caches().await;
        }
        let mut report = RepairReport {
            is_plan: plan,
            has_second: second.is_some(),
            lost: lost.len() as u64,
            repaired: found.repaired.len() as u64,
            moved_objects: found.moved_objects,
            moved_bytes: found.moved_bytes,
            unneeded: found.unneeded.len() as u64,
            retired: found.retired.len() as u64,
            waiting: found.waiting.len() as u64,
            ..RepairReport::default()
        };
        if !found.beyond.is_empty() {
            let segments = found.beyond.iter().map(|beyond| beyond.segment).collect();
            let named = self.volume.name_files_of(&segments).await;
            let named = named.map_err(|error| {
                format!("repaired what could be, but the files of the rest cannot be named: {error}")
            })?;
            let of = |damage: &firn_volume::Damage| {
                let path = damage
                    .path
                    .clone()
                    .unwrap_or_else(|| format!("inode {}", damage.inode));
                match &damage.snapshot {
                    Some(snapshot) => format!("{path} in the snapshot {snapshot}: {}", damage.detail),
                    None => format!("{path}: {}", damage.detail),
                }
            };
            report.files = named.damages.iter().take(FILES_MAX).map(of).collect();
            report.more_files = named.more_damages + named.damages.len().saturating_sub(FILES_MAX) as u64;
            let lines = found.beyond.iter().take(FILES_MAX);
            report.beyond = lines
                .map(|beyond| format!("segment {}: {}", beyond.segment, beyond.detail))
                .collect();
        }
        Ok(report)
    }
}

impl RepairReport {
    /// For people.
    pub fn text(&self) -> String {
        if self.lost == 0 {
            return "nothing is known to be lost. `--all` compares both stores, `firn-edge verify` reads everything".into();
        }
        let done = if self.is_plan {
            "would be written anew"
        } else {
            "were written anew"
        };
        let mut text = format!(
            "{} segments were found lost or altered; {} {done}: {} objects with {}",
            self.lost,
            self.repaired,
            self.moved_objects,
            report::size(self.moved_bytes)
        );
        for (count, what) in [
            (self.unneeded, "are needed by nobody"),
            (self.retired, "were retired before"),
            (self.waiting, "wait for the next commit: ask again"),
        ] {
            if count > 0 {
                let _ = write!(text, "; {count} {what}");
            }
        }
        if self.is_plan {
            text.push_str(". Nothing was changed");
        }
        if !self.has_second && !self.beyond.is_empty() {
            text.push_str("\nthere is no second store ([second] in the configuration)");
        }
        for line in &self.beyond {
            let _ = write!(text, "\nbeyond repair: {line}");
        }
        for file in &self.files {
            let _ = write!(text, "\nlost: {file}");
        }
        if self.more_files > 0 {
            let _ = write!(text, "\nand {} more", self.more_files);
        }
        text
    }
}

/// Repairs whenever something was found lost, for as long as it is awaited; asks nobody while nothing is.
pub async fn keep_repaired(env: Env, observed: Arc<Observed>) {
    let second = observed.config().second.as_ref();
    let wanted = second.is_none_or(|second| second.repair);
    if !wanted || refusal(observed.config()).is_some() {
        return;
    }
    let mut left = BTreeSet::new();
    let mut tried_at = env.now();
    let mut pause = AGAIN_EVERY;
    loop {
        env.sleep(LOOK_EVERY).await;
        let lost = observed.repaired_unasked();
        let is_due = lost != left || env.now().since(tried_at) >= pause;
        if lost.is_empty() || !is_due {
            continue;
        }
        if lost != left {
            pause = AGAIN_EVERY;
        }
        tried_at = env.now();
        match observed.repair(false, false).await {
            Ok(report) => {
                pause = pause_after(pause, &report);
                tracing::warn!(
                    report = report.text(),
                    "what the store had lost was repaired as far as it could be"
                );
            }
            Err(error) => {
                pause = AGAIN_EVERY;
                tracing::warn!(error, "lost segments are not repaired yet");
            }
        }
        left = observed.repaired_unasked();
    }
}

/// How long until the next repair, if nothing else is found lost.
fn pause_after(pause: Duration, report: &RepairReport) -> Duration {
    if report.waiting > 0 {
        AGAIN_EVERY
    } else {
        (pause * 2).min(AGAIN_AT_LEAST_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_beyond_repair_is_tried_ever_more_seldom_and_what_waits_is_not() {
        let beyond = RepairReport {
            lost: 2,
            beyond: vec!["segment".into()],
            ..RepairReport::default()
        };
        let waits = RepairReport {
            waiting: 1,
            ..beyond.clone()
        };
        let (mut pause, mut tries, mut day) = (AGAIN_EVERY, 0, Duration::ZERO);
        while day < Duration::from_secs(24 * 3600) {
            pause = pause_after(pause, &beyond);
            day += pause;
            tries += 1;
        }
        assert!(tries < 15, "{tries} in a day");
        assert_eq!(pause, AGAIN_AT_LEAST_EVERY);
        assert_eq!(pause_after(pause, &waits), AGAIN_EVERY);
    }
}
