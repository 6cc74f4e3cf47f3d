//! Bills: invoices, what they are made of, what the month will cost, and why.

use super::LimitsRecord;
use crate::{
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    types::{
        BudgetAlert, BudgetAlerts, Costs, Credit, Credits, Forecast, Invoice, Listing, PriceBookDocument,
        PriceBookVersions,
    },
};
use axum::http::{Method, StatusCode};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use firn_billing::{BillingError, Month};
use firn_usage::TenantName;

/// What cursors of invoices begin with.
const CURSOR: &str = "invoice/";

/// A refusal of the ledger as a problem.
pub(crate) fn refused(error: BillingError) -> Problem {
    let text = error.to_string();
    match error {
        BillingError::Unavailable(_) => Problem::new(Code::StorageUnavailable, text),
        BillingError::Unknown(_) | BillingError::NoBook { .. } => Problem::new(Code::NotFound, text),
        BillingError::Batch(_) | BillingError::NotYourSource { .. } => Problem::field("batch", text),
        BillingError::Book(_) | BillingError::Invalid(_) => Problem::new(Code::InvalidField, text),
        BillingError::Conflict(_) => Problem::new(Code::NameTaken, text),
        BillingError::TooManyGaps { .. }
        | BillingError::BookExists { .. }
        | BillingError::BookTooEarly { .. }
        | BillingError::NotOver { .. }
        | BillingError::Closed(_) => Problem::new(Code::WrongState, text),
        BillingError::Table(_) | BillingError::Item { .. } | BillingError::Overflow(_) => {
            Problem::internal(text)
        }
    }
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    const INVOICES: &str = "/v1/tenants/{tenant}/invoices";
    vec![
        Endpoint::new(
            Method::GET,
            INVOICES,
            "listInvoices",
            "Lists final invoices, oldest first",
            list,
        )
        .lists::<Invoice>(),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/invoices/{month}",
            "getInvoice",
            "Shows a month's invoice: the final one, or a draft of what is owed so far",
            get_invoice,
        )
        .gives::<Invoice>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/invoices/{month}/csv",
            "exportInvoice",
            "Gives a month's invoice as CSV",
            export,
        )
        .gives_csv(),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/forecast",
            "getForecast",
            "Shows what the current month costs so far and probably will",
            forecast,
        )
        .gives::<Forecast>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/costs/{month}",
            "explainCosts",
            "Explains a month's charges: what cost most, what would lower them",
            costs,
        )
        .gives::<Costs>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/prices/{month}",
            "getPrices",
            "Shows the prices that hold for the tenant in a month",
            prices,
        )
        .gives::<PriceBookDocument>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/credits",
            "listCredits",
            "Lists credits",
            credits,
        )
        .gives::<Credits>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/tenants/{tenant}/alerts/{month}",
            "listAlerts",
            "Lists the thresholds of the budget that were reached in a month",
            alerts,
        )
        .gives::<BudgetAlerts>(StatusCode::OK),
        Endpoint::new(
            Method::GET,
            "/v1/price-books/{book}",
            "getPriceBook",
            "Shows all published versions of a price book",
            price_book,
        )
        .gives::<PriceBookVersions>(StatusCode::OK),
    ]
}

fn tenant(call: &Call) -> Result<TenantName, Problem> {
    Ok(TenantName::from(call.context()?.tenant()))
}

async fn list(call: Call) -> Result<Reply, Problem> {
    let (limit, cursor) = call.page(CURSOR)?;
    let after = cursor
        .map(|cursor| {
            let month = cursor
                .strip_prefix(CURSOR)
                .and_then(|month| month.parse::<Month>().ok());
            month.ok_or_else(|| Problem::new(Code::MalformedParameter, "cursor: it is of another list"))
        })
        .transpose()?;
    let mut invoices = call
        .app
        .billing()
        .invoices(&tenant(&call)?, after, limit + 1)
        .await
        .map_err(refused)?;
    let more = invoices.len() > limit;
    invoices.truncate(limit);
    let last = invoices.last().filter(|_| more);
    let listing = Listing {
        next_cursor: last.map(|invoice| URL_SAFE_NO_PAD.encode(format!("{CURSOR}{}", invoice.month))),
        items: invoices.iter().map(Invoice::from).collect::<Vec<_>>(),
    };
    Ok(Reply::json(StatusCode::OK, &listing))
}

async fn ledger_invoice(call: &Call) -> Result<firn_billing::Invoice, Problem> {
    let month: Month = call.param("month")?;
    call.app
        .billing()
        .invoice(&tenant(call)?, month)
        .await
        .map_err(refused)
}

async fn get_invoice(call: Call) -> Result<Reply, Problem> {
    let invoice = ledger_invoice(&call).await?;
    Ok(Reply::json(StatusCode::OK, &Invoice::from(&invoice)))
}

async fn export(call: Call) -> Result<Reply, Problem> {
    Ok(Reply::csv(firn_billing::invoice_csv(
        &ledger_invoice(&call).await?,
    )))
}

async fn forecast(call: Call) -> Result<Reply, Problem> {
    let spending = call
        .app
        .billing()
        .spending(&tenant(&call)?)
        .await
        .map_err(refused)?;
    let limits = LimitsRecord::load(&call.store()?).await?.record;
    Ok(Reply::json(
        StatusCode::OK,
        &Forecast {
            month: spending.month.to_string(),
            currency: spending.currency,
            spent_nanos: spending.spent.0.to_string(),
            forecast_nanos: spending.forecast.0.to_string(),
            capped: limits.capped,
        },
    ))
}

async fn costs(call: Call) -> Result<Reply, Problem> {
    let month: Month = call.param("month")?;
    let explanation = call
        .app
        .billing()
        .explain(&tenant(&call)?, month)
        .await
        .map_err(refused)?;
    Ok(Reply::json(StatusCode::OK, &Costs::of(month, &explanation)))
}

async fn prices(call: Call) -> Result<Reply, Problem> {
    let month: Month = call.param("month")?;
    let book = call
        .app
        .billing()
        .book_of(&tenant(&call)?, month)
        .await
        .map_err(refused)?;
    Ok(Reply::json(StatusCode::OK, &PriceBookDocument::from(&book)))
}

async fn credits(call: Call) -> Result<Reply, Problem> {
    let granted = call
        .app
        .billing()
        .granted(&tenant(&call)?)
        .await
        .map_err(refused)?;
    let credits = granted
        .into_iter()
        .map(|granted| Credit {
            id: granted.credit.id.to_string(),
            amount_nanos: granted.credit.amount.0.to_string(),
            reason: granted.credit.reason,
            month: granted.month.to_string(),
        })
        .collect();
    Ok(Reply::json(StatusCode::OK, &Credits { credits }))
}

async fn alerts(call: Call) -> Result<Reply, Problem> {
    let month: Month = call.param("month")?;
    let raised = call
        .app
        .billing()
        .alerts(&tenant(&call)?, month)
        .await
        .map_err(refused)?;
    let alerts = raised
        .into_iter()
        .map(|alert| BudgetAlert {
            month: alert.month.to_string(),
            budget: alert.budget.to_string(),
            threshold_percent: alert.threshold,
            spent_nanos: alert.spent.0.to_string(),
            amount_nanos: alert.amount.0.to_string(),
            at: alert.at_ms / 1000,
        })
        .collect();
    Ok(Reply::json(StatusCode::OK, &BudgetAlerts { alerts }))
}

async fn price_book(call: Call) -> Result<Reply, Problem> {
    // A name is a partition of the table: it must be one before it is looked up.
    let name: String = call.param("book")?;
    let name = firn_usage::ResourceName::new(&name)
        .map_err(|error| Problem::new(Code::MalformedParameter, format!("book: {error}")))?;
    let versions = call
        .app
        .billing()
        .versions_of(name.as_str())
        .await
        .map_err(refused)?;
    if versions.is_empty() {
        return Err(Problem::not_found(format!("price book {name}")));
    }
    let versions = versions.iter().map(PriceBookDocument::from).collect();
    Ok(Reply::json(StatusCode::OK, &PriceBookVersions { versions }))
}
