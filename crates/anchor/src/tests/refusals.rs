//! Commits that are refused, against those in doubt.

use super::{
    support::{Dice, run, world},
    volumes::{ALICE, VOLUME, office, root},
};
use crate::{Anchor, AnchorError, Ownership, TableBackend};
use firn_format::{FamilyId, Version};
use firn_table::{Condition, ItemKey, Table as _, TableError, Write};
use std::sync::Arc;

/// What a service says to an edge whose grant was revoked: the change was not made. The same edge commits what it likes once it is let in again.
#[test]
fn a_commit_that_was_refused_leaves_nothing_in_doubt_and_one_in_doubt_stays_so_when_it_is_refused() {
    let office = office();
    let revoked = ItemKey::new("grants", "revoked");
    let backend =
        TableBackend::new(office.client.clone(), format!("family/{}", FamilyId([1; 16]))).guarded(vec![
            Write::Check {
                key: revoked.clone(),
                condition: Condition::Absent,
            },
        ]);
    let anchor = Anchor::over(Arc::new(backend), world(Dice::new(1)), FamilyId([1; 16]));
    let commit = |alice: &mut Ownership, version| {
        let root = root(alice, version);
        run(anchor.commit(alice, root))
    };
    let set = |is_revoked| {
        let version = run(office.client.get(&revoked)).unwrap().map(|item| item.version);
        let write = match (is_revoked, version) {
            (true, None) => Write::Put {
                key: revoked.clone(),
                value: vec![1].into(),
                condition: Condition::Absent,
            },
            (false, Some(version)) => Write::Delete {
                key: revoked.clone(),
                version,
            },
            (true, Some(_)) | (false, None) => panic!("it is so"),
        };
        run(office.client.transact(vec![write])).unwrap();
    };
    let is_refused = |result| {
        matches!(
            result,
            Err(AnchorError::Table(TableError::ConditionFailed { index: 1.. }))
        )
    };
    let mut alice = run(anchor.acquire(VOLUME, ALICE, "alice")).unwrap();
    set(true);
    assert!(is_refused(commit(&mut alice, 1)));
    assert_eq!(alice.unresolved(), None);
    set(false);
    commit(&mut alice, 2).unwrap();
    assert_eq!(office.current_version(), Some(Version(2)));

    // What may have been sent before stays in doubt, whatever is said to the next try.
    office.client.set_outage(true);
    assert!(commit(&mut alice, 3).unwrap_err().is_transient());
    office.client.set_outage(false);
    set(true);
    assert!(is_refused(commit(&mut alice, 3)));
    assert_eq!(alice.unresolved().map(|root| root.version), Some(Version(3)));
    assert!(matches!(
        commit(&mut alice, 4),
        Err(AnchorError::Unresolved { .. })
    ));
    set(false);
    run(anchor.drain(&mut alice)).unwrap_err();
    commit(&mut alice, 3).unwrap();
    run(anchor.drain(&mut alice)).unwrap();
}
