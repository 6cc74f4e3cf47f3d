//! A bad network between callers and instances of the service: calls go as text, are lost on either way, come twice, come late and out of
//! order, and instances restart and forget what they remembered.

use async_trait::async_trait;
use firn_anchor::{AnchorAnswer, AnchorBackend, AnchorCall, AnchorRole};
use firn_anchor_service::{Admitted, AnchorService};
use firn_env::Env;
use firn_identity::TenantVolume;
use firn_table::{FaultRates, MemoryTable, TableError};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

/// Instances behind one address.
pub const INSTANCES: usize = 2;
/// How late a call may come that its caller gave up.
const LATE_MS: u64 = 3000;

/// The instances, and what the network does to calls.
pub struct Services {
    env: Env,
    table: MemoryTable,
    rates: FaultRates,
    instances: Mutex<Vec<Arc<AnchorService>>>,
    is_bad: AtomicBool,
    is_away: AtomicBool,
    pub restarts: AtomicU64,
    pub lost: AtomicU64,
    pub late: AtomicU64,
    pub doubled: AtomicU64,
}

impl Services {
    /// Instances over `table`, each of which meets faults of the table at these rates. The network is good at first.
    pub fn new(env: &Env, table: &MemoryTable, rates: FaultRates) -> Arc<Self> {
        let services = Self {
            env: env.clone(),
            table: table.clone(),
            rates,
            instances: Mutex::default(),
            is_bad: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            late: AtomicU64::new(0),
            doubled: AtomicU64::new(0),
        };
        for _ in 0..INSTANCES {
            let instance = services.start();
            services.instances.lock().unwrap().push(instance);
        }
        Arc::new(services)
    }

    fn start(&self) -> Arc<AnchorService> {
        let client = self.table.connect(&self.env);
        client.set_rates(self.rates.clone());
        Arc::new(AnchorService::new(client))
    }

    /// From now on the network is as bad as it may be, or good again.
    pub fn be_bad(&self, is_bad: bool) {
        self.is_bad.store(is_bad, Ordering::SeqCst);
    }

    /// Cuts everybody off, or ends that.
    pub fn be_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    /// One instance as it is now.
    pub fn instance(&self, number: usize) -> Arc<AnchorService> {
        self.instances.lock().unwrap()[number].clone()
    }

    fn happens(&self, one_in: u64, counted: &AtomicU64) -> bool {
        let happens = self.is_bad.load(Ordering::SeqCst) && self.env.random_below(one_in) == 0;
        counted.fetch_add(u64::from(happens), Ordering::SeqCst);
        happens
    }

    async fn travel(&self, most_ms: u64) {
        let travels = Duration::from_millis(self.env.random_below(most_ms) + 1);
        self.env.sleep(travels).await;
    }
}

/// Who calls: as what, and of which volume.
#[derive(Clone)]
pub struct Caller {
    services: Arc<Services>,
    volume: TenantVolume,
    role: AnchorRole,
}

impl Caller {
    pub fn new(services: &Arc<Services>, volume: TenantVolume, role: AnchorRole) -> Self {
        let services = services.clone();
        Self {
            services,
            volume,
            role,
        }
    }

    async fn perform(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let drawn = self.services.env.random_below(INSTANCES as u64) as usize;
        let admitted = Admitted {
            volume: self.volume,
            role: self.role,
            principal: firn_anchor::PrincipalId([1; 16]),
            granted: None,
            guards: Vec::new(),
        };
        self.services.instance(drawn).answer(admitted, call).await
    }

    /// Performs a call once more or later, where nobody hears the answer.
    fn perform_unheard(&self, call: AnchorCall, most_ms: u64) {
        let (caller, env) = (self.clone(), self.services.env.clone());
        drop(env.spawn("late call", async move {
            caller.services.travel(most_ms).await;
            let _nobody_hears_it = caller.perform(call).await;
        }));
    }
}

fn as_text<T: Serialize + DeserializeOwned>(value: &T) -> T {
    serde_json::from_str(&serde_json::to_string(value).unwrap()).unwrap()
}

fn lost(what: &str) -> TableError {
    TableError::Unavailable(format!("{what} was lost"))
}

#[async_trait]
impl AnchorBackend for Caller {
    async fn call(&self, call: AnchorCall) -> Result<AnchorAnswer, TableError> {
        let services = &*self.services;
        let call = as_text(&call);
        services.travel(20).await;
        if services.is_away.load(Ordering::SeqCst) {
            return Err(TableError::Unavailable("nobody listens there".into()));
        }
        if services.happens(15, &services.restarts) {
            let drawn = services.env.random_below(INSTANCES as u64) as usize;
            let started = services.start();
            services.instances.lock().unwrap()[drawn] = started;
        }
        if services.happens(20, &services.lost) {
            return Err(lost("the call"));
        }
        if !call.is_read() {
            if services.happens(12, &services.late) {
                self.perform_unheard(call, LATE_MS);
                return Err(lost("the call, for now,"));
            }
            if services.happens(8, &services.doubled) {
                self.perform_unheard(call.clone(), LATE_MS / 10);
            }
        }
        let answer = self.perform(call).await;
        services.travel(20).await;
        if services.happens(12, &services.lost) {
            return Err(lost("the answer"));
        }
        answer.map(|answer| as_text(&answer))
    }
}
