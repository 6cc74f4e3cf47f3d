//! Removes what has expired: sign-ups nobody confirmed, invitations nobody took, recoveries nobody finished, kept replies nobody will ask for again; and begins
//! to erase volumes that were deleted a month ago.
//!
//! Nothing relies on it: what expired is refused whether it is still there or not. It only keeps the table small. Each removal
//! is conditional on the version read, so it never meets a change halfway, and a sweep that is cut off goes on at the next.

use crate::{
    app::App,
    backup::{KnownTenant, TENANTS},
    problem::Problem,
    store::{self, KeptReply, Record},
};
use firn_identity::{TenantId, UnixTime};
use firn_table::{TableError, Write};

/// A record that is of no use after some time.
pub(crate) trait Expiring: Record {
    /// When its use ends.
    fn expires(&self) -> UnixTime;
}

impl Expiring for KeptReply {
    fn expires(&self) -> UnixTime {
        self.expires
    }
}

/// Removes everything that has expired; gives how many things that were. The server calls it every hour.
///
/// # Errors
/// If storage did not answer, or holds what this build cannot read; what was removed stays removed.
pub async fn sweep(app: &App) -> Result<u64, Problem> {
    let mut removed = remove::<crate::handlers::SignUpRecord>(app, "signup", "").await?;
    let mut after = None;
    loop {
        let page = app.table().query(TENANTS, "", after.as_deref(), 100).await?;
        for item in &page.items {
            let tenant: TenantId = store::decode::<KnownTenant>(item)?.tenant;
            let partition = format!("tenant/{tenant}");
            removed += remove::<KeptReply>(app, &partition, "kept-reply/").await?;
            removed += remove::<crate::handlers::JoinRecord>(app, &partition, "join/").await?;
            removed += remove::<crate::handlers::RecoveryRecord>(app, &partition, "recovery/").await?;
            removed += crate::saga::erase_overdue(app, tenant).await?;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(removed),
        }
    }
}

async fn remove<T: Expiring>(app: &App, partition: &str, prefix: &str) -> Result<u64, Problem> {
    let mut removed = 0;
    let mut after = None;
    loop {
        let page = app
            .table()
            .query(partition, prefix, after.as_deref(), 100)
            .await?;
        for item in &page.items {
            if store::decode::<T>(item)?.expires() >= app.now() {
                continue;
            }
            let delete = Write::Delete {
                key: item.key.clone(),
                version: item.version,
            };
            match app.table().transact(vec![delete]).await {
                Ok(_) => removed += 1,
                // It was used or removed meanwhile, or may have been: the next sweep sees.
                Err(TableError::ConditionFailed { .. } | TableError::Unavailable(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(removed),
        }
    }
}
