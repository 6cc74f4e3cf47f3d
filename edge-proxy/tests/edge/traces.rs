//! Spans of calls at a collector of OpenTelemetry's: a client's call, and what was asked of the store for it.

use crate::noise::noise;
use firn_rig::{Client, Collector, EXPORT, Edge};

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_fetches_is_a_trace_down_to_the_request_to_the_store() {
    let place = tempfile::tempdir().unwrap();
    let collector = Collector::start().unwrap();
    let endpoint = collector.endpoint.clone();
    let binary = env!("CARGO_BIN_EXE_firn-edge").into();
    let mut edge = Edge::format_local(binary, place.path(), |settings| {
        settings.nfs = format!("[traces]\nendpoint = \"{endpoint}\"\nsample_percent = 100.0");
    })
    .await
    .unwrap();
    edge.start().await.unwrap();
    let mut client = Client::mount(edge.address, EXPORT).await.unwrap();
    let root = client.root.clone();
    // Nothing compresses it: it has to be fetched to be read.
    let written = client.write_file(&root, b"f", 0o644, &noise(1, 300_000)).await;
    written.unwrap();
    edge.sync().await.unwrap();
    edge.stop().await.unwrap();
    edge.wipe_cache().unwrap();
    edge.start().await.unwrap();
    let mut client = Client::mount(edge.address, EXPORT).await.unwrap();
    let root = client.root.clone();
    let file = client.lookup(&root, b"f").await.unwrap();
    client.checksum(&file).await.unwrap();
    let found = tokio::task::spawn_blocking(move || {
        collector.wait_for("a read that fetched", |spans| {
            let mut fetches = spans.iter().filter(|span| span.name == "store");
            fetches.find_map(|fetch| {
                let call = spans
                    .iter()
                    .find(|span| span.id == fetch.parent && span.name == "call")?;
                Some((call.clone(), fetch.clone()))
            })
        })
    });
    let (call, fetch) = found.await.unwrap().unwrap();
    assert_eq!((&*call.service, &call.trace), ("firn-edge", &fetch.trace));
    assert_eq!(call.attributes["program"], "nfs");
    assert!(call.attributes["client"].starts_with("127.0.0.1:"), "{call:?}");
    assert_eq!(call.attributes["xid"].len(), 8, "{call:?}");
    assert!(fetch.attributes["request"].starts_with("get"), "{fetch:?}");
    edge.stop().await.unwrap();
}
