//! Desired state, applied by an edge that is a process of its own and seen by an NFS client: a hard cap, and a policy of
//! snapshots. And what the edge says of itself, as the customer reads it.

use crate::{
    branch::Branch,
    machine::{Machine, TIMEOUT, mount, wait_for},
};
use firn_rig::{Client, EXPORT};
use serde_json::Value;
use std::{
    fs,
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

/// Of Linux, on every processor.
const EDQUOT: i32 = 122;

/// How long the service's wishes may take to an edge whose clients do something.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

async fn write(client: &mut Client, name: &str, data: &[u8]) -> Result<(), String> {
    let root = client.root.clone();
    let written = client.write_file(&root, name.as_bytes(), 0o644, data);
    written.await.map_err(|error| error.to_string())
}

/// Writes until it is answered as wanted; how long that took. Every other answer must be the other of the two.
async fn until_written(client: &mut Client, is_wanted: bool) -> Duration {
    let began = Instant::now();
    loop {
        let written = write(client, "probe", b"one more").await;
        if let Err(error) = &written {
            assert!(error.contains("DQUOT"), "{error}");
        }
        if written.is_ok() == is_wanted {
            return began.elapsed();
        }
        assert!(began.elapsed() < TOLD_WITHIN, "{written:?}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// What a process of the edge's machine gets on the mount, whenever it is told: at the write, or when the data are to be safe.
fn write_on(mount: &Path, name: &str, data: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::options()
        .create(true)
        .append(true)
        .open(mount.join(name))?;
    file.write_all(data)?;
    file.sync_all()
}

/// The same as [`until_written`] on a mount.
async fn until_written_on(mount: &Path, is_wanted: bool) {
    let began = Instant::now();
    loop {
        let path = mount.to_owned();
        let written = tokio::task::spawn_blocking(move || write_on(&path, "probe", b"one more"));
        let written = written.await.unwrap();
        if let Err(error) = &written {
            assert_eq!(error.raw_os_error(), Some(EDQUOT), "{error}");
        }
        if written.is_ok() == is_wanted {
            return;
        }
        assert!(began.elapsed() < TOLD_WITHIN, "{written:?}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Processes on the edge's own machine get EDQUOT, and can read, remove and cut off.
#[tokio::test(flavor = "multi_thread")]
async fn a_hard_cap_is_edquot_on_a_mount_until_it_is_raised() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: this machine has no /dev/fuse, nothing about mounts was tested");
        return;
    }
    let Branch {
        _place,
        machine,
        mut edge,
        ..
    } = Branch::joined().await;
    edge.stop().await.unwrap();
    let path = _place.path().join("mnt");
    fs::create_dir(&path).unwrap();
    edge.reconfigure(|settings| settings.nfs = format!("[[mount]]\npath = \"{}\"", path.display()))
        .unwrap();
    edge.start().await.unwrap();
    write_on(&path, "kept", &[7; 100_000]).unwrap();
    write_on(&path, "victim", b"in the way").unwrap();

    machine.tell(&["budget", "set", "--hard-cap", "0"], "");
    until_written_on(&path, false).await;
    let refused = |what: &str, done: std::io::Result<()>| {
        let error = done.expect_err(what);
        assert_eq!(error.raw_os_error(), Some(EDQUOT), "{what}: {error}");
    };
    refused("a new file", fs::File::create(path.join("new")).map(drop));
    refused("a directory", fs::create_dir(path.join("new")));
    refused(
        "a symbolic link",
        std::os::unix::fs::symlink("kept", path.join("new")),
    );
    refused("a hard link", fs::hard_link(path.join("kept"), path.join("new")));
    refused("more data", write_on(&path, "kept", b"more"));
    let kept = fs::File::options().write(true).open(path.join("kept")).unwrap();
    refused("a longer file", kept.set_len(200_000));
    // All else goes on.
    assert_eq!(fs::read(path.join("kept")).unwrap(), [7; 100_000]);
    kept.set_len(50_000).unwrap();
    fs::rename(path.join("kept"), path.join("renamed")).unwrap();
    fs::remove_file(path.join("victim")).unwrap();
    drop(kept);
    edge.sync().await.unwrap();

    machine.tell(&["budget", "raise", "100"], "");
    until_written_on(&path, true).await;
    assert_eq!(fs::read(path.join("renamed")).unwrap(), [7; 50_000]);
    edge.stop().await.unwrap();
}

/// What `firn edge show` says of the one volume, once it satisfies `condition`.
fn observed(machine: &Machine, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, || {
        let edge = machine.tell(&["edge", "show", "office"], "");
        let volume = edge["observed"]["volumes"][0].clone();
        condition(&volume).then_some(edge)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hard_cap_stops_new_writes_and_nothing_else_until_it_is_raised() {
    let Branch {
        _place,
        mut machine,
        mut edge,
        ..
    } = Branch::joined().await;
    let mut client = mount(edge.address, EXPORT).await;
    let root = client.root.clone();
    write(&mut client, "kept", &[7; 100_000]).await.unwrap();
    write(&mut client, "victim", b"in the way").await.unwrap();

    machine.tell(&["budget", "set", "--hard-cap", "0"], "");
    let took = until_written(&mut client, false).await;
    println!(
        "new writes are refused {:.1} s after the cap was reached",
        took.as_secs_f64()
    );
    for refused in [
        write(&mut client, "new", b"").await,
        client
            .make_directory(&root, b"new")
            .await
            .map(drop)
            .map_err(|error| error.to_string()),
        client
            .make_link(&root, b"new", b"kept")
            .await
            .map_err(|error| error.to_string()),
    ] {
        assert!(
            refused.as_ref().is_err_and(|error| error.contains("DQUOT")),
            "{refused:?}"
        );
    }
    // All else goes on.
    let kept = client.lookup(&root, b"kept").await.unwrap();
    assert_eq!(client.checksum(&kept).await.unwrap().1, 100_000);
    assert!(
        client
            .resize(&kept, 200_000)
            .await
            .unwrap_err()
            .to_string()
            .contains("DQUOT")
    );
    client.resize(&kept, 50_000).await.unwrap();
    client.remove(&root, b"victim").await.unwrap();
    edge.sync().await.unwrap();
    edge.command("snapshot", &["create", "while-capped"])
        .await
        .unwrap();
    edge.command("snapshot", &["delete", "while-capped"])
        .await
        .unwrap();

    // As the customer reads it.
    let shown = observed(&machine, "the edge says so", |volume| {
        volume["new_writes"] == "refused_by_cap"
    });
    assert_eq!(shown["observed"]["in_force"], shown["desired_generation"]);
    assert_eq!(shown["observed"]["volumes"][0]["state"], "serving");
    assert!(
        machine
            .shows(&["edge", "show", "office"])
            .contains("new writes are refused")
    );
    assert!(
        machine
            .shows(&["status"])
            .contains("edges and disks refuse new writes")
    );
    assert!(
        machine
            .shows(&["cost"])
            .contains("edges and disks refuse new writes")
    );
    let logs = machine.shows(&["logs", "--of", "office"]);
    assert!(
        logs.contains("Edge office said") && logs.contains("new writes are refused"),
        "{logs}"
    );
    let listed = machine.shows(&["edge", "list"]);
    assert!(
        listed.contains("WAITING") && listed.contains(env!("CARGO_PKG_VERSION")),
        "{listed}"
    );
    assert!(edge.command("status", &[]).await.unwrap().contains("hard cap"));

    // Without the service, and after a power cut, what it said last holds.
    machine.stop();
    edge.kill().await.unwrap();
    edge.start().await.unwrap();
    let mut client = mount(edge.address, EXPORT).await;
    let refused = write(&mut client, "probe", b"x").await;
    assert!(
        refused.as_ref().is_err_and(|error| error.contains("DQUOT")),
        "{refused:?}"
    );
    assert_eq!(client.checksum(&kept).await.unwrap().1, 50_000);
    machine.start();
    // With the cloud back the volume is opened anew, and clients connect again.
    let began = Instant::now();
    while !edge.status().await.is_ok_and(|seen| seen["detached"].is_null()) {
        assert!(began.elapsed() < TIMEOUT, "{:?}", edge.status().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mut client = mount(edge.address, EXPORT).await;
    let refused = write(&mut client, "probe", b"x").await;
    assert!(
        refused.as_ref().is_err_and(|error| error.contains("DQUOT")),
        "{refused:?}"
    );

    machine.tell(&["budget", "raise", "100"], "");
    let took = until_written(&mut client, true).await;
    println!(
        "new writes are taken {:.1} s after the cap was raised",
        took.as_secs_f64()
    );
    observed(&machine, "the edge says so", |volume| {
        volume["new_writes"] == "allowed"
    });
    edge.sync().await.unwrap();
    // Nothing is left of it, whatever is replayed.
    edge.kill().await.unwrap();
    edge.start().await.unwrap();
    let mut client = mount(edge.address, EXPORT).await;
    write(&mut client, "after", b"all").await.unwrap();
    edge.stop().await.unwrap();
    machine.stop();
}

/// The names of the snapshots that a policy made, as a client sees them.
async fn automatic(client: &mut Client) -> Vec<String> {
    let root = client.root.clone();
    let snapshots = client.lookup(&root, b".snapshots").await.unwrap();
    let listed = client.list(&snapshots).await.unwrap();
    let names = listed.into_iter().map(|one| String::from_utf8(one.name).unwrap());
    names.filter(|name| name.starts_with("auto-")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_made_and_deleted_by_the_policy_that_the_customer_sets() {
    let Branch {
        _place,
        mut machine,
        mut edge,
        ..
    } = Branch::joined().await;
    let policy = |machine: &Machine, tiers: [&str; 5]| {
        let [last, hourly, daily, weekly, monthly] = tiers;
        machine.tell(
            &[
                "snapshot",
                "policy",
                "files",
                "--last",
                last,
                "--hourly",
                hourly,
                "--daily",
                daily,
                "--weekly",
                weekly,
                "--monthly",
                monthly,
            ],
            "",
        )
    };
    // A new volume's policy keeps hours: the first commit makes one.
    observed(&machine, "the policy is in force", |volume| {
        volume["snapshots"] == "service"
    });
    let mut client = mount(edge.address, EXPORT).await;
    let began = Instant::now();
    while automatic(&mut client).await.is_empty() {
        assert!(began.elapsed() < TOLD_WITHIN, "no snapshot is made");
        write(&mut client, "changed", b"once more").await.unwrap();
        edge.sync().await.unwrap();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    let by_policy = automatic(&mut client).await;
    assert_eq!(by_policy.len(), 1, "one an hour: {by_policy:?}");

    // None at all: none is made, and none deleted.
    policy(&machine, ["0", "0", "0", "0", "0"]);
    let until = async |client: &mut Client, source: &str| {
        let began = Instant::now();
        loop {
            // Who does something is told.
            write(client, "changed", b"and again").await.unwrap();
            let edge = machine.tell(&["edge", "show", "office"], "");
            if edge["observed"]["volumes"][0]["snapshots"] == source
                && edge["observed"]["in_force"] == edge["desired_generation"]
            {
                return;
            }
            assert!(began.elapsed() < 2 * TOLD_WITHIN, "{edge}");
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    until(&mut client, "nobody").await;
    // Two more that are a policy's by their names.
    for name in ["auto-1", "auto-2"] {
        edge.command("snapshot", &["create", name]).await.unwrap();
    }
    assert_eq!(automatic(&mut client).await.len(), 3);

    // One is kept: the newest. The commit after it is told deletes the others.
    policy(&machine, ["1", "0", "0", "0", "0"]);
    until(&mut client, "service").await;
    let began = Instant::now();
    while automatic(&mut client).await != ["auto-2"] {
        let left = automatic(&mut client).await;
        assert!(began.elapsed() < TOLD_WITHIN, "{left:?}");
        write(&mut client, "changed", b"at last").await.unwrap();
        edge.sync().await.unwrap();
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    edge.stop().await.unwrap();
    machine.stop();
}
