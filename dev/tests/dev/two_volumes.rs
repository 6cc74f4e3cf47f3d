//! One joined edge, a process of its own, that serves two of the tenant's volumes: to an NFS client that mounts both, and as the customer reads it.

use crate::machine::{Machine, mount, program, wait_for};
use firn_rig::{Client, Edge, Settings};
use serde_json::Value;
use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

/// An edge whose clients work reports every half minute.
const REPORTED_WITHIN: Duration = Duration::from_secs(120);

async fn write(client: &mut Client, name: &str, data: &[u8]) {
    let root = client.root.clone();
    let written = client.write_file(&root, name.as_bytes(), 0o644, data).await;
    written.unwrap();
}

/// The ids of both volumes, of an edge that joined in `state` and was approved for both.
fn from_nothing_to_two_volumes(machine: &Machine, state: &Path) -> [String; 2] {
    machine.sign_up();
    let phrase = machine.path("customer/phrase");
    for name in ["projects", "homes"] {
        machine.make_volume(name);
    }
    let secret = machine.path("customer/join");
    let both = ["--volume", "projects", "--volume", "homes"];
    machine.tell(
        &[
            &["edge", "create", "office"][..],
            &both,
            &["--secret-file", &secret],
        ]
        .concat(),
        "",
    );
    let tenant = machine.tell(&["whoami"], "");
    let (server, state) = (machine.server(), state.display().to_string());
    let mut join = vec![
        "edge",
        "join",
        "--tenant",
        tenant["tenant"].as_str().unwrap(),
        "--state",
        &state,
    ];
    join.extend(server.iter().map(String::as_str));
    machine.tell(&join, &fs::read_to_string(secret).unwrap());
    machine.tell(&["edge", "approve", "office", "--phrase-file", &phrase], "");
    ["projects", "homes"].map(|name| {
        let shown = machine.tell(&["volume", "show", name], "");
        shown["id"].as_str().unwrap().to_owned()
    })
}

/// The configuration of an edge that serves both, enrolled once in its own directory.
fn configuration(edge: &Edge, place: &Path, volumes: &[String; 2]) -> String {
    let (state, port, place) = (edge.state.display(), edge.address.port(), place.display());
    let mut text = format!(
        "[edge]\nstate_directory = \"{state}\"\n\n[nfs]\nlisten = \"127.0.0.1\"\nnfs_port = {port}\nportmap = false\n\
         grace_seconds = 1\n\n[limits]\ncheckpoint_busy = \"1 s\"\ncheckpoint_trickle = \"1 s\"\n"
    );
    for (volume, path) in volumes.iter().zip(["/projects", "/homes"]) {
        text.push_str(&format!(
            "\n[[volume]]\nname = \"{volume}\"\nstore = \"file://{place}/store{path}\"\nanchor = \"service\"\n\n\
             [[export]]\npath = \"{path}\"\nvolume = \"{volume}\"\nclients = [\"127.0.0.0/8\"]\nsquash = \"none\"\n\
             require_privileged_port = false\n"
        ));
    }
    text
}

/// Writes into both until what the service has of each satisfies `condition`, at the same time.
async fn until(machine: &Machine, clients: &mut [Client; 2], condition: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        for client in clients.iter_mut() {
            write(client, "probe", b"a client works meanwhile").await;
        }
        let shown = machine.tell(&["edge", "show", "office"], "");
        let volumes = shown["observed"]["volumes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if volumes.len() == 2 && volumes.iter().all(&condition) {
            return shown;
        }
        assert!(began.elapsed() < REPORTED_WITHIN, "{shown}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_joined_edge_serves_two_volumes_and_says_how_each_stands() {
    let place = tempfile::tempdir().unwrap();
    let mut machine = Machine::new(&place.path().join("firn"));
    let branch = place.path().join("branch");
    let mut edge = Edge::configure(program("firn-edge"), &branch, Settings::local(&branch)).unwrap();
    machine.start();
    let volumes = from_nothing_to_two_volumes(&machine, &edge.state);
    for path in ["projects", "homes"] {
        fs::create_dir_all(branch.join("store").join(path)).unwrap();
    }
    fs::write(&edge.config, configuration(&edge, &branch, &volumes)).unwrap();
    for volume in &volumes {
        edge.command("enrol", &["--volume", volume]).await.unwrap();
    }
    edge.start().await.unwrap();
    let mut clients = [
        mount(edge.address, "/projects").await,
        mount(edge.address, "/homes").await,
    ];
    let [projects, homes] = &mut clients;
    write(projects, "plan", b"of the projects").await;
    write(homes, "letter", b"of somebody's home").await;
    for (client, theirs, others) in [
        (projects, &b"plan"[..], &b"letter"[..]),
        (homes, b"letter", b"plan"),
    ] {
        let root = client.root.clone();
        assert!(client.lookup(&root, theirs).await.is_ok());
        assert!(
            client.lookup(&root, others).await.is_err(),
            "volumes share nothing"
        );
    }
    let shown = until(&machine, &mut clients, |volume| volume["state"] == "serving").await;
    for volume in shown["observed"]["volumes"].as_array().unwrap() {
        assert!(volumes.iter().any(|id| volume["volume"] == **id), "{shown}");
        for figure in ["dirty_bytes", "used_bytes", "clients"] {
            assert!(volume[figure].is_u64(), "{figure}: {shown}");
        }
    }
    let page = machine.shows(&["edge", "show", "office"]);
    assert!(
        page.contains("of projects") && page.contains("of homes"),
        "{page}"
    );

    // What the service wants of one volume reaches that one, and what it wants of the edge both.
    machine.tell(&["volume", "rekey", "homes"], "");
    let is_homes = |volume: &Value| volume["volume"] == *volumes[1];
    let shown = until(&machine, &mut clients, |volume| {
        !is_homes(volume) || volume["rekey"]["oldest_epoch_needed"] == 1
    })
    .await;
    let seen = shown["observed"]["volumes"].as_array().unwrap();
    assert!(
        seen.iter()
            .all(|volume| is_homes(volume) || volume["rekey"].is_null()),
        "{shown}"
    );
    machine.tell(&["budget", "set", "--hard-cap", "0"], "");
    wait_for("both volumes refuse new writes", || {
        let shown = machine.tell(&["edge", "show", "office"], "");
        let seen = shown["observed"]["volumes"].as_array()?;
        let refuse = seen
            .iter()
            .filter(|volume| volume["new_writes"] == "refused_by_cap");
        (refuse.count() == 2).then_some(())
    });
    for client in &mut clients {
        let root = client.root.clone();
        let refused = client.write_file(&root, b"new", 0o644, b"x").await;
        assert!(refused.is_err_and(|error| error.to_string().contains("DQUOT")));
    }

    // A power cut: both come back with what was acknowledged, and with the cap.
    edge.kill().await.unwrap();
    edge.start().await.unwrap();
    for (path, name) in [("/projects", &b"plan"[..]), ("/homes", b"letter")] {
        let mut client = mount(edge.address, path).await;
        let root = client.root.clone();
        client.lookup(&root, name).await.unwrap();
        let refused = client.write_file(&root, b"new", 0o644, b"x").await;
        assert!(refused.is_err_and(|error| error.to_string().contains("DQUOT")));
    }
    edge.stop().await.unwrap();
    machine.stop();
}
