//! A volume that several edges write at the same moment: what the configuration says of it, what it cannot have, how it is opened, and how it stands.
//!
//! A volume is made so when it is made, in its tuple at the anchor; `leases = "inode"` says that this edge knows it. An edge that does not say so is refused such a
//! volume, and one that does is refused any other: neither changes what the volume is.

use crate::{
    config::Config,
    durability::WrittenOnDisconnect,
    failure::Failure,
    following::{self, WrittenStaleReads},
    identity::Identity,
    opened::{Mode, Opened},
    parts::Outside,
    report::{size, span},
    snapshot::OwnerPart,
};
use firn_anchor::AnchorError;
use firn_quantity::Span;
use firn_session::LockTable;
use firn_volume::{
    ByInodeStatus, FormatOptions, MemberError, MemberStartError, MemberStartReport, SalvageReport, Volume,
    VolumeError,
};
use serde::{Deserialize, Serialize};
use std::{ops::RangeInclusive, time::Duration};

/// Paths that `status` shows of a salvage; the log has more.
const PATHS_SHOWN: usize = 20;

/// By what members of a shared volume keep each other from changing the same.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WrittenLeases {
    /// One has the whole volume at a time.
    #[default]
    Volume,
    /// Each has what it changes.
    Inode,
}

/// How a member by inode serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByInodeOptions {
    /// How old the read of the root may be that a read is answered by.
    pub freshness: Duration,
    /// What is unpublished takes the uplink so long at most.
    pub recall_within: Duration,
}

/// How long others wait at most for what this office has not uploaded, unless it is said.
const RECALL_WITHIN: Duration = Duration::from_secs(60);
/// Less is hardly more than a commit over a slow line; more than an hour nobody waits for a lease.
const RECALL_WITHIN_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// What `[volume]` says, if it says `leases = "inode"`.
pub fn options(
    (leases, shared, follow): (Option<WrittenLeases>, bool, bool),
    (freshness, recall_within): (Option<Span>, Option<Span>),
    stale_reads: Option<WrittenStaleReads>,
    on_disconnect: Option<WrittenOnDisconnect>,
) -> Result<Option<ByInodeOptions>, String> {
    if recall_within.is_some() && (leases, shared) != (Some(WrittenLeases::Inode), true) {
        return Err("volume.recall_within is of volumes with leases = \"inode\"; leave it out".into());
    }
    match leases {
        None => return Ok(None),
        Some(_) if !shared || follow => {
            return Err("volume.leases is of volumes with shared = true; leave it out".into());
        }
        Some(WrittenLeases::Volume) => return Ok(None),
        Some(WrittenLeases::Inode) => {}
    }
    if stale_reads == Some(WrittenStaleReads::Allow) {
        return Err(format!(
            "volume.stale_reads: \"allow\": {NOT_YET}, and reads of it wait for the anchor; leave it out"
        ));
    }
    if !matches!(on_disconnect, None | Some(WrittenOnDisconnect::Wait)) {
        return Err(format!(
            "volume.on_disconnect: {NOT_YET}, and clients of it wait while the anchor does not hear this edge; leave it out"
        ));
    }
    let recall_within = recall_within.map_or(RECALL_WITHIN, |within| within.0);
    if !RECALL_WITHIN_RANGE.contains(&recall_within) {
        return Err("volume.recall_within must be from 1 s to 1 h".into());
    }
    let follow = following::options(true, freshness, stale_reads)?.unwrap_or_default();
    Ok(Some(ByInodeOptions {
        freshness: follow.freshness,
        recall_within,
    }))
}

/// What a volume is told of it, if it is such a one.
pub fn recall_within(options: Option<ByInodeOptions>) -> Duration {
    options.map_or(RECALL_WITHIN, |options| options.recall_within)
}

/// The beginning of what is said of everything that only owners of a whole volume have.
const NOT_YET: &str = "with volume.leases = \"inode\" a volume cannot have this yet";

/// What else the configuration may not have.
pub fn check(config: &Config) -> Result<(), String> {
    if config.volume.by_inode.is_none() {
        return Ok(());
    }
    let shares = config.exports.iter().any(|export| export.smb.is_some());
    let not_had = [
        (!config.mounts.is_empty(), "[[mount]]", "serve it over NFS"),
        (shares, "[export.smb]", "serve it over NFS"),
        (config.second.is_some(), "[second]", "leave it out"),
        (config.parity.is_some(), "[parity]", "leave it out"),
        (
            config.retention()?.is_some(),
            "[snapshots]: every, after_written",
            "leave them out",
        ),
        (config.volume.owner.is_some(), "volume.owner", "leave it out"),
    ];
    match not_had.into_iter().find(|(has, ..)| *has) {
        Some((_, what, instead)) => Err(format!("{what}: {NOT_YET}: {instead}")),
        None => Ok(()),
    }
}

/// Holds what a command that makes a volume says against the configuration: what such a volume cannot have is refused before anything is made.
///
/// # Errors
/// [`Failure`]: they say different things, or the volume is to have what such a volume cannot.
pub fn check_making(config: &Config, options: &FormatOptions) -> Result<(), Failure> {
    match (options.by_inode, config.volume.by_inode.is_some()) {
        (true, true) if options.manifest => Err(Failure::usage(
            "--manifest: a volume that several offices write at the same moment cannot have one yet; nothing was made. Leave one of the two out",
        )),
        (true, true) | (false, false) => Ok(()),
        (true, false) => Err(Failure::usage(
            "several offices are to write the volume at the same moment, and [volume] in the configuration does not say so; nothing was made. It has to have \
             `shared = true` and `leases = \"inode\"`, here and in each office that is to write the volume",
        )),
        (false, true) => Err(Failure::usage(
            "[volume] says `leases = \"inode\"`, and the volume would not be made so; nothing was made. Whether many write a volume at the same moment is decided \
             when it is made, for ever: firn volume create --leases inode, or without a service firn-edge format --leases inode. Or leave `leases` out of the \
             configuration",
        )),
    }
}

/// Opens the volume as the member of this state directory, which joins the first time. In `locks` its clients lock files.
///
/// # Errors
/// [`Failure`]; what was acknowledged is in the journal, in the volume or in a salvage clone.
pub async fn open(
    config: &Config,
    outside: &Outside,
    identity: Identity,
    (options, locks): (ByInodeOptions, &LockTable),
) -> Result<Opened, Failure> {
    let volume_id = identity.volume;
    let (parts, rings) = outside.own_parts(config, identity).await?;
    let number = Volume::join_by_inode(&parts, &config.volume.edge_name).await;
    let number = number.map_err(not_shared)?;
    let opening = Volume::open_by_inode_with_locks(parts.clone(), config.volume_config()?, number, locks);
    let opened = Box::pin(opening).await;
    let (volume, MemberStartReport { recovery, salvage }) = opened.map_err(not_started)?;
    tracing::info!(
        ?recovery,
        member = number.0,
        "this office writes the volume beside others"
    );
    if let Some(salvage) = &salvage {
        tracing::warn!(
            clone = salvage.name,
            records = salvage.recovery.records,
            paths = salvage.paths.join(", "),
            more = salvage.paths_more,
            "others went on without this office, which could not be heard: what of its changes stood on theirs is in the clone"
        );
    }
    let (name, epoch) = match parts.anchor.load(volume_id).await {
        Ok((tuple, _)) => (tuple.name, tuple.epoch.0),
        Err(error) => {
            // Whoever opens it again finds the journal closed.
            volume.stop().await?;
            return Err(error.into());
        }
    };
    Ok(Opened {
        parts,
        volume,
        volume_name: name,
        owner: OwnerPart {
            name: config.volume.edge_name.clone(),
            epoch,
        },
        mode: Mode::ByInode(Box::new(ByInode {
            rings,
            options,
            salvaged: salvage.map(SalvagedBeside::from),
        })),
    })
}

/// A volume that was opened so.
pub struct ByInode {
    pub rings: crate::rings::KeyRings,
    pub options: ByInodeOptions,
    /// What this start put aside.
    pub salvaged: Option<SalvagedBeside>,
}

fn not_shared(error: VolumeError) -> Failure {
    match error {
        VolumeError::Anchor(AnchorError::NotSharedByInode { .. }) => Failure::usage(
            "volume.leases: \"inode\": the volume is not one that many write at the same moment, which is decided when a volume is made (--leases inode). Nothing was \
             changed: leave `leases` out",
        ),
        error => error.into(),
    }
}

fn not_started(error: MemberStartError) -> Failure {
    match error {
        MemberStartError::Volume(error) => error.into(),
        MemberStartError::Member(MemberError::Anchor(error @ AnchorError::StartedElsewhere { .. })) => {
            Failure::fenced(error)
        }
        MemberStartError::Member(MemberError::Anchor(error)) => error.into(),
        MemberStartError::Member(error) => Failure::new(error),
        error @ (MemberStartError::Unsupported { .. } | MemberStartError::GivenUp { .. }) => {
            Failure::usage(error)
        }
    }
}

/// A member as `status` and `/metrics` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByInodePart {
    /// Its number in the volume, for ever.
    pub member: u32,
    /// The writer of this start.
    pub incarnation: u64,
    /// The root in memory.
    pub version: u64,
    /// Whether the anchor has heard this edge of late.
    pub lease_holds: bool,
    /// Since the root was read for clients last.
    pub root_age_ms: Option<u64>,
    pub root_reads: u64,
    /// Leases that it holds beside its home, the numbers that it made itself, as it saw them last.
    #[serde(default)]
    pub leases_held: u64,
    /// Of what it holds, that for which other offices wait.
    #[serde(default)]
    pub leases_wanted: u64,
    /// Changes that had to get a lease first, from the anchor or from another office.
    pub lease_waits: u64,
    pub waits_ms: u64,
    pub longest_wait_ms: u64,
    /// About how much of what was changed here others do not see yet, and how much may be.
    #[serde(default)]
    pub unpublished_bytes: u64,
    #[serde(default)]
    pub unpublished_limit_bytes: u64,
    /// What the uplink takes, as measured.
    #[serde(default)]
    pub uplink_bytes_per_second: u64,
    /// Changes that waited for the uplink.
    #[serde(default)]
    pub uplink_waits: u64,
    /// Whether this office decides about locks at the moment, and how often it got to.
    #[serde(default)]
    pub decides_locks: bool,
    #[serde(default)]
    pub lock_terms: u64,
    /// Offices that were gone, whose locks were broken here; locks of clients here that were broken, both since the volume was opened.
    #[serde(default)]
    pub lock_breaks: u64,
    #[serde(default)]
    pub locks_lost: u64,
    /// What was put aside when this start found that others had gone on without it.
    pub salvaged: Option<SalvagedBeside>,
}

/// A salvage clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SalvagedBeside {
    pub clone: String,
    pub paths: Vec<String>,
    pub paths_more: u64,
}

impl From<SalvageReport> for SalvagedBeside {
    fn from(report: SalvageReport) -> Self {
        Self {
            clone: report.name,
            paths: report.paths,
            paths_more: report.paths_more,
        }
    }
}

impl ByInodePart {
    pub fn new(status: ByInodeStatus, salvaged: Option<SalvagedBeside>) -> Self {
        let locks = status.locks.unwrap_or_default();
        Self {
            member: status.member,
            incarnation: status.incarnation,
            version: status.version,
            lease_holds: status.lease_holds,
            root_age_ms: status.root_read_ago.map(millis),
            root_reads: status.root_reads,
            leases_held: status.leases_held,
            leases_wanted: status.leases_wanted,
            lease_waits: status.lease_waits,
            waits_ms: millis(status.waited),
            longest_wait_ms: millis(status.longest_wait),
            unpublished_bytes: status.unpublished_bytes,
            unpublished_limit_bytes: status.unpublished_limit_bytes,
            uplink_bytes_per_second: status.uplink_bytes_per_second,
            uplink_waits: status.uplink_waits,
            decides_locks: locks.decides,
            lock_terms: locks.taken,
            lock_breaks: locks.breaks,
            locks_lost: locks.lost,
            salvaged,
        }
    }

    /// Of a status page.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![
            (
                "Owner",
                "nobody; offices write it at the same moment, each what it holds".into(),
            ),
            ("Member", self.line()),
            ("Unpublished", self.unpublished()),
        ];
        rows.extend(self.troubles().into_iter().map(|trouble| ("", trouble)));
        rows
    }

    fn line(&self) -> String {
        let read = self
            .root_age_ms
            .map_or_else(String::new, |age| format!(", read {} ago", span(age)));
        let waits = match self.lease_waits {
            0 => "no change waited for a lease".into(),
            waits => format!(
                "{waits} changes waited for a lease, the longest {}",
                span(self.longest_wait_ms)
            ),
        };
        let wanted = match self.leases_wanted {
            0 => String::new(),
            wanted => format!(", others wait for {wanted} of what it holds"),
        };
        let locks = match self.decides_locks {
            true => "; it decides about locks",
            false => "",
        };
        format!(
            "number {}; version {}{read}; {} leases beside its own files{wanted}; {waits}{locks}",
            self.member, self.version, self.leases_held
        )
    }

    fn unpublished(&self) -> String {
        let waits = match self.uplink_waits {
            0 => "no change waited for the uplink".into(),
            waits => format!("{waits} changes waited for the uplink"),
        };
        format!(
            "{} of at most {}, which the uplink takes within recall_within at {} a second; {waits}",
            size(self.unpublished_bytes),
            size(self.unpublished_limit_bytes),
            size(self.uplink_bytes_per_second)
        )
    }

    /// What is wrong, and what that means.
    pub fn troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        if !self.lease_holds {
            troubles.push(
                "no heartbeat reaches the anchor: clients wait, and in a minute others may take what this office holds".into(),
            );
        }
        if self.locks_lost > 0 {
            troubles.push(format!(
                "{} locks of clients here were broken: other offices could not hear this one, or an administrator broke them",
                self.locks_lost
            ));
        }
        if let Some(salvaged) = &self.salvaged {
            let shown: Vec<_> = salvaged
                .paths
                .iter()
                .take(PATHS_SHOWN)
                .map(String::as_str)
                .collect();
            let more = (salvaged.paths.len() - shown.len()) as u64 + salvaged.paths_more;
            let and_more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            troubles.push(format!(
                "others went on without this office: what of its changes stood on theirs is in the clone {}: {}{and_more}",
                salvaged.clone,
                shown.join(", ")
            ));
        }
        troubles
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EdgeConfig;

    #[test]
    fn leases_are_of_shared_volumes_and_clients_of_such_a_volume_wait() {
        let inode = Some(WrittenLeases::Inode);
        let none = (None, None);
        assert_eq!(options((None, true, false), none, None, None), Ok(None));
        let by_turns = options((Some(WrittenLeases::Volume), true, false), none, None, None);
        assert_eq!(by_turns, Ok(None));
        assert!(options((inode, false, false), none, None, None).is_err());
        assert!(options((inode, true, true), none, None, None).is_err());
        let stale = Some(WrittenStaleReads::Allow);
        assert!(options((inode, true, false), none, stale, None).is_err());
        let accept = Some(WrittenOnDisconnect::Accept);
        assert!(options((inode, true, false), none, None, accept).is_err());
        let wait = Some(WrittenOnDisconnect::Wait);
        let asked = options((inode, true, false), none, Some(WrittenStaleReads::Wait), wait);
        let freshness = Duration::from_millis(500);
        let recall_within = RECALL_WITHIN;
        assert_eq!(
            asked,
            Ok(Some(ByInodeOptions {
                freshness,
                recall_within
            }))
        );
    }

    #[test]
    fn how_long_others_wait_for_uploads_is_of_such_volumes_and_has_bounds() {
        let inode = (Some(WrittenLeases::Inode), true, false);
        let asked = |of, seconds| options(of, (None, Some(Span(Duration::from_secs(seconds)))), None, None);
        let within =
            |seconds| asked(inode, seconds).map(|options| options.map(|options| options.recall_within));
        assert_eq!(within(10), Ok(Some(Duration::from_secs(10))));
        assert!(within(0).is_err() && within(3601).is_err());
        for of in [
            (None, false, false),
            (None, true, false),
            (Some(WrittenLeases::Volume), true, false),
        ] {
            assert!(
                asked(of, 10).is_err_and(|why| why.contains("recall_within")),
                "{of:?}"
            );
        }
    }

    #[test]
    fn what_such_a_volume_cannot_have_yet_is_named() {
        let text = |sections: &str| {
            format!(
                "[volume]\nstore = \"file:///srv/store\"\nanchor = \"redb:/srv/table\"\nstate_directory = \"/state\"\nshared = true\nleases = \
                 \"inode\"\n{sections}"
            )
        };
        let export = "[[export]]\npath = \"/\"\nclients = [\"10.0.0.0/8\"]\n";
        assert_eq!(EdgeConfig::parse(&text(export)).map(drop), Ok(()));
        for (sections, named) in [
            ("[[mount]]\npath = \"/m\"\n", "[[mount]]: with volume.leases"),
            ("[snapshots]\nevery = \"1 h\"\n", "[snapshots]: every"),
        ] {
            let refused = EdgeConfig::parse(&text(&format!("{export}{sections}"))).map(drop);
            assert!(
                refused.as_ref().is_err_and(|why| why.contains(named)),
                "{refused:?}"
            );
        }
    }
}
