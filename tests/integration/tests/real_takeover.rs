//! Two edges that are both alive, one of them cut off: nothing is mixed and nothing acknowledged is lost.

use firn_integration::Tree;
use firn_rig::{Client, EXPORT, Edge, SlowLink, servers::Server};
use std::{path::Path, time::Duration};

/// From the moment the line is mended: the longest pause between two tries of an upload, and the salvage.
const TIMEOUT: Duration = Duration::from_secs(180);

async fn mounted(edge: &Edge) -> Client {
    Client::mount(edge.address, EXPORT).await.expect("a mount")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs versitygw and DynamoDB Local"]
async fn real_an_edge_cut_off_is_fenced_when_it_comes_back_and_its_writes_are_in_a_salvage_clone() {
    let server = Server::versitygw().await.expect("versitygw");
    let place = tempfile::tempdir().expect("a temporary directory");
    let binary = Edge::binary().expect("the edge's program");
    let new_edge = |name: &str, volume: &str, server: &Server| {
        let directory = place.path().join(name);
        let mut settings = server.settings(&directory);
        (settings.name, settings.volume) = (name.to_owned(), volume.to_owned());
        Edge::configure(binary.clone(), &directory, settings).expect("a configuration")
    };
    // The first edge reaches store and table by lines that can be cut.
    let behind = |url: &str| url.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let to_store = SlowLink::to(&behind(&server.store_endpoint))
        .await
        .expect("a line");
    let to_table = SlowLink::to(&behind(&server.table_endpoint))
        .await
        .expect("a line");
    let by_lines = server.by_way_of(
        format!("http://{}", to_store.address()),
        format!("http://{}", to_table.address()),
    );

    let mut a = new_edge("a", "main", &by_lines);
    a.format().await.expect("a new volume");
    a.start().await.expect("it serves");
    let mut of_a = Tree::default();
    let mut client_of_a = mounted(&a).await;
    of_a.write(&mut client_of_a, "common", 30, 50_000, "by both")
        .await
        .expect("files");
    a.sync().await.expect("everything in the cloud");

    to_store.cut();
    to_table.cut();
    of_a.write(&mut client_of_a, "only-a", 60, 50_000, "")
        .await
        .expect("a cut off edge acknowledges");
    of_a.write(&mut client_of_a, "common", 10, 50_000, "by a")
        .await
        .expect("changes, too");

    // The second edge takes the volume by force. What the first had committed is there, what it had not is not.
    let mut b = new_edge("b", "main", &server);
    join(&b, &a.state).await;
    let said = b
        .refused(3, "run", &[])
        .await
        .expect("it does not own the volume");
    assert!(said.contains('a'), "{said}");
    let said = b.command("takeover", &["--force"]).await.expect("it takes over");
    assert!(said.contains("Taken over from a"), "{said}");
    b.start().await.expect("it serves");
    let mut of_b = Tree::default();
    let mut client_of_b = mounted(&b).await;
    of_b.expect_written("common", 30, 50_000, "by both");
    of_b.is_what_is_there(&mut client_of_b)
        .await
        .expect("what was committed");
    of_b.write(&mut client_of_b, "only-b", 40, 50_000, "")
        .await
        .expect("files");
    of_b.write(&mut client_of_b, "common", 5, 50_000, "by b")
        .await
        .expect("changes");

    // The first cannot know, and goes on.
    of_a.write(&mut client_of_a, "only-a-later", 20, 50_000, "")
        .await
        .expect("it still acknowledges");
    of_a.is_what_is_there(&mut client_of_a)
        .await
        .expect("its clients see their writes");

    // It comes back: it is fenced, brings what it has to safety, and serves nothing more.
    to_store.mend();
    to_table.mend();
    let (code, said) = a.ended(TIMEOUT).await.expect("it ends by itself");
    assert_eq!(code, Some(4), "{said}");
    let clone = said
        .split_whitespace()
        .find(|word| word.starts_with("salvage-"))
        .map(|word| word.trim_end_matches(['.', ';', ',']).to_owned())
        .unwrap_or_else(|| panic!("no clone is named: {said}"));
    assert!(
        Client::mount(a.address, EXPORT).await.is_err(),
        "it serves nothing"
    );
    let said = a
        .refused(3, "run", &[])
        .await
        .expect("nor when it is started again");
    assert!(said.contains('b'), "{said}");

    // The second's data stand, also for a reader without a cache.
    of_b.is_what_is_there(&mut client_of_b)
        .await
        .expect("everything of b");
    b.sync().await.expect("everything in the cloud");
    let said = b.command("verify", &[]).await.expect("no damage");
    assert!(said.starts_with("whole"), "{said}");
    drop(client_of_b);
    b.stop().await.expect("a clean end");
    b.wipe_cache().expect("an empty cache");
    b.start().await.expect("it serves");
    of_b.is_what_is_there(&mut mounted(&b).await)
        .await
        .expect("everything of b, from the store");

    // The clone is a volume like any other, served beside the second edge.
    let mut salvage = new_edge("s", &clone, &server);
    join(&salvage, &b.state).await;
    salvage
        .command("takeover", &["--force"])
        .await
        .expect("nobody serves the clone");
    salvage.start().await.expect("it serves");
    of_a.is_what_is_there(&mut mounted(&salvage).await)
        .await
        .expect("every acknowledged write of a");
    salvage.stop().await.expect("a clean end");
    b.stop().await.expect("a clean end");
}

async fn join(edge: &Edge, state: &Path) {
    let identity = state.join("identity");
    let identity = identity.to_str().expect("a path");
    edge.command("join", &["--identity", identity])
        .await
        .expect("it joins");
}
