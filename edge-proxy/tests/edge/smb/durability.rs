//! `durability = "cloud"` over SMB: what a FLUSH was answered for is in the cloud.

use super::{
    ALICE,
    raw_client::{RawClient, has_raw_client},
    shared,
};
use crate::machine::{Cloud, Machine};

/// Makes the volume answer at level 2.
fn at_level_two(edge: &Machine) {
    edge.edit(
        "[limits]",
        "durability = \"cloud\"\non_disconnect = \"fail\"\n[limits]",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_flushed_over_smb_is_read_elsewhere_after_the_disk_of_the_edge_is_destroyed() {
    if !has_raw_client() {
        return;
    }
    let cloud = Cloud::new();
    let Some(mut edge) = shared(&cloud, "") else {
        return;
    };
    at_level_two(&edge.edge);
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let mut client = RawClient::new(&edge, "report", "flush");
    assert_eq!(client.says(), "flushed");
    client.end();
    // Without the cloud a FLUSH is not answered as if it were; who asked for it hears of that, whether Samba answers a flush that fails or not.
    cloud.take_store_away();
    for file in ["later", "later still"] {
        let mut client = RawClient::new(&edge, file, "flush");
        let said = client.says();
        assert!(said == "cut off" || said.starts_with("refused: "), "{said}");
        client.end();
    }
    edge.edge.kill();
    let mount = edge.edge.state.join("smb/mnt");
    let unmounted = std::process::Command::new("umount")
        .arg("--lazy")
        .arg(mount)
        .status();
    assert!(unmounted.expect("umount runs").success());
    cloud.bring_store_back();
    let identity = cloud.path().join("identity");
    std::fs::rename(edge.edge.state.join("identity"), &identity).expect("it was kept elsewhere");
    std::fs::remove_dir_all(&edge.edge.state).expect("the disk is destroyed");
    let mut other = Machine::new(&cloud, "b", "main");
    other.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    other.succeed(&["takeover", "--force"]);
    other.start(&[]);
    let files = other.client().await;
    assert_eq!(
        files.read("report").await.as_deref(),
        Some(&b"flushed by a client"[..])
    );
    other.stop();
}
