//! Billing commands: usage, cost and its explanation, invoices, budgets.

use super::{Context, shared_costs};
use crate::{
    arguments::{Budget, Invoice, InvoiceFormat, OfMonth},
    failure::Failure,
    money::{Grouped, exact},
    names::Names,
    screen::field,
    session::Session,
};
use reqwest::Method;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Lines of one kind on the screen of `firn cost`.
const TOP: usize = 6;
/// What is billed and has a name.
const BILLED: [&str; 4] = ["volumes", "edges", "disks", "nodes"];

/// The month that was asked for, or the service's current one: its calendar is the one that bills.
async fn month(session: &Session, wanted: Option<String>) -> Result<String, Failure> {
    match wanted {
        Some(month) => Ok(month),
        None => Ok(field(&session.get("forecast").await?.body, "month")),
    }
}

pub async fn usage(context: &Context, wanted: OfMonth) -> Result<(), Failure> {
    let session = context.session().await?;
    let month = month(&session, wanted.month).await?;
    let hours = session.list(&format!("usage/{month}")).await?;
    let names = Names::of(&session, context.screen, &BILLED).await?;
    context.screen.show(&Value::Array(hours), |hours| {
        let mut sums: BTreeMap<[String; 4], u128> = BTreeMap::new();
        let entries = hours
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|hour| hour["entries"].as_array())
            .flatten();
        for entry in entries {
            let key = ["resource", "meter", "standing", "unit"].map(|name| field(entry, name));
            let quantity: u128 = field(entry, "quantity").parse().unwrap_or(0);
            let sum = sums.entry(key).or_default();
            *sum = sum.saturating_add(quantity);
        }
        let rows: Vec<Vec<String>> = sums
            .into_iter()
            .map(|([resource, meter, role, unit], sum)| {
                vec![
                    names.get(&resource),
                    meter,
                    Grouped(&sum.to_string()).to_string(),
                    unit,
                    role,
                ]
            })
            .collect();
        context
            .screen
            .table(&["resource", "meter", "quantity", "unit", "role"], &[2], &rows)
    })
}

/// One screen: the sum, where it comes from, what would lower it, where the month is going.
pub async fn cost(context: &Context, wanted: OfMonth) -> Result<(), Failure> {
    let session = context.session().await?;
    let forecast = session.get("forecast").await?.body;
    let month = wanted.month.unwrap_or_else(|| field(&forecast, "month"));
    let costs = session.get(&format!("costs/{month}")).await?.body;
    let budget = session.get("budget").await?.body;
    let is_current = field(&forecast, "month") == month;
    let shared = shared_costs::fetch(&session, &month).await?;
    let shown = json!({
        "costs": costs,
        "forecast": if is_current { forecast } else { Value::Null },
        "budget": budget,
        "shared": shared,
    });
    let names = Names::of(&session, context.screen, &BILLED).await?;
    context.screen.show(&shown, |shown| page(context, shown, &names))
}

fn page(context: &Context, shown: &Value, names: &Names) -> String {
    let costs = &shown["costs"];
    let currency = field(costs, "currency");
    let mut text = context.screen.strong(&format!(
        "{}: {} {currency}",
        field(costs, "month"),
        exact(&field(costs, "total_nanos"))
    ));
    if !shown["forecast"].is_null() {
        text.push_str(&format!(
            " so far, about {} {currency} at the end of the month",
            rounded(&field(shown, "forecast.forecast_nanos"))
        ));
    }
    text.push('\n');
    if let Some(cap) = shown["budget"]["hard_cap_nano_dollars"].as_u64() {
        let state = if shown["forecast"]["capped"] == true {
            "REACHED: nothing new is provisioned, edges and disks refuse new writes; reads and deletes go on (firn budget raise)"
        } else {
            "not reached"
        };
        text.push_str(&format!(
            "hard cap {} {currency}: {state}\n",
            exact(&cap.to_string())
        ));
    }
    let amount = |item: &Value| exact(&field(item, "amount_nanos"));
    let quantity = |item: &Value| Grouped(&field(item, "quantity")).to_string();
    let listed = |name: &str| costs[name].as_array().map(Vec::as_slice).unwrap_or_default();
    let meters = listed("meters");
    text.push_str("\nBy what\n");
    let rows: Vec<_> = meters
        .iter()
        .take(TOP)
        .map(|item| {
            vec![
                field(item, "meter"),
                quantity(item),
                field(item, "unit"),
                amount(item),
            ]
        })
        .collect();
    text.push_str(
        &context
            .screen
            .table(&["meter", "quantity", "unit", "amount"], &[1, 3], &rows),
    );
    text.push_str("\nBy whom\n");
    let rows: Vec<_> = listed("resources")
        .iter()
        .take(TOP)
        .map(|item| {
            vec![
                names.get(&field(item, "resource")),
                field(item, "meter"),
                quantity(item),
                amount(item),
            ]
        })
        .collect();
    text.push_str(
        &context
            .screen
            .table(&["resource", "meter", "quantity", "amount"], &[2, 3], &rows),
    );
    text.push_str(&shared_costs::page(context, &shown["shared"], names));
    let advice = listed("advice");
    if !advice.is_empty() {
        text.push_str("\nWhat would lower it\n");
        for item in advice.iter().take(TOP) {
            text.push_str(&format!(
                "  {}  {}\n",
                exact(&field(item, "saves_nanos")),
                names.in_text(&field(item, "what"))
            ));
        }
    }
    text
}

/// A forecast is no exact amount: to the hundredth, upwards.
fn rounded(nanos: &str) -> String {
    let cents = nanos
        .parse::<i128>()
        .map_or(0, |nanos| (nanos + 9_999_999) / 10_000_000);
    format!("{}.{:02}", cents / 100, cents % 100)
}

pub async fn invoice(context: &Context, command: Invoice) -> Result<(), Failure> {
    let session = context.session().await?;
    match command {
        Invoice::List => {
            let invoices = session.list("invoices").await?;
            context.screen.show(&Value::Array(invoices), |invoices| {
                let row = |invoice: &Value| {
                    let total = exact(&field(invoice, "total_nanos"));
                    vec![
                        field(invoice, "month"),
                        field(invoice, "state"),
                        total,
                        field(invoice, "currency"),
                    ]
                };
                let rows: Vec<_> = invoices.as_array().into_iter().flatten().map(row).collect();
                context
                    .screen
                    .table(&["month", "state", "total", "currency"], &[2], &rows)
            })
        }
        Invoice::Show(wanted) => {
            let month = month(&session, wanted.month).await?;
            let invoice = session.get(&format!("invoices/{month}")).await?.body;
            context.screen.show(&invoice, |invoice| lines(context, invoice))
        }
        Invoice::Export {
            month: wanted,
            format,
        } => {
            let month = month(&session, wanted.month).await?;
            let text = match format {
                InvoiceFormat::Csv => session.get(&format!("invoices/{month}/csv")).await?.text,
                InvoiceFormat::Json => session.get(&format!("invoices/{month}")).await?.text + "\n",
            };
            context.screen.print(&text)
        }
    }
}

fn lines(context: &Context, invoice: &Value) -> String {
    let row = |line: &Value| {
        let price = match field(line, "price_nanos") {
            nanos if nanos.is_empty() => String::new(),
            nanos => format!("{} / {}", exact(&nanos), Grouped(&field(line, "price_per"))),
        };
        let what = match field(line, "meter") {
            meter if meter.is_empty() => field(line, "text"),
            meter => meter,
        };
        let quantity = Grouped(&field(line, "quantity")).to_string();
        vec![
            field(line, "kind"),
            what,
            field(line, "tier"),
            quantity,
            price,
            exact(&field(line, "amount_nanos")),
        ]
    };
    let mut rows: Vec<_> = invoice["lines"]
        .as_array()
        .into_iter()
        .flatten()
        .map(row)
        .collect();
    let total = exact(&field(invoice, "total_nanos"));
    rows.push(
        ["total", "", "", "", ""]
            .map(str::to_owned)
            .into_iter()
            .chain([total])
            .collect(),
    );
    format!(
        "{} invoice of {} in {}, prices {} of {}\n\n{}",
        field(invoice, "state"),
        field(invoice, "month"),
        field(invoice, "currency"),
        field(invoice, "book"),
        field(invoice, "book_effective"),
        context.screen.table(
            &["line", "what", "tier", "quantity", "price", "amount"],
            &[2, 3, 4, 5],
            &rows
        )
    )
}

pub async fn budget(context: &Context, command: Budget) -> Result<(), Failure> {
    let session = context.session().await?;
    let budget = match command {
        Budget::Show => session.get("budget").await?.body,
        Budget::Raise { hard_cap } => raise(&session, hard_cap.0).await?,
        Budget::Set { alert, hard_cap } => {
            let mut body = Map::new();
            for (name, amount) in [("alert_nano_dollars", alert), ("hard_cap_nano_dollars", hard_cap)] {
                if let Some(amount) = amount {
                    body.insert(name.into(), amount.0.into());
                }
            }
            session
                .call(Method::PUT, "budget", Some(&Value::Object(body)), None)
                .await?
                .body
        }
    };
    context.screen.show(&budget, |budget| {
        let line = |name: &str, member: &str| match budget[member].as_u64() {
            Some(nanos) => format!("{name}  {} a month\n", exact(&nanos.to_string())),
            None => format!("{name}  none\n"),
        };
        line("alert   ", "alert_nano_dollars") + &line("hard cap", "hard_cap_nano_dollars")
    })
}

/// Sets a higher hard cap and leaves the alert. A lower one is set, not raised: that it is refused keeps slips of the hand from closing
/// what is open.
async fn raise(session: &Session, hard_cap_nanos: u64) -> Result<Value, Failure> {
    let mut budget = session.get("budget").await?.body;
    let before = budget["hard_cap_nano_dollars"].as_u64();
    match before {
        None => {
            return Err(
                Failure::usage("there is no hard cap to raise").next("firn budget set --hard-cap sets one")
            );
        }
        Some(before) if before >= hard_cap_nanos => {
            return Err(
                Failure::usage(format!("the hard cap is {} already", exact(&before.to_string())))
                    .next("firn budget set --hard-cap lowers it"),
            );
        }
        Some(_) => {}
    }
    budget["hard_cap_nano_dollars"] = hard_cap_nanos.into();
    Ok(session
        .call(Method::PUT, "budget", Some(&budget), None)
        .await?
        .body)
}
