//! Holes and data as SEEK_HOLE and SEEK_DATA are told, against the model: through writes, zeros, truncations, cold caches, power cuts, and
//! while checkpoints are under way.

use crate::world::{World, root};
use bytes::Bytes;
use firn_env::{
    mutants::planting,
    sim::{Seeded, Simulation},
};
use firn_vfs::{CreateMode, FileHandle, MemoryVfs, Name, SeekTo, SetAttributes, Stability, Vfs};
use firn_volume::Volume;
use std::sync::Arc;

/// Of files of the volume.
const BLOCK_BYTES: u64 = 32 << 10;

struct Pair {
    model: Arc<MemoryVfs>,
    volume: Volume,
    /// As each side names the file.
    files: [FileHandle; 2],
}

impl Pair {
    fn sides(&self) -> [(&dyn Vfs, FileHandle); 2] {
        [(&*self.model, self.files[0]), (&self.volume, self.files[1])]
    }

    async fn write(&self, offset: u64, data: &Bytes) {
        let caller = root();
        for (side, file) in self.sides() {
            let data = vec![data.clone()];
            let written = side.write(&caller, file, offset, data, Stability::FileSync);
            written.await.expect("written");
        }
    }

    async fn truncate(&self, size: u64) {
        let caller = root();
        for (side, file) in self.sides() {
            let change = SetAttributes {
                size_bytes: Some(size),
                ..SetAttributes::default()
            };
            let set = side.set_attributes(&caller, file, change, None);
            set.await.expect("set");
        }
    }

    async fn size(&self) -> u64 {
        let attributes = self.model.attributes(self.files[0]).await;
        attributes.expect("attributes").size_bytes
    }

    async fn seek(&self, offset: u64, to: SeekTo) -> [Option<u64>; 2] {
        let [(model, at_model), (volume, at_volume)] = self.sides();
        let model = model.seek(&root(), at_model, offset, to).await;
        let volume = volume.seek(&root(), at_volume, offset, to).await;
        [model.expect("an answer"), volume.expect("an answer")]
    }

    /// Whether what the volume says of `offset` may be said: the model takes all zeros for holes, the volume need not.
    async fn check(&self, offset: u64) -> Result<(), String> {
        let size = self.size().await;
        let [model, volume] = self.seek(offset, SeekTo::Data).await;
        let is_right = match (model, volume) {
            (None, None) => true,
            (Some(_), None) => false,
            (first, Some(at)) => offset <= at && at < size && first.is_none_or(|first| at <= first),
        };
        if !is_right {
            return Err(format!(
                "data behind {offset} of {size}: {volume:?}, in the model {model:?}"
            ));
        }
        let [model, volume] = self.seek(offset, SeekTo::Hole).await;
        let is_right = match (model, volume) {
            (None, None) => true,
            (Some(_), Some(at)) if at == size => true,
            (Some(_), Some(at)) if offset <= at && at < size => {
                self.seek(at, SeekTo::Hole).await == [Some(at), Some(at)]
            }
            _ => false,
        };
        match is_right {
            true => Ok(()),
            false => Err(format!(
                "a hole behind {offset} of {size}: {volume:?}, in the model {model:?}"
            )),
        }
    }

    /// After a checkpoint each block is a hole if it is all zeros, and data if not.
    async fn check_blocks(&self) -> Result<(), String> {
        let size = self.size().await;
        let mut start = 0;
        // What is small may be in the inode.
        while size > 4 * BLOCK_BYTES && start < size {
            let end = (start + BLOCK_BYTES).min(size);
            let [data, seen] = self.seek(start, SeekTo::Data).await;
            let is_hole = data.is_none_or(|data| data >= end);
            let told_hole = seen.is_none_or(|seen| seen >= end);
            if is_hole != told_hole || (!is_hole && seen != Some(start)) {
                return Err(format!(
                    "the block {start}..{end} of {size}: {seen:?}, in the model {data:?}"
                ));
            }
            // Long holes are left at once.
            start = match (is_hole, data) {
                (true, Some(next)) => next / BLOCK_BYTES * BLOCK_BYTES,
                (true, None) => size,
                (false, _) => end,
            };
        }
        Ok(())
    }
}

async fn steps(pair: &Pair, env: &firn_env::Env, seeded: &mut Seeded) -> Result<(), String> {
    for _ in 0..40 {
        // Far out as well, where the block map is high and mostly missing.
        let far = if seeded.chance(1, 8) {
            seeded.below(1 << 36)
        } else {
            0
        };
        let offset = far + seeded.below(600_000);
        let mut data = vec![0; 1 + seeded.below(150_000) as usize];
        match seeded.below(8) {
            0..=2 => {
                seeded.fill(&mut data);
                pair.write(offset, &data.into()).await;
            }
            3..=4 => pair.write(offset, &data.into()).await,
            5 => pair.truncate(offset).await,
            6 => {
                // Under way while the next steps are made.
                let volume = pair.volume.clone();
                let sync = async move { volume.sync().await.expect("a healthy store takes it") };
                drop(env.spawn("sync", sync));
            }
            _ => pair.volume.drop_caches().await,
        }
        for _ in 0..4 {
            let size = pair.size().await;
            let offset = seeded.below(size + size / 8 + 1);
            pair.check(offset).await?;
            pair.check(offset / BLOCK_BYTES * BLOCK_BYTES).await?;
        }
        pair.check(0).await?;
    }
    Ok(())
}

fn history(seed: u64) -> Result<(), String> {
    let simulation = Simulation::new(seed);
    let mut world = World::new(&simulation);
    let model = world.model();
    let mut volume = simulation.run(world.format_and_open()).expect("the run ends");
    let name = Name::new("sparse").expect("a name");
    let make = {
        let (model, volume) = (model.clone(), volume.clone());
        async move {
            let mut files = Vec::new();
            let sides: [&dyn Vfs; 2] = [&*model, &volume];
            for side in sides {
                let mode = CreateMode::Guarded(SetAttributes::default());
                let made = side.create(&root(), side.root(), &name, mode).await;
                files.push(made.expect("made").handle);
            }
            [files[0], files[1]]
        }
    };
    let files = simulation.run(make).expect("the run ends");
    for round in 0..3 {
        let (env, mut seeded) = (world.env(), Seeded::new(seed, 10 + round));
        let pair = Pair {
            model: model.clone(),
            volume: volume.clone(),
            files,
        };
        let story = async move {
            steps(&pair, &env, &mut seeded).await?;
            pair.volume.sync().await.expect("a healthy store takes it");
            pair.check_blocks().await
        };
        simulation.run(story).expect("the run ends")?;
        volume = world.power_cut(&simulation);
    }
    Ok(())
}

#[test]
fn holes_are_told_as_the_model_has_them_and_exactly_by_blocks_after_a_checkpoint() {
    for seed in 1..=8 {
        assert_eq!(history(seed), Ok(()), "seed {seed}");
    }
}

#[test]
fn data_that_is_being_committed_is_no_hole() {
    let bug = Some("volume.seek_passes_what_is_being_committed");
    let is_caught = |seed| planting(bug, || history(seed)).is_err();
    assert!(
        (1..=12).any(is_caught),
        "no history notices what is being committed"
    );
}
