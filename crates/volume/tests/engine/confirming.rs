//! The price of confirming level 2: one LIST for a thousand segments, and nothing for each of them.

use crate::{
    files::{create, write},
    world::{World, config},
};
use firn_env::sim::Simulation;
use firn_store::{ObjectKey, Store, Usage};
use firn_vfs::{FileHandle, Vfs};
use firn_volume::{Cadence, FormatOptions, Volume, VolumeConfig};
use std::time::Duration;

const BLOCK: u64 = 4 << 10;
/// Blocks of a file that are written between two looks.
const BLOCKS: u64 = 2_400;

/// Each block of data fills a segment, and only who asks for it gets a checkpoint.
fn small_segments() -> VolumeConfig {
    VolumeConfig {
        segment_bytes: BLOCK,
        cadence: Cadence {
            busy: Duration::from_secs(86_400),
            busy_bytes: 1 << 30,
            trickle: Duration::from_secs(86_400),
        },
        ..config()
    }
}

/// What no compression makes smaller.
async fn write_noise(volume: &Volume, file: FileHandle, seed: u8) {
    let mut noise = blake3::Hasher::new().update(&[seed]).finalize_xof();
    let piece = 100 * BLOCK;
    for at in (0..BLOCKS * BLOCK).step_by(piece as usize) {
        let mut data = vec![0; piece as usize];
        noise.fill(&mut data);
        write(volume, file, at, data).await;
    }
}

/// Segments in the store, by listing it past the meter that the volume is under.
async fn segments(store: &dyn Store) -> u64 {
    let (mut count, mut after) = (0, None::<ObjectKey>);
    loop {
        let page = store.list("", after.as_ref()).await.expect("it answers");
        count += page
            .objects
            .iter()
            .filter(|object| object.key.as_str().contains("/log/"))
            .count() as u64;
        after = page.objects.last().map(|object| object.key.clone());
        if !page.more {
            return count;
        }
    }
}

#[test]
fn looking_whether_level_two_is_there_costs_one_list_a_thousand_segments() {
    let simulation = Simulation::new(1);
    let world = World::new(&simulation);
    let (parts, meter, store) = (world.own_parts(), world.meter(), world.store());
    let other = world.machine_beside(&simulation, "takes over");
    let work = async move {
        parts.anchor.create_family().await.expect("a new family");
        let options = FormatOptions {
            block_bytes: BLOCK as u32,
            ..FormatOptions::default()
        };
        let config = small_segments();
        Volume::format(&parts, "test", options, &config)
            .await
            .expect("it is formatted");
        let (volume, _) = Volume::open(parts.clone(), config.clone())
            .await
            .expect("it opens");
        let file = create(&volume, volume.root(), "noise").await;
        volume.sync().await.expect("committed");
        let spent = async |before: Usage, since: u64| {
            let now = meter.usage();
            let uploaded = segments(&*store).await - since;
            (uploaded, now.since(&before))
        };

        // Nothing new: nothing is asked.
        let before = meter.usage();
        volume.sync().await.expect("committed");
        assert_eq!(meter.usage().since(&before).requests(), 0);

        let (before, had) = (meter.usage(), segments(&*store).await);
        write_noise(&volume, file, 1).await;
        volume.sync().await.expect("committed");
        let (uploaded, used) = spent(before, had).await;
        assert!((2_001..=3_000).contains(&uploaded), "{uploaded} segments");
        assert_eq!(used.puts, uploaded, "one checkpoint");
        assert_eq!(
            (used.lists, used.heads),
            (3, 0),
            "sync, {uploaded} segments: {used:?}"
        );

        let before = meter.usage();
        let total = segments(&*store).await;
        let taken = Volume::takeover(&other, &config).await.expect("it is taken over");
        assert!(taken.missing_segments.is_empty());
        let used = meter.usage().since(&before);
        // And three to see that the table was not rolled back.
        assert_eq!(
            (used.lists, used.heads),
            (total.div_ceil(1000) + 3, 0),
            "takeover, {total} segments: {used:?}"
        );

        let (volume, _) = Volume::open(other, config).await.expect("it opens");
        let (before, had) = (meter.usage(), segments(&*store).await);
        write_noise(&volume, file, 2).await;
        volume.drain().await.expect("drained");
        let (uploaded, used) = spent(before, had).await;
        assert!((2_001..=3_000).contains(&uploaded), "{uploaded} segments");
        assert_eq!(
            (used.lists, used.heads),
            (3, 0),
            "drain, {uploaded} segments: {used:?}"
        );
    };
    simulation.run(work).expect("the run ends");
}
