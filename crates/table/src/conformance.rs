//! One suite for every engine: what a [`Table`] promises, checked through the trait alone.
//!
//! Each check is a sentence and works in partitions of its own below `namespace`, so that the suite can run again on a table
//! that lives on. A broken promise panics with the sentence's words. The table must be without faults: "unavailable" fails.

mod items;
mod limits;
mod queries;
mod races;
mod versions;

use crate::{
    Applied, Condition, Item, ItemKey, ItemVersion, MAX_KEY_BYTES, MAX_TRANSACTION_BYTES, Table, TableError,
    Write,
};
use bytes::Bytes;
use firn_env::Env;
use std::sync::Arc;

/// What an engine takes, where that is less than every other does: exactly so much is allowed, and one byte more refused.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// Bytes of either half of a key.
    pub key_bytes: usize,
    /// Bytes of a transaction, as [`MAX_TRANSACTION_BYTES`] counts them.
    pub transaction_bytes: usize,
    /// Whether a transaction may span partitions; otherwise such a one is refused.
    pub spans_partitions: bool,
}

impl Default for EngineLimits {
    fn default() -> Self {
        Self {
            key_bytes: MAX_KEY_BYTES,
            transaction_bytes: MAX_TRANSACTION_BYTES,
            spans_partitions: true,
        }
    }
}

/// Runs all checks.
///
/// # Panics
/// If the table breaks a promise.
pub async fn run(table: Arc<dyn Table>, env: &Env, namespace: &str) {
    run_within(table, env, namespace, EngineLimits::default()).await;
}

/// Runs all checks on an engine with limits of its own.
///
/// # Panics
/// If the table breaks a promise.
pub async fn run_within(table: Arc<dyn Table>, env: &Env, namespace: &str, limits: EngineLimits) {
    let subject = Subject {
        table,
        env: env.clone(),
        namespace: namespace.to_owned(),
        limits,
    };
    limits::an_item_of_exactly_the_limit_is_stored_and_one_byte_more_is_refused(&subject).await;
    limits::a_transaction_of_exactly_the_limit_is_done_and_one_byte_more_is_refused(&subject).await;
    limits::a_hundred_operations_are_one_transaction_and_one_more_is_refused(&subject).await;
    limits::a_transaction_spans_partitions_or_is_refused_whole(&subject).await;
    limits::keys_of_exactly_the_limit_are_fine_and_longer_or_empty_ones_are_refused(&subject).await;
    queries::a_page_ends_at_its_byte_limit(&subject).await;
    items::an_item_is_absent_until_it_is_put_and_again_once_it_is_deleted(&subject).await;
    items::values_of_any_bytes_and_of_none_come_back_as_they_were(&subject).await;
    items::keys_of_any_characters_are_told_apart(&subject).await;
    items::a_transaction_happens_whole_or_not_at_all_and_names_the_first_condition_that_failed(&subject)
        .await;
    items::a_check_changes_nothing_and_must_hold(&subject).await;
    versions::every_put_draws_a_version_and_reports_it(&subject).await;
    versions::a_deleted_and_created_item_is_another_one_to_whoever_holds_the_old_version(&subject).await;
    limits::nonsense_is_refused_before_anything_happens(&subject).await;
    queries::a_query_sees_its_partition_alone_in_byte_order(&subject).await;
    queries::a_prefix_and_a_start_narrow_a_query(&subject).await;
    queries::pages_of_any_size_join_to_the_whole(&subject).await;
    races::of_many_creators_exactly_one_wins(&subject).await;
    races::of_many_deleters_exactly_one_wins(&subject).await;
    races::a_counter_under_conditional_puts_loses_no_increment(&subject).await;
    races::transfers_never_show_a_sum_that_never_was(&subject).await;
    races::a_check_protects_what_a_transaction_only_read(&subject).await;
}

/// The table under test.
#[derive(Clone)]
struct Subject {
    table: Arc<dyn Table>,
    env: Env,
    namespace: String,
    limits: EngineLimits,
}

impl Subject {
    fn key(&self, check: &str, sort: &str) -> ItemKey {
        ItemKey::new(format!("{}/{check}", self.namespace), sort)
    }

    async fn get(&self, key: &ItemKey) -> Option<Item> {
        self.table.get(key).await.expect("a read succeeds")
    }

    async fn transact(&self, writes: Vec<Write>) -> Result<Applied, TableError> {
        let result = self.table.transact(writes).await;
        if let Err(error) = &result
            && (error.is_in_doubt() || matches!(error, TableError::Refused(_)))
        {
            panic!("the table under test has faults: {error}");
        }
        result
    }

    /// Stores an item that must not be there.
    async fn create(&self, key: &ItemKey, value: &[u8]) -> ItemVersion {
        let applied = self.transact(vec![put(key, value, Condition::Absent)]).await;
        match applied.expect("the item is absent")[..] {
            [Some(version)] => version,
            ref other => panic!("a put reports its version, not {other:?}"),
        }
    }

    async fn assert_refused(&self, writes: Vec<Write>, what: &str) {
        let result = self.table.transact(writes).await;
        assert!(matches!(result, Err(TableError::Limit(_))), "{what}: {result:?}");
    }

    async fn assert_fails(&self, writes: Vec<Write>, index: usize, what: &str) {
        match self.transact(writes).await {
            Err(TableError::ConditionFailed { index: found }) => assert_eq!(found, index, "{what}"),
            other => panic!("{what}: {other:?}"),
        }
    }
}

fn put(key: &ItemKey, value: &[u8], condition: Condition) -> Write {
    Write::Put {
        key: key.clone(),
        value: Bytes::copy_from_slice(value),
        condition,
    }
}

fn check(key: &ItemKey, condition: Condition) -> Write {
    Write::Check {
        key: key.clone(),
        condition,
    }
}

fn delete(key: &ItemKey, version: ItemVersion) -> Write {
    Write::Delete {
        key: key.clone(),
        version,
    }
}
