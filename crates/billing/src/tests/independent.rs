//! Pricing a second time, from the text of the rules and by other arithmetic: what invoices are held against.

use crate::{Invoice, LineKind, PriceBook};
use firn_usage::{Meter, TenantName};
use std::collections::BTreeMap;

/// Charged quantities by tenant and meter.
pub(crate) type Sums = BTreeMap<(TenantName, Meter), u128>;

/// What a month's quantity of a meter costs, in nano-units: each tier's units times its price, each product rounded half up.
pub(crate) fn price(book: &PriceBook, meter: Meter, quantity: u128) -> i128 {
    let Some(entry) = book.meters.get(&meter) else {
        return 0;
    };
    let mut nanos = 0;
    let mut below = u128::from(entry.free);
    for tier in &entry.tiers {
        let above = tier
            .up_to
            .map_or(u128::MAX, |up_to| u128::from(entry.free) + u128::from(up_to));
        let units = quantity.min(above).saturating_sub(below);
        let doubled = 2 * units * u128::try_from(tier.rate.amount.0).unwrap();
        let per = u128::from(tier.rate.per);
        nanos += i128::try_from((doubled + per) / (2 * per)).unwrap();
        below = above;
    }
    nanos
}

/// Checks an invoice's arithmetic by itself and returns its quantities.
pub(crate) fn check_invoice(book: &PriceBook, invoice: &Invoice) -> Result<BTreeMap<Meter, u128>, String> {
    let mut quantities: BTreeMap<Meter, u128> = BTreeMap::new();
    let mut amounts: BTreeMap<Meter, i128> = BTreeMap::new();
    let mut total = 0_i128;
    for line in &invoice.lines {
        total += line.amount.0;
        match &line.kind {
            LineKind::Usage { meter, quantity, .. } | LineKind::Unpriced { meter, quantity } => {
                *quantities.entry(*meter).or_default() += quantity.0;
                *amounts.entry(*meter).or_default() += line.amount.0;
            }
            LineKind::Credit { .. } | LineKind::BroughtForward { .. } => {
                if line.amount.0 >= 0 {
                    return Err(format!("a credit of {}", line.amount));
                }
            }
        }
    }
    if total != invoice.total.0 {
        return Err(format!(
            "the lines add up to {total}, the total is {}",
            invoice.total.0
        ));
    }
    for (meter, quantity) in &quantities {
        let (expected, found) = (price(book, *meter, *quantity), amounts[meter]);
        if expected != found {
            return Err(format!(
                "{quantity} {meter} cost {expected}, the invoice says {found}"
            ));
        }
    }
    Ok(quantities)
}
