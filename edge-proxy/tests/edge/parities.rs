//! Parity groups: what both stores have lost is read through, and written anew, from the rest of its group.

use crate::{
    machine::{Cloud, Machine, status},
    second_store::{Second, commit, content, damage, mirrored},
};
use std::path::{Path, PathBuf};

/// Compared each second, and cold after one.
const GROUPED: &str = "repair = false\ncompare_every = \"1 s\"\n[parity]\nafter = \"1 s\"";

/// The second store's copy of a segment.
fn copy_of(cloud: &Cloud, second: &Second, segment: &Path) -> PathBuf {
    second
        .0
        .join(segment.strip_prefix(cloud.path().join("store")).expect("below"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_both_stores_lost_or_altered_is_read_and_written_anew_from_parities() {
    let (cloud, second, mut edge, files) = mirrored(GROUPED).await;
    let names = ["ledger", "minutes", "letters", "notes", "plans"];
    let mut segments = Vec::new();
    for name in names {
        segments.push(commit(&cloud, &edge, &files, name).await);
    }
    let all = cloud.segments().len() as u64;
    let seen = edge.wait_for_status(|seen| seen["second"]["parity"]["members"].as_u64() >= Some(all));
    assert_eq!(seen["second"]["parity"]["waiting"], 0, "{seen}");
    assert_eq!(seen["uncommitted"]["level"], 2, "uploads go on: {seen}");
    edge.stop();
    edge.wipe_cache();
    // One is gone in both, one is wrong in both, one is gone in one and wrong in the other.
    for of in [&segments[0], &segments[1], &segments[2]] {
        assert!(copy_of(&cloud, &second, of).exists(), "the copies stay");
    }
    std::fs::remove_file(&segments[0]).expect("removed");
    std::fs::remove_file(copy_of(&cloud, &second, &segments[0])).expect("removed");
    damage(&segments[1]);
    damage(&copy_of(&cloud, &second, &segments[1]));
    std::fs::remove_file(&segments[2]).expect("removed");
    damage(&copy_of(&cloud, &second, &segments[2]));

    edge.start(&[]);
    let files = edge.client().await;
    for name in names {
        assert!(files.read(name).await == Some(content(name)), "{name}");
    }
    let seen = status(&edge);
    assert!(
        seen["second"]["parity"]["rows_restored"].as_u64() > Some(0),
        "{seen}"
    );
    assert_eq!(seen["second"]["segments_read"], 3, "{seen}");
    assert_eq!(seen["damages"].as_array().map_or(0, Vec::len), 0, "{seen}");
    let text = edge.succeed(&["status"]);
    assert!(
        text.contains("parities:") && text.contains("computed from others"),
        "{text}"
    );

    // Proof of the first store: computed bytes do not count.
    let said = edge.fail(6, &["verify"]);
    for name in &names[..3] {
        assert!(said.contains(name), "{said}");
    }
    let said = edge.succeed(&["repair", "--plan"]);
    assert!(
        said.contains("would be written anew") && said.contains("Nothing was changed"),
        "{said}"
    );
    let said = edge.succeed(&["repair"]);
    assert!(
        said.contains("3 segments were found lost or altered; 3 were written anew"),
        "{said}"
    );
    edge.succeed(&["verify"]);
    // Who was lost leaves its group, and the group is right without it.
    let seen = edge.wait_for_status(|seen| {
        let parity = &seen["second"]["parity"];
        parity["absent"] == 0 && parity["generations_written"].as_u64() >= Some(1)
    });
    assert_eq!(seen["second"]["parity"]["broken"], 0, "{seen}");
    edge.stop();
    edge.wipe_cache();
    edge.start(&[]);
    let files = edge.client().await;
    for name in names {
        assert!(files.read(name).await == Some(content(name)), "{name}");
    }
    edge.succeed(&["verify"]);
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn parities_need_a_second_store() {
    let cloud = Cloud::new();
    let edge = Machine::new(&cloud, "a", "main");
    edge.configure(&cloud, "a", "main", "[parity]\n");
    let said = edge.fail(2, &["check-config"]);
    assert!(said.contains("[parity] needs [second]"), "{said}");
}
