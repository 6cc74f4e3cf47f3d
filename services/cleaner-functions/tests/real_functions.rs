//! The handler as the Functions host calls it, over Azurite, with every edge switched off.
//!
//! The host itself cannot be had; this keeps to what its documentation says a custom handler is sent.
//!
//! ```text
//! tests/lab/cloud/with azurite dynamodb -- cargo test -p firn-edge -p firn-cleaner-functions -- --ignored real_
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "it looks from outside: real time, real processes"
)]

use anyhow::{Result, ensure};
use firn_integration::Office;
use firn_rig::{
    cloud::{post_json, status_of},
    servers::Server,
};
use serde_json::{Value, json};
use std::{process::Stdio, time::Duration};
use tokio::process::{Child, Command};

/// Tries until the handler listens, and runs until the log has shrunk.
const TRIES: usize = 60;

/// The handler's process with its port.
struct Handler {
    _process: Child,
    url: String,
}

impl Handler {
    async fn start(server: &Server, settings: &firn_rig::Settings) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new(env!("CARGO_BIN_EXE_firn-cleaner-functions"))
            .envs(server.environment().iter().map(|(name, value)| (name, value)))
            .env("FUNCTIONS_CUSTOMHANDLER_PORT", port.to_string())
            .env("FIRN_CLEANER_STORE", &settings.store)
            .env("FIRN_CLEANER_TABLE", &settings.table)
            .env("FIRN_CLEANER_GRACE_SECONDS", "1")
            .env("FIRN_CLEANER_PRICES", "azure-hot-east-us")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let url = format!("http://127.0.0.1:{port}");
        for _ in 0..TRIES {
            if status_of(&url).await.is_ok_and(|status| status == 200) {
                return Ok(Self {
                    _process: process,
                    url,
                });
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        anyhow::bail!("the handler does not answer on {url}")
    }

    async fn call(&self, function: &str, data: Value) -> Result<(u16, Value)> {
        let body = json!({"Data": data, "Metadata": {"sys": {"MethodName": function, "UtcNow": "2026-01-01T00:00:00Z"}}});
        let headers = [
            (
                "X-Azure-Functions-InvocationId",
                "0f9e4a3c-0000-4000-8000-000000000001",
            ),
            ("X-Azure-Functions-HostVersion", "4.1000.0"),
        ];
        post_json(&format!("{}/{function}", self.url), &headers, &body).await
    }

    /// Calls until the log has less than two thirds of its bytes.
    async fn shrink(&self, server: &Server, function: &str, data: &Value) -> Result<()> {
        let before = server.log_bytes().await?;
        for _ in 0..TRIES {
            let (status, answer) = self.call(function, data.clone()).await?;
            ensure!(status == 200, "{function}: {status}: {answer}");
            ensure!(answer["Outputs"] == json!({}), "{answer}");
            let after = server.log_bytes().await?;
            if after < before * 2 / 3 {
                println!(
                    "{function}: {before} bytes became {after}; the last answer: {}",
                    answer["ReturnValue"]
                );
                return Ok(());
            }
            // Segments go when their second of grace is over.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        anyhow::bail!("{function} does not shrink {before} bytes")
    }
}

async fn story() -> Result<()> {
    let server = Server::azurite().await?;
    let place = tempfile::tempdir()?;
    let settings = server.settings(place.path());
    let mut office = Office::open(place.path(), settings.clone()).await?;
    let work = json!({"family": office.family}).to_string();
    let handler = Handler::start(&server, &settings).await?;

    office.garbage("first").await?;
    let timer =
        json!({"timer": {"Schedule": {"AdjustForDST": true}, "ScheduleStatus": null, "IsPastDue": false}});
    handler.shrink(&server, "CleanOnSchedule", &timer).await?;
    office.read_back().await?;

    office.garbage("second").await?;
    handler
        .shrink(&server, "CleanOnMessage", &json!({ "message": work }))
        .await?;
    office.read_back().await?;

    // The queue's other way of writing a message, and one that asks for nothing: that one is to fail, and be dead-lettered.
    let (status, answer) = handler
        .call("CleanOnMessage", json!({ "message": json!(work).to_string() }))
        .await?;
    ensure!(status == 200, "{answer}");
    ensure!(
        answer["ReturnValue"]["report"]["damaged"] == json!([]),
        "{answer}"
    );
    let (status, answer) = handler
        .call("CleanOnMessage", json!({"message": "{\"volume\": \"main\"}"}))
        .await?;
    ensure!(status == 400, "{status}: {answer}");
    println!("{} files, every one as written", office.files());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Azurite and DynamoDB Local"]
async fn real_the_handler_cleans_by_timer_and_by_message_while_every_edge_is_off() {
    story().await.expect("it cleans, and everything is there");
}
