//! Rounds: audits whose money is not enough for everything, each of which goes on where the one before was cut off.

use crate::{
    Archive, Lossy, SEGMENT_BYTES, VOLUME, commit,
    family::{Edge, World, run},
    held, request,
};
use firn_cleaner::{AuditPlace, AuditProgress, AuditRequest, VolumeAudit, audit};
use firn_quantity::Money;
use std::{collections::BTreeMap, sync::Arc};

/// A volume of many files, most of which a snapshot has with other bytes: more nodes and inodes than are read together.
fn archive_of_many_files() -> Archive {
    let world = World::new(7);
    let mut edge = Edge::create(&world, VOLUME, 1, SEGMENT_BYTES);
    for inode in 16..416 {
        edge.write(inode, 0, 200);
    }
    commit(&world, &mut edge, Some(1));
    for inode in 66..416 {
        edge.write(inode, 0, 200);
    }
    commit(&world, &mut edge, None);
    held(world, edge)
}

/// Audits with so much money each, of which each goes on where the one before was cut off, until a round is at its end. `None`: the money is not
/// enough to come anywhere.
fn round(archive: &Archive, store: impl Fn() -> Lossy, nanodollars: u64) -> Option<Vec<VolumeAudit>> {
    let (env, anchor) = (&archive.world.env, archive.world.anchor());
    let mut audits = Vec::new();
    let mut from = BTreeMap::new();
    loop {
        let request = AuditRequest {
            budget: Money::of_nanos(nanodollars),
            from: from.clone(),
            ..request(1)
        };
        let report = run(audit(
            env,
            Arc::new(store()),
            &anchor,
            &request,
            &AuditProgress::default(),
        ));
        let volume = report.expect("a report").volumes.remove(0);
        let began_at = volume.began_at;
        let goes_on_at = volume.goes_on_at;
        audits.push(volume);
        match goes_on_at {
            None => return Some(audits),
            Some(place) if Some(place) == began_at || audits.len() > 200 => return None,
            Some(place) => drop(from.insert(VOLUME, place)),
        }
    }
}

#[test]
fn audits_that_are_cut_off_go_over_everything_by_and_by() {
    let archive = archive_of_many_files();
    let whole = archive
        .audit(archive.whole(), 1)
        .expect("a report")
        .volumes
        .remove(0);
    assert_eq!(
        (whole.began_at, whole.goes_on_at, whole.is_complete),
        (None, None, true)
    );
    let (mut longest, mut is_cut_in_a_snapshot) = (0, false);
    for nanodollars in (290_000..500_000).step_by(7_000) {
        let Some(audits) = round(&archive, || archive.whole(), nanodollars) else {
            continue;
        };
        let counted: u64 = audits.iter().map(|audit| audit.data_objects).sum();
        // What was read beside what waited uppermost is met again.
        assert!(counted >= whole.data_objects, "with {nanodollars}: {audits:?}");
        let is_whole = audits.len() == 1;
        assert!(
            audits
                .iter()
                .all(|audit| audit.is_intact() && audit.is_complete == is_whole)
        );
        longest = longest.max(audits.len());
        let in_snapshots = audits
            .iter()
            .filter(|audit| matches!(audit.goes_on_at, Some(AuditPlace::Retained { .. })));
        is_cut_in_a_snapshot |= in_snapshots.count() > 0;
    }
    assert!(longest > 3 && is_cut_in_a_snapshot, "{longest}");
}

#[test]
fn damage_behind_where_audits_are_cut_off_is_found_in_the_round() {
    let archive = archive_of_many_files();
    let budgets = (290_000..500_000).step_by(7_000);
    let mut smallest = budgets.filter(|budget| round(&archive, || archive.whole(), *budget).is_some());
    // Damage that is looked up once more costs a few requests.
    let budget = smallest.next().expect("some money is enough") + 3000;
    let mut found_by_the_first = 0;
    for node in archive.nodes.iter().step_by(9) {
        let altered = || {
            let mut store = archive.whole();
            archive.alter(&mut store, node);
            store
        };
        let audits = round(&archive, altered, budget).expect("it comes to an end");
        let found = audits.iter().position(|audit| !audit.is_intact());
        let found = found.unwrap_or_else(|| panic!("{:?} in none of {}", node.place, audits.len()));
        found_by_the_first += usize::from(found == 0);
    }
    // What a budget that always begins at the beginning finds.
    assert!(
        found_by_the_first * 2 < archive.nodes.len(),
        "{found_by_the_first}"
    );
}
