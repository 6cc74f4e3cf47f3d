//! Measures an NFSv3 server with many calls in flight on one connection: `load ADDRESS EXPORT [QUEUE]`.
//!
//! ADDRESS (`host:port`) must serve MOUNT too. One line per kind of call: calls a second, and MiB/s where data moves.
//! Nothing is cached on this side, so the figures are the server's; what it makes in EXPORT it removes again.

#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use bytes::Bytes;
use firn_nfs::{
    WireHandle,
    client::NfsClient,
    rpc::Credential,
    v3::types::{CreateHow, NewAttributes, StableHow},
};
use futures::{StreamExt, stream};
use std::{
    future::Future,
    time::{Duration, Instant},
};

const SMALL_CALLS: u32 = 20_000;
const FILES: u32 = 5_000;
const LARGE_CALLS: u32 = 512;
const LARGE_BYTES: u32 = 1 << 20;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = |default: &str| arguments.next().unwrap_or_else(|| default.to_owned());
    let (address, export, queue) = (next("127.0.0.1:2049"), next("/"), next("32"));
    let queue: usize = queue.parse().expect("a number of calls in flight");
    let env = firn_env::real(&std::env::temp_dir()).expect("the temporary directory opens");
    let credential = Credential::sys("load", 0, 0, vec![]);
    let client = NfsClient::connect(&env, &address, credential, Duration::from_secs(60)).await;
    let client = client.unwrap_or_else(|error| panic!("{address}: {error}"));
    let root = client
        .mount(&export)
        .await
        .expect("MOUNT answers")
        .expect("the export can be mounted")
        .handle;
    let name = format!("load-{}", std::process::id());
    let make = |mode| NewAttributes {
        mode: Some(mode),
        ..NewAttributes::default()
    };
    let made = client
        .make_directory(&root, &name, make(0o755))
        .await
        .expect("an answer");
    let directory = made
        .expect("a directory can be made")
        .file
        .expect("with a handle");
    let (client, directory) = (&client, &directory);

    run("NULL", SMALL_CALLS, queue, 0, |_| async {
        client.null().await.is_ok()
    })
    .await;
    run("GETATTR", SMALL_CALLS, queue, 0, |_| async {
        client
            .get_attributes(directory)
            .await
            .is_ok_and(|done| done.is_ok())
    })
    .await;
    run("CREATE", FILES, queue, 0, |number| async move {
        let how = CreateHow::Guarded(make(0o644));
        client
            .create(directory, number.to_string(), how)
            .await
            .is_ok_and(|done| done.is_ok())
    })
    .await;
    run("LOOKUP", SMALL_CALLS, queue, 0, |number| async move {
        client
            .lookup(directory, (number % FILES).to_string())
            .await
            .is_ok_and(|done| done.is_ok())
    })
    .await;
    run("READDIRPLUS", 1, 1, 0, |_| list(client, directory)).await;
    let file = client
        .lookup(directory, "0")
        .await
        .expect("an answer")
        .expect("was created")
        .file;
    let (file, data) = (&file, &Bytes::from(vec![0x5a; LARGE_BYTES as usize]));
    let offset = |number: u32| u64::from(number) * u64::from(LARGE_BYTES);
    run(
        "WRITE 1 MiB",
        LARGE_CALLS,
        queue.min(16),
        LARGE_BYTES,
        |number| async move {
            let written = client
                .write(file, offset(number), data.clone(), StableHow::Unstable)
                .await;
            written.is_ok_and(|done| done.is_ok_and(|done| done.count == LARGE_BYTES))
        },
    )
    .await;
    run("COMMIT", 1, 1, 0, |_| async {
        client.commit(file, 0, 0).await.is_ok_and(|done| done.is_ok())
    })
    .await;
    run(
        "READ 1 MiB",
        LARGE_CALLS,
        queue.min(16),
        LARGE_BYTES,
        |number| async move {
            let read = client.read(file, offset(number), LARGE_BYTES).await;
            read.is_ok_and(|done| done.is_ok_and(|done| done.count == LARGE_BYTES))
        },
    )
    .await;
    run("READ 4 KiB", SMALL_CALLS, queue, 4096, |number| async move {
        let read = client.read(file, u64::from(number % 8192) * 4096, 4096).await;
        read.is_ok_and(|done| done.is_ok_and(|done| done.count == 4096))
    })
    .await;
    run("WRITE 4 KiB", SMALL_CALLS, queue, 4096, |number| async move {
        let offset = u64::from(number.wrapping_mul(2_654_435_761) % 8192) * 4096;
        let written = client
            .write(file, offset, data.slice(..4096), StableHow::Unstable)
            .await;
        written.is_ok_and(|done| done.is_ok())
    })
    .await;
    run("REMOVE", FILES, queue, 0, |number| async move {
        client
            .remove(directory, number.to_string())
            .await
            .is_ok_and(|done| done.is_ok())
    })
    .await;
    let removed = client.remove_directory(&root, &name).await.expect("an answer");
    removed.expect("everything in it was removed");
}

/// Runs `calls` calls, `queue` at a time, and prints how fast.
async fn run<F: Future<Output = bool>>(
    name: &str,
    calls: u32,
    queue: usize,
    bytes: u32,
    call: impl Fn(u32) -> F,
) {
    let began = Instant::now();
    let results = stream::iter((0..calls).map(call)).buffer_unordered(queue);
    let failed = results.filter(|ok| std::future::ready(!ok)).count().await;
    let seconds = began.elapsed().as_secs_f64();
    let rate = f64::from(calls) / seconds;
    let data = match bytes {
        0 => String::new(),
        bytes => format!("{:9.1} MiB/s", rate * f64::from(bytes) / f64::from(1 << 20)),
    };
    println!("{name:12} {rate:10.0} /s {data} ({calls} calls, {queue} at a time, {failed} failed)");
}

/// Lists the whole directory with attributes.
async fn list(client: &NfsClient, directory: &WireHandle) -> bool {
    let (mut cookie, mut verifier, mut entries) = (0, [0; 8], 0);
    loop {
        let page = client
            .read_directory_plus(directory, cookie, verifier, 65_536, 65_536)
            .await;
        let Ok(Ok(page)) = page else { return false };
        entries += page.entries.len();
        match page.entries.last() {
            Some(last) if !page.end => (cookie, verifier) = (last.cookie, page.verifier),
            _ => return entries == FILES as usize + 2,
        }
    }
}
