//! The anchor service as an AWS Lambda function: `bootstrap` of a `provided.al2023` runtime, behind a function URL.
//!
//! AWS checks the caller's signature (authorisation `AWS_IAM`) and says who it is; `FIRN_ANCHOR_GRANTS` says what each may reach, and as what.
//! The function alone has the table, with its role (`iam-policy.json`); it keeps nothing, so any number of instances may run. See
//! docs/anchor.md.

mod event;
mod handle;
mod settings;

use anyhow::Context as _;
use firn_anchor_service::AnchorService;
use handle::handle;
use lambda_runtime::{LambdaEvent, service_fn};
use serde_json::Value;
use settings::Settings;
use std::convert::Infallible;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .json()
        .with_writer(std::io::stderr)
        .init();
    // The only place that a function may write to; nothing is written but where the table is a file.
    let env = firn_env::real(&std::env::temp_dir()).context("the directory for temporary files")?;
    let Settings { table, grants } = Settings::from_variables(std::env::vars())?;
    let (table, _) = firn_table_dynamodb::open(&env, &table).await?;
    let service = AnchorService::new(table);
    let call = |event: LambdaEvent<Value>| {
        let (service, grants) = (&service, &grants);
        async move { Ok::<_, Infallible>(handle(service, grants, event.payload).await) }
    };
    lambda_runtime::run(service_fn(call))
        .await
        .map_err(|error| anyhow::anyhow!("the runtime interface: {error}"))
}
