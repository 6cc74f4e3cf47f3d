//! The handler as a process, and the Functions host's side of it.
#![allow(
    clippy::disallowed_methods,
    reason = "it looks from outside: real time, real processes"
)]

use anyhow::{Result, ensure};
use firn_rig::{
    cloud::{post_json, status_of},
    servers::Server,
};
use serde_json::{Value, json};
use std::{process::Stdio, time::Duration};
use tokio::process::{Child, Command};

/// Tries until the handler listens, and runs until the log has shrunk.
const TRIES: usize = 60;

/// What the host sends when its timer fires.
pub fn timer() -> Value {
    json!({"timer": {"Schedule": {"AdjustForDST": true}, "ScheduleStatus": null, "IsPastDue": false}})
}

/// The handler's process with its port.
pub struct Handler {
    _process: Child,
    url: String,
}

impl Handler {
    pub async fn start(settings: &firn_rig::Settings) -> Result<Self> {
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = Command::new(env!("CARGO_BIN_EXE_firn-cleaner-functions"))
            .envs(settings.environment.iter().map(|(name, value)| (name, value)))
            .env("FUNCTIONS_CUSTOMHANDLER_PORT", port.to_string())
            .env("FIRN_CLEANER_STORE", &settings.store)
            .env("FIRN_CLEANER_TABLE", &settings.table)
            .env("FIRN_CLEANER_GRACE_SECONDS", "1")
            // As for segments that are an hour old: nothing is left for later.
            .env("FIRN_CLEANER_COLD_AFTER_SECONDS", "0")
            .env("FIRN_CLEANER_COLD_FREE_PER_MILLE", "20")
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

    pub async fn call(&self, function: &str, data: Value) -> Result<(u16, Value)> {
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
    pub async fn shrink(&self, server: &Server, function: &str, data: &Value) -> Result<()> {
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

    /// Sends messages until nothing is left to do: what is then stored is what the files need.
    pub async fn all_is_gone(&self, server: &Server, work: &str, live: u64) -> Result<()> {
        let mut idle = 0;
        for _ in 0..TRIES {
            let (_, answer) = self.call("CleanOnMessage", json!({ "message": work })).await?;
            let count = |name: &str| answer["ReturnValue"]["report"][name].as_u64();
            let is_idle = count("retired_segments") == Some(0) && count("waiting_segments") == Some(0);
            idle = if is_idle { idle + 1 } else { 0 };
            if idle == 2 {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let stored = server.log_bytes().await?;
        println!("{stored} bytes are left of which {live} are the files'");
        ensure!(idle == 2, "it never comes to an end");
        ensure!(
            stored * 10 < live * 11,
            "{stored} bytes are left for {live} of files"
        );
        Ok(())
    }
}
