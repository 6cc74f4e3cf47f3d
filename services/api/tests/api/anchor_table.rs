//! The roots' own table beside the control plane's: which one it is, and the way into it, cut off at every call.

use crate::harness::Service;
use async_trait::async_trait;
use firn_api::{AnchorTableError, move_roots, require_anchor_table, roots_partition};
use firn_table::{Applied, Condition, Item, ItemKey, MemoryTable, Page, Table, TableError, Write};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// A table whose process dies after so many calls, which it shares with other tables.
struct Dying {
    inner: Arc<dyn Table>,
    left: Arc<AtomicU32>,
}

impl Dying {
    fn live(&self) -> Result<(), TableError> {
        let lives = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match lives {
            Ok(_) => Ok(()),
            Err(_) => Err(TableError::Unavailable("the process died".into())),
        }
    }
}

#[async_trait]
impl Table for Dying {
    async fn get(&self, key: &ItemKey) -> Result<Option<Item>, TableError> {
        self.live()?;
        self.inner.get(key).await
    }

    async fn query(
        &self,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, TableError> {
        self.live()?;
        self.inner.query(partition, prefix, after, limit).await
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        self.live()?;
        self.inner.transact(writes).await
    }
}

/// A service with two volumes of two tenants, each with roots in the control plane's table, as before there were two; and their partitions.
async fn shared() -> (Service, Vec<String>) {
    let service = Service::new();
    let table = service.table.connect(&service.env);
    let mut partitions = Vec::new();
    for name in ["one", "two"] {
        let customer = service.sign_up(&format!("{name}@one.example")).await;
        let token = service.log_in(&customer).await;
        let body = json!({ "name": "v", "bucket": { "kind": "managed", "region": "eu" } });
        let made = service
            .post(&token, &format!("{}/volumes", customer.base), body)
            .await;
        let volume = made.text("id").parse().unwrap();
        let partition = roots_partition(customer.tenant, volume);
        for sort in ["family", "volume/1"] {
            let put = Write::Put {
                key: ItemKey::new(&*partition, sort),
                value: format!("{name} {sort}").into_bytes().into(),
                condition: Condition::Absent,
            };
            table.transact(vec![put]).await.unwrap();
        }
        partitions.push(partition);
    }
    (service, partitions)
}

async fn items(table: &Arc<dyn Table>, partitions: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for partition in partitions {
        for item in table.query(partition, "", None, 100).await.unwrap().items {
            found.push(String::from_utf8(item.value.to_vec()).unwrap());
        }
    }
    found
}

const ROOTS: [&str; 4] = ["one family", "one volume/1", "two family", "two volume/1"];

#[tokio::test]
async fn a_new_installation_remembers_its_table_of_roots_and_serves_with_no_other() {
    let service = Service::new();
    let table: Arc<dyn Table> = service.table.connect(&service.env);
    let refused = require_anchor_table(&table, None, false).await.unwrap_err();
    assert!(matches!(refused, AnchorTableError::NoneGiven), "{refused}");
    assert!(refused.to_string().contains("--anchor-table"), "{refused}");
    require_anchor_table(&table, None, true)
        .await
        .expect("a file is one process's");
    for _ in 0..2 {
        require_anchor_table(&table, Some("firn-anchor"), false)
            .await
            .unwrap();
    }
    for other in [None, Some("firn-other")] {
        let refused = require_anchor_table(&table, other, false).await.unwrap_err();
        let words = refused.to_string();
        assert!(
            words.contains("firn-anchor") && words.contains("Nothing was started"),
            "{words}"
        );
    }
}

#[tokio::test]
async fn roots_that_were_not_moved_keep_a_service_from_starting_with_an_empty_table() {
    let (service, partitions) = shared().await;
    let control: Arc<dyn Table> = service.table.connect(&service.env);
    let anchor: Arc<dyn Table> = MemoryTable::new().connect(&service.env);
    require_anchor_table(&control, None, false)
        .await
        .expect("as it was before");
    let refused = require_anchor_table(&control, Some("firn-anchor"), false)
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("firn-api move-roots"), "{refused}");

    assert_eq!(move_roots(&control, &anchor, "firn-anchor").await.unwrap(), 4);
    assert_eq!(items(&anchor, &partitions).await, ROOTS);
    assert_eq!(items(&control, &partitions).await, [""; 0]);
    require_anchor_table(&control, Some("firn-anchor"), false)
        .await
        .unwrap();
    assert!(require_anchor_table(&control, None, false).await.is_err());
    assert_eq!(move_roots(&control, &anchor, "firn-anchor").await.unwrap(), 0);
    let other = move_roots(&control, &anchor, "firn-other").await.unwrap_err();
    assert!(matches!(other, AnchorTableError::Another { .. }), "{other}");
}

#[tokio::test]
async fn a_move_that_is_cut_off_at_any_call_loses_no_root_and_lets_no_service_start_before_it_is_whole() {
    let (mut cut_off, mut kept_out) = (0, 0);
    for calls in 0..200 {
        let (service, partitions) = shared().await;
        let control: Arc<dyn Table> = service.table.connect(&service.env);
        let anchor: Arc<dyn Table> = MemoryTable::new().connect(&service.env);
        let left = Arc::new(AtomicU32::new(calls));
        let dying = |inner: &Arc<dyn Table>| -> Arc<dyn Table> {
            Arc::new(Dying {
                inner: inner.clone(),
                left: left.clone(),
            })
        };
        if move_roots(&dying(&control), &dying(&anchor), "firn-anchor")
            .await
            .is_ok()
        {
            assert!(kept_out > 0 && cut_off > kept_out, "{cut_off} {kept_out}");
            return;
        }
        cut_off += 1;
        // Whoever is let in now has all the roots in the table that it was let in with.
        let old = require_anchor_table(&control, None, false).await;
        let new = require_anchor_table(&control, Some("firn-anchor"), false).await;
        match (&old, &new) {
            (Ok(()), Err(_)) => assert_eq!(items(&control, &partitions).await, ROOTS, "{calls}"),
            (Err(_), Ok(())) => assert_eq!(items(&anchor, &partitions).await, ROOTS, "{calls}"),
            (Err(_), Err(_)) => {
                kept_out += 1;
                assert_eq!(items(&control, &partitions).await, ROOTS, "{calls}");
            }
            (Ok(()), Ok(())) => panic!("{calls}: with and without"),
        }
        move_roots(&control, &anchor, "firn-anchor").await.unwrap();
        assert_eq!(items(&anchor, &partitions).await, ROOTS, "{calls}");
        assert_eq!(items(&control, &partitions).await, [""; 0], "{calls}");
    }
    panic!("the move does not end");
}

#[tokio::test]
async fn a_backup_knows_nothing_of_the_table_of_roots_and_a_restore_notes_its_own() {
    let (service, partitions) = shared().await;
    let control: Arc<dyn Table> = service.table.connect(&service.env);
    let anchor: Arc<dyn Table> = MemoryTable::new().connect(&service.env);
    move_roots(&control, &anchor, "firn-anchor").await.unwrap();
    let mut file = Vec::new();
    firn_api::backup(&service.env, &control, &mut file).await.unwrap();
    assert!(!String::from_utf8(file.clone()).unwrap().contains("anchor-table"));
    let elsewhere = Service::new();
    let table: Arc<dyn Table> = elsewhere.table.connect(&elsewhere.env);
    let since = firn_api::Since::Nothing;
    firn_api::restore(
        &elsewhere.env,
        &table,
        &mut &file[..],
        &since,
        Some("firn-new-anchor"),
    )
    .await
    .unwrap();
    require_anchor_table(&table, Some("firn-new-anchor"), false)
        .await
        .unwrap();
    assert!(
        require_anchor_table(&table, Some("firn-anchor"), false)
            .await
            .is_err()
    );
    assert_eq!(partitions.len(), 2);
}
