//! Desired state of one edge: a document with a generation, signed by the installation's authority.
//!
//! The document is JSON, and strict: an edge that meets a field it does not know obeys none of the document, since what it does not know may
//! be what restricts the rest. Format and generation are read first, so that the refusal can name them.

use crate::DesiredRekey;
use firn_identity::{CertificateAuthority, DocumentError, DocumentVerifier, EdgeId, TenantId, VolumeId};
use serde::{Deserialize, Serialize};

/// The format that this build writes and reads.
pub const FORMAT: u16 = 1;
/// The longest signed document that is read; one of [`VOLUMES_MAX`] volumes has some 15 KiB.
pub const DOCUMENT_BYTES_MAX: usize = 64 << 10;
/// The most volumes of one edge.
pub const VOLUMES_MAX: usize = 64;
/// The kind of the signed document.
const KIND: &str = "firn-desired-state+jwt";

/// Whether clients may add data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NewWrites {
    /// They may.
    #[default]
    Allowed,
    /// The hard cap of the tenant's budget is reached: whatever would add data or names is refused (EDQUOT), and all else goes on.
    RefusedByCap,
}

/// How many snapshots of each tier a policy keeps. All zero: the service asks for none, and deletes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotTiers {
    /// The newest so many.
    pub last: u16,
    /// The newest of each of so many hours.
    pub hourly: u16,
    /// The newest of each of so many days.
    pub daily: u16,
    /// The newest of each of so many weeks.
    pub weekly: u16,
    /// The newest of each of so many months.
    pub monthly: u16,
}

/// What is wanted of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredVolume {
    /// Which.
    pub volume: VolumeId,
    /// Which snapshots are kept of it.
    pub snapshots: SnapshotTiers,
    /// The rekey that was asked for last. Absent unless one was: an edge of before it reads the document then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rekey: Option<DesiredRekey>,
}

/// What is wanted of an edge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredContent {
    /// Whether clients may add data.
    pub new_writes: NewWrites,
    /// Those of its volumes that are in use.
    pub volumes: Vec<DesiredVolume>,
}

/// A desired state with its name: whose it is, and which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DesiredState {
    /// [`FORMAT`].
    pub format: u16,
    /// The version of the service that wrote it, for people.
    pub service_version: String,
    /// Whose edge.
    pub tenant: TenantId,
    /// Which edge.
    pub edge: EdgeId,
    /// Rises with every change of the content; the first is 1.
    pub generation: u64,
    /// What is wanted.
    pub content: DesiredContent,
}

/// What is read before anything else: of every format.
#[derive(Deserialize)]
struct Head {
    format: u16,
    tenant: TenantId,
    edge: EdgeId,
    generation: u64,
}

/// Why an edge does not obey a document. What was in force before stays.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The service did not sign it.
    #[error("the document is not the service's: {0}")]
    NotSigned(#[from] DocumentError),
    /// It is signed, and cannot be read.
    #[error("the document of generation {generation} cannot be read by this edge ({why}); update the edge")]
    Unreadable {
        /// Its generation; 0 if not even that can be read.
        generation: u64,
        /// Why.
        why: String,
    },
    /// It was made for another.
    #[error("the document is for another edge, {edge} of {tenant}")]
    Foreign {
        /// Its tenant.
        tenant: TenantId,
        /// Its edge.
        edge: EdgeId,
    },
    /// It was replaced already.
    #[error("the document is of generation {generation}, and {in_force} is in force: it is an old one")]
    Old {
        /// Its generation.
        generation: u64,
        /// What is in force.
        in_force: u64,
    },
    /// Two documents of one generation.
    #[error(
        "the document is of generation {generation} and is not the one of this generation that is in force"
    )]
    Contradiction {
        /// Of both.
        generation: u64,
    },
}

impl Refusal {
    /// The generation of what was refused, if it was signed for this edge.
    pub fn generation(&self) -> Option<u64> {
        match self {
            Self::NotSigned(_) | Self::Foreign { .. } => None,
            Self::Unreadable { generation, .. }
            | Self::Old { generation, .. }
            | Self::Contradiction { generation } => Some(*generation),
        }
    }
}

impl DesiredState {
    /// The signed document.
    pub fn sign(&self, authority: &CertificateAuthority) -> String {
        let payload = serde_json::to_vec(self).expect("a document has a JSON form");
        authority.sign_document(KIND, &payload)
    }

    /// Reads a document that is to be this edge's.
    ///
    /// # Errors
    /// [`Refusal`], but never for its generation.
    pub fn open(
        verifier: &DocumentVerifier,
        (tenant, edge): (TenantId, EdgeId),
        text: &str,
    ) -> Result<Self, Refusal> {
        let payload = verifier.open(KIND, text, DOCUMENT_BYTES_MAX)?;
        let unreadable = |generation, why: String| Refusal::Unreadable { generation, why };
        let head: Head =
            serde_json::from_slice(&payload).map_err(|error| unreadable(0, error.to_string()))?;
        if (head.tenant, head.edge) != (tenant, edge) {
            return Err(Refusal::Foreign {
                tenant: head.tenant,
                edge: head.edge,
            });
        }
        let generation = head.generation;
        if head.format != FORMAT {
            let why = format!("its format is {}, and this edge reads {FORMAT}", head.format);
            return Err(unreadable(generation, why));
        }
        let desired: Self =
            serde_json::from_slice(&payload).map_err(|error| unreadable(generation, error.to_string()))?;
        if desired.content.volumes.len() > VOLUMES_MAX {
            return Err(unreadable(
                generation,
                format!("it has more than {VOLUMES_MAX} volumes"),
            ));
        }
        Ok(desired)
    }

    /// Whether this document may take the place of what is in force; `false` if it is just that.
    ///
    /// # Errors
    /// [`Refusal::Old`] and [`Refusal::Contradiction`].
    pub fn follows(&self, in_force: Option<&Self>) -> Result<bool, Refusal> {
        let Some(in_force) = in_force else {
            return Ok(true);
        };
        let generation = self.generation;
        match generation.cmp(&in_force.generation) {
            std::cmp::Ordering::Greater => Ok(true),
            std::cmp::Ordering::Equal if self.content == in_force.content => Ok(false),
            std::cmp::Ordering::Equal => Err(Refusal::Contradiction { generation }),
            std::cmp::Ordering::Less => Err(Refusal::Old {
                generation,
                in_force: in_force.generation,
            }),
        }
    }

    /// What is wanted of one volume.
    pub fn volume(&self, volume: VolumeId) -> Option<&DesiredVolume> {
        self.content.volumes.iter().find(|wanted| wanted.volume == volume)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use firn_identity::UnixTime;
    use serde_json::{Value, json};

    const TENANT: TenantId = TenantId([1; 16]);
    const EDGE: EdgeId = EdgeId([2; 16]);

    fn authority(seed: u8) -> CertificateAuthority {
        CertificateAuthority::from_seed([seed; 32], "firn.example", UnixTime(1_767_225_600))
            .expect("an authority")
    }

    fn document(generation: u64) -> DesiredState {
        DesiredState {
            format: FORMAT,
            service_version: "1.0.0".into(),
            tenant: TENANT,
            edge: EDGE,
            generation,
            content: DesiredContent {
                new_writes: NewWrites::RefusedByCap,
                volumes: vec![DesiredVolume {
                    volume: VolumeId([3; 16]),
                    snapshots: SnapshotTiers {
                        hourly: 24,
                        ..SnapshotTiers::default()
                    },
                    rekey: None,
                }],
            },
        }
    }

    fn open(text: &str) -> Result<DesiredState, Refusal> {
        let verifier = DocumentVerifier::of_authority(authority(1).certificate()).expect("a verifier");
        DesiredState::open(&verifier, (TENANT, EDGE), text)
    }

    /// A document as a service of another version would write it.
    fn altered(alter: impl Fn(&mut Value)) -> Result<DesiredState, Refusal> {
        let mut value = serde_json::to_value(document(7)).expect("JSON");
        alter(&mut value);
        open(&authority(1).sign_document(KIND, value.to_string().as_bytes()))
    }

    #[test]
    fn a_signed_document_is_read_by_the_edge_it_is_for_and_by_no_other() {
        let text = document(7).sign(&authority(1));
        assert_eq!(open(&text), Ok(document(7)));
        assert!(matches!(
            open(&document(7).sign(&authority(2))),
            Err(Refusal::NotSigned(DocumentError::OtherAuthority))
        ));
        let token = authority(1).sign_document("at+jwt", b"{}");
        assert!(matches!(
            open(&token),
            Err(Refusal::NotSigned(DocumentError::Malformed))
        ));
        for (tenant, edge) in [(TenantId([9; 16]), EDGE), (TENANT, EdgeId([9; 16]))] {
            let foreign = DesiredState {
                tenant,
                edge,
                ..document(7)
            };
            let refused = open(&foreign.sign(&authority(1)));
            assert_eq!(refused, Err(Refusal::Foreign { tenant, edge }));
        }
    }

    #[test]
    fn what_an_older_edge_does_not_know_is_refused_with_its_generation_and_the_reason() {
        let of_a_newer = [
            altered(|document| document["format"] = json!(2)),
            altered(|document| document["lease"] = json!(1)),
            altered(|document| document["content"]["volumes"][0]["snapshots"]["yearly"] = json!(7)),
            altered(|document| document["content"]["new_writes"] = json!("refused_by_moon")),
            altered(|document| {
                document["content"]["volumes"][0]["rekey"] = json!({ "number": 1, "to_moon": 2 })
            }),
            altered(|document| document["content"]["volumes"][0]["snapshots"]["hourly"] = json!(70_000)),
        ];
        for refused in of_a_newer {
            let refusal = refused.expect_err("it is refused");
            assert_eq!(refusal.generation(), Some(7));
            assert!(refusal.to_string().contains("update the edge"), "{refusal}");
        }
        let many = altered(|document| {
            let one = document["content"]["volumes"][0].clone();
            document["content"]["volumes"] = vec![one; VOLUMES_MAX + 1].into();
        });
        assert!(matches!(many, Err(Refusal::Unreadable { generation: 7, .. })));
        assert!(matches!(
            altered(|document| *document = json!([])),
            Err(Refusal::Unreadable { generation: 0, .. })
        ));
    }

    #[test]
    fn a_rekey_is_a_part_of_the_document_only_once_one_was_asked_for() {
        let without = serde_json::to_value(document(7)).expect("JSON");
        assert!(without["content"]["volumes"][0].get("rekey").is_none());
        let mut wanted = document(7);
        wanted.content.volumes[0].rekey = Some(DesiredRekey {
            number: 1,
            to_epoch: 2,
            bytes_per_second: 4 << 20,
            is_stopped: false,
        });
        assert_eq!(open(&wanted.sign(&authority(1))), Ok(wanted));
    }

    #[test]
    fn only_a_newer_generation_replaces_what_is_in_force() {
        let in_force = document(7);
        assert_eq!(document(1).follows(None), Ok(true));
        assert_eq!(document(8).follows(Some(&in_force)), Ok(true));
        assert_eq!(document(7).follows(Some(&in_force)), Ok(false));
        let old = Refusal::Old {
            generation: 6,
            in_force: 7,
        };
        assert_eq!(document(6).follows(Some(&in_force)), Err(old));
        let other = DesiredState {
            content: DesiredContent::default(),
            ..document(7)
        };
        let refused = other.follows(Some(&in_force));
        assert_eq!(refused, Err(Refusal::Contradiction { generation: 7 }));
    }
}
