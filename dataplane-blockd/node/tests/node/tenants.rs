//! Disk nodes that a tenant runs for itself: they serve that tenant, copy from each other, and are strangers to every other cluster,
//! as others are to them.

use crate::support::*;
use firn_blockd_node::*;
use firn_blockd_placement::NodeState;
use firn_blockd_protocol::*;
use firn_env::Env;
use firn_identity::{EdgeId, PeerKind};
use std::{sync::Arc, time::Duration};

const OTHER: TenantId = TenantId([8; 16]);

fn of_tenant(node: NodeId) -> PeerKind {
    PeerKind::TenantNode { tenant: TENANT, node }
}

fn of_other(node: NodeId) -> PeerKind {
    PeerKind::TenantNode { tenant: OTHER, node }
}

fn of_fleet(node: NodeId) -> PeerKind {
    PeerKind::Node(node)
}

/// A cluster whose nodes are called so, with an edge of `TENANT` that has a disk of two copies attached.
fn stage_of(seed: u64, nodes: usize, called: CalledBy) -> Stage {
    let security = move |env: &Env, node| Named::new(env, called(node)).security(env);
    let cluster = TestCluster::secured(seed, nodes, Arc::new(security));
    let mut client = cluster.client("client");
    let edge = PeerKind::Edge {
        tenant: TENANT,
        edge: EdgeId([2; 16]),
    };
    client.named = Some((Named::new(&client.env, edge), called));
    staged(cluster, client, 2)
}

/// What a node may ask of another: the tracts of a row, and the blocks of one.
fn copying(client: &Client, row: &Row) -> [Request; 2] {
    let list = Request::List {
        disk: None,
        row: Some(RowAt {
            replication: row.replication,
            index: row.index,
            version: row.version,
        }),
        after: None,
        limit: 100,
    };
    let fetch = Request::Fetch {
        tract: client.tract(0),
        row: row.version,
        fence: Fence(0),
        range: BlockRange::new(0, 8).expect("within the tract"),
    };
    [list, fetch]
}

/// The row of the disk's first tract, a node that has it, and the id of another that has it too.
async fn members(client: &Client) -> (Row, Replica, NodeId) {
    fill(client, 1).await;
    let row = client.row(0).await;
    let server = row.active().next().expect("the row is whole").clone();
    let beside = row
        .replicas
        .iter()
        .find(|replica| replica.node != server.node)
        .expect("two copies")
        .node;
    (row, server, beside)
}

async fn connected(env: &Env, who: PeerKind, server: PeerKind, address: &str) -> (Named, Connection) {
    let named = Named::new(env, who);
    let connection = named
        .connect(env, server, address, ConnectionOptions::default())
        .await
        .expect("whoever the authority knows may knock");
    (named, connection)
}

/// Neither a node that may ask for anything nor a client of any disk.
fn is_a_stranger(answer: &Result<Reply, CallError>) -> bool {
    match answer {
        Err(CallError::Refused(Refusal::NotAuthenticated)) => true,
        Err(CallError::Refused(Refusal::NotPermitted(why))) => why.contains("for nodes"),
        _ => false,
    }
}

/// The nodes' own copying goes by their names: with a node drained, another has to fetch everything from the one that stays.
#[test]
fn a_tenants_own_nodes_serve_its_disks_and_copy_from_each_other() {
    let Stage { cluster, client } = stage_of(41, 3, of_tenant);
    let placement = placement(&cluster.simulation.env(), &cluster.table);
    cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            filled(&client, 1).await.expect("it was written to all replicas");
            let leaves = client.row(0).await.replicas[0].node;
            placement
                .set_node_state(leaves, NodeState::Draining)
                .await
                .expect("the table answers");
            for _ in 0..1000 {
                client.env.sleep(Duration::from_millis(500)).await;
                let rows = placement.rows(client.replication).await.expect("it answers");
                let moved = |row: &Row| row.replica(leaves).is_none() && row.active().count() == 2;
                if rows.iter().all(moved) {
                    for row in &rows {
                        client.refresh(row.index).await;
                    }
                    filled(&client, 1).await.expect("the new replicas have it all");
                    return;
                }
            }
            panic!("what the drained node had is never copied");
        })
        .expect("the run ends");
}

#[test]
fn nodes_of_others_get_nothing_of_a_tenants_cluster_even_under_the_names_of_its_members() {
    let Stage { cluster, client } = stage_of(42, 3, of_tenant);
    let env = cluster.simulation.machine("stranger").env();
    cluster
        .simulation
        .run(async move {
            let (row, server, beside) = members(&client).await;
            let asks = copying(&client, &row);
            // Ids of nodes are no secret, and another tenant may have had one issued that is the same.
            for stranger in [of_other(beside), of_fleet(beside), of_other(server.node)] {
                let (_, connection) =
                    connected(&env, stranger.clone(), of_tenant(server.node), &server.address).await;
                for ask in &asks {
                    let answer = connection.call(ask.clone()).await;
                    assert!(
                        is_a_stranger(&answer),
                        "{stranger:?} asked {ask:?} and got {answer:?}"
                    );
                }
            }
            // A node of the tenant's own that is not in the row, and the one that is.
            let spare = of_tenant(NodeId([0x66; 16]));
            let (_, connection) = connected(&env, spare, of_tenant(server.node), &server.address).await;
            for ask in &asks {
                let answer = connection.call(ask.clone()).await;
                assert!(
                    matches!(answer, Err(CallError::Refused(Refusal::NotPermitted(_)))),
                    "{answer:?}"
                );
            }
            let member = of_tenant(beside);
            let (_, connection) = connected(&env, member, of_tenant(server.node), &server.address).await;
            for ask in &asks {
                let answer = connection.call(ask.clone()).await;
                assert!(answer.is_ok(), "{answer:?}");
            }
        })
        .expect("the run ends");
}

#[test]
fn a_tenants_nodes_get_nothing_of_the_fleet() {
    let Stage { cluster, client } = stage_of(43, 3, of_fleet);
    let env = cluster.simulation.machine("stranger").env();
    cluster
        .simulation
        .run(async move {
            let (row, server, beside) = members(&client).await;
            let asks = copying(&client, &row);
            // Of the tenant whose disk it is: its own nodes are no more the fleet's for that.
            for stranger in [of_tenant(beside), of_other(beside)] {
                let (_, connection) =
                    connected(&env, stranger.clone(), of_fleet(server.node), &server.address).await;
                for ask in &asks {
                    let answer = connection.call(ask.clone()).await;
                    assert!(
                        is_a_stranger(&answer),
                        "{stranger:?} asked {ask:?} and got {answer:?}"
                    );
                }
            }
            let (_, connection) =
                connected(&env, of_fleet(beside), of_fleet(server.node), &server.address).await;
            for ask in &asks {
                let answer = connection.call(ask.clone()).await;
                assert!(answer.is_ok(), "{answer:?}");
            }
        })
        .expect("the run ends");
}

/// The service signs the capabilities of all clusters with one key: whose cluster a node is in is the node's to know.
#[test]
fn a_tenants_cluster_takes_capabilities_of_no_other_tenant() {
    let Stage { cluster, client } = stage_of(44, 3, of_tenant);
    let env = cluster.simulation.machine("stranger").env();
    cluster
        .simulation
        .run(async move {
            let (_, server, _) = members(&client).await;
            let whole = |disk, fence| Scope::Disk {
                disk,
                fence,
                write: true,
                attach: true,
            };
            let edge = |tenant| PeerKind::Edge {
                tenant,
                edge: EdgeId([3; 16]),
            };
            let service = PeerKind::Service("blockd-client".into());
            let theirs = whole(client.disk, client.fence);
            let made_up = whole(DiskId([0x55; 16]), Fence(1));
            for (who, tenant, scope) in [
                (edge(OTHER), OTHER, theirs),
                (edge(OTHER), OTHER, made_up),
                (service.clone(), OTHER, made_up),
                (edge(OTHER), TENANT, theirs),
            ] {
                let (named, connection) =
                    connected(&env, who.clone(), of_tenant(server.node), &server.address).await;
                let capability = named.capability(&env, tenant, scope);
                let answer = connection.call(Request::Authenticate { capability }).await;
                assert!(
                    matches!(answer, Err(CallError::Refused(Refusal::CapabilityInvalid(_)))),
                    "{who:?} for {tenant:?}: {answer:?}"
                );
                let listed = connection.call(list(Some(client.disk))).await;
                assert!(is_a_stranger(&listed), "{who:?}: {listed:?}");
            }
            for who in [edge(TENANT), service] {
                let (named, connection) =
                    connected(&env, who.clone(), of_tenant(server.node), &server.address).await;
                let capability = named.capability(&env, TENANT, theirs);
                let answer = connection.call(Request::Authenticate { capability }).await;
                assert!(answer.is_ok(), "{who:?}: {answer:?}");
                let listed = connection.call(list(Some(client.disk))).await;
                assert!(matches!(listed, Ok(Reply::List { .. })), "{who:?}: {listed:?}");
            }
        })
        .expect("the run ends");
}
