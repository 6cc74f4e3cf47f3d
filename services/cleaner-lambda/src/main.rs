//! The cleaner as an AWS Lambda function: `bootstrap` of a `provided.al2023` runtime.
//!
//! Lambda starts it when a rule of EventBridge fires or a message lies in a queue, gives it an event and a deadline, and pays
//! by the millisecond. Settings are variables of the function's environment (`firn_cleaner_host::Settings`); store and table are
//! reached with the function's role, the only one that may delete segments (`iam-policy.json`). See docs/cleaner.md.

#![recursion_limit = "256"]

mod event;
mod handle;

use anyhow::Context as _;
use firn_cleaner_host::{Host, Settings, start_log};
use firn_env::Env;
use handle::{CallError, handle};
use lambda_runtime::{Diagnostic, LambdaEvent, service_fn};
use serde_json::Value;
use std::time::Duration;

/// Lambda tells a failed call's kind by name; alarms and on-failure destinations are shown it.
fn diagnostic(error: &CallError) -> Diagnostic {
    let kind = match error {
        CallError::Event(_) => "Firn.Event",
        CallError::Host(_) => "Firn.NotCleaned",
        CallError::Families { .. } => "Firn.SomeNotCleaned",
        CallError::Answer(_) => "Firn.Answer",
    };
    Diagnostic {
        error_type: kind.to_owned(),
        error_message: error.to_string(),
    }
}

/// Until Lambda ends the call, by its deadline in milliseconds since 1970.
fn left(env: &Env, deadline_ms: u64) -> Duration {
    let now_ms = u64::try_from(env.wall().as_millis()).unwrap_or(u64::MAX);
    Duration::from_millis(deadline_ms.saturating_sub(now_ms))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    start_log();
    // The only place that a function may write to; nothing is written but where a store or table is a file.
    let env = firn_env::real(&std::env::temp_dir()).context("the directory for temporary files")?;
    let settings = Settings::from_environment()?;
    let host = Host::new(env, settings);
    let call = |event: LambdaEvent<Value>| {
        let host = &host;
        async move {
            let left = left(host.env(), event.context.deadline);
            handle(host, event.payload, left).await.map_err(|error| {
                tracing::error!(request = event.context.request_id, %error, "the call failed");
                diagnostic(&error)
            })
        }
    };
    lambda_runtime::run(service_fn(call))
        .await
        .map_err(|error| anyhow::anyhow!("the runtime interface: {error}"))
}
