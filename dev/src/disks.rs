//! Disks, from the API's sagas to NBD: each disk that is placed is attached here and offered under its identifier on one
//! socket. What a customer's machine would do with `firn-blockd attach`, this process does by itself.

use crate::{blocks, layout::Layout};
use anyhow::{Context as _, Result};
use async_trait::async_trait;
use firn_api::{DiskPlacement, DiskPlan, Fleet, MasterSecret, PlacementError, Room};
use firn_blockd::Secret;
use firn_blockd_client::{Access, AttachFailed, Attachable, AttachedDisk, attach};
use firn_blockd_nbd::{AnyAlignment, BlockDevice, Export, Exports, Limits, Server};
use firn_blockd_placement::{DiskState, Placement, PlacementError as ClusterError};
use firn_env::{Env, Task};
use firn_identity::{DiskId, NodeId, TenantId};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tokio::sync::Mutex;

/// How long NBD clients have to leave when a disk goes.
const GRACE: Duration = Duration::from_secs(2);
/// Capabilities are renewed long before.
const CAPABILITY_SECONDS: u64 = 3600;

/// See the module. The owner of `attached` is whoever holds its lock; it is held over attaching, so that a disk is attached once.
pub struct Hosts {
    env: Env,
    layout: Layout,
    placement: Placement,
    fleet: Fleet,
    access: Access,
    exports: Arc<Exports>,
    server: Server,
    attached: Mutex<BTreeMap<DiskId, AttachedDisk>>,
    /// Attaches what was there at the start.
    attaching: std::sync::Mutex<Option<Task<()>>>,
}

impl Hosts {
    /// Listens; disks that are there are attached in the background, which must not keep a start waiting.
    pub async fn start(
        env: &Env,
        layout: &Layout,
        master: &MasterSecret,
        placement: &Placement,
    ) -> Result<Arc<Self>> {
        let exports = Arc::new(Exports::new());
        let server = Server::new(env.clone(), exports.clone(), None, Limits::default());
        let address = format!("unix:{}", layout.text("disks.sock"));
        server.listen(&address).await.context(address)?;
        let access = blocks::operator(env, master)?
            .client(CAPABILITY_SECONDS)
            .map_err(|failure| anyhow::anyhow!("{failure}"))?;
        let hosts = Arc::new(Self {
            env: env.clone(),
            layout: layout.clone(),
            placement: placement.clone(),
            fleet: Fleet::new(placement.clone()),
            access,
            exports,
            server,
            attached: Mutex::new(BTreeMap::new()),
            attaching: std::sync::Mutex::new(None),
        });
        let known = hosts.clone();
        let attaching = env.spawn("attach disks", async move {
            if let Err(error) = known.attach_all().await {
                tracing::error!(%error, "disks that were there are not attached");
            }
        });
        *hosts.attaching.lock().expect("no panic under this lock") = Some(attaching);
        Ok(hosts)
    }

    async fn attach_all(&self) -> Result<(), ClusterError> {
        for record in self.placement.disks(None).await? {
            if record.state == DiskState::Ready
                && let Err(error) = self.attach(record.disk).await
            {
                tracing::error!(disk = %record.disk, %error, "not attached");
            }
        }
        Ok(())
    }

    /// Attaches a disk and offers it, unless it is.
    async fn attach(&self, disk: DiskId) -> Result<(), PlacementError> {
        let mut attached = self.attached.lock().await;
        if attached.contains_key(&disk) {
            return Ok(());
        }
        let path = self.layout.path(&format!("disk-keys/{disk}"));
        let key = if path.exists() {
            Secret::read(&path)
        } else {
            Secret::create(&self.env, &path)
        };
        let key = key.map_err(|failure| PlacementError::Unavailable(failure.to_string()))?;
        let wanted = Attachable {
            // Whoever had it was an earlier process on this directory, which the lock shows to be gone.
            force: true,
            ..Attachable::new(disk, *key.expose(), "firn-dev")
        };
        let unavailable = |error: AttachFailed| PlacementError::Unavailable(error.to_string());
        let opened = attach(&self.env, &self.placement, &self.access, wanted)
            .await
            .map_err(unavailable)?;
        let device: Arc<dyn BlockDevice> = Arc::new(AnyAlignment::new(opened.disk.clone()));
        self.exports
            .insert(&disk.to_string(), Export::new(device, "a Firn disk"));
        attached.insert(disk, opened);
        Ok(())
    }

    /// Gives every disk back, with everything durable.
    pub async fn stop(&self) {
        // What is attached half is taken by the next start.
        if let Some(attaching) = self.attaching.lock().expect("no panic under this lock").take() {
            attaching.abort();
        }
        self.server.stop(GRACE).await;
        for (disk, attached) in std::mem::take(&mut *self.attached.lock().await) {
            if let Err(error) = attached.detach().await {
                tracing::warn!(%disk, %error, "not given back; the next start reconciles it");
            }
        }
    }
}

#[async_trait]
impl DiskPlacement for Hosts {
    fn cluster(&self) -> Option<&Placement> {
        self.fleet.cluster()
    }

    async fn create(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        self.fleet.create(plan).await?;
        self.attach(plan.disk).await
    }

    async fn grow(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        self.fleet.grow(plan).await?;
        if let Some(attached) = self.attached.lock().await.get_mut(&plan.disk) {
            attached
                .grow(plan.size_bytes)
                .await
                .map_err(|error| PlacementError::Unavailable(error.to_string()))?;
        }
        Ok(())
    }

    async fn remove(&self, tenant: TenantId, disk: DiskId) -> Result<(), PlacementError> {
        self.exports.remove(&disk.to_string());
        if let Some(attached) = self.attached.lock().await.remove(&disk)
            && let Err(error) = attached.detach().await
        {
            tracing::warn!(%disk, %error, "not given back before its removal");
        }
        self.fleet.remove(tenant, disk).await
    }

    async fn room(&self) -> Result<Room, PlacementError> {
        self.fleet.room().await
    }

    async fn may_drain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.fleet.may_drain(node).await
    }

    async fn drain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.fleet.drain(node).await
    }

    async fn undrain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.fleet.undrain(node).await
    }

    async fn is_empty(&self, node: NodeId) -> Result<bool, PlacementError> {
        self.fleet.is_empty(node).await
    }

    async fn forget(&self, node: NodeId) -> Result<(), PlacementError> {
        self.fleet.forget(node).await
    }
}
