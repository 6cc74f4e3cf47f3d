//! Key rings in the hands of an edge: followed while it serves, never an older one, and no junk stops a start or a recovery.

use crate::machine::{Cloud, Machine, TIMEOUT, status};
use bytes::Bytes;
use firn_format::{FamilyId, decode_object, decode_segment};
use firn_seal::{KeyRing, RecoveryPhrase, VerifiedKeyRing};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const FOLLOWING: &str = "[keys]\nevery = \"1 s\"";

/// The tenant's side of a volume that `firn-edge format` made.
struct Tenant {
    phrase: RecoveryPhrase,
    family: FamilyId,
    store: PathBuf,
}

impl Tenant {
    fn of(cloud: &Cloud, edge: &Machine) -> Self {
        let words = std::fs::read_to_string(edge.config.with_file_name("phrase")).expect("the phrase");
        let store = cloud.path().join("store");
        let family = std::fs::read_dir(&store)
            .expect("the store")
            .find_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .expect("a family");
        Self {
            phrase: RecoveryPhrase::parse(words.trim()).expect("a phrase"),
            family,
            store,
        }
    }

    fn path(&self, generation: u64) -> PathBuf {
        let name = format!("{}{generation:016x}", KeyRing::object_prefix(&self.family));
        self.store.join(name)
    }

    fn ring(&self, generation: u64) -> VerifiedKeyRing {
        let bytes = std::fs::read(self.path(generation)).expect("a ring");
        let ring = KeyRing::decode(bytes.into()).expect("a ring");
        ring.verify(&self.phrase.signing_key().public())
            .expect("the tenant's")
    }

    /// Puts the ring with the next epoch into the bucket.
    fn rotate(&self, generation: u64) {
        let ring = self.ring(generation);
        let keys = ring.open(&self.phrase.recovery_secret()).expect("keys");
        let mut stream = entropy(generation);
        let signer = self.phrase.signing_key();
        let (next, _) = ring.rotate(&keys, &signer, &mut stream).expect("a ring");
        std::fs::write(self.path(generation + 1), next.encode()).expect("put");
    }

    /// The key epochs of all objects in segments that are not among `but`, and the names of all segments.
    fn epochs(&self, but: &BTreeSet<PathBuf>) -> (BTreeSet<u32>, BTreeSet<PathBuf>) {
        let (mut epochs, mut names) = (BTreeSet::new(), BTreeSet::new());
        for path in files_below(&self.store.join(self.family.to_string()).join("log")) {
            if !but.contains(&path) {
                let segment =
                    decode_segment(Bytes::from(std::fs::read(&path).expect("read"))).expect("a segment");
                for entry in &segment.entries {
                    let object = decode_object(segment.object(entry)).expect("an object");
                    epochs.insert(object.unverified_header().seal.key_epoch.0);
                }
            }
            names.insert(path);
        }
        (epochs, names)
    }
}

/// Entropy that is another one for each seed.
fn entropy(seed: u64) -> impl FnMut(&mut [u8]) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |bytes| {
        for byte in bytes {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state.to_le_bytes()[3];
        }
    }
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_below(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// What a stolen edge could put among the key rings: noise, a huge object, and a real but old ring under a newer name.
fn plant_junk(tenant: &Tenant) {
    std::fs::write(tenant.path(u64::MAX), b"junk").expect("put");
    let huge = std::fs::File::create(tenant.path(u64::MAX - 1)).expect("put");
    huge.set_len(8 << 30).expect("a sparse file");
    std::fs::copy(tenant.path(1), tenant.path(u64::MAX - 2)).expect("put");
    let unnamed = tenant.path(1).with_file_name("zz");
    std::fs::write(unnamed, b"junk").expect("put");
}

#[tokio::test(flavor = "multi_thread")]
async fn junk_among_the_key_rings_stops_neither_a_start_nor_a_recovery() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    let tenant = Tenant::of(&cloud, &edge);
    tenant.rotate(1);
    plant_junk(&tenant);
    edge.start(&[]);
    assert_eq!(status(&edge)["volume"]["key_epoch"], 2);
    edge.client().await.write("letter", b"whole").await;
    edge.succeed(&["sync"]);
    edge.stop();

    std::fs::remove_file(cloud.path().join("table.redb")).expect("the table is lost");
    let mut next = Machine::new(&cloud, "b", "main");
    let phrase = edge.config.with_file_name("phrase");
    let said = next.succeed(&[
        "recover",
        "--phrase-file",
        phrase.to_str().expect("a path"),
        "--yes",
    ]);
    for name in ["ffffffffffffffff", "fffffffffffffffe", "fffffffffffffffd", "zz"] {
        assert!(said.contains(name), "{name} is not named: {said}");
    }
    next.start(&[]);
    let read = next.client().await.read("letter").await;
    assert_eq!(read.as_deref(), Some(&b"whole"[..]));
    next.stop();
}

#[test]
fn more_junk_than_is_looked_at_does_not_stop_a_start() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    let tenant = Tenant::of(&cloud, &edge);
    tenant.rotate(1);
    for generation in 0x1000..0x1100 {
        std::fs::write(tenant.path(generation), b"junk").expect("put");
    }
    edge.start(&[]);
    assert_eq!(status(&edge)["volume"]["key_epoch"], 2);
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ring_that_was_seen_is_never_followed_by_an_older_one() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    let tenant = Tenant::of(&cloud, &edge);
    tenant.rotate(1);
    let second = std::fs::read(tenant.path(2)).expect("the second ring");
    edge.start(&[]);
    edge.stop();
    let (_, before) = tenant.epochs(&BTreeSet::new());

    // The bucket shows an older state. The edge goes on with what it has seen, and puts it back.
    std::fs::remove_file(tenant.path(2)).expect("held back");
    edge.start(&[]);
    edge.client().await.write("letter", b"of the second epoch").await;
    edge.succeed(&["sync"]);
    let (epochs, _) = tenant.epochs(&before);
    assert_eq!(epochs, BTreeSet::from([2]));
    assert_eq!(std::fs::read(tenant.path(2)).expect("put back"), second);
    edge.stop();

    // Two rings of one generation: somebody with the phrase made another second one.
    std::fs::remove_file(tenant.path(2)).expect("removed");
    let first = tenant.ring(1);
    let keys = first.open(&tenant.phrase.recovery_secret()).expect("keys");
    let signer = tenant.phrase.signing_key();
    let (fork, _) = first.rotate(&keys, &signer, &mut entropy(99)).expect("a ring");
    std::fs::write(tenant.path(2), fork.encode()).expect("put");
    let said = edge.fail(1, &["run"]);
    assert!(said.contains("forked"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_edge_seals_under_a_new_epoch_and_an_idle_one_asks_nothing() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.configure(&cloud, "a", "main", FOLLOWING);
    edge.format();
    let tenant = Tenant::of(&cloud, &edge);
    edge.start(&[]);
    let files = edge.client().await;
    files.write("old", b"sealed under the first epoch").await;
    edge.succeed(&["sync"]);
    let (epochs, before) = tenant.epochs(&BTreeSet::new());
    assert_eq!(epochs, BTreeSet::from([1]));

    // Let the look that the commit is a reason for go by; then nothing is asked for.
    let mut requests = requests_of(&edge);
    let mut idle = false;
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let now = requests_of(&edge);
        idle = now == requests;
        if idle {
            break;
        }
        requests = now;
    }
    assert!(idle, "an idle edge asks for something every three seconds");

    tenant.rotate(1);
    files.write("new", b"sealed under the second epoch").await;
    let asked = Instant::now();
    while status(&edge)["volume"]["key_epoch"] != 2 {
        assert!(asked.elapsed() < TIMEOUT, "the new epoch is not taken");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    edge.succeed(&["sync"]);
    let (epochs, _) = tenant.epochs(&before);
    assert_eq!(epochs, BTreeSet::from([2]));
    // What is in the journal under the new epoch is replayed; old and new content is read from the bucket.
    files.write("newer", b"in a journal of both epochs").await;
    edge.kill();
    let _ = std::fs::remove_dir_all(edge.state.join("cache"));
    edge.start(&[]);
    let files = edge.client().await;
    for (name, content) in [
        ("old", &b"sealed under the first epoch"[..]),
        ("new", b"sealed under the second epoch"),
        ("newer", b"in a journal of both epochs"),
    ] {
        assert_eq!(files.read(name).await.as_deref(), Some(content));
    }
    assert!(edge.succeed(&["verify"]).starts_with("whole: 3 files"));
    edge.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_administrator_rekeys_while_a_client_works_and_the_old_key_is_needed_by_a_snapshot_only() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    let tenant = Tenant::of(&cloud, &edge);
    edge.start(&[]);
    let files = edge.client().await;
    let mut noise = entropy(5);
    let mut content = vec![0; 400_000];
    noise(&mut content);
    for number in 0..8 {
        files.write(&format!("old {number}"), &content).await;
    }
    edge.succeed(&["snapshot", "create", "monday"]);
    let said = edge.succeed(&["rekey", "status"]);
    assert!(said.contains("key epoch 1") && said.contains("done:"), "{said}");
    let (_, before) = tenant.epochs(&BTreeSet::new());

    // The edge is idle and has not seen the new ring: to start a rekey is a reason to look.
    tenant.rotate(1);
    let said = edge.succeed(&["rekey", "start", "--rate", "64 KiB"]);
    assert!(said.contains("under way to key epoch 2"), "{said}");
    assert_eq!(status(&edge)["volume"]["key_epoch"], 2);
    let again = edge.succeed(&["rekey", "start", "--rate", "256 KiB"]);
    assert!(again.contains("under way to key epoch 2"), "{again}");

    // A client reads and writes meanwhile, and the process is killed.
    files.write("new", b"written meanwhile").await;
    files.write_at("old 7", 100, b"changed meanwhile").await;
    assert_eq!(files.read("old 3").await.as_ref(), Some(&content));
    edge.kill();
    edge.start(&[]);
    let files = edge.client().await;
    let said = edge.succeed(&["rekey", "status"]);
    assert!(said.contains("under way to key epoch 2"), "{said}");
    let said = edge.succeed(&["rekey", "stop"]);
    assert!(
        said.contains("no rekey is under way") && said.contains("stopped"),
        "{said}"
    );
    let said = edge.succeed(&["rekey", "start", "--wait", "--rate", "1 GiB"]);
    assert!(
        said.contains("snapshot monday needs older keys") && !said.contains("done:"),
        "{said}"
    );
    let shown: serde_json::Value =
        serde_json::from_str(&edge.succeed(&["rekey", "status", "--json"])).expect("JSON");
    assert_eq!(
        (
            &shown["oldest_epoch"],
            &shown["oldest_epoch_needed"],
            &shown["is_done"]
        ),
        (&2.into(), &1.into(), &false.into())
    );

    edge.succeed(&["snapshot", "delete", "monday"]);
    let said = edge.succeed(&["rekey", "status"]);
    assert!(said.contains("done: nothing that can be reached"), "{said}");
    let (epochs, _) = tenant.epochs(&before);
    assert_eq!(epochs.last(), Some(&2));
    content[100..117].copy_from_slice(b"changed meanwhile");
    assert_eq!(files.read("old 7").await.as_ref(), Some(&content));
    assert_eq!(
        files.read("new").await.as_deref(),
        Some(&b"written meanwhile"[..])
    );
    let said = edge.succeed(&["verify"]);
    assert!(
        said.starts_with("whole:") && said.contains("key epoch 2 only"),
        "{said}"
    );
    let said = edge.fail(2, &["rekey", "start", "--rate", "soon"]);
    assert!(said.contains("rate"), "{said}");
    edge.stop();
}

fn requests_of(edge: &Machine) -> (u64, u64) {
    let status = status(edge);
    let of = |part: &str| status[part]["requests"].as_u64().expect("a number");
    (of("store"), of("table"))
}
