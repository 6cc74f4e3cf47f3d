//! Permit at the disk, and a disk that is as slow as one says.

use bytes::Bytes;
use firn_blockd_node::*;
use firn_blockd_protocol::*;
use firn_env::{OpenMode, sim::Simulation};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

const REQUEST_COST_BYTES: u64 = 64 << 10;

#[test]
fn a_tenant_at_full_blast_does_not_hold_up_another() {
    let simulation = Simulation::new(1);
    let env = simulation.env();
    simulation
        .run(async move {
            let queue = FairQueue::new(2, REQUEST_COST_BYTES);
            let served = Arc::new(AtomicU64::new(0));
            for _ in 0..1000 {
                let (queue, env, served) = (queue.clone(), env.clone(), served.clone());
                drop(env.clone().spawn("loud", async move {
                    let _permit = queue
                        .permit(TenantId([1; 16]), 64 << 10)
                        .await
                        .expect("the lane has room");
                    env.sleep(Duration::from_millis(1)).await;
                    served.fetch_add(1, Relaxed);
                }));
            }
            env.sleep(Duration::from_millis(20)).await;
            assert!(queue.waiting() > 900);
            let mut longest = Duration::ZERO;
            for _ in 0..50 {
                let began = env.now();
                let permit = queue
                    .permit(TenantId([2; 16]), 64 << 10)
                    .await
                    .expect("the lane has room");
                longest = longest.max(env.now().since(began));
                env.sleep(Duration::from_millis(1)).await;
                drop(permit);
            }
            // A permit that is returned, and one that the loud tenant has first.
            assert!(longest <= Duration::from_millis(2), "waited {longest:?}");
            assert!(served.load(Relaxed) < 1000, "the loud one was still at it");
        })
        .expect("the run ends");
}

#[test]
fn equal_tenants_get_equal_shares_of_bytes_whatever_the_size_of_their_requests() {
    let simulation = Simulation::new(2);
    let env = simulation.env();
    simulation
        .run(async move {
            let queue = FairQueue::new(1, REQUEST_COST_BYTES);
            let bytes: [Arc<AtomicU64>; 2] = Default::default();
            for (tenant, size) in [(0_u8, 1_usize << 20), (1, 256 << 10)] {
                for _ in 0..16 {
                    let (queue, env, bytes) =
                        (queue.clone(), env.clone(), bytes[usize::from(tenant)].clone());
                    drop(env.clone().spawn("worker", async move {
                        loop {
                            let _permit = queue
                                .permit(TenantId([tenant; 16]), size)
                                .await
                                .expect("it has room");
                            env.sleep(Duration::from_micros(size as u64 / 100)).await;
                            bytes.fetch_add(size as u64, Relaxed);
                        }
                    }));
                }
            }
            env.sleep(Duration::from_secs(10)).await;
            let [large, small] = bytes.map(|bytes| bytes.load(Relaxed) as f64);
            // Small requests pay their fixed part: 320 KiB against 272 KiB for each quarter of a mebibyte.
            let ratio = large / small;
            assert!((1.0..1.4).contains(&ratio), "{large} to {small}");
        })
        .expect("the run ends");
}

#[test]
fn small_requests_of_a_loud_tenant_are_no_row_before_another() {
    let simulation = Simulation::new(5);
    let env = simulation.env();
    simulation
        .run(async move {
            // A disk with an arm: each request is a movement of 8 ms, worth a mebibyte.
            let queue = FairQueue::new(1, 1 << 20);
            for _ in 0..500 {
                let (queue, env) = (queue.clone(), env.clone());
                drop(env.clone().spawn("loud", async move {
                    let _permit = queue.permit(TenantId([1; 16]), 4096).await.expect("it has room");
                    env.sleep(Duration::from_millis(8)).await;
                }));
            }
            env.sleep(Duration::from_millis(20)).await;
            for _ in 0..20 {
                let began = env.now();
                let permit = queue.permit(TenantId([2; 16]), 4096).await.expect("it has room");
                let waited = env.now().since(began);
                assert!(waited <= Duration::from_millis(16), "waited {waited:?}");
                env.sleep(Duration::from_millis(8)).await;
                drop(permit);
            }
            assert!(queue.waiting() > 400);
        })
        .expect("the run ends");
}

#[test]
fn a_lane_without_end_is_refused() {
    let simulation = Simulation::new(3);
    let env = simulation.env();
    simulation
        .run(async move {
            let queue = FairQueue::new(1, REQUEST_COST_BYTES);
            let held = queue.permit(TenantId([1; 16]), 1).await.expect("it is free");
            let refused = Arc::new(AtomicU64::new(0));
            for _ in 0..5000 {
                let (queue, refused) = (queue.clone(), refused.clone());
                drop(env.spawn("waiting", async move {
                    if queue.permit(TenantId([1; 16]), 1).await.is_err() {
                        refused.fetch_add(1, Relaxed);
                    }
                }));
            }
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(refused.load(Relaxed), 5000 - 4096);
            drop(held);
            env.sleep(Duration::from_secs(10)).await;
            assert_eq!(queue.waiting(), 0);
        })
        .expect("the run ends");
}

#[test]
fn models_are_read_and_nonsense_is_refused() {
    let model: DiskModel = "seek=8ms,bw=128MB/s".parse().expect("it is a model");
    assert_eq!(model.seek, Duration::from_millis(8));
    assert_eq!(model.bytes_per_second, 128_000_000);
    assert!(!model.journal_apart);
    assert_eq!(model.seek_bytes(), Some(1_024_000));
    assert_eq!(
        "bw=128MB/s"
            .parse::<DiskModel>()
            .expect("it is a model")
            .seek_bytes(),
        None
    );
    let model: DiskModel = "seek=100us,bw=1000MB/s,sync=0.5ms,journal=apart"
        .parse()
        .expect("it is a model");
    assert_eq!(
        (model.seek, model.sync),
        (Duration::from_micros(100), Duration::from_micros(500))
    );
    assert!(model.journal_apart);
    for wrong in [
        "",
        "seek",
        "seek=8",
        "bw=0MB/s",
        "bw=128",
        "journal=here",
        "speed=9",
        "seek=-1ms",
    ] {
        assert!(wrong.parse::<DiskModel>().is_err(), "{wrong:?}");
    }
}

#[test]
fn a_modelled_disk_takes_its_time() {
    let simulation = Simulation::new(4);
    let machine = simulation.machine("node");
    machine.disk().configure(|options| {
        options.operation_latency = Duration::ZERO;
        options.sync_latency = Duration::ZERO;
    });
    let env = machine.env();
    simulation
        .run(async move {
            let model: DiskModel = "seek=8ms,bw=128MB/s".parse().expect("it is a model");
            let slow = model.over(&env);
            let file = slow
                .disk()
                .open("file", OpenMode::CreateNew)
                .await
                .expect("it is made");
            let block = Bytes::from(vec![1; 1 << 20]);
            let began = env.now();
            for at in 0..128 {
                file.write_at(at << 20, vec![block.clone()])
                    .await
                    .expect("it is written");
            }
            let sequential = env.now().since(began).as_secs_f64();
            // 128 MiB at 128 MB/s, and one seek.
            assert!((1.05..1.07).contains(&sequential), "{sequential} s");
            let began = env.now();
            for at in 0..100_u64 {
                file.read_at((at * 37 % 128) << 20, 4096)
                    .await
                    .expect("it is read");
            }
            let random = env.now().since(began).as_secs_f64();
            assert!((0.79..0.82).contains(&random), "{random} s");
        })
        .expect("the run ends");
}
