//! An edge of two volumes in one process, both of which the service keeps: what it says that it did, it did once, on one of them.

use crate::{
    machine::{Machine, TIMEOUT, mount, program, wait_for},
    story::from_nothing_to_an_edge,
};
use firn_rig::{Client, Edge, Settings};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// The configuration of an edge with the volumes `files` and `homes`, each in a directory of its own.
fn configuration(edge: &Edge, place: &Path) -> String {
    let volume = |name: &str| {
        let (store, state) = (place.join(format!("store-{name}")), place.join(name));
        fs::create_dir_all(&store).unwrap();
        format!(
            "[[volume]]\nname = \"{name}\"\nedge_name = \"edge\"\nstore = \"file://{}\"\nanchor = \"service\"\n\
             state_directory = \"{}\"\n[[export]]\npath = \"/{name}\"\nvolume = \"{name}\"\nclients = [\"127.0.0.0/8\"]\n\
             squash = \"none\"\nrequire_privileged_port = false\n",
            store.display(),
            state.display()
        )
    };
    let (state, port) = (edge.state.display(), edge.address.port());
    format!(
        "[edge]\nstate_directory = \"{state}\"\n{}{}[nfs]\nlisten = \"127.0.0.1\"\nnfs_port = {port}\nportmap = false\n\
         grace_seconds = 1\n[limits]\ncheckpoint_busy = \"1 s\"\ncheckpoint_trickle = \"1 s\"\n",
        volume("files"),
        volume("homes")
    )
}

/// A second volume, and an edge of it that joins in `state`.
fn join_homes(machine: &Machine, state: &Path) {
    let (phrase, secret) = (
        machine.path("customer/phrase"),
        machine.path("customer/join-homes"),
    );
    machine.make_volume("homes");
    let invite = [
        "edge",
        "create",
        "homes-office",
        "--volume",
        "homes",
        "--secret-file",
        &secret,
    ];
    machine.tell(&invite, "");
    let tenant = machine.tell(&["whoami"], "")["tenant"].clone();
    let (server, state) = (machine.server(), state.display().to_string());
    let mut join = vec![
        "edge",
        "join",
        "--tenant",
        tenant.as_str().unwrap(),
        "--state",
        &state,
    ];
    join.extend(server.iter().map(String::as_str));
    machine.tell(&join, &fs::read_to_string(&secret).unwrap());
    machine.tell(&["edge", "approve", "homes-office", "--phrase-file", &phrase], "");
}

/// How each volume stands, once all satisfy `condition`.
async fn volumes(edge: &Edge, condition: impl Fn(&Value) -> bool) -> Vec<Value> {
    let began = Instant::now();
    loop {
        if let Ok(seen) = edge.status().await {
            let volumes = seen["volumes"].as_array().unwrap().clone();
            if volumes.iter().all(|volume| condition(&volume["snapshot"])) {
                return volumes;
            }
        }
        assert!(began.elapsed() < TIMEOUT, "{:?}", edge.status().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Calls of NFS about files that the edge's one server has counted.
async fn calls(edge: &Edge) -> u64 {
    let volumes = volumes(edge, Value::is_object).await;
    let operations = volumes[0]["snapshot"]["nfs"]["operations"].as_array().unwrap();
    let counted = operations
        .iter()
        .filter(|operation| operation["program"] == "nfs" && operation["procedure"] != "null");
    counted
        .map(|operation| operation["calls"].as_u64().unwrap())
        .sum()
}

async fn write(client: &mut Client, name: &str, files: usize) {
    let root = client.root.clone();
    for number in 0..files {
        let name = format!("{name}-{number}");
        let written = client.write_file(&root, name.as_bytes(), 0o644, name.as_bytes());
        written.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_of_two_volumes_reports_each_call_once_and_of_the_volume_that_it_was_about() {
    let place = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(&place.path().join("firn"));
    let branch = place.path().join("branch");
    let mut edge = Edge::configure(program("firn-edge"), &branch, Settings::local(&branch)).unwrap();
    fs::write(&edge.config, configuration(&edge, &branch)).unwrap();
    machine.start();
    from_nothing_to_an_edge(&machine, &branch.join("files").display().to_string());
    join_homes(&machine, &branch.join("homes"));
    for name in ["files", "homes"] {
        edge.command("enrol", &["--volume", name]).await.unwrap();
    }
    edge.start().await.unwrap();
    volumes(&edge, Value::is_object).await;
    let (mut files, mut homes) = (
        mount(edge.address, "/files").await,
        mount(edge.address, "/homes").await,
    );
    write(&mut files, "first", 12).await;
    write(&mut homes, "first", 1).await;
    let first = calls(&edge).await;
    for name in ["files", "homes"] {
        edge.command("sync", &["--volume", name]).await.unwrap();
    }
    drop((files, homes));
    edge.stop().await.unwrap();

    // Started while the service is away, volumes are opened anew when it is back; NFS goes on, and counts on.
    machine.stop();
    edge.start().await.unwrap();
    volumes(&edge, |snapshot| snapshot["detached"].is_object()).await;
    let mut files = mount(edge.address, "/files").await;
    write(&mut files, "second", 12).await;
    machine.start();
    volumes(&edge, |snapshot| {
        snapshot.is_object() && snapshot["detached"].is_null()
    })
    .await;
    let mut homes = mount(edge.address, "/homes").await;
    write(&mut homes, "second", 1).await;
    let second = calls(&edge).await;
    drop((files, homes));
    edge.stop().await.unwrap();

    // What was counted last is delivered from the spools by the next start, during which nobody calls.
    edge.start().await.unwrap();
    let listed = machine.tell(&["volume", "list"], "");
    let id = |name: &str| {
        let volumes = listed.as_array().unwrap();
        let found = volumes.iter().find(|volume| volume["name"] == name).unwrap();
        format!("volume/{}", found["id"].as_str().unwrap())
    };
    let of = |name: &str| machine.metered("edge-operations", "advisory", Some(&id(name)));
    let (in_files, in_homes) = wait_for("all that was called is reported", || {
        let (files, homes) = (of("files"), of("homes"));
        (files + homes >= first + second).then_some((files, homes))
    });
    assert_eq!(in_files + in_homes, first + second, "{in_files} and {in_homes}");
    assert!(
        in_files > 3 * in_homes && in_homes > 0,
        "{in_files} and {in_homes}"
    );
    edge.stop().await.unwrap();
    machine.stop();
}
