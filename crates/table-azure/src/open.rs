//! Reaching the table: credentials and endpoint, creation on request.

use crate::{
    batch::Operation,
    failure::{Refusal, SERVICE},
    service::Service,
};
use firn_env::Env;
use firn_store_cloud::{AzureTables, Credentials, OpenError};
use firn_table::{AzureTableUrl, RequestFailure as Failure, TableError, persist};
use http::Method;
use serde_json::json;

/// A table that exists.
pub(crate) async fn open(
    env: &Env,
    url: &AzureTableUrl,
    credentials: &Credentials,
) -> Result<Service, TableError> {
    let service = connect(env, url, credentials)?;
    if is_there(env, &service).await? {
        return Ok(service);
    }
    if !url.create {
        return Err(TableError::Refused(format!(
            "the storage account has no table {:?}; create it, or let it be created by create=true",
            url.table
        )));
    }
    create(env, &service).await?;
    Ok(service)
}

/// Whether the account has the table; it is not made.
///
/// # Errors
/// [`TableError`] if Azure is away or refuses to say.
pub async fn exists(env: &Env, url: &AzureTableUrl) -> Result<bool, TableError> {
    is_there(env, &connect(env, url, &Credentials::Environment)?).await
}

fn connect(env: &Env, url: &AzureTableUrl, credentials: &Credentials) -> Result<Service, TableError> {
    let (account, endpoint) = (url.account.clone(), url.endpoint.clone());
    let tables = AzureTables::open(env, url, credentials, account, endpoint)
        .map_err(|error: OpenError| TableError::Refused(error.to_string()))?;
    Ok(Service::new(env, tables, &url.table))
}

/// Asks for one entity: whoever may read the table's items learns so whether it is there, without a right to list the account's tables.
async fn is_there(env: &Env, service: &Service) -> Result<bool, TableError> {
    persist(env, SERVICE, |_| async {
        let answer = service
            .ask(&Operation {
                method: Method::GET,
                path: format!("{}()?$top=1&$select=PartitionKey", service.path()),
                if_match: None,
                body: None,
            })
            .await?;
        let refusal = Refusal::of(&answer);
        match (answer.status, refusal.code.as_str()) {
            (200, _) => Ok(true),
            (404, "TableNotFound" | "ResourceNotFound") => Ok(false),
            _ => Err(refusal.judge(service.table())),
        }
    })
    .await
}

async fn create(env: &Env, service: &Service) -> Result<(), TableError> {
    persist(env, SERVICE, |_| async {
        let answer = service
            .ask(&Operation {
                method: Method::POST,
                path: "/Tables".into(),
                if_match: None,
                body: Some(json!({ "TableName": service.table() })),
            })
            .await?;
        let refusal = Refusal::of(&answer);
        match (answer.status, refusal.code.as_str()) {
            // Somebody else, or an earlier try of ours, created it.
            (201 | 204, _) | (409, "TableAlreadyExists") => Ok(()),
            (409, code) => Err(Failure::Busy(code.to_owned())),
            _ => Err(refusal.judge(service.table())),
        }
    })
    .await?;
    tracing::info!(table = service.table(), "the Azure table was created");
    Ok(())
}
