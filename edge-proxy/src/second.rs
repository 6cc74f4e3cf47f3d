//! The second store of an edge: the mirror of its volume's store, kept behind the uploads, and what people are told of it.
//!
//! The mirror itself is `firn_mirror`; readers come to the store through `firn_volume`. This is where both get it from, and the one place that
//! knows how old the copy is.

use crate::config::{ParitySection, SecondSection};
use async_trait::async_trait;
use bytes::Bytes;
use firn_anchor::Anchor;
use firn_cleaner::SecondToAudit;
use firn_env::Env;
use firn_format::{FamilyId, SegmentId};
use firn_mirror::{LocalCopies, Mirror, MirrorOptions, MirrorState, Parity, Queue};
use firn_store::{Meter, ProviderPrices, Route, Stack, Store, StoreUrl};
use firn_volume::Volume;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};

/// The store, and what waits for it; outlives the volume's openings.
pub struct SecondStore {
    pub section: SecondSection,
    pub stack: Stack,
    /// For work in the background.
    pub background: Arc<dyn Store>,
    pub queue: Arc<Queue>,
    /// The groups of the family that was opened last: readers and the mirror have one index of them.
    pub parity: Mutex<Option<Parity>>,
}

impl SecondStore {
    /// The parity groups of a family there.
    pub fn parity(&self, env: &Env, first: Arc<dyn Store>, family: FamilyId) -> Parity {
        let mut known = self.parity.lock().expect("no panic under this lock");
        match &*known {
            Some(parity) if parity.family() == family => parity.clone(),
            Some(_) | None => {
                let stores = (first, self.stack.store.clone());
                known.insert(Parity::new(env, stores, family)).clone()
            }
        }
    }
}

/// The mirror of an open volume.
pub struct Second {
    env: Env,
    url: String,
    pub mirror: Mirror,
    /// As readers have it, parity groups included, for repairs.
    pub store: Arc<dyn Store>,
    /// As it is, for work in the background.
    plain: Arc<dyn Store>,
    meter: Meter,
    book: Option<ProviderPrices>,
    volume: Volume,
    /// Whether this edge keeps the mirror; one that only reads the volume reads from it.
    is_kept: bool,
    /// Whether this edge keeps parity groups.
    has_parity: bool,
}

/// How the second store stands, as `status` and `/metrics` show it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SecondPart {
    pub url: String,
    /// `unchecked`, `alias`, `comparing`, `current`, `behind`, `refusing`, or `read` by an edge that does not keep it.
    pub state: String,
    pub last_error: Option<String>,
    pub backlog_objects: u64,
    pub backlog_bytes: u64,
    /// Age of the oldest member that is not copied yet; 0 if all is.
    pub behind_ms: u64,
    pub copied_objects: u64,
    pub copied_bytes: u64,
    /// Of these, what had to be read from the first store.
    pub read_back_bytes: u64,
    /// Milliseconds since 1970; absent until the first comparison after the start ended.
    pub compared_at_ms: Option<i64>,
    pub members: u64,
    pub member_bytes: u64,
    /// Segments that the last comparison found lost or altered in the first store, and that were not repaired since.
    pub lost_segments: u64,
    /// Other members of the first store that it found lost.
    pub lost_others: u64,
    /// Members that are damaged in the second store, or in the first with no copy.
    pub damaged: u64,
    /// Names of some of all these.
    pub named: Vec<String>,
    /// Deleted from the first, and kept here.
    pub kept_deleted: u64,
    pub deleted_objects: u64,
    /// How much this machine's clock is ahead of the second store's, if that is minutes; negative if it is behind.
    pub clock_ahead_ms: Option<i64>,
    /// What the second store would not delete.
    pub held: u64,
    /// Objects that the first store had lost and readers had from here.
    pub reads_answered: u64,
    pub reads_answered_bytes: u64,
    /// Objects that neither had.
    pub reads_failed: u64,
    /// Segments they belong to, as far as they were not repaired.
    pub segments_read: u64,
    pub requests: u64,
    pub nanodollars: u64,
    /// Absent if there are no parity groups, and none are wanted.
    pub parity: Option<ParityPart>,
}

/// How the parity groups in the second store stand.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ParityPart {
    pub groups: u64,
    pub members: u64,
    pub member_bytes: u64,
    pub parity_bytes: u64,
    /// Cold, and in no group yet.
    pub waiting: u64,
    pub waiting_bytes: u64,
    /// Members whose deletion waits until their group has a generation without them.
    pub held: u64,
    /// Members that neither store has and a repair did not take care of yet.
    pub absent: u64,
    /// Groups that cannot be changed.
    pub broken: u64,
    /// Objects of older generations that could not be deleted.
    pub undeleted: u64,
    /// Absent while no hold is in force: then all members have copies, or had.
    pub hold: Option<HoldPart>,
    pub generations_written: u64,
    pub rows_restored: u64,
    pub rows_failed: u64,
    /// Milliseconds since 1970.
    pub passed_at_ms: Option<i64>,
    pub last_error: Option<String>,
}

/// Members without copies, and what is held for them in the first store.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HoldPart {
    /// Whether copies go; otherwise they come back.
    pub drops: bool,
    /// Milliseconds since 1970.
    pub since_ms: i64,
    /// Members that the first store alone has.
    pub without_copy: u64,
    pub without_copy_bytes: u64,
    /// Members whose copy is to go and did not yet.
    pub copies_to_drop: u64,
    /// Retired segments that cleaners keep in the first store until their group is written without them.
    pub retired: u64,
    pub retired_bytes: u64,
    /// Since when the oldest of them, milliseconds since 1970.
    pub retired_since_ms: Option<i64>,
}

/// What a volume has on this machine.
struct Here(Volume);

#[async_trait]
impl LocalCopies for Here {
    async fn segment(&self, id: SegmentId, bytes: u64) -> Option<Bytes> {
        self.0.segment_here(id, bytes).await
    }
}

/// The prices by which a store's money is shown if nothing else is said.
pub fn usual_book(url: &StoreUrl) -> &'static str {
    match url {
        StoreUrl::Azure { .. } => "azure-hot-east-us",
        StoreUrl::Directory { .. } | StoreUrl::S3 { .. } | StoreUrl::Gcs { .. } => "s3-us-east-1",
    }
}

impl Second {
    /// The mirror of a volume that is open; nothing is asked yet. `kept` if this edge keeps it, with parity groups or without.
    pub fn new(
        env: &Env,
        (first, first_in_background): (Arc<dyn Store>, Arc<dyn Store>),
        second: &SecondStore,
        anchor: Anchor,
        volume: &Volume,
        kept: Option<Option<&ParitySection>>,
    ) -> Self {
        let groups = kept.flatten();
        let parity = second.parity(env, first.clone(), anchor.family());
        let in_background = (first_in_background, second.background.clone());
        let parity = parity.through(in_background.clone());
        let options = MirrorOptions {
            keep_deleted: second.section.keep_deleted.0,
            compare_every: second.section.compare_every.0,
        };
        Self {
            env: env.clone(),
            url: second.section.store.to_string(),
            store: parity.reader(),
            plain: second.background.clone(),
            mirror: Mirror::new(env, in_background, anchor, second.queue.clone(), options)
                .with_parity(parity, groups.map(ParitySection::grouping)),
            meter: second.stack.meter.clone(),
            book: ProviderPrices::named(usual_book(&second.section.store))
                .ok()
                .cloned(),
            volume: volume.clone(),
            is_kept: kept.is_some(),
            has_parity: groups.is_some(),
        }
    }

    /// What this machine has of the volume's segments.
    pub fn here(&self) -> Arc<dyn LocalCopies> {
        Arc::new(Here(self.volume.clone()))
    }

    /// What an audit of it needs; `None` if it is the first store under another name.
    pub fn to_audit(&self) -> Option<SecondToAudit> {
        let status = self.mirror.status();
        if status.state == MirrorState::Alias {
            return None;
        }
        Some(SecondToAudit {
            store: self.plain.clone(),
            prices: self.book.clone()?,
            route: Route::Internet,
            is_behind: status.compared_at_ms.is_none() || status.backlog_objects > 0,
        })
    }

    /// Keeps the mirror for as long as it is awaited.
    pub async fn keep(self: Arc<Self>) {
        if self.is_kept {
            self.mirror.run(self.here()).await;
        }
    }

    /// This moment.
    pub fn part(&self) -> SecondPart {
        let status = self.mirror.status();
        let now_ms = self.env.wall().as_millis();
        let behind_ms = status
            .behind_since_ms
            .map_or(0, |since| now_ms.saturating_sub(since).max(1).unsigned_abs());
        let state = match status.state {
            _ if !self.is_kept => "read",
            MirrorState::Unchecked => "unchecked",
            MirrorState::Alias => "alias",
            MirrorState::Refusing => "refusing",
            MirrorState::Copying if status.compared_at_ms.is_none() => "comparing",
            MirrorState::Copying if behind_ms > 0 => "behind",
            MirrorState::Copying => "current",
        };
        let usage = self.meter.usage();
        let reads = self.volume.second_reads().unwrap_or_default();
        let found = status.comparison;
        SecondPart {
            url: self.url.clone(),
            state: state.into(),
            last_error: status.last_error,
            backlog_objects: status.backlog_objects,
            backlog_bytes: status.backlog_bytes,
            behind_ms,
            copied_objects: status.copied_objects,
            copied_bytes: status.copied_bytes,
            read_back_bytes: status.read_back_bytes,
            compared_at_ms: status.compared_at_ms,
            members: found.members,
            member_bytes: found.bytes,
            lost_segments: self.mirror.suspects().len() as u64,
            lost_others: found.lost_others,
            damaged: found.damaged,
            named: found.named,
            kept_deleted: found.waiting + found.marked,
            deleted_objects: status.deleted_objects,
            clock_ahead_ms: status.clock_ahead_ms,
            held: found.held,
            reads_answered: reads.objects,
            reads_answered_bytes: reads.bytes,
            reads_failed: reads.failures,
            segments_read: reads.segments,
            requests: usage.requests(),
            nanodollars: self
                .book
                .as_ref()
                .map_or(0, |book| book.cost(&usage, Route::Internet).total().nanos()),
            parity: self.parity_part(),
        }
    }

    fn parity_part(&self) -> Option<ParityPart> {
        let status = self.mirror.parity().status();
        let is_told = self.has_parity || status.groups + status.broken > 0;
        is_told.then_some(ParityPart {
            groups: status.groups,
            members: status.members,
            member_bytes: status.member_bytes,
            parity_bytes: status.parity_bytes,
            waiting: status.waiting,
            waiting_bytes: status.waiting_bytes,
            held: status.held,
            absent: status.absent,
            broken: status.broken,
            undeleted: status.undeleted,
            hold: status.hold.map(|hold| HoldPart {
                drops: hold.drops,
                since_ms: hold.since_ms,
                without_copy: hold.dropped,
                without_copy_bytes: hold.dropped_bytes,
                copies_to_drop: hold.undropped,
                retired: hold.held,
                retired_bytes: hold.held_bytes,
                retired_since_ms: hold.held_since_ms,
            }),
            generations_written: status.generations_written,
            rows_restored: status.rows_restored,
            rows_failed: status.rows_failed,
            passed_at_ms: status.passed_at_ms,
            last_error: status.last_error,
        })
    }
}

impl SecondPart {
    /// The lines of `status`.
    pub fn lines(&self) -> Vec<String> {
        let (size, span) = (crate::report::size, crate::report::span);
        let state = match self.state.as_str() {
            "current" => "current: has everything that the first store was given".into(),
            "comparing" => "being compared with the first store".into(),
            "behind" | "refusing" => format!(
                "{}: {} members with {} wait, the oldest for {}",
                self.state,
                self.backlog_objects,
                size(self.backlog_bytes),
                span(self.behind_ms)
            ),
            "alias" => {
                "this is the first store under another name: nothing is mirrored. Name another bucket".into()
            }
            "read" => "read for what the first store has lost; the edge that owns the volume keeps it".into(),
            other => other.to_owned(),
        };
        let mut lines = vec![format!("{}: {state}", self.url)];
        if let Some(error) = &self.last_error {
            lines.push(format!("last error: {error}"));
        }
        if self.state != "read" {
            lines.push(format!(
                "{} members with {}; {} copied since the start, {} deleted ones kept",
                self.members,
                size(self.member_bytes),
                size(self.copied_bytes),
                self.kept_deleted
            ));
        }
        if self.reads_answered + self.reads_failed > 0 {
            lines.push(format!(
                "{} objects with {} of {} segments that the first store has lost were read from it, {} were in neither",
                self.reads_answered,
                size(self.reads_answered_bytes),
                self.segments_read,
                self.reads_failed
            ));
        }
        let lost = self.lost_segments + self.lost_others;
        if lost + self.damaged > 0 {
            lines.push(format!(
                "the first store lost {lost} members that are here, {} are damaged: {}. firn-edge repair writes lost segments anew",
                self.damaged,
                self.named.join(", ")
            ));
        }
        if self.held > 0 {
            lines.push(format!(
                "{} members that are not needed any more cannot be deleted",
                self.held
            ));
        }
        if let Some(ahead_ms) = self.clock_ahead_ms {
            lines.push(format!(
                "this machine's clock is {} {} that of this store: what is to be deleted there waits until it is time by both. Set the clock \
                 that is wrong",
                span(ahead_ms.unsigned_abs()),
                if ahead_ms > 0 { "ahead of" } else { "behind" }
            ));
        }
        lines.extend(self.parity.iter().flat_map(ParityPart::lines));
        lines
    }
}

impl ParityPart {
    fn lines(&self) -> Vec<String> {
        let size = crate::report::size;
        let mut lines = vec![format!(
            "parities: {} groups with {} of {} members with {}; {} cold ones with {} wait for a group",
            self.groups,
            size(self.parity_bytes),
            self.members,
            size(self.member_bytes),
            self.waiting,
            size(self.waiting_bytes)
        )];
        if self.held > 0 {
            lines.push(format!(
                "parities: {} members that are not needed any more stay until their groups are written without them",
                self.held
            ));
        }
        if self.rows_restored + self.rows_failed + self.absent > 0 {
            lines.push(format!(
                "parities: {} segments are in neither store; {} rows were computed from others, {} could not be. firn-edge repair writes lost segments \
                 anew",
                self.absent, self.rows_restored, self.rows_failed
            ));
        }
        if self.broken > 0 {
            lines.push(format!(
                "parities: {} groups cannot be changed: their object is damaged or of a newer version, or they lost more than they make up for",
                self.broken
            ));
        }
        lines.extend(self.hold.iter().flat_map(HoldPart::lines));
        if self.undeleted > 0 {
            lines.push(format!(
                "parities: {} objects of older generations cannot be deleted with these credentials; their groups are not changed until firn-cleaner \
                 mirror, or an administrator, took them away",
                self.undeleted
            ));
        }
        if let Some(error) = &self.last_error {
            lines.push(format!("parities: last error: {error}"));
        }
        lines
    }
}

impl HoldPart {
    fn lines(&self) -> Vec<String> {
        let size = crate::report::size;
        let mut lines = vec![format!(
            "parities: {} members with {} have no copy: this store alone cannot bring the volume back; {}",
            self.without_copy,
            size(self.without_copy_bytes),
            match (self.drops, self.copies_to_drop) {
                (true, 0) => "copies go as groups are made".into(),
                (true, left) => format!(
                    "{left} copies are still to go, by firn-cleaner mirror or whoever else may delete here"
                ),
                (false, _) => "copies come back".to_owned(),
            }
        )];
        if let Some(since_ms) = self.retired_since_ms {
            lines.push(format!(
                "parities: {} retired segments with {} wait in the first store until their groups are written without them, the oldest since {}",
                self.retired,
                size(self.retired_bytes),
                crate::snapshots::utc(since_ms)
            ));
        }
        lines
    }
}
