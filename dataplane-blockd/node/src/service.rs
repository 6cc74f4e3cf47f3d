//! Request service of a node: checks of a request, in order, and its answer.
//!
//! ```text
//! request → capability (disk, fence, time) → permit of the tenant → row at the version asked for → fence → store
//!           or a node's name                                        in which that node is          │
//!                    the table's, read since the node joined the row, and the one that was set here
//! ```
//!
//! A client speaks for one disk, by its capability. Another node speaks for the rows in which the table lists it, by the name in
//! its certificate: a certificate alone gives it nothing, since a certificate says who somebody is and the table what for.
//!
//! The permit comes before the gates of row and fence, always: whoever holds a gate already has its permit, so nobody who waits
//! at a gate keeps anybody behind it from going on.

use crate::{
    auth::{Grant, Scope},
    rows::{Admitted, Located},
    served::{Served, ServedDisk},
    shared::{Inner, refusal},
    store::{Content, Put, StoreError, TractPlace},
};
use async_trait::async_trait;
use firn_blockd_protocol::{
    Account, BLOCK_BYTES, BlockRange, DiskId, Fence, Generation, NodeId, Owner, Peer, Refusal, ReplicaState,
    Reply, Request, Row, RowAt, RowVersion, Service, Session, TractId, VersionedBlocks, WriteBlocks,
    limits::MAX_LIST,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
};
use tokio::sync::OwnedRwLockReadGuard;

/// Capabilities on one connection: a client has one disk on each. A thousand connections with as many keep some megabytes.
const GRANTS_MAX: usize = 64;

/// What a trimmed block costs of a permit: its part of a journal record and of an index region.
const TOMBSTONE_BYTES: usize = 32;

/// A node as connections see it.
pub(crate) struct NodeService(pub(crate) Arc<Inner>);

impl Service for NodeService {
    fn node(&self) -> NodeId {
        self.0.store.node()
    }

    fn incarnation(&self) -> u64 {
        self.0.incarnation
    }

    fn memory(&self, peer: &Peer) -> Account<Owner> {
        self.0.memory.account(peer.owner())
    }

    fn open(&self, peer: &Peer) -> Arc<dyn Session> {
        let by_name = self.0.authenticator.by_name(peer);
        Arc::new(NodeSession {
            node: self.0.clone(),
            peer: peer.clone(),
            grants: Mutex::new(by_name.map(|grant| (None, grant)).into_iter().collect()),
        })
    }
}

struct NodeSession {
    node: Arc<Inner>,
    peer: Peer,
    /// By disk; a node's under none.
    grants: Mutex<BTreeMap<Option<DiskId>, Grant>>,
}

/// What one tract's request is about, once it may go on.
struct Entered {
    row: Admitted,
    place: TractPlace,
    state: ReplicaState,
    _fence: Option<OwnedRwLockReadGuard<()>>,
}

#[async_trait]
impl Session for NodeSession {
    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        let node = &self.node;
        node.count(request.operation());
        if node.stopped.load(Relaxed) {
            return Err(Refusal::NotServing("another process is this node now".into()));
        }
        let counted = self.counted(&request);
        let reply = self.perform(request).await?;
        if let Some((disk, bytes)) = counted {
            node.served.add(disk, Served { requests: 1, bytes });
        }
        Ok(reply)
    }
}

impl NodeSession {
    /// For whose disk a request counts if it is served, and the bytes that it moves; nothing if it is a node's.
    fn counted(&self, request: &Request) -> Option<(ServedDisk, u64)> {
        let (disk, bytes) = match request {
            Request::Write { tract, range, .. } | Request::Fetch { tract, range, .. } => {
                (tract.disk, range.bytes())
            }
            Request::Trim { tract, .. } => (tract.disk, 0),
            Request::SetFence { disk, .. } | Request::List { disk: Some(disk), .. } => (*disk, 0),
            Request::List { disk: None, .. } | Request::Hello { .. } | Request::Authenticate { .. } => {
                return None;
            }
        };
        let grant = self.grant(Some(disk)).ok()?;
        Some(((grant.tenant, Some(disk)), bytes as u64))
    }

    async fn perform(&self, request: Request) -> Result<Reply, Refusal> {
        match request {
            Request::Hello { .. } => Err(Refusal::Malformed("hello was said before".into())),
            Request::Authenticate { capability } => self.authenticate(&capability),
            Request::Write {
                tract,
                row,
                generation,
                range,
                blocks,
            } => {
                let change = Change {
                    tract,
                    row,
                    generation,
                };
                self.write(change, range, blocks).await
            }
            Request::Trim {
                tract,
                row,
                generation,
                range,
            } => {
                let change = Change {
                    tract,
                    row,
                    generation,
                };
                self.trim(change, range).await
            }
            Request::Fetch {
                tract,
                row,
                fence,
                range,
            } => self.fetch(tract, row, fence, range).await,
            Request::SetFence { disk, fence } => self.set_fence(disk, fence).await,
            Request::List {
                disk,
                row,
                after,
                limit,
            } => self.list(disk, row, after, limit).await,
        }
    }
}

/// The fields that writes and trims have in common.
struct Change {
    tract: TractId,
    row: RowVersion,
    generation: Generation,
}

/// For whom a tract is read or written.
#[derive(Clone, Copy)]
enum Asker {
    /// The disk's client, under its fence.
    Client(Fence),
    /// Another replica, which copies for whoever has the disk.
    Node(NodeId),
}

/// A row is its replicas' matter: any other node learns nothing of it, not even who they are.
fn require_member(row: &Row, node: NodeId) -> Result<(), Refusal> {
    match row.replica(node) {
        Some(_) => Ok(()),
        None => Err(Refusal::NotPermitted("this node is not in that row".into())),
    }
}

impl NodeSession {
    fn authenticate(&self, capability: &[u8]) -> Result<Reply, Refusal> {
        let node = &self.node;
        let grant = node
            .authenticator
            .verify(capability, &self.peer, node.env.wall())?;
        let disk = match grant.scope {
            Scope::Disk { disk, .. } => Some(disk),
            Scope::Node(_) => None,
        };
        let mut grants = self.grants.lock().expect("no panic under this lock");
        if grants.len() >= GRANTS_MAX {
            let now = node.env.wall().as_millis();
            grants.retain(|_, grant| now < grant.expires_unix_ms);
        }
        if grants.len() >= GRANTS_MAX && !grants.contains_key(&disk) {
            return Err(Refusal::Busy);
        }
        grants.insert(disk, grant);
        Ok(Reply::Authenticated {
            expires_unix_ms: grant.expires_unix_ms,
        })
    }

    fn grant(&self, disk: Option<DiskId>) -> Result<Grant, Refusal> {
        let grants = self.grants.lock().expect("no panic under this lock");
        let grant = grants.get(&disk).ok_or(Refusal::NotAuthenticated)?;
        if self.node.env.wall().as_millis() >= grant.expires_unix_ms {
            return Err(Refusal::CapabilityExpired);
        }
        Ok(*grant)
    }

    /// The node that calls, if one does.
    fn as_node(&self) -> Option<(Grant, NodeId)> {
        let grant = self.grant(None).ok()?;
        match grant.scope {
            Scope::Node(node) => Some((grant, node)),
            Scope::Disk { .. } => None,
        }
    }

    /// A grant for a disk under a fence.
    fn disk_grant(&self, disk: DiskId, fence: Fence, writes: bool) -> Result<Grant, Refusal> {
        let grant = self.grant(Some(disk))?;
        match grant.scope {
            Scope::Disk {
                fence: granted,
                write,
                ..
            } => {
                if granted != fence {
                    return Err(Refusal::NotPermitted(format!("it is for attach {}", granted.0)));
                }
                if writes && !write {
                    return Err(Refusal::NotPermitted("it is for reading".into()));
                }
                Ok(grant)
            }
            Scope::Node(_) => Err(Refusal::NotAuthenticated),
        }
    }

    /// Holds the disk's fence where it is, if it is the caller's and no `newest` attach is known.
    async fn hold_fence(
        &self,
        disk: DiskId,
        fence: Fence,
        newest: Fence,
    ) -> Result<OwnedRwLockReadGuard<()>, Refusal> {
        let held = self.node.rows.fence_gate(disk).read_owned().await;
        if firn_env::planted!("node.skip_fence") {
            return Ok(held);
        }
        if newest > fence && !firn_env::planted!("node.trusts_its_own_fence") {
            return Err(Refusal::Fenced { current: newest });
        }
        match self.node.store.fence(disk) {
            None => Err(Refusal::NotFenced),
            Some(current) if current > fence => Err(Refusal::Fenced { current }),
            Some(current) if current < fence => Err(Refusal::NotFenced),
            Some(_) => Ok(held),
        }
    }

    async fn enter(
        &self,
        located: Located,
        tract: TractId,
        version: RowVersion,
        asker: Asker,
    ) -> Result<Entered, Refusal> {
        let Located { name, mut owner } = located;
        let mut row = match (self.node.rows.admit(name, version).await, asker) {
            (Err(Refusal::WrongRow { newest }), Asker::Node(node)) => {
                require_member(&newest, node)?;
                return Err(Refusal::WrongRow { newest });
            }
            (admitted, _) => admitted?,
        };
        if let Asker::Node(node) = asker {
            require_member(row.row(), node)?;
        }
        let believes = matches!(asker, Asker::Node(_)) || firn_env::planted!("node.believes_an_old_record");
        if !believes && row.membership_epoch > owner.membership_epochs {
            // The node joined the row since it read whose the disk is, and who took the disk over before that did not tell it.
            let membership_epoch = row.membership_epoch;
            drop(row);
            owner = self.node.rows.owner(tract, membership_epoch).await?;
            row = self.node.rows.admit(name, version).await?;
            if row.membership_epoch > owner.membership_epochs {
                return Err(Refusal::Superseded);
            }
        }
        let replica = row
            .row()
            .replica(self.node.store.node())
            .ok_or_else(|| Refusal::WrongRow {
                newest: row.row().clone(),
            })?;
        let (since, state) = (replica.since, replica.state);
        let held = match asker {
            Asker::Client(fence) => Some(self.hold_fence(tract.disk, fence, owner.fence).await?),
            Asker::Node(_) => None,
        };
        Ok(Entered {
            row,
            place: TractPlace {
                tract,
                replication: name.0,
                row: name.1,
                since,
            },
            state,
            _fence: held,
        })
    }

    async fn write(&self, change: Change, range: BlockRange, blocks: WriteBlocks) -> Result<Reply, Refusal> {
        if let Some(block) = blocks.first_damaged(change.tract, range) {
            return Err(Refusal::DataChecksum { block });
        }
        let puts: Vec<Put> = range
            .blocks()
            .zip(blocks.checksums)
            .enumerate()
            .map(|(at, (block, checksum))| Put {
                block,
                generation: change.generation,
                content: Content::Data {
                    data: blocks.data.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES),
                    checksum,
                },
            })
            .collect();
        self.change(change, &puts, range.bytes()).await?;
        Ok(Reply::Written)
    }

    async fn trim(&self, change: Change, range: BlockRange) -> Result<Reply, Refusal> {
        let puts: Vec<Put> = range
            .blocks()
            .map(|block| Put {
                block,
                generation: change.generation,
                content: Content::Trim,
            })
            .collect();
        self.change(change, &puts, puts.len() * TOMBSTONE_BYTES).await?;
        Ok(Reply::Trimmed)
    }

    async fn change(&self, change: Change, puts: &[Put], bytes: usize) -> Result<(), Refusal> {
        let fence = change.generation.fence;
        let grant = self.disk_grant(change.tract.disk, fence, true)?;
        if change.generation.sequence == 0 {
            return Err(Refusal::Malformed("sequences begin at 1".into()));
        }
        let located = self.node.rows.tract_row(change.tract, Some(grant.tenant)).await?;
        let batch = {
            let _permit = self.node.permit(grant.tenant, bytes).await?;
            let entered = self
                .enter(located, change.tract, change.row, Asker::Client(fence))
                .await?;
            let batch = self.node.put(entered.place, puts).await?;
            drop(entered.row);
            batch
        };
        // Who has more requests waiting than the disk takes loses nothing by waiting for a commit with others, which on a disk with
        // an arm all others pay for.
        let wait_max = self.node.options.commit_wait_max;
        if !wait_max.is_zero() && self.node.queue.has_waiting(grant.tenant) {
            self.node.store.durable_within(batch, wait_max).await;
        } else {
            self.node.store.durable(batch).await;
        }
        Ok(())
    }

    /// Blocks with their generations, from an active replica only.
    async fn fetch(
        &self,
        tract: TractId,
        row: RowVersion,
        fence: Fence,
        range: BlockRange,
    ) -> Result<Reply, Refusal> {
        let (grant, asker) = match self.as_node() {
            Some((grant, node)) => (grant, Asker::Node(node)),
            None => (self.disk_grant(tract.disk, fence, false)?, Asker::Client(fence)),
        };
        let owner = match asker {
            Asker::Client(_) => Some(grant.tenant),
            Asker::Node(_) => None,
        };
        let located = self.node.rows.tract_row(tract, owner).await?;
        let _permit = self.node.permit(grant.tenant, range.bytes()).await?;
        let entered = self.enter(located, tract, row, asker).await?;
        if entered.state != ReplicaState::Active && !firn_env::planted!("node.joining_reads") {
            return Err(Refusal::Joining);
        }
        let found = self
            .node
            .store
            .read(entered.place, range)
            .await
            .map_err(refusal)?;
        Ok(Reply::Fetched(VersionedBlocks {
            range,
            versions: found.versions,
            data: found.data,
        }))
    }

    async fn set_fence(&self, disk: DiskId, fence: Fence) -> Result<Reply, Refusal> {
        let grant = self.disk_grant(disk, fence, false)?;
        let record = self.node.rows.disk(disk, 0).await?;
        if record.tenant != grant.tenant {
            return Err(Refusal::UnknownDisk);
        }
        let Scope::Disk { attach: true, .. } = grant.scope else {
            return Err(Refusal::NotPermitted("it is not for attaching".into()));
        };
        // Who lost the disk must not put a fence up where nobody told of the takeover. Nothing is asked of the table for one
        // who is known to have lost it, or whose fence stands already.
        let mut newest = record.fence();
        if newest <= fence && self.node.store.fence(disk) != Some(fence) {
            newest = self.node.rows.read_disk(disk).await?.0.fence();
        }
        if newest > fence && !firn_env::planted!("node.fences_without_the_table") {
            return Err(Refusal::Fenced { current: newest });
        }
        let gate = self.node.rows.fence_gate(disk);
        // Alone: whatever came in under an older fence is shown before, or refused after.
        let _alone = gate.write().await;
        match self.node.store.fence(disk) {
            Some(current) if current > fence => return Err(Refusal::Fenced { current }),
            Some(_) | None => {}
        }
        if self.node.store.is_read_only() {
            // It would wait for room with the gate held, and reads behind it.
            return Err(refusal(StoreError::ReadOnly));
        }
        self.node.store.set_fence(disk, fence).await;
        Ok(Reply::FenceSet)
    }

    async fn list(
        &self,
        disk: Option<DiskId>,
        row: Option<RowAt>,
        after: Option<TractId>,
        limit: u16,
    ) -> Result<Reply, Refusal> {
        let since = match (disk, row) {
            (Some(disk), None) => {
                self.require_disk(disk).await?;
                None
            }
            (None, Some(at)) => Some(self.require_row(at).await?),
            (Some(_), Some(_)) | (None, None) => {
                return Err(Refusal::Malformed("a disk or a row is listed".into()));
            }
        };
        let limit = usize::from(limit).min(MAX_LIST);
        let mut tracts = Vec::new();
        let mut more = false;
        for place in self.node.store.places() {
            let wanted = disk.is_none_or(|disk| place.tract.disk == disk)
                && after.is_none_or(|after| place.tract > after)
                && row.is_none_or(|at| (at.replication, at.index) == (place.replication, place.row))
                && since.is_none_or(|since| place.since == since);
            if !wanted {
                continue;
            }
            if tracts.len() == limit {
                more = true;
                break;
            }
            tracts.push(place.tract);
        }
        Ok(Reply::List { tracts, more })
    }

    /// The caller is the client of this disk, and nobody has taken it over, as far as is known here.
    async fn require_disk(&self, disk: DiskId) -> Result<(), Refusal> {
        let grant = self.grant(Some(disk))?;
        let Scope::Disk { fence, .. } = grant.scope else {
            return Err(Refusal::NotAuthenticated);
        };
        let record = self.node.rows.disk(disk, 0).await?;
        if record.tenant != grant.tenant {
            return Err(Refusal::UnknownDisk);
        }
        let set = self.node.store.fence(disk).unwrap_or_default();
        match record.fence().max(set) {
            current if current > fence => Err(Refusal::Fenced { current }),
            _ => Ok(()),
        }
    }

    /// The caller is a node that is in this row at this version, and so are we, active; since when we are.
    async fn require_row(&self, at: RowAt) -> Result<RowVersion, Refusal> {
        let (_, asker) = self
            .as_node()
            .ok_or_else(|| Refusal::NotPermitted("rows are for nodes to list".into()))?;
        let known = self
            .node
            .rows
            .reach((at.replication, at.index), at.version)
            .await?;
        require_member(&known, asker)?;
        match known.replica(self.node.store.node()) {
            Some(replica) if known.version == at.version && replica.state == ReplicaState::Active => {
                Ok(replica.since)
            }
            Some(_) | None => Err(Refusal::WrongRow { newest: known }),
        }
    }
}
