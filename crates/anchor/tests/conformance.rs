//! Tables as answerers of the anchor's calls.

use firn_anchor::{AnchorRole, TableBackend, conformance};
use firn_table::{MemoryTable, RedbTable};
use std::sync::Arc;

#[tokio::test]
async fn an_anchor_in_memory_conforms() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let table = MemoryTable::new().connect(&env);
    conformance::run(Arc::new(TableBackend::new(table, "family/f")), &env).await;
}

#[tokio::test]
async fn an_anchor_on_the_embedded_table_conforms_for_an_edge() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let table = RedbTable::open(&env, &directory.path().join("roots.redb"))
        .await
        .unwrap();
    let backend = TableBackend::new(Arc::new(table), "family/f").for_role(AnchorRole::Edge);
    conformance::run(Arc::new(backend), &env).await;
}

/// On this thread, where bugs are planted.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(future)
}

/// What is checked of calls, taken out.
const UNCHECKED: [&str; 13] = [
    // A number is registered for a writer although it was drawn before.
    "anchor.writers_drawn_twice",
    // Versions are not compared at a commit.
    "anchor.versions_may_repeat",
    // Neither owner nor epoch nor grant is compared at a commit.
    "anchor.commit_without_fence",
    // A volume is given to whoever asks.
    "anchor.acquire_from_other",
    // Whoever asks may break another member's locks.
    "anchor.break_by_anybody",
    // They are broken though their member has given a sign of life since.
    "anchor.break_of_any_count",
    // A member records locks without the lease by which they are decided.
    "anchor.anybody_records_locks",
    // A volume that its members write is given to an owner.
    "anchor.owner_of_members_volume",
    // A member commits a root that names another edge.
    "anchor.commit_of_anothers_root",
    // A member is broken without the head being retained for its journal.
    "anchor.break_retains_nothing",
    // A member starts under a writer that was not drawn for it.
    "anchor.any_writer_starts",
    // A member is broken although it has given a sign of life.
    "anchor.break_on_any_version",
    // A member that is away takes leases.
    "anchor.absent_members_act",
];

#[test]
fn the_suite_notices_each_check_that_is_taken_out() {
    let directory = tempfile::tempdir().unwrap();
    let env = firn_env::real(directory.path()).unwrap();
    let is_noticed = |bug| {
        let table = MemoryTable::new().connect(&env);
        let backend = Arc::new(TableBackend::new(table, "family/f"));
        let run = || block_on(conformance::run(backend, &env));
        firn_env::mutants::planting(bug, || {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
        })
    };
    assert!(!is_noticed(None), "a sound one conforms");
    for bug in UNCHECKED {
        assert!(is_noticed(Some(bug)), "{bug}");
    }
}
