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

mod handler;

use anyhow::{Result, ensure};
use firn_integration::Office;
use firn_rig::servers::Server;
use handler::Handler;
use serde_json::json;

async fn story() -> Result<()> {
    let server = Server::azurite().await?;
    let place = tempfile::tempdir()?;
    let settings = server.settings(place.path());
    let mut office = Office::open(place.path(), settings.clone()).await?;
    let work = json!({"family": office.family}).to_string();
    let handler = Handler::start(&settings).await?;

    office.garbage("first").await?;
    handler
        .shrink(&server, "CleanOnSchedule", &handler::timer())
        .await?;
    office.read_back().await?;

    office.garbage("second").await?;
    handler
        .shrink(&server, "CleanOnMessage", &json!({ "message": work }))
        .await?;
    handler.all_is_gone(&server, &work, office.bytes()).await?;
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
