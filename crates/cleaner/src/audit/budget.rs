//! The budget of an audit: what the stores may charge, by their books of prices, and how much of it is spent.

use super::{AuditRequest, second::SecondToAudit};
use firn_quantity::Money;
use firn_store::{Meter, ProviderPrices, Route, Usage};
use std::sync::atomic::{AtomicBool, Ordering};

struct Priced {
    meter: Meter,
    prices: ProviderPrices,
    route: Route,
}

impl Priced {
    fn cost_with(&self, more: &Usage) -> Money {
        let usage = self.meter.usage().plus(more);
        self.prices.cost(&usage, self.route).total()
    }
}

pub(super) struct Budget {
    limit: Money,
    first: Priced,
    second: Option<Priced>,
    was_short: AtomicBool,
}

impl Budget {
    /// The meters count the audit's requests alone.
    pub fn new(first: Meter, second: Option<(Meter, &SecondToAudit)>, request: &AuditRequest) -> Self {
        Self {
            limit: request.budget,
            first: Priced {
                meter: first,
                prices: request.prices.clone(),
                route: request.route,
            },
            second: second.map(|(meter, second)| Priced {
                meter,
                prices: second.prices.clone(),
                route: second.route,
            }),
            was_short: AtomicBool::new(false),
        }
    }

    /// Whether so much more may be asked for, of the first store.
    pub fn allows(&self, more: &Usage) -> bool {
        self.is_enough(self.cost_with(more, &Usage::default()))
    }

    /// Whether so much more may be asked for, of the second.
    pub fn allows_second(&self, more: &Usage) -> bool {
        self.is_enough(self.cost_with(&Usage::default(), more))
    }

    /// Whether something was not allowed since this was asked before.
    pub fn was_short(&self) -> bool {
        self.was_short.swap(false, Ordering::Relaxed)
    }

    fn is_enough(&self, cost: Money) -> bool {
        let is_enough = cost <= self.limit;
        self.was_short.fetch_or(!is_enough, Ordering::Relaxed);
        is_enough
    }

    /// What both charged.
    pub fn cost(&self) -> Money {
        self.cost_with(&Usage::default(), &Usage::default())
    }

    /// What both were asked.
    pub fn usage(&self) -> Usage {
        let second = self.second.as_ref().map(|second| second.meter.usage());
        self.first.meter.usage().plus(&second.unwrap_or_default())
    }

    fn cost_with(&self, first: &Usage, second: &Usage) -> Money {
        let of_second = self.second.as_ref().map(|priced| priced.cost_with(second));
        let (one, other) = (self.first.cost_with(first), of_second.unwrap_or_default());
        Money::of_nanos(one.nanos().saturating_add(other.nanos()))
    }
}
