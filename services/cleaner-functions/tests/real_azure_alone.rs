//! Firn with nothing but a storage account of Azure: Azurite's blobs and tables, an edge with an NFS client, the cleaner as the Functions
//! host calls it; the edge and the table are lost, and the volume comes back. Whoever asked AWS for anything would ask a trap.
//!
//! ```text
//! tests/lab/cloud/with azurite -- cargo test -p firn-edge -p firn-cleaner-functions -- --ignored real_
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "it looks from outside: real time, real processes"
)]

mod handler;

use anyhow::{Result, ensure};
use firn_integration::Tree;
use firn_rig::{Client, EXPORT, Edge, Settings, servers::Server};
use handler::Handler;
use serde_json::json;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A server to which everything of AWS is directed. It counts who comes, and hangs up.
struct Trap {
    address: String,
    caught: Arc<AtomicUsize>,
}

impl Trap {
    async fn start() -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = format!("http://{}", listener.local_addr()?);
        let caught = Arc::<AtomicUsize>::default();
        let counted = caught.clone();
        tokio::spawn(async move {
            while listener.accept().await.is_ok() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        Ok(Self { address, caught })
    }

    /// AWS's libraries find all of its services at the trap; there are no credentials, region or profile.
    fn environment(&self) -> Vec<(String, String)> {
        let trapped = [
            "AWS_ENDPOINT_URL",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        ];
        let nothing = ["AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"];
        let trapped = trapped.iter().map(|name| (*name, self.address.as_str()));
        let nothing = nothing.iter().map(|name| (*name, "/nonexistent"));
        trapped
            .chain(nothing)
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }
}

/// What an edge is told, and the trap.
fn settings(server: &Server, place: &Path, trap: &Trap) -> Settings {
    let mut settings = server.settings(place);
    assert!(
        !settings
            .environment
            .iter()
            .any(|(name, _)| name.starts_with("AWS_")),
        "{:?}",
        settings.environment
    );
    settings.environment.extend(trap.environment());
    settings
}

/// What a check says, be the machine as it is.
async fn checked(edge: &Edge) -> Result<String> {
    match edge.command("check", &[]).await {
        Ok(said) => Ok(said),
        Err(_) => edge.refused(7, "check", &[]).await,
    }
}

async fn story() -> Result<()> {
    let server = Server::azure_alone().await?;
    let (place, trap) = (tempfile::tempdir()?, Trap::start().await?);
    let given = settings(&server, place.path(), &trap);

    let mut edge = Edge::configure(Edge::binary()?, &place.path().join("a"), given.clone())?;
    let said = edge.command("check-config", &[]).await?;
    ensure!(said.contains("fine"), "{said}");
    edge.reconfigure(|settings| settings.table = "azure-table://not-a-name".into())?;
    let said = edge.refused(2, "check-config", &[]).await?;
    ensure!(said.contains("is no name of an Azure table"), "{said}");
    edge.reconfigure(|settings| settings.clone_from(&given))?;
    let said = checked(&edge).await?;
    ensure!(
        said.contains("Azure Table Storage answers; firn-edge format makes the table"),
        "{said}"
    );
    let family = edge.format().await?;

    // Three generations of most of the files: more than half of the log is garbage, and the cleaner takes it away with the edge off.
    edge.start().await?;
    let mut tree = Tree::default();
    let mut client = Client::mount(edge.address, EXPORT).await?;
    for generation in 0..3 {
        tree.write(&mut client, "kept", 3 * (generation + 1), 200_000, "once")
            .await?;
        let content = format!("generation {generation}");
        tree.write(&mut client, "changed", 30, 300_000, &content).await?;
        edge.sync().await?;
    }
    drop(client);
    edge.stop().await?;
    let said = checked(&edge).await?;
    ensure!(
        said.contains("azure-table://") && said.contains("a root within"),
        "{said}"
    );
    let handler = Handler::start(&given).await?;
    handler
        .shrink(&server, "CleanOnSchedule", &handler::timer())
        .await?;
    let work = json!({ "family": family }).to_string();
    handler.all_is_gone(&server, &work, tree.bytes()).await?;
    drop(handler);

    edge.start().await?;
    let mut client = Client::mount(edge.address, EXPORT).await?;
    tree.is_what_is_there(&mut client).await?;
    tree.write(&mut client, "later", 5, 100_000, "after cleaning")
        .await?;
    edge.sync().await?;
    drop(client);

    // The edge is lost with its disk, and so is the table: bucket and phrase are enough, into a new table.
    edge.kill().await?;
    let phrase = edge.config.with_file_name("recovery-phrase");
    std::fs::remove_dir_all(&edge.state)?;
    let server = server.with_another_table();
    let mut given = settings(&server, place.path(), &trap);
    given.name = "b".into();
    let mut next = Edge::configure(Edge::binary()?, &place.path().join("b"), given.clone())?;
    let phrase = phrase.to_string_lossy();
    let said = next
        .command("recover", &["--phrase-file", &phrase, "--yes"])
        .await?;
    ensure!(said.contains("Recovered"), "{said}");
    next.start().await?;
    let mut client = Client::mount(next.address, EXPORT).await?;
    tree.is_what_is_there(&mut client).await?;
    tree.write(&mut client, "changed", 30, 300_000, "after the loss")
        .await?;
    next.sync().await?;
    tree.is_what_is_there(&mut client).await?;
    drop(client);
    let said = next.command("verify", &[]).await?;
    ensure!(said.starts_with("whole"), "{said}");
    next.stop().await?;

    // And the cleaner goes on from the new table.
    let handler = Handler::start(&given).await?;
    let (status, answer) = handler.call("CleanOnMessage", json!({ "message": work })).await?;
    ensure!(status == 200, "{status}: {answer}");
    ensure!(
        answer["ReturnValue"]["report"]["damaged"] == json!([]),
        "{answer}"
    );

    let caught = trap.caught.load(Ordering::SeqCst);
    ensure!(caught == 0, "AWS was asked {caught} times");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Azurite"]
async fn real_an_office_lives_on_a_storage_account_alone_and_asks_aws_for_nothing() {
    story().await.expect("everything is there");
}
