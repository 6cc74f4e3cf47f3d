//! Takeover: how an attach learns that the disk is another's.
//!
//! A node says so to whoever sends it something; an attach whose user is idle sends nothing, so it looks at the disk's record every
//! few seconds as well. Either way the disk is over at once: what waits is answered with an error, and nothing more is sent.
//! The same look shows that somebody wants the disk given back, or made it larger ([`News`]): whoever serves it detaches, or takes it up.

use crate::attach::{AttachedDisk, News};
use firn_blockd_disk::Incarnation;
use firn_blockd_placement::{DiskLook, DiskState, PlacementError};
use std::{fmt, time::Duration};
use tokio::sync::watch;

/// Between two looks for the name of who has it now.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Looks for the name of who has it now, where a node told first and the table does not answer.
const ASKED_MAX: u32 = 3;

/// Who has the disk instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenOver {
    /// The attach that has ended so.
    pub fence: u32,
    /// Who has it, if that could be found out.
    pub by: Option<NewOwner>,
}

/// What became of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewOwner {
    /// Another attach.
    Attach {
        /// Its fence.
        fence: u32,
        /// For people: which machine and process; nothing if it has given the disk back already.
        holder: Option<String>,
    },
    /// Nobody: it was deleted.
    Deleted,
}

impl fmt::Display for TakenOver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by {
            Some(NewOwner::Attach {
                fence,
                holder: Some(holder),
            }) => {
                // Without the mark of the call.
                let holder = holder.split_once('#').map_or(&**holder, |(holder, _)| holder);
                write!(formatter, "the disk was attached by {holder} (attach {fence})")?;
            }
            Some(NewOwner::Attach { fence, holder: None }) => {
                write!(
                    formatter,
                    "the disk was detached by force, or attached by somebody else who has given it back since (attach {fence})"
                )?;
            }
            Some(NewOwner::Deleted) => write!(formatter, "the disk was deleted")?,
            None => write!(formatter, "the disk was attached by somebody else")?,
        }
        write!(formatter, "; attach {} is over", self.fence)
    }
}

impl AttachedDisk {
    /// Resolves when somebody wants the disk given back, which [`AttachedDisk::taken_over`] finds out while it is waited for. It holds
    /// nothing of `self`.
    pub fn asked_to_end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut news = self.news.subscribe();
        let kept = self.news.clone();
        async move {
            // The sender is kept until then.
            let _ = news.wait_for(|news| news.asked_to_end).await;
            drop(kept);
        }
    }

    /// What looks at the table find, for as long as [`AttachedDisk::taken_over`] is waited for.
    pub fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Resolves when the disk was taken over; then nothing more is sent to nodes. It holds no lock, and nothing of `self`.
    pub fn taken_over(&self) -> impl Future<Output = TakenOver> + Send + use<> {
        let (env, table, disk) = (self.env.clone(), self.table.clone(), self.disk.clone());
        let (id, fence, news) = (self.record.disk, self.fence, self.news.clone());
        async move {
            let mut asked = 0;
            loop {
                let told = env.timeout(table.looks_every(), disk.fenced()).await.is_ok();
                let (looked, capped) = match table.look(id).await {
                    Ok(DiskLook { record, capped }) => (Ok(record), capped),
                    Err(error) => (Err(error), false),
                };
                let by = match looked {
                    Ok(record) if matches!(record.state, DiskState::Deleting { .. }) => {
                        Some(NewOwner::Deleted)
                    }
                    Ok(record) if record.fence() > fence => Some(NewOwner::Attach {
                        fence: record.fence,
                        holder: record.attached.map(|attach| attach.holder),
                    }),
                    Err(PlacementError::NoDisk(_)) => Some(NewOwner::Deleted),
                    Ok(record) => {
                        let attach = record.attached.as_ref();
                        let found = News {
                            asked_to_end: attach.is_some_and(|attach| attach.asked_to_end),
                            record,
                            capped,
                        };
                        news.send_if_modified(|known| {
                            let is_new = *known != found;
                            *known = found;
                            is_new
                        });
                        None
                    }
                    // The table will be back: nodes know as well.
                    Err(_) => None,
                };
                if by.is_some() {
                    let newest = match &by {
                        Some(NewOwner::Attach { fence, .. }) => *fence,
                        Some(NewOwner::Deleted) | None => fence.0.saturating_add(1),
                    };
                    disk.give_up(Incarnation(newest.into()));
                }
                asked += u32::from(told);
                if by.is_some() || asked >= ASKED_MAX {
                    return TakenOver { fence: fence.0, by };
                }
                if told {
                    env.sleep(LOOK_AGAIN).await;
                }
            }
        }
    }
}
