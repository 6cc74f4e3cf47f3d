//! The conformance suite on the engines of this crate, and what is peculiar to each.

use firn_env::Env;
use firn_table::{
    Condition, Fault, ItemKey, MemoryTable, Metered, RedbTable, Table, TableError, TablePrices, Write,
    conformance,
};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

fn put(key: &ItemKey, value: &'static [u8], condition: Condition) -> Write {
    Write::Put {
        key: key.clone(),
        value: value.into(),
        condition,
    }
}

fn environment() -> (tempfile::TempDir, Env) {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    (directory, env)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_table_conforms() {
    let (_directory, env) = environment();
    conformance::run(MemoryTable::new().connect(&env), &env, "memory").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_table_conforms_metered_and_again_after_it_was_reopened() {
    let (directory, env) = environment();
    let path = directory.path().join("table.redb");
    for round in ["first", "second"] {
        let table = RedbTable::open(&env, &path).await.unwrap();
        let metered = Arc::new(Metered::new(Arc::new(table), TablePrices::DYNAMODB_ON_DEMAND));
        conformance::run(metered.clone(), &env, round).await;
        let usage = metered.usage();
        assert_eq!(
            usage.nano_dollars,
            usage.read_units * 125 + usage.write_units * 625
        );
        assert!(
            usage.condition_failures > 100 && usage.unavailable == 0,
            "{usage:?}"
        );
    }
}

#[tokio::test]
async fn where_requests_are_priced_each_costs_the_same_whatever_it_asks_for() {
    let (_directory, env) = environment();
    let metered = Metered::new(MemoryTable::new().connect(&env), TablePrices::AZURE_TABLE);
    let key = ItemKey::new("p", "s");
    metered.get(&key).await.unwrap();
    metered.query("p", "", None, 1000).await.unwrap();
    metered
        .transact(vec![Write::Put {
            key,
            value: vec![7; 100_000].into(),
            condition: Condition::Absent,
        }])
        .await
        .unwrap();
    let usage = metered.usage();
    assert_eq!(
        usage.nano_dollars,
        3 * TablePrices::AZURE_TABLE.request_nano_dollars,
        "{usage:?}"
    );
}

#[tokio::test]
async fn what_the_embedded_table_acknowledged_is_there_after_reopening() {
    let (directory, env) = environment();
    let path = directory.path().join("table.redb");
    let key = ItemKey::new("p", "s");
    let table = RedbTable::open(&env, &path).await.unwrap();
    let applied = table
        .transact(vec![put(&key, b"kept", Condition::Absent)])
        .await
        .unwrap();
    drop(table);
    let item = RedbTable::open(&env, &path)
        .await
        .unwrap()
        .get(&key)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((Some(item.version), &item.value[..]), (applied[0], &b"kept"[..]));
}

/// Run by the next test in a process of its own, on a file named by the environment.
#[tokio::test]
async fn child_that_opens_a_table_in_another_process() {
    let Ok(path) = std::env::var("FIRN_TEST_OPEN_TABLE") else {
        return;
    };
    let (_directory, env) = environment();
    match RedbTable::open(&env, Path::new(&path)).await {
        Ok(_) => println!("opened"),
        Err(error) => println!("refused: {error}"),
    }
}

#[tokio::test]
async fn a_second_process_is_refused_with_a_clear_word_until_the_first_ends() {
    let (directory, env) = environment();
    let path = directory.path().join("table.redb");
    let other_process = || {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_that_opens_a_table_in_another_process",
                "--nocapture",
            ])
            .env("FIRN_TEST_OPEN_TABLE", &path)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let table = RedbTable::open(&env, &path).await.unwrap();
    let refused = other_process();
    assert!(
        refused.contains("refused: the table refuses: ") && refused.contains("in use by another process"),
        "{refused}"
    );
    assert!(
        matches!(RedbTable::open(&env, &path).await, Err(TableError::Refused(_))),
        "nor twice in one process"
    );
    drop(table);
    let opened = other_process();
    assert!(opened.contains("opened"), "{opened}");
}

/// Run by the next test in a process of its own: counts in the table and prints each count once it is acknowledged.
#[tokio::test]
async fn child_that_counts_in_a_table_until_it_is_killed() {
    let Ok(path) = std::env::var("FIRN_TEST_COUNT_IN_TABLE") else {
        return;
    };
    let (_directory, env) = environment();
    let table = RedbTable::open(&env, Path::new(&path)).await.unwrap();
    let key = ItemKey::new("p", "count");
    for _ in 0..1_000_000 {
        let (count, condition) = match table.get(&key).await.unwrap() {
            None => (0, Condition::Absent),
            Some(item) => (
                u64::from_le_bytes(item.value[..].try_into().unwrap()),
                Condition::Version(item.version),
            ),
        };
        let write = Write::Put {
            key: key.clone(),
            value: (count + 1).to_le_bytes().to_vec().into(),
            condition,
        };
        table.transact(vec![write]).await.unwrap();
        println!("count {}", count + 1);
    }
}

#[tokio::test]
async fn a_killed_process_loses_nothing_that_was_acknowledged() {
    let (directory, env) = environment();
    let path = directory.path().join("table.redb");
    let mut acknowledged = 0;
    for _ in 0..5 {
        let mut counter = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "child_that_counts_in_a_table_until_it_is_killed",
                "--nocapture",
            ])
            .env("FIRN_TEST_COUNT_IN_TABLE", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let goal = acknowledged + 20;
        for line in BufReader::new(counter.stdout.take().unwrap()).lines() {
            if let Some(count) = line.unwrap().strip_prefix("count ") {
                acknowledged = count.parse().unwrap();
            }
            if acknowledged == goal {
                counter.kill().unwrap();
            }
        }
        counter.wait().unwrap();
        assert!(acknowledged >= goal, "the counter ended by itself");
        let table = RedbTable::open(&env, &path).await.unwrap();
        let item = table.get(&ItemKey::new("p", "count")).await.unwrap().unwrap();
        let found = u64::from_le_bytes(item.value[..].try_into().unwrap());
        assert!(
            found == acknowledged || found == acknowledged + 1,
            "{found} after {acknowledged} were acknowledged"
        );
        acknowledged = found;
    }
}

#[tokio::test]
async fn a_file_that_is_no_table_is_refused_and_left_alone() {
    let (directory, env) = environment();
    for (name, content) in [
        ("text", b"root: 1234\n".repeat(2000)),
        ("short", b"r".to_vec()),
        ("zeros", vec![0; 64 << 10]),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, &content).unwrap();
        let error = RedbTable::open(&env, &path).await.err().expect(name).to_string();
        assert!(
            error.contains(name) && error.contains("damaged"),
            "{name}: {error}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), content, "{name} was changed");
    }
    let error = RedbTable::open(&env, &directory.path().join("absent/table"))
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("absent/table"), "{error}");
}

/// Flips bytes all over a valid file: each time the table opens with every value right, or is refused; never a panic, never
/// a wrong value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_is_refused_or_reads_right_but_never_wrong() {
    let (directory, env) = environment();
    let path = directory.path().join("table.redb");
    let keys: Vec<_> = (0..40)
        .map(|number| ItemKey::new("p", format!("{number:03}")))
        .collect();
    let table = RedbTable::open(&env, &path).await.unwrap();
    for key in &keys {
        table
            .transact(vec![put(key, &[0x5a; 700], Condition::Absent)])
            .await
            .unwrap();
    }
    drop(table);
    let valid = std::fs::read(&path).unwrap();
    // Each bit of the flags, each byte of the commit slots behind them, and a stretch of each 4 KiB page.
    let flags = (0..16).flat_map(|at| (0..8).map(move |bit| (at, 1, 1 << bit)));
    let slots = (16..320).map(|at| (at, 1, 0xff));
    let pages = (0..valid.len() / 4096).map(|page| (page * 4096 + page * 37 % 4000, 64, 0xff));
    let (mut refused, mut right) = (0, 0);
    for (at, length, flipped) in flags.chain(slots).chain(pages) {
        let mut damaged = valid.clone();
        for byte in &mut damaged[at..at + length] {
            *byte ^= flipped;
        }
        let copy = directory.path().join("damaged.redb");
        std::fs::write(&copy, &damaged).unwrap();
        let mut result = RedbTable::open(&env, &copy).await;
        if result.is_err() {
            // Nor may a second try find it quietly set back.
            refused += 1;
            result = RedbTable::open(&env, &copy).await;
        }
        match result {
            Err(TableError::Refused(_)) => {}
            Err(other) => panic!("byte {at}: {other}"),
            Ok(table) => {
                right += 1;
                for key in &keys {
                    match table.get(key).await {
                        Ok(Some(item)) => assert_eq!(item.value[..], [0x5a; 700], "byte {at}"),
                        Ok(None) => {
                            panic!("byte {at} ^ {flipped:#x}: an acknowledged item vanished without a word")
                        }
                        Err(error) => assert!(matches!(error, TableError::Refused(_)), "byte {at}: {error}"),
                    }
                }
            }
        }
    }
    println!("{refused} damaged files were refused, {right} were opened with every value right");
    assert!(refused > 20 && right > 20);
}

#[tokio::test]
async fn faults_of_the_memory_table_hit_one_client_as_scripted() {
    let (_directory, env) = environment();
    let table = MemoryTable::new();
    let (troubled, calm) = (table.connect(&env), table.connect(&env));
    let key = |sort: &str| ItemKey::new("p", sort);
    let write = |sort: &str| vec![put(&key(sort), b"x", Condition::Absent)];

    troubled.script([Fault::Throttle, Fault::LoseReply, Fault::Late { requests: 2 }]);
    for sort in ["throttled", "lost", "late"] {
        let result = troubled.transact(write(sort)).await;
        assert!(
            matches!(result, Err(TableError::Unavailable(_))),
            "{sort}: {result:?}"
        );
    }
    assert_eq!(calm.get(&key("throttled")).await.unwrap(), None, "never happens");
    assert!(
        calm.get(&key("late")).await.unwrap().is_some(),
        "lands with the second request after it"
    );
    assert!(calm.get(&key("lost")).await.unwrap().is_some(), "happened");

    troubled.set_outage(true);
    assert!(troubled.get(&key("lost")).await.is_err());
    assert!(
        calm.get(&key("lost")).await.is_ok(),
        "the other machine is not cut off"
    );
    troubled.set_outage(false);
    assert!(troubled.get(&key("lost")).await.is_ok());
    assert_eq!((troubled.counts().requests(), calm.counts().requests()), (5, 4));
    assert_eq!(table.counts().requests(), 9);
}

#[tokio::test]
async fn a_late_write_obeys_its_condition_when_it_lands() {
    let (_directory, env) = environment();
    let table = MemoryTable::new();
    let client = table.connect(&env);
    let key = ItemKey::new("p", "s");
    client.script([Fault::Late { requests: 100 }]);
    assert!(
        client
            .transact(vec![put(&key, b"late", Condition::Absent)])
            .await
            .is_err()
    );
    client
        .transact(vec![put(&key, b"early", Condition::Absent)])
        .await
        .unwrap();
    table.settle();
    assert_eq!(client.get(&key).await.unwrap().unwrap().value[..], *b"early");
}

#[tokio::test]
async fn a_restored_memory_table_does_not_repeat_versions() {
    let (_directory, env) = environment();
    let table = MemoryTable::new();
    let client = table.connect(&env);
    let key = ItemKey::new("p", "s");
    let empty = table.image();
    let first = client
        .transact(vec![put(&key, b"one", Condition::Absent)])
        .await
        .unwrap();
    table.restore(&empty);
    let second = client
        .transact(vec![put(&key, b"two", Condition::Absent)])
        .await
        .unwrap();
    assert_ne!(first, second);
}
