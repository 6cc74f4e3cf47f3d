//! A store that acknowledges puts and drops them: the edge notices within minutes, puts them again from its disk, and no client sees an
//! error, though the edge is killed in between.

use crate::{
    administration::http,
    machine::{Cloud, Machine, free_port, status},
    noise::noise,
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
