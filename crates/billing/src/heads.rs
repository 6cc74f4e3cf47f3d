//! Heads of streams and of tenants: where each lies, and how it moves from one partition for all to shards.
//!
//! A stream's head is written with every batch and a tenant's is checked by every fold. In `billing/streams` and `billing/tenants` those of all lie
//! under one partition key, which in DynamoDB takes 1,000 write units a second. A ledger that is told to [spread](Billing::spread) moves each
//! head, when it is next written or checked, to one of [`SHARDS`](layout::SHARDS) partitions by a hash of its name, and leaves a forwarding record in its place:
//!
//! ```text
//! in the one partition   in its shard   state      next write by who spreads                      next write by who does not
//! nothing                nothing        unknown    forwarding record and head, one transaction    head in the one partition
//! head                   nothing        unmoved    the same                                       head in the one partition
//! forwarding record      head           moved      head in its shard                              head in its shard
//! ```
//!
//! No other state is there, since both items change in one transaction and a forwarding record stays for ever. So processes that spread and
//! processes that do not work beside each other and see one head. Builds from before there were shards refuse a forwarding record as an item of a
//! later version: they receive nothing of such a stream, and fold nothing of such a tenant, rather than count it twice (decision 0209).

use crate::{Billing, BillingError, items, layout};
use bytes::Bytes;
use firn_table::{Condition, Item, ItemKey, ItemVersion, TableError, Write};
use std::sync::atomic::Ordering::Relaxed;

/// Looks at a head that moves meanwhile: it moves once only.
const LOOKS: usize = 3;

/// A head's name, and its two places.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HeadKey {
    pub(crate) shared: ItemKey,
    pub(crate) sharded: ItemKey,
}

/// The place at which a head was found, with its version there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// There is none yet.
    Nowhere,
    /// In the partition of all.
    Shared(ItemVersion),
    /// In its shard; the forwarding record is in the partition of all.
    Sharded(ItemVersion),
}

impl Billing {
    /// The head of this name, and where it lies.
    pub(crate) async fn head(&self, key: &HeadKey) -> Result<(Option<Item>, Place), BillingError> {
        self.note_spread().await?;
        for _ in 0..LOOKS {
            // Where it will be found as a rule first.
            if self.spreads
                && let Some(item) = self.table.get(&key.sharded).await?
            {
                let version = item.version;
                return Ok((Some(item), Place::Sharded(version)));
            }
            match self.table.get(&key.shared).await? {
                None => return Ok((None, Place::Nowhere)),
                Some(item) if !items::is_forwarding(&item) => {
                    let version = item.version;
                    return Ok((Some(item), Place::Shared(version)));
                }
                Some(_) => {}
            }
            if let Some(item) = self.table.get(&key.sharded).await? {
                let version = item.version;
                return Ok((Some(item), Place::Sharded(version)));
            }
        }
        Err(BillingError::Item {
            key: format!("{}/{}", key.shared.partition, key.shared.sort),
            what: "it says that the item is in its shard, and it is not there".into(),
        })
    }

    /// Puts a head that was found at `place`: nobody changed it since. Two writes if it moves.
    pub(crate) fn put_head(&self, key: &HeadKey, place: Place, value: Bytes) -> Vec<Write> {
        let (key_now, condition, moves) = match place {
            Place::Sharded(version) => (&key.sharded, Condition::Version(version), None),
            Place::Shared(version) if self.spreads => {
                (&key.sharded, Condition::Absent, Some(Condition::Version(version)))
            }
            Place::Nowhere if self.spreads => (&key.sharded, Condition::Absent, Some(Condition::Absent)),
            Place::Shared(version) => (&key.shared, Condition::Version(version), None),
            Place::Nowhere => (&key.shared, Condition::Absent, None),
        };
        let mut writes = vec![Write::Put {
            key: key_now.clone(),
            value,
            condition,
        }];
        if let Some(condition) = moves
            && !firn_env::planted!("billing.moves_without_a_trace")
        {
            writes.push(Write::Put {
                key: key.shared.clone(),
                value: items::forwarding(),
                condition,
            });
        }
        writes
    }

    /// Checks that nobody changed a head since it was found at `place`; `value` gives its content, for it moves with that if it must.
    pub(crate) fn check_head(
        &self,
        key: &HeadKey,
        place: Place,
        value: impl FnOnce() -> Result<Bytes, BillingError>,
    ) -> Result<Vec<Write>, BillingError> {
        let check = |key: &ItemKey, condition| {
            vec![Write::Check {
                key: key.clone(),
                condition,
            }]
        };
        Ok(match place {
            Place::Sharded(version) => check(&key.sharded, Condition::Version(version)),
            // A check would be a write to the partition of all, each time.
            Place::Shared(_) | Place::Nowhere if self.spreads => self.put_head(key, place, value()?),
            Place::Shared(version) => check(&key.shared, Condition::Version(version)),
            Place::Nowhere => check(&key.shared, Condition::Absent),
        })
    }

    /// Writes of [`Self::check_head`] or [`Self::put_head`].
    pub(crate) fn head_writes(&self, place: Place) -> usize {
        match place {
            Place::Shared(_) | Place::Nowhere if self.spreads => 2,
            Place::Sharded(_) | Place::Shared(_) | Place::Nowhere => 1,
        }
    }

    /// The partitions in which markers lie.
    pub(crate) async fn pending_partitions(&self) -> Result<Vec<String>, BillingError> {
        let mut partitions = vec![layout::PENDING.to_owned()];
        if self.is_spread().await? && !firn_env::planted!("billing.shards_are_not_folded") {
            partitions.extend(layout::shards(layout::PENDING));
        }
        Ok(partitions)
    }

    /// Notes, before anything lies in a shard, that something may.
    pub(crate) async fn note_spread(&self) -> Result<(), BillingError> {
        if !self.spreads || self.spread_noted.load(Relaxed) {
            return Ok(());
        }
        let note = Write::Put {
            key: layout::spread_key(),
            value: items::encode(&serde_json::json!({}))?,
            condition: Condition::Absent,
        };
        match self.table.transact(vec![note]).await {
            Ok(_) | Err(TableError::ConditionFailed { .. }) => {
                self.spread_noted.store(true, Relaxed);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether anything may lie in a shard.
    pub(crate) async fn is_spread(&self) -> Result<bool, BillingError> {
        if self.spreads || self.spread_noted.load(Relaxed) {
            return Ok(true);
        }
        let noted = self.table.get(&layout::spread_key()).await?.is_some();
        self.spread_noted.store(noted, Relaxed);
        Ok(noted)
    }
}
