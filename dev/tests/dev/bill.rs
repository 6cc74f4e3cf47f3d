//! The bill at the end of the story, held against what others counted: the table of roots, the cleaner's log, the bytes in the bucket,
//! the frames at the disk nodes. What it prints, a reader can add up again.

use crate::{
    machine::{Machine, good, wait_for},
    story::{Teller, bytes_below, family_directory},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
};

/// Of a meter, what the customer is charged for, as far as the ledger has it; of one resource or of all.
fn charged(machine: &Machine, meter: &str, resource: Option<&str>) -> u64 {
    machine.metered(meter, "observed", resource)
}

/// Compares the two on a volume that nobody changes: the table of roots can be opened while nothing runs only, and an edge may
/// commit once more after a start, as when it takes over what the cleaner moved.
pub async fn what_is_charged_is_what_was_done(teller: &Teller, machine: &mut Machine) {
    machine.clean_every = 86_400;
    let kept = machine.roots_partition();
    machine.stop();
    for _ in 0..5 {
        let tuple = machine.kept_volume(&kept).await;
        let (before, root) = (tuple.commits, tuple.root.expect("there was a commit").version.0);
        machine.start();
        drop(machine.mount().await);
        wait_for("every commit is charged", || {
            (charged(machine, "root-commits", None) >= before).then_some(())
        });
        let charged = charged(machine, "root-commits", None);
        machine.stop();
        if machine.kept_volume(&kept).await.commits == before {
            assert_eq!(charged, before, "no commit more, none less");
            assert!(charged >= 6, "a commit for each sync: {charged}");
            assert!(
                root >= charged,
                "a version is never given twice: {root} of {charged}"
            );
            teller.tell(&format!(
                "the bill: {charged} root-commits; in the table of roots: {before}, and version {root} is the newest"
            ));
            return;
        }
    }
    panic!("the volume does not become idle");
}

/// What the cleaner noted for the bill after each run, as its log has it: when, requests, bytes of the log that it listed.
fn notes_of_the_cleaner(machine: &Machine) -> Vec<(u64, u64, u64)> {
    let log = fs::read_to_string(machine.root.join("cleaner.log")).unwrap();
    let lines = log
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let number = |value: &Value| value.as_str().map_or(value.as_u64(), |text| text.parse().ok());
    lines
        .map(|line| line["noted"].clone())
        .filter(|noted| !noted.is_null())
        .map(|noted| {
            assert!(
                noted["listing"]["after"].is_null() && noted["listing"]["until"].is_null(),
                "one run lists all: {noted}"
            );
            let field = |value: &Value| number(value).unwrap();
            (
                field(&noted["noted_at_ms"]),
                field(&noted["requests"]),
                field(&noted["listing"]["bytes"]),
            )
        })
        .collect()
}

/// Cleans a volume that nobody changes until a listing finds what lies there; its bytes.
async fn listed_when_idle(machine: &mut Machine, kept: &str) -> u64 {
    let log = family_directory(machine).join("log");
    for _ in 0..5 {
        machine.clean_every = 1;
        machine.start();
        let runs = notes_of_the_cleaner(machine).len();
        wait_for("a listing finds what lies in the bucket", || {
            let notes = notes_of_the_cleaner(machine);
            let (_, _, listed) = *notes.last()?;
            (notes.len() > runs && listed == bytes_below(&log)).then_some(())
        });
        machine.stop();
        machine.clean_every = 86_400;
        // The edge may commit between the last listing and its end.
        let lies_there = bytes_below(&log);
        if machine.kept_account(kept).await.listed_bytes == lies_there {
            return lies_there;
        }
    }
    panic!("the bucket does not become idle");
}

/// What the cleaner is charged for is what it noted: its log, added up by hand, and to the last request and byte-hour the account that
/// lies beside the roots. A run that was noted and killed before it was logged is in the account alone.
pub async fn the_cleaner_is_charged_by_its_log(teller: &Teller, machine: &mut Machine, kills: u64) {
    let kept = machine.roots_partition();
    machine.stop();
    let lies_there = listed_when_idle(machine, &kept).await;
    let account = machine.kept_account(&kept).await;
    machine.start();
    let byte_hours = account.stored_byte_hours();
    wait_for("all that the cleaner noted is charged", || {
        let requests = charged(machine, "cleaner-operations", None) >= account.requests;
        (requests && charged(machine, "stored-byte-hours", None) >= byte_hours).then_some(())
    });
    let notes = notes_of_the_cleaner(machine);
    let requests: u64 = notes.iter().map(|(_, requests, _)| requests).sum();
    let stored = notes.windows(2).map(|pair| {
        let [(from, _, bytes), (until, ..)] = pair else {
            panic!("two of them")
        };
        u128::from(*bytes) * u128::from(until.saturating_sub(*from))
    });
    let stored = u64::try_from(stored.sum::<u128>() / 3_600_000).unwrap();
    let largest = notes.iter().map(|(_, requests, _)| *requests).max().unwrap();
    assert!(
        (requests..=requests + kills * largest).contains(&account.requests),
        "{requests} in the log, {account:?}"
    );
    // The interval of a run that is in the account alone goes by what it listed, not by what the one before did.
    assert!(
        stored.abs_diff(byte_hours) <= kills * stored / 2,
        "{stored} by the log, {account:?}"
    );
    assert!(account.requests > 0 && byte_hours > 0, "{account:?}");
    assert_eq!(charged(machine, "cleaner-operations", None), account.requests);
    assert_eq!(charged(machine, "stored-byte-hours", None), byte_hours);
    teller.tell(&format!(
        "the bill: {} requests of the cleaner and {byte_hours} byte-hours in the bucket; by hand from the {} runs in cleaner.log: \
         {requests} and {stored}",
        account.requests,
        notes.len()
    ));
    teller.tell(&format!(
        "the last listing found {} bytes; {lies_there} lie in the bucket's directory",
        account.listed_bytes
    ));
}

/// What the disk nodes counted of the frames that came, by operation, and how many of them they refused.
fn frames_at_the_nodes(machine: &Machine) -> (BTreeMap<String, u64>, u64) {
    let addresses = fs::read_to_string(machine.root.join("node-metrics")).unwrap();
    let (mut operations, mut refused) = (BTreeMap::new(), 0);
    for url in addresses.lines() {
        let address = url.trim_start_matches("http://").trim_end_matches("/metrics");
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(' ') else {
                continue;
            };
            if name == "firn_blockd_refused_total" {
                refused += value.parse::<u64>().unwrap();
            }
            let operation = name
                .strip_prefix("firn_blockd_operations_total{operation=\"")
                .and_then(|rest| rest.strip_suffix("\"}"));
            if let Some(operation) = operation {
                *operations.entry(operation.to_owned()).or_insert(0) += value.parse::<u64>().unwrap();
            }
        }
    }
    (operations, refused)
}

/// Writes a disk of three copies full and reads it once: its bytes pass the nodes four times, and the bill says so, to the block. What
/// the disk reads and writes of its own header when it is attached comes on top. Each request is a frame at a node, no other disk being
/// attached: that a connection shows who it is for is none.
pub fn a_disk_is_charged_by_what_passed(teller: &Teller, machine: &Machine) {
    const BYTES: u64 = 8 << 20;
    let (frames_before, refused_before) = frames_at_the_nodes(machine);
    machine.tell(&["disk", "create", "books", &BYTES.to_string(), "--wait"], "");
    let disk = machine.attach("books");
    let (image, copy) = (
        machine.path("customer/noise"),
        machine.path("customer/noise-copy"),
    );
    let mut noise = vec![0; BYTES as usize];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    fs::write(&image, &noise).unwrap();
    good(Command::new("nbdcopy").args(["--flush", &image, &disk.nbd]), "");
    good(Command::new("nbdcopy").args([&disk.nbd, &copy]), "");
    assert!(fs::read(&copy).unwrap() == noise);
    let resource = format!("disk/{}", disk.id);
    let passed = 3 * BYTES + BYTES;
    wait_for("what passed the nodes is charged", || {
        (charged(machine, "node-bytes", Some(&resource)) >= passed).then_some(())
    });
    let own = charged(machine, "node-bytes", Some(&resource)) - passed;
    assert!(
        own.is_multiple_of(4096) && own <= 64 * 4096,
        "{own} bytes beside the {passed}"
    );
    teller.tell(&format!(
        "the bill: {} bytes at the nodes for a disk of {BYTES} bytes: written thrice, read once, and {} blocks of its own",
        passed + own,
        own / 4096
    ));
    machine.detach(disk);
    let (frames, refused) = frames_at_the_nodes(machine);
    let mut came = Vec::new();
    let mut served = 0;
    for (operation, count) in frames {
        let count = count - frames_before.get(&operation).unwrap_or(&0);
        if count > 0 && operation != "authenticate" {
            came.push(format!("{count} {operation}"));
            served += count;
        }
    }
    let refused = refused - refused_before;
    let came = came.join(", ");
    let served = served - refused;
    // Data travels in requests of a mebibyte at most, and NBD's clients ask for no less than they were told to.
    assert!(served >= passed >> 20, "{came}");
    wait_for("every frame is charged", || {
        (charged(machine, "node-operations", Some(&resource)) >= served).then_some(())
    });
    let operations = charged(machine, "node-operations", Some(&resource));
    assert_eq!(operations, served, "{came}, of them {refused} refused");
    teller.tell(&format!(
        "the bill: {operations} requests at the nodes; frames that came there: {came}, of them {refused} refused"
    ));
}

/// Each meter's lines on the invoice add up to what the hours of usage say.
pub fn the_invoice_has_it_all(teller: &Teller, machine: &Machine) {
    for meter in [
        "root-commits",
        "stored-byte-hours",
        "cleaner-operations",
        "node-operations",
        "node-bytes",
    ] {
        let invoiced = || {
            let invoice = machine.tell(&["invoice", "show"], "");
            let lines = invoice["lines"].as_array().unwrap().iter();
            let lines = lines.filter(|line| line["meter"] == meter);
            let quantity = |line: &Value| line["quantity"].as_str().unwrap().parse::<u64>().unwrap();
            lines.map(quantity).sum::<u64>()
        };
        // The edge may commit between the two questions.
        let quantity = wait_for("the invoice is the sum of the hours", || {
            let quantity = invoiced();
            (quantity == charged(machine, meter, None)).then_some(quantity)
        });
        assert!(quantity > 0, "{meter}");
        teller.tell(&format!("the invoice: {meter} {quantity}"));
    }
    // People read names: of what is there and of what is billed.
    let (usage, cost, status) = (
        machine.shows(&["usage"]),
        machine.shows(&["cost"]),
        machine.shows(&["status"]),
    );
    for name in ["volume files", "disk books"] {
        assert!(usage.contains(name), "{name}: {usage}");
    }
    assert!(cost.contains("volume files") && !cost.contains("vol_"), "{cost}");
    assert!(status.contains("office") && status.contains("books"), "{status}");
    teller.tell("bill and status speak of names");
}
