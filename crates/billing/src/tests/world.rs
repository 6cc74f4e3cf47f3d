//! One table, two API machines that crash, and senders whose requests are lost, doubled and overtaken.

use crate::{Billing, BillingError, Receipt, Reporter};
use firn_env::{Env, sim::Machine};
use firn_table::{FaultRates, MemoryTable};
use firn_usage::{Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch};
use futures::future::select;
use std::{
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

/// 2026-01-01T00:00:00Z, when simulations begin.
pub(super) const START_MS: u64 = 1_767_225_600_000;
pub(super) const DAY_MS: u64 = 86_400_000;

pub(super) fn tenant(name: &str) -> TenantName {
    TenantName::new(name).unwrap()
}

pub(super) fn source(name: &str) -> SourceId {
    SourceId::new(name).unwrap()
}

pub(super) fn resource(name: &str) -> ResourceName {
    ResourceName::new(name).unwrap()
}

pub(super) fn observation(who: &str, what: &str, meter: Meter, quantity: u64, from_ms: u64) -> Observation {
    Observation {
        tenant: tenant(who),
        resource: resource(what),
        meter,
        quantity,
        from_ms,
        duration_ms: 0,
    }
}

pub(super) fn batch(from: &str, life: u64, first: u64, observations: Vec<Observation>) -> UsageBatch {
    UsageBatch::new(source(from), Incarnation(life), first, observations).unwrap()
}

/// Billing on a table without trouble.
pub(super) fn calm(env: &Env) -> Billing {
    Billing::new(env, MemoryTable::new().connect(env))
}

/// What runs on a machine.
type Process = (Env, Arc<Billing>);

/// Passes of all sizes, some of which are dropped where they are.
async fn fold_on_and_on(env: Env, billing: Arc<Billing>) {
    loop {
        let transactions = [usize::MAX, usize::MAX, 1, 3][env.random_below(4) as usize];
        let pass = pin!(billing.fold(transactions));
        // What a failed or dropped pass left is taken by the next.
        if env.random_below(4) == 0 {
            let moment = env.sleep(Duration::from_micros(env.random_below(12_000)));
            select(pass, pin!(moment)).await;
        } else {
            let _ = pass.await;
        }
        env.sleep(Duration::from_millis(20)).await;
    }
}

/// An API process on a machine that may be down.
#[derive(Clone)]
pub(super) struct Api {
    pub(super) machine: Machine,
    table: MemoryTable,
    rates: FaultRates,
    running: Arc<Mutex<Option<Process>>>,
}

impl Api {
    pub(super) fn start(machine: Machine, table: &MemoryTable, rates: FaultRates) -> Self {
        let api = Self {
            table: table.clone(),
            rates,
            running: Arc::default(),
            machine,
        };
        api.boot(api.machine.env());
        api
    }

    fn boot(&self, env: Env) {
        let client = self.table.connect(&env);
        client.set_rates(self.rates.clone());
        // Instances that spread the ledger beside those that do not yet, or no longer.
        let spreads = env.random_below(2) == 0;
        let side_by_side = [1, 2, 8][env.random_below(3) as usize];
        let billing = Billing::new(&env, client)
            .spread(spreads)
            .fold_side_by_side(side_by_side);
        let billing = Arc::new(billing);
        *self.running.lock().unwrap() = Some((env.clone(), billing.clone()));
        // Two passes at once in one process, now and then.
        for _ in 0..=env.random_below(2) {
            env.clone()
                .spawn("fold", fold_on_and_on(env.clone(), billing.clone()));
        }
    }

    pub(super) fn crash(&self) {
        *self.running.lock().unwrap() = None;
        self.machine.crash();
    }

    pub(super) fn restart(&self) {
        self.boot(self.machine.restart());
    }

    /// A request to this process; unavailable if it is down, or dies before it answers.
    pub(super) async fn call<T, F>(
        &self,
        request: impl FnOnce(Arc<Billing>) -> F + Send + 'static,
    ) -> Result<T, BillingError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, BillingError>> + Send + 'static,
    {
        let gone = || BillingError::Unavailable("the process is gone".into());
        let (env, billing) = self.running.lock().unwrap().clone().ok_or_else(gone)?;
        let answer = env.spawn("request", async move { request(billing).await });
        answer.await.map_err(|_| gone())?
    }

    pub(super) async fn accept(
        &self,
        reporter: &Reporter,
        batch: &UsageBatch,
    ) -> Result<Receipt, BillingError> {
        let (reporter, batch) = (reporter.clone(), batch.clone());
        self.call(move |billing| async move { billing.accept(&reporter, &batch).await })
            .await
    }
}
