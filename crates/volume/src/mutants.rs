//! Planted bugs: named ways to break the engine on purpose.
//!
//! A simulation that finds no bug proves nothing until it has found the ones put there. Each [`Mutant`] takes out one guard
//! the engine's promises rest on; the simulation must catch every one of them. Without the cargo feature `mutants` the
//! question [`active`] is the constant `false` and the broken branch is not compiled in. With it, the choice belongs to the
//! machine's environment: machines and worlds with different mutants run side by side.

use firn_env::Env;

/// One guard that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// The journal answers `durable` once the record is queued, before any fsync.
    AcknowledgeBeforeFsync,
    /// An fsync is taken to cover records that were written while it ran.
    FsyncCoversLaterWrites,
    /// A start writes over the last journal file it found instead of opening a new one (I6). Going on in it with the same
    /// key is impossible: found files have no sealer (I5).
    ReuseFoundJournalFile,
    /// A start builds on replayed records without making them durable first.
    SkipResyncOfFoundFiles,
    /// A new journal file is used before its name is durable.
    SkipJournalDirectorySync,
    /// Records of the next journal file may become durable before the last ones of the file before.
    SkipSyncBeforeRotation,
    /// A journal file is removed although its last record is not under a committed root.
    TrimOneRecordEarly,
    /// An object from the disk cache is used without comparing its hash.
    TrustTheDiskCache,
    /// The root is committed while its segments are still being uploaded.
    CommitBeforeUpload,
    /// The journal is trimmed before the root that covers it is committed.
    TrimBeforeCommit,
    /// A truncation drops the extents but lets the committed bytes behind it show again when the file grows.
    ForgetTruncation,
    /// A checkpoint leaves out the last changed block of a file.
    DropLastBlock,
    /// A start takes the same writer incarnation as the one before, so segment names are used twice.
    ReuseWriterIncarnation,
    /// After a crash the write verifier stays the same, so clients never send lost unstable writes again.
    KeepWriteVerifier,
    /// A fenced epoch's journal is thrown away instead of being salvaged.
    DropFencedJournal,
    /// COMMIT answers without waiting for the journal.
    CommitWithoutSync,
    /// Two batches of the journal that are written side by side are sealed in whatever order their threads run.
    SealInAnyOrder,
    /// A batch is written beside zeros that are being written ahead of the batch before it.
    WriteBesideZeros,
    /// A snapshot keeps the tree as it was before the changes it was to contain.
    SnapshotUndrainedTree,
    /// A start that replays a snapshot's record lets the snapshot have what came after it, too.
    SnapshotLaterChanges,
    /// A protected snapshot is deleted like any other.
    DeleteProtectedSnapshot,
    /// A proposal of the cleaner is merged whatever its base.
    MergeAnyBase,
    /// Where the cleaner's object has another uid, it is taken all the same.
    MergeDifferentUids,
    /// Adopted places are not looked at before the commit.
    MergeUnverified,
    /// What a forwarding record leads to is used without comparing its hash.
    ForwardUnverified,
}

impl Mutant {
    /// Every mutant of this crate.
    pub const ALL: [Self; 25] = [
        Self::AcknowledgeBeforeFsync,
        Self::FsyncCoversLaterWrites,
        Self::ReuseFoundJournalFile,
        Self::SkipResyncOfFoundFiles,
        Self::SkipJournalDirectorySync,
        Self::SkipSyncBeforeRotation,
        Self::TrimOneRecordEarly,
        Self::TrustTheDiskCache,
        Self::CommitBeforeUpload,
        Self::TrimBeforeCommit,
        Self::ForgetTruncation,
        Self::DropLastBlock,
        Self::ReuseWriterIncarnation,
        Self::KeepWriteVerifier,
        Self::DropFencedJournal,
        Self::CommitWithoutSync,
        Self::SealInAnyOrder,
        Self::WriteBesideZeros,
        Self::SnapshotUndrainedTree,
        Self::SnapshotLaterChanges,
        Self::DeleteProtectedSnapshot,
        Self::MergeAnyBase,
        Self::MergeDifferentUids,
        Self::MergeUnverified,
        Self::ForwardUnverified,
    ];

    /// The name used on command lines and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AcknowledgeBeforeFsync => "acknowledge_before_fsync",
            Self::FsyncCoversLaterWrites => "fsync_covers_later_writes",
            Self::ReuseFoundJournalFile => "reuse_found_journal_file",
            Self::SkipResyncOfFoundFiles => "skip_resync_of_found_files",
            Self::SkipJournalDirectorySync => "skip_journal_directory_sync",
            Self::SkipSyncBeforeRotation => "skip_sync_before_rotation",
            Self::TrimOneRecordEarly => "trim_one_record_early",
            Self::TrustTheDiskCache => "trust_the_disk_cache",
            Self::CommitBeforeUpload => "commit_before_upload",
            Self::TrimBeforeCommit => "trim_before_commit",
            Self::ForgetTruncation => "forget_truncation",
            Self::DropLastBlock => "drop_last_block",
            Self::ReuseWriterIncarnation => "reuse_writer_incarnation",
            Self::KeepWriteVerifier => "keep_write_verifier",
            Self::DropFencedJournal => "drop_fenced_journal",
            Self::CommitWithoutSync => "commit_without_sync",
            Self::SealInAnyOrder => "seal_in_any_order",
            Self::WriteBesideZeros => "write_beside_zeros",
            Self::SnapshotUndrainedTree => "snapshot_undrained_tree",
            Self::SnapshotLaterChanges => "snapshot_later_changes",
            Self::DeleteProtectedSnapshot => "delete_protected_snapshot",
            Self::MergeAnyBase => "merge_any_base",
            Self::MergeDifferentUids => "merge_different_uids",
            Self::MergeUnverified => "merge_unverified",
            Self::ForwardUnverified => "forward_unverified",
        }
    }

    /// The mutant of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mutant| mutant.name() == name)
    }
}

/// Whether `mutant` is planted in this environment ([`firn_env::FaultPoints::plant`]).
#[cfg(feature = "mutants")]
pub fn active(env: &Env, mutant: Mutant) -> bool {
    env.is_planted(mutant.name())
}

/// Whether `mutant` is planted: never, in this build.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn active(_env: &Env, _mutant: Mutant) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::Mutant;

    #[test]
    fn every_mutant_is_found_by_its_name() {
        for mutant in Mutant::ALL {
            assert_eq!(Mutant::from_name(mutant.name()), Some(mutant));
        }
        assert_eq!(Mutant::from_name("no_such_bug"), None);
    }
}
