//! An hour without the store: writers are slowed when the journal is full and told to try again; nothing fails, nothing
//! acknowledged is lost, memory does not grow, and when the store is back the rest happens by itself.

use crate::{
    content::content,
    process,
    report::Report,
    simulated::{self, SimulatedEdge},
    world::root,
};
use anyhow::{Context, Result, bail, ensure};
use firn_rig::{Client, EXPORT, Edge};
use firn_store::Outage;
use firn_vfs::{Vfs, VfsError};
use firn_volume::VolumeConfig;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Small, so that it is full long before the store is back.
const JOURNAL_BYTES: u64 = 64 << 20;
const WRITE_BYTES: usize = 64 << 10;
const WRITERS: u64 = 4;
/// A request that hangs is given up after half a minute, the pause before the next is up to as long, and so is the pause of
/// whoever was told to try again; each once.
const RESUME: Duration = Duration::from_secs(120);

/// What writers went through.
#[derive(Default)]
struct Seen {
    acknowledged: AtomicU64,
    jukebox_replies: AtomicU64,
    acknowledged_in_outage: AtomicU64,
    /// Since the store is back.
    first_after_ms: AtomicU64,
}

/// Measures.
pub async fn measure(directory: &Path, small: bool) -> Result<Report> {
    let mut report = Report::new(
        "outage",
        "While the store is away, writers are slowed and none fails; nothing is lost, and it resumes by itself.",
        format!(
            "{WRITERS} writers of {} KiB at a time and a journal of {} MiB; once in simulated time for an hour with a power cut \
             afterwards, once as a process with an NFS client, killed at the end and read back with an empty cache. A writer \
             that is told to try again (NFS3ERR_JUKEBOX) does so, as NFS clients do.",
            WRITE_BYTES >> 10,
            JOURNAL_BYTES >> 20
        ),
    );
    let simulated = tokio::task::spawn_blocking(simulated_hour).await??;
    tell(&mut report, "simulated hour", &simulated, RESUME);
    // Long enough in any case for the journal to be full.
    let outage = Duration::from_secs(if small { 20 } else { 120 });
    let real = real(directory, outage).await?;
    let name = format!("{} s of real time", outage.as_secs());
    tell(&mut report, &name, &real, RESUME);
    report.bounded(
        &format!("peak of resident memory, {name}"),
        format!("{:.1} MiB", real.memory_bytes as f64 / f64::from(1 << 20)),
        "512 MiB",
        real.memory_bytes <= 512 << 20,
    );
    report.bounded(
        "written data in memory, simulated hour",
        format!(
            "{:.1} MiB at most",
            simulated.memory_bytes as f64 / f64::from(1 << 20)
        ),
        "32 MiB",
        simulated.memory_bytes <= VolumeConfig::default().dirty_memory_bytes,
    );
    Ok(report)
}

/// How one outage went.
struct Outcome {
    acknowledged: u64,
    acknowledged_in_outage: u64,
    jukebox_replies: u64,
    resumed_after: Duration,
    compared: u64,
    /// The most that was held: resident (process) or written data in memory (simulated).
    memory_bytes: u64,
}

fn tell(report: &mut Report, name: &str, outcome: &Outcome, resume: Duration) {
    report.told(
        &format!("{name}: acknowledged during the outage"),
        format!(
            "{:.0} MiB",
            (outcome.acknowledged_in_outage * WRITE_BYTES as u64) as f64 / f64::from(1 << 20)
        ),
    );
    report.bounded(
        &format!("{name}: answers \"try again later\""),
        format!("{}", outcome.jukebox_replies),
        "at least 1",
        outcome.jukebox_replies > 0,
    );
    // Any other answer has ended the measurement.
    report.bounded(&format!("{name}: errors"), "0".into(), "0", true);
    report.bounded(
        &format!("{name}: acknowledged writes read back, of all"),
        format!("{} of {}", outcome.compared, outcome.acknowledged),
        "all",
        outcome.compared == outcome.acknowledged,
    );
    report.bounded(
        &format!("{name}: first acknowledgement after its end"),
        format!("{:.1} s", outcome.resumed_after.as_secs_f64()),
        &format!("{} s", resume.as_secs()),
        outcome.resumed_after <= resume,
    );
}

fn outcome(seen: &Seen, compared: u64, memory_bytes: u64) -> Outcome {
    Outcome {
        acknowledged: seen.acknowledged.load(Relaxed),
        acknowledged_in_outage: seen.acknowledged_in_outage.load(Relaxed),
        jukebox_replies: seen.jukebox_replies.load(Relaxed),
        resumed_after: Duration::from_millis(seen.first_after_ms.load(Relaxed)),
        compared,
        memory_bytes,
    }
}

fn simulated_hour() -> Result<Outcome> {
    let config = VolumeConfig {
        journal_bytes: JOURNAL_BYTES,
        journal_file_bytes: JOURNAL_BYTES / 8,
        ..VolumeConfig::default()
    };
    let edge = SimulatedEdge::new(1, config);
    let seen = Arc::new(Seen::default());
    let (env, world, faults, shared) = (edge.env(), edge.world.clone(), edge.faults.clone(), seen.clone());
    let (files, written, memory) = edge.run(async move {
        world.format(&env).await?;
        let volume = world.open(&env).await?;
        let (stop, out) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
        faults.set_outage(Outage::Hang);
        let back = env.now().after(Duration::from_secs(3600));
        let mut writers = Vec::new();
        let mut files = Vec::new();
        for number in 0..WRITERS {
            let file = simulated::file(&volume, &format!("file-{number}")).await?;
            files.push(file);
            let (volume, env, seen) = (volume.clone(), env.clone(), shared.clone());
            let (stop, out) = (stop.clone(), out.clone());
            writers.push(env.clone().spawn("writer", async move {
                let mut written = 0;
                while !stop.load(Relaxed) {
                    env.sleep(Duration::from_millis(100)).await;
                    let data = content(number << 32 | written, WRITE_BYTES);
                    match simulated::write(&volume, file, written * WRITE_BYTES as u64, &data).await {
                        Ok(()) => written += 1,
                        Err(VfsError::TryAgain { .. }) => {
                            seen.jukebox_replies.fetch_add(1, Relaxed);
                            continue;
                        }
                        Err(error) => bail!("a writer was told: {error}"),
                    }
                    seen.acknowledged.fetch_add(1, Relaxed);
                    if out.load(Relaxed) {
                        seen.acknowledged_in_outage.fetch_add(1, Relaxed);
                    } else {
                        let after = env.now().since(back).as_millis() as u64;
                        let _ = seen
                            .first_after_ms
                            .compare_exchange(0, after.max(1), Relaxed, Relaxed);
                    }
                }
                Ok(written)
            }));
        }
        let mut memory = 0;
        while env.now() < back {
            env.sleep(Duration::from_secs(1)).await;
            memory = memory.max(volume.status().dirty_memory_bytes);
        }
        out.store(false, Relaxed);
        faults.set_outage(Outage::None);
        env.sleep(Duration::from_secs(120)).await;
        stop.store(true, Relaxed);
        let mut written = Vec::new();
        for writer in writers {
            written.push(writer.await??);
        }
        Ok((files, written, memory))
    })?;
    edge.machine.crash();
    let env = edge.machine.restart();
    let world = edge.world.clone();
    let compared = edge.run(async move {
        let volume = world.open(&env).await?;
        let mut compared = 0;
        for (number, (file, written)) in files.into_iter().zip(written).enumerate() {
            for index in 0..written {
                let at = index * WRITE_BYTES as u64;
                let read = volume.read(&root(), file, at, WRITE_BYTES as u32).await?;
                let expected = content((number as u64) << 32 | index, WRITE_BYTES);
                ensure!(
                    read.data.concat() == expected,
                    "write {index} of writer {number} is lost"
                );
                compared += 1;
            }
        }
        Ok(compared)
    })?;
    Ok(outcome(&seen, compared, memory))
}

async fn real(directory: &Path, outage: Duration) -> Result<Outcome> {
    let place = directory.join("outage");
    let mut edge = Edge::format_local(Edge::binary_with_faults()?, &place, |settings| {
        settings.limits = format!("journal = \"{} MiB\"\n", JOURNAL_BYTES >> 20);
    })
    .await?;
    const FROM: Duration = Duration::from_secs(3);
    let faults = place.join("outage.toml");
    std::fs::write(
        &faults,
        format!(
            "seed = 1\n[[phases]]\nfrom_ms = {}\nfaults = {{ outage = \"refuse\" }}\n[[phases]]\nfrom_ms = {}\n",
            FROM.as_millis(),
            (FROM + outage).as_millis()
        ),
    )?;
    let opened = Instant::now();
    edge.start_with(&["--fault", &faults.to_string_lossy()]).await?;
    tokio::time::sleep(FROM.saturating_sub(opened.elapsed())).await;
    // A little later than the store's own clock, which began when it was opened.
    let back = opened + FROM + outage;
    let seen = Arc::new(Seen::default());
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..WRITERS)
        .map(|number| {
            let (seen, stop, address) = (seen.clone(), stop.clone(), edge.address);
            tokio::spawn(async move {
                let mut client = Client::mount(address, EXPORT).await?;
                let root = client.root.clone();
                let mut written = 0;
                while !stop.load(Relaxed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let name = format!("file-{number}-{written:06}");
                    let data = content(number << 32 | written, WRITE_BYTES);
                    let before = client.jukebox_replies;
                    let done = client.write_file(&root, name.as_bytes(), 0o644, &data).await;
                    done.context("a writer was told")?;
                    written += 1;
                    seen.jukebox_replies
                        .fetch_add(client.jukebox_replies - before, Relaxed);
                    seen.acknowledged.fetch_add(1, Relaxed);
                    match Instant::now().checked_duration_since(back) {
                        None => {
                            seen.acknowledged_in_outage.fetch_add(1, Relaxed);
                        }
                        Some(after) => {
                            let after = after.as_millis() as u64;
                            let _ = seen
                                .first_after_ms
                                .compare_exchange(0, after.max(1), Relaxed, Relaxed);
                        }
                    }
                }
                anyhow::Ok(written)
            })
        })
        .collect();
    let mut told = Instant::now();
    // Until everybody writes again, and some seconds more.
    let deadline = back + Duration::from_secs(60);
    while Instant::now() < back + Duration::from_secs(5)
        || (seen.first_after_ms.load(Relaxed) == 0 && Instant::now() < deadline)
    {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ensure!(
            !writers.iter().any(tokio::task::JoinHandle::is_finished),
            "a writer ended: {:?}",
            first_error(writers).await
        );
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            println!(
                "bounds: outage: {} writes acknowledged, {} told to try again",
                seen.acknowledged.load(Relaxed),
                seen.jukebox_replies.load(Relaxed)
            );
        }
    }
    stop.store(true, Relaxed);
    let mut written = Vec::new();
    for writer in writers {
        written.push(writer.await??);
    }
    edge.sync().await?;
    let memory = process::memory(edge.process_id().context("the edge has ended")?)?;
    edge.kill().await?;
    edge.wipe_cache()?;
    edge.start().await?;
    let mut client = Client::mount(edge.address, EXPORT).await?;
    let root = client.root.clone();
    let mut compared = 0;
    for (number, written) in written.into_iter().enumerate() {
        for index in 0..written {
            let name = format!("file-{number}-{index:06}");
            let file = client.lookup(&root, name.as_bytes()).await?;
            let (checksum, _) = client.checksum(&file).await?;
            let expected = blake3::hash(&content((number as u64) << 32 | index, WRITE_BYTES));
            ensure!(checksum == expected, "{name} differs");
            compared += 1;
        }
    }
    edge.stop().await?;
    Ok(outcome(&seen, compared, memory.peak))
}

/// Why a writer ended before its time.
async fn first_error(writers: Vec<tokio::task::JoinHandle<Result<u64>>>) -> Option<String> {
    for writer in writers {
        if let Ok(Err(error)) = writer.await {
            return Some(format!("{error:#}"));
        }
    }
    None
}
