//! Junctions of an edge: from the configuration to what clients, `status`, `check` and `id` say.

use crate::{
    machine::{Cloud, Machine},
    volumes::{configure, format, shown},
};
use firn_nfs::{client::entry, v3::Status, v3::types::NewAttributes};

/// At `/homes/shared` the export of the other volume is shown.
const JUNCTION: &str = "[[export.junction]]\npath = \"/shared\"\nexport = \"/export\"";

#[tokio::test(flavor = "multi_thread")]
async fn two_volumes_are_one_tree_once_the_junction_has_its_directory() {
    let (main, homes) = (Cloud::new(), Cloud::new());
    let mut edge = Machine::new(&main, "edge", "main");
    configure(&edge, &main, &homes, JUNCTION);
    format(&edge, "main");
    format(&edge, "homes");
    let checked = edge.command(&["check"]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("junction    /homes/shared shows /export"), "{said}");

    edge.start(&[]);
    let junctions = |edge: &Machine| shown(edge, "homes")["snapshot"]["nfs"]["junctions"].clone();
    assert_eq!(junctions(&edge)[0]["state"], "no-directory");
    assert!(edge.log().contains("a junction shows nothing"), "{}", edge.log());
    let said = edge.succeed(&["--volume", "homes", "status"]);
    assert!(said.contains("/homes/shared does not show /export"), "{said}");
    assert_eq!(
        shown(&edge, "main")["snapshot"]["nfs"]["junctions"],
        serde_json::json!([])
    );

    let (files, others) = (edge.client().await, edge.client_of("/homes").await);
    assert_eq!(others.mounted("/homes/shared").await, None);
    let made = others
        .client()
        .make_directory(others.root(), "shared", NewAttributes::default())
        .await;
    made.expect("answered").expect("made");
    assert_eq!(junctions(&edge)[0]["state"], "shown");
    let said = edge.succeed(&["--volume", "homes", "status"]);
    assert!(said.contains("/homes/shared shows /export"), "{said}");

    files.write("plan", b"of main").await;
    let inside = others.mounted("/homes/shared").await.expect("the junction");
    let behind = edge.client_of("/homes").await.with_root(inside.clone());
    assert_eq!(behind.read("plan").await.as_deref(), Some(&b"of main"[..]));
    behind.write("answer", b"through the junction").await;
    assert_eq!(
        files.read("answer").await.as_deref(),
        Some(&b"through the junction"[..])
    );
    let said = edge.succeed(&[
        "id",
        "0",
        "--from",
        "127.0.0.1",
        "--path",
        "/homes/shared/plan",
        "--output",
        "json",
    ]);
    let answer: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let explanation = &answer["explanations"][0];
    assert_eq!(explanation["is_allowed"], true, "{said}");
    let steps = explanation["steps"].to_string();
    assert!(steps.contains("/shared of /homes shows /export"), "{steps}");
    let said = edge.succeed(&[
        "id",
        "0",
        "--from",
        "127.0.0.1",
        "--path",
        "/homes/shared/nothing",
        "--output",
        "json",
    ]);
    assert!(said.contains("\"ENOENT\""), "{said}");

    // Handles and junction outlive a kill; what holds it up does not go.
    edge.kill();
    edge.start(&[]);
    let behind = edge.client_of("/homes").await.with_root(inside);
    assert_eq!(
        behind.read("answer").await.as_deref(),
        Some(&b"through the junction"[..])
    );
    let others = edge.client_of("/homes").await;
    let (client, root) = (others.client(), others.root());
    let renamed = client
        .rename(entry(root, "shared"), entry(root, "moved"))
        .await
        .expect("answered");
    assert_eq!(renamed.expect_err("refused").status, Status::AccessDenied);
    edge.stop();
}
