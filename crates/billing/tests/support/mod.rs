//! A ledger process that is killed, and the sixteen senders that outlive it.
#![allow(
    clippy::disallowed_methods,
    reason = "a real process with real connections, on tokio's own clock and network"
)]

use firn_billing::{Billing, BillingError, Reporter};
use firn_env::sim::Seeded;
use firn_table::Table;
use firn_usage::{Incarnation, Meter, Observation, ResourceName, SourceId, TenantName, UsageBatch};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub const SENDERS: u64 = 16;
pub const TENANTS: u64 = 12;
/// 2026-01-10T00:00:00Z.
const OBSERVED_MS: u64 = 1_768_003_200_000;

pub fn source(sender: u64) -> SourceId {
    SourceId::new(&format!("api/{sender}")).unwrap()
}

pub fn tenant(number: u64) -> TenantName {
    TenantName::new(&format!("tenant-{number}")).unwrap()
}

/// Record `sequence` of a sender: the same whenever it is asked for.
pub fn observation(sender: u64, sequence: u64) -> Observation {
    let mut random = Seeded::new(sender, sequence);
    let meters = [
        Meter::ROOT_COMMITS,
        Meter::STORED_BYTE_HOURS,
        Meter::NODE_OPERATIONS,
        Meter::API_OPERATIONS,
    ];
    let meter = *random.pick(&meters);
    Observation {
        tenant: tenant(random.below(TENANTS)),
        resource: ResourceName::new(&format!("volume/{}", random.below(40))).unwrap(),
        meter,
        quantity: if meter == Meter::STORED_BYTE_HOURS {
            random.below(1 << 44)
        } else {
            1 + random.below(9)
        },
        from_ms: OBSERVED_MS + random.below(6 * 3_600_000),
        duration_ms: 1000,
    }
}

pub fn batch(sender: u64, first: u64, next: u64) -> UsageBatch {
    let observations = (first..next)
        .map(|sequence| observation(sender, sequence))
        .collect();
    UsageBatch::new(source(sender), Incarnation(sender + 1), first, observations).unwrap()
}

/// The independent sum: by tenant and meter, from the records themselves.
pub fn expected(records_each: u64) -> BTreeMap<(TenantName, Meter), u128> {
    let mut sums = BTreeMap::new();
    for sender in 0..SENDERS {
        for sequence in 1..=records_each {
            let record = observation(sender, sequence);
            *sums.entry((record.tenant, record.meter)).or_default() += u128::from(record.quantity);
        }
    }
    sums
}

/// Serves senders until it is killed, and folds meanwhile; a ledger that is spread by two at once. A request: source's length u8, source, batch's length u32, batch; the answer: one byte.
pub async fn serve(env: firn_env::Env, table: Arc<dyn Table>, spreads: bool) {
    let billing = Arc::new(Billing::new(&env, table).spread(spreads));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("port {}", listener.local_addr().unwrap().port());
    for _ in 0..=u8::from(spreads) {
        let (billing, env) = (billing.clone(), env.clone());
        env.clone().spawn("fold", async move {
            loop {
                match billing.fold_all().await {
                    // The other one is faster.
                    Ok(_) | Err(BillingError::Unavailable(_)) => env.sleep(Duration::from_millis(10)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        });
    }
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let billing = billing.clone();
        env.spawn("connection", async move {
            // Ends when the sender hangs up.
            while let Ok(length) = stream.read_u8().await {
                let mut name = vec![0; usize::from(length)];
                stream.read_exact(&mut name).await?;
                let mut bytes = vec![0; stream.read_u32().await? as usize];
                stream.read_exact(&mut bytes).await?;
                let reporter = Reporter::service(SourceId::new(std::str::from_utf8(&name).unwrap()).unwrap());
                let batch = UsageBatch::decode(&bytes).unwrap();
                let received = billing.accept(&reporter, &batch).await.is_ok();
                stream.write_u8(u8::from(received)).await?;
            }
            Ok::<(), std::io::Error>(())
        });
    }
}

async fn send(stream: &mut Option<TcpStream>, port: u16, batch: &UsageBatch) -> std::io::Result<bool> {
    if stream.is_none() {
        *stream = Some(TcpStream::connect(("127.0.0.1", port)).await?);
    }
    let open = stream.as_mut().expect("connected just now");
    let name = batch.source().as_str().as_bytes();
    let bytes = batch.encode().unwrap();
    let mut request = vec![name.len() as u8];
    request.extend_from_slice(name);
    request.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    request.extend_from_slice(&bytes);
    open.write_all(&request).await?;
    Ok(open.read_u8().await? == 1)
}

/// Sends all records of one sender: batches doubled, overtaken, cut anew, and sent again whenever a reply does not come.
pub async fn deliver(
    sender: u64,
    records: u64,
    seed: u64,
    largest_batch: u64,
    port: Arc<AtomicU16>,
    received: Arc<AtomicU64>,
) {
    let mut random = Seeded::new(seed, sender);
    let mut unsent = Vec::new();
    let mut at = 1;
    while at <= records {
        let next = (at + 1 + random.below(largest_batch)).min(records + 1);
        unsent.push((at, next));
        at = next;
    }
    let mut stream = None;
    let mut failures = 0;
    while !unsent.is_empty() {
        let index = if random.chance(1, 4) {
            random.index(unsent.len().min(4))
        } else {
            0
        };
        let (first, next) = unsent[index];
        let (from, to) = if random.chance(1, 6) {
            let from = first.saturating_sub(random.below(largest_batch / 2 + 1)).max(1);
            (
                from,
                (next + random.below(largest_batch / 2 + 1)).min(records + 1),
            )
        } else {
            (first, next)
        };
        match send(
            &mut stream,
            port.load(Ordering::Relaxed),
            &batch(sender, from, to),
        )
        .await
        {
            Ok(true) if random.chance(1, 10) => {} // that reply was lost
            Ok(true) => {
                received.fetch_add(next - first, Ordering::Relaxed);
                unsent.remove(index);
            }
            Ok(false) | Err(_) => {
                stream = None;
                failures += 1;
                assert!(failures < 20_000, "the ledger never comes back");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}
