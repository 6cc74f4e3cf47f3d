//! An anchor of an older build on tuples of a newer one: it changes nothing that rests on what it does not know, and says so.

use crate::{TENANT, edge, place::Place, volume};
use firn_anchor::{AnchorAnswer, AnchorBackend as _, AnchorCall, WriterTenure};
use firn_format::WriterId;
use firn_table::{Condition, Item, ItemKey, RedbTable, Table as _, TableError, Write};

async fn table(place: &Place) -> RedbTable {
    let opened = RedbTable::open(&place.env, &place.root.join("roots.redb")).await;
    opened.expect("the table, while no anchor has it")
}

async fn item(place: &Place, key: &ItemKey) -> Item {
    table(place)
        .await
        .get(key)
        .await
        .expect("an answer")
        .expect("the tuple")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tuple_of_a_newer_layout_is_not_changed_and_the_caller_is_told_what_to_do() {
    let here = tempfile::tempdir().unwrap();
    let mut place = Place::new(here.path(), 1);
    place.grant(&[(&edge(1), volume(1), "edge")]);
    let identity = place.issue(&edge(1), "edge.pem");
    place.start();
    let anchor = place.reached(&identity, volume(1));
    let create = AnchorCall::CreateFamily {
        created_at_ms: 1,
        change_id: [1; 16],
    };
    anchor.call(create).await.expect("a family");
    assert_eq!(volume(1).tenant, TENANT);
    let key = ItemKey::new(volume(1).roots_partition(), "family");

    // The layout; the flags behind the kind.
    for (about, at, value) in [("layout 9 is unknown", 0, 9), ("flags 0x80 are unknown", 2, 0x80)] {
        place.kill();
        let whole = item(&place, &key).await;
        assert_eq!(whole.value[2], 0, "no flag is set");
        let mut newer = whole.value.to_vec();
        newer[at] = value;
        put(&place, &whole, newer.clone()).await;
        place.start();
        let Ok(AnchorAnswer::Tuple { tuple: Some(seen) }) = anchor.call(AnchorCall::Family {}).await else {
            panic!("who can read the tuple gets it");
        };
        assert_eq!(seen.content, newer);
        let draw = AnchorCall::DrawWriter {
            seen: seen.version,
            writer: WriterId(7),
            tenure: WriterTenure::Unknown,
            drawn_at_ms: 2,
            change_id: [2; 16],
        };
        for _ in 0..2 {
            let said = match anchor.call(draw.clone()).await {
                Err(TableError::Limit(said)) => said,
                other => panic!("{about}: {other:?}"),
            };
            for part in [
                about,
                "a newer build wrote it",
                "Nothing was changed",
                "install that version",
            ] {
                assert!(said.contains(part) && said.lines().count() == 1, "{part}: {said}");
            }
        }
        place.kill();
        let after = item(&place, &key).await;
        assert_eq!(after.value, newer, "{about}");
        put(&place, &after, whole.value.to_vec()).await;
        place.start();
    }
}

async fn put(place: &Place, current: &Item, value: Vec<u8>) {
    let write = Write::Put {
        key: current.key.clone(),
        value: value.into(),
        condition: Condition::Version(current.version),
    };
    table(place).await.transact(vec![write]).await.expect("it is put");
}
