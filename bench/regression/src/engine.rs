//! The set `engine`: a volume in this process, called as the protocol's server calls it; no network and no other process.

use crate::{
    content,
    edge::{CALL_BYTES, LARGE_QUEUE},
    figures::{Figures, Row},
    process,
};
use anyhow::{Context, Result, ensure};
use firn_anchor::Anchor;
use firn_env::RealDisk;
use firn_format::{FamilyId, KeyEpoch, VolumeId};
use firn_seal::{EpochKey, Keys};
use firn_store::DirectoryStore;
use firn_table::MemoryTable;
use firn_vfs::{Caller, CreateMode, Credentials, FileHandle, Name, SetAttributes, Stability, Vfs, VfsError};
use firn_volume::{FormatOptions, Parts, Volume, VolumeConfig};
use futures::{StreamExt, TryStreamExt, stream};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

const FAMILY: FamilyId = FamilyId([1; 16]);
const LARGE_BYTES: u64 = 512 << 20;
const GIB: f64 = (1_u64 << 30) as f64;

/// Measures all rows.
pub async fn measure(directory: &Path) -> Result<Figures> {
    let volume = open(&directory.join("engine")).await?;
    let caller = Caller::new(Credentials::root());
    let name = Name::new(&b"large"[..]).context("a name")?;
    let mode = CreateMode::Guarded(SetAttributes::default());
    let large = volume.create(&caller, volume.root(), &name, mode).await?.handle;
    // The contents are made before: they are not the engine's work.
    let contents: Vec<_> = (0..16)
        .map(|number| content(number, CALL_BYTES as usize))
        .collect();
    let calls = LARGE_BYTES / u64::from(CALL_BYTES);
    let gib = LARGE_BYTES as f64 / GIB;
    let own = || process::counts(std::process::id());
    let mut rows = Vec::new();

    let before = own()?;
    stream::iter(0..calls)
        .map(anyhow::Ok)
        .try_for_each_concurrent(LARGE_QUEUE, |number| {
            let (volume, caller) = (&volume, &caller);
            // A copy each, as what comes from the network is.
            let data = &contents[number as usize % contents.len()];
            async move {
                let offset = number * u64::from(CALL_BYTES);
                write(volume, caller, large, offset, data).await
            }
        })
        .await?;
    volume.commit(&caller, large).await?;
    volume.sync().await?;
    rows.push((
        "engine write-sequential",
        Row::between("GiB", gib, before, own()?),
    ));

    let before = own()?;
    stream::iter(0..calls)
        .map(|number| {
            let (volume, caller) = (&volume, &caller);
            async move {
                let offset = number * u64::from(CALL_BYTES);
                let read = volume.read(caller, large, offset, CALL_BYTES).await?;
                let bytes: usize = read.data.iter().map(|part| part.len()).sum();
                ensure!(bytes == CALL_BYTES as usize, "only {bytes} bytes were read");
                Ok(())
            }
        })
        .buffered(LARGE_QUEUE)
        .try_collect::<Vec<()>>()
        .await?;
    rows.push(("engine read-sequential", Row::between("GiB", gib, before, own()?)));
    volume.drain().await?;
    Figures::measured(rows)
}

async fn write(
    volume: &Volume,
    caller: &Caller,
    file: FileHandle,
    offset: u64,
    data: &bytes::Bytes,
) -> Result<()> {
    const TRIES_MAX: u32 = 100;
    for _ in 0..TRIES_MAX {
        let parts = vec![bytes::Bytes::copy_from_slice(data)];
        match volume
            .write(caller, file, offset, parts, Stability::Unstable)
            .await
        {
            Err(VfsError::TryAgain { .. }) => tokio::time::sleep(Duration::from_millis(100)).await,
            other => return Ok(other.map(drop)?),
        }
    }
    anyhow::bail!("put off {TRIES_MAX} times")
}

async fn open(directory: &Path) -> Result<Volume> {
    for part in ["state", "store"] {
        std::fs::create_dir_all(directory.join(part))?;
    }
    let env = firn_env::real(&directory.join("state"))?;
    let bucket = env.with_disk(Arc::new(RealDisk::open(&directory.join("store"))?));
    let keys = BTreeMap::from([(KeyEpoch(1), EpochKey::from_bytes([3; 32]))]);
    let parts = Parts {
        env: env.clone(),
        store: Arc::new(DirectoryStore::open(&bucket, "").await?),
        second: None,
        anchor: Anchor::new(MemoryTable::new().connect(&env), env.clone(), FAMILY),
        keys: Keys::new(FAMILY, keys),
        volume: VolumeId([2; 16]),
    };
    parts.anchor.create_family().await.context("a new family")?;
    let config = VolumeConfig::default();
    Volume::format(&parts, "bench", FormatOptions::default(), &config)
        .await
        .context("formatting")?;
    let opened = Volume::open(parts, config).await;
    Ok(opened.context("opening the volume")?.0)
}
