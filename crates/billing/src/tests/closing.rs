//! Invoices, credits, books, budgets and explanations by example.

use super::{
    independent::check_invoice,
    world::{START_MS, batch, calm, observation, resource, source, tenant},
};
use crate::{
    Billing, BillingError, Budget, Credit, Finding, InvoiceState, LineKind, Money, Month, Operation,
    PriceBook, Reporter, decide, hours_csv, invoice_csv,
};
use firn_env::{
    Env,
    sim::{Limits, Simulation},
};
use firn_table::{Fault, MemoryTable};
use firn_usage::{Meter, Observation};
use std::time::Duration;

fn world<T: Send + 'static, F: Future<Output = T> + Send + 'static>(test: impl FnOnce(Env) -> F) -> T {
    let limits = Limits {
        time: Duration::from_secs(400 * 86_400),
        ..Limits::default()
    };
    let simulation = Simulation::with_limits(1, limits);
    simulation.run(test(simulation.env())).unwrap()
}

async fn days(env: &Env, count: u64) {
    env.sleep(Duration::from_secs(count * 86_400)).await;
}

fn month(number: u32) -> Month {
    Month::new(2026, number).unwrap()
}

async fn observe(billing: &Billing, life: u64, observations: Vec<Observation>) {
    let api = Reporter::service(source("api/1"));
    billing
        .accept(&api, &batch("api/1", life, 1, observations))
        .await
        .unwrap();
    billing.fold_all().await.unwrap();
}

fn commits(quantity: u64, from_ms: u64) -> Observation {
    observation("acme", "volume/1", Meter::ROOT_COMMITS, quantity, from_ms)
}

#[test]
fn a_bill_by_hand() {
    world(|env| async move {
        days(&env, 10).await;
        let billing = calm(&env);
        let acme = tenant("acme");
        observe(
            &billing,
            1,
            vec![
                commits(12_100_000, START_MS),
                commits(1, START_MS + 3_600_000),
                observation("acme", "disk/1", Meter::DISK_BYTE_HOURS, 100 << 30, START_MS),
                observation("acme", "disk/1", Meter(4000), 5, START_MS),
            ],
        )
        .await;
        let draft = billing.invoice(&acme, month(1)).await.unwrap();
        assert_eq!(draft.state, InvoiceState::Draft);
        let lines: Vec<_> = draft
            .lines
            .iter()
            .map(|line| match &line.kind {
                LineKind::Usage {
                    meter,
                    tier,
                    quantity,
                    ..
                } => format!("{meter} {tier} {quantity} {}", line.amount),
                LineKind::Unpriced { meter, quantity } => {
                    format!("{meter} unpriced {quantity} {}", line.amount)
                }
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            lines,
            [
                // 100,000 are free, 10,000,000 cost 5.00 a million, the other 2,000,001 cost 4.00 a million.
                "root-commits 0 100000 0.00",
                "root-commits 1 10000000 50.00",
                "root-commits 2 2000001 8.000004",
                // 100 GiB for one of 730 hours at 0.08: 0.01095890410958…, rounded to the nano.
                "disk-byte-hours 1 107374182400 0.010958904",
                "meter-4000 unpriced 5 0.00",
            ]
        );
        assert_eq!(draft.total.to_string(), "58.010962904");
        check_invoice(&PriceBook::standard(), &draft).unwrap();
        let csv = invoice_csv(&draft);
        assert!(csv.contains(
            "acme,2026-01,draft,usage,root-commits,2,2000001,commits,4.00,1000000,8000004000,8.000004,USD,"
        ));
        assert!(csv.lines().last().unwrap().contains("58010962904"));
        let hours = billing
            .hours(&acme, month(1).first_hour(), month(2).first_hour())
            .await
            .unwrap();
        let csv = hours_csv(&hours);
        assert!(
            csv.contains("2026-01-01T00,volume/1,root-commits,commits,observed,12100000,1\r\n"),
            "{csv}"
        );
        let json = serde_json::to_string(&draft).unwrap();
        assert_eq!(serde_json::from_str::<crate::Invoice>(&json).unwrap(), draft);
    });
}

#[test]
fn a_closed_month_never_changes_and_what_comes_late_is_charged_in_the_next() {
    world(|env| async move {
        let billing = calm(&env);
        let acme = tenant("acme");
        days(&env, 20).await;
        observe(&billing, 1, vec![commits(1_100_000, START_MS)]).await;
        assert!(matches!(
            billing.close_month(&acme, month(1)).await,
            Err(BillingError::NotOver { .. })
        ));
        days(&env, 13).await;
        let closed = billing.close_month(&acme, month(1)).await.unwrap();
        assert_eq!(
            (closed.state, closed.total.to_string()),
            (InvoiceState::Final, "5.00".into())
        );
        observe(
            &billing,
            2,
            vec![commits(1_100_000, START_MS + 1), commits(1, START_MS + 2)],
        )
        .await;
        assert_eq!(billing.invoice(&acme, month(1)).await.unwrap(), closed);
        assert_eq!(billing.close_month(&acme, month(1)).await.unwrap(), closed);
        let next = billing.invoice(&acme, month(2)).await.unwrap();
        assert_eq!(next.total.to_string(), "5.000005");
        let page = billing.audit_events(Some(&acme), None, 10).await.unwrap();
        assert!(matches!(page.events[0].finding, Finding::Late { records: 2, .. }));
        assert!(billing.invoices(&acme, None, 10).await.unwrap() == [closed]);
    });
}

#[test]
fn a_credit_is_a_line_once_and_what_it_leaves_over_comes_forward() {
    world(|env| async move {
        let billing = calm(&env);
        let acme = tenant("acme");
        days(&env, 5).await;
        observe(&billing, 1, vec![commits(1_100_000, START_MS)]).await;
        let credit = Credit {
            id: resource("outage-1"),
            amount: Money::parse("7.25").unwrap(),
            reason: "=outage, of \"January\"".into(),
            granted_by: "support".into(),
        };
        for _ in 0..3 {
            assert_eq!(billing.grant_credit(&acme, &credit).await.unwrap(), month(1));
        }
        let other = Credit {
            amount: Money(1),
            ..credit.clone()
        };
        assert!(matches!(
            billing.grant_credit(&acme, &other).await,
            Err(BillingError::Conflict(_))
        ));
        for amount in [0, -1] {
            let wrong = Credit {
                id: resource("x"),
                amount: Money(amount),
                ..credit.clone()
            };
            assert!(matches!(
                billing.grant_credit(&acme, &wrong).await,
                Err(BillingError::Invalid(_))
            ));
        }
        days(&env, 28).await;
        let january = billing.close_month(&acme, month(1)).await.unwrap();
        assert_eq!(
            (january.total.to_string(), january.due()),
            ("-2.25".into(), Money::ZERO)
        );
        assert!(invoice_csv(&january).contains("\"outage-1: =outage, of \"\"January\"\"\""));
        observe(&billing, 2, vec![commits(1_100_000, START_MS + 33 * 86_400_000)]).await;
        let february = billing.invoice(&acme, month(2)).await.unwrap();
        assert_eq!(
            february.lines[0].kind,
            LineKind::BroughtForward { month: month(1) }
        );
        assert_eq!(february.total.to_string(), "2.75");
    });
}

#[test]
fn prices_change_with_a_month_that_has_not_begun_and_never_for_one_that_has() {
    world(|env| async move {
        let billing = calm(&env);
        let acme = tenant("acme");
        days(&env, 5).await;
        let mut dearer = PriceBook::standard();
        for price in dearer.meters.values_mut() {
            for tier in &mut price.tiers {
                tier.rate.amount = Money(tier.rate.amount.0 * 2);
            }
        }
        dearer.effective = month(1);
        assert!(matches!(
            billing.publish_book(&dearer).await,
            Err(BillingError::BookExists { .. })
        ));
        dearer.effective = month(2);
        billing.publish_book(&dearer).await.unwrap();
        billing.publish_book(&dearer).await.unwrap();
        let other = PriceBook {
            title: "other".into(),
            ..dearer.clone()
        };
        assert!(matches!(
            billing.publish_book(&other).await,
            Err(BillingError::BookExists { .. })
        ));
        let francs = PriceBook {
            currency: "CHF".into(),
            effective: month(3),
            ..dearer.clone()
        };
        assert!(matches!(
            billing.publish_book(&francs).await,
            Err(BillingError::Invalid(_))
        ));
        days(&env, 40).await;
        let late = PriceBook {
            effective: month(2),
            title: "late".into(),
            ..dearer.clone()
        };
        assert!(billing.publish_book(&late).await.is_err());
        observe(
            &billing,
            1,
            vec![
                commits(1_100_000, START_MS),
                commits(1_100_000, START_MS + 40 * 86_400_000),
            ],
        )
        .await;
        assert_eq!(
            billing.invoice(&acme, month(1)).await.unwrap().total.to_string(),
            "5.00"
        );
        let february = billing.invoice(&acme, month(2)).await.unwrap();
        assert_eq!(
            (february.total.to_string(), february.book_effective),
            ("10.00".into(), month(2))
        );

        let special = PriceBook {
            name: "special".into(),
            ..PriceBook::standard()
        };
        billing.publish_book(&special).await.unwrap();
        assert!(matches!(
            billing.assign_book(&acme, "nothing", month(4)).await,
            Err(BillingError::Unknown(_))
        ));
        billing.assign_book(&acme, "special", month(3)).await.unwrap();
        let refused = billing.assign_book(&acme, "firn-standard", month(2)).await;
        assert!(
            matches!(refused, Err(BillingError::BookTooEarly { .. })),
            "{refused:?}"
        );
        assert_eq!(billing.invoice(&acme, month(3)).await.unwrap().book, "special");
        assert_eq!(
            billing.invoice(&acme, month(2)).await.unwrap().book,
            "firn-standard"
        );
    });
}

#[test]
fn budgets_alert_once_and_a_hard_cap_refuses_new_work_and_nothing_else() {
    world(|env| async move {
        let billing = calm(&env);
        let acme = tenant("acme");
        env.sleep(Duration::from_secs(10 * 86_400 - 3600)).await;
        let budget = Budget {
            id: resource("monthly"),
            amount: Money::parse("10").unwrap(),
            thresholds: vec![50, 80, 100],
            hard_cap: true,
        };
        billing.set_budget(&acme, &budget).await.unwrap();
        for thresholds in [vec![80, 50], vec![0], vec![2000]] {
            let wrong = Budget {
                thresholds,
                ..budget.clone()
            };
            assert!(billing.set_budget(&acme, &wrong).await.is_err());
        }
        observe(&billing, 1, vec![commits(1_700_000, START_MS)]).await;
        let state = billing.check_budgets(&acme).await.unwrap();
        // 8.00 after 10 of 31 days: 5,270,000 commits are to be expected, of which 5,170,000 cost.
        assert_eq!(
            (
                state.spending.spent.to_string(),
                state.spending.forecast.to_string()
            ),
            ("8.00".into(), "25.85".into())
        );
        let raised: Vec<_> = state.raised.iter().map(|alert| alert.threshold).collect();
        assert_eq!(raised, [50, 80]);
        assert!(
            Operation::ALL
                .iter()
                .all(|operation| decide(&state, *operation).is_ok())
        );

        observe(&billing, 2, vec![commits(400_000, START_MS)]).await;
        let state = billing.check_budgets(&acme).await.unwrap();
        assert_eq!(state.raised.len(), 1);
        let refused: Vec<_> = Operation::ALL
            .into_iter()
            .filter(|operation| decide(&state, *operation).is_err())
            .collect();
        assert_eq!(refused, [Operation::Write, Operation::Provision]);
        let words = decide(&state, Operation::Write).unwrap_err().to_string();
        assert!(
            words.contains("monthly") && words.contains("10.00") && words.contains("kept"),
            "{words}"
        );
        assert_eq!(billing.check_budgets(&acme).await.unwrap().raised, []);
        assert_eq!(billing.alerts(&acme, month(1)).await.unwrap().len(), 3);

        let raised = Budget {
            amount: Money::parse("100").unwrap(),
            ..budget.clone()
        };
        billing.set_budget(&acme, &raised).await.unwrap();
        assert_eq!(billing.check_budgets(&acme).await.unwrap().reached_cap, None);
        billing.set_budget(&acme, &budget).await.unwrap();
        days(&env, 25).await;
        assert_eq!(
            billing.check_budgets(&acme).await.unwrap().reached_cap,
            None,
            "a new month"
        );
        billing.remove_budget(&acme, &budget.id).await.unwrap();
        billing.remove_budget(&acme, &budget.id).await.unwrap();
        assert_eq!(billing.budgets(&acme).await.unwrap(), []);
    });
}

#[test]
fn an_edge_that_hides_nine_tenths_of_its_work_or_falls_silent_is_an_audit_event() {
    world(|env| async move {
        let billing = calm(&env);
        let acme = tenant("acme");
        days(&env, 2).await;
        let hour = |number: u64| START_MS + 86_400_000 + number * 3_600_000;
        let observed: Vec<_> = (0..10)
            .flat_map(|number| {
                ["volume/1", "volume/2", "volume/3"]
                    .map(|volume| observation("acme", volume, Meter::ROOT_COMMITS, 100, hour(number)))
            })
            .collect();
        observe(&billing, 1, observed).await;
        let edge = Reporter::edge(source("edge/1"), acme.clone());
        let said: Vec<_> = (0..10)
            .flat_map(|number| {
                [("volume/1", 10), ("volume/2", 100)].map(|(volume, count)| {
                    observation("acme", volume, Meter::ROOT_COMMITS, count, hour(number))
                })
            })
            .collect();
        billing.accept(&edge, &batch("edge/1", 1, 1, said)).await.unwrap();
        billing.fold_all().await.unwrap();
        for _ in 0..2 {
            let findings = billing.reconcile(&acme, 24).await.unwrap();
            assert_eq!(findings.len(), 2, "{findings:?}");
            assert!(
                matches!(&findings[0], Finding::UnderReported { resource: found, observed, reported, .. }
                if *found == resource("volume/1") && observed == "1000" && reported == "100")
            );
            assert!(
                matches!(&findings[1], Finding::Silent { resource: found, .. } if *found == resource("volume/3"))
            );
        }
        assert_eq!(
            billing
                .audit_events(Some(&acme), None, 10)
                .await
                .unwrap()
                .events
                .len(),
            2
        );
        // What it hid is charged all the same.
        let invoice = billing.invoice(&acme, month(1)).await.unwrap();
        assert_eq!(
            check_invoice(&PriceBook::standard(), &invoice).unwrap()[&Meter::ROOT_COMMITS],
            3000
        );
    });
}

#[test]
fn an_explanation_adds_up_and_its_advice_is_priced() {
    world(|env| async move {
        let billing = calm(&env);
        let acme = tenant("acme");
        days(&env, 3).await;
        let mut observed = vec![
            observation("acme", "disk/1", Meter::DISK_BYTE_HOURS, 1 << 50, START_MS),
            observation("acme", "disk/2", Meter::DISK_BYTE_HOURS, 1 << 49, START_MS),
            observation("acme", "disk/2", Meter::NODE_OPERATIONS, 5_000_000, START_MS),
        ];
        for number in 0..7 {
            let volume = format!("volume/{number}");
            observed.push(observation(
                "acme",
                &volume,
                Meter::ROOT_COMMITS,
                100_000 + number,
                START_MS,
            ));
        }
        observe(&billing, 1, observed).await;
        let explanation = billing.explain(&acme, month(1)).await.unwrap();
        let invoice = billing.invoice(&acme, month(1)).await.unwrap();
        assert_eq!(explanation.total, invoice.total);
        let shares = Money::sum(explanation.shares.iter().map(|share| share.amount)).unwrap();
        assert_eq!(shares, invoice.total, "shares add up to the nano");
        assert_eq!(explanation.meters[0].0, Meter::DISK_BYTE_HOURS);
        assert_eq!(explanation.shares[0].resource, resource("disk/1"));
        let advice: Vec<_> = explanation
            .advice
            .iter()
            .map(|advice| (advice.meter, advice.saves))
            .collect();
        assert_eq!(advice[0].0, Meter::DISK_BYTE_HOURS);
        assert_eq!(explanation.advice[0].resources, [resource("disk/1")]);
        // 600,021 were charged; at 120 an hour all of it is within the free ones.
        assert_eq!(
            advice[1],
            (Meter::ROOT_COMMITS, Money::parse("3.000105").unwrap())
        );
    });
}

/// A fold whose transaction is still on its way when a month is closed; says what is wrong with the bill afterwards.
pub(super) fn late_fold() -> Result<(), String> {
    world(|env| async move {
        let table = MemoryTable::new();
        let client = table.connect(&env);
        let folding = Billing::new(&env, client.clone());
        let acme = tenant("acme");
        days(&env, 20).await;
        let api = Reporter::service(source("api/1"));
        let some = batch("api/1", 1, 1, vec![commits(1_100_000, START_MS)]);
        folding.accept(&api, &some).await.unwrap();
        days(&env, 13).await;
        // Whether there are shards, the marker, the chunk, the tenant, the hour; then the transaction; then nothing any more.
        client.script([Fault::None; 5]);
        client.script([Fault::Late { requests: 1_000_000 }, Fault::Throttle]);
        assert!(folding.fold(1).await.is_err());
        let closing = Billing::new(&env, table.connect(&env));
        let close = |head: &mut crate::tenant::TenantHead, _| {
            head.closed.push(month(1));
            Ok(())
        };
        closing.change_tenant(&acme, close).await.unwrap();
        let invoice = closing.invoice(&acme, month(1)).await.unwrap();
        table.settle();
        closing.fold_all().await.unwrap();
        let hours = (crate::Hour(0), month(2).first_hour());
        let totals = closing.totals(&acme, hours.0, hours.1).await.unwrap();
        let next = closing.invoice(&acme, month(2)).await.unwrap();
        match (invoice.records, totals.len(), next.records) {
            (0, 0, 1) => Ok(()),
            found => Err(format!(
                "records of the invoice, resources of its hours, records of the next: {found:?}"
            )),
        }
    })
}

#[test]
fn a_fold_that_lands_after_a_month_was_closed_adds_nothing_to_it() {
    assert_eq!(late_fold(), Ok(()));
}
