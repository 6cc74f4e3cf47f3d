//! The desired state in force: the newest document of the service's that this edge could read, kept over restarts.
//!
//! ```text
//! offered ── signed for us? readable? newer? ──▶ file `desired-state`, replaced whole ──▶ in force
//!            └ no: noted with the reason, what was in force stays
//! ```
//!
//! The file is the document as the service signed it, and is checked at every start like one that comes from the service.

use crate::{
    config::Config,
    failure::Failure,
    joined::{Joined, enrolment_file, file, read},
    replace::replace,
};
use firn_edge_state::{
    DesiredRekey, DesiredState, NewWrites, Refusal, RefusedState, SnapshotTiers, shortened,
};
use firn_identity::{CertificateDer, DocumentVerifier, EdgeId, TenantId, VolumeId};
use firn_volume::{PolicyError, RetentionPolicy, RetentionTiers};
use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

const HOUR: Duration = Duration::from_secs(3600);

/// What is in force, and what was refused since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    in_force: Option<DesiredState>,
    refused: Option<RefusedState>,
}

impl Held {
    /// The generation in force; 0: none yet.
    pub fn generation(&self) -> u64 {
        self.in_force.as_ref().map_or(0, |desired| desired.generation)
    }

    /// What was refused after it.
    pub fn refused(&self) -> Option<&RefusedState> {
        self.refused.as_ref()
    }

    /// Whether clients may add data.
    pub fn new_writes(&self) -> NewWrites {
        self.in_force
            .as_ref()
            .map_or(NewWrites::Allowed, |desired| desired.content.new_writes)
    }

    /// The rekey of a volume that the service asked for last.
    pub fn rekey(&self, volume: VolumeId) -> Option<DesiredRekey> {
        self.in_force.as_ref()?.volume(volume)?.rekey
    }

    /// The service's snapshot policy of a volume; none: it wants none, or says nothing of it.
    pub fn retention(&self, volume: VolumeId) -> Option<RetentionPolicy> {
        let wanted = self.in_force.as_ref()?.volume(volume)?;
        // What cannot be obeyed was refused when it came.
        retention(wanted.snapshots).ok()?
    }
}

/// The policy of these tiers: one snapshot in each period of the finest tier in use, in universal time. None if no tier is.
fn retention(tiers: SnapshotTiers) -> Result<Option<RetentionPolicy>, PolicyError> {
    let every = match tiers {
        SnapshotTiers { last: 1.., .. } | SnapshotTiers { hourly: 1.., .. } => HOUR,
        SnapshotTiers { daily: 1.., .. } => 24 * HOUR,
        SnapshotTiers { weekly: 1.., .. } => 7 * 24 * HOUR,
        // The shortest month has 28 days.
        SnapshotTiers { monthly: 1.., .. } => 28 * 24 * HOUR,
        _ => return Ok(None),
    };
    let tiers = RetentionTiers {
        last: tiers.last.into(),
        hourly: tiers.hourly.into(),
        daily: tiers.daily.into(),
        weekly: tiers.weekly.into(),
        monthly: tiers.monthly.into(),
    };
    RetentionPolicy::new(tiers, "UTC", Some(every), None).map(Some)
}

/// See the module.
pub struct Desired {
    verifier: DocumentVerifier,
    own: (TenantId, EdgeId),
    path: PathBuf,
    held: Mutex<Held>,
}

impl Desired {
    /// What was kept in the state directory. A file that is damaged, or another edge's, is told of and not obeyed: the service has another.
    ///
    /// # Errors
    /// If the authority's certificate, which came when this edge joined, cannot be read.
    pub fn load(config: &Config, joined: &Joined) -> Result<Self, Failure> {
        let path = enrolment_file(config, "authority.der");
        let authority = CertificateDer::from(read(&path)?.to_vec());
        let verifier = DocumentVerifier::of_authority(&authority)
            .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?;
        let desired = Self {
            verifier,
            own: (joined.invitation.tenant, joined.edge()),
            path: file(config, "desired-state"),
            held: Mutex::default(),
        };
        desired.load_kept();
        Ok(desired)
    }

    fn load_kept(&self) {
        if !self.path.exists() {
            return;
        }
        let kept = read(&self.path)
            .map_err(|failure| failure.to_string())
            .and_then(|text| String::from_utf8(text.to_vec()).map_err(|error| error.to_string()))
            .and_then(|text| self.read(&text).map_err(|refusal| refusal.to_string()));
        let mut held = self.lock();
        match kept {
            Ok(desired) => held.in_force = Some(desired),
            Err(why) => {
                tracing::warn!(why, path = %self.path.display(), "the desired state that was kept is not obeyed");
                let why = shortened(&format!("kept on the edge's disk: {why}"));
                held.refused = Some(RefusedState {
                    generation: None,
                    why,
                });
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().expect("no panic under this lock")
    }

    /// What is in force, at this moment.
    pub fn held(&self) -> Held {
        self.lock().clone()
    }

    /// Reads a document that is to be this edge's, of whatever generation, and that can be obeyed.
    fn read(&self, text: &str) -> Result<DesiredState, Refusal> {
        let desired = DesiredState::open(&self.verifier, self.own, text)?;
        for volume in &desired.content.volumes {
            retention(volume.snapshots).map_err(|error| Refusal::Unreadable {
                generation: desired.generation,
                why: error.to_string(),
            })?;
        }
        Ok(desired)
    }

    /// Takes a document of the service's into force, if it is one and newer; whether something changed.
    pub fn offer(&self, text: &str) -> bool {
        let mut held = self.lock();
        let read = self.read(text);
        let read = read.and_then(|desired| Ok((desired.follows(held.in_force.as_ref())?, desired)));
        match read {
            Ok((false, _)) => false,
            Ok((true, desired)) => {
                // It holds all the same: after a restart this edge says that it has an older one, and is given it again.
                if let Err(error) = replace(&self.path, text.as_bytes()) {
                    tracing::warn!(%error, path = %self.path.display(), "the desired state is not kept over a restart");
                }
                tracing::info!(generation = desired.generation, new_writes = ?desired.content.new_writes, "a desired state is in force");
                *held = Held {
                    in_force: Some(desired),
                    refused: None,
                };
                true
            }
            Err(refusal) => {
                let refused = RefusedState {
                    generation: refusal.generation(),
                    why: shortened(&refusal.to_string()),
                };
                if held.refused.as_ref() != Some(&refused) {
                    tracing::warn!(why = %refusal, "a desired state is not obeyed; what was in force stays");
                }
                held.refused = Some(refused);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_edge_state::{DesiredContent, DesiredVolume, FORMAT};
    use firn_identity::{CertificateAuthority, UnixTime};
    use serde_json::{Value, json};
    use std::path::Path;

    const TENANT: TenantId = TenantId([1; 16]);
    const EDGE: EdgeId = EdgeId([2; 16]);
    const VOLUME: VolumeId = VolumeId([3; 16]);

    fn authority() -> CertificateAuthority {
        CertificateAuthority::from_seed([4; 32], "firn.example", UnixTime(1_767_225_600))
            .expect("an authority")
    }

    /// As a start reads it.
    fn start(directory: &Path) -> Desired {
        let desired = Desired {
            verifier: DocumentVerifier::of_authority(authority().certificate()).expect("a verifier"),
            own: (TENANT, EDGE),
            path: directory.join("desired-state"),
            held: Mutex::default(),
        };
        desired.load_kept();
        desired
    }

    fn document(generation: u64, new_writes: NewWrites, hourly: u16) -> DesiredState {
        let snapshots = SnapshotTiers {
            hourly,
            ..SnapshotTiers::default()
        };
        DesiredState {
            format: FORMAT,
            service_version: "1.0.0".into(),
            tenant: TENANT,
            edge: EDGE,
            generation,
            content: DesiredContent {
                new_writes,
                volumes: vec![DesiredVolume {
                    volume: VOLUME,
                    snapshots,
                    rekey: None,
                }],
            },
        }
    }

    fn signed(generation: u64, new_writes: NewWrites) -> String {
        document(generation, new_writes, 24).sign(&authority())
    }

    /// The document of a service that is newer than this edge.
    fn of_a_newer_service(generation: u64, alter: impl Fn(&mut Value)) -> String {
        let mut value = serde_json::to_value(document(generation, NewWrites::Allowed, 24)).expect("JSON");
        alter(&mut value);
        authority().sign_document("firn-desired-state+jwt", value.to_string().as_bytes())
    }

    #[test]
    fn the_newest_document_is_in_force_over_restarts_and_no_older_one_replaces_it() {
        let place = tempfile::tempdir().expect("a directory");
        let desired = start(place.path());
        assert_eq!(desired.held().generation(), 0);
        assert_eq!(desired.held().new_writes(), NewWrites::Allowed);
        let first = signed(1, NewWrites::Allowed);
        assert!(desired.offer(&first));
        assert!(desired.offer(&signed(5, NewWrites::RefusedByCap)));
        assert!(desired.held().retention(VOLUME).is_some());
        assert!(desired.held().retention(VolumeId([9; 16])).is_none());
        for round in 0..2 {
            // Replayed: what was signed once, and allowed more.
            assert!(!desired.offer(&first), "round {round}");
            let held = desired.held();
            assert_eq!(
                (held.generation(), held.new_writes()),
                (5, NewWrites::RefusedByCap)
            );
            let refused = held.refused().expect("it is noted").clone();
            assert_eq!(refused.generation, Some(1));
            assert!(refused.why.contains("old one"), "{}", refused.why);
            let held = start(place.path()).held();
            assert_eq!(
                (held.generation(), held.new_writes()),
                (5, NewWrites::RefusedByCap)
            );
        }
        assert!(desired.offer(&signed(6, NewWrites::Allowed)));
        assert!(desired.held().refused().is_none());
        assert_eq!(start(place.path()).held().new_writes(), NewWrites::Allowed);
    }

    #[test]
    fn what_is_not_readable_signed_or_for_this_edge_leaves_what_is_in_force() {
        let place = tempfile::tempdir().expect("a directory");
        let desired = start(place.path());
        assert!(desired.offer(&signed(5, NewWrites::RefusedByCap)));
        let other =
            CertificateAuthority::from_seed([5; 32], "firn.example", UnixTime(0)).expect("an authority");
        let foreign = |tenant, edge| {
            let open = document(9, NewWrites::Allowed, 24);
            DesiredState { tenant, edge, ..open }.sign(&authority())
        };
        let cases = [
            (
                document(9, NewWrites::Allowed, 24).sign(&other),
                None,
                "another authority",
            ),
            (foreign(TenantId([9; 16]), EDGE), None, "another edge"),
            (foreign(TENANT, EdgeId([9; 16])), None, "another edge"),
            (
                signed(9, NewWrites::Allowed).replace('.', ""),
                None,
                "no signed document",
            ),
            (String::new(), None, "no signed document"),
            (
                of_a_newer_service(9, |value| value["format"] = json!(2)),
                Some(9),
                "its format is 2",
            ),
            (
                of_a_newer_service(9, |value| {
                    value["content"]["volumes"][0]["snapshots"]["yearly"] = json!(1)
                }),
                Some(9),
                "unknown field `yearly`",
            ),
            // More snapshots than a volume can have.
            (
                document(9, NewWrites::Allowed, 60_000).sign(&authority()),
                Some(9),
                "more than half",
            ),
        ];
        for (text, generation, why) in cases {
            assert!(!desired.offer(&text), "{why}");
            let held = desired.held();
            assert_eq!(
                (held.generation(), held.new_writes()),
                (5, NewWrites::RefusedByCap)
            );
            let refused = held.refused().expect("it is noted");
            assert_eq!(refused.generation, generation, "{}", refused.why);
            assert!(refused.why.contains(why), "{}", refused.why);
        }
        assert_eq!(start(place.path()).held().generation(), 5);
    }

    #[test]
    fn a_kept_document_that_is_damaged_is_told_of_and_replaced_by_the_next() {
        let place = tempfile::tempdir().expect("a directory");
        assert!(start(place.path()).offer(&signed(5, NewWrites::RefusedByCap)));
        let path = place.path().join("desired-state");
        let mut bytes = std::fs::read(&path).expect("it is kept");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).expect("damaged");
        let desired = start(place.path());
        assert_eq!(desired.held().generation(), 0);
        assert!(desired.held().refused().is_some());
        assert!(desired.offer(&signed(5, NewWrites::RefusedByCap)));
        assert_eq!(start(place.path()).held().generation(), 5);
    }

    #[test]
    fn the_finest_tier_of_a_policy_says_how_often() {
        let of = |tiers| retention(tiers).expect("it can be obeyed");
        assert_eq!(of(SnapshotTiers::default()), None);
        let weekly = of(SnapshotTiers {
            weekly: 2,
            monthly: 1,
            ..SnapshotTiers::default()
        });
        let weekly = weekly.expect("a policy");
        assert!(weekly.is_due(7 * 24 * HOUR, 1) && !weekly.is_due(6 * 24 * HOUR, 1));
        let monthly = of(SnapshotTiers {
            monthly: 1,
            ..SnapshotTiers::default()
        });
        assert!(!monthly.expect("a policy").is_due(27 * 24 * HOUR, 1));
    }
}
