//! One life of a volume, from its making to a machine that has never seen it, on every kind of store.
//!
//! ```text
//! tests/lab/cloud/with all -- cargo test -p firn-edge -p firn-integration -- --ignored real_
//! ```

use firn_integration::Tree;
use firn_rig::{Client, EXPORT, Edge, servers::Server};

async fn a_volume_lives_there(server: Server) {
    let place = tempfile::tempdir().expect("a temporary directory");
    let binary = Edge::binary().expect("the edge's program");
    let settings = server.settings(place.path());
    let mut edge =
        Edge::configure(binary.clone(), &place.path().join("a"), settings).expect("a configuration");
    edge.format().await.expect("a new volume");
    edge.start().await.expect("it serves");

    // A tree that is in the cloud, and more that is in the journal only.
    let mut tree = Tree::default();
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    tree.write(&mut client, "small", 200, 20_000, "")
        .await
        .expect("small files");
    tree.write(&mut client, "large", 4, 6 << 20, "")
        .await
        .expect("large files");
    edge.sync().await.expect("everything in the cloud");
    tree.write(&mut client, "small", 50, 20_000, "again")
        .await
        .expect("files written anew");
    tree.write(&mut client, "late", 100, 60_000, "")
        .await
        .expect("files after the checkpoint");
    drop(client);
    edge.kill().await.expect("SIGKILL");

    edge.start().await.expect("it recovers");
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    tree.is_what_is_there(&mut client)
        .await
        .expect("everything acknowledged");
    drop(client);
    edge.sync().await.expect("everything in the cloud");
    let said = edge.command("verify", &[]).await.expect("no damage");
    assert!(said.starts_with("whole"), "{said}");
    edge.stop().await.expect("a clean end");

    // Nothing cached: every byte comes from the store.
    edge.wipe_cache().expect("an empty cache");
    edge.start().await.expect("it starts without a cache");
    let before = edge.counters().await.expect("counters");
    let mut client = Client::mount(edge.address, EXPORT).await.expect("a mount");
    tree.is_what_is_there(&mut client)
        .await
        .expect("everything from the store");
    drop(client);
    let read = edge.counters().await.expect("counters").since(before);
    assert!(read.bytes_down > 6 << 20, "{read:?}");
    edge.command("drain", &[]).await.expect("the volume is given up");

    // A machine that has never seen the volume has the family's keys, the table and the bucket.
    let mut other = Edge::configure(binary, &place.path().join("b"), server.settings(place.path()))
        .expect("a configuration");
    let identity = edge.state.join("identity");
    let identity = identity.to_str().expect("a path");
    other
        .command("join", &["--identity", identity])
        .await
        .expect("it joins");
    other.start().await.expect("it serves");
    let mut client = Client::mount(other.address, EXPORT).await.expect("a mount");
    tree.is_what_is_there(&mut client)
        .await
        .expect("everything on the other machine");
    drop(client);
    other.stop().await.expect("a clean end");
    println!("{} files, in {}", tree.files(), other.prices);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs LocalStack and DynamoDB Local"]
async fn real_a_volume_lives_on_localstack_and_dynamodb() {
    a_volume_lives_there(Server::localstack().await.expect("LocalStack")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs versitygw and DynamoDB Local"]
async fn real_a_volume_lives_on_versitygw_and_dynamodb() {
    a_volume_lives_there(Server::versitygw().await.expect("versitygw")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Azurite and DynamoDB Local"]
async fn real_a_volume_lives_on_azurite_and_dynamodb() {
    a_volume_lives_there(Server::azurite().await.expect("Azurite")).await;
}
