//! The calls of a disk's client as a service takes them: [`DiskTable`](crate::DiskTable)'s, and what else an attached machine needs.
//!
//! ```text
//! machine ── certificate of its key, for one disk ──▶ service ── [`Placement`](crate::Placement) ──▶ the cluster's table
//!             [`DiskCall`], one POST each                └ whose disk, whose attach, under which fence
//!             ◀── [`DiskAnswer`]
//! ```
//!
//! No call names a disk: the certificate does. Every call but the attach may be repeated; an attach that is repeated after a lost reply
//! finds the disk attached by itself, and is done again under the next fence.

use crate::{Cluster, DiskLook, DiskRecord, PlacementError};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_blockd_protocol::{DiskId, Fence, Row};
use serde::{Deserialize, Serialize};

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum DiskCall {
    /// Reads the disk's record.
    Record {},
    /// Attaches the disk: raises its fence.
    Attach {
        /// What the service gave with the ticket, base64 without padding: proof that somebody who may has let this machine in.
        grant: String,
        /// For people: which machine and process.
        #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 256))]
        holder: String,
        /// Also if somebody has it.
        force: bool,
    },
    /// Gives a capability for the attach, by which nodes let it in.
    Capability {
        /// The attach.
        fence: u32,
    },
    /// Gives the next certificate of the same key.
    Certificate {
        /// The request, base64 without padding.
        #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 1024))]
        certificate_request: String,
    },
    /// Replaces the client's own settings.
    Settings {
        /// The attach.
        fence: u32,
        /// The settings, opaque to the service.
        #[cfg_attr(feature = "schema", schema(max_length = 16_384))]
        settings: String,
    },
    /// Ends the attach.
    Detach {
        /// The attach.
        fence: u32,
        /// Whether replicas agree, so that the next attach has nothing to reconcile.
        clean: bool,
    },
    /// Reads the lengths of the locator tables.
    Cluster {},
    /// Reads a row.
    Row {
        /// Of the table of so many copies.
        #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 3))]
        copies: u8,
        /// Its place.
        index: u32,
    },
    /// Reads rows, at most [`ROWS_AT_ONCE`](crate::ROWS_AT_ONCE).
    Rows {
        /// Of the table of so many copies.
        #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 3))]
        copies: u8,
        /// From this one.
        from: u32,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiskAnswer {
    /// The disk's record, after the call if that changed it.
    Record(DiskLook),
    /// It is attached.
    Attached {
        /// The record, with the new fence.
        record: DiskRecord,
        /// The attach before ended cleanly.
        clean: bool,
        /// The hard cap of the tenant's budget is reached: new writes are to be refused.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        capped: bool,
    },
    /// A capability.
    Capability {
        /// Its bytes, base64 without padding.
        capability: String,
        /// For how many seconds from now it is good.
        seconds: u64,
    },
    /// A certificate.
    Certificate {
        /// DER in base64 without padding.
        certificate: String,
        /// When it expires, in seconds since 1970.
        expires: u64,
        /// When to ask for the next, in seconds since 1970.
        renew_after: u64,
    },
    /// The lengths of the locator tables.
    Cluster(Cluster),
    /// Rows, each its bytes in base64 without padding ([`Row::to_bytes`]).
    Rows {
        /// In their order.
        rows: Vec<String>,
    },
    /// It is done.
    Done {},
    /// It was not done.
    Refused(DiskRefusal),
}

/// Why a call was not done: what [`PlacementError`] says of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DiskRefusal {
    /// Somebody has it.
    Attached {
        /// For people: who.
        holder: String,
    },
    /// A later attach took over, or it was detached by force.
    Fenced {
        /// The newest fence.
        current: u32,
    },
    /// There is no such disk.
    NoDisk {},
    /// It is being deleted.
    Deleting {},
    /// The grant is over, or not for this machine.
    NotAdmitted {
        /// Why.
        why: String,
    },
}

/// An answer that holds no row where one was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the service's answer holds no row of a locator table")]
pub struct MalformedRow;

impl DiskRefusal {
    /// What of an error is the disk's own matter; nothing for what is the table's.
    pub fn of(error: &PlacementError) -> Option<Self> {
        match error {
            PlacementError::Attached { holder, .. } => Some(Self::Attached {
                holder: holder.clone(),
            }),
            PlacementError::Fenced { current } => Some(Self::Fenced { current: current.0 }),
            PlacementError::NoDisk(_) => Some(Self::NoDisk {}),
            PlacementError::Deleting(_) => Some(Self::Deleting {}),
            _ => None,
        }
    }

    /// The error that the table itself would have given.
    pub fn into_error(self, disk: DiskId) -> PlacementError {
        match self {
            Self::Attached { holder } => PlacementError::Attached { disk, holder },
            Self::Fenced { current } => PlacementError::Fenced {
                current: Fence(current),
            },
            Self::NoDisk {} => PlacementError::NoDisk(disk.to_string()),
            Self::Deleting {} => PlacementError::Deleting(disk),
            Self::NotAdmitted { why } => PlacementError::Refused(why),
        }
    }
}

impl DiskAnswer {
    /// Rows for the way.
    pub fn rows(rows: &[Row]) -> Self {
        Self::Rows {
            rows: rows
                .iter()
                .map(|row| STANDARD_NO_PAD.encode(row.to_bytes()))
                .collect(),
        }
    }

    /// Reads a row that [`DiskAnswer::rows`] wrote.
    ///
    /// # Errors
    /// [`MalformedRow`].
    pub fn read_row(text: &str) -> Result<Row, MalformedRow> {
        let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| MalformedRow)?;
        Row::from_bytes(bytes.into()).map_err(|_| MalformedRow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DiskState;
    use firn_blockd_protocol::TenantId;

    #[test]
    fn calls_have_one_spelling_and_refusals_come_back_as_the_errors_they_were() {
        let call = DiskCall::Detach {
            fence: 3,
            clean: true,
        };
        let text = serde_json::to_string(&call).expect("it has a JSON form");
        assert_eq!(text, r#"{"detach":{"fence":3,"clean":true}}"#);
        assert_eq!(
            serde_json::from_str::<DiskCall>(&text).expect("it is read back"),
            call
        );
        for wrong in [
            "{}",
            r#"{"detach":{"fence":3}}"#,
            r#"{"record":{"disk":1}}"#,
            r#""record""#,
        ] {
            assert!(serde_json::from_str::<DiskCall>(wrong).is_err(), "{wrong}");
        }
        let disk = DiskId([1; 16]);
        for error in [
            PlacementError::Attached {
                disk,
                holder: "there".into(),
            },
            PlacementError::Fenced { current: Fence(7) },
            PlacementError::NoDisk(disk.to_string()),
            PlacementError::Deleting(disk),
        ] {
            let refusal = DiskRefusal::of(&error).expect("it is the disk's matter");
            assert_eq!(refusal.into_error(disk).to_string(), error.to_string());
        }
        assert_eq!(DiskRefusal::of(&PlacementError::NoCluster), None);
        // A record is spelled as before there was anything beside it.
        let record = DiskRecord {
            disk,
            tenant: TenantId([2; 16]),
            name: "data".into(),
            size_bytes: 1 << 23,
            tracts: 1,
            copies: 1,
            settings: "{}".into(),
            created_unix_ms: 0,
            state: DiskState::Ready,
            fence: 1,
            attached: None,
            clean: true,
        };
        let alone = serde_json::to_string(&record).expect("it has a JSON form");
        for capped in [false, true] {
            let look = DiskLook {
                record: record.clone(),
                capped,
            };
            let text = serde_json::to_string(&look).expect("it has a JSON form");
            assert_eq!(text == alone, !capped, "{text}");
            assert_eq!(
                serde_json::from_str::<DiskLook>(&text).expect("it is read back"),
                look
            );
        }
        assert_eq!(DiskAnswer::read_row("AAAA"), Err(MalformedRow));
    }
}
