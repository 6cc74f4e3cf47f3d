//! Prints how many task polls a second the simulation does: `cargo run --release -p firn-env --example sim_speed`.

use firn_env::{OpenMode, sim::Simulation};
use std::time::Duration;

fn main() {
    #[allow(clippy::disallowed_methods, reason = "real time is what is measured")]
    let started = std::time::Instant::now();
    let simulation = Simulation::new(1);
    let env = simulation.machine("edge").env();
    simulation
        .run(async move {
            let tasks: Vec<_> = (0..16)
                .map(|number| {
                    let inner = env.clone();
                    env.spawn("worker", async move {
                        let path = format!("file-{number}");
                        let file = inner.disk().open(&path, OpenMode::CreateNew).await.expect("new");
                        for round in 0..10_000 {
                            let data = vec![bytes::Bytes::from_static(&[7; 512])];
                            file.write_at(round % 64 * 512, data).await.expect("space");
                            file.sync_data().await.expect("healthy");
                            inner.sleep(Duration::from_micros(inner.random_below(50))).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.expect("ends");
            }
        })
        .expect("ends");
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{} polls in {seconds:.2} s: {:.0} a second",
        simulation.steps(),
        simulation.steps() as f64 / seconds
    );
}
