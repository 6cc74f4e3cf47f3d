//! Passes of the fold in virtual time, in requests, units and seconds: `cargo run -p firn-billing --example fold_rate`
//!
//! A thousand tenants whose ledger is spread over 32 shards, on a table that answers after 5 ms. Each tenant commits once a minute: the service makes a batch of
//! usage of it at once, and the tenant's edge reports half a minute later. A pass comes every two seconds. Once more with all that they make in a minute waiting, as after an
//! outage. One request at a time, and as many as the fold has in flight; requests and units are DynamoDB's, by its list prices.

use firn_billing::{Billing, Hour, Reporter};
use firn_env::{
    Env,
    sim::{Limits, Simulation},
};
use firn_table::{FaultRates, MemoryTable, Metered, TablePrices, TableUsage};
use firn_usage::{Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const TENANTS: u64 = 1000;
const PASSES_A_MINUTE: u64 = 30;
/// An edge reports so many passes after its commit.
const REPORT_PASSES: u64 = 15;
const PASSES_A_MONTH: u64 = 30 * 24 * 3600 / 2;
/// 5 ms for a request and its answer.
const EACH_WAY: Duration = Duration::from_micros(2500);
/// 2026-01-01T00:00:00Z, when simulations begin.
const START_MS: u64 = 1_767_225_600_000;
const FOLD_TRANSACTIONS: usize = 64;

/// A ledger with what was reported to it.
struct World {
    env: Env,
    billing: Billing,
    metered: Arc<Metered>,
    sequences: BTreeMap<(&'static str, u64), u64>,
    reported: u64,
}

/// What passes took.
struct Taken {
    passes: u64,
    records: u64,
    seconds: f64,
    usage: TableUsage,
}

impl World {
    async fn report(&mut self, kind: &'static str, tenant: u64) {
        let sequence = self.sequences.entry((kind, tenant)).or_insert(0);
        *sequence += 1;
        let source = SourceId::new(&format!("{kind}/{tenant}")).expect("a name");
        let observation = Observation {
            tenant: TenantName::new(&format!("tenant-{tenant}")).expect("a name"),
            resource: ResourceName::new(&format!("volume/{tenant}")).expect("a name"),
            meter: Meter::ROOT_COMMITS,
            quantity: 1,
            from_ms: START_MS + self.env.now().0 / 1_000_000,
            duration_ms: 0,
        };
        let batch = UsageBatch::new(source.clone(), Incarnation(1), *sequence, vec![observation]);
        let reporter = Reporter::service(source);
        self.billing
            .accept(&reporter, &batch.expect("a batch"))
            .await
            .expect("received");
        self.reported += 1;
    }

    /// What is reported between two passes, the `pass`th and the one before.
    async fn a_pass_later(&mut self, pass: u64) {
        let of = |pass: u64| {
            let minute = pass % PASSES_A_MINUTE;
            TENANTS * minute / PASSES_A_MINUTE..TENANTS * (minute + 1) / PASSES_A_MINUTE
        };
        for tenant in of(pass) {
            self.report("volume", tenant).await;
        }
        for tenant in of(pass + PASSES_A_MINUTE - REPORT_PASSES) {
            self.report("edge", tenant).await;
        }
    }

    async fn fold(&self, passes: u64, transactions: usize) -> Taken {
        let (before, began) = (self.metered.usage(), self.env.now());
        let records = self.billing.fold(transactions).await.expect("folded");
        let now = self.metered.usage();
        Taken {
            passes,
            records,
            seconds: (self.env.now().0 - began.0) as f64 / 1e9,
            usage: TableUsage {
                gets: now.gets - before.gets,
                queries: now.queries - before.queries,
                transactions: now.transactions - before.transactions,
                condition_failures: now.condition_failures - before.condition_failures,
                unavailable: now.unavailable - before.unavailable,
                read_units: now.read_units - before.read_units,
                write_units: now.write_units - before.write_units,
                nano_dollars: now.nano_dollars - before.nano_dollars,
            },
        }
    }
}

impl Taken {
    fn and(self, other: Self) -> Self {
        let (one, two) = (self.usage, other.usage);
        Self {
            passes: self.passes + other.passes,
            records: self.records + other.records,
            seconds: self.seconds + other.seconds,
            usage: TableUsage {
                gets: one.gets + two.gets,
                queries: one.queries + two.queries,
                transactions: one.transactions + two.transactions,
                condition_failures: one.condition_failures + two.condition_failures,
                unavailable: one.unavailable + two.unavailable,
                read_units: one.read_units + two.read_units,
                write_units: one.write_units + two.write_units,
                nano_dollars: one.nano_dollars + two.nano_dollars,
            },
        }
    }

    fn row(&self, what: &str, side_by_side: usize) {
        let each = |count: u64| count as f64 / self.passes as f64;
        let usage = &self.usage;
        println!(
            "| {what} | {side_by_side} | {:.0} | {:.2} | {:.2} | {:.0} | {:.1} | {:.0} | {:.0} | {:.2} |",
            each(self.records),
            self.passes as f64 / self.seconds,
            self.seconds / self.passes as f64,
            each(usage.requests()),
            each(usage.transactions),
            each(usage.write_units),
            each(usage.read_units),
            each(usage.nano_dollars) * PASSES_A_MONTH as f64 / 1e9,
        );
        assert_eq!(usage.condition_failures, 0, "it met itself");
    }
}

async fn measure(env: Env, side_by_side: usize) {
    let client = MemoryTable::new().connect(&env);
    let metered = Arc::new(Metered::new(client.clone(), TablePrices::DYNAMODB_ON_DEMAND));
    let mut world = World {
        billing: Billing::new(&env, metered.clone())
            .spread(true)
            .fold_side_by_side(side_by_side),
        env,
        metered,
        sequences: BTreeMap::new(),
        reported: 0,
    };
    world.env.sleep(Duration::from_secs(60)).await;
    // A minute in which every stream and every tenant moves to its shard.
    for pass in 0..PASSES_A_MINUTE {
        world.a_pass_later(pass).await;
    }
    world.billing.fold_all().await.expect("folded");
    let calm = FaultRates::default();
    let far = FaultRates {
        delay: EACH_WAY..=EACH_WAY,
        ..FaultRates::default()
    };
    let mut taken: Option<Taken> = None;
    for pass in 0..PASSES_A_MINUTE {
        client.set_rates(calm.clone());
        world.a_pass_later(pass).await;
        client.set_rates(far.clone());
        let step = world.fold(1, FOLD_TRANSACTIONS).await;
        taken = Some(match taken {
            None => step,
            Some(before) => before.and(step),
        });
    }
    taken.expect("there was a pass").row(
        "a minute of passes, each with what came in two seconds",
        side_by_side,
    );
    client.set_rates(calm.clone());
    for pass in 0..PASSES_A_MINUTE {
        world.a_pass_later(pass).await;
    }
    client.set_rates(far);
    world
        .fold(1, usize::MAX)
        .await
        .row("one pass with what came in a minute", side_by_side);
    client.set_rates(calm);
    let mut counted = 0;
    for tenant in 0..TENANTS {
        let tenant = TenantName::new(&format!("tenant-{tenant}")).expect("a name");
        let totals = world
            .billing
            .totals(&tenant, Hour(0), Hour(u32::MAX))
            .await
            .expect("totals");
        counted += totals.values().map(|totals| totals.records).sum::<u64>();
    }
    assert_eq!(counted, world.reported, "each record counts once");
}

fn main() {
    println!(
        "| | requests in flight | records a pass | passes a second | seconds a pass | requests a pass | transactions a pass | units written a pass | units read a pass | dollars a month, a pass every two seconds |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for side_by_side in [1, 2, 4, 8, 16] {
        let limits = Limits {
            time: Duration::from_secs(86_400),
            steps: 100_000_000,
        };
        let simulation = Simulation::with_limits(1, limits);
        let env = simulation.env();
        simulation.run(measure(env, side_by_side)).expect("it ends");
    }
}
