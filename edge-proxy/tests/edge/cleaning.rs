//! The cleaner inside the edge: space comes back while clients are served, and an idle volume is left in peace.

use crate::machine::{Cloud, Machine, TIMEOUT, status};
use std::{
    path::Path,
    time::{Duration, Instant},
};

const FILES: usize = 6;

const FILE_BYTES: usize = 200_000;
/// Of the file that each round leaves behind, so that no segment is all garbage.
const KEPT_BYTES: usize = 20_000;

/// Bytes that do not compress, other ones for each file and round.
fn content(file: usize, round: usize) -> Vec<u8> {
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ ((file as u64 + 1) << 32) ^ (round as u64 + 1);
    std::iter::repeat_with(|| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random as u8
    })
    .take(FILE_BYTES)
    .collect()
}

/// Writes all files anew and one that stays, a commit each round, so that most of every round but the last is garbage.
async fn rewrite(edge: &Machine, rounds: std::ops::Range<usize>) {
    let files = edge.client().await;
    for round in rounds {
        for file in 0..FILES {
            files.write(&format!("file-{file}"), &content(file, round)).await;
        }
        let kept = &content(FILES, round)[..KEPT_BYTES];
        files.write(&format!("kept-{round}"), kept).await;
        edge.succeed(&["sync"]);
    }
}

async fn is_all_there(edge: &Machine, round: usize) {
    let files = edge.client().await;
    for file in 0..FILES {
        let found = files.read(&format!("file-{file}")).await;
        assert!(
            found.as_deref() == Some(&content(file, round)[..]),
            "file {file} is not that of round {round}"
        );
    }
    for round in 0..=round {
        let found = files.read(&format!("kept-{round}")).await;
        assert!(
            found.as_deref() == Some(&content(FILES, round)[..KEPT_BYTES]),
            "what round {round} left behind"
        );
    }
}

/// Bytes of everything below the log of the only family.
fn log_bytes(cloud: &Path) -> u64 {
    fn below(directory: &Path) -> u64 {
        let entries = std::fs::read_dir(directory).expect("a directory");
        entries
            .map(|entry| {
                let path = entry.expect("an entry").path();
                // A segment may be deleted between the listing and the look at it.
                match std::fs::metadata(&path) {
                    Ok(found) if found.is_dir() => below(&path),
                    Ok(found) => found.len(),
                    Err(_) => 0,
                }
            })
            .sum()
    }
    below(&cloud.join("store"))
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "not within {TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_cleaned_while_the_edge_serves_and_an_idle_volume_makes_no_request() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    let inside = "[cleaner]\nevery = \"1 s\"\ngrace = \"0 s\"\ncold_after = \"0 s\"\nmemory = \"16 MiB\"";
    edge.configure(&cloud, "a", "main", inside);
    edge.format();
    edge.start(&[]);
    let live = (FILES * FILE_BYTES + 6 * KEPT_BYTES) as u64;
    rewrite(&edge, 0..4).await;
    until("what was overwritten is gone", || {
        log_bytes(cloud.path()) < live * 3 / 2
    })
    .await;
    is_all_there(&edge, 3).await;

    // It takes over where things lie now with what it commits anyway, and goes on.
    rewrite(&edge, 4..6).await;
    until("what was overwritten later is gone, too", || {
        log_bytes(cloud.path()) < live * 3 / 2
    })
    .await;
    // A run is counted when it ends.
    until("its runs are counted", || {
        status(&edge)["cleaner"]["deleted_bytes"].as_u64() >= Some(4 * live)
    })
    .await;
    let shown = status(&edge);
    assert_eq!(shown["cleaner"]["failures"], 0, "{shown}");
    let moved = shown["cleaner"]["written_bytes"].as_u64();
    assert!(moved >= Some(5 * KEPT_BYTES as u64), "{shown}");
    assert!(edge.succeed(&["status"]).contains("Cleaner         every 1.0 s"));

    // An edge that cleaned for nothing would never stay at one number of requests for so many rounds.
    let requests = || status(&edge)["store"]["requests"].as_u64();
    let (mut seen, mut since) = (requests(), Instant::now());
    until("no request is made while nothing happens", || {
        let now = requests();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_secs(4)
    })
    .await;

    assert!(edge.succeed(&["verify"]).starts_with("whole: 13 files"));
    edge.stop();
    std::fs::remove_dir_all(edge.state.join("cache")).expect("the cache goes");
    edge.start(&[]);
    is_all_there(&edge, 5).await;
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_cleans_by_hand_and_is_told_what_it_cost() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.configure(
        &cloud,
        "a",
        "main",
        "[cleaner]\ngrace = \"0 s\"\ncold_after = \"0 s\"",
    );
    let said = edge.fail(1, &["clean"]);
    assert!(said.contains("no firn-edge is running"), "{said}");
    edge.format();
    edge.start(&[]);
    rewrite(&edge, 0..3).await;
    let before = log_bytes(cloud.path());
    assert!(
        !edge.succeed(&["status"]).contains("Cleaner"),
        "nobody asked for it"
    );
    let said = edge.succeed(&["clean", "--plan"]);
    assert!(
        said.contains("would be retired") && said.contains("Nothing was changed") && said.contains('$'),
        "{said}"
    );
    assert_eq!(log_bytes(cloud.path()), before, "a plan changes nothing");
    let said = edge.succeed(&["clean"]);
    assert!(
        said.contains("retired with") && said.contains("for each GiB"),
        "{said}"
    );
    // What the first run retired, the second deletes.
    let said = edge.succeed(&["clean"]);
    assert!(said.contains("deleted with"), "{said}");
    assert!(log_bytes(cloud.path()) < before / 2, "{said}");
    assert_eq!(status(&edge)["cleaner"]["runs"], 2);
    is_all_there(&edge, 2).await;
    assert!(edge.succeed(&["verify"]).starts_with("whole"));
    edge.stop();
}
