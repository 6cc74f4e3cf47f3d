//! What the service sees of a volume and charges: its root commits, as the anchor's table has them.
//!
//! A root's version counts the commits, so the version is the number of the record: the record of version 7 has sequence number 7,
//! whatever dies in between, and the ledger takes each number once. A batch is decided before it is delivered, so that it is the
//! same when it is sent again:
//!
//! ```text
//! item dev/commits, <volume>:   settled until, pending (until, when)
//!   a newer root ──(conditional write)──▶ pending ──(the ledger accepts it)──(conditional write)──▶ settled
//! ```

use anyhow::{Context as _, Result};
use firn_anchor::Anchor;
use firn_api::App;
use firn_billing::Reporter;
use firn_edge::Place;
use firn_env::Env;
use firn_table::{Condition, ItemKey, Table, Write};
use firn_usage::{BATCH_MAX_RECORDS, Incarnation, Meter, Observation, ResourceName, SourceId, UsageBatch};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// Who commits and then asks for the bill should not wait.
const PERIOD: Duration = Duration::from_secs(1);

/// How far a volume's commits are in the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Counted {
    /// Versions up to this are in the ledger.
    settled: u64,
    /// Versions after `settled` up to this are decided on, with the time they were.
    pending: Option<(u64, u64)>,
}

/// Counts a volume's commits for ever.
pub async fn observe(env: Env, table: Arc<dyn Table>, app: App, place: Place) {
    let observer = Observer {
        anchor: Anchor::new(table.clone(), env.clone(), place.family),
        env,
        table,
        app,
        place,
    };
    loop {
        if let Err(error) = observer.look().await {
            tracing::warn!(%error, "commits wait for the next look");
        }
        observer.env.sleep(PERIOD).await;
    }
}

struct Observer {
    env: Env,
    table: Arc<dyn Table>,
    anchor: Anchor,
    app: App,
    place: Place,
}

impl Observer {
    async fn look(&self) -> Result<()> {
        let key = ItemKey::new("dev/commits", self.place.volume.to_string());
        loop {
            let item = self.table.get(&key).await?;
            let (counted, condition) = match &item {
                Some(item) => (
                    serde_json::from_slice::<Counted>(&item.value)?,
                    Condition::Version(item.version),
                ),
                None => (Counted::default(), Condition::Absent),
            };
            let next = match counted.pending {
                Some((until, at_ms)) => {
                    self.deliver(counted.settled, until, at_ms).await?;
                    Counted {
                        settled: until,
                        pending: None,
                    }
                }
                None => {
                    let (tuple, _) = self.anchor.load(self.place.volume).await?;
                    let version = tuple.root.map_or(0, |root| root.version.0);
                    if version <= counted.settled {
                        return Ok(());
                    }
                    let most = counted.settled + BATCH_MAX_RECORDS as u64;
                    let now_ms = u64::try_from(self.env.wall().as_millis()).context("a clock after 1970")?;
                    Counted {
                        pending: Some((version.min(most), now_ms)),
                        ..counted
                    }
                }
            };
            let value = serde_json::to_vec(&next)?.into();
            self.table
                .transact(vec![Write::Put {
                    key: key.clone(),
                    value,
                    condition,
                }])
                .await?;
        }
    }

    async fn deliver(&self, settled: u64, until: u64, at_ms: u64) -> Result<()> {
        let volume = self.place.volume;
        let observation = Observation {
            tenant: self.place.tenant.into(),
            resource: ResourceName::new(&format!("volume/{volume}"))?,
            meter: Meter::ROOT_COMMITS,
            quantity: 1,
            from_ms: at_ms,
            duration_ms: 0,
        };
        let records = vec![observation; usize::try_from(until - settled)?];
        let source = SourceId::new(&format!("anchor/{volume}"))?;
        let batch = UsageBatch::new(source.clone(), Incarnation(1), settled + 1, records)?;
        self.app
            .billing()
            .accept(&Reporter::service(source), &batch)
            .await?;
        Ok(())
    }
}
