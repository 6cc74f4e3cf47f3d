//! The roster of what lives: every credential, member, edge, grant, node and volume that is good now. It is what keeps a restored backup
//! from bringing back to life what was revoked after the backup was taken.
//!
//! ```text
//! {"format":"firn-api roster","version":1,"taken":1795302000}
//! {"tenant":"ten_…","closed":false,"keys":["key_…"],"edges":[…],"nodes":[…],"members":{"mem_…":"admin"},
//!  "volumes":{"vol_…":{"state":"active","generation":3,"key_ring":"<base64>"}},"grants":["vol_… to ten_…, read: edg_…"]}
//! …
//! {"tenants":12}                                    a file without this line is incomplete and is refused
//! ```
//!
//! It names what lives rather than what ended, because what was removed leaves no record. Take it as often as a revocation must not be
//! lost, and keep it apart from the table: it holds no secret (key rings are wrapped and signed).

use crate::{
    backup::{BackupError, KnownTenant, TENANTS, line},
    context::TenantContext,
    handlers::{
        CLOSED, EdgeRecord, GRANTS, GrantRecord, KeyRecord, MemberRecord, NodeRecord, RingRecord,
        TenantRecord, VolumeRecord,
    },
    problem::Problem,
    store::{self, Loaded, Record, TenantStore},
    types::{EdgeState, VolumeState},
};
use firn_env::Env;
use firn_identity::{EdgeId, KeyId, MemberId, NodeId, Role, TenantId, UnixTime, VolumeId};
use firn_table::Table;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::BufRead,
    sync::Arc,
};

const FORMAT: &str = "firn-api roster";
const VERSION: u16 = 1;
/// Records read at a time.
const PAGE: usize = 100;

/// What lives in a table, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// When it was begun.
    pub(crate) taken: UnixTime,
    pub(crate) tenants: BTreeMap<TenantId, Living>,
}

/// What lives of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Living {
    pub(crate) closed: bool,
    pub(crate) keys: BTreeSet<KeyId>,
    pub(crate) edges: BTreeSet<EdgeId>,
    pub(crate) nodes: BTreeSet<NodeId>,
    pub(crate) members: BTreeMap<MemberId, Role>,
    pub(crate) volumes: BTreeMap<VolumeId, LivingVolume>,
    /// Grants that are not revoked, with whom they let in. Of a roster that is older than grants: none.
    #[serde(default)]
    pub(crate) grants: BTreeSet<String>,
}

/// A volume that is not erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LivingVolume {
    pub(crate) state: VolumeState,
    /// Of the newest key ring.
    pub(crate) generation: u64,
    /// That ring, in base64.
    pub(crate) key_ring: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u16,
    taken: UnixTime,
}

#[derive(Serialize, Deserialize)]
struct Line {
    tenant: TenantId,
    #[serde(flatten)]
    living: Living,
}

#[derive(Serialize, Deserialize)]
struct Foot {
    tenants: u64,
}

impl Roster {
    /// Reads who and what lives in a table. The service may run meanwhile: what is revoked during the reading is in it or not.
    ///
    /// # Errors
    /// [`BackupError`].
    pub async fn of_table(env: &Env, table: &Arc<dyn Table>) -> Result<Self, BackupError> {
        let taken = UnixTime::from_wall(env.wall());
        let mut tenants = BTreeMap::new();
        let mut after = None;
        loop {
            let page = table.query(TENANTS, "", after.as_deref(), PAGE).await?;
            for item in &page.items {
                let tenant = store::decode::<KnownTenant>(item)?.tenant;
                tenants.insert(tenant, living(table, tenant).await?);
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(Self { taken, tenants }),
            }
        }
    }

    /// Writes it as a file.
    ///
    /// # Errors
    /// [`BackupError::File`]; the file is then incomplete.
    pub fn write(&self, file: &mut (dyn std::io::Write + Send)) -> Result<(), BackupError> {
        let head = Head {
            format: FORMAT.into(),
            version: VERSION,
            taken: self.taken,
        };
        line(file, &head)?;
        for (tenant, living) in &self.tenants {
            let one = Line {
                tenant: *tenant,
                living: living.clone(),
            };
            line(file, &one)?;
        }
        let tenants = self.tenants.len() as u64;
        line(file, &Foot { tenants })?;
        Ok(file.flush()?)
    }

    /// Reads it from a file.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] unless it is whole.
    pub fn read(file: &mut (dyn BufRead + Send)) -> Result<Self, BackupError> {
        let mut lines = Vec::new();
        for text in file.lines() {
            lines.push(text?);
        }
        let damaged = |line: usize, why: &dyn std::fmt::Display| BackupError::Damaged {
            line: line as u64,
            why: why.to_string(),
        };
        let [head, all @ .., foot] = &lines[..] else {
            return Err(damaged(1, &"it is no whole roster"));
        };
        let head: Head = serde_json::from_str(head).map_err(|error| damaged(1, &error))?;
        if head.format != FORMAT || head.version != VERSION {
            return Err(damaged(1, &"not a roster of a version this build reads"));
        }
        let last = lines.len();
        let foot: Foot = serde_json::from_str(foot).map_err(|error| damaged(last, &error))?;
        let mut tenants = BTreeMap::new();
        for (index, text) in all.iter().enumerate() {
            let line: Line = serde_json::from_str(text).map_err(|error| damaged(index + 2, &error))?;
            tenants.insert(line.tenant, line.living);
        }
        if foot.tenants != tenants.len() as u64 {
            return Err(damaged(last, &"tenants are missing"));
        }
        Ok(Self {
            taken: head.taken,
            tenants,
        })
    }
}

/// All records of a kind.
pub(crate) async fn all<T: Record>(store: &TenantStore, prefix: &str) -> Result<Vec<Loaded<T>>, Problem> {
    let mut records = Vec::new();
    let mut after = None;
    loop {
        let (page, next) = store.page(prefix, after.as_deref(), PAGE).await?;
        records.extend(page);
        match next {
            Some(next) => after = Some(next),
            None => return Ok(records),
        }
    }
}

async fn living(table: &Arc<dyn Table>, tenant: TenantId) -> Result<Living, BackupError> {
    let store = TenantStore::of(table, &TenantContext::for_service(tenant));
    let record = store.get::<TenantRecord>(TenantRecord::SORT).await?;
    let mut living = Living {
        closed: record.is_none_or(|record| record.record.tenant.state == CLOSED),
        ..Living::default()
    };
    for key in all::<KeyRecord>(&store, "key/").await? {
        if !key.record.key.revoked {
            living.keys.insert(key.record.key.id);
        }
    }
    for edge in all::<EdgeRecord>(&store, "edge/").await? {
        if edge.record.edge.state != EdgeState::Revoked {
            living.edges.insert(edge.record.edge.id);
        }
    }
    for grant in all::<GrantRecord>(&store, GRANTS).await? {
        if !grant.record.is_revoked() {
            living.grants.insert(grant.record.told());
        }
    }
    for node in all::<NodeRecord>(&store, "node/").await? {
        living.nodes.insert(node.record.node.id);
    }
    for member in all::<MemberRecord>(&store, "member/").await? {
        let member = member.record.member;
        living.members.insert(member.id, member.role);
    }
    for volume in all::<VolumeRecord>(&store, "volume/").await? {
        let volume = volume.record.volume;
        if matches!(volume.state, VolumeState::Erasing | VolumeState::Erased) {
            continue;
        }
        let generation = volume.key_ring_generation;
        let ring = store
            .get::<RingRecord>(&RingRecord::sort(volume.id, generation))
            .await?;
        let kept = LivingVolume {
            state: volume.state,
            generation,
            key_ring: ring.map(|ring| ring.record.text().to_owned()),
        };
        living.volumes.insert(volume.id, kept);
    }
    Ok(living)
}
