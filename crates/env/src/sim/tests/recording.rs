use crate::{
    Env, OpenMode,
    sim::{DiskImage, RecordingDisk, Simulation, Survival},
};
use bytes::Bytes;
use std::sync::Arc;

/// Writes ten numbered files by temporary name and rename, marking each as promised.
async fn write_files(env: Env, sync: bool, promise: impl Fn(u64)) {
    for number in 0..10u64 {
        let file = env
            .disk()
            .open("new", OpenMode::CreateNew)
            .await
            .expect("renamed away");
        file.write_at(0, vec![Bytes::from(vec![number as u8 + 1; 1500])])
            .await
            .expect("space");
        if sync {
            file.sync_data().await.expect("healthy");
        }
        env.disk()
            .rename("new", &format!("file-{number}"))
            .await
            .expect("exists");
        env.disk().sync_directory("").await.expect("healthy");
        promise(number);
    }
}

/// Crashes that broke a promise, over all moments and some draws of what survives.
fn broken_promises(sync: bool) -> usize {
    let simulation = Simulation::new(9);
    let env = simulation.machine("edge").env();
    let (disk, recording) = RecordingDisk::new(env.disk().clone(), DiskImage::default());
    let log = recording.clone();
    let env = env.with_disk(Arc::new(disk));
    simulation
        .run(async move { write_files(env, sync, |number| log.mark(number)).await })
        .expect("ends");
    let mut replay = recording.replay();
    let mut broken = 0;
    loop {
        for draw in 0..8 {
            let image = replay.crash_any(draw);
            let kept = replay.marks().iter().all(|number| {
                image
                    .files
                    .get(&format!("file-{number}"))
                    .is_some_and(|file| file.to_bytes() == vec![*number as u8 + 1; 1500])
            });
            broken += usize::from(!kept);
        }
        if !replay.step() {
            break;
        }
    }
    assert_eq!(replay.position(), recording.len());
    assert_eq!(replay.marks().len(), 10);
    let end = replay.crash(Survival::Everything, 0);
    assert_eq!(end.files.len(), 10);
    broken
}

#[test]
fn every_moment_of_a_recorded_run_can_be_crashed_and_promises_hold() {
    assert_eq!(broken_promises(true), 0);
}

#[test]
fn a_recorded_run_that_skips_a_sync_is_found_out() {
    assert!(broken_promises(false) > 0);
}

#[test]
fn an_image_goes_to_a_real_directory_and_back() {
    let simulation = Simulation::new(9);
    let machine = simulation.machine("edge");
    let env = machine.env();
    simulation
        .run(async move {
            env.disk().create_directory("a/b").await.expect("new");
            let file = env.disk().open("a/b/c", OpenMode::CreateNew).await.expect("new");
            file.write_at(9000, vec![Bytes::from_static(b"end")])
                .await
                .expect("space");
        })
        .expect("ends");
    let root = std::env::temp_dir().join(format!("firn-image-{}", std::process::id()));
    std::fs::create_dir_all(&root).expect("a temporary directory");
    let image = machine.disk().image();
    image.write_to(&root).expect("writable");
    let back = DiskImage::read_from(&root).expect("readable");
    std::fs::remove_dir_all(&root).expect("ours");
    assert!(back == image);
}
