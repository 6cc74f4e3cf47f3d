//! Audits: the walk over the trees, the leaves of the manifest and the listing beside them, and challenges, each by itself.

use crate::{
    archive::{BLOCK_BYTES, SEGMENT_BYTES, prices},
    asked::{Asked, Series},
    world::{self, World, config, simulate},
};
use anyhow::{Context, Result, ensure};
use firn_cleaner::{AuditPlace, AuditProgress, AuditReport, AuditRequest, DEFAULT_CHALLENGES, audit};
use firn_format::radix;
use firn_quantity::Money;
use firn_store::{Route, Usage};
use firn_volume::{Volume, VolumeConfig};

/// No limit.
const PLENTY: Money = Money::of_nanos(1_000_000_000_000);
/// Segments for the leaves, as short as a block: it is their number that counts.
const SHORT_SEGMENT_BYTES: u64 = 16 << 10;
/// The smallest block: many nodes in few bytes.
const SMALL_BLOCK_BYTES: u64 = 4 << 10;
/// What the walk sets aside for its next batch (`firn_cleaner`, census): 128 nodes and as many of another root, as large as a full one.
const BATCH_USAGE: Usage = Usage {
    puts: 0,
    gets: 0,
    ranged_gets: 256,
    heads: 0,
    lists: 0,
    deletes: 0,
    failures: 0,
    bytes_up: 0,
    bytes_down: 256 * (8 << 10),
};
/// Blocks below one node.
const NODE_BLOCKS: u64 = radix::FANOUT as u64;

/// What was measured of them.
pub struct Audits {
    /// Of blocks written one after the other, so that nodes lie together.
    pub walk: Series,
    /// Of blocks of which one below each node was written anew by itself, so that each node lies alone.
    pub scattered_walk: Series,
    /// What a manifest adds, by segments.
    pub leaves: Series,
    /// By challenges: an object that the trees need, and an index and an object by the manifest.
    pub challenges: Series,
    /// An audit whose budget ends in the walk.
    pub cut: Cut,
}

/// An audit whose budget ended in the walk.
pub struct Cut {
    /// What it cost, as a share of what the whole one costs.
    pub spent_share: f64,
    /// The data that the walk had come to, as a share of all.
    pub counted_share: f64,
    /// Audits of that budget, each of which goes on where the one before was cut off, until everything was gone through.
    pub audits: usize,
    /// The data that all of them came to, as a share of all.
    pub round_share: f64,
}

async fn audited(world: &World, challenges: u32, budget: Money, seed: u8) -> Result<(AuditReport, Asked)> {
    audited_from(world, challenges, budget, (seed, None)).await
}

/// One that begins at a place.
async fn audited_from(
    world: &World,
    challenges: u32,
    budget: Money,
    (seed, from): (u8, Option<AuditPlace>),
) -> Result<(AuditReport, Asked)> {
    let request = AuditRequest {
        volume: None,
        challenges,
        budget,
        prices: prices().clone(),
        route: Route::Internet,
        seed: Some([seed; 32]),
        second: None,
        from: from
            .map(|place| (world.parts.volume, place))
            .into_iter()
            .collect(),
    };
    let before = world.asked();
    let (env, parts) = (&world.env, &world.parts);
    let progress = AuditProgress::default();
    let report = audit(env, parts.store.clone(), &parts.anchor, &request, &progress).await?;
    let volume = report.volumes.first().context("the volume was audited")?;
    ensure!(volume.is_intact(), "{volume:?}");
    let asked = world.asked().since(&before);
    Ok((report, asked))
}

/// A volume with one file of so many blocks, confirmed.
async fn archive(world: &World, blocks: u64, manifest: bool, config: VolumeConfig) -> Result<Volume> {
    let volume = world.volume(manifest, config).await?;
    let file = world::file(&volume, "archive").await?;
    world.write(&volume, file, (0, blocks * BLOCK_BYTES), 1).await?;
    volume.sync().await?;
    world.until_confirmed(&volume).await?;
    Ok(volume)
}

fn walk(blocks: u64, is_scattered: bool) -> Result<Asked> {
    simulate(move |world| async move {
        let volume = world.volume(false, config()).await?;
        let file = world::file(&volume, "archive").await?;
        world.write(&volume, file, (0, blocks * BLOCK_BYTES), 1).await?;
        volume.sync().await?;
        if is_scattered {
            // An odd step comes to each node once, and to no neighbour after another.
            let nodes = blocks / NODE_BLOCKS;
            for turn in 0..nodes {
                let block = (turn * (nodes / 2 + 1) % nodes) * NODE_BLOCKS;
                world
                    .write(&volume, file, (block * BLOCK_BYTES, BLOCK_BYTES), 2)
                    .await?;
                volume.sync().await?;
            }
        }
        world.until_confirmed(&volume).await?;
        let (report, asked) = audited(&world, 1, PLENTY, 7).await?;
        let volume = &report.volumes[0];
        ensure!(volume.is_complete && volume.data_objects >= blocks, "{volume:?}");
        Ok(asked)
    })
}

fn leaves(segments: u64) -> Result<Asked> {
    let with = |manifest| {
        simulate(move |world| async move {
            let config = VolumeConfig {
                segment_bytes: SHORT_SEGMENT_BYTES,
                ..config()
            };
            let _volume = archive(&world, segments, manifest, config).await?;
            let (report, asked) = audited(&world, 1, PLENTY, 7).await?;
            let entered = report.volumes[0]
                .manifest
                .as_ref()
                .map_or(segments, |manifest| manifest.segments);
            ensure!(entered >= segments, "{entered} segments were entered");
            Ok(asked)
        })
    };
    Ok(with(true)?.since(&with(false)?))
}

fn challenges(count: u64, segments: u64) -> Result<Asked> {
    simulate(move |world| async move {
        let _volume = archive(&world, segments * SEGMENT_BYTES / BLOCK_BYTES, true, config()).await?;
        let (report, asked) = audited(&world, u32::try_from(count)?, PLENTY, 7).await?;
        let volume = &report.volumes[0];
        let manifest = volume.manifest.as_ref().context("it has a manifest")?;
        ensure!(
            volume.is_complete && (volume.intact, manifest.intact) == (count, count),
            "{volume:?}"
        );
        Ok(asked)
    })
}

/// An archive whose walk is many batches of nodes, each of which is reckoned at its largest before it is read.
fn cut(blocks: u64) -> Result<Cut> {
    simulate(move |world| async move {
        let volume = world.volume_of(SMALL_BLOCK_BYTES, true, config()).await?;
        let file = world::file(&volume, "archive").await?;
        world
            .write(&volume, file, (0, blocks * SMALL_BLOCK_BYTES), 1)
            .await?;
        volume.sync().await?;
        world.until_confirmed(&volume).await?;
        let (whole, _) = audited(&world, 1, PLENTY, 7).await?;
        let budget = whole.cost.0 / 2 + prices().cost(&BATCH_USAGE, Route::Internet).total().0;
        let budget = Money(budget);
        let mut round = Vec::new();
        let mut from = None;
        loop {
            let seed = u8::try_from(round.len())?;
            let (report, _) = audited_from(&world, 1, budget, (seed, from)).await?;
            let volume = &report.volumes[0];
            ensure!(!volume.is_complete && report.cost <= budget, "{report:?}");
            from = volume.goes_on_at;
            round.push(report);
            if from.is_none() {
                break;
            }
        }
        let all = whole.volumes[0].data_bytes as f64;
        let share = |report: &AuditReport| report.volumes[0].data_bytes as f64 / all;
        let report = &round[0];
        Ok(Cut {
            spent_share: report.cost.as_f64() / whole.cost.as_f64(),
            counted_share: share(report),
            audits: round.len(),
            round_share: round.iter().map(share).sum(),
        })
    })
}

/// Measures.
///
/// # Errors
/// The engine's, and figures that cannot be extrapolated.
pub fn measure(of_test: bool) -> Result<Audits> {
    let size = |full: u64, small: u64| if of_test { small } else { full };
    Ok(Audits {
        walk: Series::measured(
            "the walk, written in one go",
            "block",
            size(4096, 512),
            |blocks| walk(blocks, false),
        )?,
        scattered_walk: Series::measured(
            "the walk, each node by itself",
            "block",
            size(4096, 512),
            |blocks| walk(blocks, true),
        )?,
        leaves: Series::measured(
            "leaves of the manifest and the listing",
            "segment",
            size(2048, 256),
            leaves,
        )?,
        challenges: Series::measured(
            "challenges, each of the trees and of the manifest",
            "challenge",
            size(u64::from(DEFAULT_CHALLENGES) / 4, 24),
            |count| challenges(count, size(32, 8)),
        )?,
        cut: cut(size(65_536, 49_152))?,
    })
}

impl Audits {
    /// All series.
    pub fn series(&self) -> [&Series; 4] {
        [&self.walk, &self.scattered_walk, &self.leaves, &self.challenges]
    }

    /// Bytes of a leaf of the manifest with all its entries.
    pub fn leaf_bytes(&self) -> f64 {
        self.leaves.each("bytes received") * NODE_BLOCKS as f64
    }
}
