//! Revocations after a restore: what a restored backup would bring back to life, and how it is kept from it.
//!
//! A backup is the past: keys revoked, edges and members removed, volumes erased and key rings made since are as they were before.
//! Without something newer nobody can tell which. So a restore is given a [roster](crate::Roster), taken after the backup, or is told
//! that there is none and that what the backup holds may live again.
//!
//! | in the backup | not in the roster | otherwise |
//! |---|---|---|
//! | API key | revoked | as it was |
//! | member | removed | the roster's role |
//! | edge | revoked, its volumes' keys to be rotated | as it was; an invitation that waited is revoked |
//! | node | removed | as it was |
//! | volume | erased | deleted if the roster says so; the roster's key ring if it is newer |
//! | tenant | closed | closed if the roster says so |
//!
//! In both cases all tokens end, invitations and join secrets that waited are void, and each tenant's audit log tells of it. All of it
//! can be repeated: until it is done, the table says so and [`require_settled`] keeps a service from starting on it.

use crate::{
    app::revocations_key,
    backup::{BackupError, KnownTenant, TENANTS},
    context::TenantContext,
    handlers::{
        CLOSED, EdgeRecord, GRANTS, GrantRecord, JoinRecord, KeyRecord, LimitsRecord, MemberRecord,
        NameRecord, NodeRecord, RingRecord, TenantRecord, VolumeRecord, edge_name_sort, email_sort,
        key_name_sort, name_entry, node_name_sort,
    },
    living::{Living, Roster, all},
    problem::Problem,
    saga::{SagaRecord, Work},
    store::{self, Change, Record, TenantStore},
    types::{EdgeState, InUse, VolumeState},
};
use firn_env::Env;
use firn_identity::{Revocations, Role, TenantId, UnixTime};
use firn_table::{Condition, ItemKey, Table, Write};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What is known beside the backup of who lives.
#[derive(Clone, Debug)]
pub enum Since {
    /// What lived later.
    Roster(Roster),
    /// Nothing: whatever the backup holds may live again.
    Nothing,
}

/// That a restore is under way.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Restoring {
    begun: UnixTime,
}

impl Record for Restoring {
    const KIND: &'static str = "restoring";
}

fn marker() -> ItemKey {
    ItemKey::new("service", "restoring")
}

/// Notes that a restore is under way.
pub(crate) async fn begin(env: &Env, table: &Arc<dyn Table>) -> Result<(), BackupError> {
    let restoring = Restoring {
        begun: UnixTime::from_wall(env.wall()),
    };
    let write = Write::Put {
        key: marker(),
        value: store::encode(&restoring),
        condition: Condition::Absent,
    };
    table.transact(vec![write]).await?;
    Ok(())
}

/// Refuses a table into which a backup was restored only in part.
///
/// # Errors
/// [`BackupError::Unfinished`], or the table does not answer.
pub async fn require_settled(table: &Arc<dyn Table>) -> Result<(), BackupError> {
    match table.get(&marker()).await? {
        None => Ok(()),
        Some(_) => Err(BackupError::Unfinished),
    }
}

/// Ends what must not live again; gives a line for each thing that ended, or that lives again.
pub(crate) async fn settle(
    env: &Env,
    table: &Arc<dyn Table>,
    since: &Since,
) -> Result<Vec<String>, BackupError> {
    let mut told = Vec::new();
    end_tokens(env, table).await?;
    let mut after = None;
    loop {
        let page = table.query(TENANTS, "", after.as_deref(), 100).await?;
        for item in &page.items {
            let tenant = store::decode::<KnownTenant>(item)?.tenant;
            let store = TenantStore::of(table, &TenantContext::for_service(tenant));
            let mut settling = Settling {
                env,
                tenant,
                store,
                told: &mut told,
            };
            match since {
                Since::Roster(roster) => {
                    let none = Living {
                        closed: true,
                        ..Living::default()
                    };
                    settling.end(roster.tenants.get(&tenant).unwrap_or(&none)).await?;
                }
                Since::Nothing => settling.list().await?,
            }
            settling.void_joins().await?;
            let detail = match since {
                Since::Roster(roster) => format!("with what was known to live at {}", roster.taken.0),
                Since::Nothing => {
                    "nothing newer was known: what ended since the backup may live again".into()
                }
            };
            settling
                .change("service.restore", tenant)
                .detail(detail)
                .commit(env, None)
                .await?;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if let Some(item) = table.get(&marker()).await? {
        let write = Write::Delete {
            key: item.key,
            version: item.version,
        };
        table.transact(vec![write]).await?;
    }
    Ok(told)
}

/// Takes all tokens back, under a number that no verifier has seen.
async fn end_tokens(env: &Env, table: &Arc<dyn Table>) -> Result<(), BackupError> {
    let stored = store::load::<Revocations>(table, &revocations_key()).await?;
    let condition = stored
        .as_ref()
        .map_or(Condition::Absent, |stored| Condition::Version(stored.version));
    let mut list = stored.map(|stored| stored.record).unwrap_or_default();
    list.revoke_everything_after_restore(UnixTime::from_wall(env.wall()));
    let write = Write::Put {
        key: revocations_key(),
        value: store::encode(&list),
        condition,
    };
    table.transact(vec![write]).await?;
    Ok(())
}

/// One tenant being settled.
struct Settling<'a> {
    env: &'a Env,
    tenant: TenantId,
    store: TenantStore,
    told: &'a mut Vec<String>,
}

impl Settling<'_> {
    fn change(&self, action: &'static str, target: impl ToString) -> Change {
        Change::new(&self.store, None, action, target).detail("it had ended before the backup was restored")
    }

    fn tell(&mut self, what: impl std::fmt::Display) {
        self.told.push(format!("{} {what}", self.tenant));
    }

    /// Adds to a change that something is given back. A count that is lower than what ends is a restored mistake, not a reason to
    /// let it live.
    async fn giving_back(
        &self,
        change: Change,
        edit: impl FnOnce(&mut InUse, &mut u32),
    ) -> Result<Change, Problem> {
        let loaded = LimitsRecord::load(&self.store).await?;
        let mut limits = loaded.record.clone();
        edit(&mut limits.in_use, &mut limits.owners);
        Ok(change.update(&loaded, &limits))
    }

    async fn end(&mut self, living: &Living) -> Result<(), BackupError> {
        self.end_keys(living).await?;
        self.end_members(living).await?;
        self.end_edges(living).await?;
        self.end_grants(living).await?;
        self.end_nodes(living).await?;
        self.end_volumes(living).await?;
        let loaded = self.store.get::<TenantRecord>(TenantRecord::SORT).await?;
        if let Some(loaded) = loaded
            && living.closed
            && loaded.record.tenant.state != CLOSED
        {
            let mut record = loaded.record.clone();
            record.tenant.state = CLOSED.into();
            let change = self.change("tenant.close", self.tenant).update(&loaded, &record);
            change.commit(self.env, None).await?;
            self.tell("closed");
        }
        Ok(())
    }

    async fn end_keys(&mut self, living: &Living) -> Result<(), BackupError> {
        for loaded in all::<KeyRecord>(&self.store, "key/").await? {
            let id = loaded.record.key.id;
            if loaded.record.key.revoked || living.keys.contains(&id) {
                continue;
            }
            let mut record = loaded.record.clone();
            record.key.revoked = true;
            let mut change = self.change("key.revoke", id).update(&loaded, &record);
            if let Some(entry) = name_entry(&self.store, &key_name_sort(&record.key.name), id).await? {
                change = change.delete(&entry);
            }
            let change = self
                .giving_back(change, |used, _| used.keys = used.keys.saturating_sub(1))
                .await?;
            change.commit(self.env, None).await?;
            self.tell(format_args!("{id} revoked"));
        }
        Ok(())
    }

    async fn end_members(&mut self, living: &Living) -> Result<(), BackupError> {
        for loaded in all::<MemberRecord>(&self.store, "member/").await? {
            let member = &loaded.record.member;
            let was_owner = member.role == Role::Owner && loaded.record.is_active();
            match living.members.get(&member.id) {
                None => {
                    let mut change = self.change("member.remove", member.id).delete(&loaded);
                    if let Some(email) = self.store.get::<NameRecord>(&email_sort(&member.email)).await? {
                        change = change.delete(&email);
                    }
                    let change = self
                        .giving_back(change, |used, owners| {
                            used.members = used.members.saturating_sub(1);
                            *owners = owners.saturating_sub(u32::from(was_owner));
                        })
                        .await?;
                    change.commit(self.env, None).await?;
                    self.tell(format_args!("{} removed", member.id));
                }
                Some(role) if *role != member.role => {
                    let mut record = loaded.record.clone();
                    record.member.role = *role;
                    let is_owner = *role == Role::Owner && loaded.record.is_active();
                    let change = self.change("member.change", member.id).update(&loaded, &record);
                    let change = self
                        .giving_back(change, |_, owners| {
                            *owners = (*owners + u32::from(is_owner)).saturating_sub(u32::from(was_owner));
                        })
                        .await?;
                    change.commit(self.env, None).await?;
                    self.tell(format_args!("{} {role}, not {}", member.id, member.role));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    async fn end_edges(&mut self, living: &Living) -> Result<(), BackupError> {
        for loaded in all::<EdgeRecord>(&self.store, "edge/").await? {
            let edge = &loaded.record.edge;
            let lives = edge.state == EdgeState::Active && living.edges.contains(&edge.id);
            if edge.state == EdgeState::Revoked || lives {
                continue;
            }
            let mut record = loaded.record.clone();
            record.edge.state = EdgeState::Revoked;
            record.edge.operation = None;
            let mut change = self
                .change("edge.remove", edge.id)
                .detail("it had ended, or its invitation waited, when the backup was restored; rotate the key epoch")
                .update(&loaded, &record);
            if let Some(entry) = name_entry(&self.store, &edge_name_sort(&edge.name), edge.id).await? {
                change = change.delete(&entry);
            }
            let change = self
                .giving_back(change, |used, _| used.edges = used.edges.saturating_sub(1))
                .await?;
            change.commit(self.env, None).await?;
            self.tell(format_args!("{} revoked", edge.id));
        }
        Ok(())
    }

    async fn end_grants(&mut self, living: &Living) -> Result<(), BackupError> {
        for loaded in all::<GrantRecord>(&self.store, GRANTS).await? {
            if loaded.record.is_revoked() || living.grants.contains(&loaded.record.told()) {
                continue;
            }
            let record = loaded
                .record
                .clone()
                .revoked_at(UnixTime::from_wall(self.env.wall()));
            let what = record.told();
            let change = self.change("grant.revoke", &what).update(&loaded, &record);
            change.commit(self.env, None).await?;
            self.tell(format_args!("{what} revoked"));
        }
        Ok(())
    }

    async fn end_nodes(&mut self, living: &Living) -> Result<(), BackupError> {
        for loaded in all::<NodeRecord>(&self.store, "node/").await? {
            let node = &loaded.record.node;
            if living.nodes.contains(&node.id) {
                continue;
            }
            let mut change = self.change("node.removed", node.id).delete(&loaded);
            if let Some(entry) = name_entry(&self.store, &node_name_sort(&node.name), node.id).await? {
                change = change.delete(&entry);
            }
            let change = self
                .giving_back(change, |used, _| used.nodes = used.nodes.saturating_sub(1))
                .await?;
            change.commit(self.env, None).await?;
            self.tell(format_args!("{} removed", node.id));
        }
        Ok(())
    }

    async fn end_volumes(&mut self, living: &Living) -> Result<(), BackupError> {
        for loaded in all::<VolumeRecord>(&self.store, "volume/").await? {
            let volume = &loaded.record.volume;
            if matches!(volume.state, VolumeState::Erasing | VolumeState::Erased) {
                continue;
            }
            let Some(known) = living.volumes.get(&volume.id) else {
                // The service erases it when it starts.
                let saga = SagaRecord::new(self.env, None, Work::EraseVolume { volume: volume.id });
                let change = self
                    .change("volume.erase", volume.id)
                    .update(&loaded, &loaded.record.erasing(&saga));
                saga.begin(self.tenant, change).commit(self.env, None).await?;
                self.tell(format_args!("{} to be erased", volume.id));
                continue;
            };
            let mut record = loaded.record.clone();
            let mut change = self.change("volume.change", volume.id);
            if known.state == VolumeState::Deleted && volume.state == VolumeState::Active {
                record.volume.state = VolumeState::Deleted;
                record.volume.deleted = Some(UnixTime::from_wall(self.env.wall()));
            }
            if let Some(text) = &known.key_ring
                && known.generation > volume.key_ring_generation
            {
                let ring = crate::handlers::verified_ring(&self.store, volume.id, text).await?;
                record.volume.key_ring_generation = ring.generation();
                record.volume.family = Some(ring.family().to_string());
                let sort = RingRecord::sort(volume.id, ring.generation());
                change = change.create(&sort, &RingRecord::new(text.clone()));
            }
            let now = &record.volume;
            if now.state == volume.state && now.key_ring_generation == volume.key_ring_generation {
                continue;
            }
            let line = format!("{} {:?}, key ring {}", now.id, now.state, now.key_ring_generation);
            change.update(&loaded, &record).commit(self.env, None).await?;
            self.tell(line);
        }
        Ok(())
    }

    /// Without anything newer: says what lives again.
    async fn list(&mut self) -> Result<(), BackupError> {
        for loaded in all::<KeyRecord>(&self.store, "key/").await? {
            if !loaded.record.key.revoked {
                self.tell(format_args!("{} lives", loaded.record.key.id));
            }
        }
        for loaded in all::<MemberRecord>(&self.store, "member/").await? {
            let member = &loaded.record.member;
            self.tell(format_args!("{} lives, as {}", member.id, member.role));
        }
        for loaded in all::<EdgeRecord>(&self.store, "edge/").await? {
            if loaded.record.edge.state == EdgeState::Active {
                self.tell(format_args!("{} lives", loaded.record.edge.id));
            }
        }
        for loaded in all::<GrantRecord>(&self.store, GRANTS).await? {
            if !loaded.record.is_revoked() {
                self.tell(format_args!("{} lives", loaded.record.told()));
            }
        }
        for loaded in all::<NodeRecord>(&self.store, "node/").await? {
            self.tell(format_args!("{} lives", loaded.record.node.id));
        }
        Ok(())
    }

    /// A join secret that waited may have been used since.
    async fn void_joins(&mut self) -> Result<(), BackupError> {
        for join in all::<JoinRecord>(&self.store, "join/").await? {
            let change = self.change("join.void", self.tenant).delete(&join);
            change.commit(self.env, None).await?;
        }
        for loaded in all::<MemberRecord>(&self.store, "member/").await? {
            if loaded.record.code_hash.is_some() {
                let mut record = loaded.record.clone();
                record.code_hash = None;
                let id = record.member.id;
                let change = self.change("member.void-code", id).update(&loaded, &record);
                change.commit(self.env, None).await?;
            }
        }
        Ok(())
    }
}
