//! Two offices that write one file system at the same moment: two edges as processes, each with clients of its own, over one bucket and one `firn-anchor`.

mod locks;

use crate::{edge, offices, place::Place, volume};
use firn_anchor::Anchor;
use firn_rig::{Client, EXPORT, Edge};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

/// What anything may take that waits for the other office, on a machine that does much else.
const SOON: Duration = Duration::from_secs(20);
/// The same for one that is gone: a minute until it counts as that, and then.
const AFTER_A_BREAK: Duration = Duration::from_secs(100);
/// How many files each office makes while the other does.
const FILES: usize = 40;

const SHARED: &str = "shared = true\nleases = \"inode\"\nfreshness = \"0 s\"\nrecall_within = \"2 s\"";

/// What the making of such a volume is told.
const BY_INODE: [&str; 2] = ["--leases", "inode"];

/// The edges' programs, bucket and anchor.
struct Offices {
    place: Place,
    one: Edge,
    two: Edge,
}

/// The volume, made by the first edge, and both joined; `made_with` is what its making is told.
async fn prepared(here: &Path, lines: [&str; 2], made_with: &[&str]) -> (Place, Anchor, [Edge; 2]) {
    let grants = [(&edge(1), volume(1), "edge"), (&edge(2), volume(1), "edge")];
    let lines = lines.map(|lines| (lines, String::new()));
    let (place, family, edges) = offices::prepare(here, &grants, lines, made_with).await;
    let reached = place.reached(&here.join("one.pem"), volume(1));
    let anchor = Anchor::over(Arc::new(reached), place.env.clone(), family);
    (place, anchor, edges)
}

impl Offices {
    /// `published`: how long a change waits before it is, if nobody wants it.
    async fn open(here: &Path, published: &str) -> Self {
        let (place, _, mut edges) = prepared(here, [SHARED; 2], &BY_INODE).await;
        for edge in &mut edges {
            let text = fs::read_to_string(&edge.config).unwrap();
            fs::write(&edge.config, text.replace("\"1 h\"", &format!("\"{published}\""))).unwrap();
            edge.start().await.unwrap();
        }
        let [one, two] = edges;
        Self { place, one, two }
    }
}

async fn part(edge: &Edge) -> Value {
    edge.status().await.unwrap()["by_inode"].clone()
}

/// What a file holds; `None` if there is none of that name.
async fn read(client: &mut Client, directory: &firn_rig::FileHandle, name: &str) -> Option<blake3::Hash> {
    match client.lookup(directory, name.as_bytes()).await {
        Ok(file) => Some(client.checksum(&file).await.unwrap().0),
        // A directory of the other office is not there before it is published.
        Err(error) if ["NOENT", "STALE"].iter().any(|no| error.to_string().contains(no)) => None,
        Err(error) => panic!("{error}"),
    }
}

fn hash(text: &str) -> Option<blake3::Hash> {
    Some(blake3::hash(text.as_bytes()))
}

/// Until a file is there, as long as it takes.
async fn appears(client: &mut Client, directory: &firn_rig::FileHandle, name: &str) -> Duration {
    let began = Instant::now();
    while read(client, directory, name).await.is_none() {
        assert!(began.elapsed() < SOON, "{name} does not appear");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    began.elapsed()
}

/// Makes its files, one after the other; the longest that one took.
async fn fill(client: &mut Client, directory: &firn_rig::FileHandle, who: &str) -> Duration {
    let mut longest = Duration::ZERO;
    for number in 0..FILES {
        let began = Instant::now();
        let name = format!("{who}-{number}");
        client
            .write_file(directory, name.as_bytes(), 0o644, name.as_bytes())
            .await
            .unwrap();
        longest = longest.max(began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    longest
}

#[tokio::test(flavor = "multi_thread")]
async fn two_offices_write_one_file_system_at_the_same_moment() {
    let here = tempfile::tempdir().unwrap();
    let mut offices = Offices::open(here.path(), "1 s").await;
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    let mut two = Client::mount(offices.two.address, EXPORT).await.unwrap();
    assert_eq!(one.root.data.0, two.root.data.0, "one file system, one handle");
    let root = one.root.clone();

    // Each a directory of its own, at the same moment: neither waits for the other once it has its directory.
    let of_one = one.make_directory(&root, b"one").await.unwrap();
    let of_two = two.make_directory(&root, b"two").await.unwrap();
    let began = Instant::now();
    let longest = tokio::join!(fill(&mut one, &of_one, "one"), fill(&mut two, &of_two, "two"));
    let took = began.elapsed();
    let last = ["one", "two"].map(|who| format!("{who}-{}", FILES - 1));
    let seen = tokio::join!(
        appears(&mut one, &of_two, &last[1]),
        appears(&mut two, &of_one, &last[0])
    );
    println!(
        "{FILES} files in each office at the same moment: {took:?}, the longest {longest:?}; the other's last is seen {seen:?} later"
    );
    for number in 0..FILES {
        for (client, directory, who) in [(&mut one, &of_two, "two"), (&mut two, &of_one, "one")] {
            let name = format!("{who}-{number}");
            assert_eq!(read(client, directory, &name).await, hash(&name), "{name}");
        }
    }
    assert!(longest.0.max(longest.1) < Duration::from_secs(5), "{longest:?}");

    // The same directory and the same file, in turns.
    let both = one.make_directory(&root, b"both").await.unwrap();
    one.write_file(&both, b"minutes", 0o644, b"begun in office one..")
        .await
        .unwrap();
    let minutes = one.lookup(&both, b"minutes").await.unwrap();
    appears(&mut two, &both, "minutes").await;
    let mut waits = Vec::new();
    for round in 0..4_u32 {
        for (name, client) in [("two", &mut two), ("one", &mut one)] {
            let text = format!("round {round}, office {name}");
            let asked = Instant::now();
            let own = format!("{name}-{round}");
            client
                .write_file(&both, own.as_bytes(), 0o644, text.as_bytes())
                .await
                .unwrap();
            client.write(&minutes, 0, text.as_bytes()).await.unwrap();
            waits.push(asked.elapsed());
            // Who has the directory sees what the other acknowledged last.
            let (other, before) = match name {
                "two" => ("one", round.checked_sub(1)),
                _ => ("two", Some(round)),
            };
            if let Some(before) = before {
                let (file, text) = (
                    format!("{other}-{before}"),
                    format!("round {before}, office {other}"),
                );
                assert_eq!(
                    read(client, &both, &file).await,
                    hash(&text),
                    "{file} in office {name}"
                );
            }
        }
    }
    println!("a directory and a file in it in turns, 8 of them: {waits:?}");
    assert!(waits.iter().all(|wait| *wait < SOON), "{waits:?}");

    let (of_one, of_two) = (part(&offices.one).await, part(&offices.two).await);
    assert!(of_one["member"] != of_two["member"], "{of_one} {of_two}");
    // What the first made is its home; what it changed of the other's, and what is nobody's, are leases beside it.
    let held = [&of_one, &of_two].map(|of| of["leases_held"].as_u64().unwrap());
    assert!(held.iter().sum::<u64>() > 0, "{of_one} {of_two}");
    for of in [&of_one, &of_two] {
        assert_eq!(of["lease_holds"].as_bool(), Some(true), "{of}");
        assert!(of["lease_waits"].as_u64().is_some_and(|waits| waits >= 4), "{of}");
        assert!(of["salvaged"].is_null(), "{of}");
    }
    let shown = offices.one.command("status", &[]).await.unwrap();
    assert!(shown.contains("offices write it at the same moment"), "{shown}");
    // Of the two seconds that the configuration says, over a line of which nothing is known yet or which is this machine's.
    assert!(
        of_one["unpublished_limit_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes >= 1 << 20),
        "{of_one}"
    );
    assert!(shown.contains("within recall_within"), "{shown}");

    // What such a volume cannot have is refused, with a reason.
    for (command, arguments) in [
        ("verify", &[][..]),
        ("clean", &[]),
        ("snapshot", &["create", "now"]),
    ] {
        let said = offices.one.refused(1, command, arguments).await.unwrap();
        assert!(said.contains("shared by inode"), "{command}: {said}");
    }

    // An office that is stopped goes away, so that the other need not wait until its heart stands still.
    one.write_file(&both, b"last", 0o644, b"before the weekend")
        .await
        .unwrap();
    offices.one.stop().await.unwrap();
    let asked = Instant::now();
    two.write_file(&both, b"next", 0o644, b"on the weekend")
        .await
        .unwrap();
    println!("after a stop: {:?}", asked.elapsed());
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    assert_eq!(read(&mut two, &both, "last").await, hash("before the weekend"));
    offices.two.sync().await.unwrap();
    let member = of_one["member"].clone();
    offices.one.start().await.unwrap();
    assert_eq!(
        part(&offices.one).await["member"],
        member,
        "it finds its number again"
    );
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut one, &both, "next").await, hash("on the weekend"));
    offices.one.stop().await.unwrap();
    offices.two.command("drain", &[]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_office_that_is_killed_or_not_heard_comes_back_and_what_others_took_from_it_is_in_a_clone() {
    let here = tempfile::tempdir().unwrap();
    let mut offices = Offices::open(here.path(), "1 h").await;
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    let mut two = Client::mount(offices.two.address, EXPORT).await.unwrap();
    let root = one.root.clone();
    let lost = one.make_directory(&root, b"lost").await.unwrap();
    let kept = one.make_directory(&root, b"kept").await.unwrap();
    offices.one.sync().await.unwrap();
    one.write_file(&lost, b"draft", 0o644, b"on the disk of office one")
        .await
        .unwrap();
    one.write_file(&kept, b"goes on", 0o644, b"nobody else wanted it")
        .await
        .unwrap();
    offices.one.kill().await.unwrap();

    let asked = Instant::now();
    two.write_file(&lost, b"meanwhile", 0o644, b"in office two")
        .await
        .unwrap();
    let waited = asked.elapsed();
    println!("taken {waited:?} after a client asked");
    assert!(
        waited > Duration::from_secs(55),
        "no sooner than a minute: {waited:?}"
    );
    assert!(waited < AFTER_A_BREAK, "{waited:?}");
    assert_eq!(
        read(&mut two, &lost, "draft").await,
        None,
        "it was never published"
    );
    offices.two.sync().await.unwrap();
    // What is kept for its journal is not given up while it may be on its way back.
    let members = offices
        .two
        .command("members", &["--output", "json"])
        .await
        .unwrap();
    let members: Value = serde_json::from_str(&members).unwrap();
    let broken = members
        .as_array()
        .unwrap()
        .iter()
        .find(|member| member["state"] == "broken");
    let broken = broken.expect("one is broken")["number"].to_string();
    for (number, why) in [
        (&*broken, "less than an hour ago"),
        ("4000000", "nothing is kept for that member"),
    ] {
        let give_up = ["--give-up", number, "--yes"];
        let said = offices.two.refused(1, "members", &give_up).await.unwrap();
        assert!(said.contains(why), "{said}");
    }

    offices.one.start().await.unwrap();
    let salvaged = part(&offices.one).await["salvaged"].clone();
    assert_eq!(
        salvaged["paths"],
        serde_json::json!(["/lost/draft"]),
        "{salvaged}"
    );
    let shown = offices.one.command("status", &[]).await.unwrap();
    assert!(shown.contains("/lost/draft"), "{shown}");
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut one, &lost, "meanwhile").await, hash("in office two"));
    assert_eq!(read(&mut one, &lost, "draft").await, None);
    assert_eq!(
        read(&mut two, &kept, "goes on").await,
        hash("nobody else wanted it"),
        "it was published by the return"
    );

    // The same to a process that stands still, as on a machine that was suspended: it opens the volume again, under its clients.
    one.write_file(&lost, b"second", 0o644, b"not published")
        .await
        .unwrap();
    let process = offices.one.process_id().unwrap();
    signal(process, "STOP");
    let asked = Instant::now();
    two.write_file(&lost, b"again", 0o644, b"in office two")
        .await
        .unwrap();
    println!("taken again {:?} after a client asked", asked.elapsed());
    offices.two.sync().await.unwrap();
    signal(process, "CONT");
    let back = Instant::now();
    appears(&mut one, &lost, "again").await;
    one.write_file(&lost, b"third", 0o644, b"in office one")
        .await
        .unwrap();
    println!(
        "back {:?} after it goes on, its client told {} times to try again",
        back.elapsed(),
        one.jukebox_replies
    );
    assert_eq!(offices.one.process_id(), Some(process));
    assert_eq!(read(&mut one, &lost, "second").await, None, "it is in the clone");
    let salvaged = part(&offices.one).await["salvaged"].clone();
    assert_eq!(
        salvaged["paths"],
        serde_json::json!(["/lost/second"]),
        "{salvaged}"
    );
    offices.one.stop().await.unwrap();
    offices.two.stop().await.unwrap();
    drop(offices.place);
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill")
        .args([format!("-{name}"), process.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_volume_is_decides_its_making_and_an_edge_that_says_otherwise_does_not_start() {
    let here = tempfile::tempdir().unwrap();
    let (_place, anchor, [mut one, mut two]) = prepared(here.path(), ["shared = true", SHARED], &[]).await;
    let ended = two.start().await.unwrap_err().to_string();
    assert!(
        ended.contains("the volume is not one that many write at the same moment"),
        "{ended}"
    );
    // The command and the configuration say the same, or nothing is made.
    for (edge, arguments, why) in [
        (&one, &BY_INODE[..], "does not say so; nothing was made"),
        (&two, &[][..], "would not be made so; nothing was made"),
        (
            &two,
            &["--leases", "inode", "--manifest"],
            "Leave one of the two out",
        ),
    ] {
        let said = edge.refused(2, "format", arguments).await.unwrap();
        assert!(said.contains(why), "{said}");
    }
    // What was written by an owner stays an owner's, also while nobody owns it.
    one.start().await.unwrap();
    let mut client = Client::mount(one.address, EXPORT).await.unwrap();
    let root = client.root.clone();
    client
        .write_file(&root, b"file", 0o644, b"by an owner")
        .await
        .unwrap();
    one.command("drain", &[]).await.unwrap();
    let volume = anchor.volumes().await.unwrap()[0].volume;
    anchor.share_by_inode(volume).await.unwrap_err();
    let said = one.refused(2, "members", &[]).await.unwrap();
    assert!(said.contains("has no members"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_of_members_is_owned_by_no_edge_that_knows_none() {
    let here = tempfile::tempdir().unwrap();
    let (_place, anchor, [mut one, mut two]) =
        prepared(here.path(), [SHARED, "shared = true"], &BY_INODE).await;
    one.start().await.unwrap();
    // By turns it may be read there, and nothing changed: the anchor gives it to nobody.
    two.start().await.unwrap();
    let mut client = Client::mount(one.address, EXPORT).await.unwrap();
    let root = client.root.clone();
    client
        .write_file(&root, b"file", 0o644, b"by a member")
        .await
        .unwrap();
    one.sync().await.unwrap();
    let mut reader = Client::mount(two.address, EXPORT).await.unwrap();
    appears(&mut reader, &root, "file").await;
    assert_eq!(read(&mut reader, &root, "file").await, hash("by a member"));
    let owner = anchor.volumes().await.unwrap()[0].tuple.owner.clone();
    assert_eq!(owner, None);
    one.stop().await.unwrap();
    two.stop().await.unwrap();
}

/// All that is below a directory, elsewhere: as a backup of a machine, or an image of it.
fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let (is_directory, target) = (entry.file_type().unwrap().is_dir(), to.join(entry.file_name()));
        match is_directory {
            true => copied(&entry.path(), &target),
            false if entry.file_type().unwrap().is_file() => drop(fs::copy(entry.path(), target).unwrap()),
            // The socket of the running edge.
            false => {}
        }
    }
}

/// The files below a directory, each with what it holds.
fn files(directory: &Path) -> Vec<(PathBuf, blake3::Hash)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push((entry.path(), blake3::hash(&fs::read(entry.path()).unwrap()))),
        }
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_state_directory_is_told_at_once_and_the_one_that_was_pushed_away_does_not_start() {
    let here = tempfile::tempdir().unwrap();
    let mut offices = Offices::open(here.path(), "1 h").await;
    let mut one = Client::mount(offices.one.address, EXPORT).await.unwrap();
    let root = one.root.clone();
    one.write_file(&root, b"before", 0o644, b"in both copies")
        .await
        .unwrap();
    let (state, aside) = (offices.one.state.clone(), here.path().join("copy"));
    copied(&state, &aside);
    one.write_file(&root, b"after", 0o644, b"in the first copy alone")
        .await
        .unwrap();
    // The machine is stopped without a word, and its copy is started in its place; then the machine itself again.
    offices.one.kill().await.unwrap();
    let kept = here.path().join("kept");
    fs::rename(&state, &kept).unwrap();
    fs::rename(&aside, &state).unwrap();
    offices.one.start().await.unwrap();
    let mut copy = Client::mount(offices.one.address, EXPORT).await.unwrap();
    assert_eq!(read(&mut copy, &root, "before").await, hash("in both copies"));
    offices.one.stop().await.unwrap();
    fs::rename(&state, &aside).unwrap();
    fs::rename(&kept, &state).unwrap();
    let journal = files(&state.join("journal"));
    assert!(!journal.is_empty());
    let ended = offices.one.start().await.unwrap_err().to_string();
    assert!(ended.contains("another copy of this state directory"), "{ended}");
    assert_eq!(files(&state.join("journal")), journal, "its journal is untouched");
    // The copy goes on.
    fs::rename(&state, &kept).unwrap();
    fs::rename(&aside, &state).unwrap();
    offices.one.start().await.unwrap();
    let members = offices
        .one
        .command("members", &["--output", "json"])
        .await
        .unwrap();
    let members: Value = serde_json::from_str(&members).unwrap();
    let states: Vec<_> = members
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["state"].clone())
        .collect();
    assert_eq!(states, ["present", "present"], "{members}");
    assert_eq!(members[0]["here"].as_bool(), Some(true), "{members}");
    offices.one.stop().await.unwrap();
    let shown = offices.two.command("members", &[]).await.unwrap();
    assert!(shown.contains("away"), "{shown}");
    offices.two.stop().await.unwrap();
}
