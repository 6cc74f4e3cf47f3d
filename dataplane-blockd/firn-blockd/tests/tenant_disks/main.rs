//! Disks of tenants on machines of theirs, as they type it: `firn disk attach` and `firn disk detach`, with a real NBD client.
//!
//! ```text
//! cargo build -p firn-cli && cargo test -p firn-blockd --test tenant_disks -- --ignored real_
//! ```
#![allow(
    clippy::disallowed_methods,
    reason = "it starts real programs, and waits for them in real time"
)]

mod lab;
mod snapshots;

use lab::{Lab, Person, done, eventually, qemu_io};
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

const HOURS: u64 = 7200;

#[test]
#[ignore = "needs QEMU's tools, and firn beside firn-blockd"]
fn real_a_disk_goes_from_machine_to_machine_and_whoever_loses_it_is_told() {
    let lab = Lab::new(HOURS);
    let ada = Person::sign_up(&lab, "ada");
    ada.firn(&["disk", "create", "data", "64MiB", "--replicas", "2", "--wait"])
        .good();

    // Written on one machine, given back with Ctrl-C.
    let here = ada.attach("data", &[]);
    done(&here.uri, "write -P 7 0 1M");
    let shown = ada.json(&["disk", "show", "data"]);
    assert_eq!(shown["fence"], 1, "{shown}");
    let holder = shown["attached"]["holder"].as_str().unwrap().to_owned();
    assert!(holder.contains("process"), "{holder}");
    let list = ada.firn(&["disk", "list"]).good().text();
    assert!(list.contains(&holder), "{list}");
    let told = ada.firn(&["disk", "show", "data"]).good().text();
    // A time as people read it.
    assert!(
        told.contains(&holder) && told.contains("since 2") && told.contains(" ("),
        "{told}"
    );
    let status = ada.firn(&["status"]).text();
    assert!(status.contains(&holder), "{status}");
    // Nobody takes away what somebody uses, unless that is what they say.
    ada.firn(&["disk", "delete", "data", "--yes"])
        .refused(6, "detach it first");
    here.interrupt();
    let (code, said) = here.ended();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("is detached; everything is durable"), "{said}");
    assert!(ada.json(&["disk", "show", "data"]).get("attached").is_none());

    // Read on another, which needs the key.
    let there = ada.elsewhere(&lab, "there");
    let keyless = there.firn(&["disk", "attach", "data"]);
    keyless.refused(2, "sealed with a key that is not on this machine");
    let wrong = there.path("wrong.key");
    fs::write(&wrong, "ab".repeat(32)).unwrap();
    let wrong = there.firn(&["disk", "attach", "data", "--key", &wrong]);
    wrong.refused(2, "this is not the disk's key");
    let key = ada.key_of("data").display().to_string();
    let at_socket = format!("unix:{}", there.path("disks.sock"));
    let reading = there.attach("data", &["--key", &key]);
    done(&reading.uri, "read -P 7 0 1M");
    let busy = ada.firn(&["disk", "attach", "data", "--nbd", &at_socket]);
    busy.refused(3, "attached by");

    // A second attach by force ends the first, which says by whom.
    let taking = ada.attach("data", &["--force"]);
    done(&taking.uri, "write -P 8 0 1M");
    let (code, said) = reading.ended();
    assert_eq!(code, 4, "{said}");
    assert!(
        said.contains("the disk was attached by") && said.contains("(attach 3)"),
        "{said}"
    );
    assert!(said.contains("attach 2 is over"), "{said}");

    // Asked for from another machine, it is given back whole.
    let freed = there.firn(&["disk", "detach", "data"]).good().text();
    assert!(freed.contains("everything is durable"), "{freed}");
    let (code, said) = taking.ended();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("wanted back"), "{said}");
    let again = there.attach("data", &["--key", &key]);
    done(&again.uri, "read -P 8 0 1M");

    // Taken away by force, its machine ends with the code for that.
    there.firn(&["disk", "detach", "data", "--force"]).good();
    let (code, said) = again.ended();
    assert_eq!(code, 4, "{said}");
    assert!(said.contains("detached by force"), "{said}");
    let nobody = there.firn(&["disk", "detach", "data"]).good().text();
    assert!(nobody.contains("attached nowhere"), "{nobody}");
    ada.firn(&["disk", "delete", "data", "--yes", "--wait"]).good();
    // The audit log tells who let machines in, and who took disks away.
    let audit = ada.firn(&["audit", "list"]).good().text();
    assert!(
        audit.contains("disk.ticket") && audit.contains("disk.detach"),
        "{audit}"
    );
}

#[test]
#[ignore = "needs QEMU's tools, and firn beside firn-blockd"]
fn real_what_cannot_be_attached_is_told_before_anything_is() {
    let lab = Lab::new(HOURS);
    let ada = Person::sign_up(&lab, "ada");
    ada.firn(&["disk", "create", "data", "64MiB", "--replicas", "1", "--wait"])
        .good();
    let id = ada.json(&["disk", "show", "data"])["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let mallory = Person::sign_up(&lab, "mallory");
    for name in ["data", &id] {
        mallory.firn(&["disk", "attach", name]).refused(5, "there is no");
        mallory
            .firn(&["disk", "detach", name, "--force"])
            .refused(5, "there is no");
    }
    let attach = |more: &[&str]| ada.firn(&[&["disk", "attach", "data"], more].concat());
    attach(&["--nbd", "somewhere"]).refused(2, "write unix:/path/of/socket or tcp:host:port");
    attach(&["--device", "/dev/null"]).refused(2, "is no block device");
    attach(&["--mode", "log"]).refused(2, "does not fit this disk");
    attach(&["--mode", "fast"]).refused(2, "is none of");
    ada.firn(&["disk", "attach", "date"]).refused(5, "there is no");
    ada.firn(&["disk", "create", "odd", "5MiB"])
        .refused(2, "multiple of");
    // None of them raised the fence.
    assert_eq!(ada.json(&["disk", "show", "data"])["fence"], 0);
    // Two disks of one machine do not meet, whatever they are called.
    ada.firn(&["disk", "create", "Büro 2", "64MiB", "--replicas", "1", "--wait"])
        .good();
    let (one, other) = (ada.attach("data", &[]), ada.attach("Büro 2", &[]));
    done(&one.uri, "write -P 1 0 64k");
    done(&other.uri, "write -P 2 0 64k");
    done(&one.uri, "read -P 1 0 64k");
    done(&other.uri, "read -P 2 0 64k");
    for attached in [one, other] {
        attached.interrupt();
        let (code, said) = attached.ended();
        assert_eq!(code, 0, "{said}");
    }
}

#[test]
#[ignore = "needs QEMU's tools, and firn beside firn-blockd"]
fn real_a_disk_goes_on_while_the_service_is_away_and_renews_when_it_is_back() {
    // Renewed every twenty seconds.
    let mut lab = Lab::new(240);
    let ada = Person::sign_up(&lab, "ada");
    ada.firn(&["disk", "create", "data", "64MiB", "--replicas", "2", "--wait"])
        .good();
    let attached = ada.attach("data", &[]);
    done(&attached.uri, "write -P 1 0 1M");
    lab.stop_api();
    done(&attached.uri, "write -P 2 0 1M");
    eventually("it notices that the service is away", || {
        attached.log().contains("what nodes ask for is not renewed")
    });
    done(&attached.uri, "read -P 2 0 1M");
    done(&attached.uri, "write -P 3 1M 1M");
    lab.start_api();
    eventually("it renews what nodes ask for", || {
        attached.log().contains("the service answers again")
    });
    done(&attached.uri, "read -P 3 1M 1M");
    ada.firn(&["disk", "detach", "data"]).good();
    let (code, said) = attached.ended();
    assert_eq!(code, 0, "{said}");
}

/// Writes of 64 KiB that a client makes one after the other, each at a place of its own.
const WRITES: u64 = 1000;

fn place_of(number: u64) -> String {
    format!("-P {} {}k 64k", 1 + number % 250, 64 * number)
}

#[test]
#[ignore = "needs QEMU's tools, and firn beside firn-blockd"]
fn real_a_capability_that_ends_while_the_service_is_away_holds_writes_back_and_loses_none() {
    // Renewed every two seconds.
    let mut lab = Lab::new(24);
    let ada = Person::sign_up(&lab, "ada");
    ada.firn(&["disk", "create", "data", "64MiB", "--replicas", "2", "--wait"])
        .good();
    let attached = ada.attach("data", &[]);
    let (uri, acknowledged, enough) = (
        attached.uri.clone(),
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (count, stop) = (acknowledged.clone(), enough.clone());
    let writer = thread::spawn(move || {
        for number in 0..WRITES {
            if stop.load(Relaxed) {
                return;
            }
            done(&uri, &format!("write {}", place_of(number)));
            count.store(number + 1, Relaxed);
            thread::sleep(Duration::from_millis(200));
        }
    });
    eventually("the client writes", || acknowledged.load(Relaxed) > 3);
    lab.stop_api();
    eventually("it notices that the service is away", || {
        attached.log().contains("what nodes ask for is not renewed")
    });
    let before = acknowledged.load(Relaxed);
    eventually("it goes on with what it has", || {
        acknowledged.load(Relaxed) > before
    });
    // Nodes refuse from some moment on, and whoever writes waits.
    let mut seen = (acknowledged.load(Relaxed), Instant::now());
    eventually("writes are held back", || {
        let now = acknowledged.load(Relaxed);
        if now != seen.0 {
            seen = (now, Instant::now());
        }
        seen.1.elapsed() > Duration::from_secs(15)
    });
    let held_at = acknowledged.load(Relaxed);
    assert!(held_at < WRITES, "it was never held back");
    lab.start_api();
    eventually("writes go on when the service is back", || {
        acknowledged.load(Relaxed) > held_at + 3
    });
    enough.store(true, Relaxed);
    writer.join().expect("no write failed");
    for number in 0..acknowledged.load(Relaxed) {
        done(&attached.uri, &format!("read {}", place_of(number)));
    }
    ada.firn(&["disk", "detach", "data"]).good();
    let (code, said) = attached.ended();
    assert_eq!(code, 0, "{said}");
}

#[test]
#[ignore = "needs QEMU's tools, and firn beside firn-blockd"]
fn real_a_cap_that_is_reached_stops_writes_to_disks_until_it_is_raised() {
    // Renewed every twenty seconds.
    let mut lab = Lab::new(240);
    let ada = Person::sign_up(&lab, "ada");
    ada.firn(&["disk", "create", "data", "64MiB", "--replicas", "2", "--wait"])
        .good();
    let attached = ada.attach("data", &[]);
    done(&attached.uri, "write -P 1 0 1M");
    let full = |uri: &str, command: &str| {
        let (is_done, text) = qemu_io(uri, command);
        assert!(is_done || text.contains("No space left on device"), "{text}");
        !is_done
    };
    let began = Instant::now();
    ada.firn(&["budget", "set", "--hard-cap", "0"]).good();
    eventually("writes are refused", || full(&attached.uri, "write -P 2 1M 64k"));
    println!(
        "writes are refused {:.1} s after the cap was set",
        began.elapsed().as_secs_f64()
    );
    // Whatever adds is refused, and nothing else is.
    assert!(full(&attached.uri, "write -P 3 0 64k"));
    assert!(full(&attached.uri, "write -z 0 64k"));
    for command in ["read -P 1 0 1M", "flush", "discard 2M 1M", "read -P 1 0 1M"] {
        done(&attached.uri, command);
    }

    // Given back and attached again, it is as full as it was.
    attached.interrupt();
    let (code, said) = attached.ended();
    assert_eq!(code, 0, "{said}");
    let attached = ada.attach("data", &[]);
    assert!(full(&attached.uri, "write -P 3 0 64k"));
    done(&attached.uri, "read -P 1 0 1M");

    // Without the service, what it said last holds.
    lab.stop_api();
    eventually("it notices that the service is away", || {
        attached.log().contains("what nodes ask for is not renewed")
    });
    assert!(full(&attached.uri, "write -P 3 0 64k"));
    done(&attached.uri, "read -P 1 0 1M");
    lab.start_api();

    let began = Instant::now();
    ada.firn(&["budget", "raise", "100"]).good();
    eventually("writes are taken again", || {
        !full(&attached.uri, "write -P 4 0 64k")
    });
    println!(
        "writes are taken {:.1} s after the cap was raised",
        began.elapsed().as_secs_f64()
    );
    done(&attached.uri, "read -P 4 0 64k");
    done(&attached.uri, "read -P 1 64k 960k");
    ada.firn(&["disk", "detach", "data"]).good();
    let (code, said) = attached.ended();
    assert_eq!(code, 0, "{said}");
}

#[test]
#[ignore = "needs QEMU's tools, and firn beside firn-blockd"]
fn real_a_disk_grows_while_a_machine_has_it() {
    let lab = Lab::new(HOURS);
    let ada = Person::sign_up(&lab, "ada");
    ada.firn(&["disk", "create", "data", "64MiB", "--replicas", "2", "--wait"])
        .good();
    let mut attached = ada.attach("data", &[]);
    done(&attached.uri, "write -P 1 63M 1M");
    let (beyond, _) = qemu_io(&attached.uri, "write -P 2 127M 1M");
    assert!(!beyond);
    ada.firn(&["disk", "grow", "data", "128MiB", "--wait"]).good();
    attached.wait_for_line("has 128 MiB");
    done(&attached.uri, "write -P 2 127M 1M");
    done(&attached.uri, "read -P 1 63M 1M");
    // Elsewhere it is as large.
    attached.interrupt();
    let (code, said) = attached.ended();
    assert_eq!(code, 0, "{said}");
    let again = ada.attach("data", &[]);
    done(&again.uri, "read -P 2 127M 1M");
}
