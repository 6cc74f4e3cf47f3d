//! Spans of requests at a collector of OpenTelemetry's, from the program itself.
#![allow(clippy::disallowed_methods, reason = "a collector outside, in real time")]

use crate::running::{DOMAIN, Program, anonymous, firn_api};
use axum::http::StatusCode;
use firn_api::MasterSecret;
use firn_rig::Collector;
use serde_json::Value;
use std::fs;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_a_span_under_the_identifier_that_its_reply_has() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    let made = firn_api(&["new-secret", secret.to_str().unwrap()])
        .status()
        .unwrap();
    assert!(made.success());
    let master = MasterSecret::new(fs::read(&secret).unwrap().as_slice().try_into().unwrap());
    let person = anonymous(master.authority(DOMAIN).unwrap().certificate());
    let table = format!("redb:{}", directory.path().join("api.redb").display());
    let collector = Collector::start().unwrap();
    let options = ["--traces", &collector.endpoint, "--traces-percent", "100"];
    let program = Program::with(directory.path(), &table, "1", &options);
    let (status, _) = program.ask(&person, "GET", "/healthz", "", Value::Null).await;
    assert_eq!(status, StatusCode::OK);
    let found = tokio::task::spawn_blocking(move || {
        collector.wait_for("a request", |spans| {
            let mut requests = spans.iter().filter(|span| span.name == "request");
            requests
                .find(|span| span.attributes.get("path").is_some_and(|path| path == "/healthz"))
                .cloned()
        })
    });
    let span = found.await.unwrap().unwrap();
    assert_eq!((&*span.service, &*span.attributes["method"]), ("firn-api", "GET"));
    assert_eq!(span.attributes["id"].len(), 16, "{span:?}");
    program.kill();
}
