//! Backup and restore of the control plane: every item of every partition, one JSON line each.
//!
//! ```text
//! {"format":"firn-api backup","version":2,"taken":1795302000}
//! {"partition":"tenant/ten_…","sort":"volume/vol_…","value":"<base64>"}
//! …
//! {"items":1234}                                    a file without this line is incomplete and is refused
//! ```
//!
//! Stop the service first (the embedded table locks its file, so a forgotten one is noticed): items are read one after the
//! other, and a change in between would be half in the file. A restore goes into an empty table only. Item versions are new
//! afterwards, so entity tags that clients hold no longer match, which is what they should do. What had ended when it is restored
//! must not live again: [`crate::revival`] sees to it.

use crate::{
    anchor_table,
    handlers::{TENANT_KEYS, VolumeRecord},
    problem::Problem,
    revival::{self, Since},
    store::{self, Record, roots_partition},
};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use firn_identity::{TenantId, UnixTime};
use firn_table::{Condition, ItemKey, Table, Write};
use firn_usage::TenantName;
use serde::{Deserialize, Serialize};
use std::{io::BufRead, sync::Arc};

/// The partition that lists all tenants.
pub(crate) const TENANTS: &str = "tenants";
const FORMAT: &str = "firn-api backup";
const VERSION: u16 = 2;
const OLDEST_VERSION: u16 = 1;
/// Items read at a time.
const PAGE: usize = 100;

/// A tenant's entry in the list of all.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct KnownTenant {
    pub(crate) tenant: TenantId,
}

impl Record for KnownTenant {
    const KIND: &'static str = "known-tenant";
}

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u16,
    /// When it was begun; version 1 did not say.
    #[serde(default)]
    taken: Option<UnixTime>,
}

#[derive(Serialize, Deserialize)]
struct Line {
    partition: String,
    sort: String,
    value: String,
}

#[derive(Serialize, Deserialize)]
struct Foot {
    items: u64,
}

/// Why a backup or a restore stopped.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The table failed; the file is incomplete, a restored table is to be thrown away.
    #[error("the table: {0}")]
    Table(#[from] firn_table::TableError),
    /// The ledger cannot be read.
    #[error("billing: {0}")]
    Billing(#[from] firn_billing::BillingError),
    /// A record that cannot be read.
    #[error(transparent)]
    Record(#[from] Problem),
    /// The file cannot be read or written.
    #[error("the file: {0}")]
    File(#[from] std::io::Error),
    /// The file is no complete backup.
    #[error("line {line} of the file: {why}; nothing of it can be trusted")]
    Damaged {
        /// Which line, from 1.
        line: u64,
        /// What is wrong.
        why: String,
    },
    /// The roster is older than the backup: it does not know what the backup knows to live.
    #[error("the roster was taken {seconds} s before the backup; give one that was taken after it")]
    OlderRoster {
        /// By how much.
        seconds: u64,
    },
    /// A restore was interrupted.
    #[error(
        "a backup was restored into this table only in part, and what was revoked may live in it; restore into a new table"
    )]
    Unfinished,
    /// Something is in the table already.
    #[error("the table is not empty; restore into a new one")]
    NotEmpty,
}

/// Writes everything into `file`; gives the number of items.
///
/// # Errors
/// [`BackupError`]; the file is then incomplete.
pub async fn backup(
    env: &firn_env::Env,
    table: &Arc<dyn Table>,
    file: &mut (dyn std::io::Write + Send),
) -> Result<u64, BackupError> {
    line(
        file,
        &Head {
            format: FORMAT.into(),
            version: VERSION,
            taken: Some(UnixTime::from_wall(env.wall())),
        },
    )?;
    let mut items = 0;
    let mut tenants = Vec::new();
    for partition in ["service", "signup", "open-sagas", TENANT_KEYS, TENANTS] {
        items += copy(table, partition, file, |item| {
            if partition == TENANTS {
                tenants.push(store::decode::<KnownTenant>(item)?.tenant);
            }
            Ok(())
        })
        .await?;
    }
    for tenant in &tenants {
        let mut volumes = Vec::new();
        items += copy(table, &format!("tenant/{tenant}"), file, |item| {
            if item.key.sort.starts_with("volume/") {
                volumes.push(store::decode::<VolumeRecord>(item)?.volume.id);
            }
            Ok(())
        })
        .await?;
        for volume in volumes {
            items += copy(table, &roots_partition(*tenant, volume), file, |_| Ok(())).await?;
        }
    }
    let ledger_tenants: Vec<_> = tenants.into_iter().map(TenantName::from).collect();
    let billing = firn_billing::Billing::new(env, table.clone());
    for partition in billing.partitions(&ledger_tenants).await? {
        items += copy(table, &partition, file, |_| Ok(())).await?;
    }
    line(file, &Foot { items })?;
    file.flush()?;
    Ok(items)
}

async fn copy(
    table: &Arc<dyn Table>,
    partition: &str,
    file: &mut (dyn std::io::Write + Send),
    mut seen: impl FnMut(&firn_table::Item) -> Result<(), Problem> + Send,
) -> Result<u64, BackupError> {
    let mut items = 0;
    let mut after = None;
    loop {
        let page = table.query(partition, "", after.as_deref(), PAGE).await?;
        for item in &page.items {
            // Which table held the roots says nothing of the tables that this is put into.
            if item.key == anchor_table::marker() {
                continue;
            }
            seen(item)?;
            let value = STANDARD_NO_PAD.encode(&item.value);
            line(
                file,
                &Line {
                    partition: partition.to_owned(),
                    sort: item.key.sort.clone(),
                    value,
                },
            )?;
            items += 1;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(items),
        }
    }
}

pub(crate) fn line(
    file: &mut (dyn std::io::Write + Send),
    value: &impl Serialize,
) -> Result<(), BackupError> {
    serde_json::to_writer(&mut *file, value).map_err(std::io::Error::from)?;
    file.write_all(b"\n")?;
    Ok(())
}

/// What a restore did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Items put.
    pub items: u64,
    /// With a roster, what was ended by it; without one, what lives again. A line each.
    pub told: Vec<String>,
}

/// Puts everything of `file` into an empty table, and ends there what had ended `since`. `anchor` is the name of the table in which
/// `table` keeps the roots, if that is one of their own.
///
/// # Errors
/// [`BackupError`]; the table is then to be thrown away, and no service starts on it.
pub async fn restore(
    env: &firn_env::Env,
    table: &Arc<dyn Table>,
    file: &mut (dyn BufRead + Send),
    since: &Since,
    anchor: Option<&str>,
) -> Result<Restored, BackupError> {
    let items = put_all(env, table, file, since).await?;
    if let Some(anchor) = anchor {
        anchor_table::note(table, anchor).await?;
    }
    let told = revival::settle(env, table, since).await?;
    Ok(Restored { items, told })
}

async fn put_all(
    env: &firn_env::Env,
    table: &Arc<dyn Table>,
    file: &mut (dyn BufRead + Send),
    since: &Since,
) -> Result<u64, BackupError> {
    for partition in [
        TENANTS,
        TENANT_KEYS,
        "service",
        "signup",
        "open-sagas",
        "billing/tenants",
    ] {
        if !table.query(partition, "", None, 1).await?.items.is_empty() {
            return Err(BackupError::NotEmpty);
        }
    }
    let mut items = 0;
    let mut number = 0;
    let mut text = String::new();
    let mut foot: Option<Foot> = None;
    loop {
        text.clear();
        if file.read_line(&mut text)? == 0 {
            break;
        }
        number += 1;
        let damaged = |why: String| BackupError::Damaged { line: number, why };
        if foot.is_some() {
            return Err(damaged("something follows the last line".into()));
        }
        if number == 1 {
            let head: Head = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
            if head.format != FORMAT || !(OLDEST_VERSION..=VERSION).contains(&head.version) {
                return Err(damaged("not a backup of a version this build reads".into()));
            }
            if let (Since::Roster(roster), Some(taken)) = (since, head.taken)
                && roster.taken < taken
            {
                let seconds = taken.0 - roster.taken.0;
                return Err(BackupError::OlderRoster { seconds });
            }
            revival::begin(env, table).await?;
            continue;
        }
        if let Ok(last) = serde_json::from_str::<Foot>(&text) {
            if last.items != items {
                return Err(damaged(format!(
                    "{} items were written, {items} are here",
                    last.items
                )));
            }
            foot = Some(last);
            continue;
        }
        let line: Line = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
        let value = STANDARD_NO_PAD
            .decode(&line.value)
            .map_err(|error| damaged(error.to_string()))?;
        let write = Write::Put {
            key: ItemKey::new(line.partition, line.sort),
            value: value.into(),
            condition: Condition::Absent,
        };
        table.transact(vec![write]).await?;
        items += 1;
    }
    foot.map(|_| items).ok_or_else(|| BackupError::Damaged {
        line: number,
        why: "the last line is missing".into(),
    })
}
