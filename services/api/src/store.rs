//! The table as the control plane uses it: versioned records in one partition per tenant.
//!
//! An item's value is JSON: `{"version": 1, "kind": "volume", "record": {…}}`. A build reads its own version of a kind and the
//! one before it ([`Record::upgrade`]); a newer one is an error that says so, not a guess. The keys are listed in
//! `docs/control-plane.md`.

mod change;

pub(crate) use change::{AUDIT_TAIL, AuditTail, Change, KeptReply};

use crate::{context::TenantContext, problem::Problem, secrets::hex};
use bytes::Bytes;
use firn_identity::{TenantId, TenantVolume, VolumeId};
use firn_table::{Item, ItemKey, ItemVersion, Table};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use std::sync::Arc;

/// A kind of stored record.
pub(crate) trait Record: Serialize + DeserializeOwned + Send + Sync {
    /// Its name in the item.
    const KIND: &'static str;
    /// The version this build writes.
    const VERSION: u16 = 1;

    /// TenantLocks a record of the version before into one of this version; `None` if it cannot be read.
    fn upgrade(_version: u16, _record: Value) -> Option<Value> {
        None
    }
}

#[derive(Serialize)]
struct Written<'a, T> {
    version: u16,
    kind: &'static str,
    record: &'a T,
}

#[derive(Deserialize)]
struct Read {
    version: u16,
    kind: String,
    record: Value,
}

pub(crate) fn encode<T: Record>(record: &T) -> Bytes {
    let written = Written {
        version: T::VERSION,
        kind: T::KIND,
        record,
    };
    serde_json::to_vec(&written)
        .expect("records have a JSON form")
        .into()
}

pub(crate) fn decode<T: Record>(item: &Item) -> Result<T, Problem> {
    let name = || format!("{}/{}", item.key.partition, item.key.sort);
    let read: Read = serde_json::from_slice(&item.value)
        .map_err(|error| Problem::internal(format!("{} is no record: {error}", name())))?;
    if read.kind != T::KIND {
        return Err(Problem::internal(format!(
            "{} is a {}, not a {}",
            name(),
            read.kind,
            T::KIND
        )));
    }
    let record = if read.version == T::VERSION {
        read.record
    } else {
        T::upgrade(read.version, read.record).ok_or_else(|| {
            Problem::internal(format!(
                "{} has version {}, this build reads {}; run the newer build",
                name(),
                read.version,
                T::VERSION
            ))
        })?
    };
    serde_json::from_value(record).map_err(|error| Problem::internal(format!("{}: {error}", name())))
}

/// A record and the version of the item it was read from.
#[derive(Clone, Debug)]
pub(crate) struct Loaded<T> {
    pub(crate) record: T,
    pub(crate) key: ItemKey,
    pub(crate) version: ItemVersion,
}

impl<T> Loaded<T> {
    /// The entity tag under which the record is shown.
    pub(crate) fn etag(&self) -> String {
        etag(self.version)
    }
}

pub(crate) fn etag(version: ItemVersion) -> String {
    format!("\"{}\"", hex(&version.0.to_be_bytes()))
}

/// The partition in which the service keeps the roots of a volume for the edges that serve it: what a cleaner of the same
/// installation, with credentials of the table, reads through `firn_anchor::Anchor::within`.
pub fn roots_partition(tenant: TenantId, volume: VolumeId) -> String {
    TenantVolume { tenant, volume }.roots_partition()
}

/// One tenant's part of the table.
#[derive(Clone)]
pub(crate) struct TenantStore {
    table: Arc<dyn Table>,
    tenant: TenantId,
    partition: String,
}

impl TenantStore {
    /// The part that the context was proved for.
    pub(crate) fn of(table: &Arc<dyn Table>, context: &TenantContext) -> Self {
        Self {
            table: table.clone(),
            tenant: context.tenant(),
            partition: format!("tenant/{}", context.tenant()),
        }
    }

    pub(crate) fn key(&self, sort: &str) -> ItemKey {
        ItemKey::new(&*self.partition, sort)
    }

    pub(crate) fn table(&self) -> &Arc<dyn Table> {
        &self.table
    }

    /// The partition of the roots of one of the tenant's volumes.
    pub(crate) fn roots(&self, volume: VolumeId) -> String {
        roots_partition(self.tenant, volume)
    }

    pub(crate) async fn get<T: Record>(&self, sort: &str) -> Result<Option<Loaded<T>>, Problem> {
        load(&self.table, &self.key(sort)).await
    }

    /// A record that must be there.
    pub(crate) async fn require<T: Record>(
        &self,
        sort: &str,
        what: impl std::fmt::Display,
    ) -> Result<Loaded<T>, Problem> {
        self.get(sort).await?.ok_or_else(|| Problem::not_found(what))
    }

    /// A page of the records whose sort keys start with `prefix`.
    pub(crate) async fn page<T: Record>(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Loaded<T>>, Option<String>), Problem> {
        let page = self.table.query(&self.partition, prefix, after, limit).await?;
        let records = page
            .items
            .iter()
            .map(|item| {
                Ok(Loaded {
                    record: decode(item)?,
                    key: item.key.clone(),
                    version: item.version,
                })
            })
            .collect::<Result<_, Problem>>()?;
        Ok((records, page.next))
    }
}

/// One record anywhere: only for the few partitions that belong to no tenant.
pub(crate) async fn load<T: Record>(
    table: &Arc<dyn Table>,
    key: &ItemKey,
) -> Result<Option<Loaded<T>>, Problem> {
    table
        .get(key)
        .await?
        .map(|item| {
            Ok(Loaded {
                record: decode(&item)?,
                key: item.key.clone(),
                version: item.version,
            })
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::Code;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Shelf {
        width_mm: u64,
    }

    /// Version 1 had the width in centimetres.
    impl Record for Shelf {
        const KIND: &'static str = "shelf";
        const VERSION: u16 = 2;

        fn upgrade(version: u16, record: Value) -> Option<Value> {
            let width_cm = record.get("width_cm")?.as_u64()?;
            (version == 1).then(|| serde_json::json!({ "width_mm": width_cm * 10 }))
        }
    }

    fn read(value: &str) -> Result<Shelf, Problem> {
        decode(&Item {
            key: ItemKey::new("p", "s"),
            version: ItemVersion(1),
            value: Bytes::from(value.to_owned()),
        })
    }

    #[test]
    fn a_record_of_the_version_before_is_read_and_a_newer_one_is_an_error_not_a_guess() {
        assert_eq!(
            encode(&Shelf { width_mm: 800 }),
            r#"{"version":2,"kind":"shelf","record":{"width_mm":800}}"#
        );
        let wide = Ok(Shelf { width_mm: 800 });
        assert_eq!(
            read(r#"{"version":2,"kind":"shelf","record":{"width_mm":800}}"#),
            wide
        );
        assert_eq!(
            read(r#"{"version":1,"kind":"shelf","record":{"width_cm":80}}"#),
            wide
        );
        for unreadable in [
            r#"{"version":3,"kind":"shelf","record":{"width_mm":800}}"#,
            r#"{"version":2,"kind":"table","record":{"width_mm":800}}"#,
            r#"{"version":2,"kind":"shelf","record":{}}"#,
            "no JSON",
        ] {
            assert_eq!(read(unreadable).unwrap_err().code, Code::Internal, "{unreadable}");
        }
    }
}
