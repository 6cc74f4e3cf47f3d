//! Several volumes in one process: each has its exports, its journal and its store, and none takes another down.

use crate::{
    administration::http,
    machine::{Cloud, Machine, TIMEOUT, free_port},
    mounts::Unmounted,
    noise::noise,
};
use firn_nfs::v3::Status;
use serde_json::Value;
use std::time::{Duration, Instant};

/// An edge with the volumes `main` of the first cloud, in the directory that an edge with it alone has, and `homes` of the second.
pub fn configure(machine: &Machine, main: &Cloud, homes: &Cloud, more: &str) {
    let (main, homes) = (main.path().display(), homes.path().display());
    let (state, port) = (machine.state.display(), machine.port);
    let text = format!(
        r#"
[edge]
state_directory = "{state}"
[[volume]]
name = "main"
edge_name = "edge"
store = "file://{main}/store"
table = "redb:{main}/table.redb"
state_directory = "{state}"
share = 3
[[volume]]
name = "homes"
edge_name = "edge"
store = "file://{homes}/store"
table = "redb:{homes}/table.redb"
[[export]]
path = "/export"
volume = "main"
clients = ["127.0.0.0/8"]
squash = "none"
require_privileged_port = false
[[export]]
path = "/homes"
volume = "homes"
clients = ["127.0.0.0/8"]
squash = "none"
require_privileged_port = false
[nfs]
listen = "127.0.0.1"
nfs_port = {port}
portmap = false
grace_seconds = 1
[log]
level = "warn"
[limits]
journal = "64 MiB"
checkpoint_busy = "1 h"
checkpoint_trickle = "1 h"
{more}
"#
    );
    std::fs::write(&machine.config, text).expect("the configuration");
}

pub fn format(machine: &Machine, volume: &str) {
    let phrase = machine.config.with_file_name(format!("phrase-{volume}"));
    let phrase = phrase.to_str().expect("a path");
    machine.succeed(&["--volume", volume, "format", "--phrase-file", phrase]);
}

/// What `status` says of a volume beside the others.
pub fn shown(machine: &Machine, volume: &str) -> Value {
    let all: Value = serde_json::from_str(&machine.succeed(&["status", "--output", "json"])).expect("JSON");
    let volumes = all["volumes"].as_array().expect("a list").clone();
    assert_eq!(volumes.len(), 2, "{all}");
    volumes
        .into_iter()
        .find(|shown| shown["name"] == volume)
        .expect("it is shown")
}

/// Waits until a volume is shown in this state, and returns why.
fn wait_for_state(machine: &Machine, volume: &str, state: &str) -> String {
    let began = Instant::now();
    loop {
        let shown = shown(machine, volume);
        if shown["state"] == state {
            return shown["reason"].as_str().unwrap_or_default().to_owned();
        }
        assert!(began.elapsed() < TIMEOUT, "{shown}: {}", machine.log());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_of_one_volume_becomes_one_of_two_and_a_kill_leaves_both_whole() {
    let (main, homes) = (Cloud::new(), Cloud::new());
    let mut edge = Machine::new(&main, "edge", "main");
    edge.format();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("before", b"of one volume").await;
    let kept = files.root().clone();
    edge.stop();

    // The second is in the configuration and was never made: the first is served as ever, to clients that kept their handles.
    let metrics = free_port();
    let mut more = format!("[metrics]\nlisten = \"127.0.0.1:{metrics}\"");
    let mount = Unmounted(homes.path().join("mnt"));
    let has_fuse = std::path::Path::new("/dev/fuse").exists();
    if has_fuse {
        std::fs::create_dir(&mount.0).expect("a directory");
        let path = mount.0.display();
        more = format!("{more}\n[[mount]]\npath = \"{path}\"\nvolume = \"homes\"");
    } else {
        eprintln!("SKIPPED: this machine has no /dev/fuse, no mount of one of two volumes was tested");
    }
    configure(&edge, &main, &homes, &more);
    edge.succeed(&["check-config"]);
    edge.start(&[]);
    let files = edge.client().await.with_root(kept.clone());
    assert_eq!(files.read("before").await.as_deref(), Some(&b"of one volume"[..]));
    let why = wait_for_state(&edge, "homes", "ended");
    assert!(why.contains("no identity yet"), "{why}");
    assert!(http(metrics, "/healthz").starts_with("HTTP/1.1 200"));
    edge.stop();

    format(&edge, "homes");
    edge.start(&[]);
    let files = edge.client().await.with_root(kept.clone());
    let others = edge.client_of("/homes").await;
    files.write("file", b"in main").await;
    others.write("file", b"in homes").await;
    assert_eq!(others.read("before").await, None);
    if has_fuse {
        assert_eq!(
            std::fs::read(mount.0.join("file")).expect("the mount"),
            b"in homes"
        );
    }
    let said = edge.fail(2, &["sync"]);
    assert!(
        said.contains("main, homes") && said.contains("--volume"),
        "{said}"
    );
    edge.succeed(&["--volume", "homes", "sync"]);
    assert_eq!(shown(&edge, "homes")["snapshot"]["uncommitted"]["bytes"], 0);
    assert_ne!(shown(&edge, "main")["snapshot"]["uncommitted"]["bytes"], 0);
    let named: Value =
        serde_json::from_str(&edge.succeed(&["--volume", "homes", "status", "--output", "json"]))
            .expect("JSON");
    assert_eq!(named["volume"]["name"], "homes");
    let said = edge.succeed(&["status"]);
    assert!(said.contains("main") && said.contains("homes"), "{said}");
    let told = http(metrics, "/metrics");
    for line in [
        "firn_serving{volume=\"main\"} 1",
        "firn_serving{volume=\"homes\"} 1",
        "firn_cache_bytes{volume=\"homes\",place=\"disk\"}",
        "firn_nfs_connections ",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
    assert_eq!(told.matches("# TYPE firn_serving ").count(), 1);
    others.write("later", b"acknowledged").await;

    edge.kill();
    edge.start(&[]);
    let files = edge.client().await.with_root(kept);
    let others = edge.client_of("/homes").await;
    assert_eq!(files.read("before").await.as_deref(), Some(&b"of one volume"[..]));
    assert_eq!(files.read("file").await.as_deref(), Some(&b"in main"[..]));
    assert_eq!(others.read("file").await.as_deref(), Some(&b"in homes"[..]));
    assert_eq!(others.read("later").await.as_deref(), Some(&b"acknowledged"[..]));
    for volume in ["main", "homes"] {
        edge.succeed(&["--volume", volume, "sync"]);
        let said = edge.succeed(&["--volume", volume, "verify"]);
        assert!(said.starts_with("whole"), "{said}");
    }
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_cannot_be_served_leaves_the_other_serving() {
    let (main, homes) = (Cloud::new(), Cloud::new());
    let mut edge = Machine::new(&main, "edge", "main");
    configure(&edge, &main, &homes, "");
    format(&edge, "main");
    format(&edge, "homes");

    // Its table is away, and it never served here: it is opened when the table is back, without anybody's help.
    homes.take_table_away();
    edge.start(&[]);
    let files = edge.client().await;
    files.write("file", b"in main").await;
    let why = wait_for_state(&edge, "homes", "opening");
    assert!(why.contains("table"), "{why}");
    homes.bring_table_back();
    wait_for_state(&edge, "homes", "serving");
    let others = edge.client_of("/homes").await;
    others.write("file", b"in homes").await;

    // The store of one is away when the edge starts: it is served from the journal, the other as ever.
    edge.stop();
    homes.take_store_away();
    edge.start(&[]);
    let (files, others) = (edge.client().await, edge.client_of("/homes").await);
    assert!(!shown(&edge, "homes")["snapshot"]["detached"].is_null());
    assert!(shown(&edge, "main")["snapshot"]["detached"].is_null());
    assert_eq!(others.read("file").await.as_deref(), Some(&b"in homes"[..]));
    assert!(others.try_write("detached", b"in the journal").await);
    homes.bring_store_back();
    let began = Instant::now();
    while !shown(&edge, "homes")["snapshot"]["detached"].is_null()
        || shown(&edge, "homes")["state"] != "serving"
    {
        assert!(began.elapsed() < TIMEOUT, "{}", edge.log());
        // Nothing of the other is closed or refused while this one is opened anew.
        assert!(files.try_write("meanwhile", b"in main").await);
        std::thread::sleep(Duration::from_millis(100));
    }
    // The same connection and the same handle.
    assert_eq!(
        others.read("detached").await.as_deref(),
        Some(&b"in the journal"[..])
    );

    // One is given up: its clients are told to try again later, those of the other notice nothing.
    let said = edge.succeed(&["--volume", "homes", "drain"]);
    assert!(said.contains("no owner"), "{said}");
    wait_for_state(&edge, "homes", "ended");
    assert_eq!(others.read_fails("file").await, Some(Status::Jukebox));
    let said = edge.fail(1, &["--volume", "homes", "sync"]);
    assert!(said.contains("served no more"), "{said}");
    assert!(files.try_write("after", b"in main").await);
    edge.stop();

    // Another edge has taken it over: this one says so, and serves the other.
    let mut other = Machine::new(&homes, "other", "homes");
    let identity = edge.state.join("volumes/homes/identity");
    other.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    other.start(&[]);
    other.kill();
    edge.start(&[]);
    let why = wait_for_state(&edge, "homes", "ended");
    assert!(why.contains("other"), "{why}");
    let files = edge.client().await;
    assert_eq!(files.read("after").await.as_deref(), Some(&b"in main"[..]));
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_volumes_together_keep_the_limits_of_their_edge() {
    const MIB: u64 = 1 << 20;
    let (main, homes) = (Cloud::new(), Cloud::new());
    let mut edge = Machine::new(&main, "edge", "main");
    let limits = "disk_cache = \"16 MiB\"\nmemory_cache = \"4 MiB\"\nsegment = \"1 MiB\"";
    configure(&edge, &main, &homes, limits);
    format(&edge, "main");
    format(&edge, "homes");
    edge.start(&[]);
    // Each has more than all of the cache.
    let sum = |edge: &Machine, part: &str, key: &str| {
        let of = |volume: &str| {
            shown(edge, volume)["snapshot"][part][key]
                .as_u64()
                .expect("a number")
        };
        of("main") + of("homes")
    };
    for (path, volume) in [("/export", "main"), ("/homes", "homes")] {
        let files = edge.client_of(path).await;
        for number in 0..20 {
            let data = noise(number, 1 << 20);
            files.write(&format!("file-{number}"), &data).await;
        }
        edge.succeed(&["--volume", volume, "sync"]);
        for number in 0..20 {
            assert_eq!(
                files.read(&format!("file-{number}")).await.map(|data| data.len()),
                Some(1 << 20)
            );
        }
        assert!(sum(&edge, "cache", "disk_bytes") <= 16 * MIB);
        assert!(sum(&edge, "cache", "memory_bytes") <= 4 * MIB);
    }
    for (part, key, whole) in [
        ("cache", "disk_capacity_bytes", 16 * MIB),
        ("cache", "memory_capacity_bytes", 4 * MIB),
        ("journal", "capacity_bytes", 64 * MIB),
    ] {
        assert!(sum(&edge, part, key) <= whole, "{key}");
        let main = shown(&edge, "main")["snapshot"][part][key]
            .as_u64()
            .expect("a number");
        assert_eq!(main, whole / 4 * 3, "{key}: three shares of four");
    }
    // The caches are in use: the bound was met, not missed. Half of it goes to what waits to be read back.
    assert!(sum(&edge, "cache", "disk_bytes") > 4 * MIB);
    edge.stop();
}
