//! Changes whose caller waits for nothing: what a loss of power leaves of them.

use crate::{
    files::{look, name},
    world::{World, root},
};
use firn_env::sim::Simulation;
use firn_vfs::{Caller, CreateMode, Durability, SetAttributes, Vfs};
use firn_volume::Volume;

async fn create(volume: &Volume, text: &str, durability: Durability) {
    let caller = Caller { durability, ..root() };
    let mode = CreateMode::Guarded(SetAttributes::default());
    volume
        .create(&caller, volume.root(), &name(text), mode)
        .await
        .expect("made");
}

/// What comes after a file that was made at level 0.
#[derive(Clone, Copy, PartialEq)]
enum Then {
    Nothing,
    Settled,
    AnotherAtLevelOne,
}

/// Whether the file is there after the power was cut.
fn is_there_after(then: Then) -> bool {
    let simulation = Simulation::new(1);
    let mut world = World::new(&simulation);
    let opening = world.format_and_open();
    world.attempt(&simulation, async move {
        let volume = opening.await;
        create(&volume, "draft", Durability::Memory).await;
        look(&volume, &["draft"])
            .await
            .expect("everybody sees it at once");
        match then {
            Then::Nothing => {}
            Then::Settled => volume.settle(&root()).await.expect("settled"),
            Then::AnotherAtLevelOne => create(&volume, "another", Durability::Journal).await,
        }
    });
    let volume = world.power_cut(&simulation);
    simulation
        .run(async move { look(&volume, &["draft"]).await.is_ok() })
        .expect("the run ends")
}

#[test]
fn a_change_at_level_0_is_durable_with_whatever_is_after_it() {
    assert!(!is_there_after(Then::Nothing), "it waited for the disk");
    assert!(is_there_after(Then::Settled));
    assert!(
        is_there_after(Then::AnotherAtLevelOne),
        "changes are journaled in their order"
    );
}
