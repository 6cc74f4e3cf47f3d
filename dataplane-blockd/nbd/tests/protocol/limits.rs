//! Limits of the server: many requests at once, huge ones, hostile ones, and a server that stops.

use crate::{
    raw::{Raw, go_data},
    world::{DISK_BYTES, World, on_network, on_network_with, run},
};
use firn_blockd_nbd::{
    Limits,
    wire::{cmd, cmd_flag, opt, rep},
};
use std::{collections::BTreeSet, sync::atomic::Ordering, time::Duration};
use tokio::io::AsyncReadExt;

async fn open(world: &World, export: &str) -> Raw {
    let mut client = Raw::connect(&world.env, &world.address).await;
    assert_eq!(client.option(opt::GO, &go_data(export, &[])).await.0, rep::ACK);
    client
}

#[test]
fn a_slow_request_holds_no_other_up() {
    on_network(|world| async move {
        let mut client = open(&world, "gated").await;
        client.request(0, cmd::READ, 1, 4096, 512, b"").await;
        client.request(0, cmd::READ, 2, 0, 512, b"").await;
        assert_eq!(client.simple(512).await.1, 2);
        world.gated.gate.add_permits(1);
        assert_eq!(client.simple(512).await.1, 1);
    });
}

#[test]
fn a_request_on_which_the_device_dies_is_answered_and_ends_nothing_else() {
    on_network(|world| async move {
        let mut client = open(&world, "gated").await;
        // Whoever waits for a permit dies of it.
        world.gated.gate.close();
        for cookie in 1..4 {
            client.request(0, cmd::READ, cookie, 4096, 512, b"").await;
            assert_eq!(client.simple(0).await, (5, cookie, vec![]));
        }
        client.request(0, cmd::READ, 4, 0, 512, b"").await;
        assert_eq!(client.simple(512).await.0, 0);
    });
}

#[test]
fn requests_and_bytes_in_flight_are_bounded_and_all_are_answered() {
    let limits = Limits {
        requests: 10,
        bytes: 1 << 20,
        ..Limits::default()
    };
    on_network_with(limits, |world| async move {
        let (reader, writer) = tokio::io::split(open(&world, "gated").await.stream);
        let mut receiver = Raw {
            stream: Box::new(tokio::io::join(reader, tokio::io::sink())),
            extended: false,
        };
        let sending = world.env.spawn("sender", async move {
            let mut sender = Raw {
                stream: Box::new(tokio::io::join(tokio::io::empty(), writer)),
                extended: false,
            };
            for cookie in 0..60 {
                sender
                    .request(0, cmd::WRITE, cookie, 8192, 300_000, &[1; 300_000])
                    .await;
            }
            sender
        });
        world.env.sleep(Duration::from_secs(60)).await;
        // Three writes of 300 kB fit into a MiB.
        assert_eq!(world.gated.running(), 3);
        world.gated.gate.add_permits(60);
        let mut answered = BTreeSet::new();
        for _ in 0..60 {
            let (error, cookie, _) = receiver.simple(0).await;
            assert!(error == 0 && answered.insert(cookie));
        }
        assert_eq!(world.gated.peak.load(Ordering::SeqCst), 3);
        drop((sending.await, receiver));
        let mut client = open(&world, "gated").await;
        for cookie in 0..40 {
            client.request(0, cmd::READ, cookie, 8192, 16, b"").await;
        }
        world.env.sleep(Duration::from_secs(60)).await;
        assert_eq!(world.gated.running(), 10);
        world.gated.gate.add_permits(40);
        for _ in 0..40 {
            assert_eq!(client.simple(16).await.0, 0);
        }
    });
}

#[test]
fn payloads_too_long_are_skipped_and_absurd_ones_cut_off() {
    let test = |world: World| async move {
        let mut client = open(&world, "disk").await;
        let long = (32 << 20) + 512;
        client
            .request(0, cmd::WRITE, 1, 0, long, &vec![9; long as usize])
            .await;
        assert_eq!(client.simple(0).await, (22, 1, vec![]));
        client.request(0, cmd::READ, 2, 0, DISK_BYTES, b"").await;
        assert!(
            client
                .simple(DISK_BYTES as usize)
                .await
                .2
                .iter()
                .all(|byte| *byte == 0)
        );
        client
            .request(0, cmd::WRITE, 3, 0, u32::MAX.into(), &[0; 4096])
            .await;
        assert!(client.is_closed().await);
        let mut client = Raw::connect(&world.env, &world.address).await;
        assert_eq!(client.option(opt::EXTENDED_HEADERS, b"").await.0, rep::ACK);
        assert_eq!(client.option(opt::GO, &go_data("disk", &[])).await.0, rep::ACK);
        client.extended = true;
        client
            .request(cmd_flag::PAYLOAD_LEN, cmd::WRITE, 4, 0, u64::MAX, &[0; 4096])
            .await;
        assert!(client.is_closed().await);
    };
    run(1, Limits::default(), test);
}

#[test]
fn a_wrong_magic_number_ends_the_connection_and_no_other() {
    on_network(|world| async move {
        let mut good = open(&world, "disk").await;
        let mut bad = open(&world, "disk").await;
        let _ = bad.send(&[0x25; 28]).await;
        assert!(bad.is_closed().await);
        good.request(0, cmd::READ, 1, 0, 512, b"").await;
        assert_eq!(good.simple(512).await.0, 0);
    });
}

#[test]
fn a_disconnect_waits_for_what_was_begun() {
    on_network(|world| async move {
        let mut client = open(&world, "gated").await;
        for cookie in 0..5 {
            client.request(0, cmd::WRITE, cookie, 0, 4, b"abcd").await;
        }
        client.request(0, cmd::DISC, 9, 0, 0, b"").await;
        world.env.sleep(Duration::from_secs(1)).await;
        world.gated.gate.add_permits(5);
        for _ in 0..5 {
            assert_eq!(client.simple(0).await.0, 0);
        }
        assert!(client.is_closed().await);
        assert_eq!(world.gated.done.load(Ordering::SeqCst), 5);
    });
}

#[test]
fn a_stopping_server_finishes_what_it_began_and_refuses_the_rest() {
    on_network(|world| async move {
        let mut haggling = Raw::connect(&world.env, &world.address).await;
        assert_eq!(haggling.option(opt::LIST, b"").await.0, rep::ACK);
        let mut client = open(&world, "gated").await;
        client.request(0, cmd::READ, 1, 4096, 512, b"").await;
        world.env.sleep(Duration::from_secs(1)).await;
        let server = world.server.clone();
        let stopping = world
            .env
            .spawn("stop", async move { server.stop(Duration::from_secs(60)).await });
        world.env.sleep(Duration::from_secs(1)).await;
        assert_eq!(
            haggling.option(opt::GO, &go_data("disk", &[])).await.0,
            rep::ERR_SHUTDOWN
        );
        assert_eq!(haggling.option(opt::ABORT, b"").await.0, rep::ACK);
        client.request(0, cmd::READ, 2, 0, 512, b"").await;
        assert_eq!(client.simple(512).await, (108, 2, vec![]));
        world.gated.gate.add_permits(1);
        assert_eq!(client.simple(512).await.1, 1);
        let before = world.env.now();
        client.request(0, cmd::DISC, 3, 0, 0, b"").await;
        stopping.await.unwrap();
        assert!(
            world.env.now().since(before) < Duration::from_secs(30),
            "nobody is left to wait for"
        );
        assert_eq!(world.server.connections(), 0);
    });
    on_network(|world| async move {
        let mut idle = open(&world, "disk").await;
        world.server.stop(Duration::from_secs(5)).await;
        assert!(idle.is_closed().await, "who does not leave is cut off");
    });
}

#[test]
fn arbitrary_bytes_never_stop_the_server() {
    on_network(|world| async move {
        for round in 0..40 {
            let mut client = if round % 2 == 0 {
                Raw::connect(&world.env, &world.address).await
            } else {
                open(&world, "disk").await
            };
            // Half of the time noise that begins like the protocol, so that it gets further.
            for _ in 0..world.env.random_below(20) {
                let mut bytes: Vec<u8> = world.env.random_bytes::<64>().to_vec();
                match world.env.random_below(4) {
                    0 => bytes[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes()),
                    1 => {
                        bytes[..8].copy_from_slice(&0x4948_4156_454f_5054_u64.to_be_bytes());
                        bytes[8..16].copy_from_slice(&[
                            0,
                            0,
                            0,
                            world.env.random_below(13) as u8,
                            0,
                            0,
                            0,
                            30,
                        ]);
                    }
                    _ => {}
                }
                bytes.truncate(world.env.random_below(65) as usize);
                if client.send(&bytes).await.is_err() {
                    break;
                }
            }
            let mut some = [0; 64];
            let read = client.stream.read(&mut some);
            let _ = world.env.timeout(Duration::from_millis(5), read).await;
        }
        let mut client = open(&world, "disk").await;
        client.request(0, cmd::READ, 1, 0, 512, b"").await;
        assert_eq!(client.simple(512).await.0, 0);
    });
}

#[test]
fn the_same_seed_is_the_same_run() {
    let test = |world: World| async move {
        let mut client = open(&world, "disk").await;
        for cookie in 0..20 {
            client
                .request(0, cmd::WRITE, cookie, cookie * 512, 512, &[1; 512])
                .await;
        }
        for _ in 0..20 {
            assert_eq!(client.simple(0).await.0, 0);
        }
    };
    let hashes: Vec<u64> = [3, 3, 4].map(|seed| run(seed, Limits::default(), test)).to_vec();
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], hashes[2]);
}

/// Silent connections once kept everybody out until their minute was over.
#[test]
fn who_says_nothing_gives_way_to_who_comes() {
    let limits = Limits {
        connections: 3,
        negotiation: Duration::from_secs(3600),
        ..Limits::default()
    };
    on_network_with(limits, |world| async move {
        let mut serving = open(&world, "gated").await;
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(world.env.network().connect(&world.address).await.unwrap());
            world.env.sleep(Duration::from_millis(10)).await;
        }
        let newcomer = world
            .env
            .timeout(Duration::from_secs(60), open(&world, "gated"))
            .await;
        let mut newcomer = newcomer.expect("it is not kept out");
        for client in [&mut serving, &mut newcomer] {
            client.request(0, cmd::READ, 7, 0, 512, b"").await;
            assert_eq!(client.simple(512).await.1, 7);
        }
    });
}
