//! A small crowd against an edge: clients get on with their work, newcomers can mount, and memory stays within bounds. How fast
//! they are is for `scripts/check-connections`.

use firn_connections::{
    Protocol, Target,
    check::{Plan, check},
};
use firn_rig::{EXPORT, Edge};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_an_edge_get_on_beside_two_thousand_silent_and_slow_connections() {
    let directory = tempfile::Builder::new()
        .prefix("firn")
        .tempdir_in("/tmp")
        .expect("a directory");
    // Fewer places than the crowd wants, so that it meets every limit.
    let settings = "connections = 256";
    let mut edge = Edge::format_local(Edge::binary().expect("firn-edge"), directory.path(), |edge| {
        edge.nfs = settings.to_owned();
    })
    .await
    .expect("a volume");
    edge.start().await.expect("an edge");
    let target = Target {
        protocol: Protocol::Nfs,
        address: edge.address,
        path: EXPORT.to_owned(),
        processes: edge.process_id().into_iter().collect(),
    };
    let plan = Plan {
        program: env!("CARGO_BIN_EXE_firn-connections").into(),
        connections: 2_000,
        sources: 40,
        clients: 4,
        time: Duration::from_secs(3),
        rounds: 1,
    };
    let outcome = check(&target, &plan).await.expect("every operation succeeds");
    println!("{outcome}");
    assert!(outcome.crowd.opened >= 2_000, "{:?}", outcome.crowd);
    assert!(outcome.beside.count() >= 4 * 3, "each client has worked");
    let (_, resident) = outcome.resident.expect("its process is known");
    assert!(resident <= 512 << 20, "{resident} bytes resident");
    let status = edge.status().await.expect("status is answered");
    let connections = status["nfs"]["connections"].as_u64().expect("a count");
    assert!(connections <= 256, "{connections} connections");
    edge.stop().await.expect("a clean end");
}
