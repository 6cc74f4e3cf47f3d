//! Many calls on one connection: order, bounds, slow readers, idle ones, shutdown.

use crate::served::{TIMEOUT, env, simple};
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use firn_env::Env;
use firn_nfs::{
    rpc::{Client, Credential, Program, Programs, Refusal, Reply, Request, Server, ServerLimits, Target},
    xdr::Encoder,
};
use futures::StreamExt;
use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
};

/// A program whose calls wait until they are let go, or answer with as many bytes as they are asked for.
#[derive(Default)]
struct Probe {
    gate: Gate,
    running: AtomicUsize,
    most: AtomicUsize,
    finished: AtomicUsize,
}

struct Gate(Semaphore);

impl Default for Gate {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

const WAIT: u32 = 1;
const BYTES: u32 = 2;
const FAST: u32 = 3;

#[async_trait]
impl Program for Probe {
    fn number(&self) -> u32 {
        400_000
    }

    fn name(&self) -> &'static str {
        "probe"
    }

    fn versions(&self) -> RangeInclusive<u32> {
        1..=1
    }

    fn procedure_name(&self, _: u32, procedure: u32) -> Option<&'static str> {
        ["NULL", "WAIT", "BYTES", "FAST"].get(procedure as usize).copied()
    }

    fn reply_bytes(&self, request: &Request) -> usize {
        if request.procedure == BYTES { 1 << 20 } else { 100 }
    }

    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let mut body = Encoder::new();
        match request.procedure {
            WAIT => self.gate.0.acquire().await.unwrap().forget(),
            BYTES => body.shared(&[Bytes::from(vec![7; 1 << 20])]),
            _ => {}
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.finished.fetch_add(1, Ordering::SeqCst);
        Ok(Reply { body, failed: false })
    }
}

struct Probed {
    env: Env,
    probe: Arc<Probe>,
    server: Arc<Server>,
    address: String,
}

async fn probed(limits: ServerLimits) -> Probed {
    let env = env();
    let probe = Arc::new(Probe::default());
    let server = Server::new(&env, limits);
    let programs = Arc::new(Programs::new([probe.clone() as Arc<dyn Program>]));
    let address = server.listen("127.0.0.1:0", programs).await.unwrap();
    Probed {
        env,
        probe,
        server,
        address,
    }
}

impl Probed {
    async fn client(&self) -> Client {
        Client::connect(&self.env, &self.address, TIMEOUT).await.unwrap()
    }

    async fn eventually(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..2000 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never: {what}");
    }
}

fn target() -> Target {
    Target {
        program: 400_000,
        version: 1,
        credential: Credential::None,
    }
}

fn raw_call(transaction: u32, procedure: u32) -> Vec<u8> {
    let words = [40 | 1 << 31, transaction, 0, 2, 400_000, 1, procedure, 0, 0, 0, 0];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

#[tokio::test]
async fn a_reply_overtakes_the_reply_of_an_earlier_call() {
    let probed = probed(ServerLimits::default()).await;
    let client = probed.client().await;
    let target = target();
    let slow = client.call(&target, WAIT, &());
    let fast = async {
        probed
            .eventually("the slow call runs", |probed| {
                probed.probe.running.load(Ordering::SeqCst) == 1
            })
            .await;
        client.call(&target, FAST, &()).await.unwrap();
        assert_eq!(
            probed.probe.running.load(Ordering::SeqCst),
            1,
            "the slow call still waits"
        );
        probed.probe.gate.0.add_permits(1);
    };
    let (slow, ()) = futures::join!(slow, fast);
    slow.unwrap();
}

#[tokio::test]
async fn calls_of_a_connection_run_together_up_to_the_limit_and_no_further() {
    let limits = ServerLimits {
        calls_per_connection: 8,
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let client = probed.client().await;
    let target = target();
    let calls = (0..50).map(|_| client.call(&target, WAIT, &()));
    let calls = futures::stream::iter(calls)
        .buffer_unordered(50)
        .collect::<Vec<_>>();
    let watching = async {
        probed
            .eventually("eight run", |probed| {
                probed.probe.running.load(Ordering::SeqCst) == 8
            })
            .await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(probed.probe.running.load(Ordering::SeqCst), 8);
        probed.probe.gate.0.add_permits(50);
    };
    let (replies, ()) = futures::join!(calls, watching);
    assert!(replies.into_iter().all(|reply| reply.is_ok()));
    assert_eq!(probed.probe.most.load(Ordering::SeqCst), 8);
}

#[tokio::test]
async fn a_client_that_takes_no_replies_is_read_no_further_and_does_not_hold_up_others() {
    let limits = ServerLimits {
        reply_bytes: 16 << 20,
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let mut slow = tokio::net::TcpStream::connect(&probed.address).await.unwrap();
    const CALLS: u32 = 200;
    let mut calls = BytesMut::new();
    for transaction in 0..CALLS {
        calls.extend_from_slice(&raw_call(transaction, BYTES));
    }
    slow.write_all(&calls).await.unwrap();
    probed
        .eventually("some were answered", |probed| {
            probed.probe.finished.load(Ordering::SeqCst) >= 4
        })
        .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let answered = probed.probe.finished.load(Ordering::SeqCst);
    // Its share of the budget is 4 replies; the kernel's socket buffers hold some more.
    assert!(
        answered < 40,
        "{answered} replies of 1 MiB were made for a client that reads none"
    );
    let other = probed.client().await;
    let mut reply = other.call(&target(), BYTES, &()).await.unwrap();
    assert_eq!(reply.opaque(1 << 20).unwrap().len(), 1 << 20);
    // When it reads again, everything comes.
    let mut all = vec![0; (CALLS as usize) * ((1 << 20) + 32)];
    tokio::time::timeout(TIMEOUT, slow.read_exact(&mut all))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(probed.probe.finished.load(Ordering::SeqCst), CALLS as usize + 1);
}

#[tokio::test]
async fn a_client_that_never_takes_its_replies_is_cut_off() {
    let limits = ServerLimits {
        stall: Duration::from_millis(300),
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let mut slow = tokio::net::TcpStream::connect(&probed.address).await.unwrap();
    for transaction in 0..64 {
        slow.write_all(&raw_call(transaction, BYTES)).await.unwrap();
    }
    probed
        .eventually("it was connected", |probed| probed.server.connections() == 1)
        .await;
    probed
        .eventually("it is cut off", |probed| probed.server.connections() == 0)
        .await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_waiting_one_is_not() {
    let limits = ServerLimits {
        idle: Duration::from_millis(300),
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let (idle, waiting) = (probed.client().await, probed.client().await);
    idle.call(&target(), FAST, &()).await.unwrap();
    let target_of_waiting = target();
    let call = waiting.call(&target_of_waiting, WAIT, &());
    let watching = async {
        probed
            .eventually("both are connected", |probed| probed.server.connections() == 2)
            .await;
        probed
            .eventually("one is closed", |probed| probed.server.connections() == 1)
            .await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        probed.probe.gate.0.add_permits(1);
    };
    let (reply, ()) = futures::join!(call, watching);
    reply.unwrap();
    assert!(
        idle.call(&target(), FAST, &()).await.is_err(),
        "the idle one finds its connection closed"
    );
}

#[tokio::test]
async fn connections_beyond_the_limits_are_closed_at_once() {
    let limits = ServerLimits {
        connections_per_client: 2,
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let (first, second) = (probed.client().await, probed.client().await);
    first.call(&target(), FAST, &()).await.unwrap();
    second.call(&target(), FAST, &()).await.unwrap();
    assert!(probed.client().await.call(&target(), FAST, &()).await.is_err());
    drop(first);
    probed
        .eventually("the first is gone", |probed| probed.server.connections() == 1)
        .await;
    probed.client().await.call(&target(), FAST, &()).await.unwrap();
}

#[tokio::test]
async fn a_call_is_executed_though_its_client_has_gone() {
    let probed = probed(ServerLimits::default()).await;
    let mut stream = tokio::net::TcpStream::connect(&probed.address).await.unwrap();
    stream.write_all(&raw_call(1, WAIT)).await.unwrap();
    probed
        .eventually("it runs", |probed| {
            probed.probe.running.load(Ordering::SeqCst) == 1
        })
        .await;
    drop(stream);
    tokio::time::sleep(Duration::from_millis(50)).await;
    probed.probe.gate.0.add_permits(1);
    probed
        .eventually("it ends", |probed| {
            probed.probe.finished.load(Ordering::SeqCst) == 1
        })
        .await;
}

#[tokio::test]
async fn a_client_that_closes_its_half_still_gets_its_replies() {
    let probed = probed(ServerLimits::default()).await;
    let mut stream = tokio::net::TcpStream::connect(&probed.address).await.unwrap();
    stream.write_all(&raw_call(1, WAIT)).await.unwrap();
    stream.write_all(&raw_call(2, FAST)).await.unwrap();
    stream.shutdown().await.unwrap();
    probed
        .eventually("it runs", |probed| {
            probed.probe.running.load(Ordering::SeqCst) == 1
        })
        .await;
    probed.probe.gate.0.add_permits(1);
    let mut replies = Vec::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_end(&mut replies))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(replies.len(), 2 * 28);
}

#[tokio::test]
async fn shutdown_lets_calls_in_flight_end_and_takes_no_more() {
    let probed = probed(ServerLimits::default()).await;
    let client = probed.client().await;
    let target = target();
    let call = client.call(&target, WAIT, &());
    let stopping = async {
        probed
            .eventually("it runs", |probed| {
                probed.probe.running.load(Ordering::SeqCst) == 1
            })
            .await;
        let shutdown = probed.server.shutdown();
        let letting_go = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            probed.probe.gate.0.add_permits(1);
        };
        let (ended, ()) = futures::join!(shutdown, letting_go);
        assert!(ended, "all calls ended in time");
    };
    let (reply, ()) = futures::join!(call, stopping);
    reply.unwrap();
    assert!(client.call(&target, FAST, &()).await.is_err());
    assert!(
        Client::connect(&probed.env, &probed.address, TIMEOUT)
            .await
            .is_err(),
        "nobody listens"
    );
}

#[tokio::test]
async fn shutdown_does_not_wait_for_ever() {
    let limits = ServerLimits {
        drain: Duration::from_millis(200),
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let client = probed.client().await;
    let target = target();
    let call = client.call(&target, WAIT, &());
    let stopping = async {
        probed
            .eventually("it runs", |probed| {
                probed.probe.running.load(Ordering::SeqCst) == 1
            })
            .await;
        probed.server.shutdown().await;
    };
    let both = futures::future::join(call, stopping);
    let (reply, ()) = tokio::time::timeout(TIMEOUT / 2, both)
        .await
        .expect("well before the client gives up");
    assert!(reply.is_err(), "the connection was closed without a reply");
}

#[tokio::test]
async fn a_thousand_calls_at_once_on_one_connection_are_all_answered_rightly() {
    let nfs = simple().await;
    let made = (0..1000u32).map(|number| {
        let (client, root) = (&nfs.client, &nfs.root);
        async move {
            let made = client
                .create(root, number.to_string(), crate::served::guarded(0o600))
                .await
                .unwrap()
                .unwrap();
            let found = client.lookup(root, number.to_string()).await.unwrap().unwrap();
            assert_eq!(made.file, Some(found.file));
        }
    });
    futures::stream::iter(made)
        .buffer_unordered(300)
        .collect::<Vec<_>>()
        .await;
}

/// A stream from another loopback address than the honest client's.
async fn from(source: [u8; 4], probed: &Probed) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((std::net::IpAddr::from(source), 0).into()).unwrap();
    socket.connect(probed.address.parse().unwrap()).await.unwrap()
}

/// The marker of a record of 1 MiB in one fragment.
fn announcement() -> [u8; 4] {
    (1 << 31 | 1_u32 << 20).to_be_bytes()
}

/// Arguments of a mebibyte.
struct Large;

impl firn_nfs::xdr::Encode for Large {
    fn encode(&self, out: &mut Encoder) {
        out.opaque(&vec![3; 1 << 20]);
    }
}

#[tokio::test]
async fn records_that_are_announced_and_not_sent_hold_up_nobody() {
    let probed = probed(ServerLimits::default()).await;
    let mut announced = Vec::new();
    for _ in 0..40 {
        let mut stream = from([127, 0, 0, 2], &probed).await;
        stream.write_all(&announcement()).await.unwrap();
        announced.push(stream);
    }
    probed
        .eventually("all are connected", |probed| probed.server.connections() == 40)
        .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let client = probed.client().await;
    client.call(&target(), FAST, &()).await.expect("a small call");
    client.call(&target(), FAST, &Large).await.expect("a large call");
}

#[tokio::test]
async fn records_that_stop_half_way_hold_up_nobody() {
    let probed = probed(ServerLimits::default()).await;
    let mut stopped = Vec::new();
    for number in 0..60 {
        let mut stream = from([127, 0, 1, 1 + number % 6], &probed).await;
        stream.write_all(&announcement()).await.unwrap();
        let data = vec![0; 16 << 10];
        // As much of it as the server reads and the socket holds.
        let mut left = 900 << 10;
        for _ in 0..100 {
            match stream.try_write(&data[..data.len().min(left)]) {
                Ok(written) => left -= written,
                Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
        stopped.push(stream);
    }
    let client = probed.client().await;
    client.call(&target(), FAST, &()).await.expect("a small call");
    for _ in 0..8 {
        client.call(&target(), FAST, &Large).await.expect("a large call");
    }
}

#[tokio::test]
async fn many_clients_with_large_records_are_all_served() {
    let probed = probed(ServerLimits::default()).await;
    // Each is received in part before any is complete: more than fits in memory, and none may wait for another for ever.
    let mut streams = Vec::new();
    let call = raw_call(7, FAST);
    for number in 0..60 {
        let mut stream = from([127, 0, 2, 1 + number % 6], &probed).await;
        let bytes = (1 << 20) as u32;
        stream.write_all(&(1 << 31 | bytes).to_be_bytes()).await.unwrap();
        stream.write_all(&call[4..]).await.unwrap();
        streams.push(stream);
    }
    let body = vec![0; (1 << 20) - (call.len() - 4)];
    let sending = streams.iter_mut().map(|stream| async {
        stream.write_all(&body).await.unwrap();
        let mut reply = [0; 28];
        stream.read_exact(&mut reply).await.unwrap();
    });
    let all = futures::future::join_all(sending);
    tokio::time::timeout(TIMEOUT, all)
        .await
        .expect("all are answered");
}

#[tokio::test]
async fn replies_that_nobody_takes_hold_up_nobody_else() {
    let probed = probed(ServerLimits::default()).await;
    let mut greedy = Vec::new();
    for number in 0..12 {
        let mut stream = from([127, 0, 3, 1 + number % 4], &probed).await;
        for transaction in 0..64 {
            stream.write_all(&raw_call(transaction, BYTES)).await.unwrap();
        }
        greedy.push(stream);
    }
    probed
        .eventually("some were answered", |probed| {
            probed.probe.finished.load(Ordering::SeqCst) >= 12
        })
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let client = probed.client().await;
    client.call(&target(), FAST, &()).await.expect("a small reply");
    let mut reply = client.call(&target(), BYTES, &()).await.expect("a large reply");
    assert_eq!(reply.opaque(1 << 20).unwrap().len(), 1 << 20);
}

#[tokio::test]
async fn a_record_has_one_deadline_however_many_fragments_it_comes_in() {
    let limits = ServerLimits {
        stall: Duration::from_millis(300),
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let mut stream = from([127, 0, 0, 2], &probed).await;
    stream.set_nodelay(true).unwrap();
    for _ in 0..100 {
        // A fragment of four bytes that is not the last.
        if stream.write_all(&[0, 0, 0, 4, 1, 2, 3, 4]).await.is_err() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("a record that never ends kept its connection for seventeen times the limit");
}

#[tokio::test]
async fn silent_connections_give_way_to_newcomers() {
    let limits = ServerLimits {
        connections: 8,
        connections_per_client: 4,
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let mut silent = Vec::new();
    for number in 0..8 {
        silent.push(from([127, 0, 0, 2 + number % 2], &probed).await);
    }
    probed
        .eventually("all are connected", |probed| probed.server.connections() == 8)
        .await;
    // From a third address, and from one that is full itself.
    probed
        .client()
        .await
        .call(&target(), FAST, &())
        .await
        .expect("the table gives way");
    let mut stream = from([127, 0, 0, 2], &probed).await;
    stream.write_all(&raw_call(1, FAST)).await.unwrap();
    let mut reply = [0; 28];
    tokio::time::timeout(TIMEOUT, stream.read_exact(&mut reply))
        .await
        .unwrap()
        .expect("the address gives way");
    assert!(probed.server.connections() <= 8);
}

#[tokio::test]
async fn connections_in_use_are_shared_fairly_between_addresses() {
    let limits = ServerLimits {
        connections: 8,
        connections_per_client: 8,
        ..ServerLimits::default()
    };
    let probed = probed(limits).await;
    let mut used = Vec::new();
    for number in 0..8 {
        let mut stream = from([127, 0, 0, 2], &probed).await;
        stream.write_all(&raw_call(number, FAST)).await.unwrap();
        let mut reply = [0; 28];
        stream.read_exact(&mut reply).await.unwrap();
        used.push(stream);
    }
    let client = probed.client().await;
    client.call(&target(), FAST, &()).await.expect("a newcomer");
    client.call(&target(), FAST, &()).await.expect("which then stays");
}
