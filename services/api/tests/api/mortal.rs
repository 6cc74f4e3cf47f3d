//! Processes that die: each call to the outside is the last one once, before and after it happened.

use crate::harness::{self, Fleet, Service};
use async_trait::async_trait;
use firn_api::{
    App, DiskPlacement, DiskPlan, Machine, NodePlan, NodeProvisioner, PlacementError, Pool, ProvisionError,
    Room,
};
use firn_identity::{DiskId, NodeId, TenantId};
use firn_table::{Applied, Item, ItemKey, Page, Table, TableError, Write};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counts calls to the outside; from the fatal one on, the process counts as dead: nothing it asks for happens.
#[derive(Clone)]
pub struct Life {
    calls: Arc<AtomicU64>,
    /// The fatal call, twice: even numbers die before it happens, odd ones after.
    fatal: u64,
}

impl Life {
    pub fn until(fatal: u64) -> Self {
        Self {
            calls: Arc::new(AtomicU64::new(0)),
            fatal,
        }
    }

    fn begin(&self) -> Option<bool> {
        let call = self.calls.fetch_add(1, Ordering::SeqCst);
        if call > self.fatal / 2 || (call == self.fatal / 2 && self.fatal.is_multiple_of(2)) {
            return None;
        }
        Some(call < self.fatal / 2)
    }

    pub fn is_over(&self) -> bool {
        self.calls.load(Ordering::SeqCst) > self.fatal / 2
    }
}

/// Moments of death that are tried at most: more calls than any work makes.
const MOMENTS_MAX: u64 = 600;

/// Tells a story with a process that dies at its first moment, then with one that dies at its second, and so on, until one lives to
/// its end; gives how many died.
pub async fn killed_at_every_moment(mut story: impl AsyncFnMut(u64, &Life)) -> u64 {
    for moment in 0..MOMENTS_MAX {
        let life = Life::until(moment);
        story(moment, &life).await;
        if !life.is_over() {
            return moment;
        }
    }
    panic!("the work never ends");
}

struct MortalTable {
    table: Arc<dyn Table>,
    life: Life,
}

fn dead() -> TableError {
    TableError::Unavailable("the process was killed".into())
}

impl MortalTable {
    async fn during<T>(&self, work: impl Future<Output = Result<T, TableError>>) -> Result<T, TableError> {
        let survives = self.life.begin().ok_or_else(dead)?;
        let result = work.await;
        if survives { result } else { Err(dead()) }
    }
}

#[async_trait]
impl Table for MortalTable {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        self.during(self.table.get(key)).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        self.during(self.table.query(partition, prefix, after, limit))
            .await
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        self.during(self.table.transact(writes)).await
    }
}

struct MortalFleet {
    fleet: Fleet,
    life: Life,
}

impl MortalFleet {
    async fn during<T>(
        &self,
        work: impl Future<Output = Result<T, PlacementError>>,
    ) -> Result<T, PlacementError> {
        let dead = || PlacementError::Unavailable("the process was killed".into());
        let survives = self.life.begin().ok_or_else(dead)?;
        let result = work.await;
        if survives { result } else { Err(dead()) }
    }
}

#[async_trait]
impl DiskPlacement for MortalFleet {
    async fn create(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        self.during(self.fleet.create(plan)).await
    }

    async fn grow(&self, plan: &DiskPlan) -> Result<(), PlacementError> {
        self.during(self.fleet.grow(plan)).await
    }

    async fn remove(&self, tenant: TenantId, disk: DiskId) -> Result<(), PlacementError> {
        self.during(self.fleet.remove(tenant, disk)).await
    }

    async fn room(&self) -> Result<Room, PlacementError> {
        self.during(self.fleet.room()).await
    }

    async fn may_drain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.during(self.fleet.may_drain(node)).await
    }

    async fn undrain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.during(self.fleet.undrain(node)).await
    }

    async fn drain(&self, node: NodeId) -> Result<(), PlacementError> {
        self.during(self.fleet.drain(node)).await
    }

    async fn is_empty(&self, node: NodeId) -> Result<bool, PlacementError> {
        self.during(self.fleet.is_empty(node)).await
    }

    async fn forget(&self, node: NodeId) -> Result<(), PlacementError> {
        self.during(self.fleet.forget(node)).await
    }
}

struct MortalProvisioner {
    provisioner: Arc<dyn NodeProvisioner>,
    life: Life,
}

impl MortalProvisioner {
    async fn during<T>(
        &self,
        work: impl Future<Output = Result<T, ProvisionError>>,
    ) -> Result<T, ProvisionError> {
        let dead = || ProvisionError::Unavailable("the process was killed".into());
        let survives = self.life.begin().ok_or_else(dead)?;
        let result = work.await;
        if survives { result } else { Err(dead()) }
    }
}

#[async_trait]
impl NodeProvisioner for MortalProvisioner {
    async fn launch(&self, plan: &NodePlan) -> Result<Machine, ProvisionError> {
        self.during(self.provisioner.launch(plan)).await
    }

    async fn machines(&self, tenant: TenantId) -> Result<Vec<Machine>, ProvisionError> {
        self.during(self.provisioner.machines(tenant)).await
    }

    async fn terminate(&self, tenant: TenantId, node: NodeId) -> Result<(), ProvisionError> {
        self.during(self.provisioner.terminate(tenant, node)).await
    }
}

/// A process over the service's table, fleet and pool, which dies when its life is over.
pub fn process(service: &Service, life: &Life) -> App {
    let env = &service.env;
    let table = MortalTable {
        table: service.table.connect(env),
        life: life.clone(),
    };
    let fleet = MortalFleet {
        fleet: service.fleet.clone(),
        life: life.clone(),
    };
    let pool = service.pool.clone().map(|pool| Pool {
        provisioner: Arc::new(MortalProvisioner {
            provisioner: pool.provisioner,
            life: life.clone(),
        }),
        settings: pool.settings,
    });
    harness::app_in(
        env,
        Arc::new(table),
        harness::rego(),
        &service.mail,
        Arc::new(fleet),
        Arc::new(harness::Cloud),
        pool,
    )
}
