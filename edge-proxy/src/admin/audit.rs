//! Audits, asked for over the admin socket.

use super::{
    Reply,
    server::{Admin, Replies},
};
use crate::{
    auditor::{Asked, Busy, Ended},
    report,
};
use firn_cleaner::{AuditProgress, CleanError};
use std::sync::{Arc, atomic::Ordering::Relaxed};

impl Admin {
    /// A client that goes away ends it.
    pub(super) async fn audit(&self, client: &mut Replies, asked: Asked) -> std::io::Result<()> {
        let progress = Arc::new(AuditProgress::default());
        let (auditor, seen) = (self.observed.auditor.clone(), progress.clone());
        let work = async move { auditor.audit(asked, &seen).await };
        let told = || {
            format!(
                "{} nodes and inodes read, {} of data below them, {} challenges answered",
                progress.read_objects.load(Relaxed),
                report::size(progress.data_bytes.load(Relaxed)),
                progress.answered.load(Relaxed)
            )
        };
        let reply = match client.meanwhile(work, told).await? {
            Err(Busy) => Reply::Error {
                text: "an audit is under way already".into(),
            },
            Ok(Ended {
                found: Ok(report),
                not_signed,
            }) => Reply::Audited {
                report: Box::new(report),
                not_signed: not_signed.map(str::to_owned),
            },
            Ok(Ended {
                found: Err(CleanError::Damaged(damage)),
                ..
            }) => Reply::Damage {
                inode: damage.inode(),
                path: None,
                detail: damage.to_string(),
            },
            Ok(Ended {
                found: Err(error), ..
            }) => Reply::Error {
                text: format!("the audit ended early: {error}"),
            },
        };
        client.send(&reply).await
    }
}
