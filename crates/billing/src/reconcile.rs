//! Reconciliation: what an edge says against what the service saw.
//!
//! Some things are counted at both ends: a root commit is made by the edge and seen by the anchor. An edge that hides its work
//! cannot hide that one, since the commit is how its work becomes durable for its own customer. So for each volume the two
//! counts of a window are compared:
//!
//! | service saw         | edge reported             | finding        |
//! |---------------------|---------------------------|----------------|
//! | at least the minimum| nothing                   | silent         |
//! | at least the minimum| less than 9 tenths        | under-reported |
//! | any                 | more than 11 tenths       | over-reported  |
//!
//! Nothing is charged by it: the service charges what it saw. A finding says that an edge is broken, cut off from the API, or
//! lying, and its other counts, which nobody else sees, are worth as much.
//!
//! What a grantee did of a volume (`volume/V/by/…`) is compared with nothing: its edge reports to another tenant's ledger.
//!
//! Reports take time: a window ends [`REPORT_LAG`] before now. An edge that was cut off for longer and then delivered its spool
//! leaves a finding behind that the next look at the same window does not repeat.

use crate::{
    AuditEvent, Billing, BillingError, Entries, EntryKey, Finding, Hour, ReporterRole, audit::printed,
};
use firn_usage::{Meter, ResourceName, TenantName};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Fewer commits than this in a window are not compared: the hours of a commit at the two ends may differ by one.
pub const MINIMUM_OBSERVED: u128 = 20;
/// What is younger may still be in a spool.
pub const REPORT_LAG: Duration = Duration::from_secs(2 * 3600);

/// Meters that both ends count.
const COMPARED: [Meter; 1] = [Meter::ROOT_COMMITS];

/// Compares the sums of one window.
pub fn reconcile(totals: &Entries, from: Hour, until: Hour) -> Vec<Finding> {
    let mut findings = Vec::new();
    let resources: BTreeSet<&ResourceName> = totals.keys().map(|key| &key.resource).collect();
    let sum = |resource: &ResourceName, meter, role| {
        let key = EntryKey {
            resource: resource.clone(),
            meter,
            role,
        };
        totals.get(&key).map_or(0, |totals| totals.quantity)
    };
    for resource in resources {
        if matches!(resource.volume(), Some((_, Some(_)))) {
            continue;
        }
        for meter in COMPARED {
            let observed = sum(resource, meter, ReporterRole::Observed);
            let reported = sum(resource, meter, ReporterRole::Advisory);
            if observed.max(reported) < MINIMUM_OBSERVED {
                continue;
            }
            let (resource, from, until) = (resource.clone(), printed(from), printed(until));
            let (saw, said) = (observed.to_string(), reported.to_string());
            if reported == 0 {
                findings.push(Finding::Silent {
                    resource,
                    meter,
                    observed: saw,
                    from,
                    until,
                });
            } else if is_below(reported, observed) {
                findings.push(Finding::UnderReported {
                    resource,
                    meter,
                    observed: saw,
                    reported: said,
                    from,
                    until,
                });
            } else if is_below(observed, reported) {
                findings.push(Finding::OverReported {
                    resource,
                    meter,
                    observed: saw,
                    reported: said,
                    from,
                    until,
                });
            }
        }
    }
    findings
}

/// Whether `less` is below nine tenths of `more` (for the other direction: `more` above eleven tenths, nearly).
fn is_below(less: u128, more: u128) -> bool {
    // Overflow only beyond 10^37 units, where any answer will do.
    less.saturating_mul(10) < more.saturating_mul(9)
}

impl Billing {
    /// Compares a tenant's window of `hours` whole hours that ends [`REPORT_LAG`] before now, stores what it finds as audit
    /// events, and returns it.
    ///
    /// # Errors
    /// [`BillingError`]; repeat it.
    pub async fn reconcile(&self, tenant: &TenantName, hours: u32) -> Result<Vec<Finding>, BillingError> {
        let lag_ms = u64::try_from(REPORT_LAG.as_millis()).unwrap_or(u64::MAX);
        let until = Hour::of_ms(self.now_ms().saturating_sub(lag_ms));
        self.reconcile_between(tenant, Hour(until.0.saturating_sub(hours)), until)
            .await
    }

    /// Compares a tenant's window from `from` to before `until`, stores what it finds as audit events, and returns it. The
    /// same window gives the same events, which are stored once.
    ///
    /// # Errors
    /// [`BillingError`]; repeat it.
    pub async fn reconcile_between(
        &self,
        tenant: &TenantName,
        from: Hour,
        until: Hour,
    ) -> Result<Vec<Finding>, BillingError> {
        let totals = self.totals(tenant, from, until).await?;
        let findings = reconcile(&totals, from, until);
        let events = findings.iter().map(|finding| AuditEvent {
            tenant: Some(tenant.clone()),
            at_ms: until.start_ms(),
            finding: finding.clone(),
        });
        self.record_events(events.collect()).await?;
        Ok(findings)
    }

    /// The advisory and observed sums of a window side by side, for whoever looks into a finding.
    ///
    /// # Errors
    /// [`BillingError`].
    pub async fn side_by_side(
        &self,
        tenant: &TenantName,
        from: Hour,
        until: Hour,
    ) -> Result<BTreeMap<(ResourceName, Meter), (u128, u128)>, BillingError> {
        let mut sides: BTreeMap<(ResourceName, Meter), (u128, u128)> = BTreeMap::new();
        for (key, totals) in self.totals(tenant, from, until).await? {
            let sides = sides.entry((key.resource, key.meter)).or_default();
            match key.role {
                ReporterRole::Observed => sides.0 = totals.quantity,
                ReporterRole::Advisory => sides.1 = totals.quantity,
            }
        }
        Ok(sides)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Totals;

    fn window(observed: u128, reported: u128) -> Vec<&'static str> {
        let mut totals = Entries::new();
        for (role, quantity) in [
            (ReporterRole::Observed, observed),
            (ReporterRole::Advisory, reported),
        ] {
            let key = EntryKey {
                resource: ResourceName::new("volume/1").unwrap(),
                meter: Meter::ROOT_COMMITS,
                role,
            };
            totals.insert(key, Totals { quantity, records: 1 });
        }
        let name = |finding: Finding| match finding {
            Finding::Silent { .. } => "silent",
            Finding::UnderReported { .. } => "under",
            Finding::OverReported { .. } => "over",
            other => panic!("{other:?}"),
        };
        reconcile(&totals, Hour(0), Hour(24))
            .into_iter()
            .map(name)
            .collect()
    }

    #[test]
    fn an_edge_that_reports_a_tenth_of_its_work_is_found_and_an_honest_one_is_not() {
        assert_eq!(window(1000, 100), ["under"]);
        assert_eq!(window(1000, 899), ["under"]);
        assert_eq!(window(1000, 900), [""; 0]);
        assert_eq!(window(1000, 1000), [""; 0]);
        assert_eq!(window(1000, 1112), ["over"]);
        assert_eq!(window(1000, 0), ["silent"]);
        assert_eq!(window(20, 0), ["silent"]);
        assert_eq!(window(19, 0), [""; 0]);
        assert_eq!(window(0, 500), ["over"]);
        assert_eq!(window(u128::MAX, u128::MAX), [""; 0]);
    }
}
