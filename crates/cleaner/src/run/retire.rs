//! Retirement of a batch: live objects are moved, heads that lead to the copies proposed, and the segments retired in one transaction.

use super::{Cleaner, MAX_PROPOSALS, Scene};
use crate::{
    CleanError, Report, branches,
    judge::{Fate, Judged},
    objects::Objects,
    own_log::OwnLog,
    relocate::{Relocated, relocate},
};
use firn_anchor::{Cover, MAX_COVERS, Proposal, RetiredSegment, Retirement, RetirementOutcome, TupleVersion};
use firn_format::{ForwardingEntry, ForwardingRecord, Location, SegmentId, WriterId};
use firn_store::ObjectKey;
use std::collections::{BTreeMap, BTreeSet};

impl Cleaner {
    /// Moves, proposes and retires a batch. `false`: another cleaner was first.
    pub(super) async fn retire(
        &self,
        objects: &mut Objects,
        log: &mut OwnLog,
        scene: &Scene,
        mut batch: Vec<Judged>,
        report: &mut Report,
    ) -> Result<bool, CleanError> {
        // What an earlier batch put and did not come to retire anything for is garbage.
        log.take_written();
        let plans = self.proposals(scene);
        let proposable = plans.keys().copied().collect();
        let relocated = relocate(objects, log, &scene.branches, &proposable, &mut batch).await?;
        for damage in &relocated.damaged {
            report.add_damage(damage);
        }
        if batch.is_empty() {
            return Ok(true);
        }
        let (mover, registered) = log.writer().await?;
        let retired_at_ms = self.env.wall().as_millis();
        let mut proposals = Vec::new();
        let retired = batch.iter().map(|victim| victim.candidate.segment).collect();
        for (ordinal, location) in &relocated.heads {
            let (proposal, replaced) = &plans[ordinal];
            let mut proposal = Proposal {
                location: *location,
                mover,
                proposed_at_ms: retired_at_ms,
                usage: relocated.usage(*ordinal, &retired, &proposal.usage),
                ..proposal.clone()
            };
            let volume = scene.branches[*ordinal].volume;
            if firn_env::planted!("cleaner.propose_on_another_base")
                && let Some(root) = self.anchor.load(volume).await?.0.root
            {
                proposal.base_version = root.version;
                proposal.base_uid = root.uid;
            }
            proposals.push((volume, proposal, *replaced));
        }
        let mut segments = Vec::new();
        for victim in &batch {
            let segment = victim.candidate.segment;
            let Some(entries) = entries(victim, &relocated.places) else {
                continue; // Something live has no new place: it stays.
            };
            let covers = covers(scene, &plans, &relocated, segment);
            let retired = RetiredSegment {
                mover,
                retired_at_ms,
                segment_bytes: victim.candidate.size_bytes,
                moved_objects: entries.len() as u32,
                keep_for_ever: covers.is_none(),
                covers: covers.unwrap_or_default(),
            };
            if !entries.is_empty() && !firn_env::planted!("cleaner.no_forwarding_record") {
                let record = ForwardingRecord {
                    family: self.anchor.family(),
                    old: segment,
                    mover,
                    retired_at_ms,
                    entries,
                };
                let key = ForwardingRecord::key(&record.family, segment, mover);
                let bytes = record.encode();
                report.written_bytes += bytes.len() as u64;
                log.put_once(&ObjectKey::new(&key), vec![bytes]).await?;
                self.env.fault_point("cleaner.after_record").await;
            }
            segments.push((segment, retired));
        }
        self.env.fault_point("cleaner.before_retire").await;
        let mut seen = scene.round.clone();
        if firn_env::planted!("cleaner.retire_without_round") {
            seen = self.anchor.cleaner_round().await?;
        }
        let moved: u64 = segments
            .iter()
            .map(|(_, retired)| u64::from(retired.moved_objects))
            .sum();
        let bytes: u64 = segments.iter().map(|(_, retired)| retired.segment_bytes).sum();
        let (count, proposed) = (segments.len() as u64, proposals.len() as u64);
        let retirement = Retirement {
            seen,
            mover: (mover, registered),
            segments,
            proposals,
            written: branches::tell_manifests(&scene.branches).then(|| log.take_written()),
        };
        let outcome = self.anchor.retire(retirement).await?;
        self.env.fault_point("cleaner.after_retire").await;
        if outcome == RetirementOutcome::Overtaken {
            return Ok(false);
        }
        report.retired_segments += count;
        report.retired_bytes += bytes;
        report.moved_objects += moved;
        report.moved_data_bytes += relocated.data_bytes;
        report.moved_node_bytes += relocated.node_bytes;
        report.proposals += proposed;
        Ok(true)
    }

    /// The branches whose heads may be proposed, with the proposal as far as it is known before anything is written.
    fn proposals(&self, scene: &Scene) -> BTreeMap<usize, (Proposal, Option<TupleVersion>)> {
        let mut plans = BTreeMap::new();
        for (ordinal, branch) in scene.branches.iter().enumerate() {
            let Some(head) = &branch.head else { continue };
            // Members merge nothing (docs/leases.md): forwarding records lead them on.
            if branch.tuple.by_inode {
                continue;
            }
            let (uid, version) = (head.object.uid(), head.trees.version);
            let mut usage = Vec::new();
            let (sequence, chained_from) = match (&branch.proposal, branch.unmerged()) {
                (None, _) => (1, 1),
                (Some((last, _)), None) => (last.sequence + 1, last.chained_from),
                // The head was read through the proposal itself: the next one includes it.
                (Some((last, _)), Some(_)) if last.base_uid == uid => {
                    usage.clone_from(&last.usage);
                    (last.sequence + 1, last.chained_from)
                }
                (Some((last, _)), Some(_))
                    if version.0.saturating_sub(last.base_version.0) > self.limits.give_up_versions =>
                {
                    (last.sequence + 1, last.sequence + 1)
                }
                // It is about to be merged; meanwhile forwarding records are enough.
                (Some(_), Some(_)) => continue,
            };
            if plans.len() >= MAX_PROPOSALS {
                break;
            }
            let proposal = Proposal {
                sequence,
                chained_from,
                base_version: version,
                base_uid: uid,
                location: Location::UNKNOWN,
                mover: WriterId(0),
                proposed_at_ms: 0,
                change_id: self.env.random_bytes(),
                usage,
            };
            let replaced = branch.proposal.as_ref().map(|(_, version)| *version);
            plans.insert(ordinal, (proposal, replaced));
        }
        plans
    }
}

/// The forwarding entries of a victim; `None` if something live has no other place.
fn entries(victim: &Judged, places: &BTreeMap<firn_format::Uid, Location>) -> Option<Vec<ForwardingEntry>> {
    let live = victim.objects.iter().filter(|(_, fate)| *fate != Fate::Dead);
    live.map(|(entry, _)| {
        let new = *places.get(&entry.uid)?;
        let fits = new.segment != victim.candidate.segment && new.length == entry.length;
        fits.then_some(ForwardingEntry {
            offset: entry.offset,
            new,
        })
    })
    .collect()
}

/// What leads each branch away from a victim; `None` if something leads there that nothing will lead away.
fn covers(
    scene: &Scene,
    plans: &BTreeMap<usize, (Proposal, Option<TupleVersion>)>,
    relocated: &Relocated,
    segment: SegmentId,
) -> Option<Vec<Cover>> {
    let is_in = |led: &BTreeMap<SegmentId, BTreeSet<usize>>, ordinal: usize| {
        led.get(&segment).is_some_and(|led| led.contains(&ordinal))
    };
    let mut covers = Vec::new();
    for (ordinal, branch) in scene.branches.iter().enumerate() {
        let Some(head) = &branch.head else { continue };
        let cover = if is_in(&relocated.led, ordinal) {
            Cover {
                volume: branch.volume,
                proposal: plans.get(&ordinal)?.0.sequence,
                clean_from: None,
            }
        } else if is_in(&relocated.led_before, ordinal) {
            Cover {
                volume: branch.volume,
                proposal: branch.unmerged()?.sequence,
                clean_from: None,
            }
        } else {
            Cover {
                volume: branch.volume,
                proposal: 0,
                clean_from: Some(head.trees.version),
            }
        };
        covers.push(cover);
    }
    (covers.len() <= MAX_COVERS).then_some(covers)
}
