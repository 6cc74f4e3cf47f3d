use crate::sim::Simulation;
use std::{io::ErrorKind, time::Duration};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[test]
fn a_megabyte_goes_there_and_back_whole_whatever_the_cuts() {
    for seed in 0..20 {
        let simulation = Simulation::new(seed);
        let (server, client) = (simulation.machine("server"), simulation.machine("client"));
        let (serving, asking) = (server.env(), client.env());
        simulation
            .run(async move {
                let listener = serving.network().listen("0.0.0.0:2049").await.expect("free");
                assert_eq!(listener.address(), format!("{}:2049", server.address()));
                serving.spawn("echo", async move {
                    let (mut stream, peer) = listener.accept().await.expect("a client");
                    assert!(peer.starts_with("10.0.0."), "{peer}");
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).await.expect("bytes");
                    stream.write_all(&all).await.expect("room");
                });
                let mut stream = asking.network().connect("server:2049").await.expect("listens");
                let sent: Vec<u8> = (0..1_000_000u32)
                    .map(|number| ((number * 7) >> 3) as u8)
                    .collect();
                stream.write_all(&sent).await.expect("room");
                stream.shutdown().await.expect("open");
                let mut back = Vec::new();
                stream.read_to_end(&mut back).await.expect("bytes");
                assert!(back == sent);
            })
            .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn a_partition_holds_bytes_back_until_it_heals_and_connects_time_out() {
    let simulation = std::sync::Arc::new(Simulation::new(1));
    let (server, client) = (simulation.machine("server"), simulation.machine("client"));
    let (serving, asking) = (server.env(), client.env());
    let world = std::sync::Arc::downgrade(&simulation);
    simulation
        .run(async move {
            let cut = |cut| world.upgrade().expect("it runs").partition(&server, &client, cut);
            let listener = serving.network().listen("0.0.0.0:1").await.expect("free");
            let mut stream = asking.network().connect("server:1").await.expect("listens");
            let (mut accepted, _) = listener.accept().await.expect("a client");
            cut(true);
            stream.write_all(b"held").await.expect("room");
            let mut bytes = [0; 4];
            let early = serving
                .timeout(Duration::from_secs(60), accepted.read_exact(&mut bytes))
                .await;
            assert!(early.is_err(), "nothing passes a cut");
            let refused = asking
                .network()
                .connect("server:1")
                .await
                .err()
                .expect("unreachable");
            assert_eq!(refused.kind(), ErrorKind::TimedOut);
            cut(false);
            accepted.read_exact(&mut bytes).await.expect("healed");
            assert_eq!(&bytes, b"held");
        })
        .expect("ends");
}

#[test]
fn a_crash_resets_the_connections_of_the_machine_and_frees_its_ports() {
    let simulation = Simulation::new(2);
    let (server, client) = (simulation.machine("server"), simulation.machine("client"));
    let (serving, asking) = (server.env(), client.env());
    simulation
        .run(async move {
            let listener = serving.network().listen("0.0.0.0:1").await.expect("free");
            let mut stream = asking.network().connect("server:1").await.expect("listens");
            let accepted = listener.accept().await.expect("a client");
            let reader = asking.spawn("reader", async move { stream.read_u8().await });
            asking.sleep(Duration::from_secs(1)).await;
            server.crash();
            let error = reader.await.expect("ends").expect_err("the peer is gone");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
            drop((accepted, listener));
            let again = server.restart();
            let refused = asking
                .network()
                .connect("server:1")
                .await
                .err()
                .expect("nobody listens");
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            again.network().listen("0.0.0.0:1").await.expect("free again");
        })
        .expect("ends");
}
