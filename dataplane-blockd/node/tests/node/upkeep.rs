//! Duties of a node besides serving: repair, admission, refusing when full, forgetting deleted disks.

use crate::support::*;
use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_placement::*;
use firn_blockd_protocol::*;
use firn_identity::UnixTime;
use std::time::Duration;

#[test]
fn damage_is_repaired_from_another_replica() {
    let Stage { cluster, client } = stage(6, 3, 2);
    let machines: Vec<_> = cluster.hosts.iter().map(|host| host.machine.clone()).collect();
    cluster
        .simulation
        .run(async move {
            for sequence in 1..=3 {
                fill(&client, sequence).await;
            }
            for machine in &machines[..1] {
                machine.disk().rot("data/", 30_000);
            }
            // Found by reads and repaired; what is read is always right.
            for _ in 0..10 {
                for index in 0..TRACTS {
                    let generation = Generation::new(client.fence, 3);
                    let found = client.read(index, 1).await.expect("another replica has it");
                    assert_eq!(found, Some(content(client.tract(index), 1, generation)));
                }
            }
            client.env.sleep(Duration::from_secs(90)).await;
            assert_eq!(filled(&client, 3).await, Ok(()));
        })
        .expect("the run ends");
}

#[test]
fn capabilities_are_asked_for_and_bind() {
    as_a_stranger(7, async |Stranger { env, client, row, .. }| {
        let replica = row.replicas[0].clone();
        let read = |disk, index| Request::Fetch {
            tract: TractId { disk, index },
            row: row.version,
            fence: client.fence,
            range: BlockRange::new(1, 1).expect("within the tract"),
        };
        let open = || Connection::open(&env, &replica.address, ConnectionOptions::default());
        let refused = |answer: Result<Reply, CallError>| match answer {
            Err(CallError::Refused(refusal)) => refusal,
            other => panic!("not refused: {other:?}"),
        };
        let stranger = open().await.expect("the node listens");
        assert_eq!(
            refused(stranger.call(read(client.disk, 0)).await),
            Refusal::NotAuthenticated
        );
        let forged = Request::Authenticate {
            capability: Bytes::from_static(b"open sesame"),
        };
        assert!(matches!(
            refused(stranger.call(forged).await),
            Refusal::CapabilityInvalid(_)
        ));
        let sign = |scope, expires| capability_until(&env, scope, expires);
        let scope = |write, fence| Scope::Disk {
            disk: client.disk,
            fence,
            write,
            attach: false,
        };
        let now = UnixTime::from_wall(env.wall());
        let soon = now.plus(5);
        let expired = Request::Authenticate {
            capability: sign(scope(true, client.fence), now.minus(1)),
        };
        assert_eq!(refused(stranger.call(expired).await), Refusal::CapabilityExpired);
        // Signed by the cluster, but for a tenant who does not own the disk.
        let foreign = Request::Authenticate {
            capability: capability_of(&env, TenantId([8; 16]), scope(true, client.fence), now.plus(60)),
        };
        stranger.call(foreign).await.expect("it is a capability");
        assert_eq!(
            refused(stranger.call(read(client.disk, 0)).await),
            Refusal::UnknownDisk
        );
        let set = Request::SetFence {
            disk: client.disk,
            fence: client.fence,
        };
        assert_eq!(refused(stranger.call(set.clone()).await), Refusal::UnknownDisk);
        let brief = Request::Authenticate {
            capability: sign(scope(false, client.fence), soon),
        };
        stranger.call(brief).await.expect("it is valid");
        assert!(matches!(
            stranger.call(read(client.disk, 0)).await,
            Ok(Reply::Fetched(_))
        ));
        assert!(matches!(
            refused(stranger.call(set).await),
            Refusal::NotPermitted(_)
        ));
        // Another disk, a tract beyond the end, and a write where reading was granted.
        let other = DiskId([1; 16]);
        assert_eq!(
            refused(stranger.call(read(other, 0)).await),
            Refusal::NotAuthenticated
        );
        assert_eq!(
            refused(stranger.call(read(client.disk, TRACTS)).await),
            Refusal::OutOfRange { tracts: TRACTS }
        );
        let trim = Request::Trim {
            tract: client.tract(0),
            row: row.version,
            generation: Generation::new(client.fence, 9),
            range: BlockRange::TRACT,
        };
        assert!(matches!(
            refused(stranger.call(trim).await),
            Refusal::NotPermitted(_)
        ));
        let list = list(None);
        assert!(matches!(
            refused(stranger.call(list).await),
            Refusal::Malformed(_)
        ));
        env.sleep(Duration::from_secs(6)).await;
        assert_eq!(
            refused(stranger.call(read(client.disk, 0)).await),
            Refusal::CapabilityExpired
        );
        assert_eq!(filled(&client, 1).await, Ok(()));
    });
}

#[test]
fn a_full_node_refuses_new_tracts_and_serves_the_others() {
    let cluster = TestCluster::new(8, 1);
    let mut client = cluster.client("client");
    let env = cluster.simulation.env();
    let table = cluster.table.clone();
    cluster
        .simulation
        .run(async move {
            // Sixteen frames, and a disk that was promised more: the total is not looked at here.
            client.create(1, 16).await;
            let placement = placement(&env, &table);
            let more = placement.grow_disk(client.disk, 17 * TRACT_BYTES, None).await;
            assert!(matches!(more, Err(PlacementError::NoCapacity { .. })), "{more:?}");
            client.attach(client.disk).await;
            for index in 0..16 {
                let generation = Generation::new(client.fence, 1);
                let data = content(client.tract(index), 0, generation);
                client
                    .write(index, 0, generation, Some(data))
                    .await
                    .expect("there is room");
            }
            for index in 0..16 {
                assert!(client.read(index, 0).await.expect("it is there").is_some());
            }
        })
        .expect("the run ends");
}

#[test]
fn deleted_disks_are_dropped_by_the_nodes() {
    let Stage { cluster, client } = stage(9, 3, 2);
    let placement = placement(&cluster.simulation.env(), &cluster.table);
    let held: Vec<_> = cluster.hosts.iter().map(|host| host.running.clone()).collect();
    cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            let used = || -> u64 {
                held.iter()
                    .map(|node| {
                        node.lock()
                            .expect("no panic")
                            .as_ref()
                            .map_or(0, |node| node.store().used_tracts())
                    })
                    .sum()
            };
            assert_eq!(used(), 2 * u64::from(TRACTS));
            let text = held[0]
                .lock()
                .expect("no panic")
                .as_ref()
                .map(|node| node.metrics().text())
                .unwrap_or_default();
            assert!(text.contains("firn_blockd_used_tracts"), "{text}");
            placement
                .detach_disk(client.disk, client.fence, true)
                .await
                .expect("it has it");
            placement.delete_disk(client.disk).await.expect("nobody has it");
            client.env.sleep(Duration::from_secs(40)).await;
            assert_eq!(used(), 0);
            let generation = Generation::new(client.fence, 2);
            let row = client.row(0).await;
            let replica = &row.replicas[0];
            let write = Request::Trim {
                tract: client.tract(0),
                row: row.version,
                generation,
                range: BlockRange::TRACT,
            };
            let answer = client.call(replica.node, &replica.address, write).await;
            assert_eq!(answer, Err(CallError::Refused(Refusal::UnknownDisk)));
        })
        .expect("the run ends");
}

/// Where the table is a service, each look at all disks costs as much as they are many.
#[test]
fn an_idle_cluster_asks_for_all_disks_no_oftener_than_it_needs_to() {
    let Stage { cluster, client } = stage(9, 3, 2);
    let table = cluster.table.clone();
    let queries = cluster
        .simulation
        .run(async move {
            fill(&client, 1).await;
            client.env.sleep(Duration::from_secs(60)).await;
            let before = table.counts().queries;
            client.env.sleep(Duration::from_secs(600)).await;
            table.counts().queries - before
        })
        .expect("the run ends");
    // Twice a second the coordinator asks for the nodes and three tables of rows.
    let coordinator = 2 * 600 * 4;
    // Deleted disks are looked for in eighths of the half minute for which their tracts are kept.
    let nodes = 3 * 600 * 8 / 30;
    assert!(
        (coordinator..=coordinator + nodes + 10).contains(&queries),
        "{queries} queries"
    );
}
