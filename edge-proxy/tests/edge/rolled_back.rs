//! A table that is a restored backup, on processes: the old edge, a fresh one, a takeover and a recovery refuse to go on from it, and
//! an administrator may say otherwise.

use crate::machine::{Cloud, Machine};

/// Writes a file, and gives the volume up with everything committed.
async fn serve_once(edge: &mut Machine, file: &str) {
    edge.start(&[]);
    let files = edge.client().await;
    files.write(file, file.as_bytes()).await;
    edge.succeed(&["drain"]);
    edge.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_restored_from_a_backup_is_noticed_by_all_and_gone_on_from_only_when_accepted() {
    let cloud = Cloud::new();
    let table = cloud.path().join("table.redb");
    let backup = |number: usize| cloud.path().join(format!("backup-{number}"));
    let mut old = Machine::new(&cloud, "old", "main");
    old.format();
    let mut fresh = Machine::new(&cloud, "fresh", "main");
    let taker = Machine::new(&cloud, "taker", "main");
    let identity = old.state.join("identity");
    for machine in [&fresh, &taker] {
        machine.succeed(&["join", "--identity", identity.to_str().expect("a path")]);
    }
    let said = fresh.succeed(&["accept-rollback", "--yes"]);
    assert!(said.contains("shows the newest root"), "{said}");
    for (number, file) in ["first", "second", "third"].into_iter().enumerate() {
        serve_once(&mut old, file).await;
        std::fs::copy(&table, backup(number)).expect("copied");
    }

    let phrase = old.config.with_file_name("phrase");
    let phrase = phrase.to_str().expect("a path");
    for number in 0..2 {
        std::fs::copy(backup(number), &table).expect("copied");
        let said = old.fail(1, &["run"]);
        assert!(
            said.contains("rolled back"),
            "the old edge, backup {number}: {said}"
        );
        let said = fresh.fail(1, &["run"]);
        assert!(
            said.contains("the table was rolled back"),
            "a fresh edge, backup {number}: {said}"
        );
        assert!(said.contains("nothing was changed"), "{said}");
        let said = taker.fail(1, &["takeover", "--force"]);
        assert!(
            said.contains("the table was rolled back"),
            "a takeover, backup {number}: {said}"
        );
        let finder = Machine::new(&cloud, &format!("finder-{number}"), "main");
        let said = finder.fail(1, &["recover", "--phrase-file", phrase, "--yes"]);
        assert!(
            said.contains("the table was rolled back"),
            "a recovery, backup {number}: {said}"
        );
    }

    // The newest table is right to all of them.
    std::fs::copy(backup(2), &table).expect("copied");
    serve_once(&mut fresh, "fourth").await;

    // An administrator restores a backup and means it.
    std::fs::copy(backup(1), &table).expect("copied");
    let said = taker.succeed(&["accept-rollback"]);
    assert!(said.contains("Nothing was changed"), "{said}");
    taker.fail(1, &["takeover", "--force"]);
    let said = taker.succeed(&["accept-rollback", "--yes"]);
    assert!(said.contains("Accepted by taker"), "{said}");
    let mut taker = taker;
    taker.start(&[]);
    let files = taker.client().await;
    assert_eq!(files.read("second").await.as_deref(), Some(&b"second"[..]));
    assert_eq!(files.read("third").await, None);
    taker.succeed(&["drain"]);
    taker.kill();

    // Who saw newer roots refuses until the same is said there.
    let said = old.fail(1, &["run"]);
    assert!(said.contains("accept-rollback"), "{said}");
    old.succeed(&["accept-rollback", "--yes"]);
    serve_once(&mut old, "fifth").await;

    // The bucket alone leads to the accepted branch as well.
    std::fs::remove_file(&table).expect("removed");
    let mut finder = Machine::new(&cloud, "finder", "main");
    finder.succeed(&["recover", "--phrase-file", phrase, "--yes"]);
    finder.start(&[]);
    let files = finder.client().await;
    assert_eq!(files.read("fifth").await.as_deref(), Some(&b"fifth"[..]));
    assert_eq!(files.read("third").await, None);
    finder.stop();
}
