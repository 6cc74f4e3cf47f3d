//! The whole story of a customer, as the README and the manual tell it, with the real programs and clients that are not ours:
//! sign up, volume, edge, a tree in over NFS, a crash, a snapshot, cleaning, a disk with a file system, the bill. At the end
//! everything that the service stored and received is searched for what it must not know, and the volume is read with nothing but
//! the bucket and the recovery phrase.

use crate::{
    bill,
    machine::{Machine, good, mount, program, wait_for},
    search::Secrets,
};
use firn_integration::Tree;
use firn_rig::{EXPORT, Edge, Settings};
use firn_seal::{KeyRing, RecoveryPhrase};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

/// A name and bytes that stand nowhere else.
const NAME: &[u8] = b"Gehaltsliste M\xc3\xa4rz.ods";
const CONTENT: &[u8] = b"Ada Lovelace verdient 9.000 Taler im Monat";
const DISK_BYTES: u64 = 32 << 20;

/// The one family of the bucket.
fn family(machine: &Machine) -> firn_format::FamilyId {
    let mut families = fs::read_dir(machine.root.join("bucket"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.parse().ok());
    let family = families.next().expect("a family");
    assert!(families.next().is_none(), "one family");
    family
}

/// Where everything of it lies.
pub fn family_directory(machine: &Machine) -> PathBuf {
    machine.root.join("bucket").join(family(machine).to_string())
}

/// Says how far the story is, to whoever watches (`make story`).
pub struct Teller(Instant);

impl Teller {
    pub fn tell(&self, what: &str) {
        println!("{:6.1} s  {what}", self.0.elapsed().as_secs_f64());
    }
}

pub fn bytes_below(path: &Path) -> u64 {
    if path.is_dir() {
        // Objects come and go while they are counted.
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        return entries.map(|entry| bytes_below(&entry.path())).sum();
    }
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// From sign-up to a served share; gives the join secret that was used.
pub fn from_nothing_to_a_share(machine: &Machine) -> String {
    from_nothing_to_an_edge(machine, &machine.path("edge"))
}

/// From sign-up to an edge that joined in this state directory and was approved; gives the join secret that was used.
pub fn from_nothing_to_an_edge(machine: &Machine, state: &str) -> String {
    machine.sign_up();
    machine.make_volume("files");
    an_edge(machine, state)
}

/// An edge `office` of the volume `files` that joined in this state directory and was approved; gives the join secret that was used.
pub fn an_edge(machine: &Machine, state: &str) -> String {
    let phrase = machine.path("customer/phrase");
    let secret = machine.path("customer/join");
    machine.tell(
        &[
            "edge",
            "create",
            "office",
            "--volume",
            "files",
            "--secret-file",
            &secret,
        ],
        "",
    );
    let secret = fs::read_to_string(secret).unwrap();
    let tenant = machine.tell(&["whoami"], "");
    let server = machine.server();
    let mut join = vec![
        "edge",
        "join",
        "--tenant",
        tenant["tenant"].as_str().unwrap(),
        "--state",
        state,
    ];
    join.extend(server.iter().map(String::as_str));
    machine.tell(&join, &secret);
    let approved = machine.tell(&["edge", "approve", "office", "--phrase-file", &phrase], "");
    assert_eq!(approved["wrapped"][0], "files");
    secret
}

/// A disk, a file system written to it over NBD, and the same bytes after a crash; gives the disk's id.
fn a_disk_with_a_file_system(machine: &mut Machine) -> String {
    let size = DISK_BYTES.to_string();
    let made = machine.tell(&["disk", "create", "data", &size, "--wait"], "");
    assert_eq!(made["operation"]["state"], "done");
    let disk = machine.attach("data");
    assert_eq!(disk.size_bytes(), Some(DISK_BYTES));
    let (image, copy) = (machine.path("customer/image"), machine.path("customer/copy"));
    let directory = machine.root.join("customer/tree");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("ledger"), CONTENT).unwrap();
    good(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .arg(&directory)
            .args([&image, "32m"]),
        "",
    );
    good(Command::new("nbdcopy").args(["--flush", &image, &disk.nbd]), "");
    // The nodes come back elsewhere; who has the disk attached waits, and finds them.
    machine.kill();
    machine.start();
    good(Command::new("nbdcopy").args([&disk.nbd, &copy]), "");
    assert!(
        fs::read(&image).unwrap() == fs::read(&copy).unwrap(),
        "what was flushed is there"
    );
    good(Command::new("e2fsck").args(["-fn", &copy]), "");
    machine.tell(
        &["disk", "create", "scratch", "8MiB", "--replicas", "2", "--wait"],
        "",
    );
    machine.tell(&["disk", "delete", "scratch", "--yes", "--wait"], "");
    machine.refused(5, &["disk", "show", "scratch"]);
    let larger = (2 * DISK_BYTES).to_string();
    machine.tell(&["disk", "grow", "data", &larger, "--wait"], "");
    wait_for("whoever has the disk attached takes up what it grew", || {
        (disk.size_bytes() == Some(2 * DISK_BYTES)).then_some(())
    });
    let id = disk.id.clone();
    machine.detach(disk);
    id
}

/// The newest key ring that lies in the bucket, unwrapped by the recovery phrase.
fn volume_keys(machine: &Machine) -> firn_seal::Keys {
    let words = fs::read_to_string(machine.path("customer/phrase")).unwrap();
    let words = RecoveryPhrase::parse(&words).unwrap();
    let rings = family_directory(machine).join("keyring");
    let newest = fs::read_dir(rings)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .max()
        .expect("a ring");
    let ring = KeyRing::decode(fs::read(newest).unwrap().into()).unwrap();
    let ring = ring
        .verify(&words.signing_key().public())
        .expect("the tenant signed it");
    ring.open(&words.recovery_secret())
        .expect("the phrase unwraps the volume's keys")
}

/// What the service must not know.
fn secrets(machine: &Machine, join_secret: &str, disk: &str) -> Secrets {
    let mut secrets = Secrets::default();
    for (epoch, key) in volume_keys(machine).reveal() {
        secrets.add(format!("the volume's key of epoch {}", epoch.0), *key);
    }
    let words = fs::read_to_string(machine.path("customer/phrase")).unwrap();
    let phrase = RecoveryPhrase::parse(&words).unwrap();
    secrets.add("the recovery phrase", words.trim());
    secrets.add(
        "its first words",
        words.split(' ').take(6).collect::<Vec<_>>().join(" "),
    );
    secrets.add("the recovery secret", *phrase.recovery_secret().to_bytes());
    secrets.add("the join secret", join_secret.trim());
    secrets.add(
        "the edge's secret",
        fs::read(machine.path("edge/recipient")).unwrap(),
    );
    secrets.add(
        "the edge's private key",
        fs::read(machine.path("edge/key.der")).unwrap(),
    );
    let key = fs::read_to_string(machine.path(&format!("customer/disks/{disk}.key"))).unwrap();
    secrets.add("the disk's key", key.trim());
    secrets.add("a file's name", NAME);
    secrets.add("a file's content", CONTENT);
    secrets.add("names of files", "file-0001");
    secrets
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes most of a minute: make story"]
async fn from_sign_up_to_the_bill_and_the_service_knows_nothing() {
    let teller = Teller(Instant::now());
    let place = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(&place.path().join("firn"));
    machine.start();
    teller.tell("firn dev runs");
    let join_secret = from_nothing_to_a_share(&machine);

    teller.tell("signed up; a volume; an edge joined and was approved");

    // A tree in over NFS; what is acknowledged survives a crash.
    let mut client = machine.mount().await;
    let mut tree = Tree::default();
    for salt in ["first", "second", "third"] {
        tree.write(&mut client, "rewritten", 30, 300_000, salt)
            .await
            .unwrap();
        machine.edge(&["sync"]);
    }
    tree.write(&mut client, "kept", 20, 100_000, "").await.unwrap();
    drop(client);
    teller.tell("a tree is in, over NFS");
    machine.kill();
    machine.start();
    let mut client = machine.mount().await;
    tree.is_what_is_there(&mut client).await.unwrap();
    let said = machine.edge(&["verify"]);
    assert!(said.starts_with("whole"), "{said}");

    teller.tell(
        "killed and started again: everything acknowledged is there, everything in the bucket is whole",
    );

    // A snapshot, and the space of what nobody needs.
    machine.edge(&["snapshot", "create", "month-end"]);
    for salt in ["fourth", "fifth"] {
        tree.write(&mut client, "rewritten", 30, 300_000, salt)
            .await
            .unwrap();
        machine.edge(&["sync"]);
    }
    machine.edge(&["snapshot", "delete", "month-end"]);
    let log = family_directory(&machine).join("log");
    let before = bytes_below(&log);
    wait_for("space comes back", || {
        (bytes_below(&log) < before * 2 / 3).then_some(())
    });
    tree.is_what_is_there(&mut client).await.unwrap();
    drop(client);
    teller.tell("a snapshot was made and deleted, the cleaner gave space back, every byte is there");

    let disk = a_disk_with_a_file_system(&mut machine);
    let mut client = machine.mount().await;
    tree.is_what_is_there(&mut client).await.unwrap();
    let root = client.root.clone();
    let private = client.make_directory(&root, b"private").await.unwrap();
    client.write_file(&private, NAME, 0o600, CONTENT).await.unwrap();
    machine.edge(&["sync"]);

    teller.tell("a disk with a file system survived a crash, and grew");

    // The bill, to the operation: what is charged is what others counted.
    drop(client);
    bill::what_is_charged_is_what_was_done(&teller, &mut machine).await;
    machine.start();
    // Twice: while a tree came in, and with a disk attached.
    bill::the_cleaner_is_charged_by_its_log(&teller, &mut machine, 2).await;
    bill::a_disk_is_charged_by_what_passed(&teller, &machine);
    bill::the_invoice_has_it_all(&teller, &machine);
    machine.tell(&["audit", "verify"], "");

    // What the service must not know, it does not: neither what it stored nor what was sent to it.
    machine.stop();
    let secrets = secrets(&machine, &join_secret, &disk);
    for part in ["api.redb", "api", "received"] {
        assert_eq!(
            secrets.below(&machine.root.join(part)),
            Vec::<String>::new(),
            "{part}"
        );
    }
    assert!(
        bytes_below(&machine.root.join("received")) > 10_000,
        "requests were recorded"
    );
    let customer = secrets.below(&machine.root.join("customer/phrase"));
    assert!(
        customer.iter().any(|found| found.contains("the recovery phrase")),
        "the search finds: {customer:?}"
    );
    a_planted_leak_is_found(&mut machine, &secrets);

    teller.tell(
        "nothing that the service stored or received tells keys, names or content; a planted leak is found",
    );

    // And whoever has the phrase needs the service no more.
    with_nothing_but_bucket_and_phrase(&machine, place.path()).await;
    teller.tell("the volume was recovered from the bucket and the recovery phrase alone");
}

/// Somebody tells the service secrets after all, in a place that it stores: the name of a file, and a volume's key.
fn a_planted_leak_is_found(machine: &mut Machine, secrets: &Secrets) {
    let (_, key) = volume_keys(machine).reveal().remove(0);
    let key = data_encoding::HEXLOWER.encode(&key[..]);
    machine.start();
    for name in [std::str::from_utf8(NAME).unwrap(), &key] {
        machine.make_volume(name);
    }
    machine.stop();
    for part in ["api.redb", "received"] {
        let found = secrets.below(&machine.root.join(part));
        for what in ["a file's name", "the volume's key of epoch"] {
            assert!(
                found.iter().any(|found| found.contains(what)),
                "{part}, {what}: {found:?}"
            );
        }
    }
}

/// The volume's keys, unwrapped by the recovery phrase from the ring that lies in the bucket; then the volume itself, under a new
/// table and a new edge.
async fn with_nothing_but_bucket_and_phrase(machine: &Machine, place: &Path) {
    assert!(!volume_keys(machine).epochs().is_empty());
    let phrase = machine.path("customer/phrase");

    let directory = place.join("elsewhere");
    let settings = Settings {
        store: format!("file://{}", machine.path("bucket")),
        table: format!("redb:{}", directory.join("table.redb").display()),
        ..Settings::local(&directory)
    };
    let mut edge = Edge::configure(program("firn-edge"), &directory, settings).unwrap();
    edge.command("recover", &["--phrase-file", &phrase, "--yes"])
        .await
        .unwrap();
    edge.start().await.unwrap();
    let mut client = mount(edge.address, EXPORT).await;
    let listed = client.list(&client.root.clone()).await.unwrap();
    let private = listed
        .iter()
        .find(|entry| entry.name == b"private")
        .expect("the directory");
    let files = client.list(&private.handle).await.unwrap();
    assert_eq!(files[0].name, NAME);
    assert_eq!(
        client.checksum(&files[0].handle).await.unwrap().0,
        blake3::hash(CONTENT)
    );
    let kept = listed
        .iter()
        .find(|entry| entry.name == b"kept")
        .expect("the directory");
    assert_eq!(client.list(&kept.handle).await.unwrap().len(), 20);
    drop(client);
    edge.stop().await.unwrap();
}
