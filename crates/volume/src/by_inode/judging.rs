//! The judgement of a broken member's journal at its start, and its salvage.
//!
//! ```text
//! present ─▶ arenas ─▶ newest root ─▶ lost? ─▶ clone: the whole journal on the retained root ─▶ what goes on, onto the newest root
//!                                       │ nothing                                                      ▲          │ published: the own section
//!                                       └──────────────────────────────────────────────────────────────┘          ▼ covers the whole journal
//!                                                                       served ◀── the retained root is forgotten (`judged`)
//! ```
//!
//! **Lost** is an inode of the journal that another holds now, or whose leaf in the newest root is not that of the retained one: others may have taken it, changed it
//! and given it home. The shape lease has no leaf: it is lost if it is not held. Taint spreads as [`Judgement`] says.
//!
//! **The verdict is the commit.** Nothing is written down before: as long as the root is retained, a start that follows a crash or another break judges anew, by what
//! is so then, and finds the clone under the same name. The commit that publishes what goes on says in the member's section that the
//! journal is covered, what was salvaged with it; only then the retained root is forgotten, and only after that anything is served. So no start
//! meets records of a journal that was judged, and none of one that was not is served.
//!
//! **The clone has all of the journal**, since what is salvaged may stand on what goes on (a file that was made here and moved into a directory that was lost).
//!
//! **Memory** is as for a replay: the inodes that the journal touches, which are bounded by what may wait for a root. The journal is read once for
//! each of the three steps.

use super::needs::{goes_to_another_parent, touched};
use crate::{
    checkpoint::MemberSection,
    config::VolumeConfig,
    error::VolumeError,
    follower::differing_inodes,
    journal::{Journal, Replay, Sequence},
    load::{LoadedRoot, load_root},
    objects::Objects,
    parts::Parts,
    record::{Operation, Record},
    replay::{RecoveryReport, load_for_replay},
    salvage::{Left, SalvageReport, Salvaging},
    state::State,
};
use firn_anchor::{AnchorError, MAX_NAME_BYTES, MemberNumber, OwnerId, Root, SHAPE_LEASE};
use firn_env::DiskError;
use firn_format::{Pointer, TreeRoot, Uid, VolumeId};
use firn_leases::{Judgement, LeaseTable};
use std::collections::{BTreeMap, BTreeSet};

/// Inodes of which is asked at a time whether they differ: what of them does is then told completely.
const COMPARED_AT_ONCE: usize = 4096;

/// A broken member whose journal is judged.
pub(super) struct Judging<'a> {
    pub parts: &'a Parts,
    pub config: &'a VolumeConfig,
    pub objects: &'a Objects,
    pub number: MemberNumber,
    pub name: &'a str,
    pub owner: OwnerId,
    /// Where its journal is.
    pub directory: &'a str,
    /// The last record that the newest root has.
    pub covered: Sequence,
    /// What the arenas said after it was present again.
    pub leases: &'a LeaseTable,
}

/// What of a newer root is compared with the retained one.
pub(super) struct Newest<'a> {
    pub inode_map: Option<TreeRoot>,
    pub orphan_pointers: &'a BTreeMap<u64, Pointer>,
}

/// What is lost to a journal that was judged: with the records it says which of them go on.
#[derive(Default)]
pub(super) struct Verdict {
    lost: BTreeSet<u64>,
    /// Directories that the journal takes into another parent.
    moved_directories: BTreeSet<u64>,
}

impl Verdict {
    /// Asked of each record in their order: whether it goes on.
    pub fn records(&self) -> impl FnMut(&Operation) -> bool + '_ {
        let mut judgement = Judgement::new(|inode| self.is_lost(inode));
        move |operation| judgement.goes_on(&self.touched(operation))
    }

    /// Whether another has it, or had.
    pub fn is_lost(&self, inode: u64) -> bool {
        self.lost.contains(&inode)
            && !firn_env::planted!("volume.adopts_what_is_lost")
            && !(inode == SHAPE_LEASE && firn_env::planted!("volume.shape_is_never_lost"))
    }

    /// Everything that a record of the journal touches.
    pub fn touched(&self, operation: &Operation) -> Vec<u64> {
        touched(operation, |inode| self.moved_directories.contains(&inode))
    }
}

/// What came of a judgement.
#[derive(Default)]
pub(super) struct Judged {
    pub verdict: Verdict,
    pub salvage: Option<SalvageReport>,
    /// Whether the journal has anything that is in no root: then a root has to say that it was judged.
    pub has_records: bool,
}

impl Judged {
    /// There is no journal to judge any more, which a root has to say.
    pub fn nothing() -> Self {
        Self {
            has_records: true,
            ..Self::default()
        }
    }
}

impl Judging<'_> {
    /// Judges the journal, and salvages it if something is lost.
    ///
    /// # Errors
    /// If the journal, a root or the anchor cannot be read or written; nothing is changed but that the clone may be there.
    pub async fn judge(&self, retained: &Root, newest: Newest<'_>) -> Result<Judged, VolumeError> {
        let of = (self.parts.family(), self.parts.volume);
        let mut ground = load_root(self.objects, of, retained).await?;
        let Some((all, moved_directories)) = self.survey(&mut ground.state).await? else {
            let salvage = self.salvaged_before(retained, &ground).await?;
            return Ok(Judged {
                salvage,
                ..Judged::default()
            });
        };
        let lost = self.lost(all, &ground, newest).await?;
        let verdict = Verdict {
            lost,
            moved_directories,
        };
        let salvage = match verdict.lost.is_empty() || firn_env::planted!("volume.drops_what_is_lost") {
            true => None,
            false => self.salvage(retained, &verdict).await?,
        };
        Ok(Judged {
            verdict,
            salvage,
            has_records: true,
        })
    }

    /// What a start salvaged that was interrupted after its judgement was published: the clone, without the paths.
    async fn salvaged_before(
        &self,
        retained: &Root,
        ground: &LoadedRoot,
    ) -> Result<Option<SalvageReport>, VolumeError> {
        let section = MemberSection::of(&ground.payload.members, self.number);
        let covered = section.map_or(Sequence(0), |section| section.covered);
        let volume = self.clone_volume(retained, covered);
        match self.parts.anchor.load(volume).await {
            Ok((tuple, _)) => Ok(tuple.root.is_some().then(|| SalvageReport {
                volume,
                name: tuple.name,
                recovery: RecoveryReport::default(),
                paths: Vec::new(),
                paths_more: 0,
            })),
            Err(AnchorError::NoSuchVolume { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Every inode that a record touches, the shape lease among them, and the directories that go to another parent. `None`: there is no record.
    async fn survey(&self, state: &mut State) -> Result<Option<(BTreeSet<u64>, BTreeSet<u64>)>, VolumeError> {
        let (mut all, mut moved) = (BTreeSet::new(), BTreeSet::new());
        let mut made_directories = BTreeSet::new();
        let mut made = BTreeSet::new();
        let Some(mut replay) = self.journal().await? else {
            return Ok(None);
        };
        while let Some(found) = replay.next().await? {
            let (record, _) = Record::decode(found.payload)?;
            if let Operation::Create { inode, .. } = &record.operation {
                made.insert(inode.number);
                if inode.is_directory() {
                    made_directories.insert(inode.number);
                }
            }
            if let Some(inode) = goes_to_another_parent(&record.operation) {
                let is_directory = match made.contains(&inode) {
                    true => made_directories.contains(&inode),
                    false => self.was_directory(state, inode).await?,
                };
                if is_directory {
                    moved.insert(inode);
                }
            }
            all.extend(touched(&record.operation, |inode| moved.contains(&inode)));
        }
        Ok(Some((all, moved)).filter(|(all, _)| !all.is_empty()))
    }

    /// Whether an inode that is in the retained root is a directory.
    async fn was_directory(&self, state: &mut State, inode: u64) -> Result<bool, VolumeError> {
        loop {
            match state.inode(inode) {
                Ok(found) => return Ok(found.is_some_and(|inode| inode.is_directory())),
                Err(missing) => load_for_replay(state, self.objects, missing).await?,
            }
        }
    }

    /// What of it is lost.
    async fn lost(
        &self,
        mut all: BTreeSet<u64>,
        ground: &LoadedRoot,
        newest: Newest<'_>,
    ) -> Result<BTreeSet<u64>, VolumeError> {
        let is_home = |inode: u64| inode >> 32 == u64::from(self.number.0);
        let is_held = |inode: &u64| self.leases.holds(*inode).unwrap_or(is_home(*inode));
        let mut lost: BTreeSet<u64> = all.iter().copied().filter(|inode| !is_held(inode)).collect();
        if firn_env::planted!("volume.lost_by_arenas_alone") {
            return Ok(lost);
        }
        let uid = |pointers: &BTreeMap<u64, Pointer>, inode: &u64| -> Option<Uid> {
            pointers.get(inode).map(|pointer| pointer.uid)
        };
        let orphan_differs =
            |inode: &u64| uid(&ground.orphan_pointers, inode) != uid(newest.orphan_pointers, inode);
        lost.extend(all.iter().copied().filter(orphan_differs));
        while !all.is_empty() {
            let beyond = all.iter().nth(COMPARED_AT_ONCE).copied();
            let rest = beyond.map(|first| all.split_off(&first)).unwrap_or_default();
            let before = ground.state.inode_map;
            let differing = differing_inodes(self.objects, Some(&all), before, newest.inode_map);
            lost.append(&mut differing.await?);
            all = rest;
        }
        Ok(lost)
    }

    async fn salvage(
        &self,
        retained: &Root,
        verdict: &Verdict,
    ) -> Result<Option<SalvageReport>, VolumeError> {
        let Some(replay) = self.journal().await? else {
            return Ok(None);
        };
        let of = (self.parts.family(), self.parts.volume);
        let mut loaded = load_root(self.objects, of, retained).await?;
        loaded.state.begin_behind(self.covered);
        let clone = match firn_env::planted!("volume.salvage_clone_drawn_anew") {
            true => VolumeId(self.parts.env.random_bytes()),
            false => self.clone_volume(retained, self.covered),
        };
        let salvaging = Salvaging {
            root: retained,
            clone,
            name: name(self.name, clone),
            owner: self.owner,
        };
        let mut goes_on = verdict.records();
        let left = |operation: &Operation| match goes_on(operation) {
            false => Left::Here,
            true if firn_env::planted!("volume.salvages_tainted_alone") => Left::Out,
            true => Left::Also,
        };
        let with = (self.config, self.objects);
        salvaging.run(self.parts, with, loaded, replay, left).await
    }

    /// The records that no root has; `None`: it never had a journal here.
    async fn journal(&self) -> Result<Option<Replay>, VolumeError> {
        let (env, keys) = (&self.parts.env, &self.parts.keys);
        match env.disk().list(self.directory).await {
            Ok(_) => {}
            Err(DiskError::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let replay = Journal::read_only(env, keys, self.parts.volume, self.directory, self.covered);
        Ok(Some(replay.await?))
    }

    /// One for each journal that is judged: another one begins behind another record, since a judgement ends with a root that covers it.
    fn clone_volume(&self, retained: &Root, covered: Sequence) -> VolumeId {
        let mut hasher = blake3::Hasher::new_derive_key("firn member salvage clone volume id v1");
        hasher
            .update(&self.parts.volume.0)
            .update(&self.number.0.to_le_bytes())
            .update(&retained.uid.0)
            .update(&covered.0.to_le_bytes());
        let mut id = [0; 16];
        hasher.finalize_xof().fill(&mut id);
        VolumeId(id)
    }
}

/// The clone's name has the office's, as much of that as fits.
fn name(office: &str, clone: VolumeId) -> String {
    let id = &clone.hex().to_string()[..8];
    let room = MAX_NAME_BYTES - "salvage--".len() - id.len();
    let mut end = office.len().min(room);
    while !office.is_char_boundary(end) {
        end -= 1;
    }
    format!("salvage-{}-{id}", &office[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_clone_says_whose_it_is_and_is_a_name_however_long_that_is() {
        let clone = VolumeId([0xab; 16]);
        assert_eq!(name("office", clone), "salvage-office-abababab");
        let long = name(&"ö".repeat(127), clone);
        assert!(
            long.len() <= MAX_NAME_BYTES && long.ends_with("ö-abababab"),
            "{long}"
        );
    }
}
