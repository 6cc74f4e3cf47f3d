//! Clusters that are as full as they may be, through the loss of nodes.

use firn_blockd_simulation::full::run;
use firn_env::mutants::planting;

#[test]
fn in_a_full_cluster_every_write_ends_whichever_node_is_lost() {
    for seed in 0..12 {
        let report = run(seed);
        assert_eq!(report.failure, None, "seed {seed}: {report:?}");
        assert!(report.writes > 5, "seed {seed}: {report:?}");
        let (tracts, promisable, promised) = report.tracts;
        // A disk of one tract has one of the dirty-region log, in two copies, and may make the largest row larger by one on each of four nodes.
        assert!(promised + 8 >= promisable, "seed {seed}: {report:?}");
        assert!(promised * 2 >= tracts, "seed {seed}: {report:?}");
    }
}

#[test]
fn bugs_planted_in_the_placement_of_full_clusters_are_caught() {
    for bug in ["placement.any_room", "node.keeps_what_it_left"] {
        let found = (0..40).find_map(|seed| planting(Some(bug), || run(seed).failure));
        assert!(found.is_some(), "{bug}");
    }
}
