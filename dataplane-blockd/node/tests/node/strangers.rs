//! Authorization at a node: other nodes have the rows that they share, clients their own disks, nobody else anything.

use crate::support::*;
use firn_blockd_node::*;
use firn_blockd_protocol::*;
use firn_env::Env;
use firn_identity::{
    Capability, CapabilityIssuer, CapabilityVerifier, EdgeId, HolderHash, PeerIdentity, PeerKind, Rights,
    UnixTime,
};
use std::time::Duration;

/// A connection on which `scope` was presented.
async fn connected(env: &Env, address: &str, tenant: TenantId, scope: Scope) -> Connection {
    let connection = Connection::open(env, address, ConnectionOptions::default())
        .await
        .expect("the node listens");
    let expires = UnixTime::from_wall(env.wall()).plus(600);
    let capability = capability_of(env, tenant, scope, expires);
    connection
        .call(Request::Authenticate { capability })
        .await
        .expect("the cluster signed it");
    connection
}

fn list_row(row: &Row) -> Request {
    Request::List {
        disk: None,
        row: Some(RowAt {
            replication: row.replication,
            index: row.index,
            version: row.version,
        }),
        after: None,
        limit: 100,
    }
}

fn is_not_permitted(answer: &Result<Reply, CallError>) -> bool {
    matches!(
        answer,
        Err(CallError::Refused(
            Refusal::NotPermitted(_)
                | Refusal::UnknownDisk
                | Refusal::NotAuthenticated
                | Refusal::Malformed(_)
        ))
    )
}

#[test]
fn a_node_gets_nothing_of_rows_in_which_the_table_does_not_list_it() {
    as_a_stranger(31, async |Stranger { env, client, row, .. }| {
        let source = row.active().next().expect("the row is whole").clone();
        let fetch = Request::Fetch {
            tract: client.tract(0),
            row: row.version,
            fence: Fence(0),
            range: BlockRange::new(0, 8).expect("within the tract"),
        };
        // Any node's certificate, such as one that a tenant had issued for a machine of its own.
        let stranger = Scope::Node(NodeId([0x66; 16]));
        let connection = connected(&env, &source.address, TENANT, stranger).await;
        let everything = list(None);
        let of_disk = list(Some(client.disk));
        for request in [everything.clone(), of_disk.clone(), list_row(&row), fetch.clone()] {
            let answer = connection.call(request.clone()).await;
            assert!(
                is_not_permitted(&answer),
                "{request:?} was answered with {answer:?}"
            );
        }
        // The other replica of the row copies and repairs from it; and it, too, gets that row's tracts only.
        let member = row
            .replicas
            .iter()
            .find(|replica| replica.node != source.node)
            .expect("two copies");
        let connection = connected(&env, &source.address, TENANT, Scope::Node(member.node)).await;
        for request in [list_row(&row), fetch] {
            let answer = connection.call(request.clone()).await;
            assert!(answer.is_ok(), "{request:?} was answered with {answer:?}");
        }
        for request in [everything, of_disk] {
            let answer = connection.call(request.clone()).await;
            assert!(
                is_not_permitted(&answer),
                "{request:?} was answered with {answer:?}"
            );
        }
    });
}

#[test]
fn a_row_that_a_node_has_left_is_not_its_any_more() {
    let Stage { cluster, client } = stage(32, 4, 2);
    let env = cluster.simulation.machine("stranger").env();
    let placement = placement(&cluster.simulation.env(), &cluster.table);
    cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            let before = client.row(0).await;
            let gone = before.replicas[0].node;
            placement
                .set_node_state(gone, firn_blockd_placement::NodeState::Draining)
                .await
                .expect("the table answers");
            for _ in 0..400 {
                env.sleep(Duration::from_millis(500)).await;
                client.refresh(before.index).await;
                let row = client.row(0).await;
                if row.replica(gone).is_some() || row.active().count() < 2 {
                    continue;
                }
                let source = row.active().next().expect("the row is whole").clone();
                let connection = connected(&env, &source.address, TENANT, Scope::Node(gone)).await;
                for row in [&before, &row] {
                    let fetch = Request::Fetch {
                        tract: client.tract(0),
                        row: row.version,
                        fence: Fence(0),
                        range: BlockRange::new(0, 8).expect("within the tract"),
                    };
                    for request in [list_row(row), fetch] {
                        let answer = connection.call(request.clone()).await;
                        assert!(
                            matches!(
                                answer,
                                Err(CallError::Refused(
                                    Refusal::NotPermitted(_) | Refusal::WrongRow { .. }
                                ))
                            ),
                            "{request:?} was answered with {answer:?}"
                        );
                    }
                }
                return;
            }
            panic!("the node is never drained");
        })
        .expect("the run ends");
}

#[test]
fn a_capability_that_was_signed_for_the_wrong_tenant_lists_nothing() {
    as_a_stranger(33, async |Stranger { env, client, row, .. }| {
        let scope = |fence| Scope::Disk {
            disk: client.disk,
            fence,
            write: true,
            attach: true,
        };
        let list = list(Some(client.disk));
        let address = &row.replicas[0].address;
        let foreign = connected(&env, address, TenantId([8; 16]), scope(client.fence)).await;
        assert_eq!(
            foreign.call(list.clone()).await,
            Err(CallError::Refused(Refusal::UnknownDisk))
        );
        // Who lost the disk to a later attach sees nothing of it any more either.
        let late = connected(&env, address, TENANT, scope(Fence(client.fence.0 - 1))).await;
        let answer = late.call(list.clone()).await;
        assert!(
            matches!(
                answer,
                Err(CallError::Refused(
                    Refusal::Fenced { .. } | Refusal::CapabilityInvalid(_)
                ))
            ),
            "{answer:?}"
        );
        let own = connected(&env, address, TENANT, scope(client.fence)).await;
        assert!(matches!(own.call(list).await, Ok(Reply::List { .. })));
    });
}

/// With certificates, the name in the certificate is who calls: what is presented can add the rights of a disk to it, and make
/// it nobody else.
#[test]
fn where_there_are_certificates_a_capability_makes_nobody_another_node_and_nobody_bears_one() {
    let simulation = firn_env::sim::Simulation::new(34);
    let env = simulation.env();
    let issuer = CapabilityIssuer::from_seed(KEY);
    let authenticator = CapabilityAuthenticator::new(CapabilityVerifier::new([issuer.public()]));
    let named = |kind| PeerIdentity {
        trust_domain: "blockd.firn".into(),
        kind,
    };
    let node = named(PeerKind::Node(NodeId([1; 16])));
    let edge = named(PeerKind::Edge {
        tenant: TENANT,
        edge: EdgeId([2; 16]),
    });
    let now = UnixTime::from_wall(env.wall());
    let signed = |tenant: [u8; 16], disk: [u8; 16], rights, holder| {
        issuer.issue(&Capability {
            tenant: TenantId(tenant),
            disk: DiskId(disk),
            rights,
            fence: 1,
            not_before: now,
            expires: now.plus(600),
            holder,
        })
    };
    let called_by = |identity: &PeerIdentity, capability: &[u8]| {
        let peer = Peer {
            address: "10.0.0.9:1234".into(),
            identity: Some(identity.clone()),
        };
        authenticator.verify(capability, &peer, env.wall())
    };
    let disk_rights = Rights::READ.and(Rights::WRITE).and(Rights::ATTACH);
    // Another node's capability to copy, even one bound to the caller.
    for holder in [None, Some(HolderHash::of(&node))] {
        let other_node = signed([7; 16], [0; 16], Rights::REPAIR, holder);
        let granted = called_by(&node, &other_node);
        assert!(matches!(granted, Err(AuthError::Invalid(_))), "{granted:?}");
    }
    // A disk's capability that says nobody's name is good for whoever gets hold of it.
    let bearer = signed(TENANT.0, [5; 16], disk_rights, None);
    for caller in [&node, &edge] {
        let granted = called_by(caller, &bearer);
        assert!(matches!(granted, Err(AuthError::Invalid(_))), "{granted:?}");
    }
    // An edge is its tenant's: one of another tenant's disk is not for it, whoever signed it.
    let foreign = signed([8; 16], [5; 16], disk_rights, Some(HolderHash::of(&edge)));
    let granted = called_by(&edge, &foreign);
    assert!(matches!(granted, Err(AuthError::Invalid(_))), "{granted:?}");
    let own = signed(TENANT.0, [5; 16], disk_rights, Some(HolderHash::of(&edge)));
    assert!(called_by(&edge, &own).is_ok());
}

/// Whoever has a node's certificate can name rows and disks that there are not: that must cost the node neither memory nor a read of
/// the table for each.
#[test]
fn made_up_rows_are_not_kept() {
    as_a_stranger(35, async |Stranger { env, row, table, .. }| {
        let stranger = Scope::Node(NodeId([0x66; 16]));
        let connection = connected(&env, &row.replicas[0].address, TENANT, stranger).await;
        let before = table.counts();
        for index in ROWS..ROWS + 500 {
            let made_up = Row {
                index: RowIndex(index),
                version: RowVersion(7),
                ..row.clone()
            };
            let answer = connection.call(list_row(&made_up)).await;
            assert!(
                matches!(answer, Err(CallError::Refused(Refusal::Malformed(_)))),
                "{answer:?}"
            );
        }
        let after = table.counts();
        // Heartbeats and the coordinator go on.
        let reads = after.gets - before.gets;
        assert!(
            reads < 100,
            "{reads} reads of the table for 500 rows that there are not"
        );
    });
}
