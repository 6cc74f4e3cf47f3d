//! The anchor's roots in Azure Table Storage: every call of an anchor is possible within one partition of it.
//!
//! ```text
//! tests/lab/cloud/with azurite -- cargo test -p firn-anchor-service --test process -- --ignored real_
//! ```

use crate::{edge, family, place::Place, service, volume};
use firn_anchor::{AnchorAnswer, conformance};
use firn_rig::servers::Server;
use std::{path::Path, sync::Arc};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Azurite"]
async fn real_a_process_over_azures_table_conforms_and_keeps_its_roots() {
    let here = tempfile::tempdir().unwrap();
    let server = Server::azure_alone().await.unwrap();
    let settings = server.settings(Path::new("/nowhere"));
    let mut place = Place::new(here.path(), 1);
    (place.table, place.environment) = (settings.table, settings.environment);
    let cleaner = service("cleaner");
    // A volume's edge and cleaner, and another volume in a partition of its own.
    place.grant(&[
        (&edge(1), volume(1), "edge"),
        (&cleaner, volume(1), "cleaner"),
        (&edge(1), volume(2), "edge"),
    ]);
    let edges = place.issue(&edge(1), "edge.pem");
    place.start();
    conformance::run(Arc::new(place.reached(&edges, volume(1))), &place.env).await;
    assert_eq!(place.figure("firn_anchor_calls_total{outcome=\"failed\"}"), 0);

    let (anchor, other) = (place.reached(&edges, volume(1)), place.reached(&edges, volume(2)));
    let before = family(&anchor).await.unwrap();
    assert!(
        matches!(before, AnchorAnswer::Tuple { tuple: Some(_) }),
        "{before:?}"
    );
    let nothing = family(&other).await.unwrap();
    assert!(
        matches!(nothing, AnchorAnswer::Tuple { tuple: None }),
        "{nothing:?}"
    );
    place.kill();
    place.start();
    assert_eq!(family(&anchor).await.unwrap(), before);
}
