//! Files of random content for the synthetic loads, and the chance numbers of those loads.

use crate::{mount::Mount, office::Office, table1};
use anyhow::{Context, Result};
use bytes::Bytes;
use firn_env::sim::Seeded;
use firn_nfs::WireHandle;
use firn_volume::{FetchPolicy, VolumeConfig};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

/// Files that are written side by side when a set is made.
const WRITERS: usize = 8;
/// How SPECsfs lays files out.
const FILES_IN_DIRECTORY: usize = 30;
/// Random content is cut from this much of it, so that making it costs nothing; compression finds nothing in 32 KiB of it.
const POOL_BYTES: usize = 8 << 20;

/// Bytes that do not compress.
#[derive(Clone)]
pub struct Noise(Bytes);

impl Noise {
    pub fn new(seed: u64) -> Self {
        let mut pool = vec![0; POOL_BYTES];
        Seeded::new(seed, 77).fill(&mut pool);
        Self(pool.into())
    }

    /// `length` bytes, other ones for another `number`.
    pub fn bytes(&self, number: u64, length: usize) -> Bytes {
        let at =
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize % (POOL_BYTES - length.min(POOL_BYTES / 2));
        if at + length <= POOL_BYTES {
            return self.0.slice(at..at + length);
        }
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let from = (at + bytes.len()) % POOL_BYTES;
            let until = POOL_BYTES.min(from + length - bytes.len());
            bytes.extend_from_slice(&self.0[from..until]);
        }
        bytes.into()
    }
}

/// A file that was made.
#[derive(Clone)]
pub struct MadeFile {
    pub directory: WireHandle,
    pub handle: WireHandle,
    pub name: String,
    pub size_bytes: u64,
}

/// The files, and what they take.
pub struct FileSet {
    pub files: Vec<MadeFile>,
    pub bytes: u64,
}

impl FileSet {
    /// Makes files of these sizes through an edge, over a line without delay, and commits them.
    pub fn make(office: &Office, sizes: &[u64], segment_bytes: u64) -> Result<Self> {
        let config = VolumeConfig {
            segment_bytes,
            uploads_max: 32,
            fetch: FetchPolicy::Exact,
            ..VolumeConfig::default()
        };
        let edge = office.edge(config, crate::office::Line::of_latency(1))?;
        let mount = Arc::new(table1::mount(office, &edge)?);
        let sizes: Arc<[u64]> = sizes.into();
        let files = office.run(async move {
            let noise = Noise::new(1);
            let mut directories = Vec::new();
            for number in 0..sizes.len().div_ceil(FILES_IN_DIRECTORY) {
                let name = format!("d{number}");
                directories.push(mount.make_directory(mount.root(), &name).await?);
            }
            let made = sizes.iter().enumerate().map(|(number, size_bytes)| {
                let directory = &directories[number / FILES_IN_DIRECTORY];
                make(&mount, directory, number, *size_bytes, &noise)
            });
            stream::iter(made.collect::<Vec<_>>())
                .buffered(WRITERS)
                .try_collect::<Vec<_>>()
                .await
        })?;
        office.close(edge)?;
        let bytes = files.iter().map(|file| file.size_bytes).sum();
        Ok(Self { files, bytes })
    }
}

async fn make(
    mount: &Mount,
    directory: &WireHandle,
    number: usize,
    size_bytes: u64,
    noise: &Noise,
) -> Result<MadeFile> {
    let name = format!("f{number}");
    let content = noise.bytes(number as u64, size_bytes as usize);
    let handle = mount.make_file(directory, &name).await.context("a new file")?;
    mount.write_whole(&handle, content).await?;
    Ok(MadeFile {
        directory: directory.clone(),
        handle,
        name,
        size_bytes,
    })
}
