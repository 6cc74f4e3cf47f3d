//! An older build on newer data is refused in one line that says what to do, whatever the newer build wrote, and changes nothing.

use crate::{
    machine::{Cloud, Machine},
    noise::noise,
};
use firn_table::{Condition, Item, ItemKey, RedbTable, Table as _, Write};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// All files below a directory and their bytes, but for what is none of a volume's: sockets, the test's own log.
fn tree(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.is_file() && !path.ends_with("edge.log") {
                let bytes = std::fs::read(&path).expect("its bytes");
                found.insert(path, bytes);
            }
        }
    }
    found
}

/// The names of what differs.
fn differing(before: &BTreeMap<PathBuf, Vec<u8>>, after: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<PathBuf> {
    let all = before.keys().chain(after.keys());
    let differing = all.filter(|path| before.get(*path) != after.get(*path));
    differing.cloned().collect()
}

/// What a start changed in the state before it was refused by what bucket or table have, but for two things that are nobody's data: the number
/// of the start, by which clients know that locks are to be reclaimed, and copies of what was read from the bucket.
fn changed_state(edge: &Machine, before: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<PathBuf> {
    let mut changed = differing(before, &tree(&edge.state));
    changed.retain(|path| {
        !path.starts_with(edge.state.join("nsm")) && !path.starts_with(edge.state.join("cache"))
    });
    changed
}

/// `run` ends with one line that says what happened, what is safe, what to do.
fn refused(edge: &Machine, about: &str, parts: &[&str]) {
    let said = edge.fail(2, &["run"]);
    assert_eq!(said.trim().lines().count(), 1, "{about}: {said}");
    for part in parts.iter().chain(&["Nothing was changed", "nstall "]) {
        assert!(said.contains(part), "{about}: {part}: {said}");
    }
}

/// A volume with something that is committed, and something that only the journal has.
async fn written(cloud: &Cloud) -> Machine {
    let mut edge = Machine::new(cloud, "a", "main");
    edge.format();
    edge.start(&[]);
    edge.client().await.write("plan", &noise(1, 300_000)).await;
    edge.succeed(&["sync"]);
    edge.client().await.write("later", &noise(2, 300_000)).await;
    edge.kill();
    edge
}

async fn serves_all(edge: &mut Machine) {
    edge.start(&[]);
    let client = edge.client().await;
    assert_eq!(client.read("plan").await, Some(noise(1, 300_000)));
    assert_eq!(client.read("later").await, Some(noise(2, 300_000)));
    drop(client);
    edge.stop();
}

/// The first file below a directory of the state that begins so.
fn file_of(edge: &Machine, directory: &str, magic: &[u8]) -> PathBuf {
    let found = tree(&edge.state.join(directory)).into_iter();
    let mut found = found.filter(|(_, bytes)| bytes.starts_with(magic));
    found
        .next()
        .unwrap_or_else(|| panic!("{directory} has such a file"))
        .0
}

#[tokio::test(flavor = "multi_thread")]
async fn any_newer_file_of_the_state_is_refused_before_anything_is_changed() {
    let cloud = Cloud::new();
    let mut edge = written(&cloud).await;
    // Usage of an edge that joined lies there; this one has none to deliver.
    std::fs::create_dir(edge.state.join("usage")).expect("a directory");
    std::fs::write(edge.state.join("usage/00000000000000000001.spool"), b"FSPL\x01").expect("written");
    let version_9 =
        |bytes: &mut [u8], at: usize| bytes[at] = if bytes[at].is_ascii_digit() { b'9' } else { 9 };
    let feature = |bytes: &mut [u8], at: usize| bytes[at] |= 0x10;
    let files = [
        ("identity", edge.state.join("identity"), 8, None),
        ("key ring", edge.state.join("key-ring"), 8, Some(10)),
        ("local state", edge.state.join("state"), 0, None),
        (
            "journal file",
            file_of(&edge, "journal", b"FIRNJRNL"),
            8,
            Some(10),
        ),
        ("object", file_of(&edge, "checkpoint", b"FOBJ"), 8, Some(10)),
        ("segment", file_of(&edge, "unconfirmed", b"FIRNSEGM"), 8, Some(10)),
        ("usage spool", file_of(&edge, "usage", b"FSPL"), 4, None),
        ("list of lock clients", edge.state.join("nsm/clients"), 7, None),
    ];
    for (kind, path, version_at, features_at) in files {
        let whole = std::fs::read(&path).expect("its bytes");
        let mut newer = vec![(format!("this {kind} has version 9"), whole.clone())];
        version_9(&mut newer[0].1, version_at);
        if let Some(at) = features_at {
            newer.push((format!("this {kind} needs features 0x0010"), whole.clone()));
            feature(&mut newer[1].1, at);
        }
        for (said, bytes) in newer {
            std::fs::write(&path, bytes).expect("written");
            let before = tree(cloud.path());
            refused(&edge, kind, &[&said, "everything acknowledged is safe"]);
            assert_eq!(
                differing(&before, &tree(cloud.path())),
                Vec::<PathBuf>::new(),
                "{said}"
            );
            let judged = edge.fail(1, &["upgrade", "--check", "--offline"]);
            assert!(
                judged.contains("cannot work  state") && judged.contains(&said),
                "{said}: {judged}"
            );
        }
        std::fs::write(&path, whole).expect("written");
    }
    std::fs::remove_dir_all(edge.state.join("usage")).expect("removed");
    serves_all(&mut edge).await;
}

/// What the disk cache has is a copy: what is not understood there is fetched anew, and no reason to keep clients waiting.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_newer_in_the_disk_cache_is_fetched_anew() {
    let cloud = Cloud::new();
    let mut edge = written(&cloud).await;
    // Behind the journal, and no longer waiting to be read back.
    edge.start(&[]);
    edge.succeed(&["sync"]);
    edge.stop();
    edge.wipe_cache();
    serves_all(&mut edge).await;
    let cache = edge.state.join("cache");
    let mut changed = 0;
    for (path, mut bytes) in tree(&cache) {
        for at in 0..bytes.len().saturating_sub(12) {
            if bytes[at..].starts_with(b"FOBJ") {
                bytes[at + 8] = 9;
                changed += 1;
            }
        }
        std::fs::write(path, bytes).expect("written");
    }
    assert!(changed > 0, "the cache holds objects");
    serves_all(&mut edge).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_root_in_the_bucket_is_refused_and_neither_bucket_nor_table_nor_journal_is_changed() {
    let cloud = Cloud::new();
    let mut edge = written(&cloud).await;
    // The newest checkpoint is the last object of the newest segment.
    let segment = cloud.segments().pop().expect("a segment");
    let whole = std::fs::read(&segment).expect("its bytes");
    let root = whole
        .windows(4)
        .rposition(|four| four == b"FOBJ")
        .expect("an object");
    for (said, at, value) in [
        ("object has format version 9", root + 8, 9),
        ("object needs features 0x0010", root + 10, 0x10),
    ] {
        let mut newer = whole.clone();
        newer[at] = value;
        std::fs::write(&segment, newer).expect("written");
        for copies in ["cache", "unconfirmed", "checkpoint"] {
            let _ = std::fs::remove_dir_all(edge.state.join(copies));
        }
        let (bucket, state) = (tree(&cloud.path().join("store")), tree(&edge.state));
        let table = items(&cloud).await;
        refused(
            &edge,
            said,
            &[said, "written by a newer build", "everything is where it was"],
        );
        assert_eq!(
            differing(&bucket, &tree(&cloud.path().join("store"))),
            Vec::<PathBuf>::new(),
            "{said}"
        );
        assert_eq!(changed_state(&edge, &state), Vec::<PathBuf>::new(), "{said}");
        assert_eq!(items(&cloud).await, table, "{said}");
    }
    std::fs::write(&segment, whole).expect("written");
    serves_all(&mut edge).await;
}

/// The family's name.
fn family(cloud: &Cloud) -> String {
    let store = cloud.path().join("store");
    let segment = cloud.segments().pop().expect("a segment");
    let key = segment.strip_prefix(store).expect("within the store");
    let family = key.components().next().expect("a family");
    family.as_os_str().to_str().expect("hexadecimal").to_owned()
}

async fn table(cloud: &Cloud) -> RedbTable {
    let env = firn_env::real(cloud.path()).expect("an environment");
    let table = RedbTable::open(&env, &cloud.path().join("table.redb")).await;
    table.expect("the table")
}

/// What the table has, item by item: the file's own bytes are redb's, which changes them when it is opened.
async fn items(cloud: &Cloud) -> Vec<Item> {
    let page = table(cloud)
        .await
        .query(&format!("family/{}", family(cloud)), "", None, 1000)
        .await
        .expect("its items");
    assert!(page.items.len() > 2, "{page:?}");
    page.items
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_tuples_of_the_table_are_refused_and_nothing_is_changed_anywhere() {
    let cloud = Cloud::new();
    let mut edge = written(&cloud).await;
    for item in items(&cloud).await {
        if !item.key.sort.starts_with("volume/") {
            continue;
        }
        // Its layout; the flags behind its kind, of which two are set.
        assert_eq!(item.value[2], 3);
        for (about, at, value) in [("layout 9 is unknown", 0, 9), ("flags 0x83 are unknown", 2, 0x83)] {
            let mut bytes = item.value.to_vec();
            bytes[at] = value;
            put(&cloud, &item.key, bytes).await;
            let (before, bucket, state) = (
                items(&cloud).await,
                tree(&cloud.path().join("store")),
                tree(&edge.state),
            );
            refused(
                &edge,
                &item.key.sort,
                &[about, "a newer build wrote it", &item.key.sort],
            );
            assert_eq!(items(&cloud).await, before, "{about}");
            assert_eq!(
                differing(&bucket, &tree(&cloud.path().join("store"))),
                Vec::<PathBuf>::new(),
                "{about}"
            );
            assert_eq!(changed_state(&edge, &state), Vec::<PathBuf>::new(), "{about}");
            put(&cloud, &item.key, item.value.to_vec()).await;
        }
    }
    serves_all(&mut edge).await;
}

/// Replaces an item.
async fn put(cloud: &Cloud, key: &ItemKey, value: Vec<u8>) {
    let table = table(cloud).await;
    let current = table.get(key).await.expect("an answer").expect("it is there");
    let write = Write::Put {
        key: key.clone(),
        value: value.into(),
        condition: Condition::Version(current.version),
    };
    table.transact(vec![write]).await.expect("it is put");
}

/// A ring of the volume's tenant as a later version of firn might sign it, or as somebody without the tenant's key would plant it.
fn ring_of_version_9(cloud: &Cloud, edge: &Machine, is_signed: bool) -> (PathBuf, Vec<u8>) {
    const LABEL: &[u8] = b"firn 1 key ring signature";
    const SIGNATURE_BYTES: usize = 64;
    let path = cloud.path().join("store").join(family(cloud)).join("keyring");
    let mut ring = std::fs::read(path.join(format!("{:016x}", 1))).expect("the first ring");
    ring.truncate(ring.len() - SIGNATURE_BYTES);
    ring[8] = 9;
    let words = std::fs::read_to_string(edge.config.with_file_name("phrase")).expect("the phrase");
    let phrase = firn_seal::RecoveryPhrase::parse(words.trim()).expect("a phrase");
    let signature = match is_signed {
        true => phrase.signing_key().sign(&[LABEL, &ring].concat()),
        false => [7; SIGNATURE_BYTES],
    };
    ring.extend(signature);
    (path.join(format!("{:016x}", 2)), ring)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_key_ring_in_the_bucket_is_refused_if_the_tenant_signed_it_and_passed_over_if_not() {
    let cloud = Cloud::new();
    let mut edge = written(&cloud).await;
    let (path, signed) = ring_of_version_9(&cloud, &edge, true);
    std::fs::write(&path, signed).expect("put");
    let (bucket, table, state) = (
        tree(&cloud.path().join("store")),
        items(&cloud).await,
        tree(&edge.state),
    );
    refused(
        &edge,
        "key ring",
        &[
            "key ring has format version 9",
            "the tenant signed it",
            "everything acknowledged is safe",
        ],
    );
    assert_eq!(
        differing(&bucket, &tree(&cloud.path().join("store"))),
        Vec::<PathBuf>::new()
    );
    assert_eq!(items(&cloud).await, table);
    assert_eq!(changed_state(&edge, &state), Vec::<PathBuf>::new());

    std::fs::write(&path, ring_of_version_9(&cloud, &edge, false).1).expect("put");
    serves_all(&mut edge).await;
    assert!(
        edge.log().contains("is none of the tenant's and was passed over"),
        "{}",
        edge.log()
    );
}
