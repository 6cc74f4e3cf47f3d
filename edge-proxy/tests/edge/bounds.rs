//! Bounds that an administrator sets, as clients meet them.

use crate::machine::{Cloud, Machine, TIMEOUT};
use firn_nfs::{client::NfsClient, rpc::Credential};

/// Connections of this machine that are answered, of one more than `expected` that stay open side by side.
async fn answered(edge: &Machine, expected: usize) -> usize {
    let env = firn_env::real(&edge.state).expect("an environment");
    let address = format!("127.0.0.1:{}", edge.port);
    let mut open = Vec::new();
    let mut answered = 0;
    for _ in 0..=expected {
        let credential = Credential::sys("client", 0, 0, Vec::new());
        let client = NfsClient::connect(&env, &address, credential, TIMEOUT)
            .await
            .expect("a connection, which may be closed at once");
        answered += usize::from(client.mount("/export").await.is_ok());
        open.push(client);
    }
    answered
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exports_own_connections_per_client_holds_instead_of_the_usual_one() {
    let cloud = Cloud::new();
    let mut edge = Machine::new(&cloud, "a", "main");
    edge.format();
    edge.edit("[nfs]\n", "[nfs]\nconnections_per_client = 2\n");
    edge.start(&[]);
    assert_eq!(answered(&edge, 2).await, 2, "without a bound of its own");
    edge.stop();

    edge.edit(
        "path = \"/export\"\n",
        "path = \"/export\"\nconnections_per_client = 5\n",
    );
    edge.start(&[]);
    assert_eq!(answered(&edge, 5).await, 5);
    edge.stop();

    edge.edit(
        "path = \"/export\"\nconnections_per_client = 5\n",
        "path = \"/export\"\nconnections_per_client = 1\n",
    );
    edge.start(&[]);
    assert_eq!(answered(&edge, 1).await, 1);
    edge.stop();
}
