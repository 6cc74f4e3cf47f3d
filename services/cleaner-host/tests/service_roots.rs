//! The cleaner of a service: one bucket with the volumes of two tenants, whose roots lie in one table beside everybody's rows.
//!
//! Real edges make the volumes, each with a table of its own; then their roots are laid into the service's table where `firn-api` has
//! them, the host cleans, and the edges go on with what it left them.

#![recursion_limit = "256"]
#![allow(
    clippy::disallowed_methods,
    reason = "it starts real programs, and waits for them in real time"
)]

use firn_cleaner_host::{Host, Round, Second, Settings, Target};
use firn_env::Env;
use firn_identity::{TenantId, TenantVolume, VolumeId};
use firn_integration::Tree;
use firn_mirror::MirrorOptions;
use firn_rig::{Client, EXPORT, Edge};
use firn_table::{Condition, ItemKey, RedbTable, Table, Write};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

const LEFT: Duration = Duration::from_secs(300);
/// A page of a query, and puts of one transaction.
const AT_ONCE: usize = 50;

struct Office {
    volume: TenantVolume,
    edge: Edge,
    tree: Tree,
    family: String,
    table: PathBuf,
    place: PathBuf,
}

impl Office {
    /// A volume most of which was overwritten, in its place of the bucket; its edge is off.
    async fn open(root: &Path, number: u8) -> Self {
        let volume = TenantVolume {
            tenant: TenantId([number; 16]),
            volume: VolumeId([number + 100; 16]),
        };
        let place = root.join("bucket").join(volume.to_string());
        fs::create_dir_all(&place).expect("a place in the bucket");
        let directory = root.join(format!("office-{number}"));
        let mut edge = Edge::format_local(
            Edge::binary().expect("the edge's program"),
            &directory,
            |settings| {
                settings.store = format!("file://{}", place.display());
            },
        )
        .await
        .expect("a new volume");
        edge.start().await.expect("it serves");
        let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
        let mut tree = Tree::default();
        for salt in ["first", "second", "third"] {
            tree.write(&mut client, "rewritten", 24, 200_000, &format!("{number} {salt}"))
                .await
                .expect("files");
            edge.sync().await.expect("everything in the store");
        }
        drop(client);
        edge.stop().await.expect("a clean end");
        let family = families(&place).remove(0);
        Self {
            volume,
            edge,
            tree,
            family,
            table: directory.join("table.redb"),
            place,
        }
    }

    /// Where its roots lie: in the edge's table, and in the service's.
    fn partitions(&self) -> (String, String) {
        (format!("family/{}", self.family), self.volume.roots_partition())
    }

    fn log_bytes(&self) -> u64 {
        bytes_below(&self.place.join(&self.family).join("log"))
    }
}

fn families(place: &Path) -> Vec<String> {
    let entries = fs::read_dir(place).expect("a place");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let families = paths.filter(|path| path.join("log").is_dir());
    families
        .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect()
}

fn bytes_below(path: &Path) -> u64 {
    if path.is_dir() {
        let entries = fs::read_dir(path).expect("a directory");
        return entries
            .map(|entry| bytes_below(&entry.expect("an entry").path()))
            .sum();
    }
    fs::metadata(path).expect("a file").len()
}

/// All items of a partition, without their versions.
async fn items(table: &dyn Table, partition: &str) -> Vec<(String, Vec<u8>)> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = table
            .query(partition, "", after.as_deref(), AT_ONCE)
            .await
            .expect("a page");
        found.extend(
            page.items
                .into_iter()
                .map(|item| (item.key.sort, item.value.to_vec())),
        );
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

async fn copy(from: &dyn Table, partition: &str, to: &dyn Table, other: &str) {
    for some in items(from, partition).await.chunks(AT_ONCE) {
        let puts = some.iter().map(|(sort, value)| Write::Put {
            key: ItemKey::new(other, &**sort),
            value: value.clone().into(),
            condition: Condition::Absent,
        });
        to.transact(puts.collect()).await.expect("items");
    }
}

async fn open(env: &Env, path: &Path) -> RedbTable {
    RedbTable::open(env, path).await.expect("a table")
}

async fn round(env: &Env, root: &Path) -> Round {
    host(env, root).clean_all(LEFT).await.expect("a round")
}

fn host(env: &Env, root: &Path) -> Host {
    let settings = Settings::from_variables(
        [
            (
                "FIRN_CLEANER_STORE",
                format!("file://{}", root.join("bucket").display()),
            ),
            (
                "FIRN_CLEANER_TABLE",
                format!("redb:{}", root.join("service.redb").display()),
            ),
            ("FIRN_CLEANER_ROOTS", "service".to_owned()),
            ("FIRN_CLEANER_GRACE_SECONDS", "0".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    )
    .expect("settings");
    Host::new(env.clone(), settings)
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_of_all_tenants_are_cleaned_by_the_roots_that_the_service_keeps_and_nothing_else_of_its_table_changes()
 {
    let place = tempfile::tempdir().expect("a temporary directory");
    let root = place.path();
    let env = firn_env::real(root).expect("an environment");
    let mut offices = [Office::open(root, 1).await, Office::open(root, 2).await];
    let before = offices.each_ref().map(Office::log_bytes);

    let service = open(&env, &root.join("service.redb")).await;
    for office in &offices {
        let (known, kept) = office.partitions();
        copy(&open(&env, &office.table).await, &known, &service, &kept).await;
    }
    // Rows of the service, and roots of a family that is known by the id of another's: none of the cleaner's business.
    let others = [
        offices[0].volume.tenant.to_string(),
        "service".to_owned(),
        offices[0].partitions().0,
    ];
    for partition in &others {
        copy(&service, &offices[1].partitions().1, &service, partition).await;
    }
    let rows = items(&service, &others[0]).await;
    // A log of the first volume's in the second one's place: the roots that belong to the place do not lead there.
    let stray = offices[1].place.join(&offices[0].family);
    copy_tree(&offices[0].place.join(&offices[0].family), &stray);
    let stray_bytes = bytes_below(&stray);
    drop(service);

    let mut requests = BTreeMap::new();
    for _ in 0..4 {
        let done = round(&env, root).await;
        assert_eq!(done.cleaned.len(), 2, "{done:?}");
        for cleaned in &done.cleaned {
            let report = cleaned.report.as_ref().expect("it was done");
            assert!(report.damaged.is_empty(), "{report:?}");
            let volume = cleaned.volume.clone().expect("its volume");
            *requests.entry(volume).or_insert(0) += report.usage.requests();
        }
        let [failed] = &done.failed[..] else {
            panic!("one stray log: {done:?}")
        };
        assert_eq!(failed.volume, Some(offices[1].volume.to_string()));
        assert!(failed.why.contains("do not belong together"), "{}", failed.why);
    }
    assert_eq!(bytes_below(&stray), stray_bytes);
    let service: Arc<dyn Table> = Arc::new(open(&env, &root.join("service.redb")).await);
    for office in &offices {
        let (_, kept) = office.partitions();
        let family = office.family.parse().expect("a family");
        let role = firn_anchor::AnchorRole::Observer;
        let anchor = firn_anchor::Anchor::within(service.clone(), env.clone(), family, kept, role);
        let (account, _) = anchor.cleaning_account().await.expect("an account");
        // The last round listed what the one before had left, and found nothing more to delete.
        assert_eq!(account.listed_bytes, office.log_bytes());
        let (reported, rounds) = (requests[&office.volume.to_string()], 4);
        assert!(
            (reported + rounds..=reported + 3 * rounds).contains(&account.requests),
            "{reported} in reports, and a few each round to see that the log is the volume's: {account:?}"
        );
        assert!(account.stored_byte_ms > 0, "{account:?}");
    }
    for partition in &others {
        assert_eq!(items(&*service, partition).await, rows, "{partition}");
    }
    for (office, before) in offices.iter_mut().zip(before) {
        let after = office.log_bytes();
        assert!(after < before * 2 / 3, "{after} of {before} bytes are left");
        let (known, kept) = office.partitions();
        fs::remove_file(&office.table).expect("the edge's table");
        copy(&*service, &kept, &open(&env, &office.table).await, &known).await;
        office.edge.wipe_cache().expect("an empty cache");
        office.edge.start().await.expect("it starts after the cleaner");
        let mut client = Client::mount(office.edge.address, EXPORT).await.expect("a mount");
        office
            .tree
            .is_what_is_there(&mut client)
            .await
            .expect("everything");
        drop(client);
        let said = office.edge.command("verify", &[]).await.expect("no damage");
        assert!(said.starts_with("whole"), "{said}");
        office.edge.stop().await.expect("a clean end");
    }
}

fn copy_tree(from: &Path, to: &Path) {
    if !from.is_dir() {
        fs::copy(from, to).expect("a copy");
        return;
    }
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        copy_tree(&entry.path(), &to.join(entry.file_name()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_bucket_lost_is_repaired_where_the_service_keeps_the_roots() {
    let place = tempfile::tempdir().expect("a temporary directory");
    let root = place.path();
    let env = firn_env::real(root).expect("an environment");
    let mut office = Office::open(root, 1).await;
    let (known, kept) = office.partitions();
    let service = open(&env, &root.join("service.redb")).await;
    copy(&open(&env, &office.table).await, &known, &service, &kept).await;
    drop(service);

    let mirror = root.join("mirror");
    fs::create_dir(&mirror).expect("a second store");
    let second = |repairs| Second {
        store: format!("file://{}", mirror.display())
            .parse()
            .expect("an address"),
        options: MirrorOptions {
            keep_deleted: Duration::from_secs(3600),
            compare_every: Duration::from_secs(3600),
        },
        repairs,
        grouping: None,
    };
    let target = Target {
        volume: Some(office.volume),
        family: office.family.parse().expect("a family"),
    };
    let mirrored = async |repairs| {
        let mirrored = host(&env, root).mirror(target, &second(repairs)).await;
        mirrored.expect("both stores answer")
    };
    assert!(mirrored(true).await.copied > 0);
    let log = office.place.join(&office.family).join("log");
    let mut segments: Vec<PathBuf> = fs::read_dir(log)
        .expect("a log")
        .flat_map(|writer| fs::read_dir(writer.expect("an entry").path()).expect("a writer's log"))
        .map(|segment| segment.expect("an entry").path())
        .collect();
    segments.sort_by_key(|segment| {
        fs::metadata(segment)
            .expect("a segment")
            .modified()
            .expect("a time")
    });
    // The newest: what it has is needed.
    fs::remove_file(segments.pop().expect("a segment")).expect("removed");
    let seen = mirrored(false).await;
    assert_eq!((seen.lost_segments, seen.waiting), (1, 1), "{seen:?}");
    let done = mirrored(true).await;
    assert_eq!((done.lost_segments, done.repaired), (1, 1), "{done:?}");
    assert!(done.repaired_bytes > 0 && done.is_whole(), "{done:?}");
    assert_eq!(mirrored(true).await.lost_segments, 0);

    // Somebody else's volume, or one that nobody knows, is not touched.
    let stranger = Target {
        volume: Some(TenantVolume {
            tenant: TenantId([9; 16]),
            ..office.volume
        }),
        ..target
    };
    let refused = host(&env, root).mirror(stranger, &second(true)).await;
    refused.expect_err("no such volume");

    let service = open(&env, &root.join("service.redb")).await;
    fs::remove_file(&office.table).expect("the edge's table");
    copy(&service, &kept, &open(&env, &office.table).await, &known).await;
    office.edge.wipe_cache().expect("an empty cache");
    office.edge.start().await.expect("it starts after the repair");
    let mut client = Client::mount(office.edge.address, EXPORT).await.expect("a mount");
    office
        .tree
        .is_what_is_there(&mut client)
        .await
        .expect("everything, from the first store alone");
    drop(client);
    office.edge.stop().await.expect("a clean end");
}
