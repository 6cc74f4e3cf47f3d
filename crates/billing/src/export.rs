//! Exports: an invoice and its hours as CSV (JSON is what the types serialise to).
//!
//! RFC 4180, CRLF, a header line. Names cannot hold a comma, a quote or a leading sign of a formula; texts of people (a
//! credit's reason) are quoted, and one that a spreadsheet would take for a formula is preceded by an apostrophe.

use crate::{Entries, Hour, Invoice, LineKind, ReporterRole};
use std::{collections::BTreeMap, fmt::Write as _};

fn quoted(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        "'"
    } else {
        ""
    };
    format!("\"{guard}{}\"", text.replace('"', "\"\""))
}

/// An invoice, one line a line, and the total. The amounts of the lines add up to it.
pub fn invoice_csv(invoice: &Invoice) -> String {
    let mut csv = String::from(
        "tenant,month,state,line,meter,tier,quantity,unit,price,per,amount_nanos,amount,currency,text\r\n",
    );
    let head = format!(
        "{},{},{}",
        invoice.tenant,
        invoice.month,
        match invoice.state {
            crate::InvoiceState::Draft => "draft",
            crate::InvoiceState::Final => "final",
        }
    );
    let mut row = |line: &str, fields: &str, amount: crate::Money, text: &str| {
        // Writing to a String cannot fail.
        let _ = write!(
            csv,
            "{head},{line},{fields},{},{amount},{},{}\r\n",
            amount.0,
            invoice.currency,
            quoted(text)
        );
    };
    for line in &invoice.lines {
        match &line.kind {
            LineKind::Usage {
                meter,
                tier,
                quantity,
                price,
            } => {
                let (price, per) = price.map_or(("0.00".into(), "1".into()), |rate| {
                    (rate.amount.to_string(), rate.per.to_string())
                });
                let fields = format!("{meter},{tier},{quantity},{},{price},{per}", meter.unit());
                row("usage", &fields, line.amount, meter.meaning());
            }
            LineKind::Unpriced { meter, quantity } => {
                let fields = format!("{meter},,{quantity},{},,", meter.unit());
                row(
                    "unpriced",
                    &fields,
                    line.amount,
                    "not in the price book: free of charge",
                );
            }
            LineKind::Credit { id, reason } => {
                row("credit", ",,,,,", line.amount, &format!("{id}: {reason}"))
            }
            LineKind::BroughtForward { month } => {
                row(
                    "brought-forward",
                    ",,,,,",
                    line.amount,
                    &format!("left over from {month}"),
                );
            }
        }
    }
    row("total", ",,,,,", invoice.total, "the sum of the lines");
    csv
}

/// Hours, one line for each resource, meter and role: what a bill is checked against by hand.
pub fn hours_csv(hours: &BTreeMap<Hour, Entries>) -> String {
    let mut csv = String::from("hour,resource,meter,unit,standing,quantity,records\r\n");
    for (hour, entries) in hours {
        for (key, totals) in entries {
            let role = match key.role {
                ReporterRole::Observed => "observed",
                ReporterRole::Advisory => "advisory",
            };
            // Writing to a String cannot fail.
            let _ = write!(
                csv,
                "{hour},{},{},{},{role},{},{}\r\n",
                key.resource,
                key.meter,
                key.meter.unit(),
                totals.quantity,
                totals.records
            );
        }
    }
    csv
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_wrote_cannot_become_a_formula_or_another_column() {
        assert_eq!(quoted("=1+1"), "\"'=1+1\"");
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
    }
}
