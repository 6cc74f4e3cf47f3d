//! Staff endpoints about money: by a certificate of `service/support`, which `firn-api certify` issues to
//! whoever has the master secret. No tenant's token opens any of it.

use super::{bills::refused, usage::require_service};
use crate::{
    context::TenantContext,
    endpoint::{Call, Endpoint, Reply},
    problem::{Code, Problem},
    store::{Change, Record, TenantStore},
    types::{AssignPriceBook, Credit, GrantCredit, PriceBookDocument, PublishPriceBook},
};
use axum::http::{Method, StatusCode};
use firn_billing::{Money, Month};
use firn_identity::TenantId;
use firn_usage::{ResourceName, TenantName};
use serde::{Deserialize, Serialize};

const SUPPORT: [&str; 1] = ["support"];

/// That a credit is in the tenant's audit log.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CreditNoted {
    amount_nanos: String,
}

impl Record for CreditNoted {
    const KIND: &'static str = "credit-noted";
}

pub(super) fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::new(
            Method::POST,
            "/v1/support/credits",
            "grantCredit",
            "Grants a credit: a line of the current month's invoice",
            grant_credit,
        )
        .takes::<GrantCredit>()
        .gives::<Credit>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/support/price-books",
            "publishPriceBook",
            "Publishes a version of a price book; it never changes afterwards",
            publish,
        )
        .takes::<PublishPriceBook>()
        .up_to(512 << 10)
        .gives::<PriceBookDocument>(StatusCode::OK),
        Endpoint::new(
            Method::POST,
            "/v1/support/price-books/assign",
            "assignPriceBook",
            "Lets a price book hold for a tenant from a month on",
            assign,
        )
        .takes::<AssignPriceBook>()
        .gives::<PriceBookDocument>(StatusCode::OK),
    ]
}

/// The tenant that a body names, if there is one.
async fn named_tenant(call: &Call, text: &str) -> Result<(TenantId, TenantStore), Problem> {
    let tenant: TenantId = text.parse().map_err(|error| Problem::field("tenant", error))?;
    let store = TenantStore::of(call.app.table(), &TenantContext::for_service(tenant));
    super::LimitsRecord::load(&store).await?;
    Ok((tenant, store))
}

async fn grant_credit(call: Call) -> Result<Reply, Problem> {
    require_service(&call, &SUPPORT)?;
    let body: GrantCredit = call.body()?;
    let (tenant, store) = named_tenant(&call, &body.tenant).await?;
    let credit = firn_billing::Credit {
        id: ResourceName::new(&body.id).map_err(|error| Problem::field("id", error))?,
        amount: Money::try_from(body.amount_nanos).map_err(|error| Problem::field("amount_nanos", error))?,
        reason: body.reason,
        granted_by: body.granted_by,
    };
    let month = call
        .app
        .billing()
        .grant_credit(&TenantName::from(tenant), &credit)
        .await
        .map_err(refused)?;
    // Granted first, noted then: a repetition after a crash in between grants nothing twice and notes what is missing.
    let noted = format!("credit-noted/{}", credit.id);
    if store.get::<CreditNoted>(&noted).await?.is_none() {
        let record = CreditNoted {
            amount_nanos: credit.amount.0.to_string(),
        };
        Change::new(&store, None, "credit.granted", &credit.id)
            .detail(format!(
                "{} by {}: {}",
                credit.amount, credit.granted_by, credit.reason
            ))
            .create(&noted, &record)
            .commit(call.app.env(), None)
            .await?;
    }
    Ok(Reply::json(
        StatusCode::OK,
        &Credit {
            id: credit.id.to_string(),
            amount_nanos: credit.amount.0.to_string(),
            reason: credit.reason,
            month: month.to_string(),
        },
    ))
}

async fn publish(call: Call) -> Result<Reply, Problem> {
    require_service(&call, &SUPPORT)?;
    let body: PublishPriceBook = call.body()?;
    let book = firn_billing::PriceBook::parse(&body.text).map_err(|error| Problem::field("text", error))?;
    call.app.billing().publish_book(&book).await.map_err(refused)?;
    Ok(Reply::json(StatusCode::OK, &PriceBookDocument::from(&book)))
}

async fn assign(call: Call) -> Result<Reply, Problem> {
    require_service(&call, &SUPPORT)?;
    let body: AssignPriceBook = call.body()?;
    let (tenant, store) = named_tenant(&call, &body.tenant).await?;
    let from: Month = body.from.parse().map_err(|error| Problem::field("from", error))?;
    let name = ResourceName::new(&body.book).map_err(|error| Problem::field("book", error))?;
    let billing = call.app.billing();
    let versions = billing.versions_of(name.as_str()).await.map_err(refused)?;
    let book = versions
        .iter()
        .rfind(|book| book.effective <= from)
        .ok_or_else(|| {
            Problem::new(
                Code::NotFound,
                format!("no version of price book {name} holds in {from}"),
            )
        })?;
    billing
        .assign_book(&TenantName::from(tenant), name.as_str(), from)
        .await
        .map_err(refused)?;
    Change::new(&store, None, "price-book.assigned", &name)
        .detail(format!("from {from} on"))
        .commit(call.app.env(), None)
        .await?;
    Ok(Reply::json(StatusCode::OK, &PriceBookDocument::from(book)))
}
