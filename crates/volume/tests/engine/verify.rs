//! Verification: what `verify` takes for damage, and what not.

use crate::{
    files::{create, directory, name},
    world::{World, root},
};
use firn_env::sim::Simulation;
use firn_vfs::Vfs;

#[test]
fn what_is_removed_while_it_is_open_has_no_name_and_is_no_damage() {
    let simulation = Simulation::new(11);
    let opening = World::new(&simulation).format_and_open();
    simulation
        .run(async move {
            let volume = opening.await;
            let (top, root) = (volume.root(), root());
            let file = create(&volume, top, "file").await;
            let below = directory(&volume, top, "directory").await;
            for handle in [file, below] {
                volume.retain(handle).await.expect("open");
            }
            volume.remove(&root, top, &name("file")).await.expect("removed");
            volume
                .remove_directory(&root, top, &name("directory"))
                .await
                .expect("removed");
            volume.sync().await.expect("synced");
            let report = volume.verify(&|_| {}).await.expect("the store answers");
            assert!(report.is_whole(), "{report:#?}");
            assert_eq!(report.inodes, 3, "both are still there, and the root");
        })
        .expect("the run ends");
}
