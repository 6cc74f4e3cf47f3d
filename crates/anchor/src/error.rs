//! Errors of the anchor, each with what it means for data and what to do.

use crate::{LeaseRefusal, MemberNumber, NameError, Owner, TupleError};
use firn_format::{FamilyId, OwnershipEpoch, Version, VolumeId, WriterId};
use firn_table::TableError;
use std::fmt;

/// The ownership is over: somebody else holds the volume, or nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Fenced {
    /// The volume.
    pub volume: VolumeId,
    /// What we held.
    pub our_epoch: OwnershipEpoch,
    /// What holds now.
    pub epoch: OwnershipEpoch,
    /// Who holds it.
    pub owner: Option<Owner>,
    /// Since when, milliseconds since 1970 by their clock.
    pub taken_at_ms: i64,
}

impl fmt::Display for Fenced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "volume {} is no longer ours (epoch {}): ",
            self.volume, self.our_epoch
        )?;
        match &self.owner {
            Some(owner) => write!(formatter, "{} holds it (epoch {})", owner.name, self.epoch)?,
            None => write!(formatter, "it was given up (epoch {})", self.epoch)?,
        }
        write!(
            formatter,
            " since {}; writes that are not committed yet go to a salvage clone",
            Utc(self.taken_at_ms)
        )
    }
}

/// A failed call of the anchor.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AnchorError {
    /// The table failed. If it [is in doubt](TableError::is_in_doubt), the change may have happened or may still happen: make the
    /// same call again.
    #[error(transparent)]
    Table(#[from] TableError),
    /// Others changed the tuple at every try; nothing was changed by this call. Make it again.
    #[error("{what} was changed by others at each of {attempts} tries; try again")]
    Contended {
        /// The tuple.
        what: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// There is no such family.
    #[error("the table knows no family {family}: it was never created here, or this is another table")]
    NoSuchFamily {
        /// The family.
        family: FamilyId,
    },
    /// The family was created before.
    #[error("family {family} exists already")]
    FamilyExists {
        /// The family.
        family: FamilyId,
    },
    /// There is no such volume.
    #[error("the table knows no volume {volume} in family {family}")]
    NoSuchVolume {
        /// The family.
        family: FamilyId,
        /// The volume.
        volume: VolumeId,
    },
    /// The volume was created before.
    #[error("volume {volume} exists already")]
    VolumeExists {
        /// The volume.
        volume: VolumeId,
    },
    /// Another volume of the family has the name.
    #[error("a volume named {name:?} exists already in the family")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A volume's or an owner's name that cannot be one.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Somebody else owns the volume, and ownership does not expire.
    #[error(
        "volume {volume} is owned by {} since {}, last commit {}; drain it there, or take over by force (what that edge has \
         not committed then goes to a salvage clone)",
        owner.name, Utc(*since_ms), LastCommit(*last_committed_ms)
    )]
    OwnedByOther {
        /// The volume.
        volume: VolumeId,
        /// Who.
        owner: Owner,
        /// Since when, milliseconds since 1970.
        since_ms: i64,
        /// The last commit of anybody, milliseconds since 1970.
        last_committed_ms: Option<i64>,
    },
    /// The ownership is over.
    #[error(transparent)]
    Fenced(#[from] Fenced),
    /// A root that does not come after the current one, or names another owner or epoch than the ownership it is committed
    /// under: a bug of the caller. Nothing was changed.
    #[error("root {offered} of volume {volume} cannot follow {current:?} here: {why}")]
    UnfitRoot {
        /// The volume.
        volume: VolumeId,
        /// Its version.
        offered: Version,
        /// The current root's version.
        current: Option<Version>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An earlier commit ended as unavailable and must be committed again before anything else.
    #[error(
        "the commit of version {version} of volume {volume} is not resolved yet; commit the same root again"
    )]
    Unresolved {
        /// The volume.
        volume: VolumeId,
        /// Of the root whose fate is unknown.
        version: Version,
    },
    /// The ownership is ours by epoch and grant, but the root is one we never saw.
    #[error(
        "volume {volume} is ours (epoch {epoch}), but its root was replaced by version {found:?} where we left {expected:?}: \
         the table was rolled back or edited; stop, and compare with the newest root that the edge remembers"
    )]
    Diverged {
        /// The volume.
        volume: VolumeId,
        /// Our epoch.
        epoch: OwnershipEpoch,
        /// What we left.
        expected: Option<Version>,
        /// What is there.
        found: Option<Version>,
    },
    /// Too many takeovers were never salvaged.
    #[error(
        "volume {volume} retains {retained} roots of takeovers, the most there can be; salvage or forget some first"
    )]
    TooManyRetained {
        /// The volume.
        volume: VolumeId,
        /// How many.
        retained: usize,
    },
    /// A silent member cannot be broken: every place for a root that its journal would be judged by is taken, by members that were broken and have not come back.
    #[error(
        "{silent} is not heard and holds what is to be changed in volume {volume}, and cannot be broken: {retained} roots are kept for offices that were \
         broken and have not come back, the most there can be, the oldest for {oldest} since {}; nothing was changed. Start {silent} or {oldest} again, \
         or give up what {oldest} has not published (firn-edge members --give-up)",
        Utc(*since_ms)
    )]
    NoPlaceToRetain {
        /// The volume.
        volume: VolumeId,
        /// Who would be broken.
        silent: String,
        /// How many there are.
        retained: usize,
        /// For whom the oldest is kept.
        oldest: String,
        /// Since when, milliseconds since 1970 by the clock of who broke it.
        since_ms: i64,
    },
    /// The volume is written by members, and owned by nobody.
    #[error(
        "volume {volume} is shared by inode: its members write it, and nobody owns it; nothing was changed. An edge writes it by joining it"
    )]
    SharedByInode {
        /// The volume.
        volume: VolumeId,
    },
    /// The volume is not written by members.
    #[error("volume {volume} is not shared by inode, so it has no members; share it first")]
    NotSharedByInode {
        /// The volume.
        volume: VolumeId,
    },
    /// There is no such member.
    #[error("volume {volume} has no {member}: it never joined, or this is another table")]
    NoSuchMember {
        /// The volume.
        volume: VolumeId,
        /// Which.
        member: MemberNumber,
    },
    /// The member is another caller's.
    #[error(
        "{member} of volume {volume} joined as another caller, who alone may speak for it; nothing was changed. Join anew"
    )]
    OthersMember {
        /// The volume.
        volume: VolumeId,
        /// Which.
        member: MemberNumber,
    },
    /// This incarnation of the member is over.
    #[error(
        "{member} of volume {volume} gave no sign of life, and another office ended its incarnation {incarnation}: what is not committed          is judged at the next start, and none of it is lost"
    )]
    MemberBroken {
        /// The volume.
        volume: VolumeId,
        /// Which.
        member: MemberNumber,
        /// What is over.
        incarnation: WriterId,
    },
    /// Another copy of the machine's state directory has started as this member since.
    #[error(
        "{member} of volume {volume} ({name}) was started last with another copy of this state directory (incarnation {incarnation}, of which this copy knows \
         nothing); nothing was changed. What was acknowledged with this copy and not published is in its journal, and nowhere else: keep it. One of the two \
         serves the office: this one starts with an empty state directory, and is a member of its own then"
    )]
    StartedElsewhere {
        /// The volume.
        volume: VolumeId,
        /// Which.
        member: MemberNumber,
        /// What people call it.
        name: String,
        /// What the other copy began.
        incarnation: WriterId,
    },
    /// The member is away, so it holds nothing.
    #[error("{member} of volume {volume} is away: it comes back before it takes leases")]
    MemberAway {
        /// The volume.
        volume: VolumeId,
        /// Which.
        member: MemberNumber,
    },
    /// A lease that cannot be changed so as the arena is now; nothing was changed.
    #[error("the lease of inode {inode} of volume {volume}: {why}")]
    Lease {
        /// The volume.
        volume: VolumeId,
        /// An inode of the range.
        inode: u64,
        /// Why.
        why: LeaseRefusal,
    },
    /// The tuple's bytes cannot be read.
    #[error("the tuple {what} cannot be read: {why}")]
    Damaged {
        /// Its sort key.
        what: String,
        /// Why.
        why: TupleError,
    },
}

impl AnchorError {
    /// Whether the same call may succeed later without anybody's help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Table(error) => error.is_in_doubt(),
            Self::Contended { .. } => true,
            _ => false,
        }
    }

    /// Whether whoever answered for the anchor said nothing that one says: a mistake of the address, or somebody in its place.
    pub fn is_invalid_answer(&self) -> bool {
        matches!(self, Self::Table(TableError::InvalidAnswer(_)))
    }
}

/// A wall time as people read it, to the second.
pub(crate) struct Utc(pub(crate) i64);

impl fmt::Display for Utc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.div_euclid(1000);
        let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        // Days to a date of the Gregorian calendar, counted in eras of 400 years that begin on 1 March, so that the leap
        // day is the last of its year.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 {
            month_from_march + 3
        } else {
            month_from_march - 9
        };
        let year = era * 400 + year_of_era + i64::from(month <= 2);
        write!(
            formatter,
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

struct LastCommit(Option<i64>);

impl fmt::Display for LastCommit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at_ms) => write!(formatter, "at {}", Utc(at_ms)),
            None => formatter.write_str("never"),
        }
    }
}
