//! `status`, `top` and the metrics tell protocols apart, by real traffic of each.

use super::{ALICE, Connected, shared};
use crate::{
    administration::http,
    machine::{Cloud, TIMEOUT, free_port, status},
    mounts::Unmounted,
};
use std::{
    fs,
    io::Write,
    time::{Duration, Instant},
};

#[tokio::test]
async fn each_protocol_has_its_own_clients_opens_locks_and_throughput() {
    let cloud = Cloud::new();
    let path = cloud.path().join("mnt");
    fs::create_dir(&path).expect("a directory");
    let metrics = free_port();
    let more = format!(
        "[[mount]]\npath = \"{}\"\n[metrics]\nlisten = \"127.0.0.1:{metrics}\"",
        path.display()
    );
    let Some(mut edge) = shared(&cloud, &more) else {
        return;
    };
    let _unmounted = Unmounted(path.clone());
    edge.add_user(ALICE, &["--uid", "1001"]);
    edge.start();
    let part = |of: &str| {
        let seen = status(&edge.edge);
        let parts = seen["protocols"].as_array().expect("protocols").clone();
        let found = parts.into_iter().find(|part| part["protocol"] == of);
        found.unwrap_or_else(|| panic!("no {of}: {seen}"))
    };
    let number =
        |part: &serde_json::Value, key: &str| part[key].as_u64().unwrap_or_else(|| panic!("{key}: {part}"));
    let content = vec![7_u8; 300_000];
    fs::write(cloud.path().join("local"), &content).expect("written");

    let all = ["nfs", "mount", "smb"];
    let before = all.map(part);
    let nfs = edge.edge.client().await;
    nfs.write("by nfs", &content).await;
    let after = all.map(part);
    assert!(
        number(&after[0], "received_bytes") - number(&before[0], "received_bytes") > 300_000,
        "{after:?}"
    );
    assert!(number(&after[0], "clients") >= 1, "{after:?}");
    assert_eq!(
        number(&after[1], "operations"),
        number(&before[1], "operations"),
        "nobody used it"
    );

    let mut open = fs::File::create(path.join("by the mount")).expect("open");
    open.write_all(&content).expect("written");
    rustix::fs::flock(&open, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    let now = part("mount");
    assert!(
        number(&now, "received_bytes") - number(&before[1], "received_bytes") > 300_000,
        "{now}"
    );
    assert_eq!(
        (
            number(&now, "clients"),
            number(&now, "open_files"),
            number(&now, "locks")
        ),
        (1, 1, 1),
        "{now}"
    );
    assert!(fs::metadata(path.join("nothing")).is_err());
    assert!(number(&part("mount"), "failed") > number(&before[1], "failed"));
    let latency: u64 = now["latency"]
        .as_array()
        .expect("buckets")
        .iter()
        .filter_map(serde_json::Value::as_u64)
        .sum();
    assert_eq!(latency, number(&now, "operations"), "{now}");

    edge.run(ALICE, "files", "put local");
    // What smbd wrote the kernel still has, and would not ask for.
    nfs.write_at("local", 0, &content).await;
    edge.run(ALICE, "files", "get local got");
    let now = part("smb");
    for key in ["received_bytes", "sent_bytes"] {
        assert!(
            number(&now, key) - number(&before[2], key) > 300_000,
            "{key}: {now}"
        );
    }
    let connected = Connected::new(&edge, &[]);
    edge.until(|smb| smb["connections"].as_u64() > Some(0));
    assert!(number(&part("smb"), "clients") >= 1);

    let text = edge.edge.succeed(&["status"]);
    assert!(
        text.contains("Protocols       nfs: ") && text.contains("mount: 1 clients, 1 opens, 1 locks; "),
        "{text}"
    );
    let scraped = http(metrics, "/metrics");
    for line in [
        "firn_protocol_locks_held{protocol=\"mount\"} 1\n",
        "firn_protocol_open_files{protocol=\"mount\"} 1\n",
        "firn_protocol_operations_total{protocol=\"smb\"} ",
        "firn_protocol_sent_bytes_total{protocol=\"nfs\"} ",
        "firn_protocol_seconds_total{protocol=\"mount\"} ",
    ] {
        assert!(scraped.contains(line), "{line}: {scraped}");
    }

    // A screen of `top` has what came while it looked: somebody works on the mount until it has.
    let work = path.join("work");
    let began = Instant::now();
    let screen = loop {
        let (ended, ends) = std::sync::mpsc::channel::<()>();
        let at = work.clone();
        let working = std::thread::spawn(move || {
            while ends.recv_timeout(Duration::from_millis(20))
                == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                fs::write(&at, [1_u8; 10_000]).expect("written");
            }
        });
        let screen = edge.edge.succeed(&["top", "--interval", "1", "--count", "1"]);
        drop(ended);
        working.join().expect("it worked");
        let row = screen
            .lines()
            .find(|line| line.starts_with("mount "))
            .unwrap_or_else(|| panic!("{screen}"));
        let words: Vec<&str> = row.split_whitespace().collect();
        if words[4].parse::<f64>().expect("a rate") > 0.0 && words[5] != "-" {
            break screen;
        }
        assert!(began.elapsed() < TIMEOUT, "{screen}");
    };
    assert!(
        screen.contains("PROTOCOL ") && screen.contains("smb ") && screen.contains("P99"),
        "{screen}"
    );
    drop((connected, open));
    edge.edge.stop();
}
