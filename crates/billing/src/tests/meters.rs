//! Meters on machines that are not well: clocks that jump, spools that are full, rotten, or come back from an image of yesterday. Nothing
//! is charged twice, and what is not charged is said.

use super::world::{START_MS, calm, observation, source, tenant};
use crate::{Billing, BillingSink, Finding, Hour, LineKind, Month, Reporter};
use firn_env::{
    Env,
    sim::{Limits, Machine, Simulation},
};
use firn_usage::{Delivery, DeliveryPolicy, Meter, Observation, Spool, SpoolConfig, SpoolError};
use std::{sync::Arc, time::Duration};

const YEAR_NANOS: i64 = 365 * 86_400 * 1_000_000_000;

/// A ledger, and a machine whose meter reports to it.
struct Lab {
    env: Env,
    billing: Arc<Billing>,
    machine: Machine,
}

impl Lab {
    fn run<F: Future<Output = ()> + Send + 'static>(seed: u64, test: impl FnOnce(Self) -> F) {
        let limits = Limits {
            time: Duration::from_secs(400 * 86_400),
            ..Limits::default()
        };
        let simulation = Simulation::with_limits(seed, limits);
        let env = simulation.env();
        let lab = Self {
            billing: Arc::new(calm(&env)),
            machine: simulation.machine("node"),
            env,
        };
        simulation.run(test(lab)).unwrap();
    }

    /// The machine's spool, as its meter opens it when it starts.
    async fn open(&self, env: &Env) -> Spool {
        let config = SpoolConfig {
            max_bytes: 8 << 10,
            file_bytes: 2 << 10,
        };
        Spool::open(env, "usage", source("node/1"), config).await.unwrap()
    }

    /// Brings what waits into the hours.
    async fn deliver(&self, spool: &Spool) {
        let reporter = Reporter::service(source("node/1"));
        let sink = Arc::new(BillingSink::new(self.billing.clone(), reporter));
        let mut delivery = Delivery::new(spool, sink, DeliveryPolicy::default());
        delivery.deliver_pending().await.unwrap();
        self.billing.fold_all().await.unwrap();
    }

    /// All that is charged by now, in whatever hour.
    async fn charged(&self) -> u128 {
        let hours = self
            .billing
            .totals(&tenant("acme"), Hour(0), Hour(u32::MAX))
            .await
            .unwrap();
        hours.values().map(|totals| totals.quantity).sum()
    }

    async fn findings(&self) -> Vec<Finding> {
        self.billing.report_gaps().await.unwrap();
        let page = self.billing.audit_events(None, None, 100).await.unwrap();
        page.events.into_iter().map(|event| event.finding).collect()
    }
}

/// What a node's meter appends, by its machine's clock.
fn served(env: &Env, quantity: u64) -> Vec<Observation> {
    let at_ms = u64::try_from(env.wall().as_millis()).unwrap_or(0);
    vec![observation(
        "acme",
        "disk/1",
        Meter::NODE_OPERATIONS,
        quantity,
        at_ms,
    )]
}

#[test]
fn whatever_a_meters_clock_says_all_that_it_counted_is_invoiced_once() {
    clock_jumps(1);
}

#[test]
#[should_panic(expected = "NoBook")]
fn a_past_without_prices_would_keep_every_later_month_open() {
    firn_env::mutants::planting(Some("billing.believes_any_past"), || clock_jumps(1));
}

fn clock_jumps(seed: u64) {
    Lab::run(seed, |lab| async move {
        let env = lab.machine.env();
        let spool = lab.open(&env).await;
        let mut all = 0;
        // A battery that is empty (1970, and before), a time server that is wrong, and then the right time.
        for (number, years) in [0, -60, 70, 20, -29, -1].into_iter().enumerate() {
            lab.machine.jump_wall(years * YEAR_NANOS);
            let quantity = 10_u64.pow(u32::try_from(number).unwrap());
            spool.append(served(&env, quantity)).await.unwrap();
            all += u128::from(quantity);
            lab.env.sleep(Duration::from_secs(600)).await;
            lab.deliver(&spool).await;
            assert_eq!(lab.charged().await, all, "after a jump by {years} years");
        }
        let findings = lab.findings().await;
        assert!(
            findings
                .iter()
                .any(|finding| matches!(finding, Finding::ClockAhead { .. })),
            "{findings:?}"
        );
        // And somebody pays for it, when the month is over.
        lab.env.sleep(Duration::from_secs(40 * 86_400)).await;
        let invoices = lab.billing.close_due(&tenant("acme"), 100).await.unwrap();
        let invoiced: u128 = invoices
            .iter()
            .flat_map(|invoice| &invoice.lines)
            .map(|line| match &line.kind {
                LineKind::Usage { quantity, .. } => quantity.0,
                _ => 0,
            })
            .sum();
        assert_eq!(invoiced, all, "{invoices:?}");
        let january = Month::of_ms(START_MS);
        assert!(
            invoices.iter().any(|invoice| invoice.month == january),
            "{invoices:?}"
        );
    });
}

#[test]
fn a_machine_that_was_restored_is_charged_for_nothing_twice_and_says_what_it_said_before() {
    Lab::run(2, |lab| async move {
        let env = lab.machine.env();
        let spool = lab.open(&env).await;
        for _ in 0..20 {
            spool.append(served(&env, 1)).await.unwrap();
        }
        lab.deliver(&spool).await;
        let yesterday = lab.machine.disk().image();
        for _ in 0..20 {
            spool.append(served(&env, 1)).await.unwrap();
        }
        lab.deliver(&spool).await;
        assert_eq!(lab.charged().await, 40);
        drop(spool);
        lab.machine.crash();
        lab.machine.disk().restore(&yesterday);
        lab.env.sleep(Duration::from_secs(3600)).await;
        let env = lab.machine.restart();
        let spool = lab.open(&env).await;
        // What it has from before the image is sent again, and counts no more.
        lab.deliver(&spool).await;
        assert_eq!(lab.charged().await, 40);
        // Its numbers are those of what was received from it before it was restored: that counts, and the tenant's favour is said.
        let next = spool.status().next_sequence;
        assert!(next <= 41, "{next}");
        for _ in next..=40 {
            spool.append(served(&env, 100)).await.unwrap();
        }
        lab.deliver(&spool).await;
        assert_eq!(lab.charged().await, 40);
        let findings = lab.findings().await;
        assert!(
            findings
                .iter()
                .any(|finding| matches!(finding, Finding::Contradiction { .. })),
            "{findings:?}"
        );
        // Beyond them all counts again.
        spool.append(served(&env, 100)).await.unwrap();
        lab.deliver(&spool).await;
        assert_eq!(lab.charged().await, 140);
    });
}

#[test]
fn a_spool_that_rotted_loses_what_rotted_and_counts_nothing_twice() {
    for seed in 0..40 {
        Lab::run(seed, |lab| async move {
            let env = lab.machine.env();
            let spool = lab.open(&env).await;
            for number in 0..60 {
                spool.append(served(&env, 1)).await.unwrap();
                if number == 30 {
                    lab.deliver(&spool).await;
                }
            }
            drop(spool);
            lab.machine.crash();
            let rotten = lab.machine.disk().rot("usage/", 1);
            let env = lab.machine.restart();
            let config = SpoolConfig::default();
            match Spool::open(&env, "usage", source("node/1"), config).await {
                // Or it says which file is damaged, or, if the byte of its version rotted, that it is of another build; then somebody
                // moves the spool away.
                Err(error) => {
                    let is_said = matches!(error, SpoolError::Damaged { .. } | SpoolError::Newer { .. });
                    assert!(is_said, "{error}");
                    return;
                }
                Ok(spool) => {
                    lab.env.sleep(Duration::from_secs(60)).await;
                    spool.append(served(&env, 1)).await.unwrap();
                    lab.deliver(&spool).await;
                }
            }
            let charged = lab.charged().await;
            assert!((31..=61).contains(&charged), "{charged} after {rotten:?}");
            if charged < 61 {
                lab.env.sleep(Duration::from_secs(3600)).await;
                let findings = lab.findings().await;
                // Lost at the end nobody misses it: the next numbers are given anew.
                assert!(
                    charged >= 31 && findings.len() <= 2,
                    "{charged} after {rotten:?}: {findings:?}"
                );
            }
        });
    }
}

#[test]
fn what_a_full_spool_does_not_take_stays_with_its_meter_and_counts_once_it_is_received_again() {
    Lab::run(3, |lab| async move {
        let env = lab.machine.env();
        let spool = lab.open(&env).await;
        // The ledger is away: the meter adds up what the spool does not take, as a node's does.
        let (mut all, mut waiting) = (0_u128, 0);
        for _ in 0..500 {
            waiting += 1;
            all += 1;
            match spool.append(served(&env, waiting)).await {
                Ok(_) => waiting = 0,
                Err(SpoolError::Full { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(waiting > 100, "it is full: {waiting}");
        lab.env.sleep(Duration::from_secs(60)).await;
        lab.deliver(&spool).await;
        assert_eq!(lab.charged().await, all - u128::from(waiting));
        spool.append(served(&env, waiting)).await.unwrap();
        lab.deliver(&spool).await;
        assert_eq!(lab.charged().await, all);
        assert_eq!(lab.findings().await, [], "no number is missing");
    });
}
