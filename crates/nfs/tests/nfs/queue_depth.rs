//! Queue depth, as the server notes it: one client with one call at a time is told from all else.

use crate::served::{TIMEOUT, env};
use async_trait::async_trait;
use bytes::Bytes;
use firn_env::Env;
use firn_nfs::{
    rpc::{
        Client, Credential, Program, Programs, Refusal, Reply, Request, Server, ServerLimits, Target,
        call_datagram,
    },
    xdr::{Decode, Encoder},
};
use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::Semaphore,
};

/// More calls than make a client count as alone.
const MANY: u32 = 100;

/// A program that tells whether the call is the only one.
struct Probe {
    env: Env,
    gate: Semaphore,
    /// Calls for bytes.
    answered: AtomicUsize,
}

const LOOK: u32 = 1;
/// The same, once it is let go.
const WAIT: u32 = 2;
/// A mebibyte.
const BYTES: u32 = 3;

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
        ["NULL", "LOOK", "WAIT", "BYTES"].get(procedure as usize).copied()
    }

    fn reply_bytes(&self, request: &Request) -> usize {
        if request.procedure == BYTES { 1 << 20 } else { 100 }
    }

    async fn call(&self, request: Request) -> Result<Reply, Refusal> {
        match request.procedure {
            WAIT => self.gate.acquire().await.unwrap().forget(),
            BYTES => {
                let mut body = Encoder::new();
                body.shared(&[Bytes::from(vec![7; 1 << 20])]);
                self.answered.fetch_add(1, SeqCst);
                return Ok(Reply { body, failed: false });
            }
            _ => {}
        }
        Ok(Reply::success(&self.env.queue_depth().is_one()))
    }
}

struct Probed {
    probe: Arc<Probe>,
    server: Arc<Server>,
    programs: Arc<Programs>,
    address: String,
}

impl Probed {
    async fn start() -> Self {
        let env = env();
        let probe = Arc::new(Probe {
            env: env.clone(),
            gate: Semaphore::new(0),
            answered: AtomicUsize::new(0),
        });
        let server = Server::new(&env, ServerLimits::default());
        let programs = Arc::new(Programs::new([probe.clone() as Arc<dyn Program>]));
        let address = server.listen("127.0.0.1:0", programs.clone()).await.unwrap();
        Self {
            probe,
            server,
            programs,
            address,
        }
    }

    async fn client(&self) -> Client {
        Client::connect(&self.probe.env, &self.address, TIMEOUT)
            .await
            .unwrap()
    }

    async fn in_flight(&self, wanted: usize) {
        for _ in 0..2000 {
            if self.probe.env.queue_depth().in_flight() == wanted {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("never {wanted} calls in flight");
    }

    /// Makes calls one after the other; whether the last was the only one.
    async fn is_alone(&self, client: &Client, calls: u32) -> bool {
        let mut last = false;
        for _ in 0..calls {
            last = call(client, LOOK).await;
            // The reply has come a moment before the server takes note that it has left.
            while self.probe.env.queue_depth().in_flight() > 0 {
                tokio::task::yield_now().await;
            }
        }
        last
    }
}

fn target() -> Target {
    Target {
        program: 400_000,
        version: 1,
        credential: Credential::None,
    }
}

async fn call(client: &Client, procedure: u32) -> bool {
    let target = target();
    let mut results = client.call(&target, procedure, &()).await.unwrap();
    bool::decode(&mut results).unwrap()
}

#[tokio::test]
async fn one_call_at_a_time_of_one_client_is_told_from_two_clients() {
    let probed = Probed::start().await;
    let [first, second] = [probed.client().await, probed.client().await];
    assert!(!probed.is_alone(&first, 1).await, "its first call");
    assert!(probed.is_alone(&first, MANY).await);
    assert!(!probed.is_alone(&second, 1).await);
    assert!(!probed.is_alone(&first, 1).await, "there is another");
    assert!(probed.is_alone(&first, MANY).await, "the other is silent");
}

#[tokio::test]
async fn calls_of_one_client_beside_each_other_are_several() {
    let probed = Probed::start().await;
    let client = probed.client().await;
    assert!(probed.is_alone(&client, MANY).await);
    let together = async {
        let waiting = call(&client, WAIT);
        let look = async {
            probed.in_flight(1).await;
            let alone = call(&client, LOOK).await;
            probed.probe.gate.add_permits(1);
            alone
        };
        tokio::join!(waiting, look)
    };
    assert_eq!(together.await, (false, false));
    probed.in_flight(0).await;
    assert!(!probed.is_alone(&client, 1).await, "a moment ago there were two");
}

#[tokio::test]
async fn a_datagram_is_another_source() {
    let probed = Probed::start().await;
    let client = probed.client().await;
    assert!(probed.is_alone(&client, MANY).await);
    let address = probed
        .server
        .listen_datagram("127.0.0.1:0", probed.programs.clone())
        .await
        .unwrap();
    let target = target();
    let env = &probed.probe.env;
    let interval = Duration::from_secs(2);
    let called = call_datagram(env, &address, &target, LOOK, &(), 5, interval).await;
    let mut results = called.unwrap();
    assert!(!bool::decode(&mut results).unwrap());
    probed.in_flight(0).await;
    assert!(!probed.is_alone(&client, 1).await);
}

#[tokio::test]
async fn a_call_counts_until_its_reply_has_left() {
    /// More than the buffers of two sockets take, and not more than one connection may have in flight.
    const CALLS: u32 = 10;
    let probed = Probed::start().await;
    let mut stream = tokio::net::TcpStream::connect(&probed.address).await.unwrap();
    for transaction in 0..CALLS {
        let words = [40 | 1 << 31, transaction, 0, 2, 400_000, 1, BYTES, 0, 0, 0, 0];
        let call: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        stream.write_all(&call).await.unwrap();
    }
    while probed.probe.answered.load(SeqCst) < CALLS as usize {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(
        probed.probe.env.queue_depth().in_flight() > 0,
        "nobody reads them"
    );
    let mut replies = vec![0; (CALLS as usize) << 20];
    stream.read_exact(&mut replies).await.unwrap();
    // What is left is the heads of the replies.
    stream.read_exact(&mut [0; CALLS as usize]).await.unwrap();
    probed.in_flight(0).await;
}
