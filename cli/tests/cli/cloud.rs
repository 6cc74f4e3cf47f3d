//! An edge that holds no credentials of the cloud but those that the service gives it for a quarter of an hour.
//!
//! ```text
//! tests/lab/cloud/with azurite -- cargo test -p firn-cli --test cli -- --ignored cloud::real_
//! ```

use crate::running::{Person, Service};
use firn_integration::Tree;
use firn_rig::{
    Client, EXPORT, Edge, Settings,
    buckets::{AZURITE_ACCOUNT, AZURITE_KEY},
};
use std::fs;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Azurite"]
async fn real_an_edge_serves_from_azure_with_the_services_signatures_and_nothing_else() {
    let endpoint = std::env::var("FIRN_TEST_AZURITE").expect("tests/lab/cloud/with azurite names it");
    assert!(
        std::env::var_os("AZURE_STORAGE_ACCOUNT_KEY").is_none(),
        "the edge would have it too"
    );
    let place = tempfile::tempdir().unwrap();
    let arguments = [
        "--azure-account",
        AZURITE_ACCOUNT,
        "--azure-region",
        "west",
        "--azure-endpoint",
        &endpoint,
    ];
    let key = [("AZURE_STORAGE_ACCOUNT_KEY", AZURITE_KEY)];
    let service = Service::start_with(place.path(), false, &arguments, &key);
    let ada = Person::new(place.path(), "ada");
    let welcome = ada.sign_up(&service, "ada@one.example");
    let tenant = welcome["tenant"]["id"].as_str().unwrap();
    let (phrase, secret) = (ada.path("phrase"), ada.path("join"));
    let volume = ada.json(&[
        "volume",
        "create",
        "files",
        "--region",
        "west",
        "--phrase-file",
        &phrase,
    ]);
    let installed = ada.json(&[
        "edge",
        "install",
        "office",
        "--volume",
        "files",
        "--clients",
        "127.0.0.0/8",
        "--secret-file",
        &secret,
    ]);

    let branch = place.path().join("branch");
    // The account's only container that this edge may see; the account's key is nowhere on its machine. The service tells where it is.
    let container = volume["id"].as_str().unwrap().replace('_', "-");
    let store = format!("azure://{container}?account={AZURITE_ACCOUNT}&endpoint={endpoint}");
    let configuration = installed["configuration"].as_str().unwrap();
    for line in [&*format!("store = \"{store}\""), "credentials = \"service\""] {
        assert!(
            configuration.lines().any(|known| known == line),
            "{line}: {configuration}"
        );
    }
    assert_eq!(ada.json(&["volume", "show", "files"])["store"], *store);
    let settings = Settings {
        store,
        table: "service".into(),
        credentials: "service".into(),
        ..Settings::local(&branch)
    };
    let mut edge = Edge::configure(Edge::binary().unwrap(), &branch, settings).unwrap();
    let state = edge.state.display().to_string();
    let mut join = vec!["edge", "join", "--tenant", tenant, "--state", &state];
    let server = service.server();
    join.extend(server.iter().map(String::as_str));
    ada.tell(&join, &fs::read_to_string(&secret).unwrap()).good();
    ada.json(&["edge", "approve", "office", "--phrase-file", &phrase]);

    edge.command("enrol", &[]).await.unwrap();
    edge.start().await.unwrap();
    let mut client = Client::mount(edge.address, EXPORT).await.unwrap();
    let mut tree = Tree::default();
    for salt in ["first", "second"] {
        tree.write(&mut client, "files", 20, 100_000, salt).await.unwrap();
        edge.sync().await.unwrap();
    }
    drop(client);
    edge.stop().await.unwrap();
    edge.wipe_cache().unwrap();
    edge.start().await.unwrap();
    let mut client = Client::mount(edge.address, EXPORT).await.unwrap();
    tree.is_what_is_there(&mut client).await.unwrap();
    drop(client);
    let said = edge.command("verify", &[]).await.unwrap();
    assert!(said.starts_with("whole"), "{said}");
    edge.stop().await.unwrap();
}
