//! The set `latency`: one client with one durable call in flight, so that every thread's wake-up stands in the way of its answer; and
//! a second client beside it, which looks at a file now and then.
//!
//! Beside the counts of the other sets: how often threads of the edge gave the processor up for each call. One of these is the wait for
//! the client's next call, and what a sync waits for in the kernel is one to three; the rest are wake-ups from thread to thread. The times by
//! the clock are printed and compared with nothing. All of it hangs on how fast the disk syncs at the moment: the set runs only if it is named, and
//! nothing of it is committed.

use crate::{
    content,
    edge::{SMALL_BYTES, Span, connect, create, random_offset, write, written},
    figures::{Figures, Row},
};
use anyhow::{Result, anyhow};
use firn_nfs::v3::types::StableHow;
use firn_rig::{EXPORT, Edge};
use futures::future::{Either, select};
use std::{
    future::Future,
    path::Path,
    pin::pin,
    time::{Duration, Instant},
};

/// The file that is written to: more than one journal file, so that the journal's files are ones that are used again.
const FILE_BYTES: u64 = 192 << 20;
/// Calls that are counted. What they change stays below what a checkpoint starts at (32 MiB), and mostly they take less than the
/// five seconds after which one starts anyway.
const CALLS: u64 = 3000;
/// Calls before them: the disk shows how fast it is.
const CALLS_BEFORE: u64 = 300;
/// Between two looks of the second client: some calls of the first, fewer than make it alone.
const PAUSE: Duration = Duration::from_millis(4);

/// Measures all rows.
pub async fn measure(directory: &Path) -> Result<Figures> {
    let mut edge = Edge::format_local(Edge::binary()?, &directory.join("latency"), |_| {}).await?;
    edge.start().await?;
    let env = firn_env::real(directory)?;
    let (client, root) = connect(&env, &edge.address.to_string(), EXPORT).await?;
    let file = create(&client, &root, "random").await?;
    write(&client, &file, FILE_BYTES).await?;
    edge.sync().await?;

    let data = content(u64::MAX, SMALL_BYTES as usize);
    let write_one = |number| {
        let offset = random_offset(number, FILE_BYTES);
        timed(written(&client, &file, offset, data.clone(), StableHow::FileSync))
    };
    let writes = one_at_a_time(&mut edge, CALLS, write_one).await?;
    edge.sync().await?;
    let creates = one_at_a_time(&mut edge, CALLS, |number| {
        let (client, root) = (&client, &root);
        timed(async move { create(client, root, &format!("file-{number:06}")).await.map(drop) })
    });
    let creates = creates.await?;
    edge.sync().await?;

    let (second, _) = connect(&env, &edge.address.to_string(), EXPORT).await?;
    let write_all = async {
        for number in 0.. {
            write_one(number).await?;
        }
        Ok(())
    };
    let looks = one_at_a_time(&mut edge, CALLS / 2, |_| async {
        tokio::time::sleep(PAUSE).await;
        timed(async {
            let looked = second.get_attributes(&file).await?;
            looked.map(drop).map_err(|failed| anyhow!("GETATTR: {failed:?}"))
        })
        .await
    });
    let looks = match select(pin!(write_all), pin!(looks)).await {
        Either::Left((ended, _)) => return ended.and(Err(anyhow!("the writes ended first"))),
        Either::Right((looks, _)) => looks?,
    };
    drop((client, second));
    edge.stop().await?;
    Figures::measured([
        ("latency write-4k-stable", writes),
        ("latency create", creates),
        ("latency getattr-beside-writes", looks),
    ])
}

async fn timed(call: impl Future<Output = Result<()>>) -> Result<Duration> {
    let began = Instant::now();
    call.await?;
    Ok(began.elapsed())
}

/// Makes calls one after the other; what they cost the edge, and how long half of them took at most.
async fn one_at_a_time<F: Future<Output = Result<Duration>>>(
    edge: &mut Edge,
    calls: u64,
    mut call: impl FnMut(u64) -> F,
) -> Result<Row> {
    for number in 0..CALLS_BEFORE {
        call(number).await?;
    }
    let mut times = Vec::new();
    let span = Span::begin(edge).await?;
    for number in CALLS_BEFORE..CALLS_BEFORE + calls {
        times.push(call(number).await?);
    }
    let row = span.end(edge, "call", calls as f64).await?;
    times.sort();
    let share =
        |of_hundred: usize| times[(times.len() * of_hundred / 100).min(times.len() - 1)].as_secs_f64() * 1e6;
    Ok(row
        .with("median_us", share(50))
        .with("p99_us", share(99))
        .with("longest_us", share(100)))
}
