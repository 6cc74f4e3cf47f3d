//! The program gets space back while every edge is off, and an edge started afterwards reads everything.
#![allow(
    clippy::disallowed_methods,
    reason = "it starts real programs, and waits for them in real time"
)]

mod written;

use firn_rig::{Client, EXPORT};
use firn_table::{Condition, RedbTable, Table as _, Write as TableWrite};
use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use written::{Written, answer, log_of, names, run, segments};

/// Far longer than a run takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn space_shrinks_while_every_edge_is_off_and_everything_is_there_afterwards() {
    let written = Written::new(3, "[limits]\ngrace_seconds = 0\n").await;
    let (store, before) = (written.store(), written.bytes);
    let Written {
        mut edge,
        mut tree,
        config,
        place: _place,
        ..
    } = written;

    let plan = run(&config, "plan");
    assert!(plan["plan"]["freed_bytes"].as_u64() > Some(before / 4), "{plan}");
    assert_eq!(log_of(&store).1, before, "a plan changes nothing");
    // The first runs retire, later ones delete what was seen to be retired.
    for _ in 0..4 {
        let report = run(&config, "run");
        assert_eq!(report["report"]["damaged"], serde_json::json!([]), "{report}");
    }
    let after = log_of(&store).1;
    assert!(after < before * 2 / 3, "{after} of {before} bytes are left");

    edge.wipe_cache().expect("an empty cache");
    edge.start().await.expect("it starts after the cleaner");
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    tree.is_what_is_there(&mut client).await.expect("everything");
    // It goes on as before, and takes over where things lie now.
    tree.write(&mut client, "later", 20, 300_000, "")
        .await
        .expect("files");
    edge.sync().await.expect("everything in the store");
    let said = edge.command("verify", &[]).await.expect("no damage");
    assert!(said.starts_with("whole"), "{said}");
    drop(client);
    edge.stop().await.expect("a clean end");
}

/// Bytes of a log's files by their paths.
fn contents(store: &Path, family: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let segments = segments(store, family).into_iter();
    segments
        .map(|path| (path.clone(), std::fs::read(path).expect("a segment")))
        .collect()
}

async fn table(place: &Path) -> RedbTable {
    let env = firn_env::real(place).expect("an environment");
    RedbTable::open(&env, &place.join("table.redb"))
        .await
        .expect("the table")
}

/// A cleaner of an older build: what it does not know of the volume might need any segment, so it cleans nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_newer_edge_wrote_is_left_alone() {
    let written = Written::new(3, "[limits]\ngrace_seconds = 0\n").await;
    let (store, place) = (written.store(), written.place.path());
    let partition = format!("family/{}", written.family);
    let items = table(place)
        .await
        .query(&partition, "", None, 1000)
        .await
        .expect("items")
        .items;
    let volume = items
        .iter()
        .find(|item| item.key.sort.starts_with("volume/"))
        .expect("a volume");
    let put = async |value: Vec<u8>| {
        let table = table(place).await;
        let current = table
            .get(&volume.key)
            .await
            .expect("an answer")
            .expect("it is there");
        let write = TableWrite::Put {
            key: volume.key.clone(),
            value: value.into(),
            condition: Condition::Version(current.version),
        };
        table.transact(vec![write]).await.expect("it is put");
    };
    let refused = |about: &str, before: &BTreeMap<PathBuf, Vec<u8>>| {
        for _ in 0..2 {
            let (code, _, said) = answer(&written.config, &["run"]);
            assert!(
                code != Some(0) && said.trim().lines().count() == 1,
                "{about}: {code:?} {said}"
            );
            for part in [about, "newer", "Nothing was", "nstall "] {
                assert!(said.contains(part), "{about}: {part}: {said}");
            }
        }
        assert!(
            contents(&store, &written.family) == *before,
            "{about}: the log was changed"
        );
    };

    let before = contents(&store, &written.family);
    let mut newer = volume.value.to_vec();
    newer[0] = 9;
    put(newer).await;
    refused("layout 9 is unknown", &before);
    put(volume.value.to_vec()).await;

    // The root, which is the last object of the newest segment.
    let (path, whole) = before.last_key_value().expect("a segment");
    let root = whole
        .windows(4)
        .rposition(|four| four == b"FOBJ")
        .expect("an object");
    let mut newer = whole.clone();
    newer[root + 8] = 9;
    std::fs::write(path, newer).expect("written");
    refused("object has format version 9", &contents(&store, &written.family));
    std::fs::write(path, whole).expect("written");

    let freed = run(&written.config, "plan");
    assert!(
        freed["plan"]["freed_bytes"].as_u64() > Some(0),
        "as it was, there is something to clean: {freed}"
    );
}

/// What is left of a child when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `run --every 1`, and answers how its figures are read.
fn run_again_and_again(config: &Path) -> (Running, impl Fn(&str) -> f64) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_firn-cleaner"))
        .arg("--config")
        .arg(config)
        .args(["run", "--every", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
    let running = Running(child);
    let line = said.next().expect("a line").expect("text");
    // What it says later goes nowhere, and does not hold it up.
    std::thread::spawn(move || said.for_each(drop));
    let address = line
        .strip_prefix("metrics at http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .expect(&line)
        .to_owned();
    let figure = move |name: &str| {
        let mut stream = TcpStream::connect(&address).expect("it serves");
        write!(stream, "GET /metrics HTTP/1.1\r\nhost: {address}\r\n\r\n").expect("a request");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value
            .unwrap_or_else(|| panic!("{name}: {text}"))
            .parse::<f64>()
            .expect("a number")
    };
    (running, figure)
}

/// `run --every` as Prometheus sees it: runs that come to their end, and runs that do not.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_follow_each_other_have_figures() {
    let written = Written::new(0, "metrics = \"127.0.0.1:0\"\n").await;
    let (_running, figure) = run_again_and_again(&written.config);
    let began = Instant::now();
    while figure("firn_cleaner_runs_total") < 2.0 {
        assert!(began.elapsed() < TIMEOUT, "no second run");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(figure("firn_cleaner_failures_total"), 0.0);
    assert!(figure("firn_cleaner_last_success_timestamp_seconds") > 1.7e9);
    assert!(figure("firn_cleaner_listed_bytes") > 0.0);
    assert_eq!(figure("firn_cleaner_missing_segments"), 0.0);
}

/// Runs an audit, and answers its exit code, its report if it made one, and what it said beside.
fn audit(config: &PathBuf, more: &[&str]) -> (Option<i32>, serde_json::Value, String) {
    answer(config, &[&["audit"], more].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_without_keys_finds_what_the_bucket_lost() {
    let written = Written::new(0, "").await;
    let (store, config) = (written.store(), written.config.clone());
    let (family, bytes) = (written.family.clone(), written.bytes);

    let (code, report, said) = audit(&config, &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("688 challenges in each volume, for $1.00 at most"),
        "{said}"
    );
    let volume = &report["audit"]["volumes"][0];
    assert_eq!(volume["intact"], 688, "{report}");
    assert_eq!(volume["is_complete"], true, "{report}");
    let data_bytes = volume["data_bytes"].as_u64().expect("a number");
    assert!(data_bytes > bytes / 2 && data_bytes < bytes, "{report}");
    let one_percent = volume["detections"][2]["probability"].as_f64().expect("a number");
    assert!(one_percent > 0.998 && one_percent < 0.9995, "{report}");
    // It reads a part of the archive only.
    let (code, report, said) = audit(&config, &["--challenges", "5"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        report["audit"]["usage"]["bytes_down"].as_u64() < Some(bytes / 4),
        "{report}"
    );

    // One bit of one object of the largest segment.
    let victim = segments(&store, &family).pop().expect("a segment");
    let whole = std::fs::read(&victim).expect("a segment");
    let mut altered = whole.clone();
    let step = 30_000;
    altered
        .iter_mut()
        .skip(52)
        .step_by(step)
        .for_each(|byte| *byte ^= 1);
    std::fs::write(&victim, &altered).expect("altered");
    let (code, report, said) = audit(&config, &[]);
    assert_eq!(code, Some(6), "{report}: {said}");
    assert!(said.contains("it should lie in segment"), "{said}");
    std::fs::remove_file(&victim).expect("removed");
    let (code, report, said) = audit(&config, &[]);
    assert_eq!(code, Some(6), "{report}: {said}");
    let sequence = victim.file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(said.contains(sequence), "{sequence}: {said}");
    std::fs::write(&victim, &whole).expect("brought back");
    let (code, _, said) = audit(&config, &[]);
    assert_eq!(code, Some(0), "{said}");
    let (code, report, said) = audit(&config, &["--budget", "0"]);
    assert_eq!(code, Some(1), "{report}");
    assert!(said.contains("not everything was asked"), "{said}");
    // One after the other they go over everything.
    let places = written.place.path().join("places");
    let continued = |budget: &str| {
        let places = places.to_str().expect("a path");
        audit(&config, &["--budget", budget, "--continue-by", places])
    };
    let (code, report, said) = continued("0");
    assert_eq!(code, Some(1), "{report}: {said}");
    assert!(!report["audit"]["volumes"][0]["goes_on_at"].is_null(), "{report}");
    let (code, report, said) = continued("1");
    assert_eq!(code, Some(0), "{report}: {said}");
    let volume = &report["audit"]["volumes"][0];
    assert!(
        !volume["began_at"].is_null() && volume["goes_on_at"].is_null(),
        "{report}"
    );
    let (code, report, said) = continued("1");
    assert_eq!(code, Some(0), "{report}: {said}");
    assert!(report["audit"]["volumes"][0]["is_complete"] == true, "{report}");
    std::fs::write(&places, "{").expect("written");
    let (code, _, said) = continued("1");
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("Nothing was audited"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_without_keys_mirrors_the_bucket_and_repairs_it() {
    let written = Written::new(2, "").await;
    let (store, family) = (written.store(), written.family.clone());
    let Written {
        place,
        mut edge,
        mut tree,
        config,
        ..
    } = written;
    let second = place.path().join("second");
    std::fs::create_dir(&second).expect("a second store");
    let text = std::fs::read_to_string(&config).expect("a configuration");
    let (code, _, said) = answer(&config, &["mirror"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("there is no second store"), "{said}");
    let name = |second: &Path, keep: &str| {
        let section = format!(
            "[limits]\ngrace_seconds = 0\n[second]\nstore = \"file://{}\"\nkeep_deleted = \"{keep}\"\n",
            second.display()
        );
        std::fs::write(&config, format!("{text}{section}")).expect("a configuration");
    };
    // The same bucket under another name is none.
    let other_name = place.path().join("other-name");
    std::os::unix::fs::symlink(&store, &other_name).expect("a symbolic link");
    name(&other_name, "1 h");
    let (code, _, said) = answer(&config, &["mirror"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("second.store"), "{said}");

    name(&second, "1 h");
    let (code, report, said) = answer(&config, &["mirror"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(names(&second, &family), names(&store, &family), "{report}");
    assert_eq!(
        report["mirror"]["copied"], report["mirror"]["members"],
        "{report}"
    );
    assert!(
        report["mirror"]["cost_nanodollars"].as_u64() > Some(0),
        "{report}"
    );
    let (_, report, _) = answer(&config, &["mirror"]);
    assert_eq!(report["mirror"]["copied"], 0, "{report}");

    // Without keys the second store is audited like the first, and what is altered there is the second's.
    let (code, report, said) = audit(&config, &[]);
    assert_eq!(code, Some(0), "{report}: {said}");
    let of_second = &report["audit"]["volumes"][0]["second"];
    assert_eq!(
        (&of_second["intact"], &of_second["is_complete"]),
        (&688.into(), &true.into()),
        "{report}"
    );
    let copy = segments(&second, &family).pop().expect("a copy");
    let mut altered = std::fs::read(&copy).expect("a copy");
    altered
        .iter_mut()
        .skip(52)
        .step_by(5000)
        .for_each(|byte| *byte ^= 1);
    std::fs::write(&copy, &altered).expect("altered");
    let (code, report, said) = audit(&config, &[]);
    assert_eq!(code, Some(6), "{report}: {said}");
    let key = copy.strip_prefix(&second).expect("below").display().to_string();
    assert!(
        said.contains(&format!("in the second store: {key}: it is not as it was put"))
            && said.contains("run `firn-cleaner mirror`"),
        "{key}: {said}"
    );
    let (code, _, said) = audit(&config, &["--first-store-alone"]);
    assert_eq!(code, Some(0), "{said}");
    std::fs::remove_file(&copy).expect("deleted by hand");
    let (code, report, said) = answer(&config, &["mirror"]);
    assert_eq!(
        (code, &report["mirror"]["copied"]),
        (Some(0), &1.into()),
        "{said}"
    );
    let (code, _, said) = audit(&config, &[]);
    assert_eq!(code, Some(0), "{said}");

    // Lost: what is needed of it is written anew, under another name.
    let victim = segments(&store, &family).pop().expect("a segment");
    std::fs::remove_file(&victim).expect("removed");
    let (code, report, said) = answer(&config, &["mirror"]);
    assert_eq!(code, Some(0), "{report}: {said}");
    assert_eq!(report["mirror"]["lost_segments"], 1, "{report}");
    assert_eq!(report["mirror"]["repaired"], 1, "{report}");
    assert!(report["mirror"]["repaired_bytes"].as_u64() > Some(0), "{report}");
    assert!(!victim.exists(), "nothing is put under an old name");
    let (code, report, said) = answer(&config, &["mirror"]);
    assert_eq!(code, Some(0), "{report}: {said}");
    assert_eq!(report["mirror"]["lost_segments"], 0, "{report}");

    // The edge has nothing but the first store, and everything.
    edge.wipe_cache().expect("an empty cache");
    edge.start().await.expect("it starts after the repair");
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    tree.is_what_is_there(&mut client).await.expect("everything");
    tree.write(&mut client, "later", 20, 300_000, "")
        .await
        .expect("files");
    edge.sync().await.expect("everything in the store");
    let said = edge.command("verify", &[]).await.expect("no damage");
    assert!(said.starts_with("whole"), "{said}");
    drop(client);
    edge.stop().await.expect("a clean end");

    // What the bucket retired follows once its time is over, not before.
    for _ in 0..4 {
        run(&config, "run");
    }
    let (code, report, said) = answer(&config, &["mirror"]);
    assert_eq!(code, Some(0), "{report}: {said}");
    assert!(report["mirror"]["kept_deleted"].as_u64() > Some(0), "{report}");
    let kept = names(&second, &family).len();
    assert!(kept > names(&store, &family).len());
    name(&second, "1 s");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (code, report, said) = answer(&config, &["mirror"]);
    assert_eq!(code, Some(0), "{report}: {said}");
    assert!(report["mirror"]["deleted"].as_u64() > Some(0), "{report}");
    assert_eq!(names(&second, &family), names(&store, &family), "{report}");

    // Lost in one and damaged in the other: beyond repair, and said so.
    let victim = segments(&store, &family).pop().expect("a segment");
    let copy = second.join(victim.strip_prefix(&store).expect("below it"));
    std::fs::remove_file(&victim).expect("removed");
    let bytes = std::fs::read(&copy).expect("a copy");
    std::fs::write(&copy, &bytes[..bytes.len() / 2]).expect("cut");
    let (code, report, said) = answer(&config, &["mirror"]);
    assert_eq!(code, Some(6), "{report}: {said}");
    assert!(
        said.contains("beyond") || said.contains("lost or damaged"),
        "{said}"
    );
    assert_eq!(
        report["mirror"]["beyond"].as_array().map(Vec::len),
        Some(1),
        "{report}"
    );
}

/// `run --every` keeps the second store without being asked.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_follow_each_other_mirror() {
    let written = Written::new(0, "").await;
    let second = written.place.path().join("second");
    std::fs::create_dir(&second).expect("a second store");
    let text = std::fs::read_to_string(&written.config).expect("a configuration");
    let section = format!(
        "metrics = \"127.0.0.1:0\"\n[second]\nstore = \"file://{}\"\n",
        second.display()
    );
    std::fs::write(&written.config, format!("{text}{section}")).expect("a configuration");
    let (_running, figure) = run_again_and_again(&written.config);
    let began = Instant::now();
    let whole = names(&written.store(), &written.family);
    let log = second.join(&written.family).join("log");
    while !log.is_dir() || names(&second, &written.family) != whole {
        assert!(began.elapsed() < TIMEOUT, "no mirror");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    while figure("firn_cleaner_second_store_compared_timestamp_seconds") < 1.7e9 {
        assert!(began.elapsed() < TIMEOUT, "no figures");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(figure("firn_cleaner_second_store_copied_bytes_total") > 0.0);
    assert_eq!(figure("firn_cleaner_second_store_lost_segments"), 0.0);
    assert_eq!(figure("firn_cleaner_second_store_failures_total"), 0.0);
}
