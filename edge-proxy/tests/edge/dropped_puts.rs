//! A store that acknowledges puts and drops them, or has other bytes: the edge notices within minutes, puts them again from its disk or writes
//! them anew, and no client sees an error, though the edge is killed in between.

use crate::{
    administration::http,
    machine::{Cloud, Machine, free_port, status},
    noise::noise,
    second_store::{commit, content},
};
use std::time::{Duration, Instant};

/// Every third segment is dropped, its second put as well.
const DROPS: &str = "seed = 7\n[faults]\ndropped = 0.33\n";

/// After a commit everything is read back a minute later, and what was put again another minute later; four times in a row with a
/// chance of 1 in 80 for each segment.
const NOTICED_WITHIN: Duration = Duration::from_secs(600);

const FILES: u64 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn puts_that_are_dropped_are_put_again_over_a_kill_and_no_client_sees_an_error() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    let port = free_port();
    edge.edit("checkpoint_trickle = \"1 h\"", "checkpoint_trickle = \"200 ms\"");
    edge.edit(
        "[log]",
        &format!("[metrics]\nlisten = \"127.0.0.1:{port}\"\n[log]"),
    );
    edge.format();
    let faults = edge.config.with_file_name("faults.toml");
    std::fs::write(&faults, DROPS).expect("the faults");
    let drops = ["--fault", faults.to_str().expect("a path")];
    edge.start(&drops);
    let files = edge.client().await;
    for number in 0..FILES {
        files
            .write(&format!("file{number}"), &noise(number + 1, 30_000))
            .await;
        // A commit of its own for most of them.
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    edge.wait_for_status(|seen| seen["uncommitted"]["level"] == 2);
    let seen = status(&edge);
    assert!(
        seen["commits"]["unconfirmed_segments"].as_u64() > Some(5),
        "{seen}"
    );
    edge.kill();
    // What a cache has is no promise.
    std::fs::remove_dir_all(edge.state.join("cache")).expect("a cache");

    edge.start(&drops);
    let files = edge.client().await;
    for number in 0..FILES {
        let read = files.read(&format!("file{number}")).await;
        assert_eq!(read, Some(noise(number + 1, 30_000)), "file{number}");
    }
    let began = Instant::now();
    loop {
        let seen = status(&edge);
        if seen["commits"]["unconfirmed_segments"] == 0 {
            assert!(seen["commits"]["segments_put_again"].as_u64() > Some(0), "{seen}");
            assert_eq!(seen["commits"]["lost_segments"], 0, "{seen}");
            break;
        }
        assert!(began.elapsed() < NOTICED_WITHIN, "{seen}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let metrics = http(port, "/metrics");
    assert!(
        metrics.contains("firn_unconfirmed_segments 0") || metrics.contains("firn_unconfirmed_segments{"),
        "{metrics}"
    );
    let log = edge.log();
    assert!(
        log.contains("acknowledged this segment and does not show it"),
        "{log}"
    );
    edge.stop();

    // From the bucket alone.
    edge.wipe_cache();
    edge.start(&[]);
    let files = edge.client().await;
    for number in 0..FILES {
        let read = files.read(&format!("file{number}")).await;
        assert_eq!(read, Some(noise(number + 1, 30_000)), "file{number}");
    }
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_has_with_other_bytes_is_written_anew_and_retired() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.edit("checkpoint_trickle = \"1 h\"", "checkpoint_trickle = \"200 ms\"");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    let ledger = commit(&cloud, &edge, &files, "ledger").await;
    // From now on the store answers with other bytes, of the same length.
    let put = std::fs::read(&ledger).expect("the segment");
    let wrong: Vec<u8> = put.iter().map(|byte| byte ^ 1).collect();
    std::fs::write(&ledger, &wrong).expect("the damage");
    // Its commit is not the newest one, so a round may judge it.
    files.write("notes", &content("notes")).await;
    edge.wait_for_status(|seen| seen["uncommitted"]["level"] == 2);
    let began = Instant::now();
    while !edge.log().contains("1 were written anew") {
        assert!(began.elapsed() < NOTICED_WITHIN, "{}", edge.log());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let log = edge.log();
    assert!(log.contains("has other bytes under its name"), "{log}");
    let seen = edge.wait_for_status(|seen| seen["commits"]["unconfirmed_segments"] == 0);
    assert_eq!(seen["commits"]["altered_segments"], 0, "{seen}");
    assert_eq!(seen["commits"]["segments_put_again"], 0, "{seen}");
    let found = std::fs::read(&ledger).expect("the segment");
    assert!(found == wrong, "nothing is put under an old name");
    edge.succeed(&["sync"]);
    edge.succeed(&["verify"]);
    edge.stop();

    // From the bucket alone.
    edge.wipe_cache();
    edge.start(&[]);
    let files = edge.client().await;
    for name in ["ledger", "notes"] {
        assert!(files.read(name).await == Some(content(name)), "{name}");
    }
    edge.stop();
}
