//! The budget of an audit: what the store may charge, by a book of prices, and how much of it is spent.

use super::AuditRequest;
use firn_quantity::Money;
use firn_store::{Meter, ProviderPrices, Route, Usage};

pub(super) struct Budget {
    meter: Meter,
    limit: Money,
    prices: ProviderPrices,
    route: Route,
}

impl Budget {
    /// `meter` counts the audit's requests alone.
    pub fn new(meter: Meter, request: &AuditRequest) -> Self {
        Self {
            meter,
            limit: request.budget,
            prices: request.prices.clone(),
            route: request.route,
        }
    }

    /// Whether so much more may be asked for.
    pub fn allows(&self, more: &Usage) -> bool {
        let usage = self.meter.usage().plus(more);
        self.prices.cost(&usage, self.route).total() <= self.limit
    }
}
