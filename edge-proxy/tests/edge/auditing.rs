//! Audits by a running edge: a segment that the store lost or altered is found and named, and what is told is the edge's own.

use crate::{
    machine::{Cloud, Machine},
    noise::noise,
};

const FILES: u64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_is_told_what_the_store_lost_and_what_would_have_been_found() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    for number in 0..FILES {
        files
            .write(&format!("file{number}"), &noise(number + 1, 200_000))
            .await;
    }
    edge.succeed(&["sync"]);
    edge.succeed(&["snapshot", "create", "first"]);
    for number in 0..FILES / 3 {
        files
            .write(&format!("file{number}"), &noise(number + 100, 200_000))
            .await;
    }
    edge.succeed(&["sync"]);

    let told = edge.succeed(&["audit"]);
    println!("{told}");
    assert!(told.contains("688 of 688 challenges"), "{told}");
    assert!(told.contains("688 intact, 0 lost or damaged"), "{told}");
    assert!(told.contains("1 % with 99.90 %"), "{told}");
    assert!(told.contains("and of 1 of 1 snapshots"), "{told}");
    let json = edge.succeed(&["audit", "--challenges", "50", "--output", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let volume = &json["volumes"][0];
    assert_eq!(
        (&volume["intact"], &volume["is_complete"]),
        (&50.into(), &true.into()),
        "{json}"
    );
    // All of the files and, of those that were written anew, what the snapshot has of them.
    let data_bytes = volume["data_bytes"].as_u64().expect("a number");
    let written = (FILES + FILES / 3) * 200_000;
    assert!((written..written * 11 / 10).contains(&data_bytes), "{json}");

    // Each in turn: it is the store that is read, whatever caches and pins have.
    let size = |path: &std::path::PathBuf| path.metadata().expect("a segment").len();
    let victim = cloud.segments().into_iter().max_by_key(size).expect("a segment");
    let whole = std::fs::read(&victim).expect("a segment");
    std::fs::remove_file(&victim).expect("removed");
    let told = edge.fail(6, &["audit"]);
    let sequence = victim.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(
        told.contains("  lost: segment ") && told.contains(sequence),
        "{sequence}: {told}"
    );
    assert!(told.contains("bring the store's objects back"), "{told}");
    let mut altered = whole.clone();
    altered
        .iter_mut()
        .skip(52)
        .step_by(20_000)
        .for_each(|byte| *byte ^= 1);
    std::fs::write(&victim, &altered).expect("altered");
    let told = edge.fail(6, &["audit"]);
    assert!(
        !told.contains("  lost:") && told.contains("  damaged: inode "),
        "{told}"
    );
    std::fs::write(&victim, &whole).expect("brought back");
    edge.succeed(&["audit"]);

    let told = edge.fail(1, &["audit", "--budget", "0"]);
    assert!(told.contains("not everything was asked"), "{told}");
    assert!(
        edge.fail(2, &["audit", "--budget", "much"])
            .contains("no amount of dollars")
    );
    edge.stop();
}
