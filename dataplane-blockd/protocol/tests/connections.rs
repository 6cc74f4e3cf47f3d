//! Both ends of a connection on the simulated network.

use async_trait::async_trait;
use bytes::Bytes;
use firn_blockd_protocol::*;
use firn_env::{
    Env, Watched,
    sim::{Machine, Simulation},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const NODE: NodeId = NodeId([7; 16]);

/// Answers reads with blocks whose bytes tell their number, after a while that depends on it.
struct Echo {
    env: Env,
    at_once: Arc<AtomicUsize>,
    most_at_once: Arc<AtomicUsize>,
    memory: Budget<Owner>,
}

struct EchoSession(Arc<Echo>);

#[async_trait]
impl Session for EchoSession {
    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        let echo = &self.0;
        let now = echo.at_once.fetch_add(1, Relaxed) + 1;
        echo.most_at_once.fetch_max(now, Relaxed);
        let pause = echo.env.random_below(20);
        echo.env.sleep(Duration::from_millis(pause)).await;
        echo.at_once.fetch_sub(1, Relaxed);
        match request {
            Request::Fetch { tract, range, .. } => {
                let data: Bytes = range
                    .blocks()
                    .flat_map(|block| std::iter::repeat_n((block % 251) as u8, BLOCK_BYTES))
                    .collect();
                let written = WriteBlocks::new(tract, range, data).expect("the range is full");
                Ok(Reply::Fetched(VersionedBlocks {
                    range,
                    versions: written
                        .checksums
                        .into_iter()
                        .map(|checksum| BlockVersion {
                            generation: Generation::new(Fence(1), 1),
                            state: BlockState::Written(checksum),
                        })
                        .collect(),
                    data: written.data,
                }))
            }
            Request::SetFence { .. } => {
                std::future::pending::<()>().await;
                Err(Refusal::Busy)
            }
            _ => Err(Refusal::NotFenced),
        }
    }
}

struct EchoService(Arc<Echo>);

impl Service for EchoService {
    fn node(&self) -> NodeId {
        NODE
    }

    fn incarnation(&self) -> u64 {
        1
    }

    fn memory(&self, peer: &Peer) -> Account<Owner> {
        self.0.memory.account(peer.owner())
    }

    fn open(&self, _peer: &Peer) -> Arc<dyn Session> {
        Arc::new(EchoSession(self.0.clone()))
    }
}

struct World {
    simulation: Simulation,
    node: Machine,
    client: Machine,
    most_at_once: Arc<AtomicUsize>,
    usage: Arc<ServerUsage>,
    memory: Budget<Owner>,
}

impl World {
    /// Runs a test on the client's machine.
    fn run<F>(&self, test: impl FnOnce(Env) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.simulation
            .run(test(self.client.env()))
            .expect("the run ends");
    }
}

/// A connection of a client.
async fn open(env: &Env) -> Connection {
    Connection::open(env, "node:7300", ConnectionOptions::default())
        .await
        .expect("the node answers")
}

/// A connection that nobody has said anything on.
async fn plain(env: &Env) -> Box<dyn firn_env::ByteStream> {
    env.network()
        .connect("node:7300")
        .await
        .expect("the node listens")
}

/// What a client says first.
fn hello() -> Request {
    Request::Hello {
        lowest: PREVIOUS_VERSION,
        highest: PROTOCOL_VERSION,
        program: "test".into(),
    }
}

fn world(seed: u64, limits: ServerLimits) -> World {
    world_with(seed, limits, 64 << 20)
}

/// A node whose connections share so many bytes.
fn world_with(seed: u64, limits: ServerLimits, memory_bytes: usize) -> World {
    let memory = Budget::new(memory_bytes);
    let simulation = Simulation::new(seed);
    let (node, client) = (simulation.machine("node"), simulation.machine("client"));
    let env = node.env();
    let most_at_once = Arc::new(AtomicUsize::new(0));
    let usage = Arc::new(ServerUsage::default());
    let echo = Arc::new(Echo {
        env: env.clone(),
        at_once: Arc::default(),
        most_at_once: most_at_once.clone(),
        memory: memory.clone(),
    });
    let node_usage = usage.clone();
    let accepting = env.clone();
    simulation
        .run(async move {
            let listener = accepting
                .network()
                .listen("0.0.0.0:7300")
                .await
                .expect("the port is free");
            let env = accepting.clone();
            drop(accepting.spawn("accept", async move {
                while let Ok((stream, peer)) = listener.accept().await {
                    drop(env.spawn(
                        "connection",
                        serve(
                            env.clone(),
                            stream,
                            peer,
                            Arc::new(EchoService(echo.clone())),
                            limits.clone(),
                            node_usage.clone(),
                            Watched::new(false),
                        ),
                    ));
                }
            }));
        })
        .expect("the node listens");
    World {
        simulation,
        node,
        client,
        most_at_once,
        usage,
        memory,
    }
}

/// What this node never answers.
fn unanswered() -> Request {
    Request::SetFence {
        disk: DiskId([3; 16]),
        fence: Fence(1),
    }
}

fn read(index: u32, first: u16, count: u16) -> Request {
    Request::Fetch {
        tract: TractId {
            disk: DiskId([3; 16]),
            index,
        },
        row: RowVersion(1),
        fence: Fence(1),
        range: BlockRange::new(first, count).expect("within the tract"),
    }
}

#[test]
fn many_calls_share_a_connection_and_each_gets_its_own_reply() {
    for seed in 0..20 {
        let world = world(seed, ServerLimits::default());
        world.run(|env| async move {
            let connection = open(&env).await;
            assert_eq!(connection.hello().node, NODE);
            let calls = (0..100_u16).map(|at| {
                let connection = &connection;
                async move {
                    let reply = connection.call(read(at.into(), at, 1 + at % 7)).await;
                    let Ok(Reply::Fetched(found)) = reply else {
                        panic!("a read was answered with {reply:?}")
                    };
                    let tract = TractId {
                        disk: DiskId([3; 16]),
                        index: at.into(),
                    };
                    assert_eq!(found.range.first(), at);
                    assert_eq!(found.first_damaged(tract), None);
                    assert_eq!(found.data[0], (at % 251) as u8);
                }
            });
            futures::future::join_all(calls).await;
            assert_eq!(connection.in_flight(), 0);
        });
        assert!(world.most_at_once.load(Relaxed) > 10, "calls run side by side");
    }
}

#[test]
fn a_node_never_works_on_more_than_its_bounds() {
    let limits = ServerLimits {
        requests: 4,
        bytes: 3 << 20,
        ..ServerLimits::default()
    };
    let world = world(1, limits);
    world.run(|env| async move {
        let connection = open(&env).await;
        let calls = (0..40).map(|at| connection.call(read(at, 0, 256)));
        for reply in futures::future::join_all(calls).await {
            assert!(matches!(reply, Ok(Reply::Fetched(_))));
        }
    });
    // Three mebibytes hold two reads of one, with what else they count.
    assert_eq!(world.most_at_once.load(Relaxed), 2);
}

#[test]
fn calls_in_flight_fail_when_the_node_crashes() {
    let world = world(2, ServerLimits::default());
    let node = world.node.clone();
    world.run(|env| async move {
        let connection = open(&env).await;
        let waiting = connection.call(unanswered());
        let crash = async {
            env.sleep(Duration::from_millis(100)).await;
            node.crash();
        };
        let (reply, ()) = futures::future::join(waiting, crash).await;
        assert!(matches!(reply, Err(CallError::Lost(_))), "{reply:?}");
        assert!(!connection.is_open());
        let late = connection.call(read(0, 0, 1)).await;
        assert!(matches!(late, Err(CallError::Lost(_))), "{late:?}");
    });
}

#[test]
fn a_call_without_a_reply_ends_at_its_limit_and_others_go_on() {
    let world = world(3, ServerLimits::default());
    world.run(|env| async move {
        let options = ConnectionOptions {
            call_limit: Duration::from_secs(2),
            ..ConnectionOptions::default()
        };
        let connection = Connection::open(&env, "node:7300", options)
            .await
            .expect("the node answers");
        let late = connection.call(unanswered()).await;
        assert!(matches!(late, Err(CallError::Late { .. })), "{late:?}");
        assert!(matches!(
            connection.call(read(0, 0, 1)).await,
            Ok(Reply::Fetched(_))
        ));
    });
}

#[test]
fn another_node_than_the_expected_one_is_refused() {
    let world = world(4, ServerLimits::default());
    world.run(|env| async move {
        let options = ConnectionOptions {
            expect: Some(NodeId([8; 16])),
            ..ConnectionOptions::default()
        };
        let opened = Connection::open(&env, "node:7300", options).await;
        assert_eq!(opened.err(), Some(CallError::Refused(Refusal::WrongNode)));
    });
}

#[test]
fn nonsense_ends_its_own_connection_only() {
    let world = world(5, ServerLimits::default());
    world.run(|env| async move {
        let good = open(&env).await;
        let mut bad = plain(&env).await;
        bad.write_all(b"GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("it is sent");
        let mut rest = Vec::new();
        assert_eq!(
            bad.read_to_end(&mut rest).await.unwrap_or(0),
            0,
            "no reply to nonsense"
        );
        assert!(matches!(good.call(read(0, 0, 1)).await, Ok(Reply::Fetched(_))));
    });
    assert_eq!(world.usage.malformed.load(Relaxed), 1);
}

#[test]
fn a_request_that_cannot_be_understood_is_refused_and_ends_nothing() {
    let world = world(6, ServerLimits::default());
    world.run(|env| async move {
        let mut stream = plain(&env).await;
        let mut unknown = encode_request(PROTOCOL_VERSION, 2, &unanswered());
        unknown.header.operation = 99;
        let mut cut = encode_request(PROTOCOL_VERSION, 3, &read(0, 0, 1));
        cut.body = cut.body.slice(..10);
        for frame in [
            encode_request(PREVIOUS_VERSION, 1, &hello()),
            unknown,
            cut,
            encode_request(PROTOCOL_VERSION, 4, &read(0, 0, 1)),
        ] {
            stream.write_all(&frame.to_bytes()).await.expect("it is sent");
        }
        let mut bytes = bytes::BytesMut::new();
        let mut replies = Vec::new();
        while replies.len() < 4 {
            assert!(stream.read_buf(&mut bytes).await.expect("the connection stands") > 0);
            while let Some(frame) = Frame::from_bytes(&mut bytes).expect("frames come back") {
                replies.push((frame.header.request, decode_reply(&frame).expect("a reply")));
            }
        }
        replies.sort_by_key(|(number, _)| *number);
        assert!(matches!(replies[0].1, Ok(Reply::Hello(_))));
        assert_eq!(replies[1].1, Err(Refusal::UnknownOperation(99)));
        assert!(matches!(replies[2].1, Err(Refusal::Malformed(_))));
        assert!(matches!(replies[3].1, Ok(Reply::Fetched(_))));
    });
}

#[test]
fn a_client_that_says_nothing_or_stops_in_the_middle_is_hung_up_on() {
    let limits = ServerLimits {
        stall: Duration::from_secs(5),
        idle: Duration::from_secs(60),
        ..ServerLimits::default()
    };
    let world = world(7, limits);
    world.run(|env| async move {
        let whole = encode_request(PREVIOUS_VERSION, 1, &hello()).to_bytes();
        for sent in [0, 10, whole.len()] {
            let began = env.now();
            let mut stream = plain(&env).await;
            stream.write_all(&whole[..sent]).await.expect("it is sent");
            let mut rest = Vec::new();
            // However it ends, it ends.
            let _ = stream.read_to_end(&mut rest).await;
            let waited = env.now().since(began);
            let limit = if sent == whole.len() { 60 } else { 5 };
            assert!(
                waited < Duration::from_secs(limit * 2),
                "hung up after {waited:?}"
            );
        }
        // The node's task of the last connection ends a moment after the stream does.
        env.sleep(Duration::from_secs(1)).await;
    });
    assert_eq!(world.usage.connections.load(Relaxed), 0);
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| {
        let world = world(seed, ServerLimits::default());
        world.run(|env| async move {
            let connection = open(&env).await;
            let calls = (0..50).map(|at| connection.call(read(at, 0, 3)));
            futures::future::join_all(calls).await;
        });
        world.simulation.trace_hash()
    };
    assert_eq!(run(11), run(11));
    assert_ne!(run(11), run(12));
}

fn write(first: u16, count: u16) -> Request {
    let tract = TractId {
        disk: DiskId([3; 16]),
        index: 0,
    };
    let range = BlockRange::new(first, count).expect("within the tract");
    let data = Bytes::from(vec![7; range.bytes()]);
    Request::Write {
        tract,
        row: RowVersion(1),
        generation: Generation::new(Fence(1), 1),
        range,
        blocks: WriteBlocks::new(tract, range, data).expect("the range is full"),
    }
}

/// The next frame of a stream.
async fn next_frame(stream: &mut Box<dyn firn_env::ByteStream>) -> Frame {
    let mut bytes = bytes::BytesMut::new();
    loop {
        if let Some(frame) = Frame::from_bytes(&mut bytes).expect("frames come back") {
            assert!(bytes.is_empty(), "one reply to one request");
            return frame;
        }
        assert!(stream.read_buf(&mut bytes).await.expect("the connection stands") > 0);
    }
}

/// Nodes and clients are replaced one by one: each speaks the version before with those who know nothing newer.
#[test]
fn a_client_of_the_version_before_is_answered_in_it() {
    let world = world(8, ServerLimits::default());
    world.run(|env| async move {
        let mut stream = plain(&env).await;
        let old_hello = Request::Hello {
            lowest: 1,
            highest: 1,
            program: "old".into(),
        };
        for (number, request) in [(1, old_hello), (2, read(0, 0, 1)), (3, write(0, 1))] {
            let frame = encode_request(1, number, &request);
            stream.write_all(&frame.to_bytes()).await.expect("it is sent");
            let reply = next_frame(&mut stream).await;
            assert_eq!((reply.header.version, reply.header.request), (1, number));
            match (number, decode_reply(&reply).expect("a reply")) {
                (1, Ok(Reply::Hello(hello))) => assert_eq!(hello.version, 1),
                (2, Ok(Reply::Fetched(_))) | (3, Err(Refusal::NotFenced)) => {}
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_node_of_the_version_before_is_spoken_to_in_it() {
    let simulation = Simulation::new(9);
    let (node, client) = (simulation.machine("node"), simulation.machine("client"));
    let env = node.env();
    simulation
        .run(async move {
            let listener = env.network().listen("0.0.0.0:7300").await.expect("it is free");
            let serving = env.clone();
            drop(serving.spawn("old node", async move {
                let (mut stream, _) = listener.accept().await.expect("somebody calls");
                let hello = next_frame(&mut stream).await;
                assert_eq!(
                    hello.header.version, 1,
                    "an old node answers hellos in its own version only"
                );
                let Ok(Request::Hello { lowest: 1, .. }) = decode_request(&hello) else {
                    panic!("{hello:?}");
                };
                let reply = Reply::Hello(HelloReply {
                    version: 1,
                    node: NODE,
                    incarnation: 1,
                    requests_in_flight: 8,
                    bytes_in_flight: 16 << 20,
                });
                let reply = encode_reply(1, hello.header.request, &reply);
                stream.write_all(&reply.to_bytes()).await.expect("it is sent");
                let asked = next_frame(&mut stream).await;
                assert_eq!(asked.header.version, 1);
                assert_eq!(decode_request(&asked), Ok(write(0, 1)));
                let reply = encode_reply(1, asked.header.request, &Reply::Written);
                stream.write_all(&reply.to_bytes()).await.expect("it is sent");
            }));
        })
        .expect("the node listens");
    let env = client.env();
    simulation
        .run(async move {
            let connection = open(&env).await;
            assert_eq!(connection.hello().version, 1);
            assert_eq!(connection.call(write(0, 1)).await, Ok(Reply::Written));
        })
        .expect("the run ends");
}

/// Each connection is within its own bounds, and there are many: what all hold together has a bound, and who comes from
/// elsewhere is served meanwhile.
#[test]
fn announced_bytes_cost_nothing_and_held_ones_leave_room_for_others() {
    let limits = ServerLimits {
        stall: Duration::from_secs(3600),
        ..ServerLimits::default()
    };
    let total = 8 << 20;
    let world = world_with(10, limits, total);
    let memory = world.memory.clone();
    let other = world.simulation.machine("other").env();
    world.run(|env| async move {
        let greeting = encode_request(PREVIOUS_VERSION, 1, &hello()).to_bytes();
        let whole = encode_request(PROTOCOL_VERSION, 2, &write(0, 256)).to_bytes();
        let mut slow = Vec::new();
        // A mebibyte announced, and less of it sent than is kept for everybody anyway.
        for _ in 0..100 {
            let mut stream = plain(&env).await;
            stream.write_all(&greeting).await.expect("it is sent");
            next_frame(&mut stream).await;
            stream.write_all(&whole[..8 << 10]).await.expect("it is sent");
            slow.push(stream);
        }
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!(
            memory.used(),
            0,
            "an announcement costs its sender nothing, and nobody else"
        );
        // Now so much that room is made for all of it, which never comes.
        for stream in &mut slow {
            stream
                .write_all(&whole[8 << 10..24 << 10])
                .await
                .expect("it is sent");
        }
        env.sleep(Duration::from_secs(1)).await;
        let held = memory.used();
        assert!(
            held > total / 4 && held <= total / 2 + whole.len(),
            "{held} of {total} bytes are held"
        );
        assert!(memory.waiting() > 50, "{} wait", memory.waiting());
        // Whoever calls from elsewhere finds room.
        let others = open(&other).await;
        for at in 0..20 {
            let began = env.now();
            assert!(matches!(
                others.call(read(at, 0, 256)).await,
                Ok(Reply::Fetched(_))
            ));
            assert_eq!(
                others.call(write(0, 256)).await,
                Err(CallError::Refused(Refusal::NotFenced))
            );
            let taken = env.now().since(began);
            assert!(taken < Duration::from_secs(1), "it took {taken:?}");
        }
        drop(slow);
        env.sleep(Duration::from_secs(1)).await;
        drop(others);
        env.sleep(Duration::from_secs(1)).await;
        assert_eq!((memory.used(), memory.waiting()), (0, 0), "all is given back");
    });
}
