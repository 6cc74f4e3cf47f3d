//! The journal's two files are written in turn, and neither before what it holds is covered.

use crate::support::store::{formatted, generation, place, put, read};
use firn_blockd_node::*;
use firn_env::{mutants::planting, sim::Simulation};

/// Blocks are made durable, others are written until the journal has gone round several times, and the machine crashes.
fn the_journal_goes_round() -> Result<(), String> {
    let simulation = Simulation::new(3);
    let machine = simulation.machine("node");
    let env = machine.env();
    simulation
        .run(async move {
            let store = formatted(&env).await;
            for block in 0..20 {
                store
                    .put(place(0), &[put(0, block, generation(1))])
                    .await
                    .expect("there is room");
            }
            store.flush().await;
            // A batch takes a sector at least, and a file of 64 KiB has 128 of them.
            for sequence in 2..500 {
                let put = put(1, (sequence % 7) as u16, generation(sequence));
                store.put(place(1), &[put]).await.expect("there is room");
                store.flush().await;
            }
        })
        .map_err(|error| error.to_string())?;
    machine.crash();
    let env = machine.restart();
    simulation
        .run(async move {
            let store = Store::open(&env, StoreOptions::default())
                .await
                .map_err(|error| error.to_string())?;
            for block in 0..20 {
                let (version, _) = read(&store, 0, block).await;
                if version.generation != generation(1) {
                    return Err(format!("block {block} is at {} again", version.generation));
                }
            }
            Ok(())
        })
        .map_err(|error| error.to_string())?
}

#[test]
fn what_was_durable_stays_so_when_the_journal_goes_round() {
    assert_eq!(the_journal_goes_round(), Ok(()));
    let noticed = planting(Some("store.reuse_journal_early"), the_journal_goes_round);
    assert!(
        noticed.is_err(),
        "a journal file reused too early was not noticed"
    );
}
