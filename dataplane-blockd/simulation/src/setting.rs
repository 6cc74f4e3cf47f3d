//! A disk on a cluster of its own, for what is measured or counted and not left to chance.

use crate::cluster::{Cluster, Host, Size, TENANT, access, placement, replica_options, whole};
use firn_blockd_client::{
    Attachable, AttachedDisk, DiskSettings, Mode, ReplicaOptions, Shape, attach, key_check, tracts_for,
};
use firn_blockd_disk::FlushPolicy;
use firn_blockd_node::{DiskModel, Geometry};
use firn_blockd_placement::NewDisk;
use firn_blockd_protocol::{DiskId, Replication, TenantId};
use firn_env::{Env, sim::Machine};
use firn_table::MemoryTable;
use std::{sync::Arc, time::Duration};

/// Of every disk.
pub(crate) const KEY: [u8; 32] = [6; 32];
/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 4096;
/// Every node's disk: the parameters of the Blizzard paper's disks as far as it gives them.
pub const MODEL: &str = "seek=8ms,bw=128MB/s";
/// Tracts that a node has room for.
pub(crate) const NODE_TRACTS: u32 = 40;
/// Blocks of writes of 4 KiB to 1 MiB, most of them small: 55 KiB on average. The paper takes its sizes from studies of virtual desktops, which it
/// does not print; this is our guess at them.
pub(crate) const MIXED: &[u64] = &[
    1, 1, 2, 1, 4, 1, 8, 1, 2, 16, 1, 1, 4, 32, 1, 2, 1, 1, 64, 1, 2, 4, 1, 8, 1, 1, 16, 1, 2, 1, 1, 256,
];

/// A disk on a cluster of its own.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The cluster.
    pub nodes: usize,
    /// Of what, if not of nothing that takes time, each node's disk is made ([`DiskModel`]).
    pub model: Option<&'static str>,
    /// Tracts that a node has room for.
    pub node_tracts: u32,
    /// How often each block is kept.
    pub copies: u8,
    /// How the disk is attached.
    pub mode: Mode,
    /// When its flushes are answered.
    pub flush: FlushPolicy,
    /// Tracts of a segment, unless it is a log.
    pub segment_tracts: u32,
    /// Blocks of 4 KiB.
    pub blocks: u64,
}

impl Setting {
    /// The cluster's part of it.
    pub(crate) fn size(&self) -> Result<Size, String> {
        let model = self.model.map(str::parse::<DiskModel>).transpose();
        Ok(Size {
            rows: [256; 3],
            geometry: Geometry {
                groups: 1,
                home_frames: self.node_tracts,
                scratch_frames: self.node_tracts.div_ceil(8),
                journal_bytes: 4 << 20,
            },
            model: model.map_err(|error| error.to_string())?,
            heartbeat: Duration::from_secs(10),
            drop_after: Size::SMALL.drop_after,
            steps: u64::MAX,
        })
    }

    /// The mode and when flushes are answered, for a table.
    pub fn name(&self) -> String {
        match self.flush {
            FlushPolicy::Durable => format!("{}, durable", self.mode),
            FlushPolicy::Ordered { .. } => format!("{}, ordered", self.mode),
        }
    }

    /// Creates a disk of a tenant's when the rows are built.
    pub(crate) async fn create(
        &self,
        env: &Env,
        table: &MemoryTable,
        (tenant, name): (TenantId, &str),
    ) -> Result<DiskId, String> {
        self.create_in_blocks(env, table, (tenant, name), BLOCK_BYTES as u32)
            .await
    }

    /// As [`Setting::create`]; a log has blocks of so many bytes.
    async fn create_in_blocks(
        &self,
        env: &Env,
        table: &MemoryTable,
        (tenant, name): (TenantId, &str),
        log_block_bytes: u32,
    ) -> Result<DiskId, String> {
        let placement = placement(env, table);
        let replication = Replication::new(self.copies).ok_or("one to three copies")?;
        if !whole(env, &placement, replication).await {
            return Err("the rows are never built".into());
        }
        let shape = match self.mode {
            Mode::Log => Shape::Log {
                block_bytes: log_block_bytes,
                physical_blocks: Shape::physical_for(self.blocks * BLOCK_BYTES / u64::from(log_block_bytes)),
            },
            Mode::WriteThrough | Mode::WriteBack | Mode::FlushEpoch => Shape::in_place(self.segment_tracts),
        };
        let settings =
            DiskSettings::new(shape, self.mode, Some(key_check(&KEY))).map_err(|error| error.to_string())?;
        let size_bytes = self.blocks * BLOCK_BYTES;
        let new = NewDisk {
            tenant,
            name: name.to_owned(),
            size_bytes,
            tracts: Some(tracts_for(&settings, size_bytes).map_err(|error| error.to_string())?),
            replication,
            settings: settings.to_text(),
        };
        for _ in 0..600 {
            if let Ok(record) = placement.create_disk(new.clone()).await {
                return Ok(record.disk);
            }
            env.sleep(Duration::from_millis(500)).await;
        }
        Err("there is never room for the disk".into())
    }

    /// Attaches the disk, whoever has it.
    ///
    /// # Errors
    /// If it cannot be.
    pub async fn attach(&self, env: &Env, table: &MemoryTable, disk: DiskId) -> Result<AttachedDisk, String> {
        attach(env, &placement(env, table), &access(env), self.attachable(disk))
            .await
            .map_err(|error| error.to_string())
    }

    /// How it is attached.
    pub fn attachable(&self, disk: DiskId) -> Attachable {
        Attachable {
            flush: self.flush,
            force: true,
            replicas: ReplicaOptions {
                deadline_after: Duration::from_secs(600),
                ..replica_options()
            },
            ..Attachable::new(disk, KEY, "figures")
        }
    }

    /// Runs `work` with the disk on a client's machine.
    ///
    /// # Errors
    /// What `work` says, or why there is no disk to work with.
    pub fn run<T, F>(&self, seed: u64, work: impl FnOnce(Client) -> F + Send + 'static) -> Result<T, String>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        self.run_in_blocks(seed, BLOCK_BYTES as u32, work)
    }

    /// As [`Setting::run`]; a log has blocks of so many bytes.
    ///
    /// # Errors
    /// The same.
    pub fn run_in_blocks<T, F>(
        &self,
        seed: u64,
        log_block_bytes: u32,
        work: impl FnOnce(Client) -> F + Send + 'static,
    ) -> Result<T, String>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, String>> + Send + 'static,
    {
        let cluster = Arc::new(Cluster::new(seed, self.nodes, self.size()?)?);
        // A data centre's round trip.
        cluster.simulation.set_network_latency(Duration::from_micros(200));
        let (setting, machine) = (*self, cluster.simulation.machine("client"));
        let (env, table) = (cluster.simulation.env(), cluster.table.clone());
        let (hosts, whole_cluster) = (cluster.hosts.clone(), cluster.clone());
        let measured = cluster.simulation.run(async move {
            let owner = (TENANT, "disk");
            let disk = setting
                .create_in_blocks(&env, &table, owner, log_block_bytes)
                .await?;
            let attached = setting.attach(&machine.env(), &table, disk).await?;
            work(Client {
                machine,
                cluster: whole_cluster,
                hosts,
                table,
                disk,
                attached,
            })
            .await
        });
        measured.map_err(|error| error.to_string())?
    }
}

/// The disk's user.
pub struct Client {
    /// Where it runs.
    pub machine: Machine,
    /// Where it is, with its network.
    pub cluster: Arc<Cluster>,
    /// The cluster's nodes.
    pub hosts: Vec<Host>,
    /// The cluster's.
    pub table: MemoryTable,
    /// Which disk.
    pub disk: DiskId,
    /// The disk, attached.
    pub attached: AttachedDisk,
}
